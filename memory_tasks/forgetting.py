"""Forget, in every tier, whatever is running meanwhile.

First the ledger: a task that works for an erased turn writes nothing more. Then working memory. Then whoever had
begun to write into long-term memory is waited for, and long-term memory is erased last. So nothing comes back, and a
message that is accepted meanwhile is a new one.
"""

import json
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from memory_tasks.connection import reaching
from memory_tasks.errors import StaleTurnError
from memory_tasks.keys import Keys, scope_tag
from memory_tasks.ledger import Ledger
from memory_tasks.models import Forgotten, Scope
from memory_tasks.ports import LongTermStore, WorkingStore
from memory_tasks.scripts import Scripts, as_text
from memory_tasks.turns import TurnRef

POLL_SECONDS = 0.02


class Writers:
    """The writes into long-term memory that run, so that forget can wait for them.

    Args:
        client: A redis-py client; the caller owns it.
        keys: The names.
        lease: Seconds after which a writer that has not come back is taken for dead.
    """

    def __init__(self, client: Any, keys: Keys, lease: float) -> None:
        self._client = client
        self._scripts = Scripts(client)
        self._keys = keys
        self._lease_ms = int(lease * 1000)

    @contextmanager
    def writing(
        self, scope: Scope, turn_ids: Sequence[str], long_term: LongTermStore, ref: TurnRef | None = None
    ) -> Iterator[None]:
        """Write these turns inside. When forget has given up waiting for it, what was written is erased again.

        Raises:
            StaleTurnError: The turn was forgotten: before the body, which is not run, or during it.
        """
        member = f"{scope_tag(scope)} {uuid.uuid4().hex}"
        if not self._call("enter", scope, member, ref):
            raise StaleTurnError("the turn was forgotten: nothing was written")
        try:
            yield
        finally:
            in_time = self._call("leave", scope, member, None)
            if not in_time:
                long_term.delete(scope, turn_ids)
        if not in_time:
            raise StaleTurnError("the write outlived its lease, so it was undone; it will be repeated if still wanted")

    def _call(self, command: str, scope: Scope, member: str, ref: TurnRef | None) -> bool:
        entry = self._keys.turn(scope, ref.turn_id if ref else "-").entry
        epoch = ref.epoch if ref else ""
        keys = [self._keys.scope(scope).user.writers, entry]
        return bool(self._scripts("writer", keys, [command, member, self._lease_ms, epoch]))

    def wait(self, user_id: str, scope: Scope | None = None) -> None:
        """Wait for the writers of a user, or of one scope, that have begun by now: until each has left or is dead."""
        key = self._keys.user(user_id).writers
        with reaching(self._client):
            members = [as_text(member) for member in self._client.zrange(key, 0, -1)]
        left = {m for m in members if scope is None or m.partition(" ")[0] == scope_tag(scope)}
        pause = threading.Event()
        while left := {member for member in left if self._scripts("writer", [key, key], ["look", member])}:
            pause.wait(POLL_SECONDS)


class Forgetting:
    """Erases in all tiers.

    Args:
        client: A redis-py client.
        working: Recent turns.
        long_term: The semantic store.
        ledger: The saved states.
        writers: Who is writing.
    """

    def __init__(
        self, client: Any, working: WorkingStore, long_term: LongTermStore, ledger: Ledger, writers: Writers
    ) -> None:
        self._client = client
        self._working = working
        self._long_term = long_term
        self._ledger = ledger
        self._writers = writers

    def scope(self, scope: Scope) -> Forgotten:
        """Erase a conversation."""
        ledger = self._ledger.forget(scope)
        working = self._working.forget(scope)
        self._writers.wait(scope.user_id, scope)
        return Forgotten(ledger=ledger, working=working, long_term=self._long_term.forget(scope))

    def user(self, user_id: str) -> Forgotten:
        """Erase all conversations of a user."""
        ledger = working = 0
        for scope in self._working.conversations(user_id):
            ledger += self._ledger.forget(scope)
            working += self._working.forget(scope)
        self._writers.wait(user_id)
        return Forgotten(ledger=ledger, working=working, long_term=self._long_term.forget_user(user_id))

    def turns(self, scope: Scope, turn_ids: Sequence[str]) -> tuple[Forgotten, list[TurnRef]]:
        """Erase single turns; also the turns whose time has come because one before them is gone."""
        ledger, followers = self._ledger.forget_turns(scope, turn_ids)
        working = self._working.remove(scope, turn_ids)
        self._writers.wait(scope.user_id, scope)
        long_term = self._long_term.delete(scope, turn_ids)
        return Forgotten(ledger=ledger, working=working, long_term=long_term), followers

    def leftovers(self, text: str) -> dict[str, int]:
        """Where a text is still found, by tier: reads everything, for people who want to be sure.

        Args:
            text: At least a few characters, as it was said.

        Returns:
            Number of Redis keys, of memories and of the store's files that hold it.
        """
        needles = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        with reaching(self._client):
            redis = sum(
                _holds(map(self._ledger.sealer.reveal, self._values(key)), needles)
                for key in self._client.scan_iter("*", 1000)
            )
        memories = sum(
            _holds((m.turn.user_message, m.turn.assistant_message), needles) for m in self._long_term.export()
        )
        scan = getattr(self._long_term, "files_with", None)
        return {"redis": redis, "long_term": memories, "files": scan(text) if scan else 0}

    def _values(self, key: str) -> Iterator[str]:
        yield as_text(key)
        match as_text(self._client.type(key)):
            case "string":
                yield as_text(self._client.get(key) or "")
            case "hash":
                for name, value in self._client.hscan_iter(key):
                    yield from (as_text(name), as_text(value))
            case "list":
                for start in range(0, self._client.llen(key), 500):
                    yield from map(as_text, self._client.lrange(key, start, start + 499))
            case "set":
                yield from map(as_text, self._client.sscan_iter(key))
            case "zset":
                yield from (as_text(member) for member, _ in self._client.zscan_iter(key))
            case "stream":
                for _, fields in self._client.xrange(key):
                    yield from map(as_text, fields.values())


def _holds(values: Iterable[str], needles: set[str]) -> bool:
    return any(needle in value for value in values for needle in needles)
