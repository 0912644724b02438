"""Memory over HTTP, as a router for your FastAPI app."""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import chain, islice
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from limits import parse
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from memory_tasks.client import MemoryClient
from memory_tasks.errors import MemoryTasksError
from memory_tasks.events import BEGINNING, Event
from memory_tasks.models import Forgotten, Recall, Scope
from memory_tasks.pending import ENDED
from memory_tasks.web import views
from memory_tasks.web.limiting import Limiter
from memory_tasks.web.problems import ProblemRoute, documented
from memory_tasks.web.views import Conversation, IdempotencyKey, TurnId

logger = logging.getLogger(__name__)
# At level DEBUG it logs every piece of an answer.
logging.getLogger("sse_starlette").setLevel(logging.INFO)

Identify: TypeAlias = Callable[[Request], Awaitable[str | None] | str | None]
HEARTBEAT_SECONDS = 15
STALLED_SECONDS = 30.0
"""A reader that takes nothing for so long is let go; it comes back with the id of the last event it has seen."""
EVENT_ID = r"^[0-9]{1,19}(-[0-9]{1,19})?$"
LINES = "application/x-ndjson"
MAX_TURNS = 1000
Limit = Annotated[int, Query(ge=1, le=MAX_TURNS)]
_EXPORTED: dict[int | str, dict[str, Any]] = {
    200: {"description": "One turn a line.", "content": {LINES: {"schema": {"type": "string"}}}}
}


