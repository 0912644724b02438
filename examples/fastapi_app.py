"""FastAPI: send a message, wait for its answer, or watch it being written.

memory-tasks up                            # in another terminal
export MEMORY_TASKS_REDIS_URL=...          # as it says there
uvicorn examples.fastapi_app:app
curl -H 'X-User: ann' -d '{"text": "hello"}' -H 'Content-Type: application/json' localhost:8000/chat/c1
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from memory_tasks import InvalidInputError, MemoryClient, TurnFailedError, UnknownTurnError


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.memory = MemoryClient.from_settings()
    yield
    await app.state.memory.aclose()


app = FastAPI(lifespan=lifespan)
# Replace with your own authentication: whoever may set the user id may read that user's memory.
User = Annotated[str, Header(alias="X-User")]


class Said(BaseModel):
    text: str
    remember: bool = False


@app.post("/chat/{conversation}")
async def say(
    conversation: str, said: Said, user: User, idempotency_key: Annotated[str | None, Header()] = None
) -> dict[str, str]:
    """Answer a message. Repeated with the same Idempotency-Key header, it is answered and paid for once."""
    memory: MemoryClient = app.state.memory
    try:
        pending = await memory.areply(
            user, conversation, said.text, remember=said.remember, idempotency_key=idempotency_key
        )
        reply = await pending.aresult(timeout=60)
    except InvalidInputError as error:
        raise HTTPException(422, str(error)) from error
    except TurnFailedError as error:
        raise HTTPException(502, f"failed in {error.step}") from error
    return {"turn_id": reply.turn_id, "answer": reply.answer}


@app.post("/chat/{conversation}/send", status_code=202)
async def send(conversation: str, said: Said, user: User) -> dict[str, str]:
    """Accept a message; its answer is written by a worker whether or not anybody waits."""
    memory: MemoryClient = app.state.memory
    pending = await memory.areply(user, conversation, said.text, remember=said.remember)
    return {"turn_id": pending.turn_id}


@app.get("/chat/{conversation}/{turn_id}/events")
async def events(
    conversation: str, turn_id: str, user: User, last_event_id: Annotated[str, Header()] = "0-0"
) -> StreamingResponse:
    """The answer as server-sent events. A browser that reconnects goes on where it was."""
    memory: MemoryClient = app.state.memory
    pending = memory.pending(user, conversation, turn_id)
    try:
        await pending.astatus()
    except UnknownTurnError as error:
        raise HTTPException(404, "no such turn") from error

    async def lines() -> AsyncIterator[str]:
        async for event in pending.aevents(after=last_event_id):
            yield f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")
