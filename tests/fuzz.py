"""Messages and ledger entries that are none, in masses: `make fuzz`, and a smaller share in the test suite.

Nothing of it may end a worker, show up in a log, or cost a turn.
"""

import base64
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memory_tasks import MemoryTasksError, ReplyRequest, Scope, Settings
from memory_tasks.connection import connect
from memory_tasks.ledger import Ledger
from memory_tasks.pending import PendingReply
from tests.conditions import wait_for
from tests.system import System
from workers.valkey import EmbeddedValkey

SECRET = "pangolin"
QUEUES = ("reply", "persist", "promote")
TASKS = ("recall", "complete", "persist", "promote", "sweep", "enumerate_due", "unknown")
JUNK: Sequence[Any] = (
    None, True, 0, -1, 2**70, 1.5, "", " ", "\0", "x" * 999, "a:b", "ann:c1", "\ud800", "%zz", [], {}, [[]],
    {"a": {}}, ["x"] * 50, {"ref": None}, {"scope": {}}, float("1e308"), "gAAAA" + "x" * 90, "../..", "nan", "-",
)  # fmt: skip


class Fuzzer:
    """Makes what is malformed.

    Args:
        seed: The same seed gives the same.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def junk(self) -> Any:
        return self._random.choice(JUNK)

    def _spoilt(self, value: Any) -> Any:
        """A value with some part of it replaced, removed or doubled."""
        if isinstance(value, dict) and value and self._random.random() < 0.8:
            spoilt, key = dict(value), self._random.choice(list(value))
            how = self._random.random()
            if how < 0.2:
                del spoilt[key]
            elif how < 0.4:
                spoilt[str(self.junk())[:20]] = self.junk()
            else:
                spoilt[key] = self._spoilt(value[key])
            return spoilt
        if isinstance(value, list) and value and self._random.random() < 0.6:
            return [self._spoilt(item) for item in value]
        return self.junk()

    def message(self) -> bytes:
        """What somebody may push into a list of the broker."""
        ref = {"scope": {"user_id": "ann", "conversation_id": "c1"}, "turn_id": "t", "epoch": 1}
        body: Any = [[], {"ref": ref}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
        headers = {"task": f"memory_tasks.{self._random.choice(TASKS)}", "id": "x", "lang": "py", "argsrepr": "()"}
        properties = {
            "delivery_tag": str(self._random.random()), "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": "reply"}, "correlation_id": "x", "priority": 0,
        }  # fmt: skip
        if self._random.random() < 0.6:
            body = self._spoilt(body)
        if self._random.random() < 0.2:
            body = [[SECRET], {"ref": {**ref, "text": SECRET}}, {"text": SECRET}]
        encoded = json.dumps(body).encode()
        envelope: Any = {
            "body": base64.b64encode(encoded).decode(), "content-encoding": "utf-8",
            "content-type": self._random.choice(["application/json"] * 5 + ["application/x-python-serialize", "a/b"]),
            "headers": headers, "properties": properties,
        }  # fmt: skip
        if self._random.random() < 0.6:
            envelope = self._spoilt(envelope)
        raw = json.dumps(envelope).encode()
        how = self._random.random()
        if how < 0.1:
            return raw[: self._random.randrange(len(raw))]
        if how < 0.15:
            return self._random.randbytes(self._random.randrange(200))
        return raw

    def entry(self) -> dict[str, str]:
        """Fields that somebody may write into an entry of the ledger."""
        names = (
            "v", "state", "epoch", "request", "context", "reply", "calls", "lease", "lease_until", "contested",
            "retry_at", "long_term", "published", "deliveries:recall", "attempts:persist", "error", "failed_step",
            "resume", "accepted_at", "trace", "strange",
        )  # fmt: skip
        chosen = self._random.sample(names, self._random.randrange(1, 6))
        return {name: str(self.junk()).encode("utf-8", "replace").decode() for name in chosen}


def messages(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Malformed messages between good ones, on a real worker; what went wrong."""
    fuzzer = Fuzzer(seed)
    with (
        EmbeddedValkey(folder / "ledger") as ledger,
        EmbeddedValkey(folder / "broker") as broker,
        System(folder / "system", ledger.url, broker_url=broker.url, republish_after=60.0) as system,
    ):
        system.start_beat()
        system.start_worker()
        worker = system.processes["worker"]
        client, good, sent = connect(broker.url), list[PendingReply](), 0
        while sent < count:
            with client.pipeline(transaction=False) as pipe:
                for _ in range(500):
                    pipe.lpush(random.choice(QUEUES), fuzzer.message())
                pipe.execute()
            sent += 500
            good.append(system.client.reply("ann", f"c{len(good)}", f"hello {SECRET}"))
            # A backlog that the worker never catches up with would test the waiting, not the worker.
            wait_for(lambda: sum(client.llen(queue) for queue in QUEUES) < 2000 or worker.poll() is not None, "", 120)
        for pending in good:
            pending.wait_persisted(120)
        if worker.poll() is not None:
            yield f"the worker ended with {worker.returncode}"
        wrong = [pending.turn_id for pending in good if system.calls(pending.turn_id) != 1]
        if wrong:
            yield f"{len(wrong)} good turns were not answered exactly once"
        if SECRET in system.log("worker"):
            yield "a log shows what a message held"
        if "rejected a message" not in system.log("worker"):
            yield "nothing was rejected: the messages are not malformed enough"


