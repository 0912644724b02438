"""A reply through real workers: recall, complete, persist."""

import asyncio
import uuid

import pytest

from memory_tasks import PendingReply, Scope, TurnFailedError, UnknownTurnError
from memory_tasks.tasks.publisher import queue_lengths
from tests.conditions import wait_for
from tests.conftest import make_turn
from tests.system import System


@pytest.fixture
def user() -> str:
    return f"ann-{uuid.uuid4().hex}"


def test_a_reply_is_answered_and_stored(system: System, user: str) -> None:
    pending = system.client.reply(user, "c1", "hello there")
    reply = pending.result()
    assert reply.answer == "re: hello there [2 messages]"
    assert reply.completion.model == "stand-in"
    assert pending.wait_persisted().calls == 1
    assert pending.status().state == "persisted"
    (turn,) = system.service.working.recent(Scope(user_id=user, conversation_id="c1"), 8)
    assert (turn.turn_id, turn.user_message, turn.assistant_message) == (pending.turn_id, "hello there", reply.answer)


def test_the_model_sees_the_turn_before_and_other_conversations_stay_out(system: System, user: str) -> None:
    system.client.reply(user, "c1", "first").result()
    assert system.client.reply(user, "c1", "second").result().answer == "re: second [4 messages]"
    assert system.client.reply(user, "c2", "elsewhere").result().answer == "re: elsewhere [2 messages]"


def test_the_same_key_is_the_same_turn_and_one_call(system: System, user: str) -> None:
    key = uuid.uuid4().hex
    handles = [system.client.reply(user, "c1", "pay once", idempotency_key=key) for _ in range(5)]
    assert {handle.result().answer for handle in handles} == {"re: pay once [2 messages]"}
    handles[0].wait_persisted()
    assert system.client.reply(user, "c1", "pay once", idempotency_key=key).result().answer
    assert system.calls(key) == 1
    assert len(system.service.working.recent(Scope(user_id=user, conversation_id="c1"), 8)) == 1


def test_a_handle_says_whether_its_key_was_known(system: System, user: str) -> None:
    key = uuid.uuid4().hex
    handles = [system.client.reply(user, "c1", "once", idempotency_key=key) for _ in range(2)]
    assert [handle.repeated for handle in handles] == [False, True]


def test_the_turns_of_a_conversation_are_listed_with_those_on_their_way(system: System, user: str) -> None:
    client, gate = system.client, uuid.uuid4().hex
    client.reply(user, "c1", "please note", remember=True).wait_persisted()
    client.reply(user, "c1", "final:9 dead")
    running = client.reply(user, "c1", f"gate:{gate} running")
    waiting = client.reply(user, "c1", "waiting", remember=True)
    client.reply(user, "c2", "elsewhere").wait_persisted()
    wait_for(lambda: system.calls(running.turn_id) == 1, "the call to begin")
    wait_for(lambda: client.turns(user, "c1")[0].state == "promoted", "the first to be remembered")
    first, dead, third, last = client.turns(user, "c1")
    assert (first.user_message, first.assistant_message) == ("please note", "re: please note [2 messages]")
    assert (dead.state, dead.failed_step, dead.error) == ("failed", "complete", "CompletionError")
    assert (third.user_message, third.state, third.assistant_message) == (f"gate:{gate} running", "recalled", None)
    assert (last.turn_id, last.state, last.remember) == (waiting.turn_id, "accepted", True)
    (system.folder / gate).touch()
    waiting.wait_persisted()
    assert [turn.turn_id for turn in client.turns(user, "c1", limit=1)] == [waiting.turn_id, dead.turn_id]


def test_what_was_recalled_can_be_asked_for_before_and_after_the_answer(system: System, user: str) -> None:
    client, gate = system.client, uuid.uuid4().hex
    scope = Scope(user_id=user, conversation_id="c2")
    system.service.remember(scope, make_turn("t1", "the zebra lives in Kenya"))
    pending = client.reply(user, "c2", f"gate:{gate} where does the zebra live")
    wait_for(lambda: pending.status().state == "recalled", "recall to be done")
    before = pending.recalled()
    assert before is not None
    (system.folder / gate).touch()
    pending.wait_persisted()
    after = asyncio.run(pending.arecalled())
    assert after is not None
    for found in (before, after):
        assert [hit.memory.turn.user_message for hit in found.memories] == ["the zebra lives in Kenya"]
        assert found.memories[0].relevance
    with pytest.raises(UnknownTurnError):
        client.pending(user, "c2", "nobody").recalled()


