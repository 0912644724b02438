"""What the tasks of one worker process share, made at first use, after a fork."""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import redis
from celery import Celery

from memory_tasks.connection import connect, durability_warnings
from memory_tasks.errors import StoreUnavailableError
from memory_tasks.forgetting import Writers
from memory_tasks.ledger import Ledger
from memory_tasks.promoting import Promoter
from memory_tasks.service import MemoryService
from memory_tasks.settings import Settings
from memory_tasks.tasks.publisher import Publisher

logger = logging.getLogger(__name__)

ServiceFactory = Callable[[Settings], MemoryService]
Checkpoint = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Parts:
    """The open connections of a process."""

    service: MemoryService
    client: redis.Redis
    ledger: Ledger
    publisher: Publisher
    writers: Writers
    promoter: Promoter


class Runtime:
    """Hands out the parts of this process.

    Args:
        app: The Celery app the tasks belong to.
        settings: Of the whole system.
        factory: Makes the service.
        checkpoint: Called with the name of each boundary that a task crosses; failure tests stop the process there.
    """

    def __init__(self, app: Celery, settings: Settings, factory: ServiceFactory, checkpoint: Checkpoint) -> None:
        self.app = app
        self.settings = settings
        self.checkpoint = checkpoint
        self._factory = factory
        self._lock = threading.Lock()
        self._pid = 0
        self._parts: Parts | None = None

    def try_out(self) -> None:
        """Make the parts once, before a worker takes tasks, and drop them again: a fork must not share them.

        Raises:
            SettingsError: A part is unknown or not installed.
            IndexMismatchError: The long-term store was made with another embedder.
        """
        try:
            parts = self.parts
        except StoreUnavailableError as error:
            # A server that is away may come back; each task says so until then.
            logger.warning("%s", error)
            return
        parts.client.close()
        close = getattr(parts.service.long_term, "close", None)
        if close:
            close()
        with self._lock:
            self._parts = None

    @property
    def parts(self) -> Parts:
        """This process's parts."""
        if self._parts is None or self._pid != os.getpid():
            with self._lock:
                if self._parts is None or self._pid != os.getpid():
                    client = connect(self.settings.redis_url)
                    _warn(client)
                    ledger = Ledger(client, self.settings)
                    writers = Writers(client, ledger.keys, self.settings.step_timeout)
                    service = self._factory(self.settings)
                    promoter = Promoter(
                        client, self.settings, service.working, service.long_term, writers, self.checkpoint
                    )
                    self._parts = Parts(service, client, ledger, Publisher(self.app), writers, promoter)
                    self._pid = os.getpid()
        return self._parts


def _warn(client: redis.Redis) -> None:
    try:
        for warning in durability_warnings(client):
            logger.warning(warning)
    except StoreUnavailableError as error:
        # It may come back; each task says so until then.
        logger.warning("%s", error)
