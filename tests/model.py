"""A stand-in for the paid model: counts its calls in a file and does what the message tells it to.

A message is words separated by spaces. `gate:NAME` waits until a file NAME exists beside the calls file,
`retryable:N` and `final:N` fail the first N calls of the turn, `raise:N` with an exception that can't be pickled,
`stream:N` answers in N pieces, `short` with two letters. Any other word is echoed.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from memory_tasks import Completion, CompletionError, Message, ReplyRequest, RetryableCompletionError

CALLS = "TEST_MODEL_CALLS"


class UnpicklableError(Exception):
    """Holds what no serializer can take, and the user's words."""

    def __init__(self, text: str) -> None:
        super().__init__(f"secret detail: {text}", threading.Lock())


def calls_of(folder: Path, turn_id: str) -> int:
    """How often the model was called for a turn."""
    file = folder / "calls"
    return file.read_text().split("\n").count(turn_id) if file.exists() else 0


def complete(messages: Sequence[Message], request: ReplyRequest) -> Iterator[str | Completion]:
    folder = Path(os.environ[CALLS])
    with (folder / "calls").open("a") as calls:
        calls.write(f"{request.turn_id}\n")
    number = calls_of(folder, request.turn_id)
    pieces = 1
    words = request.message.split()
    for word in words:
        name, _, value = word.partition(":")
        if name == "gate":
            while not (folder / value).exists():
                time.sleep(0.01)
        elif name == "retryable" and number <= int(value):
            raise RetryableCompletionError("overloaded", retry_after=0.2)
        elif name == "final" and number <= int(value):
            raise CompletionError("refused")
        elif name == "raise" and number <= int(value):
            raise UnpicklableError(request.message)
        elif name == "stream":
            pieces = int(value)
    answer = "ok" if "short" in words else f"re: {request.message} [{len(messages)} messages]"
    size = -(-len(answer) // pieces)
    for start in range(0, len(answer), size):
        yield answer[start : start + size]
        if pieces > 1:
            time.sleep(0.06)
    yield Completion(text="", model="stand-in", input_tokens=len(messages), output_tokens=1)
