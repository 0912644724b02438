"""The Celery app of the tests: ours, with a checkpoint that can kill the process at a named boundary.

`TEST_FAULTS` names a folder. A file `kill-NAME` in it kills the first process that crosses the boundary NAME, with
SIGKILL, and is used up by that; a file `pause-NAME` holds whoever is there until it is removed.
"""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

from celery import Celery

from beat_schedule import beat_schedule
from memory_tasks import MemoryService, Settings, register
from memory_tasks.factory import service_from_settings
from memory_tasks.tasks import reply
from memory_tasks.tasks.publisher import configure
from tests.faults import FAULTS, FaultyStore


def checkpoint(name: str) -> None:
    folder = os.environ.get(FAULTS)
    if not folder:
        return
    waiting = threading.Event()
    while (Path(folder) / f"pause-{name}").exists():
        waiting.wait(0.02)
    with suppress(FileNotFoundError):
        (Path(folder) / f"kill-{name}").rename(Path(folder) / f"killed-{name}-{os.getpid()}")
        os.kill(os.getpid(), signal.SIGKILL)


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
app = configure(Celery("memory_tasks"), settings)
app.conf.beat_schedule = beat_schedule(settings)
register(app, service, settings, checkpoint=checkpoint)
