"""Sends the steps of a turn to the workers."""

import logging
import ssl
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from memory_tasks.connection import without_password
from memory_tasks.errors import BrokerUnavailableError
from memory_tasks.models import State
from memory_tasks.settings import Settings
from memory_tasks.turns import TurnRef

logger = logging.getLogger(__name__)

QUEUES = {
    "memory_tasks.recall": "reply",
    "memory_tasks.complete": "reply",
    "memory_tasks.persist": "persist",
    "memory_tasks.sweep": "persist",
    "memory_tasks.enumerate_due": "promote",
    "memory_tasks.promote": "promote",
}
"""The queue of each task."""

CONNECT_SECONDS = 5.0
STEPS = ("memory_tasks.recall", "memory_tasks.complete", "memory_tasks.persist")


def configure(app: Celery, settings: Settings) -> Celery:
    """Settings of an app that is ours alone. A host's own app needs none of them but a fitting visibility timeout."""
    app.conf.update(
        broker_url=settings.broker,
        broker_connection_retry_on_startup=True,
        broker_transport_options=transport_options(settings),
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        # With celery 5.7.0 a pool thread restores the reduced count on the consumer's own connection after RabbitMQ has
        # come back, and now and then the worker hangs on that and consumes nothing any more.
        worker_enable_prefetch_count_reduction=False,
        worker_soft_shutdown_timeout=10.0,
        worker_enable_remote_control=True,
        timezone="UTC",
    )
    if settings.broker.startswith(("redis://", "rediss://")):
        app.conf.broker_transport = "memory_tasks.tasks.transport:Transport"
    if settings.broker.startswith(("amqp://", "amqps://")):
        # Replicated by the majority of a cluster's nodes, and written to disk before a publisher is confirmed.
        app.conf.update(
            task_default_queue="reply",
            task_default_queue_type="quorum",
            task_create_missing_queue_type="quorum",
            broker_native_delayed_delivery_queue_type="quorum",
            # A delay is kept by the broker then, and survives its restart; direct exchanges can't do that.
            task_default_exchange_type="topic",
            task_create_missing_queue_exchange_type="topic",
        )
    if settings.broker.startswith("rediss://"):
        app.conf.broker_use_ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    return app


def transport_options(settings: Settings) -> dict[str, Any]:
    """Options for the broker's transport, by its kind."""
    if settings.broker.startswith(("redis", "valkey", "unix")):
        return {
            "visibility_timeout": settings.visibility_timeout,
            "socket_timeout": 10.0,
            "socket_connect_timeout": 2.0,
            "socket_keepalive": True,
        }
    return {"confirm_publish": True, "max_retries": 3, "interval_start": 0.1, "interval_max": 0.5}


def queue_lengths(app: Celery) -> dict[str, int]:
    """How many messages wait in each of our queues.

    Raises:
        BrokerUnavailableError: The broker can't be reached.
    """
    with app.connection_for_write() as connection:
        try:
            connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
            return {name: _length(connection, name) for name in sorted(set(QUEUES.values()))}
        except (OSError, OperationalError, *connection.connection_errors) as error:
            raise BrokerUnavailableError(
                f"the broker {without_password(app.conf.broker_url)} can't be reached ({type(error).__name__}); "
                "check that it runs and MEMORY_TASKS_BROKER_URL"
            ) from error


def _length(connection: Any, name: str) -> int:
    # A broker closes the channel on which a queue was asked for that it does not have.
    with connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue=name, passive=True).message_count)
        except connection.channel_errors:
            return 0


class Publisher:
    """Sends what is left to do of a turn as one chain.

    Args:
        app: Any Celery app whose broker the workers listen to; our tasks need not be registered with it.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app

    def publish(self, ref: TurnRef, state: State = "accepted") -> None:
        """Send the steps that follow a state: recall | complete | persist, or the rest of it.

        Raises:
            Exception: Whatever the broker's client raises. The turn is in the ledger: the sweep sends it again.
        """
        first, *rest = STEPS[{"accepted": 0, "recalled": 1}.get(state, 2) :]
        reference = ref.model_dump(mode="json")
        self._app.send_task(
            first,
            kwargs={"ref": reference},
            queue=QUEUES[first],
            # The same message that celery.chain would make, in half the time. Celery takes the next step from the end.
            chain=[_signature(name, reference) for name in reversed(rest)],
            ignore_result=True,
            serializer="json",  # whatever the app's default is
            argsrepr="()",
            kwargsrepr=repr({"turn_id": ref.turn_id}),
        )

    def try_publish(self, ref: TurnRef | None, state: State = "accepted") -> None:
        """Like `publish`, for callers that leave a failure to the sweep."""
        if ref is None:
            return
        try:
            self.publish(ref, state)
        except Exception as error:
            logger.warning(
                "turn %s is saved, but the broker can't be reached (%s); the sweep will send it again",
                ref.turn_id,
                type(error).__name__,
            )


def _signature(name: str, reference: dict[str, Any]) -> dict[str, Any]:
    """What `app.signature(...)` is in a message."""
    return {
        "task": name,
        "args": [],
        "kwargs": {"ref": reference},
        "options": {"queue": QUEUES[name], "ignore_result": True, "serializer": "json"},
        "subtask_type": None,
        # The chain hands on what `complete` returns, which is None but for one exception, to `persist` alone.
        "immutable": name != "memory_tasks.persist",
    }