def router(
    client: MemoryClient, *, identify: Identify, messages: str = "60/minute", requests: str = "1200/minute"
) -> APIRouter:
    """A router to include into your app. Every user sees and erases what is theirs, and nothing else.

    Args:
        client: Of the system; one a process. Close it when your app ends.
        identify: Your authentication: the id of the user who makes the request, or None for nobody (401). It may be
            async. What the user says in a body, path or query is never taken for their id.
        messages: Messages that a user may send, like "60/minute" or "5/second;100/hour".
        requests: Everything else that a user may ask for.

    Raises:
        ValueError: A rate can't be understood.

    Example:
        >>> app = FastAPI()
        >>> app.include_router(router(client, identify=lambda request: request.session.get("user")), prefix="/memory")
    """
    limiter = Limiter(client)
    message_rate, request_rate = parse(messages), parse(requests)

    async def identified(request: Request) -> str:
        if inspect.iscoroutinefunction(identify):
            found = await identify(request)
        else:
            found = await run_in_threadpool(identify, request)
            if inspect.isawaitable(found):
                found = await found
        if not found:
            raise HTTPException(401, "Nobody is logged in.")
        return Scope.checked(user_id=found, conversation_id="-").user_id

    def asking(user: Annotated[str, Depends(identified)]) -> str:
        limiter.check(user, "requests", request_rate)
        return user

    def sending(user: Annotated[str, Depends(identified)]) -> str:
        limiter.check(user, "messages", message_rate)
        return user

    Asking = Annotated[str, Depends(asking)]
    Sending = Annotated[str, Depends(sending)]
    routes = APIRouter(route_class=ProblemRoute, tags=["memory"], responses=documented(401, 404, 422, 429, 503))

    @routes.post("/conversations/{conversation}/turns", status_code=202, responses=documented(400, 413, 415))
    def send(
        conversation: Conversation,
        said: views.Said,
        response: Response,
        user: Sending,
        idempotency_key: IdempotencyKey = None,
    ) -> views.Accepted:
        """Accept a message. It is saved when this answers; a worker replies to it, whether or not anybody waits.

        The same Idempotency-Key again is the same turn, answered and paid for once. With another text it is refused.
        """
        pending = client.reply(user, conversation, said.text, remember=said.remember, idempotency_key=idempotency_key)
        if pending.repeated:
            known = {turn.turn_id: turn.user_message for turn in client.turns(user, conversation, MAX_TURNS)}
            if known.get(pending.turn_id, said.text) != said.text:
                raise HTTPException(422, "This Idempotency-Key was used for another message: nothing was accepted.")
        turn = f"turns/{quote(pending.turn_id, safe='')}"
        response.headers["Location"] = turn
        links = views.Links(turn=turn, events=f"{turn}/events", memories=f"{turn}/memories")
        return views.Accepted(turn_id=pending.turn_id, state=pending.status().state, links=links)

    @routes.get("/conversations/{conversation}/turns")
    def list_turns(conversation: Conversation, user: Asking, limit: Limit = 50) -> views.TurnsView:
        """The latest turns: those in working memory, then those still on their way, with the texts."""
        turns = client.turns(user, conversation, limit)
        # All of a conversation may be in long-term memory by now.
        if not turns and not client.count(user, conversation):
            raise HTTPException(404, "You have no such conversation.")
        return views.TurnsView(turns=turns)

    @routes.get("/conversations/{conversation}/turns/{turn}")
    def get_turn(conversation: Conversation, turn: TurnId, user: Asking) -> views.TurnView:
        """How a turn stands, and its answer as soon as there is one. Finished turns are kept for `result_ttl`."""
        pending = client.pending(user, conversation, turn)
        return views.TurnView.of(pending.status(), client.ledger.reply(pending.scope, turn))

    @routes.get(
        "/conversations/{conversation}/turns/{turn}/events",
        response_class=EventSourceResponse,
        responses={
            200: {
                "description": "Server-sent events.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            204: {"description": "The turn is over, and you have seen all of it."},
        },
    )
    async def watch(
        conversation: Conversation,
        turn: TurnId,
        user: Asking,
        last_event_id: Annotated[str, Header(pattern=EVENT_ID)] = BEGINNING,
        after: Annotated[str, Query(pattern=EVENT_ID, description="Like Last-Event-ID, which wins.")] = BEGINNING,
    ) -> Response:
        """The answer while it is written, and what becomes of the turn, as server-sent events.

        The types are chunk, completed, persisted, promoted and failed. Come back with Last-Event-ID and nothing is
        missing and nothing comes twice. When `call` grows, the model was called again: the pieces before are void.
        """
        pending = client.pending(user, conversation, turn)
        status = await pending.astatus()
        events = pending.aevents(after if last_event_id == BEGINNING else last_event_id)
        if status.state in ENDED:
            first = await anext(events, None)
            if first is None:
                return Response(status_code=204)
            events = _again(first, events)
        return EventSourceResponse(_sent(events), ping=HEARTBEAT_SECONDS, send_timeout=STALLED_SECONDS)

    @routes.get("/conversations/{conversation}/turns/{turn}/memories")
    def get_recalled(conversation: Conversation, turn: TurnId, user: Asking) -> views.RecalledView:
        """What was recalled for a turn, with the evidence for each memory. Empty while recall is not done."""
        return views.RecalledView.of(client.pending(user, conversation, turn).recalled() or Recall())

    @routes.delete("/conversations/{conversation}/turns/{turn}")
    def forget_turn(conversation: Conversation, turn: TurnId, user: Asking) -> Forgotten:
        """Erase a turn in every tier. Whoever works for it writes nothing more."""
        return _any(client.forget_turns(user, conversation, [turn]), "turn")

    @routes.delete("/conversations/{conversation}")
    def forget_conversation(conversation: Conversation, user: Asking) -> Forgotten:
        """Erase a conversation in every tier."""
        return _any(client.forget(user, conversation), "conversation")

    @routes.delete("/user")
    def forget_user(user: Asking) -> Forgotten:
        """Erase all that is known of the user who asks, in every tier."""
        return client.forget_user(user)

    @routes.get("/conversations/{conversation}/memories")
    def list_memories(conversation: Conversation, user: Asking, limit: Limit = 50) -> views.MemoriesView:
        """The newest long-term memories of a conversation, oldest first."""
        memories, total = client.memories(user, conversation, limit)
        return views.MemoriesView(memories=[views.MemoryView.of(memory) for memory in memories], total=total)

    # A POST, because the query is the user's words: servers and proxies log addresses.
    @routes.post("/conversations/{conversation}/memories/search", responses=documented(400, 413, 415))
    def search_memories(conversation: Conversation, query: views.Query, user: Asking) -> views.MemoriesView:
        """Search the long-term memories of a conversation."""
        scope = Scope.checked(user_id=user, conversation_id=conversation)
        hits = client.search(scope, query.query, query.limit, since=query.since, until=query.until)
        return views.MemoriesView(
            memories=[views.MemoryView.found(hit) for hit in hits], total=client.count(user, conversation)
        )

    @routes.get("/export", response_class=StreamingResponse, responses=_EXPORTED)
    def export_user(user: Asking) -> Response:
        """All of the user's turns in every tier as JSON Lines, as `memory-tasks import` takes them."""
        return _download(client.export(user_id=user))

    @routes.get("/conversations/{conversation}/export", response_class=StreamingResponse, responses=_EXPORTED)
    def export_conversation(conversation: Conversation, user: Asking) -> Response:
        """All turns of a conversation, like `/export`."""
        return _download(client.export(scope=Scope.checked(user_id=user, conversation_id=conversation)))

    return routes


def _any(forgotten: Forgotten, what: str) -> Forgotten:
    if forgotten == Forgotten():
        raise HTTPException(404, f"You have no such {what}.")
    return forgotten


async def _again(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    yield first
    async for event in rest:
        yield event


async def _sent(events: AsyncIterator[Event]) -> AsyncIterator[ServerSentEvent]:
    try:
        async for event in events:
            data = event.model_dump_json(exclude={"id", "type"}, exclude_none=True)
            yield ServerSentEvent(data=data, event=event.type, id=event.id)
    except MemoryTasksError as error:
        # The response has begun: all that is left is to end it. The reader comes back and is told.
        logger.warning("an event stream ended early: %s: %s", type(error).__name__, error)


def _download(lines: Iterator[str]) -> Response:
    # The first line is read now, while an error can still be told.
    first = list(islice(lines, 1))
    headers = {"Content-Disposition": 'attachment; filename="memory.jsonl"', "Cache-Control": "no-store"}
    return StreamingResponse((f"{line}\n" for line in chain(first, lines)), headers=headers, media_type=LINES)
