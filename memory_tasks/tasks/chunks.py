"""Writes a streamed answer to the turn's event stream, a few pieces at a time."""

import time
from collections.abc import Callable

from memory_tasks.errors import StaleTurnError, StoreUnavailableError

FLUSH_SECONDS = 0.05
"""A reader sees text at most this much later; a model that sends single letters costs 20 writes a second."""


class ChunkWriter:
    """Gathers pieces and writes them.

    Args:
        append: Writes a text; False when the call is not ours any more.
    """

    def __init__(self, append: Callable[[str], bool]) -> None:
        self._append = append
        self._pieces: list[str] = []
        self._written_at = 0.0

    def write(self, piece: str) -> None:
        """Take a piece.

        Raises:
            StaleTurnError: The turn was forgotten, answered or taken over: stop reading the model's answer.
        """
        self._pieces.append(piece)
        if time.monotonic() - self._written_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is left."""
        if not self._pieces:
            return
        self._written_at = time.monotonic()
        try:
            if not self._append("".join(self._pieces)):
                raise StaleTurnError("the model call is not ours any more")
        except StoreUnavailableError:
            # Readers wait; the pieces stay for the next write, and the whole answer is saved at the end.
            return
        self._pieces.clear()
