"""What happens when parts die, vanish or fail: each test breaks something for real."""

import os
import signal
from datetime import UTC, datetime, timedelta

import pytest

from memory_tasks import Scope, StoreUnavailableError, TurnFailedError
from memory_tasks.connection import durability_warnings
from memory_tasks.turns import TurnRef
from tests.conditions import wait_for
from tests.rabbitmq import RabbitMQ
from tests.system import System
from workers.valkey import EmbeddedValkey

SCOPE = Scope(user_id="ann", conversation_id="c1")


def stored(system: System) -> list[str]:
    """Messages of the scope in working memory, in order."""
    return [turn.user_message for turn in system.service.working.recent(SCOPE, 1000)]


def test_what_is_accepted_without_a_worker_waits_visibly(own_system: System) -> None:
    handles = [own_system.client.reply("ann", "c1", f"m{n}") for n in range(5)]
    assert {handle.status().state for handle in handles} == {"accepted"}
    own_system.start_worker()
    own_system.start_beat()
    handles[-1].wait_persisted()
    assert stored(own_system) == [f"m{n}" for n in range(5)]


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_killed_in_the_call_is_replaced_by_another(own_system: System, pool: str) -> None:
    own_system.start_beat()
    own_system.start_worker("first", pool=pool, concurrency=2)
    pending = own_system.client.reply("ann", "c1", "gate:open please")
    behind = own_system.client.reply("ann", "c1", "and then")
    wait_for(lambda: own_system.calls(pending.turn_id) == 1, "the call to begin")
    own_system.kill("first")
    own_system.start_worker("second", pool=pool, concurrency=2)
    (own_system.folder / "open").touch()
    assert pending.result().answer
    behind.wait_persisted()
    # The window that stays open: the kill came while the call was running.
    assert own_system.calls(pending.turn_id) == 2
    assert own_system.calls(behind.turn_id) == 1
    assert stored(own_system) == ["gate:open please", "and then"]


def test_a_turn_that_kills_every_worker_becomes_a_dead_letter(own_system: System) -> None:
    with System(own_system.folder, own_system.settings.redis_url, max_deliveries=2) as system:
        system.start_beat()
        poisoned = system.client.reply("ann", "c1", "poison")
        behind = system.client.reply("ann", "c1", "and then")
        for number in range(2):
            (system.faults / "kill-complete.before_call").touch()
            system.start_worker(f"victim{number}", concurrency=1, wait=False)
            system.processes[f"victim{number}"].wait(30)
        system.start_worker("survivor")
        with pytest.raises(TurnFailedError, match="WorkerLostError"):
            poisoned.result()
        assert behind.result().answer


def test_a_message_the_broker_lost_is_sent_again(own_system: System) -> None:
    pending = own_system.client.reply("ann", "c1", "lost")
    own_system.client.redis.delete("reply", "persist")
    own_system.start_beat()
    own_system.start_worker()
    assert pending.result().answer
    assert pending.wait_persisted().calls == 1


def test_a_message_delivered_again_and_again_changes_nothing(own_system: System) -> None:
    own_system.start_beat()
    own_system.start_worker()
    pending = own_system.client.reply("ann", "c1", "once")
    status = pending.wait_persisted()
    ref = TurnRef(scope=SCOPE, turn_id=pending.turn_id, epoch=status.epoch)
    publisher = own_system.client._publisher
    for state in ("accepted", "recalled", "completed", "persisted"):
        publisher.publish(ref, state)
    after = own_system.client.reply("ann", "c1", "after")
    after.wait_persisted()
    wait_for(lambda: not own_system.client.redis.llen("reply") + own_system.client.redis.llen("persist"), "the queues")
    assert stored(own_system) == ["once", "after"]
    assert own_system.calls(pending.turn_id) == 1


def test_a_long_term_outage_does_not_hold_up_the_conversation(own_system: System) -> None:
    own_system.start_beat()
    own_system.start_worker()
    (own_system.faults / "upsert").write_text("1")
    first = own_system.client.reply("ann", "c1", "keep this", remember=True)
    second = own_system.client.reply("ann", "c1", "and then")
    assert second.wait_persisted().calls == 1
    wait_for(lambda: first.status().attempts.get("persist", 0) >= 2, "persist to be retried")
    assert first.status().state == "persisted"
    (own_system.faults / "upsert").unlink()
    wait_for(lambda: first.status().state == "promoted", "the long-term write to succeed")
    assert own_system.calls(first.turn_id) == 1
    assert stored(own_system) == ["keep this", "and then"]


