"""Promotion of one conversation: upsert into long-term memory first, then remove exactly those turns."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from memory_tasks.connection import reaching, server_time
from memory_tasks.errors import PartialWriteError
from memory_tasks.keys import Keys
from memory_tasks.models import Memory, Record, Scope, Turn
from memory_tasks.ports import LongTermStore, WorkingStore

if TYPE_CHECKING:
    from memory_tasks.forgetting import Writers
    from memory_tasks.settings import Settings


class Promoted(Record):
    """What one batch did."""

    promoted: int
    """Turns moved to long-term memory."""
    failed: dict[str, str]
    """Turns that could not be stored and stay in working memory, with the class name of the error."""
    more: bool
    """Whether there may be more to move."""
    oldest: datetime | None = None
    """When the oldest of the moved turns was said."""


def _nowhere(_: str) -> None:
    return None


def move(
    working: WorkingStore,
    long_term: LongTermStore,
    scope: Scope,
    turns: Sequence[Turn],
    checkpoint: Callable[[str], None] = _nowhere,
) -> Promoted:
    """Move turns of working memory. A stop at any point loses nothing and doubles nothing: repeat the call."""
    if not turns:
        return Promoted(promoted=0, failed={}, more=False)
    failed: dict[str, str] = {}
    try:
        long_term.upsert([Memory(scope=scope, turn=turn) for turn in turns])
    except PartialWriteError as error:
        failed = error.failed
    checkpoint("promote.upserted")
    stored = [turn.turn_id for turn in turns if turn.turn_id not in failed]
    promoted = working.remove(scope, stored) if stored else 0
    oldest = min((turn.created_at for turn in turns if turn.turn_id not in failed), default=None)
    return Promoted(promoted=promoted, failed=failed, more=bool(stored), oldest=oldest)


class Promoter:
    """Moves what is due of a conversation, beside others that promote, append and forget.

    Args:
        client: A redis-py client.
        settings: Ages and sizes.
        working: Recent turns.
        long_term: The semantic store.
        writers: Where the write announces itself.
        checkpoint: For failure tests: called with the name of each boundary that is crossed.
    """

    def __init__(
        self,
        client: Any,
        settings: "Settings",
        working: WorkingStore,
        long_term: LongTermStore,
        writers: "Writers",
        checkpoint: Callable[[str], None] = _nowhere,
    ) -> None:
        self._client = client
        self._settings = settings
        self._keys = Keys(settings.prefix)
        self._working = working
        self._long_term = long_term
        self._writers = writers
        self._checkpoint = checkpoint

    def batch(self, scope: Scope, *, whatever_age: bool = False) -> Promoted:
        """Move a batch of the aged turns; what is above `max_turns` moves whatever its age.

        Raises:
            StoreUnavailableError: Repeat the call.
            StaleTurnError: Forget gave up waiting for this write, which was undone.
        """
        settings, keys = self._settings, self._keys.scope(scope)
        present = server_time(self._client)
        with reaching(self._client):
            # From here on a dead worker holds the scope up for as long as a step may take, not for the whole claim.
            self._client.zadd(keys.shard.due, {keys.tag: int((present + settings.step_timeout) * 1000)}, xx=True)
            excess = self._client.llen(keys.turns) - settings.max_turns
        before = datetime.fromtimestamp(present, UTC) + timedelta(milliseconds=1)
        limit = settings.promote_batch
        if whatever_age:
            pass
        elif excess > 0:
            limit = min(limit, excess)
        else:
            before -= timedelta(seconds=settings.promote_after)
        turn_ids: list[str] = []
        with self._writers.writing(scope, turn_ids, self._long_term):
            turns = self._working.older(scope, before, limit)
            turn_ids += [turn.turn_id for turn in turns]
            self._checkpoint("promote.read")
            done = move(self._working, self._long_term, scope, turns, self._checkpoint)
            self._checkpoint("promote.removed")
        return done.model_copy(update={"more": done.more and len(turns) == limit})
