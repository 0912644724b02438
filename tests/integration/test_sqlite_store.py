"""The embedded long-term store: real files, several processes."""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from memory_tasks import (
    IndexMismatchError,
    InvalidInputError,
    Memory,
    Scope,
    SQLiteStore,
    StoreUnavailableError,
)
from memory_tasks.embedders.wordllama import WordLlamaEmbedder
from memory_tasks.stores.conformance import OpenStore, StoreConformance
from tests.conftest import make_turn

ANN = Scope(user_id="ann", conversation_id="c1")


class TestConformance(StoreConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return partial(SQLiteStore, tmp_path / "memory.db")


def memory(turn_id: str, user: str = "hello", assistant: str = "hi", scope: Scope = ANN, **fields: Any) -> Memory:
    return Memory(scope=scope, turn=make_turn(turn_id, user, assistant, **fields))


def found(store: SQLiteStore, query: str, limit: int = 4, scope: Scope = ANN, **options: Any) -> list[str]:
    return [hit.memory.turn.turn_id for hit in store.search(scope, query, limit, **options)]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("我住在北京市朝阳区", "北京"),
        ("أحب الشاي الأخضر كثيرا", "الشاي"),
        ("j'ai visité l'hôtel près de la mer", "hotel"),
        ("let's celebrate 🎉 tonight", "🎉"),
        ("Я люблю зелёный чай", "зеленого чая"),
        ("मुझे हरी चाय पसंद है", "चाय"),
        ("緑茶が好きです", "緑茶"),
        ("The Wi-Fi code is XK42-77", "XK42"),
    ],
)
def test_any_language_is_found_by_its_words(store: SQLiteStore, text: str, query: str) -> None:
    store.upsert([memory("wanted", text)] + [memory(f"t{n}", f"nothing about that, number {n}") for n in range(20)])
    best = store.search(ANN, query, 1)[0]
    assert best.memory.turn.turn_id == "wanted"
    assert best.words


def test_meaning_finds_what_words_do_not(store: SQLiteStore) -> None:
    store.upsert([memory("wanted", "my dog is called Rex")] + [memory(f"t{n}", f"invoice {n}") for n in range(10)])
    best = store.search(ANN, "the puppy's name", 1)[0]
    assert best.memory.turn.turn_id == "wanted"
    assert best.vector is not None


def test_the_date_of_a_turn_is_searchable(store: SQLiteStore) -> None:
    days = [memory(f"d{day}", "went for a walk", created_at=datetime(2023, 5, day, tzinfo=UTC)) for day in (7, 8, 9)]
    store.upsert(days)
    assert found(store, "what happened on 8 May 2023?", 1) == ["d8"]


def test_search_stays_in_the_conversation_or_in_the_user(store: SQLiteStore) -> None:
    scopes = [("ann", "c1"), ("ann", "c2"), ("ann2", "c1"), ("an", "nc1"), ("Ann", "c1"), ("ann", "C1")]
    for user, conversation in scopes:
        scope = Scope(user_id=user, conversation_id=conversation)
        store.upsert([memory(f"{user}-{conversation}", "the same words", scope=scope)])
    assert found(store, "the same words", 99) == ["ann-c1"]
    assert sorted(found(store, "the same words", 99, across="user")) == ["ann-C1", "ann-c1", "ann-c2"]
    assert found(store, "the same words", 99, Scope(user_id="nobody", conversation_id="c1")) == []
    assert found(store, "the same words", 0) == []


def test_delete_erases_exactly_these(store: SQLiteStore, tmp_path: Path) -> None:
    store.upsert([memory(f"t{n}", f"zebrafish{n}") for n in range(1200)])
    assert store.delete(ANN, [f"t{n}" for n in range(1100)] + ["missing", "t0"]) == 1100
    assert store.delete(ANN, ["t0"]) == 0
    assert store.delete(Scope(user_id="x", conversation_id="y"), ["t1199"]) == 0
    assert store.count(ANN) == 100
    assert "t5" not in found(store, "zebrafish5", 100)
    raw = b"".join(file.read_bytes() for file in tmp_path.glob("memory.db*"))
    assert b"zebrafish500" not in raw
    assert b"zebrafish1150" in raw


