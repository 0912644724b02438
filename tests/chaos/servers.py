"""Scenario 3: the servers go away and come back, under load."""

import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.harness import Chaos, Outcome, chaos, load
from tests.chaos.proxy import Proxy
from tests.rabbitmq import RabbitMQ
from workers.valkey import EmbeddedValkey

TEXT = "work:0.2 m"
RATE = 20.0


def _finish(run: Chaos, outcome: Outcome) -> Outcome:
    run.drain()
    run.count(outcome)
    return outcome


def redis_restarts(seed: int, times: int, pause: float) -> Iterator[Outcome]:
    """Redis, which is the broker too, is stopped or killed and started again."""
    waiting = threading.Event()
    with chaos(seed) as (run, valkey):
        run.start_workers(2)
        with load(run, 30, RATE, TEXT):
            for number in range(times):
                waiting.wait(pause)
                valkey.stop(signal.SIGKILL if number % 2 else signal.SIGTERM)
                waiting.wait(0.5)
                valkey.start()
            waiting.wait(pause)
        yield _finish(run, Outcome("3 Redis restarted", trials=times))


def redis_frozen(seed: int, seconds: float) -> Iterator[Outcome]:
    """Redis does not answer for a while."""
    waiting = threading.Event()
    with chaos(seed) as (run, valkey):
        run.start_workers(2)
        with load(run, 30, RATE, TEXT):
            waiting.wait(2)
            valkey.pause()
            waiting.wait(seconds)
            valkey.resume()
            waiting.wait(2)
        yield _finish(run, Outcome(f"3 Redis stopped for {seconds:g} s", trials=1))


def network_cut(seed: int, times: int) -> Iterator[Outcome]:
    """Every connection to Redis breaks in mid-command, again and again."""
    waiting = threading.Event()
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedValkey(Path(folder)) as valkey,
        Proxy(valkey.port) as proxy,
        chaos(seed, redis_url=f"redis://127.0.0.1:{proxy.port}/0") as (run, _),
    ):
        run.start_workers(2)
        with load(run, 30, RATE, TEXT):
            for _ in range(times):
                waiting.wait(run.random.uniform(0.3, 1.0))
                proxy.cut()
        yield _finish(run, Outcome("3 network to Redis cut", trials=times))


def rabbitmq_restarts(seed: int, times: int, pause: float) -> Iterator[Outcome]:
    """RabbitMQ is stopped or killed and started again."""
    waiting = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        rabbitmq = RabbitMQ(Path(folder))
        rabbitmq.start()
        try:
            with chaos(seed, rabbitmq.url) as (run, _):
                run.start_workers(2)
                with load(run, 30, RATE, TEXT):
                    for number in range(times):
                        waiting.wait(pause)
                        rabbitmq.stop(signal.SIGKILL if number % 2 else signal.SIGTERM)
                        rabbitmq.start()
                    waiting.wait(pause)
                yield _finish(run, Outcome("3 RabbitMQ restarted", trials=times))
        finally:
            rabbitmq.stop()
