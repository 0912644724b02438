"""The page of `memory-tasks up --web` with its API: `uvicorn --factory workers.web:create_app`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import memory_tasks.web
from memory_tasks import MemoryClient, Settings
from memory_tasks.web import router
from memory_tasks.web.operations import operations
from memory_tasks.web.problems import problem

PAGE = Path(memory_tasks.web.__file__).with_name("page")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class SecurityHeaders:
    """Adds `HEADERS` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in HEADERS.items()),
                    (b"cache-control", b"no-store"),
                ]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The page at /, its API under /api, and under /operations what operators see, where a token is set.

    Whoever reaches it is `web_user`: it is for one person on their own machine.

    Args:
        settings: Read from the environment when not given.
    """
    settings = settings or Settings.load()
    client = MemoryClient(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    # The documentation pages of FastAPI load their scripts from elsewhere.
    app = FastAPI(title="memory-tasks", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.include_router(router(client, identify=lambda _: settings.web_user), prefix="/api")
    if settings.operations_token is not None:
        app.include_router(operations(client, settings.operations_token, settings.metrics_urls), prefix="/operations")
    app.mount("/", StaticFiles(directory=PAGE, html=True), "page")
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(settings.web_hosts))
    app.add_middleware(SecurityHeaders)

    @app.exception_handler(HTTPException)
    def explain(_: Request, error: Exception) -> Response:
        return problem(error)

    return app
