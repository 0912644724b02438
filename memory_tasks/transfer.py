"""Export and import: one turn a line, as JSON Lines. Also reads what people have elsewhere."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ValidationError

from memory_tasks.errors import InvalidInputError, PartialWriteError, StoreUnavailableError
from memory_tasks.models import Identifier, Memory, Scope, Turn, describe, new_turn_id, now
from memory_tasks.ports import LongTermStore, WorkingStore

PAGE = 256
Tier = Literal["working", "long_term"]


FORMAT = 1


def _readable(version: int) -> int:
    if version > FORMAT:
        raise ValueError(f"the file has format {version}, this version reads {FORMAT}: upgrade memory-tasks")
    return version


class Line(Turn):
    """One turn of a file: the turn, its scope, the tier it was in, and the format of the line."""

    v: Annotated[int, AfterValidator(_readable)] = FORMAT

    user_id: Identifier
    conversation_id: Identifier
    tier: Tier = "long_term"

    @property
    def scope(self) -> Scope:
        """Whose conversation."""
        return Scope(user_id=self.user_id, conversation_id=self.conversation_id)

    @property
    def turn(self) -> Turn:
        """The turn alone."""
        return Turn(**{name: getattr(self, name) for name in Turn.model_fields})


@dataclass
class Imported:
    """What an import did."""

    stored: dict[Tier, int] = field(default_factory=lambda: {"working": 0, "long_term": 0})
    bad: dict[int, str] = field(default_factory=dict)
    """Number of each line that was left out, and why."""


def export_lines(
    working: WorkingStore, long_term: LongTermStore, scopes: Iterable[Scope], user_id: str | None, scope: Scope | None
) -> Iterator[str]:
    """The lines of all memories of the store, of a user or of a scope, and of these scopes' working turns."""
    for memory in long_term.export(user_id, scope):
        yield _line(memory.scope, memory.turn, "long_term")
    for each in scopes:
        # Working memory is bounded; one conversation fits.
        for turn in working.recent(each, 1_000_000):
            yield _line(each, turn, "working")


def _line(scope: Scope, turn: Turn, tier: Tier) -> str:
    return Line(**turn.model_dump(), **scope.model_dump(), tier=tier).model_dump_json()


def import_lines(
    lines: Iterable[tuple[int, Line | str]], working: WorkingStore, long_term: LongTermStore, *, go_on: bool
) -> Imported:
    """Store lines as `read_lines` gives them. Safe to repeat: a turn that is there already is replaced or kept.

    Args:
        lines: Number of each line, and the turn or what is wrong with it.
        working: Gets the lines of tier "working", in their order.
        long_term: Gets the others, a batch at a time.
        go_on: Leave bad lines out and report them, instead of stopping at the first.

    Raises:
        InvalidInputError: A line is bad, and `go_on` is not set. The lines before it are stored.
    """
    done = Imported()
    batch: list[tuple[int, Line]] = []

    def flush() -> None:
        failed: dict[str, str] = {}
        try:
            long_term.upsert([Memory(scope=line.scope, turn=line.turn) for _, line in batch])
        except PartialWriteError as error:
            failed = error.failed
        for number, line in batch:
            if line.turn_id in failed:
                _refuse(done, number, f"could not be embedded ({failed[line.turn_id]})", go_on=go_on)
            else:
                done.stored["long_term"] += 1
        batch.clear()

    for number, line in lines:
        if isinstance(line, str):
            if not go_on:
                flush()
            _refuse(done, number, line, go_on=go_on)
        elif line.tier == "working":
            working.append(line.scope, line.turn)
            done.stored["working"] += 1
        else:
            batch.append((number, line))
            if len(batch) == PAGE:
                flush()
    flush()
    return done


def _refuse(done: Imported, number: int, why: str, *, go_on: bool) -> None:
    if not go_on:
        raise InvalidInputError(f"line {number}: {why}; the lines before it are stored")
    done.bad[number] = why


def migrate(source: LongTermStore, target: LongTermStore) -> Iterator[int]:
    """Copy all memories from one store to another; how many so far, batch by batch. A second time it goes on.

    Raises:
        PartialWriteError: Some could not be embedded; those before them are copied.
        StoreUnavailableError: A conversation has fewer memories in the target than were copied, or a store is down.
    """
    copied = 0
    for scope, memories in groupby(source.export(), key=lambda memory: memory.scope):
        expected = 0
        while batch := list(islice(memories, PAGE)):
            target.upsert(batch)
            expected += len(batch)
            copied += len(batch)
            yield copied
        if (found := target.count(scope)) < expected:
            raise StoreUnavailableError(f"the target has {found} of {expected} memories of a conversation: repeat")


