import builtins
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from memory_tasks import EmbeddingError, Settings, SettingsError
from memory_tasks.embedders import as_embedder, embed, embed_each, load_embedder
from memory_tasks.embedders.wordllama import WordLlamaEmbedder


def two_numbers(texts: Sequence[str]) -> list[list[float]]:
    return [[3.0, 4.0] if text else [0.0, 0.0] for text in texts]


def test_a_plain_function_is_an_embedder() -> None:
    embedder = load_embedder(Settings.load(embedder="tests.unit.test_embedders:two_numbers"))
    assert embedder is not None
    assert (embedder.name, embedder.dimension) == ("tests.unit.test_embedders:two_numbers", 2)
    assert embed(embedder, ["a", ""]).tolist() == [pytest.approx([0.6, 0.8]), [0, 0]]


def test_a_class_is_called_and_an_object_is_taken_as_it_is() -> None:
    assert as_embedder(WordLlamaEmbedder).name.startswith("wordllama")
    embedder = WordLlamaEmbedder()
    assert as_embedder(embedder) is embedder


@pytest.mark.parametrize("answer", [[[1.0]], [[1.0, 2.0, 3.0]], [[np.nan, 1.0]], [["a", "b"]], None])
def test_a_wrong_shape_is_an_error(answer: Any) -> None:
    broken: Any = SimpleNamespace(name="broken", dimension=2, embed=lambda _: answer)
    with pytest.raises(EmbeddingError, match="broken"):
        embed(broken, ["a"])


def test_one_bad_text_does_not_spoil_the_others() -> None:
    def picky(texts: Sequence[str]) -> list[list[float]]:
        if "bad" in texts:
            raise KeyError
        return two_numbers(texts)

    embedder = as_embedder(picky)
    vectors, failed = embed_each(embedder, ["a", "bad", "b"])
    assert failed == {1: "KeyError"}
    assert vectors.tolist() == [pytest.approx([0.6, 0.8]), [0, 0], pytest.approx([0.6, 0.8])]


def test_similar_texts_have_similar_vectors() -> None:
    cat, kitten, invoice = embed(WordLlamaEmbedder(), ["a cat", "a kitten", "an unpaid invoice"])
    assert cat @ kitten > cat @ invoice


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name in ("sentence_transformers", "openai"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in ("sentence-transformers", "openai"):
        with pytest.raises(SettingsError, match=rf"memory-tasks\[{name}\]"):
            load_embedder(Settings.load(embedder=name, openai_api_key="x"))


def test_sentence_transformers_models_are_adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is too heavy for a test machine: a stand-in has the two methods we call."""

    class Model:
        def __init__(self, name: str) -> None:
            self.name = name

        def get_embedding_dimension(self) -> int:
            return 2

        def encode(self, texts: list[str], **_: Any) -> Any:
            return np.array(two_numbers(texts))

    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Model))
    embedder = load_embedder(Settings.load(embedder="sentence-transformers", embedder_model="some/path/model"))
    assert embedder is not None
    assert (embedder.name, embedder.dimension) == ("sentence-transformers:model", 2)
    assert embed(embedder, ["a"]).shape == (1, 2)


def test_loading_a_model_leaves_the_logging_of_the_host_alone() -> None:
    program = """if True:
        import logging
        from memory_tasks.embedders.wordllama import WordLlamaEmbedder
        WordLlamaEmbedder().embed(["hello"])
        print(logging.getLogger().handlers, logging.getLogger().level == logging.WARNING)
    """
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["[]", "True"]
