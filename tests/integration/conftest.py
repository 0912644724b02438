"""Systems that the integration tests share: starting a worker takes seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rabbitmq import RabbitMQ, required_rabbitmq
from tests.system import System
from workers.valkey import EmbeddedValkey


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    required_rabbitmq()
    server = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    server.start()
    yield server
    server.stop()


@contextmanager
def running(system: System, pool: str = "threads", concurrency: int = 10) -> Iterator[System]:
    with system:
        system.start_beat()
        system.start_worker(pool=pool, concurrency=concurrency)
        yield system


@pytest.fixture(scope="session")
def threads_on_redis(valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running(System(tmp_path_factory.mktemp("threads"), valkey.url, prefix="threads")) as system:
        yield system


@pytest.fixture(scope="session")
def prefork_on_rabbitmq(
    valkey: EmbeddedValkey, rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("prefork"), valkey.url, prefix="prefork", broker_url=rabbitmq.new_host())
    with running(system, "prefork", 2):
        yield system


@pytest.fixture(params=["threads_on_redis", "prefork_on_rabbitmq"])
def system(request: pytest.FixtureRequest) -> System:
    """A running system: a threads pool with Redis as broker, then a prefork pool with RabbitMQ."""
    found: System = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A server that a test may stop."""
    with EmbeddedValkey(tmp_path / "valkey") as server:
        yield server


@pytest.fixture
def own_system(own_valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[System]:
    """A system without a worker, on a server that a test may stop."""
    with System(tmp_path, own_valkey.url) as system:
        yield system