def test_the_memories_of_a_conversation_are_listed_newest_last_and_counted(system: System, user: str) -> None:
    client = system.client
    handles = [client.reply(user, "c1", f"note {n}", remember=True) for n in range(3)]
    wait_for(lambda: handles[-1].status().state == "promoted", "the last to be remembered")
    newest, total = client.memories(user, "c1", limit=2)
    assert ([memory.turn.user_message for memory in newest], total) == (["note 1", "note 2"], 3)
    assert client.count(user, "c1") == 3
    assert client.memories(user, "c2") == ([], 0)


def test_the_events_of_a_dead_letter_that_is_retried_go_on(system: System, user: str) -> None:
    pending = system.client.reply(user, "c1", "final:1 then well")
    assert [event.type for event in pending.events()] == ["failed"]
    system.client.retry_failed(user, "c1", pending.turn_id)
    assert [event.type for event in pending.events()] == ["failed", "chunk", "completed", "persisted"]


def test_two_users_may_use_the_same_ids(system: System, user: str) -> None:
    key = uuid.uuid4().hex
    mine = system.client.reply(user, "c1", "mine", idempotency_key=key)
    yours = system.client.reply(f"{user}0", "c1", "yours", idempotency_key=key)
    assert mine.result().answer == "re: mine [2 messages]"
    assert yours.result().answer == "re: yours [2 messages]"
    with pytest.raises(UnknownTurnError, match="2 conversations"):
        system.client.find(key)


@pytest.mark.parametrize("message", ["please note", "My timezone is UTC+2"])
def test_what_is_remembered_or_important_is_in_long_term_memory_at_once(
    system: System, user: str, message: str
) -> None:
    scope = Scope(user_id=user, conversation_id="c1")
    pending = system.client.reply(user, "c1", message, remember=message == "please note")
    pending.result()
    wait_for(lambda: pending.status().state == "promoted", "the turn to be promoted")
    (memory,) = system.service.long_term.export(None, scope)
    assert memory.turn.turn_id == pending.turn_id
    assert len(system.service.working.recent(scope, 8)) == 1


def test_messages_of_one_conversation_are_answered_in_order(system: System, user: str) -> None:
    handles = [system.client.reply(user, "c1", f"number {n}") for n in range(12)]
    answers = [handle.result().answer for handle in handles]
    assert answers == [f"re: number {n} [{2 + 2 * min(n, 8)} messages]" for n in range(12)]
    handles[-1].wait_persisted()
    turns = system.service.working.recent(Scope(user_id=user, conversation_id="c1"), 20)
    assert [turn.user_message for turn in turns] == [f"number {n}" for n in range(12)]


def test_chunks_arrive_as_events_and_a_late_reader_misses_nothing(system: System, user: str) -> None:
    pending = system.client.reply(user, "c1", "stream:5 words of an answer in pieces")
    live = list(pending.events())
    assert [event.type for event in live][-2:] == ["completed", "persisted"]
    chunks = [event for event in live if event.type == "chunk"]
    assert len(chunks) > 1
    assert "".join(event.text for event in chunks) == pending.result().answer
    assert list(pending.events()) == live
    assert list(pending.events(after=chunks[0].id)) == live[1:]


def test_a_reader_that_goes_away_costs_nothing(system: System, user: str) -> None:
    pending = system.client.reply(user, "c1", "stream:5 words of an answer in pieces")
    reader = pending.events()
    next(reader)
    del reader
    assert pending.wait_persisted().calls == 1


def test_the_same_without_blocking_an_event_loop(system: System, user: str) -> None:
    async def talk() -> None:
        pending = await system.client.areply(user, "c1", "stream:3 hello loop")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        events = [event async for event in pending.aevents()]
        assert events[-1].type == "persisted"
        assert (await pending.aresult()).answer.startswith("re: stream:3")
        assert (await pending.await_persisted()).state == "persisted"
        assert (await pending.astatus()).calls == 1
        ticking.cancel()
        assert ticks > 3
        await system.client.aclose()

    asyncio.run(talk())


