"""What is said of a turn: in a message of the broker, to the worker that begins a step, and to people who ask."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from memory_tasks.models import Recall, Record, Reply, ReplyRequest, Scope, State, Utc


class TurnRef(Record):
    """What a message in the broker carries: which turn, never its text."""

    scope: Scope
    turn_id: str
    epoch: int
    """When the turn was accepted; a turn accepted anew after a forget has another one."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What `begin` says: whether to work, and with what."""

    verdict: Literal["go", "busy", "stale", "dead"]
    next: TurnRef | None = None
    """The turn that became active because this one ended."""
    request: ReplyRequest | None = None
    recall: Recall | None = None
    reply: Reply | None = None
    attempts: int = 0
    """How often the step has failed so far."""
    call: int = 0
    """Number of this call of the model, from 1."""
    waiting: int = 0
    """Turns that wait behind this one."""
    trace: Mapping[str, str] = field(default_factory=dict)
    """Of the request that was accepted."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a message."""

    ref: TurnRef
    is_new: bool
    """Whether the turn was not known before."""
    is_active: bool
    """Whether it is its turn now, so that the caller should publish it."""


class TurnStatus(Record):
    """The saved state of a turn, without its text."""

    scope: Scope
    turn_id: str
    epoch: int
    state: State
    times: dict[str, datetime]
    """When each state was reached, by the clock of Redis."""
    attempts: dict[str, int]
    """Failures so far, by step."""
    calls: int = 0
    """Calls of the model so far."""
    failed_step: str | None = None
    error: str | None = None
    """Class name of the last error."""


class ListedTurn(Record):
    """A turn of a conversation as people see it: stored, or still on its way."""

    turn_id: str
    state: State
    user_message: str
    assistant_message: str | None
    """None while there is no answer."""
    created_at: Utc
    importance: float | None = None
    remember: bool = False
    failed_step: str | None = None
    """For "failed": the step that failed for good."""
    error: str | None = None
    """Class name of the last error."""
