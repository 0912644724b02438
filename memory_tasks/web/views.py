"""What the router answers with: the HTTP API's own shapes, stable whatever the package's values become."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Header, Path
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from memory_tasks.models import MAX_ID_CHARS, Hit, Identifier, Memory, Recall, Reply, State, Text
from memory_tasks.turns import ListedTurn, TurnStatus


def _segment(value: str) -> str:
    if value in (".", ".."):
        raise ValueError("an id that is part of a path must not be . or ..")
    return value


Segment = Annotated[Identifier, AfterValidator(_segment)]
# A pattern beside a validator is not described to OpenAPI unless it is said once more.
_PATH: dict[str, Any] = {
    "min_length": 1,
    "max_length": MAX_ID_CHARS,
    "pattern": "^[^/]+$",
    "json_schema_extra": {"pattern": r"^[^/\x00]*[^/\s\x00][^/\x00]*$"},
}
Conversation = Annotated[Segment, Path(description="The conversation's id, without a slash.", **_PATH)]
TurnId = Annotated[Segment, Path(description="The turn's id, without a slash.", **_PATH)]
_VISIBLE = "^[!-.0-~]+$"
IdempotencyKey = Annotated[
    Segment | None,
    Header(
        description="Becomes the turn's id: visible ASCII characters without a slash.",
        max_length=MAX_ID_CHARS,
        pattern=_VISIBLE,
        json_schema_extra={"pattern": _VISIBLE, "minLength": 1},
    ),
]


def _words(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("a time is text, like 2026-01-31T12:00:00Z")  # noqa: TRY004, pydantic reports this one
    return value


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a whole number, like 10")  # noqa: TRY004, as above
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_words)]


class Said(BaseModel):
    """A message of the user."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Text = Field(
        min_length=1, pattern=r"\S", description="The user's words, not the history. Up to 1 MiB as UTF-8."
    )
    remember: bool = Field(False, description="Put the exchange into long-term memory at once.")


class Query(BaseModel):
    """What to look for in long-term memory."""

    model_config = ConfigDict(extra="forbid")

    query: Text = Field(min_length=1, max_length=10_000, pattern=r"\S")
    limit: Annotated[int, BeforeValidator(_number)] = Field(10, ge=1, le=100)
    since: Time | None = Field(None, description="Only what was said then or later.")
    until: Time | None = Field(None, description="Only what was said before then.")


class Links(BaseModel):
    """Where to go on from here, relative to the address of the request."""

    turn: str
    events: str
    memories: str


class Accepted(BaseModel):
    """A message that is saved and will be answered."""

    turn_id: str
    state: State
    links: Links


class TurnView(BaseModel):
    """How a turn stands, and its answer as soon as there is one."""

    turn_id: str
    state: State
    times: dict[str, datetime]
    answer: str | None
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    model_calls: int
    degraded: Sequence[str]
    failed_step: str | None
    error: str | None

    @classmethod
    def of(cls, status: TurnStatus, reply: Reply | None) -> "TurnView":
        """From what the ledger says."""
        completion = reply.completion if reply else None
        return cls(
            turn_id=status.turn_id,
            state=status.state,
            times=status.times,
            answer=completion.text if completion else None,
            model=completion.model if completion else None,
            input_tokens=completion.input_tokens if completion else None,
            output_tokens=completion.output_tokens if completion else None,
            model_calls=status.calls,
            degraded=reply.degraded if reply else (),
            failed_step=status.failed_step,
            error=status.error,
        )


class TurnsView(BaseModel):
    """The latest turns of a conversation, oldest first: stored ones, then those on their way."""

    turns: list[ListedTurn]


class MemoryView(BaseModel):
    """A turn in long-term memory; found by a search, with the evidence for it."""

    turn_id: str
    conversation_id: str
    user_message: str
    assistant_message: str
    created_at: datetime
    importance: float | None
    remember: bool
    score: float | None = None
    words: float | None = None
    nearby: float | None = None
    meaning: float | None = None
    refused: str | None = None

    @classmethod
    def of(cls, memory: Memory) -> "MemoryView":
        """A memory as it is stored."""
        return cls(**memory.turn.model_dump(), conversation_id=memory.scope.conversation_id)

    @classmethod
    def found(cls, hit: Hit, refused: str | None = None) -> "MemoryView":
        """A memory that a search found, and why recall did not take it if it did not."""
        evidence = {"score": hit.score, "words": hit.words, "nearby": hit.nearby, "meaning": hit.vector}
        return cls.of(hit.memory).model_copy(update={**evidence, "refused": refused})


class RecalledView(BaseModel):
    """What was recalled for a turn, best first."""

    memories: list[MemoryView]
    closest: MemoryView | None = Field(
        description="When nothing was recalled: what came closest, and why it was refused."
    )
    degraded: Sequence[str]

    @classmethod
    def of(cls, recall: Recall) -> "RecalledView":
        """From what the ledger keeps."""
        return cls(
            memories=[MemoryView.found(hit) for hit in recall.memories],
            closest=MemoryView.found(recall.closest.hit, recall.closest.refused) if recall.closest else None,
            degraded=recall.degraded,
        )


class MemoriesView(BaseModel):
    """Memories of a conversation: the newest ones, oldest first; or what a search found, best first."""

    memories: list[MemoryView]
    total: int = Field(description="How many there are in all.")
