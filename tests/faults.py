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

from memory_tasks import Hit, Memory, Scope, StoreUnavailableError
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

    def _maybe_fail(self, operation: str) -> None:
        file = self._folder / operation
        if file.exists() and random.random() < float(file.read_text() or 1):
            raise StoreUnavailableError(f"{operation} fails because the test says so")

    def search(self, scope: Scope, query: str, limit: int, /, **options: Any) -> list[Hit]:
        self._maybe_fail("search")
        return self._store.search(scope, query, limit, **options)

    def upsert(self, memories: Sequence[Memory], /) -> None:
        self._maybe_fail("upsert")
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
