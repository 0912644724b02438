"""Errors of the router as RFC 9457 problem details, whatever the host's app does with its own."""

import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Message, Receive

from memory_tasks.errors import InvalidInputError, MemoryTasksError, UnknownTurnError
from memory_tasks.models import MAX_TEXT_BYTES

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
MAX_BODY_BYTES = 3 * MAX_TEXT_BYTES + 65_536
"""The longest text a message may have, with every character of it escaped, and something beside it."""
RETRY_AFTER_SECONDS = 5


class WrongField(BaseModel):
    """One field of a request, and what is wrong with it. Never its value."""

    field: str
    message: str


class Problem(BaseModel):
    """Why a request was refused (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[WrongField] | None = None


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of these statuses."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema(ref_template="#/components/schemas/{model}")}},
        }
        for status in statuses
    }


def problem(error: Exception) -> Response:
    """The response to an error.

    Args:
        error: One of FastAPI's or ours; anything else is raised again.
    """
    headers: dict[str, str] = {}
    fields: list[WrongField] | None = None
    match error:
        case RequestValidationError():
            # Neither the value nor pydantic's context of it: both quote the user.
            fields = [
                WrongField(field=".".join(map(str, wrong["loc"])), message=wrong["msg"].removeprefix("Value error, "))
                for wrong in error.errors()
            ]
            broken = any(wrong["type"] == "json_invalid" for wrong in error.errors())
            status, detail = (400, "The body is not JSON.") if broken else (422, "The request has wrong fields.")
        case StarletteHTTPException():
            status, detail = error.status_code, error.detail
            headers.update(error.headers or {})
        case InvalidInputError():
            status, detail = 422, str(error)
        case UnknownTurnError():
            status, detail = 404, "There is no such turn: it never existed, was forgotten, or finished long ago."
        case MemoryTasksError():
            # Our messages name servers and settings: for operators, not for users.
            logger.error("%s: %s", type(error).__name__, error)
            status, detail = (
                503,
                "Memory is not available. Repeat the request, a message with the same Idempotency-Key.",
            )
            headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        case _:
            raise error
    said = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=fields)
    return Response(said.model_dump_json(exclude_none=True), status, headers, MEDIA_TYPE)


class ProblemRoute(APIRoute):
    """A route whose errors are problem details, and which reads no more of a body than a message can need."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_or_explain(request: Request) -> Response:
            try:
                if self.body_field is not None:
                    _check_json(request)
                return await handle(Request(request.scope, _limited(request)))
            except (RequestValidationError, StarletteHTTPException, MemoryTasksError) as error:
                return problem(error)

        return handle_or_explain


def _check_json(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "The body must be application/json.")


def _limited(request: Request) -> Receive:
    receive, received = request.receive, 0
    too_large = HTTPException(413, f"A request may have at most {MAX_BODY_BYTES} bytes.")

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise too_large
        return message

    return receive_limited
