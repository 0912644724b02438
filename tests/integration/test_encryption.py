"""Texts at rest: nobody reads them without the keys, and keys can be replaced."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography.fernet import Fernet
from typer.testing import CliRunner

from memory_tasks import (
    MemoryClient,
    RedisWorkingStore,
    SealError,
    SealingMismatchError,
    Settings,
    SettingsError,
    SQLiteStore,
)
from memory_tasks.cli import app
from memory_tasks.connection import connect
from memory_tasks.sealing import Sealer
from memory_tasks.stores.conformance import ANN, OpenStore, StoreConformance, WordsEmbedder, memory
from memory_tasks.stores.leann import LeannStore
from memory_tasks.stores.pgvector import PgVectorStore
from tests.conditions import wait_for
from tests.conftest import make_turn
from tests.integration.test_pgvector_store import database, postgres  # noqa: F401
from tests.system import System
from workers.valkey import EmbeddedValkey

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
SECRET = "the pangolin sleeps at dawn"


class TestSQLite(StoreConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return partial(SQLiteStore, tmp_path / "memory.db", sealer=Sealer([OLD]))


class TestPostgres(StoreConformance):
    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:  # noqa: F811
        return partial(PgVectorStore, database, sealer=Sealer([OLD]))


def bytes_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("make", [lambda f, s: SQLiteStore(f / "m.db", WordsEmbedder(), s),
                                  lambda f, s: LeannStore(f, WordsEmbedder(), s)])  # fmt: skip
def test_no_word_can_be_read_in_the_files(tmp_path: Path, make: Any) -> None:
    store = make(tmp_path / "sealed", Sealer([OLD]))
    store.upsert([memory("t1", SECRET)])
    assert store.search(ANN, "when does the pangolin sleep?", 1)[0].memory.turn.user_message == SECRET
    written = bytes_in(tmp_path / "sealed")
    assert not any(word in written for word in (b"pangolin", b"sleep", b"dawn"))
    plain = make(tmp_path / "plain", Sealer())
    plain.upsert([memory("t1", SECRET)])
    assert b"pangolin" in bytes_in(tmp_path / "plain")


def test_a_new_key_is_used_and_the_old_one_still_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    SQLiteStore(path, sealer=Sealer([OLD])).upsert([memory("t1", "written before")])
    rotated = SQLiteStore(path, sealer=Sealer([NEW, OLD]))
    rotated.upsert([memory("t2", "written after")])
    assert {found.turn.user_message for found in rotated.export()} == {"written before", "written after"}
    assert len(rotated.search(ANN, "written", 5)) == 2
    with pytest.raises(SealError, match="add the key it was written with"):
        SQLiteStore(path, sealer=Sealer([NEW]))


def test_a_store_is_encrypted_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    SQLiteStore(tmp_path / "plain.db").upsert([memory("t1")])
    SQLiteStore(tmp_path / "sealed.db", sealer=Sealer([OLD]))
    with pytest.raises(SealingMismatchError, match="memory-tasks migrate"):
        SQLiteStore(tmp_path / "plain.db", sealer=Sealer([OLD]))
    with pytest.raises(SealingMismatchError, match="set MEMORY_TASKS_ENCRYPTION_KEYS"):
        SQLiteStore(tmp_path / "sealed.db")


def test_migrate_encrypts_what_was_stored_before_and_changes_keys(tmp_path: Path) -> None:
    plain, sealed, renewed = (f"sqlite:///{tmp_path / name}.db" for name in ("plain", "sealed", "renewed"))
    SQLiteStore(tmp_path / "plain.db").upsert([memory("t1", SECRET)])
    environment = {"MEMORY_TASKS_EMBEDDER": "none"}

    def migrate(source: str, target: str, keys: str) -> None:
        command = ["migrate", "--from", source, "--to", target]
        done = CliRunner().invoke(app, command, env={**environment, "MEMORY_TASKS_ENCRYPTION_KEYS": keys})
        assert done.exit_code == 0, done.output

    migrate(plain, sealed, OLD)
    migrate(sealed, renewed, f"{NEW},{OLD}")
    (found,) = SQLiteStore(tmp_path / "renewed.db", sealer=Sealer([NEW])).export()
    assert found.turn.user_message == SECRET


def test_a_key_that_is_none_is_refused_without_being_shown() -> None:
    with pytest.raises(SettingsError, match="ENCRYPTION_KEYS") as failure:
        Sealer.of(Settings.load(encryption_keys="not-a-key"))
    assert "not-a-key" not in str(failure.value)
    assert OLD not in repr(Settings.load(encryption_keys=OLD))


def test_working_memory_is_encrypted_and_still_removes_turns_by_id(client: redis.Redis, prefix: str) -> None:
    working = RedisWorkingStore(client, prefix=prefix, sealer=Sealer([OLD]))
    turns = [make_turn(f"t{n}", f"{SECRET} {n}") for n in range(3)]
    for turn in turns:
        assert working.append(ANN, turn)
    assert working.recent(ANN, 9) == turns
    (key,) = client.scan_iter(f"{prefix}:*:turns:*")
    assert not any("pangolin" in element for element in client.lrange(key, 0, -1))
    assert working.remove(ANN, ["t1"]) == 1
    rotated = RedisWorkingStore(client, prefix=prefix, sealer=Sealer([NEW, OLD]))
    assert [turn.turn_id for turn in rotated.recent(ANN, 9)] == ["t0", "t2"]
    with pytest.raises(SealError):
        RedisWorkingStore(client, prefix=prefix).recent(ANN, 9)


def test_a_whole_system_leaves_no_text_in_redis_or_on_disk(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with System(tmp_path / "system", own_valkey.url, encryption_keys=OLD) as system:
        system.start_beat()
        system.start_worker()
        pending = system.client.reply("ann", "c1", f"stream:1 remember {SECRET}")
        text = "".join(event.text for event in pending.events())
        assert "pangolin" in text
        assert "pangolin" in pending.result().answer
        second = system.client.reply("ann", "c1", "what sleeps at dawn?").result()
        assert second.completion.text
        raw = [element for key in own_keys(own_valkey) for element in key]
        assert raw
        assert not any("pangolin" in element for element in raw)
        assert b"pangolin" not in bytes_in(tmp_path / "system")
        assert sum(system.client.leftovers("pangolin").values()) > 0
        system.client.forget_user("ann")
        assert sum(system.client.leftovers("pangolin").values()) == 0


def own_keys(valkey: EmbeddedValkey) -> list[list[str]]:
    """Everything that is in the server, as it is."""
    with connect(valkey.url) as client:
        readers: dict[str, Any] = {
            "none": lambda _: [],  # gone since it was listed
            "string": lambda key: [client.get(key)],
            "hash": lambda key: [*client.hgetall(key).values()],
            "list": lambda key: client.lrange(key, 0, -1),
            "set": lambda key: [*client.smembers(key)],
            "zset": lambda key: client.zrange(key, 0, -1),
            "stream": lambda key: [str(fields) for _, fields in client.xrange(key)],
        }
        return [readers[client.type(key)](key) for key in client.scan_iter("*")]


def test_a_worker_without_the_key_harms_no_turn(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    system = System(tmp_path / "system", own_valkey.url, encryption_keys=OLD, retry_base=5.0, retry_cap=5.0)
    with System(tmp_path / "keyless", own_valkey.url, retry_base=0.2, recall_attempts=100) as keyless:
        keyless.start_beat()
        keyless.start_worker()
        pending = system.client.reply("ann", "c1", SECRET)
        _seen(pending, "SealError")
        keyless.kill("worker")
        system.start_worker()
        assert SECRET in pending.result().answer
        assert system.calls(pending.turn_id) == 1
        system.close()


def _seen(pending: Any, error: str) -> None:
    wait_for(lambda: (pending.status().error or "").startswith(error), f"{error} to be written down")


def test_a_client_without_the_key_says_so(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    settings = Settings.load(redis_url=own_valkey.url, encryption_keys=OLD)
    with System(tmp_path, own_valkey.url, encryption_keys=OLD) as system:
        system.start_worker()
        MemoryClient(settings).reply("ann", "c1", "hello", idempotency_key="t1").result()
        with pytest.raises(SealError, match="set MEMORY_TASKS_ENCRYPTION_KEYS"):
            MemoryClient(Settings.load(redis_url=own_valkey.url)).pending("ann", "c1", "t1").result()
