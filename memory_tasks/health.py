"""Is the system alive? For probes: quick, few questions, and an answer that says what to do."""

from typing import TYPE_CHECKING, Any

from memory_tasks.connection import durability_warnings, reaching

if TYPE_CHECKING:
    from memory_tasks.client import MemoryClient

UNTAKEN = 3
"""A turn that was sent this often without anybody beginning says that nobody consumes."""
LOOK_AT = 20
"""Turns looked at in each shard."""
PING_SECONDS = 5.0


def system_problems(client: "MemoryClient") -> list[str]:
    """What is wrong with the system as a whole, each with its remedy; empty when all is well.

    Raises:
        StoreUnavailableError: Redis can't be reached.
    """
    problems = durability_warnings(client.redis)
    with reaching(client.redis):
        if not client.redis.exists(client.keys.swept):
            problems.append("no sweep has run for a while: start beat, and a worker that consumes the queue persist")
        untaken = 0
        for shard in client.keys.shards():
            tags: Any = client.redis.zrange(shard.sweep, 0, LOOK_AT - 1)
            with client.redis.pipeline(transaction=False) as pipe:
                for tag in tags:
                    pipe.hget(shard.turn(tag).entry, "published")
                untaken += sum(int(times or 0) >= UNTAKEN for times in pipe.execute())
    if untaken:
        problems.append(
            f"{untaken} turns or more were sent {UNTAKEN} times and nobody took them: "
            "check that workers consume the queues reply and persist"
        )
    return problems


def worker_problem(client: "MemoryClient", name: str) -> str | None:
    """What is wrong with one worker: it does not answer through the connection on which it consumes.

    Args:
        client: Of the system.
        name: The worker's node name, such as "celery@host".
    """
    if client.app.control.ping(destination=[name], timeout=PING_SECONDS):
        return None
    return f"worker {name} did not answer within {PING_SECONDS:g} s: restart it"
