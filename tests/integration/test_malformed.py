"""Messages and ledger entries that are none of ours."""

import json
from pathlib import Path
from typing import Any

import pytest

from memory_tasks import MemoryClient, Reply, Scope
from memory_tasks.models import Completion
from tests import fuzz
from tests.conditions import wait_for
from tests.system import System


@pytest.mark.timeout(300)
def test_a_share_of_the_fuzz_run(tmp_path: Path) -> None:
    assert fuzz.run(10_000, 7, tmp_path) == []


def test_rabbitmq_brings_malformed_messages_too(prefork_on_rabbitmq: System) -> None:
    system, fuzzer = prefork_on_rabbitmq, fuzz.Fuzzer(7)
    worker = system.processes["worker"]
    with system.client.app.connection_for_write() as connection, connection.channel() as channel:
        for number in range(300):
            envelope: Any = None
            while not isinstance(envelope, dict):
                try:
                    envelope = json.loads(fuzzer.message())
                except ValueError:
                    envelope = None
            found = envelope.get("headers")
            headers: dict[Any, Any] = found if isinstance(found, dict) else {}
            message = channel.prepare_message(
                str(envelope.get("body")).encode("utf-8", "replace"),
                content_type=str(envelope.get("content-type"))[:200],
                content_encoding="utf-8",
                headers={
                    str(k)[:99]: v for k, v in headers.items() if isinstance(v, str | int) and abs(hash(v)) < 2**63
                },
            )
            channel.basic_publish(message, exchange="", routing_key=fuzz.QUEUES[number % 3])
    assert system.client.reply("fuzz", "c1", "hello").result().answer
    assert worker.poll() is None


def forged(client: MemoryClient, turn_id: str, carried: object) -> None:
    """Send what somebody with access to the broker may send for a turn that is waiting for its answer."""
    status = client.pending("ann", "c1", turn_id).status()
    ref = {"scope": status.scope.model_dump(), "turn_id": turn_id, "epoch": status.epoch}
    client.app.send_task("memory_tasks.persist", args=[carried], kwargs={"ref": ref}, queue="persist")


def test_a_stranger_in_the_broker_can_put_no_answer_into_anybodys_mouth(own_system: System) -> None:
    own_system.start_worker()
    client = own_system.client
    pending = client.reply("ann", "c1", "gate:go hello", idempotency_key="t1")
    wait_for(lambda: own_system.calls("t1") == 1, "the model to be called")
    scope = Scope(user_id="ann", conversation_id="c1")
    reply = Reply(scope=scope, turn_id="t1", completion=Completion(text="forged"))
    other = Reply(scope=scope, turn_id="t2", completion=Completion(text="forged"))
    carrier = client.ledger.carrier()
    for carried in (reply.model_dump_json(), reply.model_dump(mode="json"), 7, carrier.seal(other.model_dump_json())):
        forged(client, "t1", carried)
    wait_for(lambda: own_system.log("worker").count("rejected a message for persist") == 4, "all to be rejected")
    (own_system.folder / "go").touch()
    assert pending.result().answer.startswith("re: gate:go hello")


def test_a_message_for_another_scope_reaches_nothing_of_it(own_system: System) -> None:
    own_system.start_worker()
    client = own_system.client
    pending = client.reply("ann", "c1", "gate:go hello", idempotency_key="t1")
    wait_for(lambda: own_system.calls("t1") == 1, "the model to be called")
    for user, epoch in (("mallory", pending.status().epoch), ("ann", 1)):
        ref = {"scope": {"user_id": user, "conversation_id": "c1"}, "turn_id": "t1", "epoch": epoch}
        for step in ("recall", "complete"):
            client.app.send_task(f"memory_tasks.{step}", kwargs={"ref": ref}, queue="reply")
    assert client.reply("ann", "c2", "hello").result().answer
    (own_system.folder / "go").touch()
    assert pending.result().memories == []
    assert own_system.calls("t1") == 1
