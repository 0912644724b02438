from datetime import UTC, datetime, timedelta
from typing import Any

from memory_tasks import Candidate, Hit, Memory, MemoryConfig, Scope, Turn
from memory_tasks.selection import candidates_for, consider

SCOPE = Scope(user_id="ann", conversation_id="c1")
NOW = datetime(2024, 5, 8, 12, tzinfo=UTC)


def turn(turn_id: str, user: str = "", days_ago: float = 0, **fields: Any) -> Turn:
    said = user or f"about {turn_id}"
    at = NOW - timedelta(days=days_ago)
    return Turn(turn_id=turn_id, user_message=said, assistant_message="noted", created_at=at, **fields)


def hit(found: Turn, score: float = 5.0, scope: Scope = SCOPE, **evidence: Any) -> Hit:
    return Hit(memory=Memory(scope=scope, turn=found), score=score, **{"words": 1.0, **evidence})


def recalled(hits: list[Hit], recent: list[Turn] | None = None, **config: Any) -> list[str]:
    found = consider(hits, SCOPE, recent or [], NOW, MemoryConfig(**config))
    return [candidate.hit.memory.turn.turn_id for candidate in found if not candidate.refused]


def refusals(hits: list[Hit], recent: list[Turn] | None = None, **config: Any) -> dict[str, str]:
    found: list[Candidate] = consider(hits, SCOPE, recent or [], NOW, MemoryConfig(**config))
    return {candidate.hit.memory.turn.turn_id: candidate.refused for candidate in found if candidate.refused}


def test_a_hit_without_any_fitting_evidence_is_refused_and_says_so() -> None:
    weak: dict[str, Any] = {"words": 0.05, "nearby": 0.1, "vector": 0.12}
    assert refusals([hit(turn("a"), **weak)]) == {"a": "its relevance of 0.12 is below RECALL_MIN_RELEVANCE, 0.2"}
    for evidence in ("words", "nearby", "vector"):
        assert recalled([hit(turn("a"), **{**weak, evidence: 0.5})]) == ["a"]
    assert recalled([hit(turn("a"), **weak)], recall_min_relevance=0) == ["a"]


def test_a_store_that_gives_no_evidence_is_believed() -> None:
    assert recalled([hit(turn("a"), words=None)]) == ["a"]


def test_what_the_recent_turns_say_is_not_repeated() -> None:
    recent = [turn("a", "I like tea!")]
    assert recalled([hit(recent[0]), hit(turn("b", "i  like   TEA.")), hit(turn("c", "I like coffee"))], recent) == [
        "c"
    ]


def test_the_same_id_in_another_conversation_is_another_turn() -> None:
    elsewhere = Scope(user_id="ann", conversation_id="c2")
    assert recalled([hit(turn("a", "I like coffee"), scope=elsewhere)], [turn("a", "I like tea")]) == ["a"]


def test_of_memories_that_say_the_same_the_best_is_recalled() -> None:
    hits = [hit(turn("a", "Caf\u00e9 at 9?"), 5), hit(turn("b", "cafe at 9"), 4), hit(turn("c", "cafe at 10"), 3)]
    assert recalled(hits) == ["a", "c"]


def test_one_word_more_is_something_new() -> None:
    assert recalled([hit(turn("a", "I do like tea")), hit(turn("b", "I do not like tea"))]) == ["a", "b"]


def test_as_many_as_wanted_and_as_have_room_are_recalled() -> None:
    hits = [hit(turn(f"t{number}", f"{number} " + "word " * 100), 9 - number) for number in range(5)]
    assert recalled(hits, recall_top_k=3) == ["t0", "t1", "t2"]
    assert recalled(hits, memory_chars=600) == ["t0", "t1"]
    assert refusals(hits, memory_chars=600)["t4"] == "better ones fill MEMORY_CHARS, 600"


def test_age_counts_only_when_asked_for() -> None:
    hits = [hit(turn("old", days_ago=30), 8.0), hit(turn("new", days_ago=1), 6.0)]
    assert recalled(hits) == ["old", "new"]
    assert recalled(hits, recall_half_life=timedelta(days=30).total_seconds()) == ["new", "old"]
    assert recalled(hits, recall_half_life=timedelta(days=300).total_seconds()) == ["old", "new"]


def test_importance_counts_only_when_asked_for() -> None:
    hits = [hit(turn("a"), 8.0), hit(turn("b", importance=1.0), 6.0)]
    assert recalled(hits) == ["a", "b"]
    assert recalled(hits, recall_importance=0.5) == ["b", "a"]


def test_age_never_lifts_a_hit_that_is_below_the_usual() -> None:
    hits = [hit(turn("a", days_ago=1), -1.0), hit(turn("b", days_ago=500), -2.0)]
    assert recalled(hits, recall_half_life=3600) == ["a", "b"]


def test_enough_candidates_are_asked_for_to_replace_refused_ones() -> None:
    assert candidates_for(MemoryConfig(recall_top_k=4), recent=8) == 16
    assert candidates_for(MemoryConfig(recall_top_k=4, recall_half_life=60), recent=8) == 32
