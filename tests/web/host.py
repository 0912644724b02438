"""A host's FastAPI app with our routers in it."""

import logging

from fastapi import FastAPI, Request
from pydantic import SecretStr

from memory_tasks import MemoryClient
from memory_tasks.web import router
from memory_tasks.web.operations import operations

TOKEN = "operations-token-of-the-tests"


async def identify(request: Request) -> str | None:
    """For the tests only: whoever may set the header may be anybody."""
    return request.headers.get("x-user")


def create_app() -> FastAPI:
    """The app, with logging as talkative as a host may have it."""
    logging.basicConfig(level=logging.DEBUG)
    client = MemoryClient.from_settings()
    app = FastAPI()
    patient = router(client, identify=identify, messages="5000/minute", requests="50000/minute")
    app.include_router(patient, prefix="/memory")
    app.include_router(operations(client, SecretStr(TOKEN), client.settings.metrics_urls), prefix="/operations")
    strict = router(client, identify=identify, messages="2/minute", requests="3/minute")
    app.include_router(strict, prefix="/strict", include_in_schema=False)
    return app
