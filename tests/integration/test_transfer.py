"""Export and import, and the other commands that move what is remembered."""

import json
from pathlib import Path
from typing import Any

import pytest

from memory_tasks import InvalidInputError, Memory, Scope
from memory_tasks.registry import overview, registered
from memory_tasks.stores import load_long_term
from memory_tasks.transfer import Line, read_lines
from tests.conftest import make_turn
from tests.integration.test_cli import run
from tests.system import System

ANN = Scope(user_id="ann", conversation_id="c1")
BOB = Scope(user_id="bob", conversation_id="c1")


@pytest.fixture
def filled(own_system: System) -> System:
    """Memories and working turns of two users."""
    service = own_system.service
    for scope in (ANN, BOB):
        service.long_term.upsert([Memory(scope=scope, turn=make_turn(f"old{n}", f"tea number {n}")) for n in range(5)])
        for n in range(3):
            service.working.append(scope, make_turn(f"new{n}", "ümlaut\n🎉", remember=n == 1, importance=0.25))
    return own_system


def everything(system: System) -> tuple[list[Any], list[Any], list[str]]:
    service = system.service
    return (
        list(service.long_term.export()),
        [service.working.recent(scope, 100) for scope in (ANN, BOB)],
        [hit.memory.turn.turn_id for hit in service.long_term.search(ANN, "tea number 3", 5)],
    )


def test_export_wipe_import_gives_the_same_answers(filled: System, tmp_path: Path) -> None:
    before = everything(filled)
    code, output = run(filled, "export", str(tmp_path / "all.jsonl"))
    assert (code, "16 turns" in output) == (0, True)
    for user in ("ann", "bob"):
        assert run(filled, "forget", "--user", user)[0] == 0
    assert everything(filled)[0] == []
    for _ in range(2):
        code, output = run(filled, "import", str(tmp_path / "all.jsonl"))
        assert (code, "6 turns into working memory, 10 into long-term" in output) == (0, True)
        assert everything(filled) == before


def test_export_of_a_user_or_a_conversation(filled: System, tmp_path: Path) -> None:
    for options, users in ((("--user", "ann"), {"ann"}), (("--user", "bob", "--conversation", "c1"), {"bob"})):
        assert run(filled, "export", str(tmp_path / "part.jsonl"), *options)[0] == 0
        lines = [json.loads(line) for line in (tmp_path / "part.jsonl").read_text().splitlines()]
        assert {line["user_id"] for line in lines} == users
        assert [line["tier"] for line in lines] == ["long_term"] * 5 + ["working"] * 3
    assert run(filled, "export", str(tmp_path / "x"), "--conversation", "c1")[0] == 2


def line(**fields: Any) -> str:
    turn = {"turn_id": "t1", "user_message": "u", "assistant_message": "a", "created_at": "2024-01-01T00:00:00Z"}
    return json.dumps({"user_id": "ann", "conversation_id": "c1", **turn, **fields})


def test_bad_lines_are_reported_by_number(own_system: System, tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(
        "\n".join(
            [line(), "", "{broken", line(turn_id="t2", extra=1), line(turn_id="t3", user_id=" "), line(turn_id="t4")]
        )
    )
    code, output = run(own_system, "import", str(file))
    assert (code, "line 3" in output) == (1, True)
    assert own_system.service.long_term.count(ANN) == 1
    code, output = run(own_system, "import", str(file), "--go-on")
    assert code == 1
    for expected in ("line 3: no JSON", "line 4: extra", "line 5: user_id"):
        assert expected in output
    assert own_system.service.long_term.count(ANN) == 2


def test_a_file_that_cannot_be_read_is_a_clear_error(own_system: System, tmp_path: Path) -> None:
    code, output = run(own_system, "import", str(tmp_path / "missing"))
    assert (code, "can't be read" in output) == (1, True)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="can't be read"):
        list(read_lines(tmp_path / "binary"))


CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "assistant", "content": "Welcome!"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {}}]},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "a picture"},
    {"role": "user", "content": "thanks"},
]
PAIRS = [("", "Welcome!"), ("hi", "hello"), ("what is this?", "a picture"), ("thanks", "")]


@pytest.mark.parametrize(
    ("value", "conversations"),
    [
        (CHAT, ["talk"]),
        ({"messages": CHAT}, ["talk"]),
        ([{"messages": CHAT}, {"messages": CHAT}], ["talk-1", "talk-2"]),
    ],
)
def test_chats_in_the_shape_of_openai_messages(
    own_system: System, tmp_path: Path, value: Any, conversations: list[str]
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(value))
    for _ in range(2):
        assert run(own_system, "import", str(file), "--user", "ann")[0] == 0
    for conversation in conversations:
        stored = own_system.service.long_term.export(None, Scope(user_id="ann", conversation_id=conversation))
        assert [(m.turn.user_message, m.turn.assistant_message) for m in stored] == PAIRS
    code, output = run(own_system, "import", str(file))
    assert (code, "name the user" in output) == (1, True)


