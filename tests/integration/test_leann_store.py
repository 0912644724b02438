"""The store with LEANN indexes: the real library, real files."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from memory_tasks import Scope, Settings, SettingsError, SQLiteStore
from memory_tasks.embedders.wordllama import WordLlamaEmbedder
from memory_tasks.stores import leann, load_long_term
from memory_tasks.stores.conformance import ANN, OpenStore, StoreConformance, WordsEmbedder, memory
from memory_tasks.stores.leann import LeannStore
from tests.conditions import wait_for


class TestConformance(StoreConformance):
    """With an index from the twentieth turn on, so that the suite goes through it."""

    @pytest.fixture
    def open_store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
        monkeypatch.setattr(leann, "LARGE", 20)
        return partial(LeannStore, tmp_path / "store")

    def test_without_an_embedder_words_are_enough(self, open_store: OpenStore) -> None:
        with pytest.raises(SettingsError, match="needs an embedder"):
            open_store(None)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LeannStore:
    monkeypatch.setattr(leann, "LARGE", 400)
    monkeypatch.setattr(leann, "CANDIDATES", 40)
    return LeannStore(tmp_path / "store", WordLlamaEmbedder())


def indexes(store: LeannStore) -> list[Path]:
    return list((store.path.parent / "indexes").iterdir())


def fill(store: LeannStore, count: int) -> None:
    store.upsert([memory(f"t{n}", f"weather report number {n}") for n in range(count)])


def test_a_large_conversation_is_searched_through_its_index(
    store: LeannStore, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    fill(store, 500)
    store.upsert([memory("wanted", "my dog is called Rex"), memory("next", "he is three")])
    assert len(indexes(store)) == 1
    assert store.search(ANN, "what is the puppy's name?", 1)[0].memory.turn.turn_id == "wanted"
    assert store.search(ANN, "weather number 123", 1)[0].memory.turn.turn_id == "t123"
    assert store.search(ANN, "weather number 123", 1, across="user")[0].memory.turn.turn_id == "t123"
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert "puppy" not in caplog.text


def test_it_finds_the_same_as_comparing_everything(store: LeannStore, tmp_path: Path) -> None:
    exact = SQLiteStore(tmp_path / "exact.db", WordLlamaEmbedder())
    subjects = "tea coffee garden train music weather cooking running painting chess".split()
    turns = [memory(f"t{n}", f"about {subjects[n % 10]} {n}", f"{subjects[n * 7 % 10]} {n * 13}") for n in range(600)]
    for each in (store, exact):
        each.upsert(turns)
    same = 0
    for n in range(20):
        query = f"what about {subjects[n % 10]} {n * 29}?"
        first, second = ([hit.memory.turn.turn_id for hit in each.search(ANN, query, 5)] for each in (store, exact))
        same += len(set(first) & set(second))
    assert same >= 80


def test_turns_newer_than_the_index_are_found_at_once_and_growth_renews_it(store: LeannStore) -> None:
    fill(store, 420)
    (first,) = indexes(store)
    store.upsert([memory("new", "the violet umbrella")])
    assert indexes(store) == [first]
    assert store.search(ANN, "violet umbrella", 1)[0].memory.turn.turn_id == "new"
    fill(store, 560)
    assert len(indexes(store)) == 1
    assert indexes(store) != [first]


def test_an_index_goes_with_what_it_holds(store: LeannStore) -> None:
    fill(store, 420)
    store.delete(ANN, ["t5"])
    assert indexes(store) == []
    assert "t5" not in [hit.memory.turn.turn_id for hit in store.search(ANN, "weather report number 5", 300)]
    store.upsert([memory("again", "an index comes with the next write")])
    assert len(indexes(store)) == 1
    assert store.forget(ANN) == 420
    assert indexes(store) == []
    fill(store, 420)
    assert store.forget_user("ann") == 420
    assert indexes(store) == []


def test_a_lost_index_costs_nothing_but_time(store: LeannStore) -> None:
    fill(store, 420)
    other = LeannStore(store.path.parent, WordLlamaEmbedder())
    for file in indexes(store):
        for part in file.iterdir():
            part.unlink()
        file.rmdir()
    assert other.search(ANN, "weather report number 77", 1)[0].memory.turn.turn_id == "t77"


def test_a_build_that_fails_does_not_fail_the_write(
    store: LeannStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(leann, "_build", fail)
    fill(store, 420)
    assert store.count(ANN) == 420
    assert "could not be built (OSError)" in caplog.text


WRITER = """
from pathlib import Path
import sys
from memory_tasks.stores import leann
from memory_tasks.stores.conformance import WordsEmbedder, memory
leann.LARGE, leann.GROWTH = 20, 1.01
store = leann.LeannStore(Path(sys.argv[1]), WordsEmbedder())
for number in range(100000):
    store.upsert([memory(f"t{number}", f"number {number}")])
"""


def test_a_writer_killed_while_it_builds_leaves_a_store_that_works(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)])
        building = folder / "indexes"
        wait_for(lambda: building.exists() and list(building.glob("building-*")), "an index to be built")  # noqa: B023
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        store = LeannStore(folder, WordsEmbedder())
        count = store.count(ANN)
        found = {hit.memory.turn.turn_id for hit in store.search(ANN, "number", 1000)}
        assert {f"t{n}" for n in range(count)} >= found
        assert store.search(ANN, f"number {count - 1}", 1)[0].memory.turn.turn_id == f"t{count - 1}"
        store.forget(Scope(user_id="nobody", conversation_id="c"))
        assert not list((folder / "indexes").glob("building-*"))


def test_it_is_chosen_by_url(tmp_path: Path) -> None:
    assert isinstance(load_long_term(Settings.load(long_term_url=f"leann:///{tmp_path / 'l'}")), LeannStore)
