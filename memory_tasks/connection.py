"""Connections to Redis: a server, a Cluster or a Sentinel service."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel

from memory_tasks.errors import CorruptEntryError, NewerFormatError, SettingsError, StoreUnavailableError


def without_password(url: str) -> str:
    """The URL with its password replaced, for errors and logs.

    Example:
        >>> without_password("redis://app:secret@db:6379/0")
        'redis://app:***@db:6379/0'
    """
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    return urlunsplit(parts._replace(netloc=f"{user}{colon and ':***'}{at}{host}", query=""))


@dataclass(frozen=True, slots=True)
class _Group:
    """What a URL with several hosts says: `redis+cluster://...` or `redis+sentinel://.../service/db`."""

    kind: str
    hosts: list[tuple[str, int]]
    path: list[str]
    options: dict[str, Any]
    sentinel_options: dict[str, Any]


def _group(url: str) -> _Group | None:
    """The parts of such a URL, or None for one with a single host.

    Raises:
        ValueError: A part is missing or wrong.
    """
    parts = urlsplit(url)
    scheme, plus, kind = parts.scheme.partition("+")
    if not plus:
        return None
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    found = [host.rpartition(":") for host in hosts.split(",")]
    path = [part for part in parts.path.split("/") if part]
    query = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    known = {"sentinel_username", "sentinel_password"} if kind == "sentinel" else set()
    if scheme not in ("redis", "rediss") or kind not in ("cluster", "sentinel") or set(query) - known:
        raise ValueError
    if not all(host and port.isdigit() for host, _, port in found) or (kind == "sentinel" and not path):
        raise ValueError
    tls = {"ssl": True} if scheme == "rediss" else {}
    sentinel_login = {name.removeprefix("sentinel_"): value for name, value in query.items()}
    return _Group(
        kind,
        [(host.strip("[]"), int(port)) for host, _, port in found],
        path,
        {**_OPTIONS, **tls, "username": unquote(user) or None, "password": unquote(password) or None},
        {**_OPTIONS, **tls, **sentinel_login},
    )


def connect(url: str) -> redis.Redis:
    """A client for the URL of a server, a Redis Cluster or a Sentinel service. A server is connected to at first use.

    Args:
        url: `redis://`, `rediss://`, `unix://`, `redis+cluster://[user:password@]host:port,host:port` or
            `redis+sentinel://[user:password@]host:port,host:port/service[/db][?sentinel_password=...]`; with
            `rediss+...` for TLS.

    Raises:
        SettingsError: The URL can't be understood.
        StoreUnavailableError: No node of the Cluster can be reached.
    """
    # Every script of ours may run twice, so a command whose answer was lost is simply sent again.
    retry = Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), 3)
    with _naming(url):
        group = _group(url)
        if group is None:
            return redis.Redis.from_url(url, retry=retry, **_OPTIONS)
    if group.kind == "sentinel":
        sentinel = Sentinel(group.hosts, sentinel_kwargs=group.sentinel_options, **group.options)
        database = int(group.path[1]) if len(group.path) > 1 else 0
        return cast(redis.Redis, sentinel.master_for(group.path[0], db=database, retry=retry))
    nodes = [ClusterNode(host, port) for host, port in group.hosts]
    try:
        # While a master is being replaced, its slots are nobody's for some seconds.
        cluster_retry = Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.05), 8)
        return cast(redis.Redis, RedisCluster(startup_nodes=nodes, retry=cluster_retry, **group.options))
    except (redis.RedisError, RedisClusterException) as error:
        raise StoreUnavailableError(
            f"no node of the Redis Cluster {without_password(url)} can be used ({type(error).__name__}); check that it "
            "runs and MEMORY_TASKS_REDIS_URL"
        ) from error


def connect_async(url: str) -> redis.asyncio.Redis:
    """Like `connect`, for the running event loop."""
    retry = AsyncRetry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), 3)
    with _naming(url):
        group = _group(url)
        if group is None:
            return redis.asyncio.Redis.from_url(url, retry=retry, **_OPTIONS)
    if group.kind == "sentinel":
        sentinel = AsyncSentinel(group.hosts, sentinel_kwargs=group.sentinel_options, **group.options)
        database = int(group.path[1]) if len(group.path) > 1 else 0
        return cast(redis.asyncio.Redis, sentinel.master_for(group.path[0], db=database, retry=retry))
    nodes = [AsyncClusterNode(host, port) for host, port in group.hosts]
    cluster_retry = AsyncRetry(ExponentialWithJitterBackoff(cap=1.0, base=0.05), 8)
    return cast(redis.asyncio.Redis, AsyncRedisCluster(startup_nodes=nodes, retry=cluster_retry, **group.options))


_OPTIONS: dict[str, Any] = {
    "decode_responses": True,
    # Every reader of a stream waits on a connection of its own; redis-py would refuse the 101st.
    "max_connections": 100_000,
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
            f"MEMORY_TASKS_REDIS_URL: can't use {without_password(url)!r} ({type(error).__name__}); expected "
            "redis://[user:password@]host:port/db, rediss://..., unix://path, redis+cluster://host:port,host:port or "
            "redis+sentinel://host:port,host:port/service"
        ) from None


def where(client: Any) -> str:
    """Host and port of the client, for errors; never its password."""
    if isinstance(client, RedisCluster):
        return ",".join(sorted(node.name for node in client.get_primaries()))
    pool = getattr(client, "connection_pool", None)
    if service := getattr(pool, "service_name", None):
        return f"Sentinel service {service}"
    given = getattr(pool, "connection_kwargs", {})
    return given.get("path") or f"{given.get('host', '?')}:{given.get('port', '?')}/{given.get('db', 0)}"


def infos(client: Any, section: str) -> list[dict[str, Any]]:
    """A section of INFO, of the server or of each master of a Cluster.

    Raises:
        StoreUnavailableError: It can't be asked.
    """
    with reaching(client):
        if isinstance(client, RedisCluster):
            return [client.info(section, target_nodes=node) for node in client.get_primaries()]
        return [client.info(section)]


def server_time(client: Any) -> float:
    """The server's clock, in seconds since 1970; of one of them in a Cluster.

    Raises:
        StoreUnavailableError: It can't be asked.
    """
    with reaching(client):
        if isinstance(client, RedisCluster):
            seconds, micros = client.time(target_nodes=client.get_primaries()[0])
        else:
            seconds, micros = client.time()
    return float(seconds) + float(micros) / 1e6


@contextmanager
def reaching(client: Any) -> Iterator[None]:
    """Turn redis-py's errors into the package's own, naming the server."""
    try:
        yield
    except (redis.RedisError, RedisClusterException) as error:
        # Redis quotes the arguments of a failed command in some messages: the code it begins with has to do.
        kind = type(error).__name__
        code = str(error).partition(" ")[0]
        if "NEWERFORMAT" in (code, str(error).partition("caused error: ")[2].partition(" ")[0]):
            raise NewerFormatError(
                f"Redis at {where(client)} has a turn that a newer version of memory-tasks wrote: upgrade this one"
            ) from None
        # Lua's own complaints; what else stops a script (no replicas, out of memory) passes by itself.
        if code == "WRONGTYPE" or ("user_script" in str(error) and "attempt to" in str(error)):
            raise CorruptEntryError(
                f"Redis at {where(client)} has something under our keys that is not ours: find out who writes there"
            ) from None
        detail = f": {code}" if code.isupper() else ""
        if isinstance(error, redis.ConnectionError | redis.TimeoutError | RedisClusterException):
            detail = f": {error}"
        raise StoreUnavailableError(
            f"Redis at {where(client)} can't be used ({kind}{detail}); check that it runs and MEMORY_TASKS_REDIS_URL"
        ) from error


def durability_warnings(client: Any) -> list[str]:
    """What about a server may lose data that it has acknowledged, each with its remedy; empty when nothing does.

    Raises:
        StoreUnavailableError: It can't be asked.
    """
    memory, persistence = infos(client, "memory"), infos(client, "persistence")
    warnings = []
    for policy in {found.get("maxmemory_policy", "noeviction") for found in memory} - {"noeviction"}:
        warnings.append(
            f"Redis at {where(client)} may evict turns (maxmemory-policy {policy}): "
            "run CONFIG SET maxmemory-policy noeviction"
        )
    if not all(int(found.get("aof_enabled", 1)) for found in persistence):
        warnings.append(
            f"Redis at {where(client)} has no append-only file and loses turns in a crash: "
            "run CONFIG SET appendonly yes"
        )
    return warnings
