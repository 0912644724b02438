"""The contract of a `LongTermStore` as tests. Point it at your own adapter:

    from memory_tasks.stores.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def open_store(self, tmp_path):
            return functools.partial(MyStore, tmp_path)      # called with an embedder; opens the same data each time

What `open_store` returns has to survive pickling, because some tests open the store in other processes. It is
empty at the beginning of each test. Needs pytest.
"""

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from memory_tasks.errors import EmbeddingError, IndexMismatchError, PartialWriteError
from memory_tasks.models import Memory, Scope, Turn
from memory_tasks.ports import Embedder, LongTermStore

OpenStore = Callable[[Embedder | None], LongTermStore]
ANN = Scope(user_id="ann", conversation_id="c1")
BAD = "cannot be embedded"
NEIGHBOURS = [
    ("ann", "c1"), ("ann", "c10"), ("ann", "C1"), ("Ann", "c1"), ("ann1", "c1"), ("an", "nc1"), ("ann:c1", "x"),
    ("ann", "c1:x"), ("%", "c1"), ("ann", "_1"), ("ann'", "c1"), ('"', "\\"), ("änn", "ç1"), ("*", "?"), ("🎉", "c1"),
]  # fmt: skip


class WordsEmbedder:
    """Hashes words into a few numbers: quick, the same in every process, and enough for a test."""

    def __init__(self, dimension: int = 32) -> None:
        self.name = "conformance-words"
        self.dimension = dimension

    def embed(self, texts: Sequence[str]) -> Any:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            if BAD in text:
                raise ValueError("this text was made to fail")
            for word in text.lower().split():
                vectors[row, hashlib.sha1(word.encode()).digest()[0] % self.dimension] += 1  # noqa: S324
        return vectors


def memory(turn_id: str, user: str = "hello", assistant: str = "hi", scope: Scope = ANN, **fields: Any) -> Memory:
    """A memory with defaults for what a test does not care about."""
    fields.setdefault("created_at", datetime(2024, 5, 8, 12, tzinfo=UTC))
    return Memory(scope=scope, turn=Turn(turn_id=turn_id, user_message=user, assistant_message=assistant, **fields))


def _ids(memories: Any) -> list[str]:
    return [found.turn.turn_id for found in memories]


def _found(store: LongTermStore, query: str, limit: int = 100, scope: Scope = ANN, **options: Any) -> list[str]:
    return [hit.memory.turn.turn_id for hit in store.search(scope, query, limit, **options)]


def _write_many(open_store: OpenStore, name: str, count: int) -> None:
    store = open_store(WordsEmbedder())
    for number in range(count):
        store.upsert([memory(f"{name}{number}", f"from {name}")])


