"""What a web app imports: accept a message now, get its answer when it is there."""

import asyncio
import heapq
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Self
from weakref import WeakKeyDictionary

import redis.asyncio
from celery import Celery

from memory_tasks import telemetry
from memory_tasks.connection import connect, connect_async
from memory_tasks.errors import UnknownTurnError
from memory_tasks.forgetting import Forgetting, Writers
from memory_tasks.keys import Keys
from memory_tasks.ledger import Ledger
from memory_tasks.models import Across, Candidate, Forgotten, Hit, Memory, ReplyRequest, Scope
from memory_tasks.pending import PendingReply
from memory_tasks.promoting import Promoted, Promoter
from memory_tasks.recalling import Recaller
from memory_tasks.registry import registered
from memory_tasks.settings import Settings
from memory_tasks.stores.working_redis import RedisWorkingStore
from memory_tasks.tasks.publisher import Publisher, configure
from memory_tasks.transfer import Imported, Line, export_lines, import_lines
from memory_tasks.turns import ListedTurn, TurnStatus


class Stores:
    """What a client needs to move and erase what is remembered: the stores of the workers, opened here."""

    def __init__(self, settings: Settings, client: redis.Redis, ledger: Ledger, working: RedisWorkingStore) -> None:
        # Not at the top: a client that only talks needs none.
        from memory_tasks.stores import load_long_term

        self.working = working
        self.long_term = load_long_term(settings)
        writers = Writers(client, ledger.keys, settings.step_timeout)
        self.forgetting = Forgetting(client, self.working, self.long_term, ledger, writers)
        self.promoter = Promoter(client, settings, self.working, self.long_term, writers)
        self.recaller = partial(Recaller, working=self.working, long_term=self.long_term)


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
        with telemetry.span("accept", turn=request.turn_id, scope=telemetry.scope_hash(request.scope)):
            accepted = self.ledger.accept(request, telemetry.trace_headers())
            if accepted.is_active:
                self._publisher.try_publish(accepted.ref)
        if accepted.is_new:
            telemetry.ACCEPTED.inc()
        return PendingReply(self, request.scope, request.turn_id, repeated=not accepted.is_new)

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

    @cached_property
    def _working(self) -> RedisWorkingStore:
        from memory_tasks.factory import working_from_settings

        return working_from_settings(self.settings, self.redis)

    @cached_property
    def _stores(self) -> Stores:
        # Most clients only talk: the long-term store is opened by the first who needs it.
        return Stores(self.settings, self.redis, self.ledger, self._working)

    def turns(self, user_id: str, conversation_id: str, limit: int = 50) -> list[ListedTurn]:
        """The latest turns of a conversation, oldest first: those in working memory, then those still on their way.

        Args:
            user_id: Whose.
            conversation_id: Which.
            limit: Turns of working memory at most.

        Raises:
            StoreUnavailableError: Redis can't be reached.
        """
        scope = Scope.checked(user_id=user_id, conversation_id=conversation_id)
        # In this order: a turn that is stored meanwhile is found twice, not missed.
        on_their_way = self.ledger.open_turns(scope)
        stored = self._working.recent(scope, limit)
        states = self.ledger.states(scope, [turn.turn_id for turn in stored])
        listed = [
            ListedTurn(**turn.model_dump(), state=state or "persisted")
            for turn, state in zip(stored, states, strict=True)
        ]
        known = {turn.turn_id for turn in stored}
        return listed + [turn for turn in on_their_way if turn.turn_id not in known]

    def memories(self, user_id: str, conversation_id: str, limit: int = 50) -> tuple[list[Memory], int]:
        """The newest long-term memories of a conversation, oldest first, and how many there are in all.

        Reads the whole conversation. Needs access to the long-term store of the workers.
        """
        scope = Scope.checked(user_id=user_id, conversation_id=conversation_id)
        total = 0

        def counted() -> Iterator[Memory]:
            nonlocal total
            for memory in self._stores.long_term.export(None, scope):
                total += 1
                yield memory

        newest = heapq.nlargest(limit, counted(), key=lambda memory: memory.turn.created_at)
        return newest[::-1], total

    def forget(self, user_id: str, conversation_id: str) -> Forgotten:
        """Erase a conversation in every tier, whatever is queued or running for it.

        Needs access to the long-term store of the workers.

        Raises:
            StoreUnavailableError: A tier is down and still holds what it holds: repeat the call.
        """
        return self._stores.forgetting.scope(Scope.checked(user_id=user_id, conversation_id=conversation_id))

    def forget_user(self, user_id: str) -> Forgotten:
        """Erase all conversations of a user in every tier. Like `forget`."""
        return self._stores.forgetting.user(Scope.checked(user_id=user_id, conversation_id="-").user_id)

    def forget_turns(self, user_id: str, conversation_id: str, turn_ids: Sequence[str]) -> Forgotten:
        """Erase single turns in every tier. Like `forget`."""
        scope = Scope.checked(user_id=user_id, conversation_id=conversation_id)
        forgotten, followers = self._stores.forgetting.turns(scope, turn_ids)
        for follower in followers:
            self._publisher.try_publish(follower)
        return forgotten

    def leftovers(self, text: str) -> dict[str, int]:
        """Where a text is still found, by tier: reads everything, for people who want to be sure after a forget."""
        return self._stores.forgetting.leftovers(text)

    def count(self, user_id: str, conversation_id: str) -> int:
        """How many long-term memories a conversation has."""
        return self._stores.long_term.count(Scope.checked(user_id=user_id, conversation_id=conversation_id))

    def search(
        self,
        scope: Scope,
        query: str,
        limit: int,
        *,
        across: Across = "conversation",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Hit]:
        """Search long-term memory: what it finds, whether or not recall would take it.

        Needs access to the long-term store of the workers.

        Args:
            scope: Whose conversation.
            query: What to look for.
            limit: Hits at most.
            across: The conversation, or all of the user's.
            since: Only what was said at this time or later.
            until: Only what was said before this time.
        """
        return self._stores.long_term.search(scope, query, limit, across=across, since=since, until=until)

    def explain(
        self, request: ReplyRequest, *, since: datetime | None = None, until: datetime | None = None, **config: Any
    ) -> Sequence[Candidate]:
        """What recall would take for a message, and what not and why, best first. Nothing is enqueued or stored.

        Args:
            request: The message.
            since: Only what was said at this time or later.
            until: Only what was said before this time.
            **config: Fields of `MemoryConfig` to try, like `recall_top_k=10`.
        """
        settings = self.settings.model_copy(update=config)
        return self._stores.recaller(settings).candidates(request, since, until)

    def export(self, user_id: str | None = None, scope: Scope | None = None) -> Iterator[str]:
        """Everything, a user or one conversation as JSON Lines, one turn a line, without reading it all at once."""
        if scope:
            scopes: Iterable[Scope] = [scope]
        elif user_id is not None:
            scopes = self._stores.working.conversations(user_id)
        else:
            scopes = (found for found, _ in registered(self.redis, self.keys))
        return export_lines(self._stores.working, self._stores.long_term, scopes, None if scope else user_id, scope)

    def import_lines(self, lines: Iterable[tuple[int, Line | str]], *, go_on: bool = False) -> Imported:
        """Store lines of a file as `transfer.read_lines` gives them. A second time changes nothing.

        Raises:
            InvalidInputError: A line is bad, and `go_on` is not set. The lines before it are stored.
        """
        return import_lines(lines, self._stores.working, self._stores.long_term, go_on=go_on)

    def promote(self, scopes: Iterable[Scope], *, whatever_age: bool = False) -> Iterator[Promoted]:
        """Move what is due of these conversations to long-term memory, here; what each batch did."""
        for scope in scopes:
            more = True
            while more:
                done = self._stores.promoter.batch(scope, whatever_age=whatever_age)
                more = done.more
                yield done

    async def aforget(self, user_id: str, conversation_id: str) -> Forgotten:
        """Like `forget`, without blocking the event loop."""
        return await asyncio.to_thread(self.forget, user_id, conversation_id)

    async def aforget_user(self, user_id: str) -> Forgotten:
        """Like `forget_user`, without blocking the event loop."""
        return await asyncio.to_thread(self.forget_user, user_id)

    async def aforget_turns(self, user_id: str, conversation_id: str, turn_ids: Sequence[str]) -> Forgotten:
        """Like `forget_turns`, without blocking the event loop."""
        return await asyncio.to_thread(self.forget_turns, user_id, conversation_id, turn_ids)

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
