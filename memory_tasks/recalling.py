"""Finds what belongs to a message: the recent turns, and the memories that may help to answer it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from memory_tasks import prompt
from memory_tasks.calls import resolve
from memory_tasks.errors import EmbeddingError, IsolationError, MemoryTasksError, RecallError
from memory_tasks.models import Candidate, MemoryConfig, Recall, ReplyRequest, Turn
from memory_tasks.ports import LongTermStore, RecallPolicy, WorkingStore
from memory_tasks.selection import candidates_for, consider


class Recaller:
    """Reads both stores for a message.

    Args:
        config: How to remember.
        working: Recent turns.
        long_term: The semantic store.
        policy: Whether to search for a message; always when not given.
    """

    def __init__(
        self, config: MemoryConfig, working: WorkingStore, long_term: LongTermStore, policy: RecallPolicy | None = None
    ) -> None:
        self._config = config
        self._working = working
        self._long_term = long_term
        self._policy = policy

    def recall(self, request: ReplyRequest) -> Recall:
        """The recent turns and the memories that belong to a message.

        Raises:
            RecallError: A store could not be read.
            IsolationError: The long-term store answered with a memory of another scope.
        """
        recent = self._recent(request)
        candidates: Sequence[Candidate] = ()
        degraded: list[str] = []
        if self._config.recall_top_k and (not self._policy or resolve(self._policy(request, recent))):
            try:
                candidates = self._candidates(request, recent, degraded)
            except IsolationError:
                raise
            except Exception as error:
                if self._config.on_recall_failure == "fail":
                    raise RecallError(
                        f"long-term memory could not be searched ({type(error).__name__}: {_safe(error)})"
                    ) from error
                degraded.append(f"long_term: {type(error).__name__}")
        memories = [candidate.hit for candidate in candidates if not candidate.refused]
        return Recall(
            recent=prompt.within(recent, self._config.history_chars),
            memories=memories,
            closest=candidates[0] if candidates and not memories else None,
            degraded=degraded,
        )

    def candidates(
        self, request: ReplyRequest, since: datetime | None = None, until: datetime | None = None
    ) -> Sequence[Candidate]:
        """All that the search proposes for a message, best first, with the reason where one is not recalled.

        Args:
            request: The message.
            since: Only what was said at this time or later.
            until: Only what was said before this time.
        """
        return self._candidates(request, self._recent(request), [], since, until)

    def _recent(self, request: ReplyRequest) -> list[Turn]:
        try:
            recent = self._working.recent(request.scope, self._config.recent_turns)
        except Exception as error:
            raise RecallError(f"working memory could not be read ({type(error).__name__}: {_safe(error)})") from error
        # The same id again (a repeated call of a library user): the model must not see its own answer to it.
        return [turn for turn in recent if turn.turn_id != request.turn_id]

    def _candidates(
        self,
        request: ReplyRequest,
        recent: Sequence[Turn],
        degraded: list[str],
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Candidate]:
        config, scope = self._config, request.scope
        across, max_age = config.recall_from, config.recall_max_age
        if max_age is not None:
            oldest = request.created_at - timedelta(seconds=max_age)
            since = max(since, oldest) if since else oldest
        # One more for the message itself, which may be stored already.
        wanted = candidates_for(config, len(recent) + 1)
        search = partial(
            self._long_term.search, scope, request.message, wanted, across=across, since=since, until=until
        )
        try:
            hits = search()
        except EmbeddingError as error:
            if config.on_embedder_failure == "fail":
                raise
            degraded.append(f"embedder: {type(error.__cause__ or error).__name__}")
            hits = search(by_words=True)
        for hit in hits:
            found = hit.memory.scope
            if found != scope and (across != "user" or found.user_id != scope.user_id):
                raise IsolationError("the long-term store returned a memory of another scope; the turn was stopped")
        others = [hit for hit in hits if hit.memory.scope != scope or hit.memory.turn.turn_id != request.turn_id]
        return consider(others, scope, recent, request.created_at, config)


def _safe(error: Exception) -> str:
    """The error's message where it is the package's own; a stranger's may quote the conversation."""
    return str(error) if isinstance(error, MemoryTasksError) else "see its traceback"
