"""Promotion: what a look at a million scopes costs, and what moving turns costs beside embed and upsert alone."""

import statistics
import time
from datetime import timedelta
from pathlib import Path

import redis
from celery import Celery

from benchmarks.report import Report
from benchmarks.working import SAID
from memory_tasks import Memory, RedisWorkingStore, Scope, Settings, SQLiteStore, Turn
from memory_tasks.connection import connect
from memory_tasks.embedders.wordllama import WordLlamaEmbedder
from memory_tasks.factory import service_from_settings
from memory_tasks.forgetting import Writers
from memory_tasks.keys import Keys
from memory_tasks.models import now
from memory_tasks.promoting import Promoter
from memory_tasks.stores.working_redis import Promotion
from memory_tasks.tasks.promotion import PAGE, PromotionSteps
from memory_tasks.tasks.publisher import configure
from memory_tasks.tasks.runtime import Runtime
from workers.valkey import EmbeddedValkey

SCOPES = 1_000_000
DUE = 10_000
TURNS = 6400


def _register(client: redis.Redis, keys: Keys, count: int, due_ms: int, first: int = 0) -> None:
    """Register scopes as append does, without their turns."""
    pipe = client.pipeline(transaction=False)
    for number in range(first, first + count):
        scope = keys.scope(Scope(user_id=f"user-{number}", conversation_id=f"conversation-{number}"))
        pipe.zadd(scope.shard.due, {scope.tag: due_ms})
        pipe.zadd(scope.shard.oldest, {scope.tag: due_ms})
        if number % 5000 == 4999:
            pipe.execute()
    pipe.execute()


def _bare_tick(client: redis.Redis, app: Celery, keys: Keys, now_ms: int) -> int:
    """Page through what is due and publish a message for each; claims nothing."""
    sent = 0
    for shard in keys.shards():
        start = 0
        while tags := client.zrangebyscore(shard.due, "-inf", now_ms, start, PAGE):
            for tag in tags:
                app.send_task("memory_tasks.promote", args=[tag], queue="promote", ignore_result=True)
            sent += len(tags)
            start += PAGE
    return sent


def ticks(folder: Path, valkey: EmbeddedValkey, report: Report) -> None:
    """A look at a million registered scopes."""
    url = f"sqlite:///{folder / 'unused.db'}"
    settings = Settings.load(redis_url=valkey.url, prefix="ticks", promote_scopes=DUE, long_term_url=url)
    client, keys = connect(valkey.url), Keys("ticks")
    app = configure(Celery("bench", set_as_current=False), settings)
    steps = PromotionSteps(Runtime(app, settings, service_from_settings, lambda _: None))
    before = client.info("memory")["used_memory"]
    now_ms = int(time.time() * 1000)
    _register(client, keys, SCOPES - DUE, now_ms + 86_400_000)
    report.note("memory of a registered scope", f"{(client.info('memory')['used_memory'] - before) / SCOPES:.0f} B")
    _register(client, keys, DUE, now_ms, SCOPES - DUE)
    app.send_task("memory_tasks.promote", args=["warm-up"], queue="promote", ignore_result=True)
    floor, ours = [], []
    for _ in range(3):
        started = time.perf_counter()
        assert _bare_tick(client, app, keys, now_ms) == DUE
        floor.append(time.perf_counter() - started)
        started = time.perf_counter()
        assert steps.enumerate_due(app) == DUE
        ours.append(time.perf_counter() - started)
        _register(client, keys, DUE, now_ms, SCOPES - DUE)
        client.delete("promote")
    report.add("look with 10,000 due of 1,000,000 scopes", min(floor), min(ours), 1.5, "s")
    _register(client, keys, DUE, now_ms + 86_400_000, SCOPES - DUE)
    few = []
    for _ in range(10):
        _register(client, keys, 10, now_ms, SCOPES - DUE)
        started = time.perf_counter()
        assert steps.enumerate_due(app) == 10
        few.append((time.perf_counter() - started) * 1000)
    report.add("look with 10 due of 1,000,000 scopes, against 50 ms", 50, statistics.median(few), 1.0, "ms")
    client.close()


def throughput(folder: Path, valkey: EmbeddedValkey, report: Report) -> None:
    """Turns a second from Redis to the store, against embedding and upserting the same batches."""
    embedder = WordLlamaEmbedder()
    embedder.embed(["warm-up"])
    scope = Scope(user_id="bench", conversation_id="c")
    turns = [
        Turn(turn_id=f"t{n}", user_message=f"{n} {SAID}", assistant_message=SAID, created_at=now())
        for n in range(TURNS)
    ]
    settings = Settings.load(redis_url=valkey.url, prefix="moving")
    client = connect(valkey.url)
    working = RedisWorkingStore(client, prefix="moving", promotion=Promotion(after=timedelta(0), overflow=2 * TURNS))
    for turn in turns:
        working.append(scope, turn)
    bare, ours = SQLiteStore(folder / "bare.db", embedder), SQLiteStore(folder / "ours.db", embedder)
    promoter = Promoter(client, settings, working, ours, Writers(client, Keys("moving"), 30))
    size = settings.promote_batch
    # Batch by batch in turns, so that a slow moment hits both.
    floor = mine = 0.0
    for start in range(0, TURNS, size):
        started = time.perf_counter()
        bare.upsert([Memory(scope=scope, turn=turn) for turn in turns[start : start + size]])
        floor += time.perf_counter() - started
        started = time.perf_counter()
        assert promoter.batch(scope, whatever_age=True).promoted == size
        mine += time.perf_counter() - started
    report.add("promotion against embed + upsert", TURNS / floor, TURNS / mine, 0.7, "/s", at_least=True)
    client.close()


def run(folder: Path, valkey: EmbeddedValkey, report: Report) -> None:
    """All measurements of promotion."""
    throughput(folder, valkey, report)
    ticks(folder, valkey, report)