def entries(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Spoilt entries beside a good one, through every call of the ledger; what went wrong."""
    fuzzer = Fuzzer(seed)
    with EmbeddedValkey(folder / "entries") as server:
        client: Any = connect(server.url)
        ledger = Ledger(client, Settings.load(redis_url=server.url, broker_url="memory://"))
        good = ledger.accept(ReplyRequest(scope=Scope(user_id="ann", conversation_id="good"), message="hello")).ref
        before = client.hgetall(ledger.keys.turn(good.scope, good.turn_id).entry)
        scope = Scope(user_id="ann", conversation_id="spoilt")
        for number in range(count):
            request = ReplyRequest(scope=scope, message=SECRET, turn_id=f"t{number}")
            ref = ledger.accept(request).ref
            keys = ledger.keys.turn(scope, ref.turn_id)
            fields = fuzzer.entry()
            client.hset(keys.entry, mapping=fields)
            if number % 50 == 0:
                client.zadd(keys.scope.shard.sweep, {str(fuzzer.junk()).encode("utf-8", "replace").decode(): 0})
            for act in (
                lambda: ledger.begin(ref, random.choice(("recall", "complete", "persist")), "token"),  # noqa: B023
                lambda: ledger.retry(ref, "recall", "OSError", delay=1, max_attempts=3),  # noqa: B023
                lambda: ledger.persisted(ref, long_term_pending=False),  # noqa: B023
                lambda: ledger.republish(keys.tag),  # noqa: B023
                lambda: ledger.find(scope, ref.turn_id),  # noqa: B023
                lambda: ledger.reply(scope, ref.turn_id),  # noqa: B023
                lambda: ledger.due() if number % 50 == 0 else None,  # noqa: B023
            ):
                try:
                    act()
                except MemoryTasksError as error:
                    if SECRET in str(error):
                        yield f"an error shows what the entry held: {type(error).__name__}"
            client.hset(keys.entry, "v", 1)
            ledger.forget(scope)
        after = client.hgetall(ledger.keys.turn(good.scope, good.turn_id).entry)
        if {**after, "published": ""} != {**before, "published": ""}:
            yield "a good turn was touched"
        if ledger.begin(good, "recall").verdict != "go":
            yield "a good turn was lost"


def run(count: int, seed: int, folder: Path) -> list[str]:
    """Half of the count each; what went wrong."""
    return [*messages(count // 2, seed, folder), *entries(count // 2, seed, folder)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="memory-tasks-fuzz-") as scratch:
        total, chosen = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6)
        found = run(total, chosen, Path(scratch))
        sys.stdout.write(f"{total} malformed messages and entries, seed {chosen}: {found or 'no harm'}\n")
        sys.exit(1 if found else 0)
