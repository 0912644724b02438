"""What a message of the broker may carry. Everything else is rejected and counted: a stranger may have sent it."""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery import signals
from celery.exceptions import Reject
from pydantic import ValidationError

from memory_tasks import telemetry
from memory_tasks.errors import InvalidInputError, MalformedMessageError
from memory_tasks.keys import parse_scope_tag, scope_tag
from memory_tasks.ledger import TurnRef
from memory_tasks.models import Scope

logger = logging.getLogger(__name__)


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


def count_rejected() -> None:
    """Count what the worker itself rejects: tasks that nobody knows, and messages that can't be decoded."""
    signals.task_unknown.connect(_unknown, dispatch_uid="memory_tasks.unknown", weak=False)
    signals.task_rejected.connect(_undecodable, dispatch_uid="memory_tasks.undecodable", weak=False)


def _unknown(**_: Any) -> None:
    telemetry.MALFORMED.labels("unknown_task").inc()


def _undecodable(**_: Any) -> None:
    telemetry.MALFORMED.labels("undecodable").inc()
