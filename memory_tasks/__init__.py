"""Hybrid conversation memory for LLM apps, run by Celery workers.

A web app imports `MemoryClient`; a program without Celery uses `MemoryService`.
"""

from memory_tasks.client import MemoryClient
from memory_tasks.errors import (
    BrokerUnavailableError,
    CompletionError,
    EmbeddingError,
    IndexMismatchError,
    InvalidInputError,
    IsolationError,
    MemoryTasksError,
    NewerFormatError,
    PartialWriteError,
    PersistError,
    RecallError,
    ReplyTimeoutError,
    RetryableCompletionError,
    SealError,
    SealingMismatchError,
    SettingsError,
    StaleTurnError,
    StoreUnavailableError,
    TurnFailedError,
    UnknownTurnError,
)
from memory_tasks.events import Event
from memory_tasks.importance import KeywordScorer
from memory_tasks.models import (
    Candidate,
    Completion,
    Forgotten,
    Hit,
    Memory,
    MemoryConfig,
    Message,
    Recall,
    Reply,
    ReplyRequest,
    Scope,
    Turn,
)
from memory_tasks.pending import PendingReply
from memory_tasks.promoting import Promoted
from memory_tasks.service import MemoryService
from memory_tasks.settings import Settings
from memory_tasks.stores.sqlite import SQLiteStore
from memory_tasks.stores.working_redis import RedisWorkingStore
from memory_tasks.tasks import register
from memory_tasks.turns import TurnStatus

__version__ = "0.1.0"

__all__ = [
    "BrokerUnavailableError",
    "Candidate",
    "Completion",
    "CompletionError",
    "EmbeddingError",
    "Event",
    "Forgotten",
    "Hit",
    "IndexMismatchError",
    "InvalidInputError",
    "IsolationError",
    "KeywordScorer",
    "Memory",
    "MemoryClient",
    "MemoryConfig",
    "MemoryService",
    "MemoryTasksError",
    "Message",
    "NewerFormatError",
    "PartialWriteError",
    "PendingReply",
    "PersistError",
    "Promoted",
    "Recall",
    "RecallError",
    "RedisWorkingStore",
    "Reply",
    "ReplyRequest",
    "ReplyTimeoutError",
    "RetryableCompletionError",
    "SQLiteStore",
    "Scope",
    "SealError",
    "SealingMismatchError",
    "Settings",
    "SettingsError",
    "StaleTurnError",
    "StoreUnavailableError",
    "Turn",
    "TurnFailedError",
    "TurnStatus",
    "UnknownTurnError",
    "register",
]