def test_forget_leaves_no_byte_behind(store: SQLiteStore, tmp_path: Path) -> None:
    other = Scope(user_id="ann", conversation_id="c2")
    store.upsert([memory("t1", "quizzaciously"), memory("t2", "floccinaucinihil", scope=other)])
    assert store.forget(ANN) == 1
    assert store.forget(ANN) == 0
    raw = b"".join(file.read_bytes() for file in tmp_path.glob("memory.db*"))
    assert b"quizzaci" not in raw
    assert b"floccinaucinihil" in raw
    assert store.forget_user("ann") == 1
    assert b"floccinauci" not in b"".join(file.read_bytes() for file in tmp_path.glob("memory.db*"))
    store.upsert([memory("t1", "new words")])
    assert found(store, "new words") == ["t1"]


def test_forget_says_so_when_a_reader_keeps_old_pages_alive(
    store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory_tasks.stores.sqlite.BUSY_SECONDS", 0.5)
    store.close()
    store.upsert([memory("t1", "quizzaciously")])
    reader = sqlite3.connect(tmp_path / "memory.db")
    reader.execute("begin")
    reader.execute("select * from turns").fetchall()
    try:
        with pytest.raises(StoreUnavailableError, match="repeat the call"):
            store.forget(ANN)
    finally:
        reader.close()
    store.forget(ANN)
    assert b"quizzaci" not in b"".join(file.read_bytes() for file in tmp_path.glob("memory.db*"))


def test_export_of_everything_a_user_or_a_scope(store: SQLiteStore) -> None:
    other, stranger = Scope(user_id="ann", conversation_id="c2"), Scope(user_id="bob", conversation_id="c1")
    everything = [memory(f"t{n}", scope=scope) for scope in (ANN, other, stranger) for n in range(600)]
    store.upsert(everything)
    assert list(store.export()) == everything
    assert list(store.export("ann")) == everything[:1200]
    assert list(store.export(None, other)) == everything[600:1200]
    assert list(store.export("nobody")) == []
    with pytest.raises(InvalidInputError):
        next(store.export("ann", ANN))


class Picky:
    """Refuses one text."""

    name, dimension = "picky", 2

    def embed(self, texts: Sequence[str]) -> Any:
        if any("bad" in text for text in texts):
            raise RuntimeError("no")
        return np.ones((len(texts), 2))


def test_another_embedder_is_refused_when_the_file_is_opened(tmp_path: Path) -> None:
    SQLiteStore(tmp_path / "picky.db", Picky())
    for embedder in (WordLlamaEmbedder(), None):
        with pytest.raises(IndexMismatchError, match="made with embedder picky"):
            SQLiteStore(tmp_path / "picky.db", embedder)
    with sqlite3.connect(tmp_path / "picky.db") as db:
        db.execute("update meta set value = '99' where key = 'format'")
    db.close()
    with pytest.raises(IndexMismatchError, match="upgrade"):
        SQLiteStore(tmp_path / "picky.db", Picky())


def test_a_file_that_cannot_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database")
    with pytest.raises(StoreUnavailableError, match="file"):
        SQLiteStore(tmp_path / "file")
    with pytest.raises(StoreUnavailableError):
        SQLiteStore(tmp_path / "file" / "below.db")


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80)


@given(texts=st.lists(TEXTS, min_size=1, max_size=6), query=TEXTS)
@hypothesis_settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_stored_is_recalled_unchanged(store: SQLiteStore, texts: list[str], query: str) -> None:
    store.forget(ANN)
    memories = [memory(f"t{n}", text, text[::-1]) for n, text in enumerate(texts)]
    store.upsert(memories)
    hits = store.search(ANN, query, 10)
    assert sorted((hit.memory for hit in hits), key=lambda m: m.turn.turn_id) == memories
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