def test_a_late_long_term_write_does_not_bring_a_promoted_turn_back(own_system: System) -> None:
    own_system.start_beat()
    own_system.start_worker()
    (own_system.faults / "upsert").write_text("1")
    first = own_system.client.reply("ann", "c1", "keep this", remember=True)
    wait_for(lambda: first.status().attempts.get("persist", 0) >= 1, "persist to be retried")
    # Promotion, by a process whose store works, is faster than the retry.
    own_system.service.promote_older(SCOPE, datetime.now(UTC) + timedelta(minutes=1), 10)
    assert stored(own_system) == []
    (own_system.faults / "upsert").unlink()
    wait_for(lambda: first.status().state == "promoted", "the long-term write to succeed")
    assert stored(own_system) == []
    assert own_system.service.long_term.count(SCOPE) == 1


def test_a_long_term_write_that_fails_for_good_is_a_dead_letter_and_can_be_retried(own_system: System) -> None:
    with System(own_system.folder, own_system.settings.redis_url, persist_attempts=2) as system:
        system.start_beat()
        system.start_worker()
        (system.faults / "upsert").write_text("1")
        pending = system.client.reply("ann", "c1", "keep this", remember=True)
        wait_for(lambda: pending.status().state == "failed", "the turn to be a dead letter")
        assert pending.result().answer
        (dead,) = system.client.failed()
        assert (dead.failed_step, dead.error) == ("persist", "StoreUnavailableError from OSError")
        (system.faults / "upsert").unlink()
        system.client.retry_failed("ann", "c1", pending.turn_id)
        wait_for(lambda: pending.status().state == "promoted", "the retried turn to be promoted")
        assert pending.status().calls == 1
        assert stored(system) == ["keep this"]


def test_recall_that_keeps_failing_stops_the_turn_before_anything_is_stored(own_system: System) -> None:
    own_system.start_beat()
    own_system.start_worker()
    (own_system.faults / "search").write_text("1")
    pending = own_system.client.reply("ann", "c1", "hello")
    with pytest.raises(TurnFailedError) as failure:
        pending.result()
    assert failure.value.step == "recall"
    assert failure.value.error == "RecallError from StoreUnavailableError"
    assert own_system.calls(pending.turn_id) == 0
    assert stored(own_system) == []


def test_recall_may_be_degraded_instead(own_system: System) -> None:
    with System(own_system.folder, own_system.settings.redis_url, on_recall_failure="degrade") as system:
        system.start_beat()
        system.start_worker()
        (system.faults / "search").write_text("1")
        assert system.client.reply("ann", "c1", "hello").result().degraded == ["long_term: StoreUnavailableError"]


def test_redis_that_is_killed_and_started_again_loses_nothing(own_system: System, own_valkey: EmbeddedValkey) -> None:
    own_system.start_beat()
    own_system.start_worker()
    handles = [own_system.client.reply("ann", f"c{n}", f"gate:open m{n}") for n in range(4)]
    wait_for(lambda: all(own_system.calls(handle.turn_id) for handle in handles), "the calls to begin")
    own_system.client.redis.waitaof(1, 0, 5000)
    own_valkey.stop(signal.SIGKILL)
    with pytest.raises(StoreUnavailableError, match="127\\.0\\.0\\.1"):
        own_system.client.reply("ann", "c1", "nobody takes this")
    (own_system.folder / "open").touch()
    own_valkey.start()
    for handle in handles:
        assert handle.result().answer
        assert handle.wait_persisted().calls == 1
        assert own_system.calls(handle.turn_id) == 1


def test_an_answer_the_ledger_cannot_take_travels_on_in_the_message(own_system: System, rabbitmq: RabbitMQ) -> None:
    """Redis is away for longer than the answer is offered to it: RabbitMQ carries it to persist."""
    with System(
        own_system.folder,
        own_system.settings.redis_url,
        broker_url=rabbitmq.new_host(),
        completion_timeout=100,
        completion_lease=4,  # RabbitMQ delays by whole seconds
    ) as system:
        system.environment["TEST_SAVE_PATIENCE"] = "1"
        system.start_beat()
        system.start_worker()
        pending = system.client.reply("ann", "c1", "gate:open m")
        wait_for(lambda: system.calls(pending.turn_id) == 1, "the call to begin")
        valkey = system.client.redis
        valkey.config_set("min-replicas-to-write", 1)
        (system.folder / "open").touch()
        wait_for(lambda: "travels on in the message" in system.log("worker"), "the ledger to be given up", 60)
        valkey.config_set("min-replicas-to-write", 0)
        assert pending.result().answer == "re: gate:open m [2 messages]"
        assert pending.wait_persisted().calls == 1
        assert system.calls(pending.turn_id) == 1


