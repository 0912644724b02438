"""Connections to Redis and the Lua scripts that run there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from memory_tasks.errors import SettingsError, StoreUnavailableError


def without_password(url: str) -> str:
    """The URL with its password replaced, for errors and logs.

    Example:
        >>> without_password("redis://app:secret@db:6379/0")
        'redis://app:***@db:6379/0'
    """
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    userinfo, _, host = parts.netloc.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    return urlunsplit(parts._replace(netloc=f"{user}{colon and ':***'}@{host}", query=""))


def connect(url: str) -> redis.Redis:
    """A client for the URL. It connects at first use.

    Raises:
        SettingsError: The URL can't be understood.
    """
    with _naming(url):
        # Every script of ours may run twice, so a command whose answer was lost is simply sent again.
        retry = Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), 3)
        return redis.Redis.from_url(url, retry=retry, **_OPTIONS)


def connect_async(url: str) -> redis.asyncio.Redis:
    """Like `connect`, for the running event loop."""
    with _naming(url):
        retry = AsyncRetry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), 3)
        return redis.asyncio.Redis.from_url(url, retry=retry, **_OPTIONS)


_OPTIONS: dict[str, Any] = {
    "decode_responses": True,
    "socket_timeout": 5.0,
    "socket_connect_timeout": 2.0,
    "health_check_interval": 30,
}


@contextmanager
def _naming(url: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise SettingsError(
            f"MEMORY_TASKS_REDIS_URL: can't use {without_password(url)!r} ({type(error).__name__}); "
            "expected redis://[user:password@]host:port/db, rediss://... or unix://path"
        ) from None


def where(client: Any) -> str:
    """Host and port of the client, for errors; never its password."""
    given = getattr(getattr(client, "connection_pool", None), "connection_kwargs", {})
    return given.get("path") or f"{given.get('host', '?')}:{given.get('port', '?')}/{given.get('db', 0)}"


@contextmanager
def reaching(client: Any) -> Iterator[None]:
    """Turn redis-py's errors into the package's own, naming the server."""
    try:
        yield
    except redis.RedisError as error:
        # Redis quotes the arguments of a failed command in some messages: the code it begins with has to do.
        kind = type(error).__name__
        code = str(error).partition(" ")[0]
        detail = f": {code}" if code.isupper() else ""
        if isinstance(error, redis.ConnectionError | redis.TimeoutError):
            detail = f": {error}"
        raise StoreUnavailableError(
            f"Redis at {where(client)} can't be used ({kind}{detail}); check that it runs and MEMORY_TASKS_REDIS_URL"
        ) from error


def durability_warnings(client: Any) -> list[str]:
    """What about a server may lose data that it has acknowledged, each with its remedy; empty when nothing does.

    Raises:
        StoreUnavailableError: It can't be asked.
    """
    with reaching(client):
        found = {**client.info("memory"), **client.info("persistence")}
    warnings = []
    policy = found.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        warnings.append(
            f"Redis at {where(client)} may evict turns (maxmemory-policy {policy}): "
            "run CONFIG SET maxmemory-policy noeviction"
        )
    if not int(found.get("aof_enabled", 1)):
        warnings.append(
            f"Redis at {where(client)} has no append-only file and loses turns in a crash: "
            "run CONFIG SET appendonly yes"
        )
    return warnings


class Scripts:
    """The package's Lua files, by name; each is loaded when Redis does not have it yet.

    Example:
        >>> Scripts(client)("append", keys=[...], args=[...])
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._scripts: dict[str, Any] = {}

    def __call__(self, name: str, keys: Sequence[str], args: Sequence[str | int | float]) -> Any:
        """Run a script; its answer, with strings as str.

        Raises:
            StoreUnavailableError: Redis can't be reached or refused the script.
        """
        with reaching(self._client):
            return as_text(self._get(name)(keys=keys, args=args))

    def each(self, name: str, calls: Sequence[tuple[Sequence[str], Sequence[str | int | float]]]) -> list[Any]:
        """Run a script for several (keys, args) in one round trip; the answers in order.

        Raises:
            StoreUnavailableError: Redis can't be reached or refused the script.
        """
        if not calls:
            return []
        script = self._get(name)
        with reaching(self._client), self._client.pipeline(transaction=False) as pipe:
            for keys, args in calls:
                script(keys=keys, args=args, client=pipe)
            return [as_text(answer) for answer in pipe.execute()]

    def _get(self, name: str) -> Any:
        if name not in self._scripts:
            source = files("memory_tasks").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
            self._scripts[name] = self._client.register_script(source)
        return self._scripts[name]


def as_text(answer: Any) -> Any:
    """What Redis answered with strings as str: a caller may own the client, and have it decode or not."""
    if isinstance(answer, bytes):
        return answer.decode(errors="replace")
    return [as_text(part) for part in answer] if isinstance(answer, list) else answer
