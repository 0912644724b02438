"""The values that travel through the package: small, frozen, checked once at the edge."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from uuid_utils import uuid7

from memory_tasks.errors import InvalidInputError

MAX_ID_CHARS = 512
MAX_TEXT_BYTES = 1_048_576

Step = Literal["recall", "complete", "persist"]
State = Literal["accepted", "recalled", "completed", "persisted", "promoted", "failed"]
Across = Literal["conversation", "user"]


def _identifier(value: str) -> str:
    if not value.strip():
        raise ValueError("an id must not be empty or only white space")
    if len(value) > MAX_ID_CHARS:
        raise ValueError(f"an id may have at most {MAX_ID_CHARS} characters, this one has {len(value)}")
    if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value):
        # A replacement character could make two different ids equal, so ids are refused where texts are mended.
        raise ValueError("an id must not contain NUL or a lone surrogate")
    return value


def _storable(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        # Surrogate pairs become the character they stand for, lone halves become U+FFFD.
        value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value.replace("\0", "\ufffd")


def _within_limit(value: str) -> str:
    size = len(value.encode())
    if size > MAX_TEXT_BYTES:
        raise ValueError(f"a message may have at most {MAX_TEXT_BYTES} bytes as UTF-8, this one has {size}")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("the message must not be empty or only white space")
    return value


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


def now() -> datetime:
    """The current time in UTC, for turns whose caller gives none."""
    return datetime.now(UTC)


def new_turn_id() -> str:
    """A fresh turn id: a UUIDv7, so ids sort by time of creation."""
    return str(uuid7())


Identifier = Annotated[str, AfterValidator(_identifier)]
Text = Annotated[str, BeforeValidator(_storable), AfterValidator(_within_limit)]
Utc = Annotated[AwareDatetime, AfterValidator(_utc)]


class Record(BaseModel):
    """Base of the package's values: immutable, unknown fields refused, input never shown in errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def checked(cls, **fields: Any) -> Self:
        """Build the value, turning pydantic's error into the package's own.

        Raises:
            InvalidInputError: Names each field that is wrong and why, without its value.

        Example:
            >>> Scope.checked(user_id="ann", conversation_id="c1")
            Scope(user_id='ann', conversation_id='c1')
        """
        try:
            return cls(**fields)
        except ValidationError as error:
            raise InvalidInputError(describe(error)) from None


def describe(error: ValidationError) -> str:
    """One line for people: each wrong field and what is wrong with it, never its value."""
    problems = (
        f"{'.'.join(str(part) for part in problem['loc']) or 'input'}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_input=False, include_url=False, include_context=False)
    )
    return "; ".join(problems)


class Scope(Record):
    """Whose conversation: every call carries the whole scope."""

    user_id: Identifier
    conversation_id: Identifier


class Message(Record):
    """One message for a language model."""

    role: Literal["system", "user", "assistant"]
    content: str


class Turn(Record):
    """One exchange: the user's message and the assistant's reply, under a stable id."""

    turn_id: Identifier
    user_message: Text
    assistant_message: Text
    created_at: Utc
    importance: float | None = None
    """0 to 1, or None when nobody has scored the turn yet."""
    remember: bool = False


class Memory(Record):
    """A turn in long-term memory, with the scope it belongs to. Same id as the turn."""

    scope: Scope
    turn: Turn


class Hit(Record):
    """A memory found by a search, best first, with the evidence for it."""

    memory: Memory
    score: float
    """What the hits are ordered by; comparable within one search only."""
    words: float | None = None
    """How much of the query the turn says itself, rare words counting more: 0 to 1."""
    nearby: float | None = None
    """The same for the turn together with the ones before and after it."""
    vector: float | None = None
    """Cosine similarity, or None where the store has no embedder."""

    @property
    def relevance(self) -> float | None:
        """The strongest single evidence, up to 1 and comparable between searches; None where the store gives none."""
        return max((found for found in (self.words, self.nearby, self.vector) if found is not None), default=None)


