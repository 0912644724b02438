"""Live answers over HTTP: hundreds of open event streams beside a worker, and bare readers of the same kind of streams.

A worker writes 20 answers at a time, ten chunks a second each, while all other streams wait for theirs. The id of an
event is the time at which Redis took it, so what a reader adds to it is known to the millisecond.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from benchmarks.report import Report
from memory_tasks import MemoryClient, Message, PendingReply, ReplyRequest, Settings
from memory_tasks.connection import connect_async
from memory_tasks.web import router
from workers.valkey import EmbeddedValkey, free_port

USER = "bench"
STREAMS = 500
AT_ONCE = 20
CHUNKS = 20
CHUNK_SECONDS = 0.1
BOUND_MS = 100.0

Seen = list[tuple[str, float]]
"""Of one stream: each event's id, and how many ms after it the reader had it."""


def complete(_: Sequence[Message], __: ReplyRequest) -> Iterator[str]:
    """A model that writes ten chunks a second."""
    for number in range(CHUNKS):
        yield f"chunk {number} "
        time.sleep(CHUNK_SECONDS)


def create_app() -> FastAPI:
    """A web app with the router."""
    app = FastAPI()
    rates = {"messages": "1000000/minute", "requests": "1000000/minute"}
    app.include_router(router(MemoryClient.from_settings(), identify=lambda _: USER, **rates))
    return app


@contextmanager
def processes(folder: Path, environment: dict[str, str], *commands: Sequence[str]) -> Iterator[None]:
    """Modules of Python that run meanwhile."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "streams.log").open("ab") as log:
            for command in commands:
                started.append(
                    subprocess.Popen(
                        [sys.executable, "-m", *command], env={**os.environ, **environment},
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    )
                )  # fmt: skip
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def _late(id: str) -> float:
    return time.time() * 1000 - int(id.partition("-")[0])


async def read_http(port: int, pending: PendingReply) -> Seen:
    """Everything of a turn as a browser gets it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path = f"/conversations/{pending.scope.conversation_id}/turns/{pending.turn_id}/events"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    seen: Seen = []
    try:
        async for line in reader:
            if line.startswith(b"id: "):
                id = line[4:].decode().strip()
                seen.append((id, _late(id)))
    finally:
        writer.close()
    return seen


async def read_bare(settings: Settings, pending: PendingReply, client: MemoryClient) -> Seen:
    """The same with nothing but XREAD."""
    redis: Any = connect_async(settings.redis_url)
    key, after, seen = client.keys.turn(pending.scope, pending.turn_id).events, "0-0", list[tuple[str, float]]()
    try:
        while True:
            for _, entries in await redis.xread({key: after}, block=4000) or ():
                for after, fields in entries:
                    seen.append((after, _late(after)))
                    if fields["type"] == "persisted":
                        return seen
    finally:
        await redis.aclose()


async def _all(pending: list[PendingReply], read: Callable[[PendingReply], Awaitable[Seen]]) -> list[Seen]:
    async def one(turn: PendingReply) -> Seen:
        return await read(turn)

    return await asyncio.wait_for(asyncio.gather(*map(one, pending)), 300)


def measured(client: MemoryClient, name: str, read: Callable[[PendingReply], Awaitable[Seen]]) -> tuple[float, int]:
    """Send a message in each conversation, read all streams; p95 in ms, and events that were lost or came twice."""
    pending = [client.reply(USER, f"{name}-{number}", "hello") for number in range(STREAMS)]
    seen = asyncio.run(_all(pending, read))
    wrong = 0
    for turn, mine in zip(pending, seen, strict=True):
        redis: Any = client.redis
        there = [id for id, _ in redis.xrange(client.keys.turn(turn.scope, turn.turn_id).events)]
        found = [id for id, _ in mine]
        wrong += len(set(there) ^ set(found)) + len(found) - len(set(found))
    # What was written before the readers had connected would measure the connecting.
    late = [ms for mine in seen[AT_ONCE * 2 :] for _, ms in mine]
    return statistics.quantiles(late, n=100)[94], wrong


def run(folder: Path, valkey: EmbeddedValkey, report: Report) -> None:
    """Both kinds of readers, one after the other, with the same worker beside them."""
    chosen = {
        "redis_url": valkey.url,
        "long_term_url": f"sqlite:///{folder / 'memory.db'}",
        "completer": "benchmarks.streams:complete",
        "recall_top_k": "0",
        "prefix": "bench-streams",
    }
    settings, port = Settings.load(**chosen), free_port()
    environment = {f"MEMORY_TASKS_{name.upper()}": value for name, value in chosen.items()}
    client = MemoryClient(settings)
    worker = (
        "celery", "-A", "workers.app", "worker", "-Q", "reply,persist,promote", "-P", "threads", "-c", str(AT_ONCE),
        "--without-mingle", "--without-gossip", "--loglevel", "WARNING",
    )  # fmt: skip
    web = ("uvicorn", "--factory", "benchmarks.streams:create_app", "--port", str(port), "--no-access-log")
    with processes(folder, environment, worker, web):
        client.reply(USER, "warm-up", "hello").wait_persisted()
        asyncio.run(_listens(port))
        bare, _ = measured(client, "bare", lambda turn: read_bare(settings, turn, client))
        ours, wrong = measured(client, "http", lambda turn: read_http(port, turn))
    client.close()
    rate = f"{STREAMS} streams, {AT_ONCE / CHUNK_SECONDS:.0f} chunks/s"
    report.add(f"p95 from published to received, {rate}: bare XREAD and over HTTP", bare, ours, 0, "ms")
    report.add(f"the same over HTTP against {BOUND_MS:.0f} ms", BOUND_MS, ours, 1, "ms")
    report.count("events lost or repeated", wrong, f"{STREAMS} streams")


async def _listens(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                return writer.close()
