"""The Celery app of the benchmarks: our tasks, and bare ones that show what Celery alone costs."""

import os
import time
from collections.abc import Sequence

import redis

from memory_tasks import Message, ReplyRequest, Settings
from workers.app import create_app

settings = Settings.load()
app = create_app(settings)
done = redis.Redis.from_url(settings.redis_url, socket_timeout=None)

BARE = {"ignore_result": True, "acks_late": True}


def complete(_: Sequence[Message], request: ReplyRequest) -> str:
    """A model that answers at once, or after as many seconds as the message says."""
    if request.message.startswith("wait "):
        time.sleep(float(request.message.split()[1]))
    return "an answer"


def no_recall(*_: object) -> bool:
    """A recall policy that never searches."""
    return os.environ.get("BENCH_RECALL") == "yes"


@app.task(name="bare.first", queue="reply", **BARE)
def first(seconds: float) -> None:
    """What a completer does, without anything around it."""
    if seconds:
        time.sleep(seconds)


@app.task(name="bare.second", queue="reply", **BARE)
def second() -> None:
    """Nothing."""


@app.task(name="bare.last", queue="persist", **BARE)
def last(key: str) -> None:
    """Tells whoever waits."""
    done.rpush(key, "1")
