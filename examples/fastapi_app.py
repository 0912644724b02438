"""FastAPI: the router with everything it can do, behind your own login.

memory-tasks up                            # in another terminal
export MEMORY_TASKS_REDIS_URL=...          # as it says there
uvicorn examples.fastapi_app:app
curl -H 'X-User: ann' -d '{"text": "hello"}' -H 'Content-Type: application/json' \\
  localhost:8000/memory/conversations/c1/turns
"""

from fastapi import FastAPI, Request

from memory_tasks import MemoryClient
from memory_tasks.web import router


def current_user(request: Request) -> str | None:
    """Replace with your own authentication: whoever may set the user id may read that user's memory."""
    return request.headers.get("X-User")


app = FastAPI()
app.include_router(router(MemoryClient.from_settings(), identify=current_user), prefix="/memory")
