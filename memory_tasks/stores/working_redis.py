"""Working memory in Redis: a list a scope, oldest first."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from memory_tasks.connection import reaching
from memory_tasks.errors import InvalidInputError, NewerFormatError, StaleTurnError, StoreUnavailableError
from memory_tasks.keys import Keys, ScopeKeys, parse_scope_tag
from memory_tasks.models import Scope, Turn
from memory_tasks.scripts import Scripts, as_text
from memory_tasks.sealing import Sealer

logger = logging.getLogger(__name__)

FORMAT = 1
_ID = TypeAdapter(str)


@dataclass(frozen=True, slots=True)
class Promotion:
    """Says that somebody promotes aged turns, so that turns wait for it instead of being dropped or expiring.

    Args:
        after: Age at which a scope's oldest turn makes the scope due.
        overflow: Turns above `max_turns` that are kept while they wait; beyond it the oldest are dropped.
    """

    after: timedelta = timedelta(hours=1)
    overflow: int = 10_000


class RedisWorkingStore:
    """A `WorkingStore` on plain Redis 6.2 or Valkey 7.2 and later.

    Args:
        client: A redis-py client, with or without `decode_responses`. The caller owns and closes it.
        prefix: Beginning of every key.
        max_turns: Turns a scope keeps, at least 1.
        ttl: A scope without new turns for this long is dropped; only where nobody promotes.
        sealer: Encrypts turns.
        promotion: Given by a system that promotes: then what exceeds `max_turns` waits for promotion, which is
            due at once, and nothing expires.

    Raises:
        InvalidInputError: `max_turns`, `ttl` or `prefix` is unusable.

    Example:
        >>> working = RedisWorkingStore(redis.Redis(), prefix="myapp:memory", max_turns=32)
        >>> working.append(scope, turn)
        True
        >>> [turn.user_message for turn in working.recent(scope, 8)]
        ['hello']
    """

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "memory-tasks",
        max_turns: int = 256,
        ttl: timedelta = timedelta(days=14),
        promotion: Promotion | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise InvalidInputError(f"max_turns must be a whole number of at least 1, not {max_turns!r}")
        if ttl <= timedelta(0):
            raise InvalidInputError(f"ttl must be longer than 0, not {ttl}")
        if not prefix or "{" in prefix or "}" in prefix:
            raise InvalidInputError(f"prefix must not be empty or contain braces, not {prefix!r}")
        self._client = client
        self._scripts = Scripts(client)
        self._keys = Keys(prefix)
        self._sealer = sealer or Sealer()
        self._max_turns = max_turns
        self._limit = max_turns + (promotion.overflow if promotion else 0)
        self._ttl_ms = 0 if promotion else int(ttl.total_seconds() * 1000)
        self._promote_after_ms = int(promotion.after.total_seconds() * 1000) if promotion else -1

    def append(self, scope: Scope, turn: Turn, *, epoch: int | None = None) -> bool:
        keys = self._keys.turn(scope, turn.turn_id)
        status, dropped = self._scripts(
            "append",
            [
                keys.scope.turns,
                keys.scope.turn_ids,
                keys.scope.shard.due,
                keys.entry,
                keys.scope.user.conversations,
                keys.scope.shard.dropped,
                keys.scope.shard.oldest,
            ],
            [
                turn.turn_id,
                self._encoded(turn),
                self._limit,
                self._ttl_ms,
                keys.scope.tag,
                self._promote_after_ms,
                self._max_turns,
                "" if epoch is None else epoch,
            ],
        )
        if status < 0:
            raise StaleTurnError(f"turn {turn.turn_id} was forgotten: nothing was written")
        if dropped and self._promote_after_ms >= 0:
            logger.error("overflow full: dropped %d unpromoted turns of one scope; is promotion running?", dropped)
        return bool(status)

    def recent(self, scope: Scope, limit: int) -> list[Turn]:
        if limit < 0:
            raise InvalidInputError(f"limit must be at least 0, not {limit}")
        if limit == 0:
            return []
        return [turn for _, turn in self._range(self._keys.scope(scope), -limit, -1)]

    def older(self, scope: Scope, before: datetime, limit: int) -> list[Turn]:
        if limit < 1:
            raise InvalidInputError(f"limit must be at least 1, not {limit}")
        cutoff = before.timestamp() * 1000
        return [turn for at, turn in self._range(self._keys.scope(scope), 0, limit - 1) if at < cutoff]

    def _range(self, keys: ScopeKeys, start: int, stop: int) -> list[tuple[int, Turn]]:
        with reaching(self._client):
            elements = self._client.lrange(keys.turns, start, stop)
        return [self._decoded(as_text(element)) for element in elements]

    def _encoded(self, turn: Turn) -> str:
        fields = turn.model_dump(mode="json", exclude_none=True)
        if self._sealer.is_on:
            fields = {"turn_id": turn.turn_id, "sealed": self._sealer.seal(turn.model_dump_json(exclude_none=True))}
        return to_json({**fields, "v": FORMAT}).decode()

    def _decoded(self, element: str) -> tuple[int, Turn]:
        try:
            fields = from_json(element)
            at, version = fields.pop("at"), fields.pop("v")
            if version == FORMAT:
                sealed = fields.get("sealed")
                turn = Turn.model_validate_json(self._sealer.open(sealed)) if sealed else Turn.model_validate(fields)
                return at, turn
        except (ValueError, ValidationError, KeyError, AttributeError, TypeError):
            raise StoreUnavailableError(
                "working memory holds an element that is none of ours; was it changed from outside?"
            ) from None
        raise NewerFormatError(
            f"working memory holds a turn of format {version!r}, this version reads {FORMAT}: upgrade memory-tasks"
        )

    def remove(self, scope: Scope, turn_ids: Sequence[str]) -> int:
        keys = self._keys.scope(scope)
        pairs = [part for id in turn_ids for part in (id, f'"turn_id":{_ID.dump_json(id).decode()},')]
        removed: int = self._scripts(
            "remove",
            _whole(keys),
            [keys.tag, self._promote_after_ms, self._max_turns, *pairs],
        )
        return removed

    def forget(self, scope: Scope) -> int:
        keys = self._keys.scope(scope)
        erased: int = self._scripts("forget", _whole(keys), [keys.tag])
        return erased

    def conversations(self, user_id: str) -> list[Scope]:
        with reaching(self._client):
            tags = self._client.zrange(self._keys.user(user_id).conversations, 0, -1)
        return [parse_scope_tag(as_text(tag)) for tag in tags]

    def count(self, scope: Scope) -> int:
        """How many turns of the scope are in working memory."""
        with reaching(self._client):
            count: int = self._client.llen(self._keys.scope(scope).turns)
        return count


def _whole(keys: ScopeKeys) -> list[str]:
    return [
        keys.turns, keys.turn_ids, keys.shard.due, keys.entries, keys.user.conversations, keys.shard.oldest,
    ]  # fmt: skip
