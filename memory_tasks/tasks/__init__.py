"""The Celery side: the only place that knows Celery."""

from memory_tasks.tasks.registration import register

__all__ = ["register"]
