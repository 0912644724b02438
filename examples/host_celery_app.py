"""Memory in a Celery app that you have already: another serializer, another time zone, other tasks, its own beat.

celery -A examples.host_celery_app worker -Q celery,reply,persist,promote -P threads -c 50
celery -A examples.host_celery_app beat
"""

import os

from celery import Celery
from celery.schedules import crontab

from beat_schedule import beat_schedule
from memory_tasks import MemoryClient, Settings, register

app = Celery("shop", broker=os.environ.get("BROKER_URL", "amqp://localhost//"))
app.conf.update(
    task_serializer="yaml",
    accept_content=["json", "yaml"],  # ours are always JSON
    timezone="Europe/Berlin",
    result_backend=os.environ.get("RESULT_BACKEND", "rpc://"),
    beat_schedule={"nightly": {"task": "shop.report", "schedule": crontab(hour=3)}},
)


@app.task(name="shop.report")
def report(items: tuple[str, ...] = ()) -> int:
    """Something of yours."""
    return len(items)


# All that memory needs: tasks named memory_tasks.*, two entries for beat, and, so that a worker survives a restart of
# its broker, two settings (see the README).
settings = Settings.load()
register(app, settings=settings)
app.conf.beat_schedule = {**app.conf.beat_schedule, **beat_schedule(settings)}
app.conf.worker_enable_prefetch_count_reduction = False
if (app.conf.broker_url or "").startswith("redis"):
    app.conf.broker_transport = "memory_tasks.tasks.transport:Transport"


def ask(user_id: str, conversation_id: str, text: str) -> str:
    """What a view of your web app does."""
    return MemoryClient(settings, app).reply(user_id, conversation_id, text).result().answer
