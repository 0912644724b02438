"""The Celery app for people who have none: `celery -A workers.app worker`, `celery -A workers.app beat`."""

import atexit
import os
import shutil
import tempfile

if "MEMORY_TASKS_METRICS_PORT" in os.environ and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
    # The processes of a prefork pool count in files; prometheus_client looks for the folder when it is imported.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(prefix="memory-tasks-metrics-")
    atexit.register(shutil.rmtree, os.environ["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)

from celery import Celery

from beat_schedule import beat_schedule
from memory_tasks.settings import Settings
from memory_tasks.tasks import register
from memory_tasks.tasks.publisher import configure
from workers import logs, tracing


def create_app(settings: Settings) -> Celery:
    """A Celery app with our tasks and beat entries, and nothing else."""
    app = configure(Celery("memory_tasks"), settings)
    app.conf.beat_schedule = beat_schedule(settings)
    register(app, settings=settings)
    return app


settings = Settings.load()
logs.install(settings)
tracing.install()
app = create_app(settings)