def read_lines(
    path: Path, user_id: str | None = None, conversation_id: str | None = None
) -> Iterator[tuple[int, Line | str]]:
    """The turns of a file: our own lines, LoCoMo's JSON, or chats in the shape of OpenAI's messages.

    Args:
        path: The file. Our lines are read one by one; the other shapes are one JSON value, or one a line.
        user_id: Whose memory a chat becomes; files of other shapes do not say.
        conversation_id: Its conversation; a number is added when the file holds several.

    Raises:
        InvalidInputError: The file can't be read, or a chat's user is not given.
    """
    try:
        whole = _whole(path)
        if whole is not None:
            yield from enumerate(_foreign(whole, user_id, conversation_id or path.stem), 1)
            return
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield from ((number, line) for line in _own_or_chat(text, user_id, conversation_id, path, number))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: can't be read ({type(error).__name__})") from error


def _whole(path: Path) -> Any:
    """The JSON value of a file that is one value, or None for a file of lines, which may be huge."""
    with path.open(encoding="utf-8") as file:
        first, second = _json(file.readline()), file.readline().strip()
    if first is None:
        return _json(path.read_text(encoding="utf-8"))
    is_line = isinstance(first, dict) and "messages" not in first
    return None if is_line or second else first


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _own_or_chat(
    text: str, user_id: str | None, conversation_id: str | None, path: Path, number: int
) -> Iterator[Line | str]:
    value = _json(text)
    if value is None:
        yield "no JSON"
        return
    if isinstance(value, dict) and "messages" in value:
        yield from _chat(value["messages"], user_id, f"{conversation_id or path.stem}-{number}")
        return
    try:
        yield Line.model_validate(value)
    except ValidationError as error:
        yield describe(error)


def _foreign(value: Any, user_id: str | None, conversation_id: str) -> Iterator[Line | str]:
    if isinstance(value, list) and value and isinstance(value[0], dict) and "sample_id" in value[0]:
        for entry in value:
            yield from _locomo(entry)
    elif isinstance(value, dict):
        yield from _chat(value.get("messages"), user_id, conversation_id)
    elif isinstance(value, list) and all(isinstance(item, dict) and "messages" in item for item in value):
        for number, item in enumerate(value, 1):
            yield from _chat(item["messages"], user_id, f"{conversation_id}-{number}")
    else:
        yield from _chat(value, user_id, conversation_id)


def _chat(messages: Any, user_id: str | None, conversation_id: str) -> Iterator[Line | str]:
    """Pairs of a user's message and the assistant's messages after it; other roles say nothing we keep."""
    if user_id is None:
        raise InvalidInputError("a chat does not say whose it is: name the user")
    if not isinstance(messages, list):
        yield "no list of messages"
        return
    pairs: list[tuple[str, list[str]]] = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        content = _content(message.get("content")) if role else ""
        if role == "user" or (role == "assistant" and not pairs):
            pairs.append((content if role == "user" else "", [] if role == "user" else [content]))
        elif role == "assistant" and content:
            pairs[-1][1].append(content)
        elif role is None:
            yield "a message without a role"
    for number, (user, assistant) in enumerate(pairs):
        # The position makes the id, so that a second import changes nothing.
        yield _turn(user_id, conversation_id, f"{conversation_id}-{number}", user, "\n".join(assistant), now())


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def _locomo(entry: dict[str, Any]) -> Iterator[Line | str]:
    """An exchange is two consecutive dialog turns of a session; a last odd one has an empty reply."""
    sessions: dict[str, Sequence[dict[str, str]]] = defaultdict(list)
    talk = entry.get("conversation", {})
    sessions |= {name: value for name, value in talk.items() if isinstance(value, list)}
    number = 0
    for name in sorted(sessions, key=lambda name: int(name.rpartition("_")[2])):
        said_at = datetime.strptime(f"{talk[f'{name}_date_time']} +0000", "%I:%M %p on %d %B, %Y %z")
        turns = [f"{turn['speaker']}: {turn['text']}" for turn in sessions[name]]
        for start in range(0, len(turns), 2):
            user, assistant = [*turns[start : start + 2], ""][:2]
            yield _turn("locomo", entry["sample_id"], f"{entry['sample_id']}-{number}", user, assistant, said_at)
            number += 1


def _turn(user: str, conversation: str, turn_id: str, said: str, answer: str, at: datetime) -> Line | str:
    try:
        return Line(
            user_id=user,
            conversation_id=conversation,
            turn_id=turn_id or new_turn_id(),
            user_message=said,
            assistant_message=answer,
            created_at=at,
        )
    except ValidationError as error:
        return describe(error)
