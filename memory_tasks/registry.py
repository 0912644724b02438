"""The scopes that have turns in working memory, seen from above: for people who operate the system."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from memory_tasks.connection import reaching
from memory_tasks.keys import Keys, parse_scope_tag
from memory_tasks.models import Record, Scope
from memory_tasks.scripts import as_text


class Overview(Record):
    """All conversations with turns in working memory together."""

    scopes: int
    due: int
    """Of them, those that promotion should have taken by now."""
    oldest: datetime | None
    """When the oldest turn that is not promoted yet was appended."""
    dropped: int
    """Turns ever dropped because too many waited for promotion."""


def overview(client: Any, keys: Keys) -> Overview:
    """Counts and the oldest turn, without reading the scopes.

    Raises:
        StoreUnavailableError: Redis can't be reached.
    """
    with reaching(client):
        seconds, micros = client.time()
        with client.pipeline(transaction=False) as pipe:
            for shard in keys.shards():
                pipe.zcard(shard.oldest).zcount(shard.due, "-inf", seconds * 1000 + micros // 1000)
                pipe.zrange(shard.oldest, 0, 0, withscores=True).get(shard.dropped)
            answers = pipe.execute()
    heads = [head[0][1] for head in answers[2::4] if head]
    return Overview(
        scopes=sum(answers[0::4]),
        due=sum(answers[1::4]),
        oldest=_time(min(heads)) if heads else None,
        dropped=sum(int(lost or 0) for lost in answers[3::4]),
    )


def registered(client: Any, keys: Keys) -> Iterator[tuple[Scope, datetime]]:
    """Every scope with turns in working memory, and when its oldest was appended; a page at a time."""
    for shard in keys.shards():
        with reaching(client):
            for tag, oldest in client.zscan_iter(shard.oldest, count=500):
                yield parse_scope_tag(as_text(tag)), _time(oldest)


def _time(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
