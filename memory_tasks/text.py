"""Splits text of any language into the terms that lexical search compares."""

import re
import threading
import unicodedata
from collections.abc import Callable
from functools import lru_cache

import snowballstemmer

# English function words. What other languages write like one of them ("was", "in", "am") is a function
# word there too, so nothing that anybody searches for is lost.
STOP_WORDS = frozenset(
    """a about after all also am an and any are aren as at be because been before being but by can cannot could
    couldn d did didn do does doesn doing don down during each few for from further had hadn has hasn have haven
    having he her here hers herself him himself his how i if in into is isn it its itself just ll m me more most
    my myself no nor not now o of off on once only or other our ours out over own re s same shan she should so
    some such t than that the their theirs them themselves then there these they this those through to too under
    until up ve very was wasn we were weren what when where which while who whom why will with won would wouldn
    you your yours yourself""".split()
)

# Scripts written without spaces between words, and Korean, which glues particles to its words: their
# runs are cut into overlapping pairs of characters.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# A symbol (emoji among them) is a term of its own; modifiers and joiners between emoji say nothing alone.
_SYMBOL = "\u2190-\u2bff\U0001f1e6-\U0001f3fa\U0001f400-\U0001faff"
# Vowel signs of Indic scripts are no letters to a regular expression, but they are part of the word.
_MARKS = "\u0900-\u0963\u0981-\u0dff"
_TERM = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|(?P<symbol>[{_SYMBOL}])|(?P<word>(?:[^\W_{_UNSPACED}]|[{_MARKS}])+)")

# Which stemmer a word gets is decided by its script, not by guessing the text's language.
_SCRIPTS = (("\u0400", "\u052f", "russian"), ("\u0600", "\u06ff", "arabic"), ("\u0370", "\u03ff", "greek"))
_LOCAL = threading.local()

LONGEST = 64
"""Characters of a word that count. Nobody searches for more, and an index has no room for a megabyte."""


def _stemmer(language: str) -> Callable[[str], str]:
    # The stemmers keep the word they work on in themselves, so each thread has its own.
    stemmers: dict[str, Callable[[str], str]] | None = getattr(_LOCAL, "stemmers", None)
    if stemmers is None:
        stemmers = _LOCAL.stemmers = {}
    if language not in stemmers:
        stemmers[language] = snowballstemmer.stemmer(language).stemWord
    return stemmers[language]


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    first = word[0]
    if first.isdigit():
        return word
    for low, high, language in _SCRIPTS:
        if low <= first <= high:
            # "and the", "so the": the stemmer takes the article off only where it begins the word.
            if word.startswith(("وال", "فال")):
                word = word[1:]
            return _stemmer(language)(word)
    return _stemmer("english")(word)


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    # Accents and vowel signs above letters go; marks that are letters of their own (Thai, Hindi) stay.
    bare = "".join(char for char in decomposed if not unicodedata.combining(char) or char > "\u06ff")
    return unicodedata.normalize("NFKC", bare)


def terms(text: str) -> list[str]:
    """The terms of a text in order, stop words left out, words reduced to their stem.

    Example:
        >>> terms("What teas did Zoë drink in 北京市?")
        ['tea', 'zoe', 'drink', '北京', '京市']
    """
    found: list[str] = []
    for match in _TERM.finditer(_fold(text)):
        piece = match.group()
        if match.lastgroup == "unspaced":
            found.extend([piece] if len(piece) == 1 else [piece[i : i + 2] for i in range(len(piece) - 1)])
        elif match.lastgroup == "symbol":
            found.append(piece)
        elif piece not in STOP_WORDS:
            found.append(_stem(piece[:LONGEST]))
    return found
