"""Calls the functions a host has injected: sync or async, streaming or not, within a time limit."""

import asyncio
import inspect
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar, cast

from memory_tasks.errors import CompletionError, InvalidInputError, RetryableCompletionError
from memory_tasks.models import Completion

T = TypeVar("T")


class _Loop:
    """One event loop a process, in a thread of its own, made after a fork and never closed.

    An async client keeps its connections for the loop it was first used on; with a new loop for every call
    its second call would fail.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="memory-tasks-async", daemon=True).start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


_loop = _Loop()


def resolve(answer: Awaitable[T] | T) -> T:
    """The value itself, or what awaiting it gives. Not to be called from an event loop of the package's own."""
    if not inspect.isawaitable(answer):
        return answer

    async def wait() -> T:
        return await cast(Awaitable[T], answer)

    return _loop.run(wait())


def collect(answer: Any, sink: Callable[[str], None]) -> Completion:
    """Take what a completer returned to its end, handing each piece of a streamed answer to `sink`.

    Raises:
        CompletionError: The completer returned something else than text, or more than can be stored.
    """
    answer = resolve(answer)
    if isinstance(answer, Completion):
        return answer
    if isinstance(answer, str):
        return _completion(text=answer)
    pieces: list[str] = []
    last: Completion | None = None

    def take(item: Any) -> None:
        nonlocal last
        if isinstance(item, Completion):
            last = item
        elif isinstance(item, str):
            pieces.append(item)
            if item:
                sink(item)
        else:
            raise CompletionError(f"the completer's stream gave a {type(item).__name__}, expected str or Completion")

    if isinstance(answer, AsyncIterator):

        async def drain() -> None:
            async for item in answer:
                take(item)

        _loop.run(drain())
    elif isinstance(answer, Iterator):
        for item in answer:
            take(item)
    else:
        raise CompletionError(
            f"the completer returned a {type(answer).__name__}, expected str, Completion or an iterator of them"
        )
    text = (last.text if last else "") or "".join(pieces)
    return _completion(**{**(last.model_dump() if last else {}), "text": text})


def _completion(**fields: Any) -> Completion:
    try:
        return Completion.checked(**fields)
    except InvalidInputError as error:
        raise CompletionError(f"the completer's answer can't be stored: {error}") from None


def within(seconds: float, function: Callable[[], T], every: float, still_wanted: Callable[[], bool]) -> T:
    """Run a function that can't be stopped, and stop waiting for it when its time is up or nobody wants it.

    Args:
        seconds: How long to wait at most.
        function: Runs in a thread of its own, which ends when the function does.
        every: Seconds between two questions to `still_wanted`.
        still_wanted: False ends the waiting.

    Raises:
        RetryableCompletionError: The time is up, or the answer is not wanted any more.
    """
    outcome: dict[str, Any] = {}
    done = threading.Event()

    def work() -> None:
        try:
            outcome["value"] = function()
        except BaseException as error:
            outcome["error"] = error
        finally:
            done.set()

    deadline = time.monotonic() + seconds
    threading.Thread(target=work, name="memory-tasks-call", daemon=True).start()
    while not done.wait(min(every, max(0.0, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            raise RetryableCompletionError(f"the model did not answer within completion_timeout ({seconds:g} s)")
        if not still_wanted():
            raise RetryableCompletionError("another worker took the call over")
    if "error" in outcome:
        raise outcome["error"]
    return cast(T, outcome["value"])