def test_sigterm_lets_the_running_call_finish(own_system: System) -> None:
    own_system.start_beat()
    own_system.start_worker()
    pending = own_system.client.reply("ann", "c1", "gate:open m")
    wait_for(lambda: own_system.calls(pending.turn_id) == 1, "the call to begin")
    process = own_system.processes["worker"]
    process.terminate()
    (own_system.folder / "open").touch()
    assert process.wait(30) == 0
    own_system.processes.pop("worker")
    own_system.start_worker("next")
    assert pending.wait_persisted().calls == 1


def test_a_model_that_hangs_is_given_up_after_its_timeout(own_system: System) -> None:
    with System(
        own_system.folder, own_system.settings.redis_url, completion_timeout=1, completion_attempts=2
    ) as system:
        system.start_beat()
        system.start_worker()
        hanging = system.client.reply("ann", "c1", "gate:never m")
        behind = system.client.reply("ann", "c1", "and then")
        with pytest.raises(TurnFailedError, match="RetryableCompletionError"):
            hanging.result()
        assert behind.result().answer
        assert system.calls(hanging.turn_id) == 2


def test_two_beats_do_no_harm(own_system: System) -> None:
    own_system.start_beat("one")
    own_system.start_beat("two")
    own_system.start_worker()
    handles = [own_system.client.reply("ann", "c1", f"retryable:1 m{n}") for n in range(3)]
    assert handles[-1].wait_persisted().calls == 2
    assert [own_system.calls(handle.turn_id) for handle in handles] == [2, 2, 2]
    assert len(stored(own_system)) == 3


def test_a_rolling_restart_loses_nothing(own_system: System) -> None:
    own_system.start_beat()
    own_system.start_worker("a")
    own_system.start_worker("b")
    handles = []
    for name in ("a", "b"):
        handles += [own_system.client.reply("ann", f"c{n}", f"m{n}") for n in range(40)]
        assert own_system.stop(name) == 0
        own_system.start_worker(f"{name}2")
    for handle in handles:
        assert handle.wait_persisted().calls == 1
    assert all(own_system.calls(handle.turn_id) == 1 for handle in handles)


def test_a_process_group_that_is_stopped_for_a_while_does_not_call_twice(own_system: System) -> None:
    """A worker frozen in mid-call wakes up after its lease was lost: the first answer saved is the answer."""
    own_system.start_beat()
    own_system.start_worker("frozen")
    pending = own_system.client.reply("ann", "c1", "gate:open m")
    wait_for(lambda: own_system.calls(pending.turn_id) == 1, "the call to begin")
    os.killpg(own_system.processes["frozen"].pid, signal.SIGSTOP)
    own_system.start_worker("other")
    wait_for(lambda: own_system.calls(pending.turn_id) == 2, "the other worker to take over")
    os.killpg(own_system.processes["frozen"].pid, signal.SIGCONT)
    (own_system.folder / "open").touch()
    assert pending.wait_persisted().calls == 2
    own_system.stop("frozen")
    assert stored(own_system) == ["gate:open m"]


def test_a_failed_append_is_retried_without_the_model(own_system: System) -> None:
    own_system.start_beat()
    own_system.start_worker()
    turns = own_system.client.keys.scope(SCOPE).turns
    pending = own_system.client.reply("ann", "c1", "gate:open m")
    behind = own_system.client.reply("ann", "c1", "and then")
    wait_for(lambda: own_system.calls(pending.turn_id) == 1, "the call to begin")
    own_system.client.redis.set(turns, "in the way")
    (own_system.folder / "open").touch()
    assert pending.result().answer
    wait_for(lambda: pending.status().attempts.get("persist", 0) >= 2, "persist to be retried")
    assert behind.status().state == "accepted"
    own_system.client.redis.delete(turns)
    behind.wait_persisted()
    assert stored(own_system) == ["gate:open m", "and then"]
    assert [own_system.calls(handle.turn_id) for handle in (pending, behind)] == [1, 1]


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_an_async_completer_has_one_event_loop_a_process(own_system: System, pool: str) -> None:
    with System(own_system.folder, own_system.settings.redis_url, completer="tests.model:complete_async") as system:
        system.start_worker(pool=pool, concurrency=2)
        handles = [system.client.reply("ann", f"c{n}", "hello") for n in range(8)]
        assert all(handle.result().answer.startswith("1 loops") for handle in handles)


def test_a_redis_that_may_lose_turns_is_warned_about(own_system: System) -> None:
    redis = own_system.client.redis
    redis.config_set("maxmemory-policy", "allkeys-lru")
    redis.config_set("appendonly", "no")
    own_system.start_worker()
    own_system.client.reply("ann", "c1", "hello").result()
    log = own_system.log("worker")
    assert "CONFIG SET maxmemory-policy noeviction" in log
    assert "CONFIG SET appendonly yes" in log
    assert durability_warnings(redis) != []
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("appendonly", "yes")
    assert durability_warnings(redis) == []
