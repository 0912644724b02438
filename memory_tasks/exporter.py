"""The Prometheus endpoint of a worker: what its processes have counted, and how the whole system stands."""

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from memory_tasks.connection import reaching
from memory_tasks.errors import BrokerUnavailableError, SettingsError, StoreUnavailableError
from memory_tasks.keys import Keys
from memory_tasks.models import now
from memory_tasks.registry import overview
from memory_tasks.tasks.publisher import queue_lengths

if TYPE_CHECKING:
    import redis
    from celery import Celery

logger = logging.getLogger(__name__)


class SystemCollector:
    """Looks at Redis and at the broker whenever Prometheus asks.

    Args:
        client: Of Redis.
        keys: The names there.
        app: The Celery app.
    """

    def __init__(self, client: "redis.Redis", keys: Keys, app: "Celery") -> None:
        self._client = client
        self._keys = keys
        self._app = app

    def describe(self) -> list[Metric]:
        """Nothing: registering must not ask Redis."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges. What can't be asked is left out, and `memory_tasks_up` says so."""
        up = GaugeMetricFamily("memory_tasks_up", "Whether a server answers.", labels=["server"])
        try:
            yield from self._redis()
            up.add_metric(["redis"], 1)
        except StoreUnavailableError as error:
            logger.warning("%s", error)
            up.add_metric(["redis"], 0)
        try:
            yield self._queues()
            up.add_metric(["broker"], 1)
        except BrokerUnavailableError as error:
            logger.warning("%s", error)
            up.add_metric(["broker"], 0)
        yield up

    def _redis(self) -> list[Metric]:
        found = overview(self._client, self._keys)
        with reaching(self._client), self._client.pipeline(transaction=False) as pipe:
            for shard in self._keys.shards():
                pipe.zcard(shard.dead)
            dead = sum(pipe.execute())
            swept = self._client.exists(self._keys.swept)
        age = (now() - found.oldest).total_seconds() if found.oldest else 0.0
        gauges = (
            ("memory_tasks_dead_letters", "Turns that failed for good and wait for somebody.", dead),
            ("memory_tasks_conversations", "Conversations with turns in working memory.", found.scopes),
            ("memory_tasks_conversations_due", "Those that are due for promotion.", found.due),
            ("memory_tasks_oldest_unpromoted_seconds", "Age of the oldest turn in working memory.", age),
            ("memory_tasks_swept", "Whether the sweep has run lately.", swept),
        )
        dropped = CounterMetricFamily("memory_tasks_overflow_dropped", "Unpromoted turns dropped as too many waited.")
        dropped.add_metric([], found.dropped)
        return [*(GaugeMetricFamily(name, text, value=value) for name, text, value in gauges), dropped]

    def _queues(self) -> Metric:
        family = GaugeMetricFamily("memory_tasks_queue_length", "Messages that wait in the broker.", labels=["queue"])
        for name, length in queue_lengths(self._app).items():
            family.add_metric([name], length)
        return family


def serve_metrics(port: int, address: str, collector: SystemCollector) -> Any:
    """Answer Prometheus in a thread of this process.

    With a pool of processes the environment variable PROMETHEUS_MULTIPROC_DIR must have named an empty folder since
    this process began; `workers.app` sees to that.

    Returns:
        The server, to shut it down.

    Raises:
        SettingsError: The port is taken.
    """
    registry = CollectorRegistry()
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    else:
        registry.register(REGISTRY)
    registry.register(collector)
    try:
        server, _ = start_http_server(port, address, registry)
    except OSError as error:
        raise SettingsError(
            f"MEMORY_TASKS_METRICS_PORT: can't listen on {address}:{port} ({error.strerror}); each worker of a machine "
            "needs a port of its own"
        ) from error
    return server