def test_chats_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text("\n".join(json.dumps({"messages": CHAT}) for _ in range(2)))
    lines = [found for _, found in read_lines(file, "ann") if isinstance(found, Line)]
    assert {found.conversation_id for found in lines} == {"talks-1", "talks-2"}
    assert len(lines) == 8


@pytest.mark.parametrize("value", [{"messages": "no list"}, [{"no": "role"}], ["text"]])
def test_a_chat_of_another_shape_is_reported(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(value, indent=1))
    assert any(isinstance(found, str) for _, found in read_lines(file, "ann"))


def test_locomo_becomes_exchanges(tmp_path: Path) -> None:
    turns = [{"speaker": "A", "dia_id": f"D1:{n}", "text": f"words {n}"} for n in range(3)]
    talk = {
        "session_1": turns, "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_10": turns[:1], "session_10_date_time": "9:00 am on 9 June, 2023",
        "session_2": turns[:1], "session_2_date_time": "9:00 am on 9 May, 2023",
    }  # fmt: skip
    file = tmp_path / "locomo.json"
    file.write_text(json.dumps([{"sample_id": "conv-1", "conversation": talk, "qa": []}]))
    lines = [found for _, found in read_lines(file) if isinstance(found, Line)]
    assert [(found.turn_id, found.user_message, found.assistant_message) for found in lines[:2]] == [
        ("conv-1-0", "A: words 0", "A: words 1"), ("conv-1-1", "A: words 2", ""),
    ]  # fmt: skip
    assert [f"{found.created_at:%d %B}" for found in lines] == ["08 May", "08 May", "09 May", "09 June"]


def test_scopes_and_promote_now(filled: System) -> None:
    client = filled.client
    found = overview(client.redis, client.keys)
    assert (found.scopes, found.due, found.dropped) == (2, 0, 0)
    assert found.oldest is not None
    assert {scope for scope, _ in registered(client.redis, client.keys)} == {ANN, BOB}
    output = run(filled, "scopes", "--each")[1]
    assert "2 conversations" in output
    assert "bob" in output
    assert "0 turns moved" in run(filled, "promote")[1]
    assert "3 turns moved" in run(filled, "promote", "--now", "--user", "ann")[1]
    assert "3 turns moved" in run(filled, "promote", "--now")[1]
    assert overview(client.redis, client.keys).scopes == 0
    assert filled.service.long_term.count(ANN) == 8


def test_verify_finds_what_is_left(filled: System) -> None:
    code, output = run(filled, "forget", "--user", "ann", "--verify", "tea number 3")
    assert (code, "still in" in output) == (1, True)
    code, output = run(filled, "forget", "--user", "bob", "--conversation", "c1", "--verify", "tea number 3")
    assert (code, "nowhere" in output) == (0, True)
    assert run(filled, "forget", "--user", "ann", "--turn", "t1")[0] == 2
    filled.service.working.append(ANN, make_turn("t1"))
    assert (
        "1 turns of working memory" in run(filled, "forget", "--user", "ann", "--conversation", "c1", "--turn", "t1")[1]
    )


def test_migrate_copies_everything_and_may_be_repeated(filled: System, tmp_path: Path) -> None:
    source = filled.settings.long_term_url
    for _ in range(2):
        code, output = run(filled, "migrate", "--from", source, "--to", f"leann:///{tmp_path / 'leann'}")
        assert (code, "10 memories copied" in output) == (0, True)
    copied = load_long_term(filled.settings.model_copy(update={"long_term_url": f"leann:///{tmp_path / 'leann'}"}))
    assert list(copied.export()) == list(filled.service.long_term.export())
    code, output = run(filled, "migrate", "--from", source, "--to", "mysql:///x")
    assert (code, "leann:///path" in output) == (1, True)


def test_recall_shows_what_was_found_and_why(filled: System) -> None:
    scope = ("--user", "ann", "--conversation")
    code, output = run(filled, "recall", "tea number 3", *scope, "c1", "--top", "1")
    assert (code, "tea number 3" in output, "meaning" in output) == (0, True, True)
    assert "Nothing is in long-term memory" in run(filled, "recall", "tea", *scope, "c9")[1]
    assert "tea number" in run(filled, "recall", "tea", *scope, "c9", "--across")[1]
