"""Scenario 4: the long-term store and the model fail, for a while, for ever, or now and then."""

import threading
from collections.abc import Iterator

from tests.chaos.harness import USER, Chaos, Outcome, chaos, load
from tests.conditions import wait_for

RATE = 15.0


def store_down(seed: int, seconds: float) -> Iterator[Outcome]:
    """The long-term store fails for a while; the conversations go on, and it gets everything afterwards."""
    with chaos(seed, persist_attempts=100) as (run, _):
        run.start_workers(2)
        (run.system.faults / "upsert").write_text("1")
        with load(run, 20, RATE, remember=True):
            threading.Event().wait(seconds)
        run.drain()
        (run.system.faults / "upsert").unlink()
        run.drain(final=["promoted"])
        outcome = Outcome(f"4 long-term store down for {seconds:g} s", trials=1)
        run.count(outcome, long_term=True)
    yield outcome


def store_dead(seed: int, messages: int) -> Iterator[Outcome]:
    """It fails for ever: each turn is answered, stored in working memory, and a dead letter that can be retried."""
    with chaos(seed, persist_attempts=3) as (run, _):
        run.start_workers(2)
        (run.system.faults / "upsert").write_text("1")
        for number in range(messages):
            run.send(f"c{number % 10}", "m", remember=True)
        run.drain(final=["failed"])
        outcome = Outcome("4 long-term store dead", trials=messages)
        outcome.notes.append(f"{len(list(run.system.client.failed()))} dead letters, all retried after the repair")
        (run.system.faults / "upsert").unlink()
        for conversation, keys in run.sent.items():
            for key in keys:
                run.system.client.retry_failed(USER, conversation, key)
        run.drain(final=["promoted"])
        run.count(outcome, long_term=True)
    yield outcome


def store_flaky(seed: int, messages: int) -> Iterator[Outcome]:
    """It fails in 30 % of its calls."""
    with chaos(seed, persist_attempts=100) as (run, _):
        run.start_workers(2)
        (run.system.faults / "upsert").write_text("0.3")
        for number in range(messages):
            run.send(f"c{number % 10}", "m", remember=True)
        run.drain(final=["promoted"])
        outcome = Outcome("4 long-term store fails in 30 %", trials=messages)
        run.count(outcome, long_term=True)
    yield outcome


def model_failures(seed: int, rounds: int) -> Iterator[Outcome]:
    """The model refuses, is overloaded, hangs past its limit, or raises what can't be pickled."""
    with chaos(seed, completion_timeout=1.0, completion_attempts=3) as (run, _):
        run.start_workers(2, concurrency=30)
        failing = [
            key
            for number in range(rounds)
            for key in _one_round(run, number, ("final:99", "raise:99", "gate:never", "retryable:2"))
        ]
        run.drain(final=["persisted", "failed"])
        ended = {key for c, keys in run.sent.items() for key in keys if run.status(c, key).state == "failed"}
        meant = {key for key in failing if "retryable" not in key}
        outcome = Outcome("4 model fails, hangs, raises", trials=len(failing))
        outcome.lost += len(ended - meant)
        outcome.doubled += len(meant - ended)
        wait_for(lambda: len(list(run.system.client.failed())) == len(meant), "the dead letters")
        run.count(outcome, failed=meant)
        outcome.notes.append(f"{len(meant)} dead letters as meant, the conversations went on")
    yield outcome


def _one_round(run: Chaos, number: int, kinds: tuple[str, ...]) -> list[str]:
    keys = []
    for kind in kinds:
        conversation = f"c{run.random.randrange(10)}"
        keys.append(f"may-fail-{kind}-{number}")
        run.send(conversation, f"{kind} m", keys[-1])
        run.send(conversation, "m")
    return keys
