import pytest

from memory_tasks import InvalidInputError, KeywordScorer
from tests.conftest import make_turn


@pytest.mark.parametrize(
    ("keyword", "text", "expected"),
    [
        ("remember", "Please REMEMBER this", 1.0),
        ("remember", "remembering is hard", 0.0),
        ("remember", "misremember", 0.0),
        ("my timezone is", "My  timezone\nis UTC", 1.0),
        ("don't forget", "don’t forget the milk", 1.0),
        ("straße", "In der STRASSE wohnt sie", 1.0),
        ("café", "the cafe\u0301 opens", 1.0),
        ("İstanbul", "in i̇stanbul", 1.0),
        ("مهم", "هذا مهم جدا", 1.0),
        ("记住", "请记住我喜欢绿茶", 1.0),
        ("c++", "I love C++ a lot", 1.0),
        ("a.b", "axb", 0.0),
    ],
)
def test_whole_words_in_any_case(keyword: str, text: str, expected: float) -> None:
    assert KeywordScorer([keyword])(make_turn("t", text)) == expected


def test_only_the_user_counts_and_no_keywords_match_nothing() -> None:
    assert KeywordScorer(["remember"])(make_turn("t", "hello", "I will remember")) == 0.0
    assert KeywordScorer([])(make_turn("t", "remember")) == 0.0


def test_a_blank_keyword_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="keyword"):
        KeywordScorer(["ok", "  "])
