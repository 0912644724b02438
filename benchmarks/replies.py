"""Replies against the bare floor: same machine, same run, same Redis, same worker and pool.

The floor is a chain of three Celery tasks that do nothing, ignore results, and end with one RPUSH that the caller
waits for. There is nothing cheaper to compare with.
"""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from celery import Celery, chain

from benchmarks.report import Report, interleaved
from memory_tasks import Memory, MemoryClient, Scope, Settings, Turn
from memory_tasks.factory import service_from_settings
from memory_tasks.models import now
from memory_tasks.tasks.publisher import configure
from workers.valkey import EmbeddedValkey

ROUNDS = 400
USER = "bench"
SCOPE_TURNS = 500
LATE_MS = 100


class Bench:
    """One worker with a threads pool, and the client that measures it.

    Args:
        folder: Data and logs.
        memory: Redis of the memory.
        broker: Redis of the broker; the same server by default.
        recall: Whether the recall policy says yes.
    """

    def __init__(self, folder: Path, memory: str, broker: str | None = None, *, recall: bool) -> None:
        settings = {
            "redis_url": memory,
            "broker_url": broker or memory,
            "long_term_url": f"sqlite:///{folder / 'memory.db'}",
            "completer": "benchmarks.worker:complete",
            "recall_policy": "benchmarks.worker:no_recall",
            "prefix": f"bench-{recall}",
        }
        self.settings = Settings.load(**settings)
        self._environment = {f"MEMORY_TASKS_{name.upper()}": value for name, value in settings.items()}
        self._environment["BENCH_RECALL"] = "yes" if recall else "no"
        self._log = folder / f"worker-{recall}.log"
        self._app = configure(Celery("bench", set_as_current=False), self.settings)
        self.client = MemoryClient(self.settings)
        self.redis = redis.Redis.from_url(memory, socket_timeout=None)

    @contextmanager
    def running(self) -> Iterator["Bench"]:
        """Start the worker, and stop it."""
        command = [
            sys.executable, "-m", "celery", "-A", "benchmarks.worker", "worker", "-Q", "reply,persist,promote",
            "-P", "threads", "-c", "100", "--without-mingle", "--without-gossip", "--loglevel", "WARNING",
        ]  # fmt: skip
        with self._log.open("ab") as log:
            worker = subprocess.Popen(
                command, env={**os.environ, **self._environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.bare(0)
            self.client.reply(USER, "warm-up", "hello").result()
            yield self
        finally:
            worker.terminate()
            worker.wait()
            self.client.close()

    def send_bare(self, seconds: float, key: str) -> None:
        """Publish the chain of three tasks that do nothing."""
        steps = (("bare.first", (seconds,), "reply"), ("bare.second", (), "reply"), ("bare.last", (key,), "persist"))
        chain(
            *(
                self._app.signature(name, args=args, queue=queue, immutable=True, ignore_result=True)
                for name, args, queue in steps
            ),
            app=self._app,
        ).apply_async()

    def bare(self, seconds: float) -> None:
        """The chain, and wait for its end."""
        key = uuid.uuid4().hex
        self.send_bare(seconds, key)
        self.redis.blpop([key], timeout=60)

    def send_single(self) -> None:
        """Publish one task."""
        self._app.send_task("bare.first", args=(0,), queue="reply", ignore_result=True)


def latency(bench: Bench, report: Report, label: str, bound: float) -> None:
    """Sequential replies against sequential bare chains."""
    conversation = iter(range(1_000_000))

    def ours() -> None:
        bench.client.reply(USER, f"lat-{next(conversation)}", "hello").result()

    def recalled() -> None:
        bench.client.reply(USER, "long", "which tea do I like?").result()

    floor, mine = interleaved(ROUNDS, lambda: bench.bare(0), recalled if label else ours)
    report.add(f"median latency of a reply{label}", floor, mine, bound, "ms")


def throughput(bench: Bench, report: Report) -> None:
    """Replies of many conversations at once against as many bare chains."""
    count = 1000
    key = uuid.uuid4().hex
    started = time.perf_counter()
    for _ in range(count):
        bench.send_bare(0, key)
    for _ in range(count):
        bench.redis.blpop([key], timeout=60)
    floor = count / (time.perf_counter() - started)
    started = time.perf_counter()
    handles = [bench.client.reply(USER, f"many-{n}", "hello") for n in range(count)]
    for handle in handles:
        handle.wait_persisted(120)
    ours = count / (time.perf_counter() - started)
    report.add("throughput, to persisted", floor, ours, 0.55, "/s", at_least=True)


def slow_model(bench: Bench, report: Report) -> None:
    """200 conversations with a model of one second against 200 bare tasks of one second, 100 threads."""
    count = 200
    key = uuid.uuid4().hex
    started = time.perf_counter()
    for _ in range(count):
        bench.send_bare(1, key)
    for _ in range(count):
        bench.redis.blpop([key], timeout=60)
    floor = time.perf_counter() - started
    started = time.perf_counter()
    handles = [bench.client.reply(USER, f"slow-{n}", "wait 1") for n in range(count)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda handle: handle.result(60), handles))
    report.add("200 conversations, 1 s model, 100 threads", floor, time.perf_counter() - started, 1.25, "s")


def lateness(bench: Bench, report: Report, count: int) -> None:
    """How long after the answer was saved, by Redis' clock, result() returned it: a wake-up that is lost shows."""
    late = []
    for number in range(count):
        pending = bench.client.reply(USER, f"late-{number}", "hello")
        pending.result()
        returned = time.time()
        late.append((returned - pending.status().times["completed"].timestamp()) * 1000)
    over = sum(milliseconds > LATE_MS for milliseconds in late)
    report.count(f"replies of {count} returned over {LATE_MS} ms late", over, f"worst {max(late):.0f} ms")


def accepting(bench: Bench, report: Report) -> None:
    """What the web app pays: reply() against one apply_async, with no worker that takes its time."""
    conversation = iter(range(1_000_000))
    floor, ours = interleaved(
        ROUNDS, bench.send_single, lambda: bench.client.reply(USER, f"acc-{next(conversation)}", "hello")
    )
    report.add("client.reply() against apply_async()", floor, ours, 2.0, "ms")


def round_trips(folder: Path, report: Report) -> None:
    """Commands that a reply sends to the memory's Redis, with the broker elsewhere."""
    watched = 20
    sent: list[str] = []
    with EmbeddedValkey(folder / "memory") as memory, EmbeddedValkey(folder / "broker") as broker:
        server: Any = redis.Redis(port=memory.port)
        with Bench(folder, memory.url, broker.url, recall=False).running() as bench, server.monitor() as monitor:
            for n in range(watched):
                bench.client.reply(USER, f"trip-{n}", "hello").wait_persisted()
            server.set("the-end", "1")
            while "the-end" not in (command := monitor.next_command())["command"]:
                if command["client_type"] != "lua":
                    sent.append(command["command"].split()[0])
    kinds = {kind: sent.count(kind) / watched for kind in sorted(set(sent))}
    worker = sum(count for kind, count in kinds.items() if kind in ("EVALSHA", "LRANGE"))
    shown = ", ".join(f"{kind} {count:g}" for kind, count in kinds.items())
    report.note("round trips of a reply, accept to persisted", f"{worker:g} (all: {shown})")


def fill(settings: Settings) -> None:
    """A conversation with 500 turns in long-term memory."""
    scope = Scope(user_id=USER, conversation_id="long")
    topics = "tea coffee garden train music weather cooking running painting chess".split()
    turns = [
        Turn(
            turn_id=f"t{n}",
            user_message=f"let us talk about {topics[n % 10]} and number {n}",
            assistant_message=f"{topics[(n * 7) % 10]} is fine, here is {n * 13}",
            created_at=now(),
        )
        for n in range(SCOPE_TURNS)
    ]
    service_from_settings(settings).long_term.upsert([Memory(scope=scope, turn=turn) for turn in turns])


def run(folder: Path, valkey: EmbeddedValkey, report: Report) -> None:
    """All measurements of replies."""
    with Bench(folder, valkey.url, recall=False).running() as bench:
        latency(bench, report, "", 1.6)
        throughput(bench, report)
        slow_model(bench, report)
        lateness(bench, report, 10_000)
    accepting(Bench(folder, valkey.url, recall=False), report)
    bench = Bench(folder, valkey.url, recall=True)
    bench.redis.delete("reply")
    fill(bench.settings)
    with bench.running():
        latency(bench, report, ", recall in 500 turns", 2.2)
    round_trips(folder, report)
