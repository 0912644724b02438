"""The score of a turn for a query. Adapters bring the evidence, this module weighs it, for all of them alike.

Four kinds of evidence, each made comparable by z-scores over the turns searched (so that a weight means the
same in a conversation of ten turns and of ten thousand):

- OWN: BM25 of the turn's own words and of the words of its date. The backbone: names, numbers, rare words.
- WINDOW: BM25 of the turn together with the one before and the one after. What is asked for is often said beside
  the words it is asked with, and a query's words are spread over neighbours.
- VECTOR: cosine similarity, for questions that use other words than the turn did; a part of the neighbours' counts.
- SESSION: BM25 of the whole session (turns without a long pause) the turn belongs to: its subject.

The weights are round numbers, not fitted to any set of questions. OWN stays beside WINDOW: where an assistant
writes long answers, neighbours alone find less. Length and form of a turn carry no weight: they say who is speaking,
not what was said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

K1 = 0.9
"""How soon repeating a word stops counting. Turns are short: once is nearly enough."""
B_TURN = 0.3
"""How much a long turn is held against it. Little: a long answer that has the word is still the answer."""
B_WINDOW = 0.5
"""The same for three turns together."""
B_SESSION = 0.75
"""The same for sessions, which differ in length far more."""

UNSEEN = 20
"""Turns without the word that a conversation counts as having had before it began: the first few turns say little
about how rare a word is."""

OWN = 1.0
WINDOW = 1.0
VECTOR = 1.0
BEFORE = 0.2
AFTER = 0.15
SESSION = 0.5
SESSION_PAUSE = 3 * 3600.0
"""Seconds without a turn after which a new session begins."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known about n turns, by conversation and in order of time.

    Args:
        lengths: Terms of each turn, shape (n,).
        postings: For each term of the query, the positions of the turns that have it, and how often.
        cosines: Similarity of each turn to the query, shape (n,), or None without an embedder.
        times: When each turn was said, in seconds since 1970, shape (n,).
        scope_starts: Positions at which another conversation begins; the first is 0.
    """

    lengths: Ints
    postings: Sequence[tuple[Ints, Ints]]
    cosines: Floats | None
    times: NDArray[np.float64]
    scope_starts: Sequence[int] = (0,)


MANY_TURNS = 5_000
"""Turns from which on words that nearly every turn has are left out: there they cost much and tell little."""
COMMON = 0.25
"""Share of the turns from which on a word is such a one."""


def common_from(turns: int) -> int:
    """In how many of so many turns a word must be to be left out."""
    return int(turns * COMMON) if turns >= MANY_TURNS else turns + 1


def telling(counts: Mapping[str, int], turns: int) -> list[str]:
    """The words of a query that tell something; all of them, if they are all common.

    Args:
        counts: In how many turns each word is; what exceeds `common_from` need not be exact.
        turns: That are searched.
    """
    rare = [term for term, count in counts.items() if count < common_from(turns)]
    return rare or list(counts)


@dataclass(frozen=True, slots=True)
class Scores:
    """Of n turns, each of shape (n,)."""

    total: Floats
    """What the turns are ordered by."""
    words: Floats
    """BM25 of the turn's own words as a share of what a usual turn with all of the query's words has, at most 1."""
    nearby: Floats
    """The same for the turn together with its neighbours."""


def _idf(turns: int, having: int) -> float:
    return float(np.log1p((turns + UNSEEN - having + 0.5) / (having + 0.5)))


def bm25(lengths: Floats, postings: Sequence[tuple[Ints, Ints | Floats]], b: float) -> Floats:
    """BM25 (with k1 = K1) of each unit, from the positions and counts of each term, shape (n,)."""
    n = len(lengths)
    scores = np.zeros(n, dtype=np.float32)
    norm = K1 * (1 - b + b * lengths / max(float(lengths.mean()), 1.0))
    for positions, counts in postings:
        if len(positions):
            scores[positions] += _idf(n, len(positions)) * counts * (K1 + 1) / (counts + norm[positions])
    return scores


def _z(scores: Floats) -> Floats:
    spread = float(scores.std())
    return (scores - scores.mean()) / spread if spread > 1e-9 else np.zeros_like(scores)


def _sessions(times: NDArray[np.float64], scope_starts: Sequence[int]) -> Ints:
    begins = np.zeros(len(times), dtype=bool)
    begins[1:] = np.abs(np.diff(times)) > SESSION_PAUSE
    begins[list(scope_starts)] = True
    return np.cumsum(begins) - 1


def _session_scores(evidence: Evidence) -> Floats:
    session = _sessions(evidence.times, evidence.scope_starts)
    lengths = np.bincount(session, weights=evidence.lengths).astype(np.float32)
    postings = []
    for positions, counts in evidence.postings:
        total = np.bincount(session[positions], weights=counts, minlength=len(lengths))
        present = np.flatnonzero(total)
        postings.append((present, total[present].astype(np.int64)))
    scores: Floats = bm25(lengths, postings, B_SESSION)[session]
    return scores


def _inside(size: int, scope_starts: Sequence[int]) -> NDArray[np.bool_]:
    """Whether each turn has one before it in its own conversation."""
    inside = np.ones(size, dtype=bool)
    inside[list(scope_starts)] = False
    return inside


def _with_neighbours(values: Floats, inside: NDArray[np.bool_], before: float, after: float) -> Floats:
    total = values.copy()
    total[1:] += before * values[:-1] * inside[1:]
    total[:-1] += after * values[1:] * inside[1:]
    return total


def _window_scores(evidence: Evidence, inside: NDArray[np.bool_]) -> Floats:
    lengths = evidence.lengths.astype(np.float32)
    postings = []
    for positions, counts in evidence.postings:
        own = np.zeros(len(lengths), dtype=np.float32)
        own[positions] = counts
        total = _with_neighbours(own, inside, 1, 1)
        present = np.flatnonzero(total)
        postings.append((present, total[present]))
    return bm25(_with_neighbours(lengths, inside, 1, 1), postings, B_WINDOW)


def _share(scores: Floats, turns: int, having: Sequence[int]) -> Floats:
    """BM25 scores as a share of the sum that one of each word brings, words that no turn has included."""
    best = sum(_idf(turns, count) for count in having)
    return np.minimum(scores / best, 1) if best else scores


def score(evidence: Evidence) -> Scores:
    """Weigh the evidence of at least one turn."""
    inside = _inside(len(evidence.lengths), evidence.scope_starts)
    lexical = bm25(evidence.lengths.astype(np.float32), evidence.postings, B_TURN)
    # Three turns together say nothing where there are only three.
    around = _window_scores(evidence, inside)
    total = OWN * _z(lexical) + WINDOW * max(0.0, 1 - 3 / len(lexical)) * _z(around)
    if evidence.cosines is not None:
        total += VECTOR * _with_neighbours(_z(evidence.cosines), inside, BEFORE, AFTER)
    total += SESSION * _z(_session_scores(evidence))
    having = [len(positions) for positions, _ in evidence.postings]
    shares = (_share(scores, len(lexical), having) for scores in (lexical, around))
    return Scores(total, *shares)
