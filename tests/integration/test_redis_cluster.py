"""Working memory, the ledger and whole systems on a real Redis Cluster and behind real Sentinels."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memory_tasks import MemoryClient, Settings, SettingsError, StoreUnavailableError
from memory_tasks.connection import connect
from memory_tasks.health import checks
from tests.conditions import wait_for
from tests.integration.test_ledger import *  # noqa: F403
from tests.integration.test_working_store import *  # noqa: F403
from tests.rabbitmq import RabbitMQ
from tests.redis_cluster import ValkeyCluster, ValkeySentinel
from tests.system import System
from workers.valkey import free_port

PASSWORD = "s3cret/word"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    found = ValkeyCluster(tmp_path_factory.mktemp("cluster"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def client(cluster: ValkeyCluster) -> Iterator[Any]:
    """What the tests of the ledger and of working memory take, here of the Cluster."""
    client = connect(cluster.url)
    yield client
    client.close()


@pytest.fixture
def settings(cluster: ValkeyCluster, prefix: str, tmp_path: Path) -> Settings:
    return Settings.load(
        redis_url=cluster.url,
        broker_url="memory://",
        prefix=prefix,
        long_term_url=f"sqlite:///{tmp_path / 'memory.db'}",
    )


@contextmanager
def running(folder: Path, redis_url: str, broker: RabbitMQ) -> Iterator[System]:
    with System(folder, redis_url, broker_url=broker.new_host(), prefix=folder.name, promote_after=1.0) as system:
        system.start_beat()
        system.start_worker()
        yield system


def send(client: MemoryClient, begin: int, end: int) -> list[Any]:
    """A message in each of several conversations, spread over all masters."""
    return [client.reply(f"user{n % 20}", "c1", f"message {n}", idempotency_key=f"t{n}") for n in range(begin, end)]


def accounted(system: System, turns: int) -> None:
    """Nothing lost, nothing doubled, nothing billed twice, and all of it promoted."""
    wait_for(lambda: len(list(system.service.long_term.export())) == turns, "all turns to be promoted", 60)
    stored = [memory.turn.turn_id for memory in system.service.long_term.export()]
    assert sorted(stored) == sorted(f"t{n}" for n in range(turns))
    assert all(len(calls) == 1 for calls in system.call_records().values())


def test_a_master_of_the_cluster_is_replaced_under_load(
    cluster: ValkeyCluster, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    with running(tmp_path, cluster.url, rabbitmq) as system:
        pending = send(system.client, 0, 60)
        cluster.fail_over(3)
        pending += send(system.client, 60, 120)
        for one in pending:
            one.wait_persisted(60)
        shown = {check.name: check for check in checks(system.client)}
        assert "on 3 masters" in shown["Redis"].found
        assert shown["clock"].remedy == ""
        assert asyncio.run(_answer(system.settings, "t119")).startswith("re: message 119")
        accounted(system, 120)
        assert system.client.forget_user("user7").long_term == 6


async def _answer(settings: Settings, turn_id: str) -> str:
    client = MemoryClient(settings)
    try:
        pending = client.pending(f"user{int(turn_id[1:]) % 20}", "c1", turn_id)
        events = [event.type async for event in pending.aevents()]
        assert events[-1] in ("persisted", "promoted")
        return (await pending.aresult()).answer
    finally:
        await client.aclose()


def test_a_killed_master_behind_sentinels_is_replaced(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    sentinel = ValkeySentinel(tmp_path, PASSWORD)
    try:
        sentinel.start()
        with running(tmp_path / "system", sentinel.url.replace(PASSWORD, "s3cret%2Fword"), rabbitmq) as system:
            for one in send(system.client, 0, 20):
                one.wait_persisted(60)
            with connect(system.settings.redis_url) as client:
                # Replication is asynchronous: what a master has not handed on when it dies, dies with it.
                client.wait(1, 5000)
            sentinel.kill_master()
            pending = wait_for(lambda: _sent(system.client), "the client to find the new master", 30)
            for one in pending:
                one.wait_persisted(60)
            assert asyncio.run(_answer(system.settings, "t39")).startswith("re: message 39")
            accounted(system, 40)
            assert all(PASSWORD not in system.log(name) for name in ("worker", "beat"))
    finally:
        sentinel.stop()


def _sent(client: MemoryClient) -> list[Any] | None:
    try:
        # Sent again under the same ids as long as it takes.
        return send(client, 20, 40)
    except StoreUnavailableError as error:
        if PASSWORD in str(error):
            raise AssertionError("the password is shown") from None
        return None


def test_a_cluster_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(StoreUnavailableError, match="MEMORY_TASKS_REDIS_URL") as failure:
        connect(f"redis+cluster://app:secret@127.0.0.1:{free_port()}")
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("url", ["redis+cluster://a:1,b:2", "redis+sentinel://a:1/memory"])
def test_a_broker_of_its_own_is_asked_for(url: str) -> None:
    with pytest.raises(SettingsError, match="broker_url must be given"):
        Settings.load(redis_url=url)
