"""The Celery app of the tests: ours, with the faults of `tests.faults`."""

import os
from pathlib import Path

from celery import Celery

from beat_schedule import beat_schedule
from memory_tasks import MemoryService, Settings, register
from memory_tasks.factory import service_from_settings
from memory_tasks.tasks import reply
from memory_tasks.tasks.publisher import configure
from tests.faults import FAULTS, FaultyStore, checkpoint
from workers import logs


def service(settings: Settings) -> MemoryService:
    """The service of the settings, whose long-term store fails when the folder of faults says so."""
    made = service_from_settings(settings)
    folder = os.environ.get(FAULTS)
    if folder:
        made.long_term = FaultyStore(made.long_term, Path(folder))
    return made


if "TEST_SAVE_PATIENCE" in os.environ:
    reply.SAVE_PATIENCE = float(os.environ["TEST_SAVE_PATIENCE"])
settings = Settings.load()
logs.install(settings)
app = configure(Celery("memory_tasks"), settings)
app.conf.beat_schedule = beat_schedule(settings)
register(app, service, settings, checkpoint=checkpoint)
