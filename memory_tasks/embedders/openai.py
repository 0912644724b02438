"""Embeds through any OpenAI-compatible endpoint (extra `openai`)."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from memory_tasks.completers.openai import openai_client

if TYPE_CHECKING:
    from memory_tasks.settings import Settings


class OpenAIEmbedder:
    """Embeds with `MEMORY_TASKS_EMBEDDER_MODEL`; the dimension is found by embedding one word at first use."""

    def __init__(self, settings: "Settings") -> None:
        self._client = openai_client(settings)
        self._model = settings.embedder_model or "text-embedding-3-small"
        self.name = f"openai:{self._model}"

    @cached_property
    def dimension(self) -> int:
        return len(self.embed(["dimension"])[0])

    def embed(self, texts: Sequence[str]) -> Any:
        # An empty input is an error there; a blank one is not.
        answer = self._client.embeddings.create(
            model=self._model, input=[text or " " for text in texts], encoding_format="float"
        )
        return [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