class Candidate(Record):
    """A hit, and why it is not recalled if it is not."""

    hit: Hit
    refused: str | None = None


class ReplyRequest(Record):
    """One message of the user, to be answered.

    Args:
        scope: Whose conversation.
        message: The user's words; 1 byte to 1 MiB as UTF-8.
        remember: Put the exchange into long-term memory at once.
        turn_id: Idempotency key of the exchange; a UUIDv7 when the caller has none.
        created_at: When the user said it; now when not given.
    """

    scope: Scope
    message: Annotated[Text, AfterValidator(_not_blank)]
    remember: bool = False
    turn_id: Identifier = Field(default_factory=new_turn_id)
    created_at: Utc = Field(default_factory=now)


class Recall(Record):
    """What recall found: the recent turns, oldest first, and the memories, best first."""

    recent: Sequence[Turn] = ()
    memories: Sequence[Hit] = ()
    closest: Candidate | None = None
    """When nothing was recalled: what came closest, and why it was refused."""
    degraded: Sequence[str] = ()
    """What was left out because it failed, for example "long_term: StoreUnavailableError"."""


class Completion(Record):
    """The model's answer and what it reports about its cost."""

    text: Text
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class Reply(Record):
    """The answer to one request, with what was recalled for it."""

    scope: Scope
    turn_id: str
    completion: Completion
    memories: Sequence[Hit] = ()
    closest: Candidate | None = None
    """When nothing was recalled: what came closest, and why it was refused."""
    degraded: Sequence[str] = ()
    unpersisted: Mapping[str, str] = Field(default_factory=dict)
    """Tier ("working", "long_term") that could not be written, with the class name of the error."""

    @property
    def answer(self) -> str:
        """The assistant's text."""
        return self.completion.text


class Forgotten(Record):
    """How much was erased, by tier."""

    working: int = 0
    """Turns of working memory."""
    long_term: int = 0
    """Memories."""
    ledger: int = 0
    """Turns whose saved state was still kept, with their events, waiting, running or dead."""


class MemoryConfig(BaseModel):
    """How a MemoryService remembers. `Settings` has the same fields, read from the environment."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    system_prompt: str = Field(
        "You are a helpful assistant. Use what you know about the user where it is relevant.",
        description="First message to the model.",
    )
    recent_turns: int = Field(8, ge=0, description="Latest turns of the conversation that the model sees.")
    recall_top_k: int = Field(4, ge=0, description="Memories recalled from long-term memory for a message.")
    recall_from: Across = Field("conversation", description='"conversation", or "user" for all their conversations.')
    recall_min_relevance: float = Field(
        0.2, ge=0, le=1, description="A memory is not recalled when neither its words nor its meaning fit this well."
    )
    recall_max_age: float | None = Field(
        None, gt=0, description="Only what was said in so many seconds before the message is recalled."
    )
    recall_half_life: float | None = Field(
        None, gt=0, description="Seconds in which a memory's score halves; age does not count when not given."
    )
    recall_importance: float = Field(
        0, ge=0, description="By how much a turn of importance 1 is raised above others: 1 doubles its score."
    )
    on_recall_failure: Literal["fail", "degrade"] = Field(
        "fail", description='"degrade" answers without long-term memory when its search fails, and says so.'
    )
    on_embedder_failure: Literal["degrade", "fail"] = Field(
        "degrade", description='"degrade" recalls by words alone when the embedder fails, and says so.'
    )
    importance_threshold: float = Field(0.8, ge=0, description="Score at which a turn is remembered at once.")
    keywords: tuple[str, ...] = Field(
        ("remember", "my preference is", "my timezone is", "my name is", "don't forget", "important"),
        description="What the default importance scorer looks for, as a JSON list.",
    )
    history_chars: int = Field(32_000, ge=0, description="Characters of recent turns that the model sees at most.")
    memory_chars: int = Field(8_000, ge=0, description="Characters of recalled memories that the model sees at most.")
