"""Keeps what ranking needs of recently searched scopes in memory, brought up to date at each search."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from memory_tasks.models import Hit, Memory
from memory_tasks.ranking import Evidence, Floats, Ints, score

SEQUENCE_BITS = 31
"""A row's number is its scope's number and, in this many bits, its place in the scope."""
CACHE_BYTES = 128 * 1024 * 1024


ScopeRow = tuple[int, int, int]
"""scope, next_seq, revision."""
FeatureRow = tuple[int, int, int, bytes | None]
"""pk, number of terms, microseconds since 1970, vector as float32 or None."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A row that was found, with the evidence for it."""

    pk: int
    score: float
    words: float
    nearby: float
    vector: float | None

    def hit(self, memory: Memory) -> Hit:
        """The memory of this row with its evidence."""
        return Hit(memory=memory, score=self.score, words=self.words, nearby=self.nearby, vector=self.vector)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a search looks for.

    Args:
        terms: Of the query, each once.
        vector: Of the query, or None without an embedder.
        limit: How many turns at most.
        since: Only turns said at this time or later.
        until: Only turns said before this time.
    """

    terms: Sequence[str]
    vector: Floats | None
    limit: int
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_timed(self) -> bool:
        """Whether only some time is searched."""
        return self.since is not None or self.until is not None

    def covers(self, times: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of these times, in seconds since 1970, are searched."""
        covered = np.ones(len(times), dtype=bool)
        if self.since is not None:
            covered &= times >= self.since.timestamp()
        if self.until is not None:
            covered &= times < self.until.timestamp()
        return covered


@dataclass(frozen=True, slots=True)
class Features:
    """Of n turns of one or more scopes, in order of storing."""

    scopes: Sequence[int]
    starts: Sequence[int]
    """Position at which each scope begins."""
    pks: Ints
    lengths: Ints
    times: NDArray[np.float64]
    """Seconds since 1970."""
    vectors: Floats
    """Shape (n, dimension); dimension 0 without an embedder."""

    @property
    def size(self) -> int:
        return len(self.pks)

    @property
    def nbytes(self) -> int:
        return self.pks.nbytes + self.lengths.nbytes + self.times.nbytes + self.vectors.nbytes

    def order(self) -> Ints:
        """Positions by scope, and by time within it: a turn stored early still stands between its neighbours."""
        if not (np.diff(self.times) < 0).any():
            return np.arange(self.size)
        scope = np.searchsorted(self.starts, np.arange(self.size), side="right")
        return np.lexsort((self.times, scope))

    def rank(self, wanted: Wanted, postings: Callable[[str], Sequence[tuple[int, int]]]) -> list[Ranked]:
        """The best rows for a query, best first.

        Args:
            wanted: What is looked for.
            postings: The (pk, count) rows of a term in these scopes, in order of pk.
        """
        if not self.size:
            return []
        order = self.order()
        place = np.empty_like(order)
        place[order] = np.arange(self.size)
        found = (self.positions(postings(term)) for term in wanted.terms)
        evidence = Evidence(
            self.lengths[order],
            [(place[positions], counts) for positions, counts in found],
            (self.vectors @ wanted.vector)[order] if wanted.vector is not None else None,
            self.times[order],
            self.starts,
        )
        scores = score(evidence)
        cosines = evidence.cosines
        # All turns count as evidence, also for their neighbours; the times only decide which are shown.
        best = np.argsort(-scores.total, kind="stable")
        if wanted.is_timed:
            best = best[wanted.covers(evidence.times[best])]
        return [
            Ranked(
                pk=int(self.pks[order[i]]),
                score=float(scores.total[i]),
                words=float(scores.words[i]),
                nearby=float(scores.nearby[i]),
                vector=None if cosines is None else float(cosines[i]),
            )
            for i in best[: wanted.limit]
        ]

    def positions(self, rows: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
        """Turn (pk, count) rows, ordered by pk, into positions and counts."""
        table = np.array(rows, dtype=np.int64).reshape(-1, 2)
        return np.searchsorted(self.pks, table[:, 0]), table[:, 1]


def _join(parts: Sequence[Features]) -> Features:
    if len(parts) == 1:
        return parts[0]
    return Features(
        scopes=[scope for part in parts for scope in part.scopes],
        starts=np.cumsum([0, *(part.size for part in parts[:-1])]).tolist(),
        pks=np.concatenate([part.pks for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        times=np.concatenate([part.times for part in parts]),
        vectors=np.concatenate([part.vectors for part in parts]),
    )


EMPTY = Features([], [], np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty((0, 0), np.float32))


class FeatureCache:
    """The features of scopes, least recently used ones dropped first. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[int, int, Features]] = OrderedDict()
        self._bytes = 0

    def load(self, scopes: Sequence[ScopeRow], read: Callable[[int, int], Sequence[FeatureRow]]) -> Features:
        """The features of scopes, without empty ones.

        Args:
            scopes: Their (scope, next_seq, revision) rows as a transaction sees them.
            read: Gives the rows from one pk up to another, in order, in the same transaction.
        """
        parts = [part for row in scopes if (part := self._scope(read, *row)).size]
        return _join(parts) if parts else EMPTY

    def _scope(
        self, read: Callable[[int, int], Sequence[FeatureRow]], scope: int, next_seq: int, revision: int
    ) -> Features:
        with self._lock:
            seen, kept_revision, kept = self._kept.get(scope, (0, -1, EMPTY))
            if scope in self._kept:
                self._kept.move_to_end(scope)
        # A snapshot older than what is kept must not see rows that came later.
        fresh = kept_revision != revision or seen > next_seq
        if not fresh and seen == next_seq:
            return kept
        first = scope << SEQUENCE_BITS | (0 if fresh else seen)
        loaded = _features(scope, read(first, scope << SEQUENCE_BITS | next_seq))
        if not fresh and kept.size:
            loaded = _join([kept, loaded]) if loaded.size else kept
            loaded = Features([scope], [0], loaded.pks, loaded.lengths, loaded.times, loaded.vectors)
        self._keep(scope, next_seq, revision, loaded)
        return loaded

    def _keep(self, scope: int, next_seq: int, revision: int, features: Features) -> None:
        with self._lock:
            if scope in self._kept:
                self._bytes -= self._kept.pop(scope)[2].nbytes
            self._kept[scope] = (next_seq, revision, features)
            self._bytes += features.nbytes
            while self._bytes > CACHE_BYTES:
                self._bytes -= self._kept.popitem(last=False)[1][2].nbytes

    def clear(self) -> None:
        """Drop everything: after erasing, no vector of what was erased stays in memory."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0


def features_of(scopes: Sequence[tuple[int, Sequence[FeatureRow]]]) -> Features:
    """Features of some rows of scopes, in order of pk, without keeping them."""
    parts = [part for scope, rows in scopes if (part := _features(scope, rows)).size]
    return _join(parts) if parts else EMPTY


def _features(scope: int, rows: Sequence[FeatureRow]) -> Features:
    if not rows:
        return EMPTY
    pks, lengths, times, blobs = zip(*rows, strict=True)
    vectors = np.frombuffer(b"".join(blob or b"" for blob in blobs), dtype="<f4").reshape(len(rows), -1)
    return Features(
        scopes=[scope],
        starts=[0],
        pks=np.array(pks, dtype=np.int64),
        lengths=np.array(lengths, dtype=np.int64),
        times=np.array(times, dtype=np.float64) / 1e6,
        vectors=vectors,
    )