def _process(target: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    return process


class StoreConformance:
    """Subclass it, and give it the fixture `open_store`."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        pytest.fail("override the fixture open_store; see the documentation of memory_tasks.stores.conformance")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> LongTermStore:
        return open_store(WordsEmbedder())

    def test_a_memory_comes_back_as_it_went_in(self, store: LongTermStore) -> None:
        stored = memory("t1", "Grüße 🎉", "你好", importance=0.25, remember=True)
        store.upsert([stored, memory("t2", "")])
        assert store.search(ANN, "grüße", 1)[0].memory == stored
        assert list(store.export()) == [stored, memory("t2", "")]

    def test_upsert_is_idempotent_and_the_last_text_wins(self, store: LongTermStore) -> None:
        for _ in range(3):
            store.upsert([memory("t1", "oolong"), memory("t1", "sencha"), memory("t2", "coffee")])
        assert store.count(ANN) == 2
        assert store.search(ANN, "sencha", 1)[0].memory.turn.user_message == "sencha"
        assert not any("oolong" in m.turn.user_message for m in store.export())
        store.upsert([])

    def test_a_replaced_memory_keeps_its_place(self, store: LongTermStore) -> None:
        store.upsert([memory(f"t{n}") for n in range(3)])
        store.upsert([memory("t1", "changed")])
        assert _ids(store.export(None, ANN)) == ["t0", "t1", "t2"]

    def test_concurrent_upserts_of_the_same_memory_store_it_once(self, open_store: OpenStore) -> None:
        stores = [open_store(WordsEmbedder()) for _ in range(4)]
        threads = [
            threading.Thread(target=lambda s=store: [s.upsert([memory(f"t{n}") for n in range(20)]) for _ in range(3)])
            for store in stores
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(_ids(stores[0].export())) == sorted(f"t{n}" for n in range(20))
        assert len(_found(stores[1], "hello")) == 20

    def test_scopes_are_isolated_whatever_their_ids(self, store: LongTermStore) -> None:
        scopes = [Scope(user_id=user, conversation_id=conversation) for user, conversation in NEIGHBOURS]
        for number, scope in enumerate(scopes):
            store.upsert([memory("t1", f"the same words {number}", scope=scope)])
        for number, scope in enumerate(scopes):
            (hit,) = store.search(scope, "the same words", 100)
            assert hit.memory == memory("t1", f"the same words {number}", scope=scope)
            assert store.count(scope) == 1
        across = store.search(ANN, "the same words", 100, across="user")
        assert {hit.memory.scope for hit in across} == {scope for scope in scopes if scope.user_id == "ann"}
        assert store.forget(ANN) == 1
        assert store.forget_user("%") == 1
        assert len(list(store.export())) == len(scopes) - 2

    def test_an_unknown_scope_is_empty(self, store: LongTermStore) -> None:
        store.upsert([memory("t1")])
        unknown = Scope(user_id="nobody", conversation_id="c1")
        assert store.search(unknown, "hello", 5) == []
        assert (store.count(unknown), store.forget(unknown), store.forget_user("nobody")) == (0, 0, 0)
        assert store.delete(unknown, ["t1"]) == 0
        assert list(store.export("nobody")) == list(store.export(None, unknown)) == []

    def test_search_can_be_bounded_in_time(self, store: LongTermStore) -> None:
        days = [datetime(2024, 5, day, tzinfo=UTC) for day in range(1, 8)]
        store.upsert([memory(f"t{day.day}", f"tea on day {day.day}", created_at=day) for day in days])
        assert sorted(_found(store, "tea", since=days[4])) == ["t5", "t6", "t7"]
        assert sorted(_found(store, "tea", until=days[1])) == ["t1"]
        assert sorted(_found(store, "tea", since=days[2], until=days[4])) == ["t3", "t4"]
        assert _found(store, "tea", since=days[6], until=days[6]) == []
        assert len(_found(store, "tea", 2, since=days[1])) == 2

    def test_search_gives_the_best_first_and_no_more_than_asked(self, store: LongTermStore) -> None:
        store.upsert([memory("wanted", "the violet umbrella")] + [memory(f"t{n}", f"weather {n}") for n in range(20)])
        hits = store.search(ANN, "violet umbrella", 5)
        assert len(hits) == 5
        assert hits[0].memory.turn.turn_id == "wanted"
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert store.search(ANN, "violet umbrella", 0) == []

    @pytest.mark.parametrize("query", ["", "???", "\n", "%", "'; drop table turns; --", "x" * 20_000, "\\", "🎉"])
    def test_any_query_is_answered(self, store: LongTermStore, query: str) -> None:
        store.upsert([memory("t1"), memory("t2", "🎉")])
        assert set(_found(store, query)) == {"t1", "t2"}

    def test_delete_erases_exactly_these_and_counts(self, store: LongTermStore) -> None:
        store.upsert([memory(f"t{n}", f"zebra{n}") for n in range(260)])
        assert store.delete(ANN, [f"t{n}" for n in range(250)] + ["missing", "t0"]) == 250
        assert store.delete(ANN, ["t0"]) == 0
        assert store.delete(ANN, []) == 0
        assert sorted(_found(store, "zebra255", 300)) == sorted(f"t{n}" for n in range(250, 260))
        store.upsert([memory("t0", "again")])
        assert store.count(ANN) == 11

    def test_forget_counts_what_it_erased(self, store: LongTermStore) -> None:
        other = Scope(user_id="ann", conversation_id="c2")
        store.upsert([memory(f"t{n}", scope=scope) for scope in (ANN, other) for n in range(30)])
        assert store.forget(ANN) == 30
        assert (store.count(ANN), store.count(other)) == (0, 30)
        store.upsert([memory("new", "new words")])
        assert _found(store, "new words") == ["new"]
        assert store.forget_user("ann") == 31
        assert list(store.export()) == []

    def test_export_has_the_order_of_storing_and_many_pages(self, store: LongTermStore) -> None:
        other = Scope(user_id="bob", conversation_id="c1")
        stored = [memory(f"t{n}", scope=scope) for scope in (ANN, other) for n in range(1100)]
        store.upsert(stored)
        assert list(store.export(None, ANN)) == stored[:1100]
        assert list(store.export("bob")) == stored[1100:]
        assert len(list(store.export())) == 2200

    def test_empty_and_huge_texts_are_kept_whole(self, store: LongTermStore) -> None:
        huge = "padding " * 60_000 + "needleword" + " padding" * 60_000
        store.upsert([memory("empty", "", ""), memory("huge", huge), memory("small", "padding")])
        assert store.search(ANN, "needleword", 1)[0].memory.turn.user_message == huge
        assert store.count(ANN) == 3

    def test_one_text_that_cannot_be_embedded_does_not_hold_back_the_others(self, store: LongTermStore) -> None:
        with pytest.raises(PartialWriteError) as failure:
            store.upsert([memory("t1"), memory("t2", BAD), memory("t3")])
        assert failure.value.failed == {"t2": "ValueError"}
        assert sorted(failure.value.stored) == ["t1", "t3"]
        assert _ids(store.export()) == ["t1", "t3"]

    def test_another_embedder_or_dimension_is_refused(self, open_store: OpenStore, store: LongTermStore) -> None:
        store.upsert([memory("t1")])
        other = WordsEmbedder()
        other.name = "another"
        for embedder in (other, WordsEmbedder(48)):
            with pytest.raises(IndexMismatchError, match="embedder"):
                open_store(embedder)

    def test_without_an_embedder_words_are_enough(self, open_store: OpenStore) -> None:
        store = open_store(None)
        store.upsert([memory("t1", "green tea"), memory("t2", "black coffee")])
        hit = store.search(ANN, "tea", 1)[0]
        assert (hit.memory.turn.turn_id, hit.vector) == ("t1", None)

    def test_search_by_words_does_without_the_embedder(self, store: LongTermStore) -> None:
        store.upsert([memory("t1", "green tea"), memory("t2", "black coffee")])
        with pytest.raises(EmbeddingError):
            store.search(ANN, f"tea {BAD}", 1)
        hit = store.search(ANN, f"tea {BAD}", 1, by_words=True)[0]
        assert (hit.memory.turn.turn_id, hit.vector) == ("t1", None)

    def test_what_is_stored_is_there_when_the_store_is_opened_again(
        self, open_store: OpenStore, store: LongTermStore
    ) -> None:
        store.upsert([memory(f"t{n}", f"number {n}") for n in range(10)])
        before = store.search(ANN, "number 7", 10)
        again = open_store(WordsEmbedder())
        assert again.search(ANN, "number 7", 10) == before
        store.delete(ANN, ["t7"])
        assert "t7" not in _found(again, "number 7")

    def test_two_processes_write_while_another_reads(self, open_store: OpenStore, store: LongTermStore) -> None:
        writers = [_process(_write_many, open_store, name, 40) for name in ("a", "b")]
        seen = 0
        while any(writer.is_alive() for writer in writers):
            found = _found(store, "from a", 1000)
            assert len(found) == len(set(found)) >= seen
            seen = len(found)
        assert [writer.exitcode for writer in writers] == [0, 0]
        assert store.count(ANN) == len(_found(store, "from b", 1000)) == 80

    def test_a_killed_writer_loses_nothing_it_was_told_is_stored(
        self, open_store: OpenStore, store: LongTermStore
    ) -> None:
        for name in ("a", "b"):
            writer = _process(_write_many, open_store, name, 100_000)
            pause = threading.Event()
            while store.count(ANN) < 15:
                pause.wait(0.01)
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
            again = open_store(WordsEmbedder())
            numbers = sorted(int(turn_id[1:]) for turn_id in _ids(again.export()))
            assert numbers == list(range(len(numbers)))
            assert len(_found(again, "from", 200_000)) == again.count(ANN) == len(numbers)
            assert again.forget(ANN) == len(numbers)
