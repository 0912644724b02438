"""Scenario 7: promotion is killed and raced, and conversations are forgotten while everything runs."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from memory_tasks import MemoryClient, Scope
from memory_tasks.registry import overview
from tests.chaos.harness import USER, Chaos, Outcome, chaos
from tests.conditions import wait_for
from tests.conftest import make_turn

BOUNDARIES = ("promote.read", "store.half", "promote.upserted", "promote.removed")
AT_ONCE: dict[str, Any] = {"promote_after": 0, "promote_interval": 0.2, "promote_batch": 10}


def _append(run: Chaos, conversation: str, count: int) -> None:
    scope = Scope(user_id=USER, conversation_id=conversation)
    for _ in range(count):
        turn_id = f"{conversation}-{len(run.sent[conversation])}"
        run.sent[conversation][turn_id] = None
        run.system.service.working.append(scope, make_turn(turn_id))


def _count(run: Chaos, outcome: Outcome) -> Outcome:
    """Every turn has to be in long-term memory, once, in the order of appending, and nowhere else."""
    for conversation, sent in run.sent.items():
        scope = Scope(user_id=USER, conversation_id=conversation)
        kept = [memory.turn.turn_id for memory in run.system.service.long_term.export(None, scope)]
        kept += [turn.turn_id for turn in run.system.service.working.recent(scope, 100_000)]
        outcome.turns += len(sent)
        outcome.lost += len(set(sent) - set(kept))
        outcome.doubled += len(kept) - len(set(kept))
        outcome.disorder += sum(a != b for a, b in zip(sent, kept, strict=False))
    return outcome


def _wait_promoted(run: Chaos) -> None:
    def done() -> bool:
        run.replace_dead(concurrency=2)
        return not overview(run.system.client.redis, run.system.client.keys).scopes

    wait_for(done, "everything to be promoted", 120)


def promoter_kills(seed: int, trials: int) -> Iterator[Outcome]:
    """The promoter is killed at each of its boundaries, the middle of the upsert among them."""
    with chaos(seed, **AT_ONCE) as (run, _):
        run.start_workers(2, concurrency=2)
        order = [name for name in BOUNDARIES for _ in range(trials)]
        run.random.shuffle(order)
        for number, name in enumerate(order):
            file = run.system.faults / f"kill-{name}"
            file.touch()
            _append(run, f"c{number % 8}", 12)

            def used_up() -> bool:
                run.replace_dead(concurrency=2)
                return not file.exists()  # noqa: B023

            wait_for(used_up, f"a promoter to cross {name}", 60)
        _wait_promoted(run)
        yield _count(run, Outcome(f"7 promoter killed at {len(BOUNDARIES)} boundaries", trials=len(order)))


def many_promoters(seed: int, turns: int) -> Iterator[Outcome]:
    """Four promoters work on one conversation while it grows."""
    with chaos(seed, promote_batch=7) as (run, _), ThreadPoolExecutor(4) as pool:
        over = threading.Event()
        scope = Scope(user_id=USER, conversation_id="c")

        def promote() -> int:
            client = MemoryClient(run.system.settings)
            moved = 0
            while True:
                last = over.is_set()
                batch = sum(done.promoted for done in client.promote([scope], whatever_age=True))
                moved += batch
                if last and not batch:
                    client.close()
                    return moved

        promoters = [pool.submit(promote) for _ in range(4)]
        _append(run, "c", turns)
        over.set()
        moved = sum(promoter.result() for promoter in promoters)
        outcome = _count(run, Outcome("7 four promoters on one conversation", trials=1))
        outcome.doubled += abs(moved - turns)
        yield outcome


def append_in_between(seed: int, rounds: int) -> Iterator[Outcome]:
    """Turns are appended while a promotion stands between its upsert and its removal."""
    with chaos(seed, **AT_ONCE) as (run, _):
        run.start_workers(1, concurrency=2)
        pause = run.system.faults / "pause-promote.upserted"
        long_term = run.system.service.long_term
        scope = Scope(user_id=USER, conversation_id="c")
        for _ in range(rounds):
            _wait_promoted(run)
            before = long_term.count(scope)
            pause.touch()
            _append(run, "c", 2)
            wait_for(lambda: long_term.count(scope) > before, "the upsert")  # noqa: B023
            _append(run, "c", 1)
            pause.unlink()
        _wait_promoted(run)
        yield _count(run, Outcome("7 appended between upsert and removal", trials=rounds))


def forget_while_running(seed: int, rounds: int) -> Iterator[Outcome]:
    """Conversations are forgotten while their turns wait, are answered, stored and promoted."""
    choice = random.Random(seed)
    pause = threading.Event()
    with chaos(seed, **AT_ONCE) as (run, _):
        run.start_workers(2)
        client = run.system.client
        kept = client.reply("kept", "c", "stays", remember=True)
        for number in range(rounds):
            user = f"gone{number}"
            for turn in range(2):
                client.reply(user, "c", "quizzaciously", remember=bool(turn))
            pause.wait(choice.uniform(0, 0.05))
            if choice.random() < 0.5:
                client.forget(user, "c")
            else:
                client.forget_user(user)
        outcome = Outcome("7 forgotten while it runs", trials=rounds, turns=2 * rounds)
        wait_for(lambda: kept.status().state == "promoted", "what was not forgotten to be stored")
        wait_for(lambda: not sum(client.redis.llen(q) for q in ("reply", "persist", "promote")), "the queues to empty")
        last = client.reply("kept", "c", "the last one")
        last.wait_persisted()
        outcome.resurrected = sum(client.leftovers("quizzaciously").values())
        outcome.resurrected += sum(1 for _ in client.redis.scan_iter("*gone*"))
        yield outcome
