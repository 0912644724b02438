"""The ledger on a real server: who may do what, and when."""

import uuid

import pytest
import redis

from memory_tasks import Completion, Recall, ReplyRequest, Scope, Settings
from memory_tasks.ledger import Ledger, make_reply
from memory_tasks.turns import TurnRef
from tests.conditions import wait_for

SCOPE = Scope(user_id="ann", conversation_id="c1")


@pytest.fixture
def ledger(client: redis.Redis, settings: Settings) -> Ledger:
    return Ledger(client, settings.model_copy(update={"completion_lease": 1.0, "max_deliveries": 2}))


def request(turn_id: str = "") -> ReplyRequest:
    return ReplyRequest(scope=SCOPE, message="hello", turn_id=turn_id or uuid.uuid4().hex)


def recalled(ledger: Ledger, accepted: ReplyRequest) -> TurnRef:
    ref = ledger.accept(accepted).ref
    assert ledger.begin(ref, "recall").verdict == "go"
    assert ledger.recalled(ref, Recall())
    return ref


def test_a_lost_lease_is_contested_before_it_is_taken_over(ledger: Ledger) -> None:
    ref = recalled(ledger, request())
    assert ledger.begin(ref, "complete", "first").verdict == "go"
    lease = ledger.keys.turn(SCOPE, ref.turn_id).entry
    expired = lambda: int(ledger._client.hget(lease, "lease_until")) < ledger._client.time()[0] * 1000  # noqa: E731
    wait_for(expired, "the lease to end")
    # The holder was cut off from Redis for longer than its lease, and comes back just after somebody else has asked.
    assert ledger.begin(ref, "complete", "second").verdict == "busy"
    assert ledger.renew(ref, "first")
    assert ledger.begin(ref, "complete", "second").verdict == "busy"
    assert wait_for(lambda: ledger.begin(ref, "complete", "second").verdict == "go", "the take-over", 10)
    assert not ledger.renew(ref, "first")


def test_the_first_answer_saved_is_the_answer_whoever_holds_the_lease(ledger: Ledger) -> None:
    accepted = request()
    ref = recalled(ledger, accepted)
    ledger.begin(ref, "complete", "first")
    for text in ("one", "two"):
        assert ledger.completed(ref, make_reply(accepted, Recall(), Completion(text=text)))
    reply = ledger.reply(SCOPE, ref.turn_id)
    assert reply is not None
    assert reply.answer == "one"
    assert ledger.begin(ref, "complete", "second").verdict == "stale"


def test_a_step_can_only_begin_in_its_state_and_under_its_epoch(ledger: Ledger) -> None:
    first = ledger.accept(request())
    ref = first.ref
    assert first.is_active
    assert ledger.begin(ref, "complete").verdict == "stale"
    assert ledger.begin(ref, "persist").verdict == "stale"
    old = ref.model_copy(update={"epoch": ref.epoch - 1})
    assert ledger.begin(old, "recall").verdict == "stale"
    assert not ledger.recalled(old, Recall())
    assert ledger.begin(ref, "recall").verdict == "go"


def test_deliveries_that_never_end_are_counted(ledger: Ledger) -> None:
    ref = ledger.accept(request()).ref
    second = ledger.accept(request())
    behind = second.ref
    assert not second.is_active
    assert [ledger.begin(ref, "recall").verdict for _ in range(3)] == ["go", "go", "dead"]
    status = ledger.status(SCOPE, ref.turn_id)
    assert (status.state, status.failed_step, status.error) == ("failed", "recall", "WorkerLostError")
    revived, state = ledger.revive(SCOPE, ref.turn_id)
    # The one behind it is active now, so it waits its turn.
    assert (revived, state) == (None, "accepted")
    assert ledger.begin(behind, "recall").verdict == "go"


def test_a_failure_that_was_survived_does_not_count_as_a_delivery(ledger: Ledger) -> None:
    ref = ledger.accept(request()).ref
    for attempt in range(4):
        begun = wait_for(lambda: (b := ledger.begin(ref, "recall")).verdict == "go" and b, "the retry to be due")
        assert begun.attempts == attempt
        assert ledger.retry(ref, "recall", "OSError", delay=0.01, max_attempts=9)[0] == "retry"
        assert ledger.begin(ref, "recall").verdict == "busy"


def test_nothing_of_a_finished_turn_but_its_answer_is_kept_and_that_expires(
    ledger: Ledger, client: redis.Redis
) -> None:
    accepted = request()
    ref = recalled(ledger, accepted)
    ledger.begin(ref, "complete", "t")
    ledger.completed(ref, make_reply(accepted, Recall(), Completion(text="hi")))
    ledger.begin(ref, "persist")
    ledger.persisted(ref, long_term_pending=False)
    keys = ledger.keys.turn(SCOPE, ref.turn_id)
    assert not {"request", "context", "lease"} & set(client.hkeys(keys.entry))
    assert 0 < client.pttl(keys.entry) <= 86_400_000
    assert 0 < client.pttl(keys.scope.entries) <= 86_400_000
    assert client.zscore(keys.scope.shard.sweep, keys.tag) is None
