"""The three steps of a reply as tasks: recall | complete | persist.

Each asks the ledger for leave to begin, works, saves what it got, and returns. Whatever goes wrong is written
to the ledger and the chain ends there; the sweep goes on from the saved state when the time has come. So a
message that is delivered twice, late or never does no harm.
"""

import logging
import random
import sys
import uuid
from contextlib import suppress
from typing import NoReturn

from celery.exceptions import Ignore
from pydantic import ValidationError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from memory_tasks import telemetry
from memory_tasks.calls import within
from memory_tasks.errors import (
    CorruptEntryError,
    IsolationError,
    MalformedMessageError,
    NewerFormatError,
    RetryableCompletionError,
    SealError,
    StaleTurnError,
    StoreUnavailableError,
)
from memory_tasks.ledger import make_reply
from memory_tasks.models import Reply, ReplyRequest, Step, Turn
from memory_tasks.sealing import Sealer
from memory_tasks.tasks.chunks import ChunkWriter
from memory_tasks.tasks.runtime import Runtime
from memory_tasks.turns import Begun, TurnRef

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
        telemetry.MAILBOX.observe(begun.waiting)
        with telemetry.step("recall", ref.scope, ref.turn_id, begun.trace) as running:
            try:
                found = parts.service.recall(_request(begun))
            except IsolationError as error:
                self._failed(ref, running, error, attempts=begun.attempts, final=True)
            except Exception as error:
                self._failed(ref, running, error, attempts=begun.attempts)
            self._checkpoint("recall.found")
            if not parts.ledger.recalled(ref, found):
                self._stale(running)
            telemetry.recalled(found)
        self._checkpoint("recall.saved")

    def complete(self, ref: TurnRef) -> str | None:
        """Call the model, once, and save its answer.

        Returns:
            None, or the whole reply, encrypted, when the ledger could not be written: then it travels to `persist`.
        """
        token = uuid.uuid4().hex
        begun = self._begin(ref, "complete", token)
        with telemetry.step("complete", ref.scope, ref.turn_id, begun.trace) as running:
            return self._complete(ref, begun, token, running)

    def _complete(self, ref: TurnRef, begun: Begun, token: str, running: telemetry.Step) -> str | None:
        parts, settings = self._runtime.parts, self._runtime.settings
        request, recall = _request(begun), begun.recall
        if recall is None:
            raise StaleTurnError(f"turn {ref.turn_id}: its ledger entry has no context; it was changed from outside")
        carrier = parts.ledger.carrier()
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
            telemetry.CALLS.labels("retryable").inc()
            self._failed(ref, running, error, attempts=begun.attempts, token=token, wait=error.retry_after)
        except StaleTurnError:
            telemetry.CALLS.labels("unwanted").inc()
            self._stale(running)
        except Exception as error:
            telemetry.CALLS.labels("failed").inc()
            self._failed(ref, running, error, attempts=begun.attempts, token=token, final=True)
        telemetry.completed(completion)
        with suppress(StaleTurnError):
            # Even if another worker has taken the call over: the answer is there, and the first one saved counts.
            writer.flush()
        self._checkpoint("complete.after_call")
        return self._save(ref, make_reply(request, recall, completion), carrier, running)

    def _save(self, ref: TurnRef, reply: Reply, carrier: Sealer, running: telemetry.Step) -> str | None:
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
            return carrier.seal(reply.model_dump_json())
        if not saved:
            self._stale(running)
        self._checkpoint("complete.saved")
        return None

    def persist(self, ref: TurnRef, carried: str | None) -> None:
        """Store the exchange and let the next turn of the conversation begin.

        Args:
            ref: The turn.
            carried: The reply, encrypted, when `complete` could not save it.

        Raises:
            MalformedMessageError: What is carried is not what a worker of ours has sent for this turn.
        """
        parts = self._runtime.parts
        if carried:
            parts.ledger.completed(ref, _carried(ref, carried, parts.ledger.carrier()))
        begun = self._begin(ref, "persist")
        with telemetry.step("persist", ref.scope, ref.turn_id, begun.trace) as running:
            try:
                self._store(ref, begun)
            except StaleTurnError:
                self._stale(running)
            except Exception as error:
                self._failed(ref, running, error, attempts=begun.attempts)

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
        first, follower = parts.ledger.persisted(ref, long_term_pending=pending)
        if first:
            telemetry.REPLIES.labels("persisted").inc()
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
            with (
                telemetry.span("promote", turns=1),
                parts.writers.writing(request.scope, [turn.turn_id], service.long_term, ref),
            ):
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
        try:
            begun = parts.ledger.begin(ref, step, token)
        except (CorruptEntryError, SealError) as error:
            with telemetry.step(step, ref.scope, ref.turn_id, {}) as running:
                self._failed(ref, running, error, attempts=0, token=token)
        except NewerFormatError as error:
            logger.error("turn %s is left to a newer worker: %s", ref.turn_id, error)
            raise Ignore from None
        if begun.verdict == "dead":
            with telemetry.step(step, ref.scope, ref.turn_id, {}) as running:
                _died(running, "WorkerLostError")
        parts.publisher.try_publish(begun.next)
        if begun.verdict != "go":
            telemetry.DUPLICATES.labels(step).inc()
            raise Ignore
        self._checkpoint(f"{step}.begun")
        return begun

    @staticmethod
    def _stale(running: telemetry.Step) -> NoReturn:
        """End the chain of a turn that was forgotten or has moved on."""
        running.outcome = "stale"
        raise Ignore

    def _failed(
        self,
        ref: TurnRef,
        running: telemetry.Step,
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
        }[running.name]
        if isinstance(error, NewerFormatError) or isinstance(error.__cause__, NewerFormatError):
            # In a rolling upgrade: a newer worker will do it, so this failure must not count.
            most = sys.maxsize
        delay = min(settings.retry_cap, settings.retry_base * 2.0**attempts) * random.uniform(0.5, 1.0)  # noqa: S311
        if wait is not None:
            delay = max(delay, min(wait, LONGEST_RETRY_AFTER))
        kind = _kind(error)
        outcome, follower = parts.ledger.retry(
            ref, running.name, kind, delay=delay, max_attempts=1 if final else most, token=token
        )
        parts.publisher.try_publish(follower)
        if outcome == "dead":
            _died(running, kind)
        elif outcome == "retry":
            running.outcome, running.error = "retry", kind
            telemetry.RETRIES.labels(running.name, kind).inc()
        else:
            running.outcome = "stale"
        raise Ignore


def _died(running: telemetry.Step, kind: str) -> None:
    running.outcome, running.error = "dead", kind
    telemetry.DEAD.labels(running.name, kind).inc()
    telemetry.REPLIES.labels("failed").inc()


def _carried(ref: TurnRef, carried: str, carrier: Sealer) -> Reply:
    try:
        reply = Reply.model_validate_json(carrier.unseal(carried))
    except (SealError, ValidationError):
        raise MalformedMessageError(f"turn {ref.turn_id}: what its message carries is no answer of ours") from None
    if (reply.scope, reply.turn_id) != (ref.scope, ref.turn_id):
        raise MalformedMessageError(f"turn {ref.turn_id}: its message carries the answer of another turn")
    return reply


def _request(begun: Begun) -> ReplyRequest:
    if begun.request is None:
        raise StaleTurnError("the ledger entry has no request; it was changed from outside")
    return begun.request


def _kind(error: Exception) -> str:
    """Class name of the error, and of what caused it."""
    cause = error.__cause__
    return type(error).__name__ + (f" from {type(cause).__name__}" if cause else "")
