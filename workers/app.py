"""The Celery app for people who have none: `celery -A workers.app worker`, `celery -A workers.app beat`."""

from celery import Celery

from beat_schedule import beat_schedule
from memory_tasks.settings import Settings
from memory_tasks.tasks import register
from memory_tasks.tasks.publisher import configure


def create_app(settings: Settings) -> Celery:
    """A Celery app with our tasks and beat entries, and nothing else."""
    app = configure(Celery("memory_tasks"), settings)
    app.conf.beat_schedule = beat_schedule(settings)
    register(app, settings=settings)
    return app


app = create_app(Settings.load())
