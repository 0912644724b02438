"""Long-term memory with LEANN indexes for large conversations (extra `leann`).

The records are the SQLite store's: that file is the truth. An index of LEANN is a snapshot of one conversation's
vectors, built aside and switched to in one transaction; turns that are newer than it are compared exactly, and what it
proposes is read from the file again. So a crash at any moment, a second writer, or an index that is gone costs time,
never a turn.
"""

import fcntl
import logging
import os
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from memory_tasks.errors import SettingsError
from memory_tasks.loading import needs_extra
from memory_tasks.models import Memory, Scope
from memory_tasks.ports import Embedder
from memory_tasks.ranking import Floats
from memory_tasks.sealing import Sealer
from memory_tasks.stores.features import SEQUENCE_BITS, FeatureRow, Ranked, ScopeRow, Wanted, features_of
from memory_tasks.stores.sqlite import SQLiteStore

try:
    # faiss says at INFO how it was loaded, and LEANN logs the text of queries.
    for name in ("leann", "leann_backend_ivf", "faiss"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from leann import LeannBuilder, LeannSearcher
except ImportError as error:
    raise needs_extra("leann", "MEMORY_TASKS_LONG_TERM_URL=leann:///...") from error

logger = logging.getLogger(__name__)

LARGE = 5_000
"""Turns from which on a conversation has an index; below, comparing all of them is as quick."""
GROWTH = 1.2
"""An index is built anew when the conversation has grown by this factor."""
CANDIDATES = 300
"""Turns that the index, and the words of the query, propose."""
POINTS_PER_LIST = 40
"""Vectors in one of the lists that the index is made of; faiss complains about fewer than 39."""
OPEN_INDEXES = 16


class LeannStore(SQLiteStore):
    """A `LongTermStore` in a folder.

    Args:
        folder: Made when missing. Only what this class has written there is ever opened.
        embedder: Makes the vectors.
        sealer: Encrypts the texts, if it has keys.

    Raises:
        SettingsError: There is no embedder: LEANN indexes vectors.
        IndexMismatchError: The folder was made with another embedder or by a newer version.
    """

    def __init__(self, folder: Path, embedder: Embedder | None, sealer: Sealer | None = None) -> None:
        if embedder is None:
            raise SettingsError("leann:/// needs an embedder: set MEMORY_TASKS_EMBEDDER, or use sqlite:///")
        self._folder = folder
        self._searchers: OrderedDict[str, Any] = OrderedDict()
        self._searchers_lock = threading.Lock()
        super().__init__(folder / "records.db", embedder, sealer)
        (folder / "indexes").mkdir(mode=0o700, exist_ok=True)
        with self._write() as db:
            db.execute(
                "create table if not exists snapshots ("
                "scope integer primary key, revision integer not null, covered integer not null, name text not null)"
            )

    def upsert(self, memories: Sequence[Memory]) -> None:
        try:
            super().upsert(memories)
        finally:
            for scope in {memory.scope for memory in memories}:
                try:
                    self._compact(scope)
                except Exception as error:
                    # The turns are stored; without its index the conversation is searched exactly.
                    logger.error("an index could not be built (%s); the next write tries again", type(error).__name__)

    def delete(self, scope: Scope, turn_ids: Sequence[str]) -> int:
        with self._compacting(wait=True):
            erased = super().delete(scope, turn_ids)
            self._drop_stale()
        return erased

    def forget(self, scope: Scope) -> int:
        with self._compacting(wait=True):
            erased = super().forget(scope)
            self._drop_stale()
        return erased

    def forget_user(self, user_id: str) -> int:
        with self._compacting(wait=True):
            erased = super().forget_user(user_id)
            self._drop_stale()
        return erased

    def _snapshot(self, db: Any, scope: ScopeRow) -> tuple[int, str] | None:
        """Up to which sequence number the scope's index goes, and its name, if it has one that is right."""
        number, _, revision = scope
        found: tuple[int, str] | None = db.execute(
            "select covered, name from snapshots where scope = ? and revision = ?", (number, revision)
        ).fetchone()
        return found

    @contextmanager
    def _compacting(self, *, wait: bool) -> Iterator[bool]:
        """One process builds or erases indexes at a time; whether it is this one."""
        with (self._folder / "compact.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True

    def _compact(self, scope: Scope) -> None:
        """Build the index of a conversation anew when it has outgrown the one it has."""
        if not self._is_due(scope):
            return
        with self._compacting(wait=False) as ours:
            if not ours:
                return
            with self._read() as db:
                rows = self._scopes(db, scope, "conversation")
                if not rows:
                    return
                number, next_seq, revision = rows[0]
                features = self._features(db, number << SEQUENCE_BITS, number << SEQUENCE_BITS | next_seq)
            name = uuid.uuid4().hex
            building, final = self._folder / "indexes" / f"building-{name}", self._folder / "indexes" / name
            _build(building, features)
            building.rename(final)
            with self._write() as db:
                # What was changed or erased meanwhile must not come back with the index.
                db.execute(
                    "insert or replace into snapshots select scope, revision, ?, ? from scopes "
                    "where scope = ? and revision = ?",
                    (next_seq, name, number, revision),
                )
            self._drop_stale()

    def _is_due(self, scope: Scope) -> bool:
        with self._read() as db:
            rows = self._scopes(db, scope, "conversation")
            if not rows or rows[0][1] < LARGE:
                return False
            found = self._snapshot(db, rows[0])
        return found is None or rows[0][1] > found[0] * GROWTH

    def _drop_stale(self) -> None:
        """Remove indexes that no conversation has any more: they hold vectors of what was erased."""
        with self._write() as db:
            db.execute(
                "delete from snapshots where not exists "
                "(select 1 from scopes s where s.scope = snapshots.scope and s.revision = snapshots.revision)"
            )
            kept = {name for (name,) in db.execute("select name from snapshots")}
        with self._searchers_lock:
            for name in [name for name in self._searchers if name not in kept]:
                del self._searchers[name]
        for found in (self._folder / "indexes").iterdir():
            if found.name not in kept:
                shutil.rmtree(found)

    def _rank(self, db: Any, scopes: Sequence[ScopeRow], wanted: Wanted) -> list[Ranked]:
        snapshots = {scope[0]: snapshot for scope in scopes if (snapshot := self._snapshot(db, scope))}
        # An index proposes what is near at any time, so a part of the time is searched exactly.
        vector = wanted.vector
        if vector is None or wanted.is_timed or not snapshots:
            return super()._rank(db, scopes, wanted)
        numbers = [number for number, _, _ in scopes]
        wanted = self._telling(db, wanted, numbers, sum(next_seq for _, next_seq, _ in scopes))
        postings = {term: self._postings(db, numbers, term) for term in wanted.terms}
        most = max(CANDIDATES, 4 * wanted.limit)
        proposed = set(_best_by_words(postings, most))
        for number, next_seq, _ in scopes:
            covered, name = snapshots.get(number, (0, ""))
            searcher = self._searcher(name) if name else None
            if searcher is None:
                covered = 0
            else:
                proposed.update(_nearest(searcher, vector, most))
            proposed.update(range(number << SEQUENCE_BITS | covered, number << SEQUENCE_BITS | next_seq))
        around = sorted({pk + step for pk in proposed for step in (-1, 0, 1)})
        found = features_of([(number, self._rows(db, number, around)) for number, _, _ in scopes])
        chosen = set(found.pks.tolist())
        return found.rank(wanted, lambda term: [row for row in postings[term] if row[0] in chosen])

    def _rows(self, db: Any, number: int, pks: Sequence[int]) -> list[FeatureRow]:
        mine = [pk for pk in pks if pk >> SEQUENCE_BITS == number]
        rows: list[FeatureRow] = []
        for start in range(0, len(mine), 500):
            page = mine[start : start + 500]
            rows += db.execute(
                f"select pk, length, said_at, vector from features where pk in ({', '.join('?' * len(page))}) "
                "order by pk",
                page,
            ).fetchall()
        return rows

    def _searcher(self, name: str) -> Any:
        """The open index, or None when another process has just replaced it: then all turns are compared."""
        with self._searchers_lock:
            if name not in self._searchers:
                try:
                    self._searchers[name] = LeannSearcher(
                        str(self._folder / "indexes" / name / "index.leann"),
                        enable_warmup=False,
                        recompute_embeddings=False,
                        use_daemon=False,
                    ).backend_impl
                except FileNotFoundError:
                    return None
                while len(self._searchers) > OPEN_INDEXES:
                    self._searchers.popitem(last=False)
            self._searchers.move_to_end(name)
            return self._searchers[name]


def _build(folder: Path, features: Sequence[FeatureRow]) -> None:
    folder.mkdir(mode=0o700)
    vectors = np.frombuffer(b"".join(blob or b"" for _, _, _, blob in features), dtype="<f4").reshape(len(features), -1)
    lists = max(1, len(features) // POINTS_PER_LIST)
    with _quiet_stdout():
        LeannBuilder(
            "ivf", embedding_model="given", dimensions=vectors.shape[1], distance_metric="cosine", nlist=lists
        ).build_index_from_arrays(str(folder / "index.leann"), [str(pk) for pk, _, _, _ in features], vectors)


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Whatever a library prints while it builds goes nowhere."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _nearest(searcher: Any, vector: Floats, count: int) -> list[int]:
    lists = max(1, getattr(searcher, "nlist", 0) or 64)
    found = searcher.search(
        np.ascontiguousarray(vector[None, :]), count, recompute_embeddings=False, nprobe=max(16, lists // 2)
    )
    return [int(label) for label in found["labels"][0] if label not in ("", "-1")]


def _best_by_words(postings: dict[str, list[tuple[int, int]]], count: int) -> list[int]:
    scores: dict[int, float] = {}
    for rows in postings.values():
        for pk, times in rows:
            scores[pk] = scores.get(pk, 0.0) + times / (len(rows) + 10)
    return sorted(scores, key=lambda pk: -scores[pk])[:count]
