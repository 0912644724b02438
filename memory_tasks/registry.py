"""The scopes that have turns in working memory, seen from above: for people who operate the system."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from memory_tasks.connection import as_text, reaching
from memory_tasks.keys import Keys, parse_scope_tag
from memory_tasks.models import Record, Scope


class ScopeStatus(Record):
    """A conversation with turns in working memory."""

    scope: Scope
    turns: int
    oldest: datetime | None
    """When its oldest turn was appended, by the clock of Redis."""
    due: datetime


class Overview(Record):
    """All conversations with turns in working memory together."""

    scopes: int
    due: int
    """Of them, those that promotion should have taken by now, or is working on."""
    next_due: datetime | None
    dropped: int
    """Turns ever dropped because too many waited for promotion."""


def overview(client: Any, keys: Keys) -> Overview:
    """Counts and the scope that is due first, without reading the scopes.

    Raises:
        StoreUnavailableError: Redis can't be reached.
    """
    scopes = due = dropped = 0
    first: float | None = None
    with reaching(client):
        seconds, micros = client.time()
        now = seconds * 1000 + micros // 1000
        with client.pipeline(transaction=False) as pipe:
            for shard in keys.shards():
                pipe.zcard(shard.due).zcount(shard.due, "-inf", now).zrange(shard.due, 0, 0, withscores=True)
                pipe.get(shard.dropped)
            answers = iter(pipe.execute())
    for count, ripe, head, lost in zip(answers, answers, answers, answers, strict=True):
        scopes, due, dropped = scopes + count, due + ripe, dropped + int(lost or 0)
        if head:
            first = min(first or head[0][1], head[0][1])
    return Overview(scopes=scopes, due=due, next_due=None if first is None else _time(first), dropped=dropped)


def registered(client: Any, keys: Keys) -> Iterator[tuple[Scope, float]]:
    """Every scope with turns in working memory, and when it is due in ms; a page at a time."""
    for shard in keys.shards():
        with reaching(client):
            for tag, due in client.zscan_iter(shard.due, count=500):
                yield parse_scope_tag(as_text(tag)), due


def statuses(client: Any, keys: Keys) -> Iterator[ScopeStatus]:
    """Every scope with its number of turns and its oldest one."""
    for scope, due in registered(client, keys):
        turns = keys.scope(scope).turns
        with reaching(client):
            first = client.lindex(turns, 0)
            count = client.llen(turns)
        oldest = _time(float(as_text(first)[6:19])) if first else None
        yield ScopeStatus(scope=scope, turns=count, oldest=oldest, due=_time(due))


def _time(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
