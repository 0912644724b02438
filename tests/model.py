"""A stand-in for the paid model: counts its calls in a file and does what the message tells it to.

A message is words separated by spaces. `gate:NAME` waits until a file NAME exists beside the calls file, `hold:NAME`
does so when three quarters of the answer are written, `retryable:N` and `final:N` fail the first N calls of the turn,
`later:SECONDS` the first with a Retry-After, `raise:N` with an exception that can't be pickled, `stream:N` answers in
N pieces, `work:SECONDS` takes its time, `short` answers with two letters. Any other word is echoed.
"""

import asyncio
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from memory_tasks import Completion, CompletionError, Message, ReplyRequest, RetryableCompletionError
from tests.faults import checkpoint

CALLS = "TEST_MODEL_CALLS"


class UnpicklableError(Exception):
    """Holds what no serializer can take, and the user's words."""

    def __init__(self, text: str) -> None:
        super().__init__(f"secret detail: {text}", threading.Lock())


@dataclass
class Call:
    """One call: which process made it, and when its answer was complete."""

    pid: int
    begun: float
    ended: float | None = None


def read_calls(folder: Path) -> dict[str, list[Call]]:
    """All calls of the model by turn, in order."""
    calls: dict[str, list[Call]] = defaultdict(list)
    open_calls: dict[str, Call] = {}
    for line in (folder / "calls").read_text().splitlines():
        what, turn, mark, pid, at = line.split(" ")
        if what == "begin":
            open_calls[mark] = Call(int(pid), float(at))
            calls[unquote(turn)].append(open_calls[mark])
        else:
            open_calls[mark].ended = float(at)
    return calls


def complete(messages: Sequence[Message], request: ReplyRequest) -> Iterator[str | Completion]:
    folder = Path(os.environ[CALLS])
    mark = uuid.uuid4().hex

    def note(what: str) -> None:
        # One short write at the end of the file: whole lines, whatever other processes write.
        with (folder / "calls").open("a") as calls:
            calls.write(f"{what} {quote(request.turn_id)} {mark} {os.getpid()} {time.time()}\n")

    def number() -> int:
        return len(read_calls(folder)[request.turn_id])

    note("begin")
    checkpoint("complete.in_call")
    words = request.message.split()
    pieces, held = 1, ""
    for word in words:
        name, _, value = word.partition(":")
        if name == "gate":
            while not (folder / value).exists():
                time.sleep(0.01)
        elif name == "work":
            time.sleep(float(value))
        elif name == "retryable" and number() <= int(value):
            raise RetryableCompletionError("overloaded", retry_after=0.2)
        elif name == "later" and number() <= 1:
            raise RetryableCompletionError("rate limit", retry_after=float(value))
        elif name == "final" and number() <= int(value):
            raise CompletionError("refused")
        elif name == "raise" and number() <= int(value):
            raise UnpicklableError(request.message)
        elif name == "stream":
            pieces = int(value)
        elif name == "hold":
            pieces, held = 4, value
    answer = "ok" if "short" in words else f"re: {request.message} [{len(messages)} messages]"
    size = -(-len(answer) // pieces)
    for start in range(0, len(answer), size):
        yield answer[start : start + size]
        if pieces > 1:
            time.sleep(0.06)
        while held and start == 2 * size and not (folder / held).exists():
            time.sleep(0.01)
    note("end")
    yield Completion(text="", model="stand-in", input_tokens=len(messages), output_tokens=1)


_loops: set[int] = set()


async def complete_async(messages: Sequence[Message], request: ReplyRequest) -> str:
    """Answers with the number of event loops that this process has called it on."""
    _loops.add(id(asyncio.get_running_loop()))
    await asyncio.sleep(0)
    return f"{len(_loops)} loops in {os.getpid()}"
