import threading
from collections.abc import Callable

import pytest

from memory_tasks import RetryableCompletionError, StaleTurnError, StoreUnavailableError
from memory_tasks.calls import within
from memory_tasks.tasks.chunks import ChunkWriter


def test_a_call_in_time_gives_its_value_or_its_error() -> None:
    assert within(5, lambda: 7, 0.01, lambda: True) == 7

    def fail() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError):
        within(5, fail, 0.01, lambda: True)


def test_a_call_that_takes_too_long_or_is_not_wanted_is_given_up() -> None:
    release = threading.Event()
    try:
        with pytest.raises(RetryableCompletionError, match="completion_timeout"):
            within(0.05, release.wait, 0.01, lambda: True)
        with pytest.raises(RetryableCompletionError, match="another worker"):
            within(5, release.wait, 0.01, lambda: False)
    finally:
        release.set()


@pytest.fixture
def written() -> list[str]:
    return []


def appender(written: list[str]) -> Callable[[str], bool]:
    def append(text: str) -> bool:
        written.append(text)
        return True

    return append


def test_pieces_are_gathered(written: list[str]) -> None:
    writer = ChunkWriter(appender(written))
    for piece in "hello":
        writer.write(piece)
    writer.flush()
    writer.flush()
    assert written == ["h", "ello"]


def test_pieces_wait_while_redis_is_down(written: list[str]) -> None:
    up = False

    def append(text: str) -> bool:
        if not up:
            raise StoreUnavailableError("down")
        return appender(written)(text)

    writer = ChunkWriter(append)
    writer.write("a")
    writer.write("b")
    up = True
    writer.flush()
    assert written == ["ab"]


def test_a_call_that_was_taken_over_stops_reading() -> None:
    with pytest.raises(StaleTurnError):
        ChunkWriter(lambda _: False).write("a")
