from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from memory_tasks import InvalidInputError, ReplyRequest, Scope, Turn
from memory_tasks.models import MAX_TEXT_BYTES, new_turn_id

SCOPE = Scope(user_id="u", conversation_id="c")


@pytest.mark.parametrize("bad", ["", "  ", "\n\t", "x" * 513, "a\0b", "a\ud800b", 7, None, ["a"]])
@pytest.mark.parametrize("field", ["user_id", "conversation_id"])
def test_bad_ids_are_refused_without_showing_them(field: str, bad: object) -> None:
    ids: dict[str, object] = {"user_id": "u", "conversation_id": "c"}
    with pytest.raises(InvalidInputError, match=field):
        Scope.checked(**{**ids, field: bad})


def test_ids_keep_what_makes_them_different() -> None:
    assert Scope.checked(user_id=" a", conversation_id="c") != Scope.checked(user_id="a", conversation_id="c")
    assert len(Scope.checked(user_id="é" * 512, conversation_id="c").user_id) == 512


@pytest.mark.parametrize("bad", ["", " \n ", 5, None, [{"role": "user", "content": "whole history"}]])
def test_bad_messages_are_refused(bad: object) -> None:
    with pytest.raises(InvalidInputError, match="message"):
        ReplyRequest.checked(scope=SCOPE, message=bad)


def test_the_largest_message_works_and_a_larger_one_names_the_limit() -> None:
    assert len(ReplyRequest.checked(scope=SCOPE, message="x" * MAX_TEXT_BYTES).message) == MAX_TEXT_BYTES
    with pytest.raises(InvalidInputError, match=str(MAX_TEXT_BYTES)):
        ReplyRequest.checked(scope=SCOPE, message="é" * (MAX_TEXT_BYTES // 2 + 1))


@pytest.mark.parametrize(
    ("given", "stored"),
    [("a\0b", "a\ufffdb"), ("a\ud800b", "a\ufffdb"), ("\ud83c\udf75", "🍵"), ("plain é 🍵", "plain é 🍵")],
)
def test_texts_are_made_storable_once(given: str, stored: str) -> None:
    assert ReplyRequest.checked(scope=SCOPE, message=given).message == stored


def test_the_history_is_refused_as_input() -> None:
    with pytest.raises(InvalidInputError, match="history"):
        ReplyRequest.checked(scope=SCOPE, message="hi", history=["..."])


def test_an_error_never_shows_the_text() -> None:
    with pytest.raises(ValidationError) as error:
        ReplyRequest(scope=SCOPE, message="secret" * MAX_TEXT_BYTES)
    assert "secret" not in str(error.value)


def test_times_need_a_zone_and_become_utc() -> None:
    with pytest.raises(InvalidInputError, match="created_at"):
        ReplyRequest.checked(scope=SCOPE, message="hi", created_at=datetime(2024, 1, 1))
    told = datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    turn = Turn(turn_id="t", user_message="u", assistant_message="", created_at=told)
    assert turn.created_at == datetime(2024, 1, 1, tzinfo=UTC)
    assert turn.created_at.tzinfo is UTC


def test_turn_ids_sort_by_time() -> None:
    ids = [new_turn_id() for _ in range(100)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 100
