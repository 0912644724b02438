"""The embedded long-term store: search by size of the conversation and of the store, and writing, without embedding."""

import os
import random
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report
from memory_tasks import Memory, Scope, SQLiteStore, Turn
from memory_tasks.ports import LongTermStore
from workers.valkey import EmbeddedValkey

DIMENSION = 256
WORDS = 20_000
FILL = int(os.environ.get("BENCH_TURNS", "100000"))
"""Turns in the full store; a million takes seven minutes."""
BATCH = 256


class RandomEmbedder:
    """Vectors at no cost: what is measured is the store."""

    name, dimension = "random", DIMENSION

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)

    def embed(self, texts: Sequence[str]) -> Any:
        return self._random.standard_normal((len(texts), DIMENSION)).astype(np.float32)


class Corpus:
    """Texts whose words are as frequent as in a language (Zipf): the worst case for postings."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self._words = [f"word{number}" for number in range(WORDS)]
        weights = [1 / (rank + 1) for rank in range(WORDS)]
        self._cumulative = np.cumsum(weights).tolist()

    def text(self, words: int) -> str:
        return " ".join(self._random.choices(self._words, cum_weights=self._cumulative, k=words))

    def memories(self, user: str, count: int) -> list[Memory]:
        scope, begin = Scope(user_id=user, conversation_id="c"), datetime(2024, 1, 1, tzinfo=UTC)
        return [
            Memory(
                scope=scope,
                turn=Turn(
                    turn_id=f"t{number}",
                    user_message=self.text(20),
                    assistant_message=self.text(20),
                    created_at=begin + timedelta(minutes=number),
                ),
            )
            for number in range(count)
        ]


def fill(store: LongTermStore, memories: Sequence[Memory]) -> float:
    """Seconds that writing takes, in batches."""
    started = time.perf_counter()
    for start in range(0, len(memories), BATCH):
        store.upsert(memories[start : start + BATCH])
    return time.perf_counter() - started


def search_ms(store: LongTermStore, corpus: Corpus, user: str, rounds: int = 200) -> tuple[float, float]:
    """Median and p95."""
    scope = Scope(user_id=user, conversation_id="c")
    queries = [corpus.text(8) for _ in range(rounds)]
    store.search(scope, queries[0], 4)
    taken = []
    for query in queries:
        started = time.perf_counter()
        store.search(scope, query, 4)
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.median(taken), statistics.quantiles(taken, n=20)[18]


def run(folder: Path, valkey: EmbeddedValkey, report: Report) -> None:
    """All measurements of the embedded store."""
    corpus, store = Corpus(), SQLiteStore(folder / "memory.db", RandomEmbedder())
    small, large = corpus.memories("small", 500), corpus.memories("large", 10_000)
    fill(store, small)
    rate = len(large) / fill(store, large)
    report.add("upsert without embedding, against 2,500 turns/s", 2500, rate, 1.0, "/s", at_least=True)
    del valkey  # the other parts need it
    for user, size, bound in (("small", 500, 8), ("large", 10_000, 40)):
        _, p95 = search_ms(store, corpus, user)
        report.add(f"search among {size:,} turns, p95, against {bound} ms", bound, p95, 1.0, "ms")
    before, _ = search_ms(store, corpus, "small")
    for number in range(FILL // 1000):
        fill(store, corpus.memories(f"user{number}", 1000))
    after, _ = search_ms(store, corpus, "small")
    report.add(f"search among 500 turns, store of 10,500 and of {FILL + 10_500:,}", before, after, 1.5, "ms")
