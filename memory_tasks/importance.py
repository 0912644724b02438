"""The default importance scorer: a keyword matcher, a transparent baseline and no more than that."""

import re
import unicodedata
from collections.abc import Iterable

from memory_tasks.errors import InvalidInputError
from memory_tasks.models import Turn


def _fold(text: str) -> str:
    # Folding can undo composition ("İ"), so normalise after it as well.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).replace("’", "'")


class KeywordScorer:
    """1.0 when the user's message contains one of the keywords as whole words, else 0.0.

    Upper and lower case, composed and decomposed letters and straight and curly apostrophes are the same.
    It does not understand anything: "do not remember this" matches "remember". A host that wants better
    injects a classifier.

    Args:
        keywords: Words or phrases.

    Raises:
        InvalidInputError: A keyword is blank.

    Example:
        >>> KeywordScorer(["my timezone is"])(turn)
        1.0
    """

    def __init__(self, keywords: Iterable[str]) -> None:
        folded = [_fold(keyword).split() for keyword in keywords]
        if not all(folded):
            raise InvalidInputError("keywords: a keyword must not be empty or only white space")
        phrases = (r"\s+".join(re.escape(word) for word in words) for words in folded)
        # Scripts written without spaces have no word boundary to look for beside an ideograph.
        self._pattern = re.compile("|".join(rf"(?<![^\W\u2e80-\uffff]){p}(?![^\W\u2e80-\uffff])" for p in phrases))
        self._empty = not folded

    def __call__(self, turn: Turn) -> float:
        return 1.0 if not self._empty and self._pattern.search(_fold(turn.user_message)) else 0.0
