"""Promotion by beat and workers."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_tasks import Scope
from memory_tasks.factory import service_from_settings
from memory_tasks.registry import overview
from memory_tasks.tasks.promotion import PromotionSteps
from memory_tasks.tasks.runtime import Runtime
from tests.conditions import wait_for
from tests.conftest import make_turn
from tests.system import System
from workers.valkey import EmbeddedValkey

SCOPE = Scope(user_id="ann", conversation_id="c1")


@pytest.fixture
def system(own_valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[System]:
    """Turns are old after half a second."""
    with System(tmp_path, own_valkey.url, promote_after=0.5, promote_batch=3) as made:
        yield made


def promoted(system: System) -> list[str]:
    return [memory.turn.user_message for memory in system.service.long_term.export(None, SCOPE)]


def test_aged_turns_move_in_order_and_the_scope_leaves_the_registry(system: System) -> None:
    system.start_beat()
    system.start_worker()
    for n in range(10):
        system.client.reply("ann", "c1", f"m{n}", remember=n == 4)
    wait_for(lambda: len(promoted(system)) == 10, "all turns to be promoted")
    wait_for(lambda: system.service.working.recent(SCOPE, 100) == [], "working memory to be empty")
    assert sorted(promoted(system)) == sorted(f"m{n}" for n in range(10))
    due = system.client.keys.scope(SCOPE).shard.due
    wait_for(lambda: system.client.redis.zcard(due) == 0, "the scope to leave the registry")


def test_what_exceeds_working_memory_moves_whatever_its_age(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with System(tmp_path, own_valkey.url, max_turns=10) as system:
        system.start_beat()
        system.start_worker()
        for n in range(30):
            system.client.reply("ann", "c1", f"m{n}")
        wait_for(lambda: len(promoted(system)) == 20, "twenty turns to be promoted")
        assert promoted(system) == [f"m{n}" for n in range(20)]
        assert [turn.user_message for turn in system.service.working.recent(SCOPE, 100)] == [
            f"m{n}" for n in range(20, 30)
        ]


def test_without_a_worker_nothing_piles_up(system: System) -> None:
    system.start_worker()
    for n in range(5):
        system.client.reply("ann", f"c{n}", "m").wait_persisted()
    system.stop("worker")
    system.start_beat()
    redis = system.client.redis
    # Beat alone only sends its own entries, which expire; one look finds each scope once.
    wait_for(lambda: redis.llen("promote") >= 4, "beat to tick")
    system.kill("beat")
    redis.delete("promote", "persist")
    system.start_worker("promoter", queues="promote")
    system.start_beat("again")
    wait_for(lambda: sum(1 for _ in system.service.long_term.export("ann")) == 5, "all to be promoted")


def test_a_long_outage_keeps_the_turns(system: System) -> None:
    system.start_beat()
    system.start_worker()
    (system.faults / "upsert").write_text("1")
    for n in range(3):
        system.client.reply("ann", "c1", f"m{n}").wait_persisted()
    wait_for(lambda: "StoreUnavailableError" in system.log("worker"), "promotion to fail")
    assert len(system.service.working.recent(SCOPE, 100)) == 3
    (system.faults / "upsert").unlink()
    wait_for(lambda: len(promoted(system)) == 3, "promotion to succeed", 60)
    assert promoted(system) == ["m0", "m1", "m2"]


@pytest.fixture
def finder(own_valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[tuple[System, PromotionSteps]]:
    """Looks for due scopes in this process; nobody promotes."""
    with System(
        tmp_path, own_valkey.url, promote_after=0, promote_scopes=20, promote_interval=0.1, step_timeout=0.5
    ) as made:
        runtime = Runtime(made.client.app, made.settings, service_from_settings, lambda _: None)
        yield made, PromotionSteps(runtime)


def test_ten_looks_without_a_worker_leave_one_task_for_each_due_scope(finder: tuple[System, PromotionSteps]) -> None:
    system, steps = finder
    for n in range(15):
        system.service.working.append(Scope(user_id=f"u{n}", conversation_id="c"), make_turn("t"))
    assert [steps.enumerate_due(system.client.app) for _ in range(10)] == [15] + [0] * 9
    assert system.client.redis.llen("promote") == 15


def test_one_look_sends_no_more_than_its_cap_and_the_rest_comes_next(finder: tuple[System, PromotionSteps]) -> None:
    system, steps = finder
    for n in range(50):
        system.service.working.append(Scope(user_id=f"u{n % 5}", conversation_id=f"c{n}"), make_turn("t"))
    sent = [steps.enumerate_due(system.client.app) for _ in range(4)]
    assert sent == [20, 20, 10, 0]
    bodies = [json.loads(message)["body"] for message in system.client.redis.lrange("promote", 0, -1)]
    assert len({json.loads(base64.b64decode(body))[0][0] for body in bodies}) == 50


def test_a_task_that_was_lost_is_sent_again_when_its_claim_has_ended(finder: tuple[System, PromotionSteps]) -> None:
    system, steps = finder
    system.service.working.append(SCOPE, make_turn("t"))
    assert steps.enumerate_due(system.client.app) == 1
    system.client.redis.delete("promote")
    wait_for(lambda: steps.enumerate_due(system.client.app) == 1, "the scope to be sent again")


def test_what_waits_beyond_the_overflow_is_dropped_and_counted(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with System(tmp_path, own_valkey.url, max_turns=8, max_overflow=2) as system:
        for n in range(13):
            system.service.working.append(SCOPE, make_turn(f"t{n}"))
        found = overview(system.client.redis, system.client.keys)
        assert found.dropped == 3
        first = system.service.working.recent(SCOPE, 100)[0]
        assert first.turn_id == "t3"
