"""The event stream of a turn: chunks of the answer and what became of it, for readers that come and go."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

from memory_tasks.connection import reaching
from memory_tasks.models import Record

BLOCK_MS = 1000
"""How long one read waits. A read asks for what comes after an id, so nothing is missed between two of them."""
BEGINNING = "0-0"


class Event(Record):
    """One event of a turn.

    "chunk" carries a piece of the answer in `text` and the number of the model call in `call`: when a worker died
    and the model was called again, `call` grows and the pieces before it are void. "completed", "persisted",
    "promoted" and "failed" carry none.
    """

    id: str
    """Position in the stream; read on with `after=event.id`."""
    type: Literal["chunk", "completed", "persisted", "promoted", "failed"]
    text: str = ""
    call: int = 0
    step: str | None = None
    """For "failed": the step that failed for good."""
    error: str | None = None
    """For "failed": class name of the error."""


def _parse(answer: Any) -> list[Event]:
    events: list[Event] = []
    # RESP2 answers with a list of [stream, entries], RESP3 with a mapping.
    streams = answer.items() if isinstance(answer, dict) else answer or []
    for _, entries in streams:
        flat = entries[0] if entries and isinstance(entries[0], list) else entries
        events += [Event(id=id, **fields) for id, fields in flat]
    return events


def read(client: Any, key: str, after: str, block_ms: int) -> list[Event]:
    """The events after an id; waits for the first one at most `block_ms`, then returns none."""
    with reaching(client):
        return _parse(client.xread({key: after}, block=max(1, block_ms)))


async def aread(client: Any, key: str, after: str, block_ms: int) -> list[Event]:
    """Like `read`, with a client of redis.asyncio."""
    with reaching(client):
        return _parse(await client.xread({key: after}, block=max(1, block_ms)))


def follow(client: Any, key: str, after: str) -> Iterator[list[Event]]:
    """Batches of events after an id, for ever; an empty batch about once a second while there are none."""
    while True:
        events = read(client, key, after, BLOCK_MS)
        yield events
        after = events[-1].id if events else after


async def afollow(client: Any, key: str, after: str) -> AsyncIterator[list[Event]]:
    """Like `follow`, with a client of redis.asyncio."""
    while True:
        events = await aread(client, key, after, BLOCK_MS)
        yield events
        after = events[-1].id if events else after
