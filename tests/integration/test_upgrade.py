"""What earlier versions have stored is read; what a newer one has stored is left alone, and nothing is lost."""

import json
import shutil
import sqlite3
from pathlib import Path

import psycopg
import pytest

from memory_tasks import (
    IndexMismatchError,
    NewerFormatError,
    Scope,
    SQLiteStore,
)
from memory_tasks.sealing import Sealer
from memory_tasks.stores.conformance import ANN, WordsEmbedder
from memory_tasks.stores.pgvector import PgVectorStore
from memory_tasks.stores.postgres import SCHEMA
from memory_tasks.transfer import read_lines
from tests import formats
from tests.conditions import wait_for
from tests.integration.test_pgvector_store import database, postgres  # noqa: F401
from tests.system import System
from workers.valkey import EmbeddedValkey

PAST = sorted(formats.FIXTURES.glob("format-*"))


@pytest.fixture(params=PAST, ids=lambda folder: folder.name)
def past(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the fixtures of each format there ever was."""
    return Path(shutil.copytree(request.param, tmp_path / "past"))


def test_there_are_fixtures() -> None:
    assert PAST


@pytest.mark.parametrize(("name", "sealer"), [("plain", Sealer()), ("sealed", Sealer([formats.KEY]))])
def test_a_file_of_the_embedded_store_is_read(past: Path, name: str, sealer: Sealer) -> None:
    store = SQLiteStore(past / f"{name}.db", WordsEmbedder(), sealer)
    assert list(store.export()) == formats.memories()
    assert store.search(ANN, "tea number 2", 1)[0].memory == formats.memories()[1]
    assert store.forget(ANN) == 3


def test_the_tables_of_postgres_are_read(past: Path, database: str) -> None:  # noqa: F811
    with psycopg.connect(database) as db:
        db.execute("create extension if not exists vector")
        db.execute(f"create schema {SCHEMA}")
        db.execute(f"set search_path = {SCHEMA}, public")
        db.execute("create table meta (key text primary key, value text not null)")
        db.execute((past / "pgvector.sql").read_bytes())
    store = PgVectorStore(database, WordsEmbedder())
    assert list(store.export()) == formats.memories()
    assert store.search(ANN, "tea number 2", 1)[0].memory == formats.memories()[1]
    store.upsert(formats.memories()[:1])
    assert store.forget(ANN) == 3


def test_an_exported_file_is_read(past: Path, tmp_path: Path) -> None:
    lines = [line for _, line in read_lines(past / "turns.jsonl", None, None)]
    assert [line if isinstance(line, str) else line.turn_id for line in lines] == ["t1", "t2", "t3", "t4"]
    newer = tmp_path / "newer.jsonl"
    newer.write_text((past / "turns.jsonl").read_text().replace('"v":1', '"v":99'))
    assert all("upgrade memory-tasks" in str(line) for _, line in read_lines(newer, None, None))


def test_a_system_goes_on_with_what_an_earlier_one_has_left(
    past: Path, own_valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    formats.load_redis(own_valkey.url, json.loads((past / "redis.json").read_text()))
    with System(tmp_path / "system", own_valkey.url, prefix=formats.PREFIX, promote_after=0.1) as system:
        client = system.client
        assert [turn.turn_id for turn in system.service.working.recent(formats.SCOPE, 8)] == ["t4"]
        (dead,) = client.failed()
        assert (dead.turn_id, dead.error) == ("dead", "CompletionError")
        system.start_beat()
        system.start_worker()
        for turn_id, conversation in (("active", "c1"), ("waiting", "c1"), ("recalled", "recalled")):
            assert f"message of {turn_id}" in client.pending("ann", conversation, turn_id).result().answer
        answered = client.pending("ann", "answered", "answered")
        assert next(event.text for event in answered.events()) == "paid "
        assert answered.result().answer == "paid answer"
        assert system.calls("answered") == 0
        assert client.retry_failed("ann", "dead", "dead").result().answer
        wait_for(lambda: client.pending("ann", "dead", "dead").status().state == "persisted", "the last to be stored")
        scopes = [Scope(user_id="ann", conversation_id=name) for name in ("c1", "recalled", "answered", "dead")]
        assert not any(done.failed for done in client.promote(scopes, whatever_age=True))
        wait_for(lambda: len(list(system.service.long_term.export("ann"))) == 6, "all of it to be promoted")


def test_a_turn_of_a_newer_version_waits_for_a_newer_worker(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with System(tmp_path, own_valkey.url) as system:
        newer = system.client.reply("ann", "c1", "hello", idempotency_key="newer")
        entry = system.client.keys.turn(newer.scope, "newer").entry
        system.client.redis.hset(entry, "v", 2)
        system.start_beat()
        system.start_worker()
        assert system.client.reply("ann", "c2", "hello").result().answer
        wait_for(lambda: "is left to a newer worker" in system.log("worker"), "the worker to refuse")
        assert newer.status().state == "accepted"
        with pytest.raises(NewerFormatError, match="upgrade"):
            system.client.forget_turns("ann", "c1", ["newer"])
        # The newer worker comes.
        system.client.redis.hset(entry, "v", 1)
        assert newer.result().answer
        assert system.calls("newer") == 1


def test_recall_beside_a_newer_turn_waits_instead_of_dying(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with System(tmp_path, own_valkey.url, recall_attempts=2) as system:
        key = system.client.keys.scope(formats.SCOPE).turns
        system.client.redis.rpush(key, '{"at":1700000000000,"turn_id":"t9","v":2}')
        system.start_beat()
        system.start_worker()
        pending = system.client.reply("ann", "c1", "hello")
        wait_for(lambda: pending.status().attempts.get("recall", 0) >= 4, "recall to be tried beyond its attempts")
        assert pending.status().error == "RecallError from NewerFormatError"
        system.client.redis.delete(key)
        assert pending.result().answer


def test_a_newer_long_term_store_is_refused(tmp_path: Path) -> None:
    SQLiteStore(tmp_path / "m.db").close()
    with sqlite3.connect(tmp_path / "m.db") as db:
        db.execute("update meta set value = '99' where key = 'format'")
    with pytest.raises(IndexMismatchError, match="upgrade memory-tasks"):
        SQLiteStore(tmp_path / "m.db")


def test_two_versions_side_by_side_share_the_work(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    """The older one reads what the newer one adds to messages, events and entries, as far as it may."""
    with System(tmp_path, own_valkey.url) as system:
        system.start_worker()
        pending = system.client.reply("ann", "c1", "hello", idempotency_key="t1")
        keys = system.client.keys.turn(pending.scope, "t1")
        system.client.redis.hset(keys.entry, "a_newer_field", "1")
        assert pending.result().answer
        pending.wait_persisted()
        system.client.redis.xadd(keys.events, {"type": "promoted", "a_newer_field": "1"})
        assert [event.type for event in pending.events()][-1] == "promoted"
