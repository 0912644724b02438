"""Working memory: what a turn costs in Redis, whether cost stays flat, and a peer on the same server."""

import asyncio
from pathlib import Path
from typing import Any

import redis

from benchmarks.report import Report, interleaved
from memory_tasks import RedisWorkingStore, Scope, Turn
from memory_tasks.connection import connect
from memory_tasks.keys import Keys
from memory_tasks.models import now
from workers.valkey import EmbeddedValkey

EVER_WRITTEN = 100_000
ROUNDS = 2000
SAID = "I would like to know which of the two trains on Saturday morning is the faster one. " * 2


def _turn(number: int) -> Turn:
    return Turn(turn_id=f"turn-{number:08d}", user_message=SAID, assistant_message=SAID, created_at=now())


def flat(client: redis.Redis, report: Report) -> None:
    """Append and read in a scope of 10 turns, and of 256 that 100,000 have gone through."""
    working = RedisWorkingStore(client, prefix="flat", max_turns=256)
    new, old = (Scope(user_id="bench", conversation_id=name) for name in ("new", "old"))
    for number in range(EVER_WRITTEN):
        working.append(old, _turn(number))
    for number in range(10):
        working.append(new, _turn(number))
    few, many = interleaved(ROUNDS, lambda: working.recent(new, 8), lambda: working.recent(old, 8), quantile=95)
    report.add("p95 of reading 8 turns, 10 and 100,000 ever written", few, many, 1.3, "ms")
    numbers = iter(range(EVER_WRITTEN, 10 * EVER_WRITTEN))
    fresh = iter(range(10_000_000))

    def append_new() -> None:
        number = next(fresh)
        # A new scope every ten turns, so that it stays small.
        working.append(Scope(user_id="bench", conversation_id=f"new-{number // 10}"), _turn(number))

    few, many = interleaved(ROUNDS, append_new, lambda: working.append(old, _turn(next(numbers))), quantile=95)
    report.add("p95 of appending, 10 and 100,000 ever written", few, many, 1.3, "ms")


def size(client: redis.Redis, report: Report) -> None:
    """Bytes that Redis needs for a turn, against its JSON."""
    working = RedisWorkingStore(client, prefix="size", max_turns=256)
    scope = Scope(user_id="bench", conversation_id="size")
    for number in range(256):
        working.append(scope, _turn(number))
    keys = Keys("size").scope(scope)
    used = sum(client.memory_usage(key, samples=0) or 0 for key in (keys.turns, keys.turn_ids)) / 256
    bound = 1.3 * len(_turn(0).model_dump_json()) + 64
    report.add("bytes of a stored turn against 1.3 x JSON + 64", bound, used, 1.0, "B")


def peer(valkey: EmbeddedValkey, client: redis.Redis, report: Report) -> None:
    """The session of openai-agents on the same server: append an exchange, read eight."""
    try:
        from agents.extensions.memory import RedisSession
    except ImportError:
        report.note("openai-agents RedisSession", "not installed: pip install 'openai-agents[redis]'")
        return
    working = RedisWorkingStore(client, prefix="peer", max_turns=256)
    scope = Scope(user_id="bench", conversation_id="peer")
    loop = asyncio.new_event_loop()
    session: Any = RedisSession.from_url("peer", url=valkey.url)
    numbers = iter(range(10_000_000))

    def append_theirs() -> None:
        said = [{"role": "user", "content": SAID}, {"role": "assistant", "content": SAID}]
        loop.run_until_complete(session.add_items(said))

    for _ in range(100):
        append_theirs()
        working.append(scope, _turn(next(numbers)))
    theirs, ours = interleaved(500, append_theirs, lambda: working.append(scope, _turn(next(numbers))))
    report.add("append, against openai-agents RedisSession", theirs, ours, 1.0, "ms")
    theirs, ours = interleaved(
        500, lambda: loop.run_until_complete(session.get_items(16)), lambda: working.recent(scope, 8)
    )
    report.add("read 8 turns, against openai-agents RedisSession", theirs, ours, 1.0, "ms")
    loop.run_until_complete(session.close())
    loop.close()


def run(_: Path, valkey: EmbeddedValkey, report: Report) -> None:
    """All measurements of working memory."""
    client = connect(valkey.url)
    size(client, report)
    flat(client, report)
    peer(valkey, client, report)
    client.close()
