import numpy as np

from memory_tasks.ranking import Evidence, bm25, score


def evidence(words: list[set[int]], **fields: object) -> Evidence:
    """Turns with equal lengths; `words[t]` are the positions that have the query's term t."""
    size = 8
    postings = [(np.array(sorted(positions)), np.ones(len(positions), dtype=np.int64)) for positions in words]
    values: dict[str, object] = {
        "lengths": np.full(size, 10),
        "postings": postings,
        "cosines": None,
        "times": np.arange(size) * 60.0,
        **fields,
    }
    return Evidence(**values)  # type: ignore[arg-type]


def test_rare_words_weigh_more_than_frequent_ones() -> None:
    _, lexical = score(evidence([{1}, {2, 3, 4, 5, 6}]))
    assert lexical[1] > lexical[2] > 0
    assert lexical[0] == 0


def test_a_word_said_twice_weighs_more_and_a_long_turn_less() -> None:
    lengths = np.array([10, 10, 100], dtype=np.float32)
    positions, counts = np.array([0, 1, 2]), np.array([1, 2, 1])
    scores = bm25(lengths, [(positions, counts)], 0.3)
    assert scores[1] > scores[0] > scores[2]


def test_the_neighbours_of_a_match_gain_but_not_across_conversations() -> None:
    alone, _ = score(evidence([{3}]))
    assert alone[3] > alone[4] > alone[6]
    assert alone[2] > alone[6]
    split, _ = score(evidence([{3}], scope_starts=(0, 4)))
    assert split[4] - split[6] < (alone[4] - alone[6]) / 2
    assert split[2] > split[6]


def test_a_session_with_a_match_gains() -> None:
    times = np.array([0, 60, 120, 180, 90_000, 90_060, 90_120, 90_180], dtype=float)
    scores, _ = score(evidence([{0}], times=times))
    assert scores[3] > scores[5]


def test_a_vector_decides_where_words_do_not() -> None:
    cosines = np.zeros(8, dtype=np.float32)
    cosines[5] = 0.9
    scores, _ = score(evidence([], cosines=cosines))
    assert int(np.argmax(scores)) == 5


def test_no_evidence_at_all_gives_equal_scores() -> None:
    scores, lexical = score(evidence([]))
    assert set(scores.tolist()) == {0}
    assert set(lexical.tolist()) == {0}
