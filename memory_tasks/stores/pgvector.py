"""Long-term memory in PostgreSQL with pgvector: the store for several machines (extra `postgres`)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from memory_tasks.connection import without_password
from memory_tasks.embedders import embed
from memory_tasks.errors import InvalidInputError, PartialWriteError, StoreUnavailableError
from memory_tasks.models import Across, Hit, Memory, Scope
from memory_tasks.ports import Embedder
from memory_tasks.ranking import Floats, common_from, telling
from memory_tasks.sealing import Sealer
from memory_tasks.stores.features import (
    SEQUENCE_BITS,
    FeatureCache,
    FeatureRow,
    Ranked,
    ScopeRow,
    Wanted,
    features_of,
)
from memory_tasks.stores.postgres import CONNECT_SECONDS, SCHEMA, Database, psycopg
from memory_tasks.stores.records import (
    EMBED_CHARS,
    Codec,
    codec_for,
    embedded,
    made_by,
    to_micros,
)

LARGE = 50_000
"""Turns from which on a conversation is searched through an HNSW index of its own instead of exactly."""
CANDIDATES = 300
"""Turns that the index, and the words of the query, propose in a large conversation."""
LOCK = 0x6D656D6F7279
"""Advisory lock of migrations."""
_TURN = "s.user_id, s.conversation_id, t.turn_id, t.user_message, t.assistant_message, t.created_at, t.importance, "
_TURN += "t.remember"


def _key(value: str) -> bytes:
    return blake2b(value.encode(), digest_size=16).digest()


class PgVectorStore:
    """A `LongTermStore` in PostgreSQL 15 or later with the extension pgvector 0.5 or later.

    Safe between threads and after a fork. Tables are made in the schema `memory_tasks` when they are missing.

    Args:
        url: A libpq URL.
        embedder: Makes the vectors; without one, search is by words only.
        sealer: Encrypts the texts, if it has keys.
        partitions: Into how many the tables are split by user when they are made.

    Raises:
        IndexMismatchError: The tables were made with another embedder, by a newer version, or (not) encrypted.
        SealError: They are encrypted with other keys.
        StoreUnavailableError: The server can't be reached, or lacks pgvector.

    Example:
        >>> store = PgVectorStore("postgresql://app@db/memory", WordLlamaEmbedder())
    """

    def __init__(
        self, url: str, embedder: Embedder | None = None, sealer: Sealer | None = None, partitions: int = 4
    ) -> None:
        self._url = url
        self.embedder = embedder
        self._cache = FeatureCache()
        self._database = Database(url)
        self._codec = self._migrate(sealer or Sealer(), partitions)

    def _migrate(self, sealer: Sealer, partitions: int) -> Codec:
        try:
            with psycopg.connect(self._url, autocommit=True, connect_timeout=int(CONNECT_SECONDS)) as db:
                db.execute("select pg_advisory_lock(%s)", (LOCK,))
                with db.transaction():
                    db.execute("create extension if not exists vector")
                    db.execute(f"create schema if not exists {SCHEMA}")
                    db.execute(f"set local search_path = {SCHEMA}, public")
                    db.execute("create table if not exists meta (key text primary key, value text not null)")
                    found: dict[str, str] = dict(db.execute("select key, value from meta").fetchall())
                    if not found:
                        found = made_by(self.embedder, sealer)
                        self._create(db, found, partitions)
        except psycopg.Error as error:
            raise StoreUnavailableError(
                f"long-term store {without_password(self._url)} can't be set up ({type(error).__name__}); check that "
                "it runs, that it has the extension pgvector, and MEMORY_TASKS_LONG_TERM_URL"
            ) from error
        return codec_for(found, self.embedder, sealer, without_password(self._url))

    def _create(self, db: Any, about: dict[str, str], partitions: int) -> None:
        db.execute(files("memory_tasks.stores").joinpath("pgvector.sql").read_text(encoding="utf-8"))
        if self.embedder:
            db.execute(f"alter table turns alter column vector type vector({int(self.embedder.dimension)})")
        for table in ("scopes", "turns", "postings"):
            for number in range(partitions):
                db.execute(
                    f"create table {table}_{number} partition of {table} "
                    f"for values with (modulus {partitions}, remainder {number})"
                )
        for item in about.items():
            db.execute("insert into meta values (%s, %s)", item)

    def upsert(self, memories: Sequence[Memory]) -> None:
        # The last of several with one id wins, as if they had come one after the other.
        latest = {(memory.scope, memory.turn.turn_id): memory for memory in memories}
        with self._database.transaction(write=False) as db:
            found = self._find(db, list(latest.values()))
        changed = [memory for id, memory in latest.items() if found.get(id) != memory]
        pairs, failed = embedded(self.embedder, changed)
        by_scope: dict[Scope, list[tuple[Memory, Floats | None]]] = {}
        # In one order for all writers, so that two of them never wait for each other.
        for memory, vector in sorted(pairs, key=lambda pair: repr(pair[0].scope)):
            by_scope.setdefault(memory.scope, []).append((memory, vector))
        large: set[tuple[bytes, int]] = set()
        with self._database.transaction(write=True) as db:
            for scope, group in by_scope.items():
                number, size = self._put(db, scope, group)
                if size >= LARGE and self.embedder:
                    large.add((_key(scope.user_id), number))
        for user, number in large:
            self._index(user, number)
        if failed:
            raise PartialWriteError([id for _, id in latest if id not in failed], failed)

    def _find(self, db: Any, memories: Sequence[Memory]) -> dict[tuple[Scope, str], Memory]:
        """What is stored under the ids of these memories."""
        rows = db.execute(
            f"select {_TURN} from unnest(%s::bytea[], %s::bytea[], %s::bytea[]) as w (user_key, conversation_key, id) "
            "join scopes s on s.user_key = w.user_key and s.conversation_key = w.conversation_key "
            "join turns t on t.user_key = s.user_key and t.scope = s.scope and t.turn_key = w.id",
            (
                [_key(memory.scope.user_id) for memory in memories],
                [_key(memory.scope.conversation_id) for memory in memories],
                [_key(memory.turn.turn_id) for memory in memories],
            ),
        ).fetchall()
        found = map(self._codec.memory, rows)
        return {(memory.scope, memory.turn.turn_id): memory for memory in found}

    def _put(self, db: Any, scope: Scope, group: Sequence[tuple[Memory, Floats | None]]) -> tuple[int, int]:
        """Store memories of one scope; its number, and how many turns it has ever had."""
        user = _key(scope.user_id)
        # The update locks the scope, so that its writers come one after the other.
        number, seq = db.execute(
            "insert into scopes (user_key, conversation_key, user_id, conversation_id) values (%s, %s, %s, %s) "
            "on conflict (user_key, conversation_key) do update set next_seq = scopes.next_seq "
            "returning scope, next_seq",
            (user, _key(scope.conversation_id), scope.user_id, scope.conversation_id),
        ).fetchone()
        keys = [_key(memory.turn.turn_id) for memory, _ in group]
        # Replaced in place: they keep their positions among their neighbours.
        places = dict(
            db.execute(
                "select turn_key, pk from turns where user_key = %s and scope = %s and turn_key = any(%s)",
                (user, number, keys),
            ).fetchall()
        )
        if places:
            self._erase(db, user, number, list(places.values()))
        turns: list[tuple[Any, ...]] = []
        postings: list[tuple[str, int, int]] = []
        for key, (memory, vector) in zip(keys, group, strict=True):
            pk, turn = places.get(key), memory.turn
            if pk is None:
                pk, seq = number << SEQUENCE_BITS | seq, seq + 1
            counts = self._codec.terms_of(turn)
            turns.append(
                (
                    user, number, pk, key, turn.turn_id, *self._codec.texts(turn), to_micros(turn.created_at),
                    turn.importance, turn.remember, counts.total(), vector,
                )
            )  # fmt: skip
            postings += [(term, pk, count) for term, count in counts.items()]
        with db.cursor() as cursor:
            cursor.executemany("insert into turns values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", turns)
        db.execute(
            "insert into postings select %s, %s, term, pk, count "
            "from unnest(%s::text[], %s::bigint[], %s::int[]) as p (term, pk, count)",
            # In the order of the index they go into: neighbours are written together.
            (user, number, *map(list, zip(*sorted(postings), strict=True))) if postings else (user, number, [], [], []),
        )
        db.execute("update scopes set next_seq = %s where user_key = %s and scope = %s", (seq, user, number))
        return number, seq

    def _erase(self, db: Any, user: bytes, scope: int, pks: Sequence[int]) -> None:
        db.execute("delete from postings where user_key = %s and pk = any(%s)", (user, list(pks)))
        db.execute("delete from turns where user_key = %s and pk = any(%s)", (user, list(pks)))
        db.execute("update scopes set revision = revision + 1 where user_key = %s and scope = %s", (user, scope))

    def _index(self, user: bytes, scope: int) -> None:
        """Make the HNSW index of a large scope, on the partition it lies in, when it is missing."""
        with self._database.transaction(write=True) as db:
            row = db.execute(
                "select tableoid::regclass::text from turns where user_key = %s and scope = %s limit 1", (user, scope)
            ).fetchone()
            if row and not db.execute("select to_regclass(%s)", (f"large_{scope}",)).fetchone()[0]:
                db.execute("select pg_advisory_xact_lock(%s)", (scope,))
                db.execute(
                    f"create index if not exists large_{scope} on {row[0]} using hnsw (vector vector_cosine_ops) "
                    f"where scope = {scope}"
                )

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
        user = _key(scope.user_id)
        with self._database.transaction(write=False) as db:
            rows = self._scopes(db, scope, across)
            # An index proposes what is near at any time, so a part of the time is searched exactly.
            if vector is not None and not wanted.is_timed and any(next_seq >= LARGE for _, next_seq, _ in rows):
                found = self._among_candidates(db, user, rows, wanted)
            else:
                features = self._cache.load(rows, partial(self._features, db, user))
                numbers = [number for number, _, _ in rows]
                wanted = self._telling(db, user, wanted, numbers, features.size)
                found = features.rank(wanted, partial(self._postings, db, user, numbers))
            return [row.hit(self._memory(db, user, row.pk)) for row in found]

    def _among_candidates(self, db: Any, user: bytes, rows: Sequence[ScopeRow], wanted: Wanted) -> list[Ranked]:
        """Rank what the index and the rarest words propose, with their neighbours, instead of everything."""
        most = max(CANDIDATES, 4 * wanted.limit)
        numbers = [number for number, _, _ in rows]
        wanted = self._telling(db, user, wanted, numbers, sum(next_seq for _, next_seq, _ in rows))
        proposed: set[int] = set()
        db.execute(f"set local hnsw.ef_search = {min(1000, most)}")
        for scope, _, _ in rows:
            near = db.execute(
                # The scope's number stands in the text, because the planner has to see that the partial index fits.
                f"select pk from turns where user_key = %s and scope = {scope} order by vector <=> %s limit %s",
                (user, wanted.vector, most),
            ).fetchall()
            said = db.execute(
                "select pk from postings p join (select term, count(*) as turns from postings where user_key = %s "
                "and scope = %s and term = any(%s) group by term) f using (term) where p.user_key = %s and "
                "p.scope = %s group by pk order by sum(p.count / (f.turns + 10.0)) desc limit %s",
                (user, scope, wanted.terms, user, scope, most),
            ).fetchall()
            proposed.update(pk for (pk,) in [*near, *said])
        around = sorted({pk + step for pk in proposed for step in (-1, 0, 1)})
        read = partial(self._features, db, user, pks=around)
        found = features_of(
            [(scope, read(scope << SEQUENCE_BITS, (scope + 1) << SEQUENCE_BITS)) for scope, _, _ in rows]
        )
        return found.rank(wanted, partial(self._postings, db, user, numbers, pks=found.pks.tolist()))

    def _telling(self, db: Any, user: bytes, wanted: Wanted, scopes: Sequence[int], turns: int) -> Wanted:
        """Without the words that nearly every one of many turns has."""
        enough = common_from(turns)
        if enough > turns:
            return wanted
        counts = db.execute(
            "select w.term, (select count(*) from (select 1 from postings p where p.user_key = %s "
            "and p.scope = any(%s) and p.term = w.term limit %s) as found) from unnest(%s::text[]) as w (term)",
            (user, list(scopes), enough, list(wanted.terms)),
        ).fetchall()
        return replace(wanted, terms=telling(dict(counts), turns))

    def _scopes(self, db: Any, scope: Scope, across: Across) -> list[ScopeRow]:
        where, values = "user_key = %s", [_key(scope.user_id)]
        if across == "conversation":
            where, values = f"{where} and conversation_key = %s", [*values, _key(scope.conversation_id)]
        rows: list[ScopeRow] = db.execute(
            f"select scope, next_seq, revision from scopes where {where} order by scope", values
        ).fetchall()
        return rows

    def _features(
        self, db: Any, user: bytes, first: int, last: int, pks: Sequence[int] | None = None
    ) -> list[FeatureRow]:
        chosen = "" if pks is None else " and pk = any(%s)"
        values = (user, first, last) if pks is None else (user, first, last, list(pks))
        rows = db.execute(
            "select pk, length, created_at, vector from turns where user_key = %s and pk >= %s and pk < %s"
            f"{chosen} order by pk",
            values,
            binary=True,
        ).fetchall()
        return [
            (pk, length, at, None if vector is None else vector.to_numpy().astype("<f4").tobytes())
            for pk, length, at, vector in rows
        ]

    def _postings(
        self, db: Any, user: bytes, scopes: Sequence[int], term: str, pks: Sequence[int] | None = None
    ) -> list[tuple[int, int]]:
        chosen = "" if pks is None else " and pk = any(%s)"
        values = (user, list(scopes), term) if pks is None else (user, list(scopes), term, list(pks))
        rows: list[tuple[int, int]] = db.execute(
            f"select pk, count from postings where user_key = %s and scope = any(%s) and term = %s{chosen} order by pk",
            values,
        ).fetchall()
        return rows

    def _memory(self, db: Any, user: bytes, pk: int) -> Memory:
        row = db.execute(
            f"select {_TURN} from turns t join scopes s on s.user_key = t.user_key and s.scope = t.scope "
            "where t.user_key = %s and t.pk = %s",
            (user, pk),
        ).fetchone()
        return self._codec.memory(row)

    def delete(self, scope: Scope, turn_ids: Sequence[str]) -> int:
        user = _key(scope.user_id)
        with self._database.transaction(write=True) as db:
            found = self._scopes(db, scope, "conversation")
            if not found:
                return 0
            number = found[0][0]
            db.execute("select 1 from scopes where user_key = %s and scope = %s for update", (user, number))
            pks = db.execute(
                "select pk from turns where user_key = %s and scope = %s and turn_key = any(%s)",
                (user, number, [_key(turn_id) for turn_id in turn_ids]),
            ).fetchall()
            self._erase(db, user, number, [pk for (pk,) in pks])
        return len(pks)

    def forget(self, scope: Scope) -> int:
        return self._forget(scope, "conversation")

    def forget_user(self, user_id: str) -> int:
        return self._forget(Scope.checked(user_id=user_id, conversation_id="-"), "user")

    def _forget(self, scope: Scope, across: Across) -> int:
        user = _key(scope.user_id)
        erased = 0
        with self._database.transaction(write=True) as db:
            for number, next_seq, _ in self._scopes(db, scope, across):
                db.execute("delete from scopes where user_key = %s and scope = %s", (user, number))
                db.execute("delete from postings where user_key = %s and scope = %s", (user, number))
                erased += db.execute("delete from turns where user_key = %s and scope = %s", (user, number)).rowcount
                if next_seq >= LARGE:
                    db.execute(f"drop index if exists large_{number}")
        return erased

    def count(self, scope: Scope) -> int:
        with self._database.transaction(write=False) as db:
            count: int = db.execute(
                "select count(*) from turns where user_key = %s and scope in "
                "(select scope from scopes where user_key = %s and conversation_key = %s)",
                (_key(scope.user_id), _key(scope.user_id), _key(scope.conversation_id)),
            ).fetchone()[0]
        return count

    def export(self, user_id: str | None = None, scope: Scope | None = None) -> Iterator[Memory]:
        if user_id is not None and scope is not None:
            raise InvalidInputError("export takes a user_id or a scope, not both")
        where, values = "", list[Any]()
        if scope is not None:
            where = " and s.user_key = %s and s.conversation_key = %s"
            values = [_key(scope.user_id), _key(scope.conversation_id)]
        elif user_id is not None:
            where, values = " and s.user_key = %s", [_key(user_id)]
        last = -1
        # A page at a time, so that a slow reader holds no snapshot open.
        while True:
            with self._database.transaction(write=False) as db:
                rows = db.execute(
                    f"select t.pk, {_TURN} from turns t join scopes s on s.user_key = t.user_key and s.scope = t.scope "
                    f"where t.pk > %s{where} order by t.pk limit 500",
                    [last, *values],
                ).fetchall()
            if not rows:
                return
            for row in rows:
                yield self._codec.memory(row[1:])
            last = rows[-1][0]

    def close(self) -> None:
        """Close the connections of this process."""
        self._database.close()
