"""Chooses, among what a search found, what the model gets to see, and says why the rest does not."""

import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime

from memory_tasks.models import Candidate, Hit, MemoryConfig, Scope, Turn

_WORD = re.compile(r"\w+")
_COMPARED_CHARS = 8_000


def candidates_for(config: MemoryConfig, recent: int) -> int:
    """How many hits to ask a store for, so that enough are left after some have been refused.

    Args:
        config: How to remember.
        recent: Recent turns, which may be among the hits.
    """
    wanted = config.recall_top_k
    reordered = config.recall_half_life is not None or config.recall_importance > 0
    return recent + wanted + (max(20, 4 * wanted) if reordered else wanted)


def consider(
    hits: Sequence[Hit], scope: Scope, recent: Sequence[Turn], at: datetime, config: MemoryConfig
) -> list[Candidate]:
    """Each hit, best first, with the reason if it is not recalled.

    Args:
        hits: What the store found, best first.
        scope: The conversation of the message.
        recent: Turns of it that the model sees anyway.
        at: When the message was said, for the age of memories.
        config: How to remember.
    """
    shown = {(scope, turn.turn_id) for turn in recent}
    shown_words = {_words(turn) for turn in recent}
    kept, room = 0, config.memory_chars
    candidates = []
    for hit in sorted(hits, key=lambda hit: -strength(hit, at, config)):
        turn = hit.memory.turn
        words = _words(turn)
        refused = None
        if (hit.memory.scope, turn.turn_id) in shown:
            refused = "it is among the recent turns"
        elif hit.relevance is not None and hit.relevance < config.recall_min_relevance:
            refused = (
                f"its relevance of {hit.relevance:.2f} is below RECALL_MIN_RELEVANCE, {config.recall_min_relevance:g}"
            )
        elif words in shown_words:
            refused = "a recent turn or a better memory says the same"
        elif kept >= config.recall_top_k:
            refused = f"better ones fill RECALL_TOP_K, {config.recall_top_k}"
        elif room <= 0:
            refused = f"better ones fill MEMORY_CHARS, {config.memory_chars}"
        else:
            kept += 1
            room -= len(turn.user_message) + len(turn.assistant_message)
            shown_words.add(words)
        candidates.append(Candidate(hit=hit, refused=refused))
    return candidates


def strength(hit: Hit, at: datetime, config: MemoryConfig) -> float:
    """The hit's score, halved for each half-life of its age and raised by its importance, as the settings say."""
    score, turn = hit.score, hit.memory.turn
    if score <= 0:
        # Already below the usual: halving would lift it.
        return score
    if config.recall_half_life is not None:
        age = max(0.0, (at - turn.created_at).total_seconds())
        score *= 0.5 ** (age / config.recall_half_life)
    return score * (1 + config.recall_importance * (turn.importance or 0.0))


def _words(turn: Turn) -> tuple[str, ...]:
    """What a turn says, apart from case, accents, punctuation and spaces. A changed or added word is something new."""
    text = f"{turn.user_message} {turn.assistant_message}"
    if len(text) > _COMPARED_CHARS:
        return (text,)
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return tuple(_WORD.findall("".join(char for char in decomposed if not unicodedata.combining(char))))
