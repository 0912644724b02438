"""What the scenarios share: a system under load, kills, and the counting afterwards."""

import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_tasks import PendingReply, Scope, StoreUnavailableError
from memory_tasks.turns import TurnStatus
from tests.conditions import wait_for
from tests.system import System
from workers.valkey import EmbeddedValkey

USER = "chaos"
SAVING_SECONDS = 0.25
"""An answer that was there this long before a kill must have been saved."""
PATIENCE = 180.0


@dataclass
class Outcome:
    """One line of the table."""

    scenario: str
    trials: int = 0
    turns: int = 0
    lost: int = 0
    doubled: int = 0
    extra_calls: int = 0
    calls_killed: int = 0
    """Calls that were made again because a kill hit the call itself: the one window that is allowed."""
    disorder: int = 0
    resurrected: int = 0
    """What was forgotten and is there again."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        return not (self.lost or self.doubled or self.extra_calls or self.disorder or self.resurrected)


class Chaos:
    """A system with workers that are killed and replaced, and the record of what was sent to it.

    Args:
        system: Servers and settings; no worker runs yet.
        seed: Of every choice that is made here.
    """

    def __init__(self, system: System, seed: int) -> None:
        self.system = system
        self.random = random.Random(seed)
        self.sent: dict[str, dict[str, None]] = defaultdict(dict)
        """Turn ids by conversation, in the order of sending."""
        self.kills: dict[int, float] = {}
        """Time of death by process id."""
        self._numbers = iter(range(1_000_000))
        self._workers: list[str] = []

    def send(self, conversation: str, text: str, key: str | None = None, **options: Any) -> PendingReply:
        """Send a message until it is accepted, as a web app would: again, with the same key."""
        key = key or f"{conversation}-{next(self._numbers)}"
        self.sent[conversation].setdefault(key)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.system.client.reply(USER, conversation, text, idempotency_key=key, **options)
            except StoreUnavailableError:
                if time.monotonic() > deadline:
                    raise

    def start_workers(self, count: int, **options: Any) -> None:
        """Start workers without waiting for each, then wait for all."""
        names = [f"worker{next(self._numbers)}" for _ in range(count)]
        for name in names:
            self.system.start_worker(name, wait=False, **options)
        for name in names:
            self.system.wait_ready(name)
        self._workers += names

    def replace_dead(self, **options: Any) -> int:
        """Notice workers that have died, and start another for each; how many."""
        dead = [name for name in self._workers if self.system.processes[name].poll() is not None]
        for name in dead:
            self.kills[self.system.processes.pop(name).pid] = time.time()
            self._workers.remove(name)
            fresh = f"worker{next(self._numbers)}"
            self.system.start_worker(fresh, wait=False, **options)
            self._workers.append(fresh)
        return len(dead)

    def kill_any(self) -> None:
        """SIGKILL one worker and start another."""
        process = self.system.processes[self.random.choice(self._workers)]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.replace_dead()

    def status(self, conversation: str, key: str) -> TurnStatus:
        return self.system.client.pending(USER, conversation, key).status()

    def drain(self, final: Iterable[str] = ("persisted", "promoted"), seconds: float = PATIENCE) -> None:
        """Wait until every turn has reached one of these states, replacing workers that died."""
        left = [(conversation, key) for conversation, keys in self.sent.items() for key in keys]

        def done() -> bool:
            self.replace_dead()
            # One after the other: asking for all of them would be most of the load.
            while left and self.status(*left[-1]).state in final:
                left.pop()
            return not left

        try:
            wait_for(done, "all turns to end", seconds)
        except AssertionError:
            states = Counter(self.status(c, k).state for c, k in left)
            raise AssertionError(f"{len(left)} turns did not end: {dict(states)}") from None

    def count(self, outcome: Outcome, *, failed: Iterable[str] = (), long_term: bool = False) -> None:
        """Add what is stored, doubled, called again and out of order to the outcome.

        Args:
            outcome: Gets the numbers.
            failed: Turns that were meant to fail and be stored nowhere.
            long_term: Whether every turn must be in long-term memory, too.
        """
        failed = set(failed)
        service = self.system.service
        for conversation, keys in self.sent.items():
            scope = Scope(user_id=USER, conversation_id=conversation)
            turns = service.working.recent(scope, 100_000)
            ids = [turn.turn_id for turn in turns]
            wanted = [key for key in keys if key not in failed]
            outcome.turns += len(wanted)
            outcome.lost += len(set(wanted) - set(ids))
            outcome.doubled += len(ids) - len(set(ids)) + len(set(ids) - set(wanted))
            order = sorted(wanted, key=lambda key: self.status(conversation, key).epoch)
            outcome.disorder += sum(a != b for a, b in zip(order, ids, strict=False))
            for position, turn in enumerate(turns):
                seen = f"[{2 + 2 * min(position, 8)} messages]"
                outcome.disorder += not turn.assistant_message.endswith((seen, "ok", " pieces"))
            if long_term:
                kept = [memory.turn.turn_id for memory in service.long_term.export(None, scope)]
                outcome.lost += len(set(wanted) - set(kept))
                outcome.doubled += len(kept) - len(set(kept))
        self._count_calls(outcome)

    def _count_calls(self, outcome: Outcome) -> None:
        for turn, calls in self.system.call_records().items():
            for call in calls[:-1]:
                killed = self.kills.get(call.pid)
                if killed and (call.ended is None or call.ended > killed - SAVING_SECONDS):
                    outcome.calls_killed += 1
                elif not turn.startswith("may-fail"):
                    outcome.extra_calls += 1


@contextmanager
def chaos(seed: int, broker: str | None = None, **settings: Any) -> Iterator[tuple[Chaos, EmbeddedValkey]]:
    """A fresh Valkey with beat, without workers. Its folder stays when the scenario fails."""
    folder = Path(tempfile.mkdtemp(prefix="memory-tasks-chaos-"))
    with EmbeddedValkey(folder / "valkey") as valkey:
        options = {"recall_top_k": 0, "max_turns": 100_000, "max_deliveries": 50, **settings}
        if broker:
            options["broker_url"] = broker
        system = System(folder, options.pop("redis_url", valkey.url), **options)
        try:
            system.start_beat()
            yield Chaos(system, seed), valkey
        except BaseException:
            sys.stderr.write(f"what is left of the failed scenario is in {folder}\n")
            raise
        finally:
            system.close()
    shutil.rmtree(folder)


@contextmanager
def load(chaos: Chaos, conversations: int, per_second: float, text: str = "m", **options: Any) -> Iterator[None]:
    """Messages to random conversations in the background, while the body breaks things."""
    over = threading.Event()
    errors: list[BaseException] = []

    def send() -> None:
        try:
            while not over.wait(1 / per_second):
                chaos.send(f"c{chaos.random.randrange(conversations)}", text, **options)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]
