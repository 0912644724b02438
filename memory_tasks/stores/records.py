"""What every store of ours indexes of a turn, so that all of them find the same."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from memory_tasks.embedders import embed_each
from memory_tasks.errors import IndexMismatchError
from memory_tasks.models import Memory, Scope, Turn
from memory_tasks.ports import Embedder
from memory_tasks.ranking import Floats
from memory_tasks.text import terms

FORMAT = 1
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


def made_by(embedder: Embedder | None) -> dict[str, str]:
    """What a store writes down about itself when it is made."""
    name, dimension = (embedder.name, embedder.dimension) if embedder else ("none", 0)
    return {"format": str(FORMAT), "embedder": name, "dimension": str(dimension)}


def check_made_by(found: Mapping[str, str], embedder: Embedder | None, where: str) -> None:
    """Refuse a store that this version or this embedder can't search.

    Raises:
        IndexMismatchError: Says what the store was made with, and what to do.
    """
    if int(found["format"]) > FORMAT:
        raise IndexMismatchError(
            f"{where} has format {found['format']}, this version reads up to {FORMAT}: upgrade memory-tasks"
        )
    wanted = made_by(embedder)
    if (found["embedder"], found["dimension"]) != (wanted["embedder"], wanted["dimension"]):
        raise IndexMismatchError(
            f"{where} was made with embedder {found['embedder']} ({found['dimension']} numbers), the settings ask for "
            f"{wanted['embedder']} ({wanted['dimension']}): set MEMORY_TASKS_EMBEDDER back, or point "
            "MEMORY_TASKS_LONG_TERM_URL at a new store"
        )


def embedded(
    embedder: Embedder | None, memories: Sequence[Memory]
) -> tuple[list[tuple[Memory, Floats | None]], dict[str, str]]:
    """The memories with their vectors.

    Returns:
        Those that could be embedded (all, without an embedder), and by id the class name of each failure.
    """
    if embedder is None or not memories:
        return [(memory, None) for memory in memories], {}
    vectors, errors = embed_each(embedder, [embeddable(memory.turn) for memory in memories])
    pairs = [(memory, vectors[i]) for i, memory in enumerate(memories) if i not in errors]
    return pairs, {memories[i].turn.turn_id: error for i, error in errors.items()}
