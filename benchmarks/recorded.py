"""A stand-in for the paid model: answers with the recorded reply, and counts its calls in a file."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.locomo import load
from memory_tasks import Message, ReplyRequest

DATA = "REPLAY_DATA"
CALLS = "REPLAY_CALLS"


@cache
def _replies() -> dict[str, str]:
    conversations = load(Path(os.environ[DATA]))
    return {exchange.turn_id: exchange.reply for c in conversations for exchange in c.exchanges}


def complete(_: Sequence[Message], request: ReplyRequest) -> str:
    """The recorded reply of the exchange that the turn id names."""
    with Path(os.environ[CALLS]).open("a") as calls:
        calls.write(f"{request.turn_id}\n")
    return _replies()[request.turn_id]