def test_a_retryable_failure_is_tried_again(system: System, user: str) -> None:
    pending = system.client.reply(user, "c1", "retryable:2 please")
    assert pending.result().answer
    status = pending.wait_persisted()
    assert (status.calls, status.attempts) == (3, {"complete": 2})
    (turn,) = system.service.working.recent(Scope(user_id=user, conversation_id="c1"), 8)
    assert turn.user_message == "retryable:2 please"


def test_a_provider_that_asks_for_time_gets_it(system: System, user: str) -> None:
    pending = system.client.reply(user, "c1", "later:1.5 please")
    assert pending.result().answer
    first, second = system.call_records()[pending.turn_id]
    assert second.begun - first.begun >= 1.5


@pytest.mark.parametrize("kind", ["final", "raise"])
def test_a_final_failure_is_a_dead_letter_and_the_conversation_goes_on(system: System, user: str, kind: str) -> None:
    failing = system.client.reply(user, "c1", f"{kind}:1 secretword")
    behind = system.client.reply(user, "c1", "and now")
    with pytest.raises(TurnFailedError) as failure:
        failing.result()
    assert failure.value.step == "complete"
    assert "secretword" not in str(failure.value)
    assert list(failing.events())[-1].type == "failed"
    assert behind.result().answer == "re: and now [2 messages]"
    assert failing.turn_id in [status.turn_id for status in system.client.failed()]

    retried = system.client.retry_failed(user, "c1", failing.turn_id)
    assert retried.result().answer.startswith("re: ")
    assert retried.wait_persisted().calls == 2
    assert failing.turn_id not in [status.turn_id for status in system.client.failed()]
    with pytest.raises(UnknownTurnError, match="no dead letter"):
        system.client.retry_failed(user, "c1", failing.turn_id)


def test_a_dropped_dead_letter_is_gone(system: System, user: str) -> None:
    failing = system.client.reply(user, "c1", "final:9 nothing works")
    with pytest.raises(TurnFailedError):
        failing.result()
    system.client.drop_failed(user, "c1", failing.turn_id)
    with pytest.raises(UnknownTurnError):
        failing.status()
    with pytest.raises(UnknownTurnError):
        system.client.drop_failed(user, "c1", failing.turn_id)


def test_a_handle_can_be_made_again_by_any_process(system: System, user: str) -> None:
    pending = system.client.reply(user, "c1", "who am I")
    again: PendingReply = system.client.pending(user, "c1", pending.turn_id)
    assert again.result() == pending.result()
    assert system.client.find(pending.turn_id).scope.user_id == user
    with pytest.raises(UnknownTurnError):
        system.client.pending(user, "c1", "never accepted").result()
    with pytest.raises(UnknownTurnError):
        system.client.find("never accepted")


def test_no_text_reaches_the_logs(system: System, user: str) -> None:
    for message in ("marked-secret-text", "raise:9 marked-secret-text", "retryable:1 marked-secret-text"):
        pending = system.client.reply(user, "c1", message)
        wait_for(lambda: pending.status().state in ("persisted", "failed"), "the turn to end")  # noqa: B023
    assert "marked-secret-text" not in system.log("worker") + system.log("beat")


def test_a_megabyte_is_a_message(system: System, user: str) -> None:
    text = "short " + "é" * (512 * 1024 - 3)
    pending = system.client.reply(user, "c1", text)
    pending.wait_persisted()
    (turn,) = system.service.working.recent(Scope(user_id=user, conversation_id="c1"), 8)
    assert turn.user_message == text


def test_an_answer_that_cannot_be_stored_fails_the_turn(system: System, user: str) -> None:
    with pytest.raises(TurnFailedError, match="CompletionError"):
        system.client.reply(user, "c1", "x" * 1_048_576).result()


def test_the_broker_says_how_many_messages_wait(system: System, user: str) -> None:
    system.client.reply(user, "c1", "hello").wait_persisted()
    assert set(queue_lengths(system.client.app)) == {"persist", "promote", "reply"}
