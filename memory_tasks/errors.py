"""Every exception the package raises.

No message holds the text of a conversation: messages end up in logs, results and tracebacks.
"""

from collections.abc import Mapping


class MemoryTasksError(Exception):
    """Base of every error of this package."""


class InvalidInputError(MemoryTasksError, ValueError):
    """An id, message or setting that can't be accepted. Nothing was stored."""


class SettingsError(InvalidInputError):
    """A setting is unknown, malformed, or unsafe together with another one."""


class StoreUnavailableError(MemoryTasksError):
    """A store can't be reached. Never to be read as "there is no history"."""


class BrokerUnavailableError(MemoryTasksError):
    """Celery's broker can't be reached. What is accepted is safe: the sweep sends it when the broker is back."""


class IndexMismatchError(MemoryTasksError):
    """A long-term store was made by another embedder, dimension or newer format."""


class SealingMismatchError(IndexMismatchError):
    """A long-term store was made with encryption and is opened without, or the other way round."""


class SealError(MemoryTasksError):
    """A text is encrypted, and no key given opens it."""


class NewerFormatError(MemoryTasksError):
    """Something was written by a newer version of memory-tasks. It stays as it is until that version reads it."""


class IsolationError(MemoryTasksError):
    """A store returned a memory of another scope. The turn is stopped before anybody sees it."""


class EmbeddingError(MemoryTasksError):
    """The embedder failed, or answered with vectors of the wrong shape."""


class PartialWriteError(MemoryTasksError):
    """Some memories of a batch were stored and others were not.

    Args:
        stored: Ids that are in the store now.
        failed: Id of each memory that is not, with the class name of its error.
    """

    def __init__(self, stored: list[str], failed: Mapping[str, str]) -> None:
        self.stored = stored
        self.failed = dict(failed)
        kinds = ", ".join(sorted(set(self.failed.values())))
        super().__init__(f"{len(self.failed)} of {len(self.failed) + len(stored)} memories were not stored ({kinds})")


class RecallError(MemoryTasksError):
    """Working or long-term memory could not be read; the model was not called and nothing was stored."""


class CompletionError(MemoryTasksError):
    """The model gave no answer and repeating the call will not help. Nothing was stored.

    Raise it from a completer for a final failure (refused, too long, bad credentials).
    """


class RetryableCompletionError(CompletionError):
    """The model gave no answer this time (rate limit, timeout, overload).

    Args:
        message: What happened, without the text of the conversation.
        retry_after: Seconds the provider asked us to wait, if it did.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PersistError(MemoryTasksError):
    """The answer exists but was not stored everywhere. Persist again; never call the model again.

    Args:
        failures: Tier that failed ("working" or "long_term") with the class name of its error.
    """

    def __init__(self, failures: Mapping[str, str]) -> None:
        self.failures = dict(failures)
        what = ", ".join(f"{tier}: {error}" for tier, error in self.failures.items())
        super().__init__(f"the answer was not persisted everywhere ({what}); call persist() again, not reply()")


class TurnFailedError(MemoryTasksError):
    """The turn became a dead letter: see `memory-tasks failed show`.

    Args:
        turn_id: The turn.
        step: The step that failed for good.
        error: Class name of the last error.
    """

    def __init__(self, turn_id: str, step: str, error: str) -> None:
        self.turn_id = turn_id
        self.step = step
        self.error = error
        super().__init__(
            f"turn {turn_id} failed for good in {step} ({error}); "
            f"look with 'memory-tasks failed show {turn_id}', repair, then 'memory-tasks failed retry {turn_id}'"
        )


class UnknownTurnError(MemoryTasksError, LookupError):
    """The ledger has no such turn: it never existed, has expired, or was forgotten."""


class CorruptEntryError(MemoryTasksError):
    """The ledger's entry of a turn was changed from outside, so that nobody can go on with it."""


class ReplyTimeoutError(MemoryTasksError, TimeoutError):
    """The answer did not arrive in time. The turn goes on; ask again with the same handle."""


class MalformedMessageError(MemoryTasksError):
    """A message of the broker is none that we have sent. It is rejected and counted; no turn is touched."""


class StaleTurnError(MemoryTasksError):
    """The turn was forgotten, or has moved on, while a task was working for it. The task writes nothing."""
