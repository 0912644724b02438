"""What a message of the broker may carry. Everything else is rejected and counted: a stranger may have sent it."""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery, bootsteps, signals
from celery.app.task import Task
from celery.exceptions import Reject
from celery.worker.strategy import default as default_strategy
from kombu.exceptions import KombuError
from pydantic import ValidationError

from memory_tasks import telemetry
from memory_tasks.errors import InvalidInputError, MalformedMessageError
from memory_tasks.keys import parse_scope_tag, scope_tag
from memory_tasks.models import Scope
from memory_tasks.tasks.publisher import QUEUES
from memory_tasks.turns import TurnRef

logger = logging.getLogger(__name__)

UNUSABLE = (AttributeError, KombuError, LookupError, TypeError, ValueError)
"""What Celery's own handling of a message stumbles over when the message is malformed."""


def turn_ref(message: Mapping[str, Any]) -> TurnRef:
    """The turn that a message of a step names.

    Raises:
        MalformedMessageError: It names none, or says more than that.
    """
    if message.keys() != {"ref"}:
        raise MalformedMessageError("a message must name one turn and nothing else")
    try:
        return TurnRef.model_validate(message["ref"], strict=True)
    except ValidationError:
        raise MalformedMessageError("a message names no turn of ours") from None


def carried_text(carried: object) -> str | None:
    """The encrypted answer that a message carries, if it does.

    Raises:
        MalformedMessageError: It carries something else.
    """
    if carried is None or isinstance(carried, str):
        return carried
    raise MalformedMessageError("a message carries something that is no answer of ours")


def scope_of(tag: object) -> Scope:
    """The conversation that a message of promotion names.

    Raises:
        MalformedMessageError: It names none.
    """
    try:
        scope = parse_scope_tag(tag) if isinstance(tag, str) else None
    except (ValueError, InvalidInputError):
        scope = None
    if scope is None or scope_tag(scope) != tag:
        raise MalformedMessageError("a message names no conversation of ours")
    return scope


def rejecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a task, so that a message that is none of ours is rejected, once and for all, and counted."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (MalformedMessageError, TypeError) as error:
            if isinstance(error, TypeError) and error.__traceback__ and error.__traceback__.tb_next:
                raise  # from inside, and not because the arguments do not fit
            telemetry.MALFORMED.labels("arguments").inc()
            logger.error("rejected a message for %s: its arguments are none of ours", function.__name__)
            raise Reject("malformed", requeue=False) from None

    return checked


def strategy(task: Task, app: Celery, consumer: Any, **options: Any) -> Callable[..., Any]:
    """How a worker receives messages for our tasks: as Celery does, but for those that only look like one.

    What is wrong outside a task's own arguments makes Celery stumble where it does not acknowledge the message: it
    would then count against what the worker may hold, until the worker holds nothing else.
    """
    receive = default_strategy(task, app, consumer, **options)

    def checked(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **given: Any) -> Any:
        if _is_well_formed(message):
            return receive(message, body, ack, reject, callbacks, **given)
        telemetry.MALFORMED.labels("body").inc()
        logger.error("rejected a message for %s: it has the form of none of ours", task.name)
        return message.reject_log_error(logger, consumer.connection_errors)

    return checked


def _is_well_formed(message: Any) -> bool:
    try:
        args, kwargs, embed = message.payload
        names = (embed.get("callbacks"), embed.get("errbacks"), embed.get("chord"))
        chain = embed.get("chain") or []
        headers = message.headers
        return (
            isinstance(args, list)
            and isinstance(kwargs, dict)
            and not any(names)
            and all(isinstance(step, dict) and step.get("task") in QUEUES for step in chain)
            and all(headers.get(name) is None or isinstance(headers[name], str) for name in ("eta", "expires", "id"))
            and isinstance(headers.get("retries") or 0, int)
            and headers.get("group") is None
            and headers.get("timelimit") in (None, [None, None])
        )
    except UNUSABLE:
        return False


class SurviveMessages(bootsteps.Step):
    """A step of a worker's consumer: a message that Celery stumbles over is rejected, instead of ending the worker."""

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        create = consumer.create_task_handler

        def create_surviving(*args: Any, **kwargs: Any) -> Callable[[Any], None]:
            receive = create(*args, **kwargs)

            def surviving(message: Any) -> None:
                try:
                    receive(message)
                except UNUSABLE as error:
                    telemetry.MALFORMED.labels("unusable").inc()
                    logger.error("rejected a message that can't be received (%s)", type(error).__name__)
                    if not message.acknowledged:
                        message.reject_log_error(logger, consumer.connection_errors)

            return surviving

        consumer.create_task_handler = create_surviving


def count_rejected() -> None:
    """Count what the worker itself rejects: tasks that nobody knows, and messages that can't be decoded."""
    signals.task_unknown.connect(_unknown, dispatch_uid="memory_tasks.unknown", weak=False)
    signals.task_rejected.connect(_undecodable, dispatch_uid="memory_tasks.undecodable", weak=False)


def _unknown(**_: Any) -> None:
    telemetry.MALFORMED.labels("unknown_task").inc()


def _undecodable(**_: Any) -> None:
    telemetry.MALFORMED.labels("undecodable").inc()
