"""Celery's Redis transport, so that a worker survives a broker that goes away, and messages that are none.

With kombu 5.7.0 a worker whose Redis restarts ends with an AttributeError, in the middle of its model calls: once
when it puts unacknowledged messages back through the connection that has just been lost, and once when a task that
began before acknowledges its message on the closed channel. Nothing is lost by leaving both out. The broker delivers
such a message again, the ledger knows what has been done, and the sweep sends again what nobody works on.

It ends as well when something in one of its lists is no message at all. Here that is dropped and counted.
"""

import logging
from typing import Any

from kombu.transport import redis
from redis import DataError

from memory_tasks import telemetry

logger = logging.getLogger(__name__)


def _dropped(error: Exception) -> None:
    telemetry.MALFORMED.labels("envelope").inc()
    logger.error("dropped something from a queue that is no message (%s)", type(error).__name__)


class Channel(redis.Channel):
    """A channel that hands nothing back when it is closed, and takes no acknowledgement after that."""

    do_restore = False

    def basic_ack(self, *args: Any, **kwargs: Any) -> None:
        if not self.closed:
            super().basic_ack(*args, **kwargs)

    def basic_reject(self, *args: Any, **kwargs: Any) -> None:
        if not self.closed:
            super().basic_reject(*args, **kwargs)

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except ValueError as error:
            # Not JSON, or not text. It has been popped already.
            _dropped(error)
            return True


class Transport(redis.Transport):
    """Named by `broker_transport` of an app that `configure` has set up."""

    Channel = Channel

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            super()._deliver(message, queue)
        except (AttributeError, DataError, LookupError, TypeError, ValueError) as error:
            _dropped(error)
            self._release(message)

    def _release(self, message: Any) -> None:
        """Acknowledge what nobody else will, so that it does not count against what the worker may hold."""
        try:
            tag = message["properties"]["delivery_tag"]
            for channel in self.channels:
                if tag in channel.qos._delivered:
                    channel.qos.ack(tag)
        except (LookupError, TypeError):
            return  # it got nowhere near
