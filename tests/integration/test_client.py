"""The client without any worker: what it accepts, what it refuses, what it says."""

import asyncio
import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from celery import Celery

from memory_tasks import (
    InvalidInputError,
    MemoryClient,
    PendingReply,
    ReplyTimeoutError,
    Settings,
    SettingsError,
    StoreUnavailableError,
    UnknownTurnError,
)
from workers.valkey import EmbeddedValkey, free_port


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A server without any worker: queues have the same names whatever the prefix."""
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def memory(settings: Settings) -> Any:
    client = MemoryClient(settings)
    yield client
    client.close()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("", "c", "hi"), "user_id"),
        (("  ", "c", "hi"), "user_id"),
        (("u", "c" * 513, "hi"), "512"),
        (("u\0", "c", "hi"), "NUL"),
        (("u", "\ud800", "hi"), "surrogate"),
        (("u", "c", ""), "message"),
        (("u", "c", "\n \t"), "message"),
        (("u", "c", "é" * 524_289), "1048576"),
        (("u", "c", ["history", "is not input"]), "message"),
        ((7, "c", "hi"), "user_id"),
    ],
)
def test_bad_input_is_named_and_nothing_is_accepted(
    memory: MemoryClient, arguments: tuple[Any, Any, Any], named: str
) -> None:
    with pytest.raises(InvalidInputError, match=named) as failure:
        memory.reply(*arguments)
    assert "is not input" not in str(failure.value)
    assert list(memory.redis.scan_iter(f"{memory.settings.prefix}:*")) == []


def test_a_key_that_is_no_id_and_a_time_without_zone_are_refused(memory: MemoryClient) -> None:
    with pytest.raises(InvalidInputError, match="turn_id"):
        memory.reply("u", "c", "hi", idempotency_key=" ")
    with pytest.raises(InvalidInputError, match="created_at"):
        memory.reply("u", "c", "hi", created_at=datetime(2024, 1, 1))


def test_text_that_cannot_be_stored_is_mended_once(memory: MemoryClient) -> None:
    pending = memory.reply("u", "c", "a\ud83d\ude00b\ud800c\0d")
    begun = memory.ledger.begin(_ref(memory, pending), "recall")
    assert begun.request is not None
    assert begun.request.message == "a😀b�c�d"


def _ref(memory: MemoryClient, pending: Any) -> Any:
    return memory.ledger.republish(memory.keys.turn(pending.scope, pending.turn_id).tag)[0]


def test_without_a_worker_a_turn_stays_accepted_and_waiting_ends(memory: MemoryClient) -> None:
    pending = memory.reply("u", "c", "hi")
    status = pending.status()
    assert (status.state, status.calls) == ("accepted", 0)
    assert pending.turn_id in repr(pending)
    with pytest.raises(ReplyTimeoutError, match="goes on"):
        pending.result(0.05)
    with pytest.raises(ReplyTimeoutError):
        pending.wait_persisted(0.05)
    with pytest.raises(ReplyTimeoutError):
        asyncio.run(_wait(memory, pending))


async def _wait(memory: MemoryClient, pending: Any) -> None:
    try:
        await pending.aresult(0.05)
    finally:
        await memory.aclose()


def test_waiting_for_a_turn_that_never_was_fails_at_once(memory: MemoryClient) -> None:
    for wait in (
        memory.pending("u", "c", "t").result,
        memory.pending("u", "c", "t").status,
        memory.pending("u", "c", "t").wait_persisted,
        lambda: list(memory.pending("u", "c", "t").events()),
    ):
        with pytest.raises(UnknownTurnError):
            wait()


def test_one_message_waits_behind_another_in_the_mailbox(memory: MemoryClient) -> None:
    memory.redis.delete("reply")
    for n in range(3):
        memory.reply("u", "c", f"m{n}")
    assert memory.redis.llen("reply") == 1
    assert memory.redis.llen(memory.keys.scope(memory.pending("u", "c", "t").scope).mailbox) == 2


def test_a_broker_message_holds_no_text(memory: MemoryClient) -> None:
    memory.redis.delete("reply")
    memory.reply("u", "c", "marked-secret-text")
    (message,) = memory.redis.lrange("reply", 0, -1)
    assert "marked-secret-text" not in message
    assert "marked-secret-text" not in base64.b64decode(json.loads(message)["body"]).decode()


def test_redis_that_is_down_is_named_without_its_password() -> None:
    memory = MemoryClient.from_settings(redis_url=f"redis://app:very-secret@127.0.0.1:{free_port()}/0")
    with pytest.raises(StoreUnavailableError, match="127") as failure:
        memory.reply("u", "c", "hi")
    assert "very-secret" not in str(failure.value)
    memory.close()


def test_a_broker_that_is_down_does_not_lose_what_is_accepted(
    valkey: EmbeddedValkey, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = MemoryClient.from_settings(
        redis_url=valkey.url, prefix=prefix, broker_url=f"redis://:very-secret@127.0.0.1:{free_port()}/0"
    )
    pending = memory.reply("u", "c", "hi")
    assert pending.status().state == "accepted"
    assert "the sweep will send it again" in caplog.text
    assert "very-secret" not in caplog.text
    memory.close()


def test_a_reader_waits_for_each_of_150_turns_at_once(memory: MemoryClient) -> None:
    """redis-py has no more than 100 connections for a client unless it is told so."""
    pending = [memory.reply("ann", f"many{n}", "hello") for n in range(150)]

    async def read_all() -> list[object]:
        found = await asyncio.gather(*(one.aresult(0.5) for one in pending), return_exceptions=True)
        return list(found)

    assert {type(found) for found in asyncio.run(read_all())} == {ReplyTimeoutError}
    with ThreadPoolExecutor(150) as readers:
        assert set(readers.map(_outcome, pending)) == {"ReplyTimeoutError"}


def _outcome(pending: PendingReply) -> str:
    try:
        return pending.result(0.5).answer
    except Exception as error:
        return type(error).__name__


def test_an_app_of_the_host_is_used_as_it_is(settings: Settings) -> None:
    app = Celery("host", broker=settings.redis_url)
    app.conf.task_serializer = "pickle"
    before = dict(app.conf)
    memory = MemoryClient(settings, app)
    memory.reply("u", "c", "hi")
    assert dict(app.conf) == before
    memory.redis.delete("reply")


def test_wrong_settings_are_refused_at_the_start() -> None:
    with pytest.raises(SettingsError):
        MemoryClient.from_settings(redis_url="http://x")
    with pytest.raises(SettingsError):
        MemoryClient.from_settings(nonsense=1)
