"""The memory itself: recall, complete, persist, promote. Knows neither Celery nor Redis."""

from collections.abc import Callable, Sequence
from datetime import datetime

from memory_tasks import prompt
from memory_tasks.calls import collect, resolve
from memory_tasks.errors import (
    CompletionError,
    InvalidInputError,
    MemoryTasksError,
    PersistError,
)
from memory_tasks.importance import KeywordScorer
from memory_tasks.models import (
    Completion,
    Forgotten,
    Memory,
    MemoryConfig,
    Recall,
    Reply,
    ReplyRequest,
    Scope,
    Turn,
)
from memory_tasks.ports import Completer, ImportanceScorer, LongTermStore, RecallPolicy, WorkingStore
from memory_tasks.promoting import Promoted, move
from memory_tasks.recalling import Recaller


def _ignore(_: str) -> None:
    return None


class MemoryService:
    """Answers messages with memory, in this process. The worker system runs the same three steps as tasks.

    Args:
        config: How to remember; `MemoryConfig()` has the defaults.
        working: Recent turns.
        long_term: The semantic store.
        completer: Calls the language model.
        scorer: Importance of a turn; the keyword matcher when not given.
        recall_policy: Whether to search for a message; always when not given.

    Example:
        >>> service = MemoryService(MemoryConfig(), working=working, long_term=store, completer=completer)
        >>> service.reply(ReplyRequest(scope=scope, message="Which tea do I like?")).answer
        'Sencha.'
    """

    def __init__(
        self,
        config: MemoryConfig,
        *,
        working: WorkingStore,
        long_term: LongTermStore,
        completer: Completer,
        scorer: ImportanceScorer | None = None,
        recall_policy: RecallPolicy | None = None,
    ) -> None:
        self.config = config
        self.working = working
        self.long_term = long_term
        self.completer = completer
        self.scorer: ImportanceScorer = scorer or KeywordScorer(config.keywords)
        self.recall_policy = recall_policy

    def reply(self, request: ReplyRequest) -> Reply:
        """Recall, complete and persist one message.

        Returns:
            The reply. When only storing failed it still has the answer, and `unpersisted` says what is missing:
            call `persist(request, reply.completion)` again, not `reply`.

        Raises:
            RecallError: Nothing was stored and the model was not called.
            CompletionError: Nothing was stored.
        """
        recall = self.recall(request)
        completion = self.complete(request, recall)
        reply = Reply(
            scope=request.scope,
            turn_id=request.turn_id,
            completion=completion,
            memories=recall.memories,
            closest=recall.closest,
            degraded=recall.degraded,
        )
        try:
            self.persist(request, completion)
        except PersistError as error:
            return reply.model_copy(update={"unpersisted": error.failures})
        return reply

    def recall(self, request: ReplyRequest) -> Recall:
        """The recent turns and the memories that belong to a message.

        Raises:
            RecallError: A store could not be read.
            IsolationError: The long-term store answered with a memory of another scope.
        """
        return Recaller(self.config, self.working, self.long_term, self.recall_policy).recall(request)

    def complete(self, request: ReplyRequest, recall: Recall, sink: Callable[[str], None] = _ignore) -> Completion:
        """Call the model once.

        Args:
            request: The user's message.
            recall: What the model may know.
            sink: Gets each piece of a streamed answer.

        Raises:
            CompletionError: The completer failed; `RetryableCompletionError` when trying again may help.
        """
        messages = prompt.build(
            self.config.system_prompt,
            recall.memories,
            recall.recent,
            request.message,
            self.config.memory_chars,
        )
        try:
            return collect(self.completer(messages, request), sink)
        except MemoryTasksError:
            raise
        except Exception as error:
            # Not its message: providers quote the prompt in theirs.
            raise CompletionError(f"the completer failed with {type(error).__name__}") from error

    def persist(self, request: ReplyRequest, completion: Completion) -> Turn:
        """Store an exchange: in working memory, and in long-term memory when it is remembered or important.

        Safe to repeat. The tiers are tried one by one, so that a failure of one does not keep the other from it.

        Raises:
            PersistError: Says which tier failed.
        """
        failures: dict[str, str] = {}
        turn = self.turn(request, completion)
        try:
            turn = self.score(turn)
        except Exception as error:
            failures["importance"] = type(error).__name__
        steps: list[tuple[str, Callable[[Scope, Turn], object]]] = [("working", self.append)]
        if self.is_important(turn):
            steps.append(("long_term", self.remember))
        for tier, store in steps:
            try:
                store(request.scope, turn)
            except Exception as error:
                failures[tier] = type(error).__name__
        if failures:
            raise PersistError(failures)
        return turn

    def turn(self, request: ReplyRequest, completion: Completion) -> Turn:
        """The exchange as it is stored: the user's words and the answer, nothing of what was recalled."""
        return Turn(
            turn_id=request.turn_id,
            user_message=request.message,
            assistant_message=completion.text,
            created_at=request.created_at,
            remember=request.remember,
        )

    def score(self, turn: Turn) -> Turn:
        """The turn with its importance."""
        return turn.model_copy(update={"importance": float(resolve(self.scorer(turn)))})

    def is_important(self, turn: Turn) -> bool:
        """Whether the turn goes into long-term memory at once."""
        return turn.remember or (turn.importance or 0.0) >= self.config.importance_threshold

    def append(self, scope: Scope, turn: Turn, *, epoch: int | None = None) -> bool:
        """Add the turn to working memory, once."""
        return self.working.append(scope, turn, epoch=epoch)

    def remember(self, scope: Scope, turn: Turn) -> None:
        """Put the turn into long-term memory."""
        self.long_term.upsert([Memory(scope=scope, turn=turn)])

    def promote_older(self, scope: Scope, before: datetime, limit: int = 64) -> Promoted:
        """Move turns that were appended before a time from working to long-term memory. Safe to repeat.

        Each turn is upserted under its own id first and only then removed, so that a stop at any point loses
        nothing and doubles nothing.

        Args:
            scope: Whose conversation.
            before: Cutoff by the working store's clock.
            limit: Turns to move at most, at least 1.

        Raises:
            StoreUnavailableError: Repeat the call.
        """
        if limit < 1:
            raise InvalidInputError(f"limit must be at least 1, not {limit}")
        turns = self.working.older(scope, before, limit)
        done = move(self.working, self.long_term, scope, turns)
        return done.model_copy(update={"more": done.more and len(turns) == limit})

    def forget(self, scope: Scope) -> Forgotten:
        """Erase a conversation from both stores. Repeat it when it fails.

        For programs without workers; with them, `MemoryClient.forget` also erases what is queued and running.

        Raises:
            StoreUnavailableError: A store is down: what it holds is not erased yet.
        """
        return Forgotten(working=self.working.forget(scope), long_term=self.long_term.forget(scope))

    def forget_user(self, user_id: str) -> Forgotten:
        """Erase all conversations of a user from both stores. Repeat it when it fails."""
        working = sum(self.working.forget(scope) for scope in self.working.conversations(user_id))
        return Forgotten(working=working, long_term=self.long_term.forget_user(user_id))

    def forget_turns(self, scope: Scope, turn_ids: Sequence[str]) -> Forgotten:
        """Erase these turns from both stores. Repeat it when it fails."""
        return Forgotten(working=self.working.remove(scope, turn_ids), long_term=self.long_term.delete(scope, turn_ids))
