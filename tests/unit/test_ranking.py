import numpy as np

from memory_tasks.ranking import MANY_TURNS, Evidence, bm25, score, telling


def evidence(words: list[set[int]], **fields: object) -> Evidence:
    """Turns with equal lengths; `words[t]` are the positions that have the query's term t."""
    size = 8
    postings = [
        (np.array(sorted(positions), dtype=np.int64), np.ones(len(positions), dtype=np.int64)) for positions in words
    ]
    values: dict[str, object] = {
        "lengths": np.full(size, 10),
        "postings": postings,
        "cosines": None,
        "times": np.arange(size) * 60.0,
        **fields,
    }
    return Evidence(**values)  # type: ignore[arg-type]


def test_rare_words_weigh_more_than_frequent_ones() -> None:
    lexical = score(evidence([{1}, {2, 3, 4, 5, 6}])).words
    assert lexical[1] > lexical[2] > 0
    assert lexical[0] == 0


def test_a_word_said_twice_weighs_more_and_a_long_turn_less() -> None:
    lengths = np.array([10, 10, 100], dtype=np.float32)
    positions, counts = np.array([0, 1, 2]), np.array([1, 2, 1])
    scores = bm25(lengths, [(positions, counts)], 0.3)
    assert scores[1] > scores[0] > scores[2]


def test_the_neighbours_of_a_match_gain_but_not_across_conversations() -> None:
    alone = score(evidence([{3}])).total
    assert alone[3] > alone[4] > alone[6]
    assert alone[2] > alone[6]
    split = score(evidence([{3}], scope_starts=(0, 4))).total
    assert split[4] - split[6] < (alone[4] - alone[6]) / 2
    assert split[2] > split[6]


def test_a_session_with_a_match_gains() -> None:
    times = np.array([0, 60, 120, 180, 90_000, 90_060, 90_120, 90_180], dtype=float)
    scores = score(evidence([{0}], times=times)).total
    assert scores[3] > scores[5]


def test_a_vector_decides_where_words_do_not() -> None:
    cosines = np.zeros(8, dtype=np.float32)
    cosines[5] = 0.9
    scores = score(evidence([], cosines=cosines)).total
    assert int(np.argmax(scores)) == 5


def test_no_evidence_at_all_gives_equal_scores() -> None:
    scores = score(evidence([]))
    assert set(scores.total.tolist()) == set(scores.words.tolist()) == {0}


def test_the_share_of_words_is_between_0_and_1_and_counts_words_that_no_turn_has() -> None:
    both = score(evidence([{1, 2}, {1}])).words
    assert 1 >= both[1] > 0.9
    assert 0.3 < both[2] < 0.7
    unknown = score(evidence([{1}, set()])).words
    assert 0.2 < unknown[1] < 0.5


def test_words_of_nearly_every_turn_are_left_out_where_there_are_many_turns() -> None:
    counts = {"rare": 3, "common": MANY_TURNS // 2}
    assert telling(counts, MANY_TURNS) == ["rare"]
    assert telling(counts, MANY_TURNS - 1) == ["rare", "common"]
    assert telling({"common": MANY_TURNS}, MANY_TURNS) == ["common"]
