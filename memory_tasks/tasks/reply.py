"""The three steps of a reply as tasks: recall | complete | persist.

Each asks the ledger for leave to begin, works, saves what it got, and returns. Whatever goes wrong is written
to the ledger and the chain ends there; the sweep goes on from the saved state when the time has come. So a
message that is delivered twice, late or never does no harm.
"""

import logging
import random
import uuid
from contextlib import suppress
from typing import Any, NoReturn

from celery.exceptions import Ignore
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from memory_tasks.calls import within
from memory_tasks.errors import (
    IsolationError,
    RetryableCompletionError,
    StaleTurnError,
    StoreUnavailableError,
)
from memory_tasks.ledger import Begun, TurnRef, make_reply
from memory_tasks.models import Reply, ReplyRequest, Step, Turn
from memory_tasks.tasks.chunks import ChunkWriter
from memory_tasks.tasks.runtime import Runtime

logger = logging.getLogger(__name__)

SAVE_PATIENCE = 30.0
"""Seconds for which a paid answer is offered to an unreachable ledger before it travels on in the message."""
LONGEST_RETRY_AFTER = 3600.0
"""Seconds that a provider may ask us to wait."""


class ReplySteps:
    """The steps, for one worker process.

    Args:
        runtime: The connections.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._checkpoint = runtime.checkpoint

    def recall(self, ref: TurnRef) -> None:
        """Find the recent turns and memories, and save them in the ledger."""
        parts = self._runtime.parts
        begun = self._begin(ref, "recall")
        try:
            found = parts.service.recall(_request(begun))
        except IsolationError as error:
            self._failed(ref, "recall", error, attempts=begun.attempts, final=True)
        except Exception as error:
            self._failed(ref, "recall", error, attempts=begun.attempts)
        self._checkpoint("recall.found")
        if not parts.ledger.recalled(ref, found):
            raise Ignore
        self._checkpoint("recall.saved")

    def complete(self, ref: TurnRef) -> dict[str, Any] | None:
        """Call the model, once, and save its answer.

        Returns:
            None, or the whole reply when the ledger could not be written: then it travels on to `persist`.
        """
        parts, settings = self._runtime.parts, self._runtime.settings
        token = uuid.uuid4().hex
        begun = self._begin(ref, "complete", token)
        request, recall = _request(begun), begun.recall
        if recall is None:
            raise StaleTurnError(f"turn {ref.turn_id}: its ledger entry has no context; it was changed from outside")
        writer = ChunkWriter(lambda text: parts.ledger.chunk(ref, token, text, begun.call))

        def is_ours() -> bool:
            try:
                return parts.ledger.renew(ref, token)
            except StoreUnavailableError:
                # The call is being paid for: it goes on, and its answer is offered when Redis is back.
                return True

        self._checkpoint("complete.before_call")
        try:
            completion = within(
                settings.completion_timeout,
                lambda: parts.service.complete(request, recall, writer.write),
                every=settings.completion_lease / 3,
                still_wanted=is_ours,
            )
        except RetryableCompletionError as error:
            self._failed(ref, "complete", error, attempts=begun.attempts, token=token, wait=error.retry_after)
        except StaleTurnError:
            raise Ignore from None
        except Exception as error:
            self._failed(ref, "complete", error, attempts=begun.attempts, token=token, final=True)
        with suppress(StaleTurnError):
            # Even if another worker has taken the call over: the answer is there, and the first one saved counts.
            writer.flush()
        self._checkpoint("complete.after_call")
        return self._save(ref, make_reply(request, recall, completion))

    def _save(self, ref: TurnRef, reply: Reply) -> dict[str, Any] | None:
        settings = self._runtime.settings
        # A message could only go to the same server, so there is nothing better to do than to go on offering.
        patience = SAVE_PATIENCE if settings.broker != settings.redis_url else settings.visibility_timeout
        retrying = Retrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            stop=stop_after_delay(patience),
            wait=wait_random_exponential(multiplier=0.1, max=settings.completion_lease / 4),
            reraise=True,
        )
        try:
            saved = retrying(self._runtime.parts.ledger.completed, ref, reply)
        except StoreUnavailableError:
            logger.error("turn %s: the ledger can't be written; its answer travels on in the message", ref.turn_id)
            return reply.model_dump(mode="json")
        if not saved:
            raise Ignore
        self._checkpoint("complete.saved")
        return None

    def persist(self, ref: TurnRef, carried: dict[str, Any] | None) -> None:
        """Store the exchange and let the next turn of the conversation begin.

        Args:
            ref: The turn.
            carried: The reply, when `complete` could not save it.
        """
        parts = self._runtime.parts
        if carried:
            parts.ledger.completed(ref, Reply.model_validate(carried))
        begun = self._begin(ref, "persist")
        try:
            self._store(ref, begun)
        except StaleTurnError:
            raise Ignore from None
        except Exception as error:
            self._failed(ref, "persist", error, attempts=begun.attempts)

    def _store(self, ref: TurnRef, begun: Begun) -> None:
        parts = self._runtime.parts
        service, request, reply = parts.service, _request(begun), begun.reply
        if reply is None:
            raise StaleTurnError(f"turn {ref.turn_id}: its ledger entry has no answer; it was changed from outside")
        turn, scored = self._scored(service.turn(request, reply.completion))
        pending = not scored or service.is_important(turn)
        self._checkpoint("persist.before_append")
        service.append(request.scope, turn, epoch=ref.epoch)
        self._checkpoint("persist.appended")
        # The conversation goes on from here, whatever becomes of the long-term write.
        follower = parts.ledger.persisted(ref, long_term_pending=pending)
        self._checkpoint("persist.activated")
        parts.publisher.try_publish(follower)
        self._checkpoint("persist.published_next")
        if not pending:
            return
        if not scored:
            turn = service.score(turn)
        important = service.is_important(turn)
        if important:
            self._checkpoint("persist.before_long_term")
            with parts.writers.writing(request.scope, [turn.turn_id], service.long_term, ref):
                service.remember(request.scope, turn)
                self._checkpoint("persist.after_long_term")
        parts.ledger.settled(ref, promoted=important)

    def _scored(self, turn: Turn) -> tuple[Turn, bool]:
        """The turn with its importance, and whether that is known: a failing scorer must not hold up others."""
        try:
            return self._runtime.parts.service.score(turn), True
        except Exception as error:
            logger.warning("turn %s: scoring failed with %s, tried again later", turn.turn_id, type(error).__name__)
            return turn, False

    def _begin(self, ref: TurnRef, step: Step, token: str = "") -> Begun:
        """Leave to work.

        Raises:
            Ignore: This message is one too many, and its chain ends here. Whoever else works on the turn goes on
                with it, or the sweep. (If it went on where a step is done, a backlog would multiply its messages.)
        """
        parts = self._runtime.parts
        begun = parts.ledger.begin(ref, step, token)
        if begun.verdict == "dead":
            logger.error("turn %s is a dead letter: %s took its worker down too often", ref.turn_id, step)
        parts.publisher.try_publish(begun.next)
        if begun.verdict != "go":
            raise Ignore
        self._checkpoint(f"{step}.begun")
        return begun

    def _failed(
        self,
        ref: TurnRef,
        step: Step,
        error: Exception,
        *,
        attempts: int,
        token: str = "",
        wait: float | None = None,
        final: bool = False,
    ) -> NoReturn:
        """Write a failure to the ledger and end the chain."""
        parts, settings = self._runtime.parts, self._runtime.settings
        most = {
            "recall": settings.recall_attempts,
            "complete": settings.completion_attempts,
            "persist": settings.persist_attempts,
        }[step]
        delay = min(settings.retry_cap, settings.retry_base * 2.0**attempts) * random.uniform(0.5, 1.0)  # noqa: S311
        if wait is not None:
            delay = max(delay, min(wait, LONGEST_RETRY_AFTER))
        kind = _kind(error)
        outcome, follower = parts.ledger.retry(
            ref, step, kind, delay=delay, max_attempts=1 if final else most, token=token
        )
        parts.publisher.try_publish(follower)
        if outcome == "dead":
            logger.error("turn %s is a dead letter: %s failed with %s", ref.turn_id, step, kind)
        elif outcome == "retry":
            logger.warning("turn %s: %s failed with %s, again in %.1f s", ref.turn_id, step, kind, delay)
        raise Ignore


def _request(begun: Begun) -> ReplyRequest:
    if begun.request is None:
        raise StaleTurnError("the ledger entry has no request; it was changed from outside")
    return begun.request


def _kind(error: Exception) -> str:
    """Class name of the error, and of what caused it."""
    cause = error.__cause__
    return type(error).__name__ + (f" from {type(cause).__name__}" if cause else "")
