"""Working memory on a real server."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from memory_tasks import (
    InvalidInputError,
    NewerFormatError,
    RedisWorkingStore,
    Scope,
    StaleTurnError,
    StoreUnavailableError,
)
from memory_tasks.connection import connect
from memory_tasks.stores.working_redis import Promotion
from tests.conftest import make_turn
from workers.valkey import EmbeddedValkey, free_port

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def ids(working: RedisWorkingStore, scope: Scope, limit: int = 1000) -> list[str]:
    return [turn.turn_id for turn in working.recent(scope, limit)]


def test_turns_come_back_as_they_went_in(working: RedisWorkingStore, scope: Scope) -> None:
    turn = make_turn("t1", "Grüße 🎉", "你好", remember=True, importance=0.5)
    assert working.append(scope, turn)
    assert working.recent(scope, 8) == [turn]


def test_appending_the_same_turn_again_changes_nothing(working: RedisWorkingStore, scope: Scope) -> None:
    assert working.append(scope, make_turn("t1"))
    assert working.append(scope, make_turn("t2"))
    assert not working.append(scope, make_turn("t1", "other words"))
    assert ids(working, scope) == ["t1", "t2"]
    assert working.recent(scope, 8)[0].user_message == "hello"


def test_order_is_append_order_whatever_the_turns_say_about_time(working: RedisWorkingStore, scope: Scope) -> None:
    for n, year in enumerate((2090, 1990, 2024)):
        working.append(scope, make_turn(f"t{n}", created_at=datetime(year, 1, 1, tzinfo=UTC)))
    assert ids(working, scope) == ["t0", "t1", "t2"]
    assert ids(working, scope, 2) == ["t1", "t2"]


def test_equal_turns_are_both_kept(working: RedisWorkingStore, scope: Scope) -> None:
    same = datetime(2024, 1, 1, tzinfo=UTC)
    for id in ("t1", "t2"):
        working.append(scope, make_turn(id, "yes", "yes", created_at=same))
    assert ids(working, scope) == ["t1", "t2"]


def test_a_library_store_is_bounded_and_expires(client: redis.Redis, prefix: str, scope: Scope) -> None:
    working = RedisWorkingStore(client, prefix=prefix, max_turns=3, ttl=timedelta(days=2))
    for n in range(5):
        working.append(scope, make_turn(f"t{n}"))
    assert ids(working, scope) == ["t2", "t3", "t4"]
    assert working.append(scope, make_turn("t0"))
    keys = list(client.scan_iter(f"{prefix}:*"))
    assert len(keys) == 3
    assert all(86_400_000 < client.pttl(key) <= 2 * 86_400_000 for key in keys)


def test_where_somebody_promotes_turns_wait_and_never_expire(client: redis.Redis, prefix: str, scope: Scope) -> None:
    working = RedisWorkingStore(client, prefix=prefix, max_turns=2, promotion=Promotion(overflow=2))
    for n in range(6):
        working.append(scope, make_turn(f"t{n}"))
    assert ids(working, scope) == ["t2", "t3", "t4", "t5"]
    assert {client.pttl(key) for key in client.scan_iter(f"{prefix}:*")} == {-1}


@pytest.mark.parametrize("max_turns", [0, -1, None, 2.5, True, "8"])
def test_a_useless_bound_is_refused(client: redis.Redis, max_turns: Any) -> None:
    with pytest.raises(InvalidInputError, match="max_turns"):
        RedisWorkingStore(client, max_turns=max_turns)


def test_other_useless_arguments_are_refused(client: redis.Redis, working: RedisWorkingStore, scope: Scope) -> None:
    with pytest.raises(InvalidInputError, match="ttl"):
        RedisWorkingStore(client, ttl=timedelta(0))
    for prefix in ("", "a{b"):
        with pytest.raises(InvalidInputError, match="prefix"):
            RedisWorkingStore(client, prefix=prefix)
    with pytest.raises(InvalidInputError, match="limit"):
        working.recent(scope, -1)
    with pytest.raises(InvalidInputError, match="limit"):
        working.older(scope, LATER, 0)


def test_nothing_recent_is_an_empty_list_and_registers_nothing(
    client: redis.Redis, working: RedisWorkingStore, prefix: str, scope: Scope
) -> None:
    assert working.recent(scope, 8) == []
    assert working.older(scope, LATER, 8) == []
    assert working.remove(scope, ["t1"]) == 0
    assert working.count(scope) == 0
    assert list(client.scan_iter(f"{prefix}:*")) == []
    working.append(scope, make_turn("t1"))
    assert working.recent(scope, 0) == []


def test_older_goes_by_the_time_of_appending(working: RedisWorkingStore, scope: Scope) -> None:
    working.append(scope, make_turn("future", created_at=datetime(2200, 1, 1, tzinfo=UTC)))
    assert working.older(scope, datetime.now(UTC) - timedelta(minutes=1), 8) == []
    assert [turn.turn_id for turn in working.older(scope, LATER, 8)] == ["future"]


def test_exactly_the_given_turns_are_removed(working: RedisWorkingStore, scope: Scope) -> None:
    for n in range(100):
        working.append(scope, make_turn(f"t{n}", 'a "turn_id":"t99", in the text'))
    assert working.remove(scope, ["t0", "t70", "missing", "t99", "t0"]) == 3
    assert ids(working, scope) == [f"t{n}" for n in range(100) if n not in (0, 70, 99)]
    assert working.append(scope, make_turn("t99"))


def test_a_store_without_decoding_works_too(valkey: EmbeddedValkey, prefix: str, scope: Scope) -> None:
    with redis.Redis(port=valkey.port, decode_responses=False) as raw:
        working = RedisWorkingStore(raw, prefix=prefix)
        working.append(scope, make_turn("té", "ü"))
        assert working.remove(scope, ["té"]) == 1


def test_an_element_of_a_newer_version_is_an_error_not_an_empty_history(
    client: redis.Redis, working: RedisWorkingStore, prefix: str, scope: Scope
) -> None:
    working.append(scope, make_turn("t1"))
    (key,) = list(client.scan_iter(f"{prefix}:*:turns:*"))
    client.rpush(key, '{"at":1700000000000,"turn_id":"t2","v":2}')
    with pytest.raises(NewerFormatError, match="upgrade memory-tasks"):
        working.recent(scope, 8)


def test_a_turn_the_ledger_does_not_have_is_not_written(working: RedisWorkingStore, scope: Scope) -> None:
    with pytest.raises(StaleTurnError):
        working.append(scope, make_turn("t1"), epoch=1)
    assert working.recent(scope, 8) == []


def test_a_server_that_is_down_is_an_error_without_the_password(scope: Scope) -> None:
    down = connect(f"redis://app:very-secret@127.0.0.1:{free_port()}/3")
    working = RedisWorkingStore(down)
    for call in (
        lambda: working.recent(scope, 8),
        lambda: working.append(scope, make_turn("t1")),
        lambda: working.older(scope, LATER, 1),
        lambda: working.remove(scope, ["t1"]),
        lambda: working.count(scope),
    ):
        with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:\d+/3") as failure:
            call()
        assert "very-secret" not in str(failure.value)


HOSTILE = ["a", "b:c", "a:b", "c", "b%3Ac", "{x}", "*", "a b", "ß", "İ", "user:1", "..", "a/b", "🎉", "x" * 300, "A"]


def test_ids_never_share_a_key(client: redis.Redis, prefix: str) -> None:
    working = RedisWorkingStore(client, prefix=prefix)
    scopes = [Scope(user_id=user, conversation_id=other) for user in HOSTILE for other in HOSTILE]
    for scope in scopes:
        working.append(scope, make_turn("t", f"{scope.user_id}|{scope.conversation_id}"))
    for scope in scopes:
        (turn,) = working.recent(scope, 8)
        assert turn.user_message == f"{scope.user_id}|{scope.conversation_id}"


IDS = st.text(min_size=1, max_size=40).filter(
    lambda id: bool(id.strip()) and "\0" not in id and not any("\ud800" <= c <= "\udfff" for c in id)
)
TEXTS = st.text(st.characters(), min_size=0, max_size=200)


@given(user=IDS, conversation=IDS, turn_id=IDS, said=TEXTS, answer=TEXTS)
@hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_scope_and_text_survives_the_round_trip(
    working: RedisWorkingStore, user: str, conversation: str, turn_id: str, said: str, answer: str
) -> None:
    scope = Scope(user_id=user, conversation_id=conversation)
    turn = make_turn(turn_id, said, answer)
    working.append(scope, turn)
    try:
        assert turn in working.recent(scope, 1000)
        assert turn in working.older(scope, LATER, 1000)
    finally:
        assert working.remove(scope, [turn_id]) == 1
    assert turn_id not in ids(working, scope)
