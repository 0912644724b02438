"""What a host may bring along. Plain objects or functions of these shapes are enough; nothing to inherit."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias

from memory_tasks.models import Across, Completion, Hit, Memory, Message, ReplyRequest, Scope, Turn

Answer: TypeAlias = (
    str
    | Completion
    | Iterator[str | Completion]
    | AsyncIterator[str | Completion]
    | Awaitable[str | Completion | AsyncIterator[str | Completion]]
)
"""What a completer may return. Strings of an iterator are the pieces of a streamed answer; a `Completion`
as its last item adds the model's name and token counts (its text, if any, replaces the joined pieces)."""

ChunkSink: TypeAlias = Callable[[str], None]


class Completer(Protocol):
    """Calls the language model.

    Example:
        >>> def completer(messages, request):
        ...     return "You said: " + messages[-1].content
    """

    def __call__(self, messages: Sequence[Message], request: ReplyRequest, /) -> Answer:
        """Answer the messages. `request.turn_id` is stable across retries: pass it on as idempotency key.

        Raises:
            RetryableCompletionError: Try again later.
            CompletionError: Trying again won't help. Any other exception counts as this one.
        """
        ...


class Embedder(Protocol):
    """Turns texts into vectors. Name and dimension are kept in the store and checked when it is opened."""

    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """One vector of `dimension` numbers a text, in order (a numpy array of shape (n, dimension) is fine)."""
        ...


class ImportanceScorer(Protocol):
    """Says how much a turn matters, from 0 to 1."""

    def __call__(self, turn: Turn, /) -> float | Awaitable[float]: ...


class RecallPolicy(Protocol):
    """Says whether long-term memory should be searched for a message at all."""

    def __call__(self, request: ReplyRequest, recent: Sequence[Turn], /) -> bool | Awaitable[bool]: ...


class WorkingStore(Protocol):
    """The recent turns of each scope, bounded, in order of appending."""

    def append(self, scope: Scope, turn: Turn, /, *, epoch: int | None = None) -> bool:
        """Add the turn at the end; False when a turn of this id is there already.

        Args:
            scope: Whose conversation.
            turn: The exchange.
            epoch: Given by the worker system: refuse when the ledger no longer has the turn under this epoch.

        Raises:
            StaleTurnError: The turn was forgotten meanwhile; nothing was written.
            StoreUnavailableError: Nothing is known to be written; append again.
        """
        ...

    def recent(self, scope: Scope, limit: int, /) -> list[Turn]:
        """The latest `limit` turns, oldest first; an empty list for 0 or an unknown scope."""
        ...

    def older(self, scope: Scope, before: datetime, limit: int, /) -> list[Turn]:
        """The oldest turns that were appended before this time by the store's clock, at most `limit`."""
        ...

    def remove(self, scope: Scope, turn_ids: Sequence[str], /) -> int:
        """Remove exactly these turns; how many were there."""
        ...

    def forget(self, scope: Scope, /) -> int:
        """Erase the whole scope; how many turns it had."""
        ...

    def conversations(self, user_id: str, /) -> list[Scope]:
        """The conversations of a user that have anything here."""
        ...


class LongTermStore(Protocol):
    """The semantic store. Every call carries the scope; an adapter must never look outside it."""

    def search(
        self,
        scope: Scope,
        query: str,
        limit: int,
        /,
        *,
        across: Across = "conversation",
        by_words: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Hit]:
        """The best memories for the query, best first, from the conversation or from all of the user's.

        Args:
            scope: Whose conversation.
            query: The user's words.
            limit: How many at most.
            across: Where to look.
            by_words: Search without the embedder, because it has just failed.
            since: Only what was said at this time or later.
            until: Only what was said before this time.

        Raises:
            EmbeddingError: The embedder failed.
        """
        ...

    def upsert(self, memories: Sequence[Memory], /) -> None:
        """Store the memories; one that is there already (same scope and id) is replaced.

        Raises:
            PartialWriteError: Some could not be embedded; all the others are stored.
            StoreUnavailableError: None are known to be stored; upsert again.
        """
        ...

    def delete(self, scope: Scope, turn_ids: Sequence[str], /) -> int:
        """Erase these memories; how many were there."""
        ...

    def forget(self, scope: Scope, /) -> int:
        """Erase the whole scope; how many memories it had."""
        ...

    def forget_user(self, user_id: str, /) -> int:
        """Erase all conversations of the user; how many memories they had."""
        ...

    def count(self, scope: Scope, /) -> int:
        """How many memories the scope has."""
        ...

    def export(self, user_id: str | None = None, scope: Scope | None = None, /) -> Iterator[Memory]:
        """All memories of the store, of a user or of a scope, in order of storing, without loading them all."""
        ...
