"""The offline default: 256 numbers a text from a 16 MB table that ships in wordllama's wheel, no torch."""

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any


class WordLlamaEmbedder:
    """Embeds with the `l2_supercat` weights of the wordllama package, loaded at first use."""

    name = "wordllama:l2_supercat_256"
    dimension = 256

    @staticmethod
    def available() -> bool:
        """Whether the package is installed; it has no wheel for some platforms."""
        return importlib.util.find_spec("wordllama") is not None

    @cached_property
    def _model(self) -> Any:
        with _own_logging():
            import wordllama

        # Its own folder as cache makes it find the tokenizer it ships with instead of asking a hub.
        return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)

    def embed(self, texts: Sequence[str]) -> Any:
        return self._model.embed(list(texts))


@contextmanager
def _own_logging() -> Iterator[None]:
    """Importing wordllama makes every logger of a process write to stderr: that is for the host to decide."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
