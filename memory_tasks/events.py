"""The event stream of a turn: chunks of the answer and what became of it, for readers that come and go."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

from memory_tasks.connection import reaching
from memory_tasks.models import Record
from memory_tasks.sealing import Sealer

BLOCK_MS = 1000
"""How long one read waits. A read asks for what comes after an id, so nothing is missed between two of them."""
IDLE_MS = 4000
"""How long a reader that follows the stream waits before it looks whether the turn still exists."""
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


class Events:
    """Reads the stream of a turn, with any client.

    Args:
        key: Of the stream.
        sealer: Opens the chunks.
    """

    def __init__(self, key: str, sealer: Sealer) -> None:
        self._key = key
        self._sealer = sealer

    def read(self, client: Any, after: str, block_ms: int) -> list[Event]:
        """The events after an id; waits for the first one at most `block_ms`, then returns none."""
        with reaching(client):
            return self._parse(client.xread({self._key: after}, block=max(1, block_ms)))

    async def aread(self, client: Any, after: str, block_ms: int) -> list[Event]:
        """Like `read`, with a client of redis.asyncio."""
        with reaching(client):
            return self._parse(await client.xread({self._key: after}, block=max(1, block_ms)))

    def follow(self, client: Any, after: str, *, wait: bool = True) -> Iterator[list[Event]]:
        """Batches of events after an id, for ever; an empty batch every few seconds while there are none."""
        while True:
            events = self.read(client, after, IDLE_MS if wait else 0)
            yield events
            after = events[-1].id if events else after

    async def afollow(self, client: Any, after: str, *, wait: bool = True) -> AsyncIterator[list[Event]]:
        """Like `follow`, with a client of redis.asyncio."""
        while True:
            events = await self.aread(client, after, IDLE_MS if wait else 0)
            yield events
            after = events[-1].id if events else after

    def _parse(self, answer: Any) -> list[Event]:
        events: list[Event] = []
        # RESP2 answers with a list of [stream, entries], RESP3 with a mapping.
        streams = answer.items() if isinstance(answer, dict) else answer or []
        for _, entries in streams:
            flat = entries[0] if entries and isinstance(entries[0], list) else entries
            events += [self._event(id, fields) for id, fields in flat]
        return events

    def _event(self, id: str, fields: dict[str, str]) -> Event:
        if "sealed" in fields:
            fields["text"] = self._sealer.open(fields["sealed"])
        # A newer worker may say more than this version knows of.
        return Event.model_validate({"id": id, **{name: fields[name] for name in Event.model_fields if name in fields}})
