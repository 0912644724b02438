"""What a test does with the containers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from memory_tasks import MemoryClient, MemoryService, Settings
from memory_tasks.factory import service_from_settings
from memory_tasks.pending import PendingReply
from tests import model
from tests.conditions import wait_for
from tests.system import FAST

QUICK = {**FAST, "completion_lease": 4.0}
"""Longer than a busy machine keeps a container from renewing it, so that a call is only made again when it must be."""


class Cluster:
    """Two workers, beat, a broker and the memory's Redis.

    Args:
        request: Of the test, to start the spare worker.
        broker: pytest-celery's.
        backend: The memory's Redis.
        workers: Two.
        shared: The folder that all see.
    """

    def __init__(self, request: pytest.FixtureRequest, broker: Any, backend: Any, workers: Any, shared: Path) -> None:
        self._request = request
        self.broker = broker[0].container
        self._backend = backend
        self.workers = [worker.container for worker in workers]
        self._shared = shared
        self.clients: list[MemoryClient] = []

    def settings(self) -> Settings:
        """As the host reaches the servers. A container that was restarted has another port."""
        self.broker.reload()
        return Settings.load(
            redis_url=self._backend.config()["host_urls"][0],
            broker_url=self.broker.celeryconfig["host_url"],
            long_term_url=f"sqlite:///{self._shared / 'memory.db'}",
            **QUICK,
        )

    def client(self) -> MemoryClient:
        """A new client of the servers as they are now."""
        self.clients.append(MemoryClient(self.settings()))
        return self.clients[-1]

    def start_spare(self) -> None:
        """Start another worker in the place of one that is gone."""
        self.workers.append(self._request.getfixturevalue("spare_container"))

    def calls(self) -> dict[str, list[model.Call]]:
        """All calls of the model, by turn."""
        return model.read_calls(self._shared)

    def open_gate(self, name: str) -> None:
        """Let the model answer the messages that wait at a gate."""
        (self._shared / name).touch()

    def accounted(self, pending: Sequence[PendingReply], again: int = 0) -> None:
        """Each turn stored once and in order, and not more than `again` of them paid for twice."""
        for one in pending:
            one.wait_persisted(120)
        service: MemoryService = service_from_settings(self.settings())
        for scope in {one.scope for one in pending}:
            sent = [one.turn_id for one in pending if one.scope == scope]
            stored = [turn.turn_id for turn in service.working.recent(scope, 1000)]
            assert stored == sent, "lost, doubled or out of order"
        calls = self.calls()
        twice = [one.turn_id for one in pending if len(calls[one.turn_id]) > 1]
        assert len(twice) <= again
        assert all(len(calls[one.turn_id]) <= 2 for one in pending)

    def wait_for_calls(self, count: int) -> None:
        """Until so many turns are being answered or have been."""
        wait_for(lambda: len(self.calls()) >= count, f"{count} calls of the model", 60)
