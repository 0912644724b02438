"""Long-term memory in one SQLite file: the embedded default. Standard library only, no extension to load."""

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.resources import files
from os import getpid
from pathlib import Path

from memory_tasks.embedders import embed
from memory_tasks.errors import (
    InvalidInputError,
    PartialWriteError,
    StoreUnavailableError,
)
from memory_tasks.models import Across, Hit, Memory, Scope
from memory_tasks.ports import Embedder
from memory_tasks.ranking import common_from, telling
from memory_tasks.sealing import Sealer
from memory_tasks.stores.features import SEQUENCE_BITS, FeatureCache, FeatureRow, Ranked, ScopeRow, Wanted
from memory_tasks.stores.records import (
    EMBED_CHARS,
    Codec,
    codec_for,
    embedded,
    made_by,
    to_micros,
)

BUSY_SECONDS = 30.0
_TURN = "t.turn_id, t.user_message, t.assistant_message, t.created_at, t.importance, t.remember"


class SQLiteStore:
    """A `LongTermStore` in a file that several processes may read and write at once.

    Args:
        path: The file; it and its folder are made when they are missing.
        embedder: Makes the vectors; without one, search is by words only.
        sealer: Encrypts the texts, if it has keys.

    Raises:
        IndexMismatchError: The file was made with another embedder, by a newer version, or (not) encrypted.
        SealError: The file is encrypted with other keys.
        StoreUnavailableError: The file can't be opened.

    Example:
        >>> store = SQLiteStore(Path("memory.db"), WordLlamaEmbedder())
        >>> store.search(Scope(user_id="ann", conversation_id="c1"), "which tea do I like?", 4)
    """

    def __init__(self, path: Path, embedder: Embedder | None = None, sealer: Sealer | None = None) -> None:
        self.path = path
        self.embedder = embedder
        self._sealer = sealer or Sealer()
        self._cache = FeatureCache()
        self._local = threading.local()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailableError(f"long-term store {path}: {error.strerror}") from error
        with self._write() as db:
            self._codec = self._migrate(db)

    def _connection(self) -> sqlite3.Connection:
        # One connection a thread, made after a fork: SQLite's locks do not survive one.
        if getattr(self._local, "pid", None) != getpid():
            db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = full")
            db.execute("pragma secure_delete = on")
            self._local.connection, self._local.pid = db, getpid()
        connection: sqlite3.Connection = self._local.connection
        return connection

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """A snapshot: all reads inside see the same state."""
        with self._transaction("begin") as db:
            yield db

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._transaction("begin immediate") as db:
            yield db

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        try:
            db = self._connection()
            db.execute(begin)
            try:
                yield db
                db.execute("commit")
            finally:
                if db.in_transaction:
                    db.execute("rollback")
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"long-term store {self.path}: {error}") from error

    def _migrate(self, db: sqlite3.Connection) -> Codec:
        if not db.execute("select 1 from sqlite_master where name = 'meta'").fetchone():
            schema = files("memory_tasks.stores").joinpath("schema.sql").read_text(encoding="utf-8")
            for statement in "\n".join(line.partition("--")[0] for line in schema.splitlines()).split(";"):
                db.execute(statement)
            db.executemany("insert into meta values (?, ?)", made_by(self.embedder, self._sealer).items())
        found = dict(db.execute("select key, value from meta"))
        return codec_for(found, self.embedder, self._sealer, str(self.path))

    def upsert(self, memories: Sequence[Memory]) -> None:
        # The last of several with one id wins, as if they had come one after the other.
        latest = {(memory.scope, memory.turn.turn_id): memory for memory in memories}
        with self._read() as db:
            changed = [
                memory for memory in latest.values() if self._find(db, memory.scope, memory.turn.turn_id) != memory
            ]
        pairs, failed = embedded(self.embedder, changed)
        indexed = [
            (memory, self._codec.terms_of(memory.turn), None if vector is None else vector.tobytes())
            for memory, vector in pairs
        ]
        if indexed:
            with self._write() as db:
                self._put(db, indexed)
        if failed:
            raise PartialWriteError([id for _, id in latest if id not in failed], failed)

    def _find(self, db: sqlite3.Connection, scope: Scope, turn_id: str) -> Memory | None:
        row = db.execute(
            f"select s.user_id, s.conversation_id, {_TURN} from turns t join scopes s using (scope) "
            "where s.user_id = ? and s.conversation_id = ? and t.turn_id = ?",
            (scope.user_id, scope.conversation_id, turn_id),
        ).fetchone()
        return self._codec.memory(row) if row else None

    def _put(self, db: sqlite3.Connection, indexed: Sequence[tuple[Memory, Counter[str], bytes | None]]) -> None:
        postings: list[tuple[int, str, int, int]] = []
        numbers: dict[Scope, int] = {}
        next_seqs: dict[int, int] = {}
        for memory, counts, vector in indexed:
            turn = memory.turn
            if memory.scope not in numbers:
                number, next_seq = self._scope(db, memory.scope)
                numbers[memory.scope], next_seqs[number] = number, next_seq
            scope = numbers[memory.scope]
            existing = db.execute(
                "select pk from turns where scope = ? and turn_id = ?", (scope, turn.turn_id)
            ).fetchone()
            if existing:
                # Replaced in place: it keeps its position among its neighbours.
                pk = existing[0]
                self._erase(db, scope, [pk])
            else:
                pk = scope << SEQUENCE_BITS | next_seqs[scope]
                next_seqs[scope] += 1
            said_at = to_micros(turn.created_at)
            db.execute(
                "insert into turns values (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    pk, scope, turn.turn_id, *self._codec.texts(turn), said_at, turn.importance, turn.remember,
                ),
            )  # fmt: skip
            db.execute("insert into features values (?, ?, ?, ?)", (pk, counts.total(), said_at, vector))
            postings += [(scope, term, pk, count) for term, count in counts.items()]
        # In the order of the tree they go into: neighbours are written together.
        db.executemany("insert into postings values (?, ?, ?, ?)", sorted(postings))
        db.executemany("update scopes set next_seq = ? where scope = ?", [(seq, n) for n, seq in next_seqs.items()])

    def _scope(self, db: sqlite3.Connection, scope: Scope) -> tuple[int, int]:
        """The scope's number and the sequence number of its next turn; it is made when missing."""
        ids = (scope.user_id, scope.conversation_id)
        db.execute("insert into scopes (user_id, conversation_id) values (?, ?) on conflict do nothing", ids)
        found: tuple[int, int] = db.execute(
            "select scope, next_seq from scopes where user_id = ? and conversation_id = ?", ids
        ).fetchone()
        return found

    def _erase(self, db: sqlite3.Connection, scope: int, pks: Sequence[int]) -> None:
        marks = ", ".join("?" * len(pks))
        # Found by reading the scope's postings, not by splitting the text again: that could miss some if the
        # text had been split by another version, and a word would outlive its turn.
        db.execute(f"delete from postings where scope = ? and pk in ({marks})", (scope, *pks))
        db.execute(f"delete from features where pk in ({marks})", pks)
        db.execute(f"delete from turns where pk in ({marks})", pks)
        db.execute("update scopes set revision = revision + 1 where scope = ?", (scope,))

    def search(
        self,
        scope: Scope,
        query: str,
        limit: int,
        *,
        across: Across = "conversation",
        by_words: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Hit]:
        if limit < 1:
            return []
        vector = embed(self.embedder, [query[:EMBED_CHARS]])[0] if self.embedder and not by_words else None
        wanted = Wanted(self._codec.terms_wanted(query), vector, limit, since, until)
        with self._read() as db:
            ranked = self._rank(db, self._scopes(db, scope, across), wanted)
            return [row.hit(self._memory(db, row.pk)) for row in ranked]

    def _rank(self, db: sqlite3.Connection, scopes: Sequence[ScopeRow], wanted: Wanted) -> list[Ranked]:
        found = self._cache.load(scopes, partial(self._features, db))
        return found.rank(
            self._telling(db, wanted, found.scopes, found.size), partial(self._postings, db, found.scopes)
        )

    def _telling(self, db: sqlite3.Connection, wanted: Wanted, scopes: Sequence[int], turns: int) -> Wanted:
        """Without the words that nearly every one of many turns has."""
        enough = common_from(turns)
        if enough > turns:
            return wanted
        counts = dict.fromkeys(wanted.terms, 0)
        for term in counts:
            for scope in scopes:
                counts[term] += db.execute(
                    "select count(*) from (select 1 from postings where scope = ? and term = ? limit ?)",
                    (scope, term, enough),
                ).fetchone()[0]
        return replace(wanted, terms=telling(counts, turns))

    def _features(self, db: sqlite3.Connection, first: int, last: int) -> list[FeatureRow]:
        return db.execute(
            "select pk, length, said_at, vector from features where pk >= ? and pk < ? order by pk", (first, last)
        ).fetchall()

    def _scopes(self, db: sqlite3.Connection, scope: Scope, across: Across) -> list[ScopeRow]:
        where, values = "user_id = ?", [scope.user_id]
        if across == "conversation":
            where, values = f"{where} and conversation_id = ?", [*values, scope.conversation_id]
        return db.execute(
            f"select scope, next_seq, revision from scopes where {where} order by scope", values
        ).fetchall()

    def _postings(self, db: sqlite3.Connection, scopes: Sequence[int], term: str) -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = []
        for scope in scopes:
            rows += db.execute(
                "select pk, count from postings where scope = ? and term = ? order by pk", (scope, term)
            ).fetchall()
        return rows

    def _memory(self, db: sqlite3.Connection, pk: int) -> Memory:
        row = db.execute(
            f"select s.user_id, s.conversation_id, {_TURN} from turns t join scopes s using (scope) where t.pk = ?",
            (pk,),
        ).fetchone()
        return self._codec.memory(row)

    def delete(self, scope: Scope, turn_ids: Sequence[str]) -> int:
        with self._write() as db:
            found = self._scopes(db, scope, "conversation")
            if not found:
                return 0
            number = found[0][0]
            pks = [
                row[0]
                for turn_id in dict.fromkeys(turn_ids)
                for row in db.execute("select pk from turns where scope = ? and turn_id = ?", (number, turn_id))
            ]
            for start in range(0, len(pks), 500):
                self._erase(db, number, pks[start : start + 500])
        self._scrub()
        return len(pks)

    def forget(self, scope: Scope) -> int:
        return self._forget(scope, "conversation")

    def forget_user(self, user_id: str) -> int:
        return self._forget(Scope.checked(user_id=user_id, conversation_id="-"), "user")

    def _forget(self, scope: Scope, across: Across) -> int:
        erased = 0
        with self._write() as db:
            for number, _, _ in self._scopes(db, scope, across):
                span = (number << SEQUENCE_BITS, (number + 1) << SEQUENCE_BITS)
                erased += db.execute("delete from turns where pk >= ? and pk < ?", span).rowcount
                db.execute("delete from features where pk >= ? and pk < ?", span)
                db.execute("delete from postings where scope = ?", (number,))
                db.execute("delete from scopes where scope = ?", (number,))
        self._scrub()
        return erased

    def _scrub(self) -> None:
        """Move the erased pages out of the write-ahead log too, so that no byte of the text is left in any file."""
        self._cache.clear()
        try:
            busy, _, _ = self._connection().execute("pragma wal_checkpoint(truncate)").fetchone()
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"long-term store {self.path}: {error}") from error
        if busy:
            raise StoreUnavailableError(
                f"long-term store {self.path}: the memories are erased, but a reader kept their old pages in the "
                "write-ahead log: repeat the call"
            )

    def files_with(self, text: str) -> int:
        """How many of the store's files hold these bytes, in rows or in what is left of erased ones."""
        needle = text.encode()
        return sum(_holds(file, needle) for file in self.path.parent.glob(f"{self.path.name}*"))

    def count(self, scope: Scope) -> int:
        with self._read() as db:
            rows = self._scopes(db, scope, "conversation")
            if not rows:
                return 0
            span = (rows[0][0] << SEQUENCE_BITS, (rows[0][0] + 1) << SEQUENCE_BITS)
            count: int = db.execute("select count(*) from features where pk >= ? and pk < ?", span).fetchone()[0]
            return count

    def export(self, user_id: str | None = None, scope: Scope | None = None) -> Iterator[Memory]:
        if user_id is not None and scope is not None:
            raise InvalidInputError("export takes a user_id or a scope, not both")
        where = ""
        values: tuple[str, ...] = ()
        if scope is not None:
            where, values = (
                " and s.user_id = ? and s.conversation_id = ?",
                (scope.user_id, scope.conversation_id),
            )
        elif user_id is not None:
            where, values = " and s.user_id = ?", (user_id,)
        last = -1
        # A page at a time, so that a slow reader holds no snapshot open.
        while True:
            with self._read() as db:
                rows = db.execute(
                    f"select t.pk, s.user_id, s.conversation_id, {_TURN} from turns t join scopes s using (scope) "
                    f"where t.pk > ?{where} order by t.pk limit 500",
                    (last, *values),
                ).fetchall()
            if not rows:
                return
            for row in rows:
                yield self._codec.memory(row[1:])
            last = rows[-1][0]

    def close(self) -> None:
        """Close this thread's connection."""
        if getattr(self._local, "pid", None) == getpid():
            self._local.connection.close()
            self._local.pid = None


def _holds(file: Path, needle: bytes) -> bool:
    tail = b""
    with file.open("rb") as source:
        while block := source.read(1 << 20):
            if needle in tail + block:
                return True
            tail = block[-len(needle) :]
    return False
