"""Scenarios 5 and 6: messages at the same instant, long mailboxes, backlogs, clocks that are wrong."""

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.chaos.harness import Outcome, chaos, load


def same_instant(seed: int, rounds: int) -> Iterator[Outcome]:
    """Two messages of one conversation arrive together, again and again."""
    with chaos(seed) as (run, _), ThreadPoolExecutor(2) as pool:
        run.start_workers(2)
        together = threading.Barrier(2)

        def send(number: int, which: int) -> None:
            together.wait()
            run.send(f"c{number % 20}", "m", f"key-{number}-{which}")

        for number in range(rounds):
            list(pool.map(send, (number, number), (0, 1)))
        run.drain()
        outcome = Outcome("5 two at the same instant", trials=rounds)
        run.count(outcome)
    yield outcome


def long_mailbox(seed: int, waiting: int, busy: int, each: int) -> Iterator[Outcome]:
    """A thousand turns wait in one conversation; fifty others are not delayed by that."""
    with chaos(seed, completion_timeout=300, visibility_timeout=600) as (run, _):
        run.start_workers(1, concurrency=10)
        for number in range(waiting):
            run.send("long", "gate:open m" if number == 0 else "m")
        started = time.monotonic()
        handles = [run.send(f"busy{n % busy}", "m") for n in range(busy * each)]
        for handle in handles:
            handle.result(120)
        beside = time.monotonic() - started
        (run.system.folder / "open").touch()
        run.drain()
        outcome = Outcome(f"5 {waiting} waiting beside {busy} busy", trials=1)
        outcome.notes.append(f"{busy * each} replies of others in {beside:.1f} s meanwhile")
        run.count(outcome)
    yield outcome


def backlog(seed: int, messages: int) -> Iterator[Outcome]:
    """No worker for a while, two beats, then everything at once."""
    with chaos(seed, republish_after=5.0) as (run, _):
        run.system.start_beat("second-beat")
        for number in range(messages):
            run.send(f"c{number % 500}", "m")
        queued = run.system.client.redis.llen("reply")
        run.start_workers(2)
        run.drain(seconds=400)
        outcome = Outcome(f"6 backlog of {messages}, two beats", trials=1)
        outcome.notes.append(f"{queued} broker messages for 500 conversations before the first worker came")
        run.count(outcome)
    yield outcome


def wrong_clock(seed: int, seconds: float) -> Iterator[Outcome]:
    """The clock of one worker is five hours ahead, of another five hours behind; workers are killed besides."""
    outcome = Outcome("6 clocks five hours off", trials=1)
    if not shutil.which("faketime"):
        raise RuntimeError("this scenario needs faketime: apt-get install faketime")
    with chaos(seed) as (run, _):
        run.start_workers(1)
        run.start_workers(1, wrapper=("faketime", "-f", "+5h"))
        run.start_workers(1, wrapper=("faketime", "-f", "-5h"))
        with load(run, 20, 20, "work:0.05 m"):
            threading.Event().wait(seconds)
        run.drain()
        run.count(outcome)
    yield outcome
