"""Embeds with any sentence-transformers model, by name or from a folder (extra `sentence-transformers`)."""

from collections.abc import Sequence
from typing import Any

from memory_tasks.loading import needs_extra


class SentenceTransformersEmbedder:
    """Args:
    model: A model's name, or the path of a folder that holds one.

    Raises:
        SettingsError: The extra is not installed.
    """

    def __init__(self, model: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise needs_extra("sentence-transformers", "MEMORY_TASKS_EMBEDDER=sentence-transformers") from error
        self._model = SentenceTransformer(model)
        self.name = f"sentence-transformers:{model.rstrip('/').rpartition('/')[2]}"
        self.dimension: int = self._model.get_embedding_dimension()

    def embed(self, texts: Sequence[str]) -> Any:
        return self._model.encode(list(texts), show_progress_bar=False, convert_to_numpy=True)
