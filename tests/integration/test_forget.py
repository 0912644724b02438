"""Forget in every tier, while things are queued and running."""

import asyncio
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memory_tasks import (
    Forgotten,
    Memory,
    Scope,
    StaleTurnError,
    StoreUnavailableError,
    Turn,
    UnknownTurnError,
)
from memory_tasks.errors import InvalidInputError
from memory_tasks.forgetting import Writers
from tests.conditions import wait_for
from tests.conftest import make_turn
from tests.system import System
from workers.valkey import EmbeddedValkey

SECRET = "quizzaciously"
SCOPE = Scope(user_id="ann", conversation_id="c1")


@pytest.fixture
def running(own_system: System) -> System:
    own_system.start_beat()
    own_system.start_worker()
    return own_system


def leftovers(system: System) -> int:
    return sum(system.client.leftovers(SECRET).values())


def test_a_conversation_is_forgotten_in_every_tier_and_its_neighbours_stay(running: System) -> None:
    client = running.client
    kept = client.reply("ann", "c2", "other words", remember=True)
    longer = client.reply("ann2", "c1", "other words", remember=True)
    for n in range(3):
        last = client.reply("ann", "c1", f"{SECRET} {n}", remember=True)
    for pending in (kept, longer, last):
        wait_for(lambda: pending.status().state == "promoted", "the turns to be promoted")  # noqa: B023
    assert leftovers(running) > 0
    assert client.forget("ann", "c1") == Forgotten(working=3, long_term=3, ledger=3)
    assert leftovers(running) == 0
    assert client.forget("ann", "c1") == Forgotten()
    for call in (last.status, last.result, lambda: list(last.events())):
        with pytest.raises(UnknownTurnError):
            call()
    assert kept.status().state == "promoted"
    assert running.service.long_term.count(longer.scope) == 1
    # The same key is a new turn now.
    again = client.reply("ann", "c1", "new words", idempotency_key=last.turn_id)
    assert again.result().answer == "re: new words [2 messages]"
    assert again.wait_persisted().calls == 1


def test_nothing_of_a_forgotten_user_is_left_in_redis(running: System) -> None:
    client = running.client
    client.reply("ann", "c1", f"final:9 {SECRET}")
    for n in range(4):
        client.reply("ann", f"c{n}", SECRET)
    wait_for(lambda: not client.redis.exists(client.keys.scope(SCOPE).mailbox), "the mailbox to be empty")
    client.reply("ann", "c1", f"gate:never {SECRET}")
    client.reply("ann", "c1", f"waits behind {SECRET}")
    forgotten = client.forget_user("ann")
    assert forgotten.ledger == 7
    running.kill("worker")
    assert list(client.redis.scan_iter("*:ann*")) == []
    for shard in client.keys.shards():
        for index in (shard.sweep, shard.dead, shard.due):
            assert client.redis.zrange(index, 0, -1) == []
    assert leftovers(running) == 0


@pytest.mark.parametrize(
    "boundary",
    ["recall.found", "complete.after_call", "persist.before_append", "persist.appended", "persist.before_long_term"],
)
def test_a_step_that_runs_while_its_conversation_is_forgotten_brings_nothing_back(
    running: System, boundary: str
) -> None:
    pause = running.faults / f"pause-{boundary}"
    pause.touch()
    pending = running.client.reply("ann", "c1", SECRET, remember=True)
    waiting = running.client.reply("ann", "c1", f"{SECRET} again", remember=True)
    reached = wait_for(lambda: _reached(running, pending.turn_id, boundary), f"the turn to reach {boundary}")
    assert reached
    running.client.forget("ann", "c1")
    pause.unlink()
    after = running.client.reply("ann", "c1", "after")
    after.wait_persisted()
    assert leftovers(running) == 0
    for handle in (pending, waiting):
        with pytest.raises(UnknownTurnError):
            handle.status()


def _reached(running: System, turn_id: str, boundary: str) -> bool:
    status = running.client.pending("ann", "c1", turn_id).status()
    return (
        status.state
        == {
            "recall.found": "accepted",
            "complete.after_call": "recalled",
            "persist.before_append": "completed",
            "persist.appended": "completed",
            "persist.before_long_term": "persisted",
        }[boundary]
    )


def test_forget_waits_for_a_write_that_has_begun(running: System) -> None:
    pause = running.faults / "pause-persist.after_long_term"
    pause.touch()
    pending = running.client.reply("ann", "c1", SECRET, remember=True)
    wait_for(lambda: running.service.long_term.count(SCOPE) == 1, "the long-term write")

    async def forget() -> Forgotten:
        task = asyncio.create_task(running.client.aforget("ann", "c1"))
        await asyncio.sleep(0.2)
        assert not task.done()
        pause.unlink()
        return await task

    assert asyncio.run(forget()).long_term == 1
    assert leftovers(running) == 0
    with pytest.raises(UnknownTurnError):
        pending.status()


