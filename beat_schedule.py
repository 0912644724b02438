"""Every periodic task, how often it is sent, and when an unread one is worthless."""

from typing import Any

from memory_tasks.settings import Settings
from memory_tasks.tasks.publisher import QUEUES


def beat_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """The entries for `app.conf.beat_schedule`.

    Each entry expires within its own interval, so that nothing piles up while no worker runs.

    Example:
        >>> app.conf.beat_schedule = {**app.conf.beat_schedule, **beat_schedule(settings)}
    """
    intervals = {
        "memory_tasks.sweep": settings.sweep_interval,
        "memory_tasks.enumerate_due": settings.promote_interval,
    }
    return {
        name: {
            "task": name,
            "schedule": every,
            "options": {"queue": QUEUES[name], "expires": every, "ignore_result": True, "serializer": "json"},
        }
        for name, every in intervals.items()
    }
