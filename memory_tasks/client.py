"""What a web app imports: accept a message now, get its answer when it is there."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any, Self
from weakref import WeakKeyDictionary

import redis.asyncio
from celery import Celery

from memory_tasks.connection import connect, connect_async
from memory_tasks.errors import ReplyTimeoutError, TurnFailedError, UnknownTurnError
from memory_tasks.events import BEGINNING, BLOCK_MS, Event, afollow, aread, follow, read
from memory_tasks.keys import Keys
from memory_tasks.ledger import Ledger, TurnStatus
from memory_tasks.models import Reply, ReplyRequest, Scope
from memory_tasks.settings import Settings
from memory_tasks.tasks.publisher import Publisher, configure

ENDED = frozenset({"persisted", "promoted", "failed"})


class PendingReply:
    """A handle on an accepted turn. Any process can make one again with `client.pending(...)`.

    Nothing here depends on a notification that could be lost: each wait reads the turn's event stream from the
    last event it has seen, and the ledger says how things stand whenever the stream is silent.
    """

    def __init__(self, client: "MemoryClient", scope: Scope, turn_id: str) -> None:
        self._client = client
        self.scope = scope
        self.turn_id = turn_id
        self._key = client.keys.turn(scope, turn_id).events

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

    def events(self, after: str = BEGINNING) -> Iterator[Event]:
        """The turn's events after an id, until it is persisted or has failed.

        A reader that comes late, or again with the id of the last event it has seen, misses nothing and gets
        nothing twice. Closing the iterator is all it takes to go away; the turn is stored all the same.

        Raises:
            UnknownTurnError: The turn was forgotten, or finished longer than `result_ttl` ago.
        """
        for batch in follow(self._client.redis, self._key, after):
            yield from batch
            if self._is_over(batch, self.status() if not batch else None):
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

    async def aevents(self, after: str = BEGINNING) -> AsyncIterator[Event]:
        """Like `events`, without blocking the event loop."""
        async for batch in afollow(self._client.aredis(), self._key, after):
            for event in batch:
                yield event
            if self._is_over(batch, await self.astatus() if not batch else None):
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
        events = read(self._client.redis, self._key, after, self._block(deadline))
        while events and not any(event.type in types for event in events):
            after = events[-1].id
            events = read(self._client.redis, self._key, after, self._block(deadline))
        return events[-1].id if events else after

    async def _aawait_event(self, deadline: float, after: str, *types: str) -> str:
        client = self._client.aredis()
        events = await aread(client, self._key, after, self._block(deadline))
        while events and not any(event.type in types for event in events):
            after = events[-1].id
            events = await aread(client, self._key, after, self._block(deadline))
        return events[-1].id if events else after

    def _block(self, deadline: float) -> int:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ReplyTimeoutError(
                f"turn {self.turn_id} has no result yet; it goes on, ask again with the same handle"
            )
        return min(BLOCK_MS, max(1, int(left * 1000)))

    @staticmethod
    def _is_over(batch: list[Event], status: TurnStatus | None) -> bool:
        if status is not None:
            return status.state in ENDED
        return any(event.type in ENDED for event in batch)


class MemoryClient:
    """Enqueues messages and reads their answers. One a process is enough; it may be shared by threads.

    Args:
        settings: The same as the workers'.
        app: Your own Celery app, if you have one; its broker must be the workers'.

    Example:
        >>> client = MemoryClient.from_settings()
        >>> client.reply("ann", "c1", "Which tea do I like?").result(timeout=30).answer
        'Sencha.'
    """

    def __init__(self, settings: Settings, app: Celery | None = None) -> None:
        self.settings = settings
        self.redis = connect(settings.redis_url)
        self.ledger = Ledger(self.redis, settings)
        self.keys: Keys = self.ledger.keys
        self.app = app or configure(Celery("memory_tasks_client", set_as_current=False), settings)
        self._publisher = Publisher(self.app)
        # A client of redis.asyncio belongs to the event loop it was first used on.
        self._async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, redis.asyncio.Redis] = WeakKeyDictionary()

    @classmethod
    def from_settings(cls, app: Celery | None = None, **overrides: Any) -> Self:
        """A client for the settings in the environment; arguments win over it.

        Raises:
            SettingsError: A setting is unknown, wrong, or unsafe together with another one.
        """
        return cls(Settings.load(**overrides), app)

    def reply(
        self,
        user_id: str,
        conversation_id: str,
        text: str,
        *,
        remember: bool = False,
        idempotency_key: str | None = None,
        created_at: datetime | None = None,
    ) -> PendingReply:
        """Accept a message. It is saved when this returns, whether or not a worker runs.

        Args:
            user_id: 1 to 512 characters.
            conversation_id: 1 to 512 characters.
            text: The user's words, not the history: memory brings that. Up to 1 MiB as UTF-8.
            remember: Put the exchange into long-term memory at once.
            idempotency_key: Becomes the turn's id. The same key again within `result_ttl` gives the same turn and
                never a second model call.
            created_at: When it was said, with a time zone; now when not given.

        Raises:
            InvalidInputError: An argument is wrong. Nothing was accepted.
            StoreUnavailableError: Redis can't be reached. Nothing is known to be accepted: repeat with the same key.
        """
        optional = {"turn_id": idempotency_key, "created_at": created_at}
        request = ReplyRequest.checked(
            scope=Scope.checked(user_id=user_id, conversation_id=conversation_id),
            message=text,
            remember=remember,
            **{name: value for name, value in optional.items() if value is not None},
        )
        ref, publish = self.ledger.accept(request)
        if publish:
            self._publisher.try_publish(ref)
        return PendingReply(self, request.scope, request.turn_id)

    async def areply(
        self,
        user_id: str,
        conversation_id: str,
        text: str,
        *,
        remember: bool = False,
        idempotency_key: str | None = None,
        created_at: datetime | None = None,
    ) -> PendingReply:
        """Like `reply`, without blocking the event loop."""
        return await asyncio.to_thread(
            self.reply,
            user_id,
            conversation_id,
            text,
            remember=remember,
            idempotency_key=idempotency_key,
            created_at=created_at,
        )

    def pending(self, user_id: str, conversation_id: str, turn_id: str) -> PendingReply:
        """The handle on a turn that was accepted before, by any process."""
        return PendingReply(self, Scope.checked(user_id=user_id, conversation_id=conversation_id), turn_id)

    def failed(self) -> Iterator[TurnStatus]:
        """All dead letters."""
        return self.ledger.dead_letters()

    def retry_failed(self, user_id: str, conversation_id: str, turn_id: str) -> PendingReply:
        """Let a dead letter go on from its saved state. The model is not called again if it has answered.

        Raises:
            UnknownTurnError: There is no such dead letter.
        """
        pending = self.pending(user_id, conversation_id, turn_id)
        ref, state = self.ledger.revive(pending.scope, turn_id)
        self._publisher.try_publish(ref, state)
        return pending

    def drop_failed(self, user_id: str, conversation_id: str, turn_id: str) -> None:
        """Erase a dead letter.

        Raises:
            UnknownTurnError: There is no such dead letter.
        """
        self.ledger.drop(self.pending(user_id, conversation_id, turn_id).scope, turn_id)

    def find(self, turn_id: str) -> TurnStatus:
        """A turn by its id alone. Reads all of the ledger's key names: for people, not for programs.

        Raises:
            UnknownTurnError: There is none, or more than one user has used this id.
        """
        scopes = self.ledger.locate(turn_id)
        if len(scopes) > 1:
            raise UnknownTurnError(f"{len(scopes)} conversations have a turn {turn_id}: name the user and conversation")
        if not scopes:
            raise UnknownTurnError(f"the ledger has no turn {turn_id}; finished turns are kept for result_ttl")
        return self.ledger.status(scopes[0], turn_id)

    def aredis(self) -> "redis.asyncio.Redis":
        """The redis.asyncio client of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            self._async_clients[loop] = connect_async(self.settings.redis_url)
        return self._async_clients[loop]

    async def aclose(self) -> None:
        """Close this client, and what it has opened on the running event loop."""
        if opened := self._async_clients.pop(asyncio.get_running_loop(), None):
            await opened.aclose()
        self.close()

    def close(self) -> None:
        """Close the connections of this client."""
        self.redis.close()
        self.app.close()