def test_a_frozen_writer_that_wakes_up_later_undoes_its_write(running: System) -> None:
    with System(running.folder, running.settings.redis_url, step_timeout=0.5) as system:
        pause = system.faults / "pause-persist.after_long_term"
        pause.touch()
        system.client.reply("ann", "c1", SECRET, remember=True)
        wait_for(lambda: system.service.long_term.count(SCOPE) == 1, "the long-term write")
        os.killpg(running.processes["worker"].pid, signal.SIGSTOP)
        assert system.client.forget("ann", "c1").long_term == 1
        # What a write looks like that had been frozen just before it reached the file.
        system.service.long_term.upsert([Memory(scope=SCOPE, turn=_turn_of(running))])
        pause.unlink()
        os.killpg(running.processes["worker"].pid, signal.SIGCONT)
        wait_for(lambda: system.service.long_term.count(SCOPE) == 0, "the write to be undone")
        assert leftovers(system) == 0


def _turn_of(system: System) -> Turn:
    (turn_id,) = system.call_records()
    return make_turn(turn_id, SECRET)


def test_single_turns_are_forgotten_and_the_next_one_goes_on(running: System) -> None:
    client = running.client
    first = client.reply("ann", "c1", "keep this")
    gone = client.reply("ann", "c1", f"gate:never {SECRET}")
    behind = client.reply("ann", "c1", f"also {SECRET}")
    last = client.reply("ann", "c1", "and this")
    wait_for(lambda: running.calls(gone.turn_id) == 1, "the call to begin")
    assert client.forget_turns("ann", "c1", [gone.turn_id, behind.turn_id, "unknown"]).ledger == 2
    assert last.result().answer == "re: and this [4 messages]"
    assert first.status().state == "persisted"
    assert client.forget_turns("ann", "c1", [first.turn_id]).working == 1
    assert leftovers(running) == 0


def test_promotion_and_forget_at_once_bring_nothing_back(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with System(tmp_path, own_valkey.url, promote_after=0, promote_interval=0.1) as system:
        system.start_beat()
        system.start_worker()
        for round_ in range(15):
            for n in range(3):
                system.client.reply("ann", "c1", f"{SECRET} {round_}-{n}", remember=n == 1)
            system.client.forget("ann", "c1") if round_ % 2 else system.client.forget_user("ann")
        system.client.forget_user("ann")
        after = system.client.reply("ann", "c1", "after")
        after.wait_persisted()
        wait_for(lambda: not system.client.redis.llen("promote"), "the queue to be empty")
        assert leftovers(system) == 0


def test_forget_fails_loudly_when_a_tier_is_down_and_can_be_repeated(
    running: System, own_valkey: EmbeddedValkey
) -> None:
    running.client.reply("ann", "c1", SECRET, remember=True).wait_persisted()
    assert running.client.forget("nobody", "c1") == Forgotten()
    own_valkey.stop()
    with pytest.raises(StoreUnavailableError):
        running.client.forget("ann", "c1")
    own_valkey.start()
    assert running.client.forget("ann", "c1").working == 1
    assert leftovers(running) == 0
    with pytest.raises(InvalidInputError):
        running.client.forget_user(" ")


def test_a_user_of_25000_turns_and_1000_conversations(own_system: System) -> None:
    service = own_system.service
    scopes = [Scope(user_id="ann", conversation_id=f"c{n}") for n in range(1000)]
    for scope in scopes:
        service.long_term.upsert([Memory(scope=scope, turn=make_turn(f"t{n}", SECRET)) for n in range(20)])
        for n in range(5):
            service.working.append(scope, make_turn(f"w{n}", SECRET))
    assert own_system.client.forget_user("ann") == Forgotten(working=5000, long_term=20_000)
    assert leftovers(own_system) == 0


def test_a_library_service_forgets_in_both_stores(own_system: System) -> None:
    service = own_system.service
    other = Scope(user_id="ann", conversation_id="c2")
    for scope in (SCOPE, other):
        service.working.append(scope, make_turn("t1", SECRET))
        service.working.append(scope, make_turn("t2", SECRET))
        service.long_term.upsert([Memory(scope=scope, turn=make_turn("t0", SECRET))])
    assert service.forget_turns(SCOPE, ["t1", "t0"]) == Forgotten(working=1, long_term=1)
    assert service.forget(SCOPE) == Forgotten(working=1)
    assert service.forget_user("ann") == Forgotten(working=2, long_term=1)
    assert leftovers(own_system) == 0


def test_a_late_writer_is_told_to_undo(own_system: System) -> None:
    writers = Writers(own_system.client.redis, own_system.client.keys, 0.05)
    long_term = own_system.service.long_term
    memory = Memory(scope=SCOPE, turn=make_turn("t1", SECRET, created_at=datetime.now(UTC)))

    def write_late() -> None:
        with writers.writing(SCOPE, ["t1"], long_term):
            long_term.upsert([memory])
            writers.wait("ann", SCOPE)

    with pytest.raises(StaleTurnError, match="undone"):
        write_late()
    assert long_term.count(SCOPE) == 0
