"""What every store of ours indexes of a turn, so that all of them find the same."""

from collections import Counter
from datetime import UTC, datetime

from memory_tasks.models import Memory, Scope, Turn
from memory_tasks.text import terms

EMBED_CHARS = 8_000
"""Characters of a turn that its vector is made of. The full text is kept, and all its words are found."""
MONTHS = "January February March April May June July August September October November December".split()

Row = tuple[str, str, str, str, str, int, float | None, int]
"""user_id, conversation_id, turn_id, user_message, assistant_message, created_at, importance, remember."""


def spoken(turn: Turn) -> str:
    """The text of a turn, as the embedder and the lexical index read it."""
    return f"{turn.user_message}\n{turn.assistant_message}".strip()


def lexical_terms(turn: Turn) -> Counter[str]:
    """How often a turn has each term. The words of its date are among them, so that a date finds it."""
    said = turn.created_at
    return Counter(terms(f"{spoken(turn)} {said.day} {MONTHS[said.month - 1]} {said.year}"))


def embeddable(turn: Turn) -> str:
    """The text that becomes the vector: all of it, or the beginning and the end of a long one."""
    text = spoken(turn)
    half = EMBED_CHARS // 2
    return text if len(text) <= EMBED_CHARS else f"{text[:half]} {text[-half:]}"


def to_memory(row: Row) -> Memory:
    """The memory that a row holds."""
    user_id, conversation_id, turn_id, user_message, assistant_message, created_at, importance, remember = row
    return Memory(
        scope=Scope(user_id=user_id, conversation_id=conversation_id),
        turn=Turn(
            turn_id=turn_id,
            user_message=user_message,
            assistant_message=assistant_message,
            created_at=to_datetime(created_at),
            importance=importance,
            remember=bool(remember),
        ),
    )


def to_micros(time: datetime) -> int:
    """Microseconds since 1970. Not timestamp(): a float has no exact microseconds."""
    delta = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def to_datetime(micros: int) -> datetime:
    """The time of so many microseconds since 1970."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)
