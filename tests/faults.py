"""Faults that a test orders from outside a running worker, through files in a folder.

`kill-NAME` kills the first process that crosses the boundary NAME, with SIGKILL, and is used up by that; `pause-NAME`
holds whoever is there until it is removed; `search` and `upsert` make the long-term store fail.
"""

import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from memory_tasks import Hit, Memory, Scope, StoreUnavailableError, Turn
from memory_tasks.ports import LongTermStore

FAULTS = "TEST_FAULTS"
"""Names the folder in the environment of a worker."""


def checkpoint(name: str) -> None:
    """Cross a boundary, if it is allowed."""
    folder = os.environ.get(FAULTS)
    if not folder:
        return
    waiting = threading.Event()
    while (Path(folder) / f"pause-{name}").exists():
        waiting.wait(0.02)
    with suppress(FileNotFoundError):
        (Path(folder) / f"kill-{name}").rename(Path(folder) / f"killed-{name}-{os.getpid()}")
        os.kill(os.getpid(), signal.SIGKILL)


class FaultyStore:
    """Fails in the share of its calls (0 to 1) that a file `search` or `upsert` in the folder holds.

    Args:
        store: The real one.
        folder: Read at every call, so that a test can break and repair a running worker.
    """

    def __init__(self, store: LongTermStore, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def _maybe_fail(self, operation: str, text: str) -> None:
        file = self._folder / operation
        if file.exists() and random.random() < float(file.read_text() or 1):
            # A database's driver likes to quote what it was given.
            raise StoreUnavailableError(f"{operation} fails because the test says so") from OSError(f"near {text!r}")

    def search(self, scope: Scope, query: str, limit: int, /, **options: Any) -> list[Hit]:
        self._maybe_fail("search", query)
        return self._store.search(scope, query, limit, **options)

    def upsert(self, memories: Sequence[Memory], /) -> None:
        self._maybe_fail("upsert", " ".join(memory.turn.user_message for memory in memories))
        if len(memories) > 1:
            half = len(memories) // 2
            self._store.upsert(memories[:half])
            checkpoint("store.half")
        self._store.upsert(memories)

    def delete(self, scope: Scope, turn_ids: Sequence[str], /) -> int:
        return self._store.delete(scope, turn_ids)

    def forget(self, scope: Scope, /) -> int:
        return self._store.forget(scope)

    def forget_user(self, user_id: str, /) -> int:
        return self._store.forget_user(user_id)

    def count(self, scope: Scope, /) -> int:
        return self._store.count(scope)

    def export(self, user_id: str | None = None, scope: Scope | None = None, /) -> Iterator[Memory]:
        return self._store.export(user_id, scope)


class QuotingEmbedder:
    """Fails and quotes what it was given."""

    name, dimension = "quoting", 8

    def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        raise RuntimeError(f"too long: {' '.join(texts)}")


quoting_embedder = QuotingEmbedder()


def quoting_scorer(turn: Turn, /) -> float:
    """Fails and quotes what it was given, until a file `scores` is in the folder of faults."""
    if not (Path(os.environ[FAULTS]) / "scores").exists():
        raise RuntimeError(f"can't judge {turn.user_message}")
    return 1.0
