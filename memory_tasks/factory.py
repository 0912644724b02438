"""Builds the parts from settings. Hosts that bring parts of their own build a MemoryService themselves."""

from datetime import timedelta
from typing import Any

from memory_tasks.completers import load_completer
from memory_tasks.connection import connect
from memory_tasks.loading import import_attribute
from memory_tasks.sealing import Sealer
from memory_tasks.service import MemoryService
from memory_tasks.settings import Settings
from memory_tasks.stores import load_long_term
from memory_tasks.stores.working_redis import Promotion, RedisWorkingStore


def working_from_settings(settings: Settings, client: Any = None) -> RedisWorkingStore:
    """Working memory in `redis_url`, for a system in which beat promotes.

    Args:
        settings: Where, and how much.
        client: A redis-py client to use instead of a new one.
    """
    return RedisWorkingStore(
        client or connect(settings.redis_url),
        prefix=settings.prefix,
        max_turns=settings.max_turns,
        sealer=Sealer.of(settings),
        promotion=Promotion(after=timedelta(seconds=settings.promote_after), overflow=settings.max_overflow),
    )


def service_from_settings(settings: Settings) -> MemoryService:
    """The service that the settings describe.

    Raises:
        SettingsError: A part is unknown or not installed.
        IndexMismatchError: The long-term store was made with another embedder.

    Example:
        >>> service_from_settings(Settings.load()).reply(request)
    """
    scorer, policy = settings.importance_scorer, settings.recall_policy
    return MemoryService(
        settings,
        working=working_from_settings(settings),
        long_term=load_long_term(settings),
        completer=load_completer(settings),
        scorer=import_attribute(scorer, "MEMORY_TASKS_IMPORTANCE_SCORER") if scorer else None,
        recall_policy=import_attribute(policy, "MEMORY_TASKS_RECALL_POLICY") if policy else None,
    )
