"""Embedders by name: wordllama, sentence-transformers, openai, none, or "package.module:attribute"."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from memory_tasks.errors import EmbeddingError, SettingsError
from memory_tasks.loading import import_attribute
from memory_tasks.ports import Embedder

if TYPE_CHECKING:
    from memory_tasks.settings import Settings

Vectors = NDArray[np.float32]


def load_embedder(settings: "Settings") -> Embedder | None:
    """The embedder that `MEMORY_TASKS_EMBEDDER` names; None for "none" and where wordllama has no wheel.

    Raises:
        SettingsError: The name is unknown, or what it needs is not installed.
    """
    match settings.embedder:
        case "none":
            return None
        case "wordllama":
            from memory_tasks.embedders.wordllama import WordLlamaEmbedder

            return WordLlamaEmbedder() if WordLlamaEmbedder.available() else None
        case "sentence-transformers":
            from memory_tasks.embedders.sentence_transformers import SentenceTransformersEmbedder

            return SentenceTransformersEmbedder(settings.embedder_model or "all-MiniLM-L6-v2")
        case "openai":
            from memory_tasks.embedders.openai import OpenAIEmbedder

            return OpenAIEmbedder(settings)
        case name if ":" in name:
            return as_embedder(import_attribute(name, "MEMORY_TASKS_EMBEDDER"))
        case name:
            raise SettingsError(
                f"MEMORY_TASKS_EMBEDDER: unknown embedder {name!r}; use wordllama, sentence-transformers, openai, "
                "none or package.module:attribute"
            )


class FunctionEmbedder:
    """Makes an embedder of a plain function `texts -> vectors`; its dimension is found by calling it once."""

    def __init__(self, function: Callable[[Sequence[str]], Any]) -> None:
        self._function = function
        self.name = f"{function.__module__}:{function.__qualname__}"
        self.dimension = len(function(["dimension"])[0])

    def embed(self, texts: Sequence[str]) -> Any:
        return self._function(texts)


def as_embedder(candidate: Any) -> Embedder:
    """The object itself when it is an embedder, a class or plain function made into one otherwise."""
    if isinstance(candidate, type):
        candidate = candidate()
    return cast(Embedder, candidate) if hasattr(candidate, "embed") else FunctionEmbedder(candidate)


def embed(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """Unit vectors for the texts, shape (len(texts), dimension); a text without any meaning gives zeros.

    Raises:
        EmbeddingError: The embedder failed or answered with another shape.
    """
    try:
        vectors = np.asarray(embedder.embed(texts), dtype=np.float32)
    except Exception as error:
        raise EmbeddingError(f"embedder {embedder.name} failed with {type(error).__name__}") from error
    if vectors.shape != (len(texts), embedder.dimension) or not np.isfinite(vectors).all():
        raise EmbeddingError(
            f"embedder {embedder.name} answered {len(texts)} texts with shape {vectors.shape}, "
            f"expected finite numbers of shape ({len(texts)}, {embedder.dimension})"
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms == 0, 1, norms)).astype(np.float32, copy=False)


def embed_each(embedder: Embedder, texts: Sequence[str]) -> tuple[Vectors, dict[int, str]]:
    """Like `embed`, but one bad text does not spoil the batch: it falls back to one call a text.

    Returns:
        The vectors (zeros where the text failed) and, by position, the class name of each failure's cause.
    """
    try:
        return embed(embedder, texts), {}
    except EmbeddingError:
        vectors = np.zeros((len(texts), embedder.dimension), dtype=np.float32)
        failed: dict[int, str] = {}
        for position, text in enumerate(texts):
            try:
                vectors[position] = embed(embedder, [text])[0]
            except EmbeddingError as error:
                failed[position] = type(error.__cause__ or error).__name__
        return vectors, failed
