"""Django in one file: send a message, wait for its answer, or watch it being written.

memory-tasks up                            # in another terminal
export MEMORY_TASKS_REDIS_URL=...          # as it says there
python -m examples.django_app runserver --noreload
curl -H 'X-User: ann' -d '{"text": "hello"}' localhost:8000/chat/c1
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import cache

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from memory_tasks import InvalidInputError, MemoryClient, TurnFailedError, UnknownTurnError

settings.configure(
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("DJANGO_SECRET_KEY", "only-for-this-example"),
)


@cache
def memory() -> MemoryClient:
    """One client a process, made at the first request: after a server has forked."""
    return MemoryClient.from_settings()


def current_user(request: HttpRequest) -> str:
    """Replace with `request.user`: whoever may set the user id may read that user's memory."""
    return str(request.headers.get("X-User", ""))


@csrf_exempt
@require_POST
def say(request: HttpRequest, conversation: str) -> JsonResponse:
    """Answer a message. Repeated with the same Idempotency-Key header, it is answered and paid for once."""
    key = request.headers.get("Idempotency-Key")
    try:
        text = json.loads(request.body)["text"]
        pending = memory().reply(current_user(request), conversation, text, idempotency_key=key)
        reply = pending.result(timeout=60)
    except (InvalidInputError, ValueError, KeyError) as error:
        return JsonResponse({"error": str(error)}, status=422)
    except TurnFailedError as error:
        return JsonResponse({"error": f"failed in {error.step}"}, status=502)
    return JsonResponse({"turn_id": reply.turn_id, "answer": reply.answer})


@require_GET
def events(request: HttpRequest, conversation: str, turn_id: str) -> JsonResponse | StreamingHttpResponse:
    """The answer as server-sent events, from where the browser was."""
    pending = memory().pending(current_user(request), conversation, turn_id)
    try:
        pending.status()
    except UnknownTurnError:
        return JsonResponse({"error": "no such turn"}, status=404)
    after = request.headers.get("Last-Event-ID", "0-0")

    def lines() -> Iterator[str]:
        for event in pending.events(after=after):
            yield f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"

    return StreamingHttpResponse(lines(), content_type="text/event-stream")


urlpatterns = [
    path("chat/<str:conversation>", say),
    path("chat/<str:conversation>/<str:turn_id>/events", events),
]
application = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
