"""Is the system alive? For probes, quick; and for people, one page of checks with a remedy for each."""

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from memory_tasks.connection import durability_warnings, infos, reaching, server_time
from memory_tasks.errors import MemoryTasksError
from memory_tasks.models import now
from memory_tasks.registry import overview
from memory_tasks.tasks.publisher import queue_lengths

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


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's page."""

    name: str
    found: str
    remedy: str = ""
    """What to do; empty when all is well."""


OLDEST_REDIS = (6, 2)
CLOCK_SECONDS = 5.0
MANY = 1.5
"""Beats from which on there is more than one; the last minute is never exact."""
EXTRAS = {
    "openai": "openai",
    "sentence-transformers": "sentence_transformers",
    "leann": "leann",
    "postgres": "psycopg",
    "tracing": "opentelemetry.sdk",
    "web": "fastapi",
}
"""Each with a module that it brings."""
LATE = timedelta(hours=1)
"""Beyond `promote_after`, a turn that is not promoted yet is late."""


def checks(client: "MemoryClient") -> Iterator[Check]:
    """Everything that can be looked at from here. A check that fails is a line too, with its error."""
    looks: tuple[tuple[str, Callable[[MemoryClient], Check]], ...] = (
        ("Redis", _redis),
        ("durability", _durability),
        ("clock", _clock),
        ("broker", _broker),
        ("visibility timeout", _visibility),
        ("sweep", _sweep),
        ("beat", _beat),
        ("long-term store", _store),
        ("embedder", _embedder),
        ("promotion", _promotion),
        ("dead letters", _dead_letters),
        ("extras", _extras),
    )
    for name, look in looks:
        try:
            yield look(client)
        except MemoryTasksError as error:
            yield Check(name, type(error).__name__, str(error))


def _redis(client: "MemoryClient") -> Check:
    servers = infos(client.redis, "server")
    versions = {str(server.get("valkey_version") or server["redis_version"]) for server in servers}
    old = any(tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS for version in versions)
    shown = f"{', '.join(sorted(versions))}{f' on {len(servers)} masters' if len(servers) > 1 else ''}"
    return Check("Redis", shown, "upgrade to Redis 6.2 or Valkey 7.2" if old else "")


def _durability(client: "MemoryClient") -> Check:
    found = durability_warnings(client.redis)
    return Check("durability", "append-only file, nothing evicted" if not found else "at risk", "; ".join(found))


def _clock(client: "MemoryClient") -> Check:
    skew = time.time() - server_time(client.redis)
    remedy = "set the clock: Celery's expiry of periodic tasks depends on it" if abs(skew) > CLOCK_SECONDS else ""
    return Check("clock", f"{skew:+.1f} s from Redis", remedy)


def _broker(client: "MemoryClient") -> Check:
    waiting = queue_lengths(client.app)
    return Check("broker", f"waiting: {', '.join(f'{name} {count}' for name, count in waiting.items())}")


def _sweep(client: "MemoryClient") -> Check:
    found = [problem for problem in system_problems(client) if "Redis at" not in problem]
    return Check("sweep", "runs" if not found else "needs attention", "; ".join(found))


def _visibility(client: "MemoryClient") -> Check:
    settings = client.settings
    if not settings.broker.startswith(("redis", "unix", "valkey")):
        return Check("visibility timeout", "not needed: the broker hands a dead worker's messages on at once")
    # Settings that do not fit were refused before; a host's own app may say something else.
    return Check(
        "visibility timeout", f"{settings.visibility_timeout:g} s, and no task may run longer than "
        f"{settings.longest_step:g} s",
    )  # fmt: skip


def _beat(client: "MemoryClient") -> Check:
    minute = int(time.time() // 60) - 1
    with reaching(client.redis):
        swept = int(client.redis.get(client.keys.sweeps(minute)) or 0)
    beats = swept * client.settings.sweep_interval / 60
    remedy = "run beat once: more of them do no harm, but double the messages of sweep and promotion"
    return Check(
        "beat", f"{swept} sweeps in the last minute: about {beats:.1f} running", remedy if beats > MANY else ""
    )


def _extras(client: "MemoryClient") -> Check:
    installed = [extra for extra, module in EXTRAS.items() if _is_installed(module)]
    settings = client.settings
    needed = {settings.completer, settings.embedder, settings.long_term_url.partition(":")[0]} & set(EXTRAS)
    if settings.long_term_url.startswith("postgres"):
        needed.add("postgres")
    missing = sorted(needed - set(installed))
    remedy = f"pip install 'memory-tasks[{','.join(missing)}]'" if missing else ""
    return Check("extras", ", ".join(installed) or "none", remedy)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _store(client: "MemoryClient") -> Check:
    from memory_tasks.models import Scope

    client.search(Scope(user_id="doctor", conversation_id="doctor"), "is anybody there?", 1)
    return Check(
        "long-term store", f"{client.settings.long_term_url.partition(':')[0]}, reachable, made with this embedder"
    )


def _embedder(client: "MemoryClient") -> Check:
    name = client.settings.embedder
    if name == "none" or (name == "wordllama" and importlib.util.find_spec("wordllama") is None):
        return Check("embedder", "none: recall is by words only", "install wordllama, or set MEMORY_TASKS_EMBEDDER")
    return Check("embedder", name)


def _promotion(client: "MemoryClient") -> Check:
    found = overview(client.redis, client.keys)
    age = now() - found.oldest if found.oldest else timedelta(0)
    late = age > client.settings.promote_age + LATE
    remedies = ["start a worker for the queue promote, and look at its log"] if late else []
    if found.dropped:
        remedies.append(f"{found.dropped} turns were dropped: raise MEMORY_TASKS_MAX_OVERFLOW or add workers")
    shown = f"{found.scopes} conversations in working memory, {found.due} due, oldest turn {str(age).partition('.')[0]}"
    return Check("promotion", shown, "; ".join(remedies))


def _dead_letters(client: "MemoryClient") -> Check:
    count = client.ledger.count_dead()
    return Check("dead letters", str(count), "memory-tasks failed list" if count else "")
