"""What every store of ours indexes of a turn, so that all of them find the same."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from memory_tasks.embedders import embed_each
from memory_tasks.errors import IndexMismatchError, SealingMismatchError
from memory_tasks.models import Memory, Scope, Turn
from memory_tasks.ports import Embedder
from memory_tasks.ranking import Floats
from memory_tasks.sealing import Sealer, hidden_term, new_key
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


def embeddable(turn: Turn) -> str:
    """The text that becomes the vector: all of it, or the beginning and the end of a long one."""
    text = spoken(turn)
    half = EMBED_CHARS // 2
    return text if len(text) <= EMBED_CHARS else f"{text[:half]} {text[-half:]}"


def to_micros(time: datetime) -> int:
    """Microseconds since 1970. Not timestamp(): a float has no exact microseconds."""
    delta = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def to_datetime(micros: int) -> datetime:
    """The time of so many microseconds since 1970."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)


@dataclass(frozen=True, slots=True)
class Codec:
    """How a store writes texts and terms: as they are, or so that nobody reads them without the keys.

    Args:
        sealer: Encrypts texts.
        index_key: Hides the terms of a store that encrypts; made with the store, and kept in it, encrypted.
    """

    sealer: Sealer = field(default_factory=Sealer)
    index_key: str = ""

    def terms_of(self, turn: Turn) -> Counter[str]:
        """How often a turn has each term. The words of its date are among them, so that a date finds it."""
        said = turn.created_at
        dated = f"{spoken(turn)} {said.day} {MONTHS[said.month - 1]} {said.year}"
        return Counter(self._hidden(terms(dated)))

    def terms_wanted(self, query: str) -> list[str]:
        """The terms of a query, each once."""
        return self._hidden(dict.fromkeys(terms(query)))

    def _hidden(self, found: Iterable[str]) -> list[str]:
        return [hidden_term(term, self.index_key) for term in found] if self.index_key else list(found)

    def texts(self, turn: Turn) -> tuple[str, str]:
        """The user's and the assistant's words, as they are written."""
        return self.sealer.seal(turn.user_message), self.sealer.seal(turn.assistant_message)

    def memory(self, row: Row) -> Memory:
        """The memory that a row holds."""
        user_id, conversation_id, turn_id, user_message, assistant_message, created_at, importance, remember = row
        if self.index_key:
            user_message, assistant_message = self.sealer.open(user_message), self.sealer.open(assistant_message)
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


def made_by(embedder: Embedder | None, sealer: Sealer) -> dict[str, str]:
    """What a store writes down about itself when it is made."""
    name, dimension = (embedder.name, embedder.dimension) if embedder else ("none", 0)
    index_key = sealer.seal(new_key()) if sealer.is_on else ""
    return {"format": str(FORMAT), "embedder": name, "dimension": str(dimension), "index_key": index_key}


def codec_for(found: Mapping[str, str], embedder: Embedder | None, sealer: Sealer, where: str) -> Codec:
    """How to read and write a store, from what it has written down about itself.

    Raises:
        IndexMismatchError: This version or this embedder can't search it; says what it was made with, and what to do.
        SealingMismatchError: It is encrypted and there are no keys, or the other way round.
        SealError: It is encrypted with other keys.
    """
    if int(found["format"]) > FORMAT:
        raise IndexMismatchError(
            f"{where} has format {found['format']}, this version reads up to {FORMAT}: upgrade memory-tasks"
        )
    wanted = made_by(embedder, Sealer())
    if (found["embedder"], found["dimension"]) != (wanted["embedder"], wanted["dimension"]):
        raise IndexMismatchError(
            f"{where} was made with embedder {found['embedder']} ({found['dimension']} numbers), the settings ask for "
            f"{wanted['embedder']} ({wanted['dimension']}): set MEMORY_TASKS_EMBEDDER back, or point "
            "MEMORY_TASKS_LONG_TERM_URL at a new store"
        )
    index_key = found.get("index_key", "")
    if bool(index_key) != sealer.is_on:
        raise SealingMismatchError(
            f"{where} is encrypted: set MEMORY_TASKS_ENCRYPTION_KEYS to the keys it was made with"
            if index_key
            else f"{where} is not encrypted: unset MEMORY_TASKS_ENCRYPTION_KEYS, or copy it into a new store, which "
            "will be, with memory-tasks migrate --from OLD --to NEW"
        )
    return Codec(sealer, sealer.open(index_key))


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
