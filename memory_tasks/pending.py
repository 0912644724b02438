"""The handle on an accepted turn: wait for its answer, watch it being written, see how it stands."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from memory_tasks.errors import ReplyTimeoutError, TurnFailedError
from memory_tasks.events import BEGINNING, BLOCK_MS, Event, Events
from memory_tasks.models import Recall, Reply, Scope
from memory_tasks.turns import TurnStatus

if TYPE_CHECKING:
    from memory_tasks.client import MemoryClient

ENDED = frozenset({"persisted", "promoted", "failed"})


class PendingReply:
    """A handle on an accepted turn. Any process can make one again with `client.pending(...)`.

    Nothing here depends on a notification that could be lost: each wait reads the turn's event stream from the
    last event it has seen, and the ledger says how things stand whenever the stream is silent.
    """

    def __init__(self, client: "MemoryClient", scope: Scope, turn_id: str, *, repeated: bool = False) -> None:
        self._client = client
        self.scope = scope
        self.turn_id = turn_id
        self.repeated = repeated
        """Whether `reply()` knew the idempotency key already, and so accepted nothing new."""
        self._events = Events(client.keys.turn(scope, turn_id).events, client.ledger.sealer)

    def __repr__(self) -> str:
        return f"PendingReply({self.turn_id!r})"

    def result(self, timeout: float = 60.0) -> Reply:
        """The reply, as soon as the answer exists; storing goes on behind it.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            ReplyTimeoutError: Not yet. Ask again.
            TurnFailedError: The turn became a dead letter before it had an answer.
            UnknownTurnError: The turn was forgotten, or finished longer than `result_ttl` ago.
        """
        deadline, after = time.monotonic() + timeout, BEGINNING
        while True:
            if (reply := self._outcome()) is not None:
                return reply
            after = self._await_event(deadline, after, "completed", "failed")

    def wait_persisted(self, timeout: float = 60.0) -> TurnStatus:
        """Wait until working memory has the turn.

        Raises:
            ReplyTimeoutError: Not yet. Ask again.
            TurnFailedError: The turn became a dead letter.
            UnknownTurnError: The turn was forgotten.
        """
        deadline, after = time.monotonic() + timeout, BEGINNING
        while True:
            if (status := self._stored(self.status())) is not None:
                return status
            after = self._await_event(deadline, after, "persisted", "failed")

    def status(self) -> TurnStatus:
        """How the turn stands.

        Raises:
            UnknownTurnError: The ledger does not have it (any more).
        """
        return self._client.ledger.status(self.scope, self.turn_id)

    def recalled(self) -> Recall | None:
        """What was recalled for the turn, with the evidence for each memory; None while recall is not done.

        Raises:
            UnknownTurnError: The ledger does not have the turn (any more).
        """
        recall = self._client.ledger.recall(self.scope, self.turn_id)
        if recall is None:
            self.status()
        return recall

    def events(self, after: str = BEGINNING) -> Iterator[Event]:
        """The turn's events after an id, until it is persisted or has failed.

        A reader that comes late, or again with the id of the last event it has seen, misses nothing and gets
        nothing twice. Closing the iterator is all it takes to go away; the turn is stored all the same.

        Raises:
            UnknownTurnError: The turn was forgotten, or finished longer than `result_ttl` ago.
        """
        over = self.status().state in ENDED
        for batch in self._events.follow(self._client.redis, after, wait=not over):
            yield from batch
            if over or self._is_over(batch):
                return

    async def aresult(self, timeout: float = 60.0) -> Reply:
        """Like `result`, without blocking the event loop."""
        deadline, after = time.monotonic() + timeout, BEGINNING
        while True:
            if (reply := await asyncio.to_thread(self._outcome)) is not None:
                return reply
            after = await self._aawait_event(deadline, after, "completed", "failed")

    async def await_persisted(self, timeout: float = 60.0) -> TurnStatus:
        """Like `wait_persisted`, without blocking the event loop."""
        deadline, after = time.monotonic() + timeout, BEGINNING
        while True:
            if (status := self._stored(await self.astatus())) is not None:
                return status
            after = await self._aawait_event(deadline, after, "persisted", "failed")

    async def astatus(self) -> TurnStatus:
        """Like `status`, without blocking the event loop."""
        return await asyncio.to_thread(self.status)

    async def arecalled(self) -> Recall | None:
        """Like `recalled`, without blocking the event loop."""
        return await asyncio.to_thread(self.recalled)

    async def aevents(self, after: str = BEGINNING) -> AsyncIterator[Event]:
        """Like `events`, without blocking the event loop."""
        over = (await self.astatus()).state in ENDED
        async for batch in self._events.afollow(self._client.aredis(), after, wait=not over):
            for event in batch:
                yield event
            if over or await asyncio.to_thread(self._is_over, batch):
                return

    def _outcome(self) -> Reply | None:
        reply = self._client.ledger.reply(self.scope, self.turn_id)
        if reply is None:
            self._stored(self.status())
        return reply

    def _stored(self, status: TurnStatus) -> TurnStatus | None:
        if status.state == "failed":
            raise TurnFailedError(self.turn_id, status.failed_step or "?", status.error or "?")
        return status if status.state in ENDED else None

    def _await_event(self, deadline: float, after: str, *types: str) -> str:
        """Read until an event of one of these types, or for a second; the id to read on from."""
        events = self._events.read(self._client.redis, after, self._block(deadline))
        while events and not any(event.type in types for event in events):
            after = events[-1].id
            events = self._events.read(self._client.redis, after, self._block(deadline))
        return events[-1].id if events else after

    async def _aawait_event(self, deadline: float, after: str, *types: str) -> str:
        client = self._client.aredis()
        events = await self._events.aread(client, after, self._block(deadline))
        while events and not any(event.type in types for event in events):
            after = events[-1].id
            events = await self._events.aread(client, after, self._block(deadline))
        return events[-1].id if events else after

    def _block(self, deadline: float) -> int:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ReplyTimeoutError(
                f"turn {self.turn_id} has no result yet; it goes on, ask again with the same handle"
            )
        return min(BLOCK_MS, max(1, int(left * 1000)))

    def _is_over(self, batch: list[Event]) -> bool:
        """Whether nothing more will come after these events. A dead letter that was revived goes on."""
        if not batch:
            return self.status().state in ENDED
        if not any(event.type in ENDED for event in batch):
            return False
        status = self._client.ledger.find(self.scope, self.turn_id)
        return status is None or status.state in ENDED
