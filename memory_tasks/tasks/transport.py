"""Celery's Redis transport, so that a worker survives when its broker goes away.

With kombu 5.7.0 a worker whose Redis restarts ends with an AttributeError, in the middle of its model calls: once
when it puts unacknowledged messages back through the connection that has just been lost, and once when a task that
began before acknowledges its message on the closed channel. Nothing is lost by leaving both out. The broker delivers
such a message again, the ledger knows what has been done, and the sweep sends again what nobody works on.
"""

from typing import Any

from kombu.transport import redis


class Channel(redis.Channel):
    """A channel that hands nothing back when it is closed, and takes no acknowledgement after that."""

    do_restore = False

    def basic_ack(self, *args: Any, **kwargs: Any) -> None:
        if not self.closed:
            super().basic_ack(*args, **kwargs)

    def basic_reject(self, *args: Any, **kwargs: Any) -> None:
        if not self.closed:
            super().basic_reject(*args, **kwargs)


class Transport(redis.Transport):
    """Named by `broker_transport` of an app that `configure` has set up."""

    Channel = Channel
