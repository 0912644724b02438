"""Scenarios 1 and 2: workers are killed, at any moment and at every boundary of a step."""

import multiprocessing
import random
import threading
from collections.abc import Iterator
from typing import Any

from memory_tasks import MemoryClient, Settings, StoreUnavailableError
from tests.chaos.harness import USER, Chaos, Outcome, chaos
from tests.conditions import wait_for

BOUNDARIES = (
    "recall.begun", "recall.found", "recall.saved",
    "complete.begun", "complete.before_call", "complete.in_call", "complete.after_call", "complete.saved",
    "persist.begun", "persist.before_append", "persist.appended", "persist.activated", "persist.published_next",
    "persist.before_long_term", "persist.after_long_term",
)  # fmt: skip


def random_kills(seed: int, kills: int, conversations: int, messages: int) -> Iterator[Outcome]:
    """A random worker is killed every second, while four processes enqueue each message one to three times."""
    outcome = Outcome("1 random kills", trials=kills)
    with chaos(seed) as (run, _):
        run.start_workers(4)
        plan = _plan(run, conversations, messages)
        context = multiprocessing.get_context("spawn")
        pause = kills / messages
        arguments = [(run.system.settings.model_dump(exclude_unset=True), part, pause * 4) for part in plan]
        enqueuers = [context.Process(target=_enqueue, args=given) for given in arguments]
        for enqueuer in enqueuers:
            enqueuer.start()
        beat = threading.Event()
        for _ in range(kills):
            beat.wait(1)
            run.kill_any()
        for enqueuer in enqueuers:
            enqueuer.join()
            if enqueuer.exitcode:
                raise RuntimeError("an enqueuing process failed")
        run.drain()
        run.count(outcome)
    yield outcome


def _plan(run: Chaos, conversations: int, messages: int) -> list[list[tuple[str, str]]]:
    """For each of four processes, the (conversation, key) pairs it enqueues."""
    parts: list[list[tuple[str, str]]] = [[], [], [], []]
    for number in range(messages):
        conversation = f"c{run.random.randrange(conversations)}"
        key = f"key-{number}"
        run.sent[conversation][key] = None
        for part in run.random.sample(parts, run.random.randint(1, 3)):
            part.append((conversation, key))
    return parts


def _enqueue(settings: dict[str, Any], messages: list[tuple[str, str]], pause: float) -> None:
    client = MemoryClient(Settings.load(**settings))
    waiting = threading.Event()
    choice = random.Random(len(messages))
    for conversation, key in messages:
        waiting.wait(pause * choice.uniform(0, 1))
        while True:
            try:
                client.reply(USER, conversation, "work:0.05 m", idempotency_key=key)
                break
            except StoreUnavailableError:
                waiting.wait(0.1)
    client.close()


def boundary_kills(seed: int, trials: int) -> Iterator[Outcome]:
    """The worker that crosses a boundary is killed there, at each boundary so many times."""
    with chaos(seed) as (run, _):
        run.start_workers(3, concurrency=1)
        order = [name for name in BOUNDARIES for _ in range(trials)]
        run.random.shuffle(order)
        for number, name in enumerate(order):
            (run.system.faults / f"kill-{name}").touch()
            # Two at once, so that there is a next turn to activate.
            for _ in range(2):
                run.send(f"c{number % 6}", "m", remember=True)
            _until_killed(run, name)
        run.drain(final=["promoted"])
        outcome = Outcome(f"2 kills at {len(BOUNDARIES)} boundaries", trials=len(order))
        run.count(outcome, long_term=True)
        windows = sum(len(list(run.system.faults.glob(f"killed-complete.{w}-*"))) for w in ("in_call", "after_call"))
        outcome.notes.append(f"{windows} of the kills were inside the call or before its answer was saved")
        if outcome.calls_killed > windows:
            outcome.extra_calls += outcome.calls_killed - windows
    yield outcome


def _until_killed(run: Chaos, name: str) -> None:
    def used_up() -> bool:
        run.replace_dead(concurrency=1)
        return not (run.system.faults / f"kill-{name}").exists()

    wait_for(used_up, f"somebody to cross {name}", 60)
