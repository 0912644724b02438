import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_tasks.text import terms


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("She was painting sunsets", "paint a sunset"),
        ("Zoë met José at the café", "zoe jose cafe"),
        ("我昨天在北京喝了绿茶", "绿茶"),
        ("私は京都で抹茶を飲みました", "抹茶"),
        ("ฉันชอบดื่มชาเขียว", "ชาเขียว"),
        ("اشتريت الكتاب الجديد", "كتاب"),
        ("والكتاب مفيد", "كتاب"),
        ("Мне нравятся зелёные книги", "зеленая книга"),
        ("Wir wohnen in der Königstraße", "konigstrasse"),
        ("मुझे किताब पसंद है", "किताब"),
        ("한국어 사람들은 친절하다", "사람"),
        ("my favourite is 🍵", "🍵"),
        ("μου αρέσουν τα βιβλία", "βιβλία"),
    ],
)
def test_a_query_in_its_language_shares_a_term_with_its_turn(text: str, query: str) -> None:
    assert set(terms(query)) & set(terms(text))
    assert not set(terms(query)) & set(terms("something entirely unrelated 12345"))


def test_stop_words_go_and_numbers_stay() -> None:
    assert terms("What is the 42nd of the 7?") == ["42nd", "7"]
    assert terms("the of and") == []


@given(st.text())
def test_any_text_can_be_split(text: str) -> None:
    assert all(term and term.strip() == term for term in terms(text))
    assert terms(text) == terms(text)


def test_threads_do_not_share_a_stemmer() -> None:
    words = [f"{stem}{ending}" for stem in ("walk", "paint", "jump", "talk") for ending in ("ing", "ed", "s")] * 200
    expected = [term.rstrip("0123456789") for word in words for term in terms(word)]
    wrong: list[str] = []

    def work(number: int) -> None:
        # A number behind each word makes it new to the cache, so that the stemmer really runs.
        for word, stem in zip(words, expected, strict=True):
            found = terms(f"{word} {number}")[0]
            if found != stem:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
