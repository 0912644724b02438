"""A cluster of containers: a broker, the memory's Redis, two workers and beat of our own image."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_celery import (
    CELERY_RABBITMQ_BROKER,
    CELERY_REDIS_BROKER,
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestBroker,
    CeleryTestWorker,
    CeleryWorkerCluster,
    CeleryWorkerContainer,
    RabbitMQContainer,
    RedisTestBackend,
)
from pytest_docker_tools import build, container, fxtr, wrappers

from tests.cluster.cluster import QUICK, Cluster
from tests.requirements import required

ROOT = Path(__file__).parents[2]
# On a host that has a file /.dockerenv it believes itself inside a container, and looks for servers elsewhere.
wrappers.container.tests_inside_container = lambda: False


def _docker_runs() -> bool:
    docker = shutil.which("docker")
    return bool(docker) and subprocess.run([str(docker), "info"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session", autouse=True)
def docker() -> None:
    required(_docker_runs(), "no Docker engine runs here")


class MemoryWorker(CeleryWorkerContainer):
    """A container of our image, in any of its roles."""

    @property
    def ready_prompt(self) -> str:
        return " ready."


class StartedRabbitMQ(RabbitMQContainer):
    """Whatever it logs where: this line is on standard output in every version."""

    @property
    def ready_prompt(self) -> str:
        return "Starting broker... completed"


default_rabbitmq_broker = container(
    image="{default_rabbitmq_broker_image}",
    ports=fxtr("default_rabbitmq_broker_ports"),
    environment=fxtr("default_rabbitmq_broker_env"),
    network="{default_pytest_celery_network.name}",
    wrapper_class=StartedRabbitMQ,
    timeout=120,
)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that the test and all workers see: the long-term store, and the calls of the model."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    calls = folder / "calls"
    calls.touch()
    calls.chmod(0o666)
    return folder


@pytest.fixture
def volumes(shared: Path) -> dict[str, dict[str, str]]:
    return {
        str(shared): {"bind": "/shared", "mode": "rw"},
        str(ROOT / "tests"): {"bind": "/opt/tests", "mode": "ro"},
    }


@pytest.fixture
def environment(celery_broker_cluster_config: dict[str, Any], celery_backend_cluster_config: dict[str, Any]) -> Any:
    """Of the workers: the servers by their names inside the network."""
    return {
        **{f"MEMORY_TASKS_{name.upper()}": str(value) for name, value in QUICK.items()},
        "MEMORY_TASKS_REDIS_URL": celery_backend_cluster_config["urls"][0],
        "MEMORY_TASKS_BROKER_URL": celery_broker_cluster_config["urls"][0],
        "MEMORY_TASKS_LONG_TERM_URL": "sqlite:////shared/memory.db",
        "MEMORY_TASKS_COMPLETER": "tests.model:complete",
        "TEST_MODEL_CALLS": "/shared",
        "PYTHONPATH": "/opt",
    }


WORKER = ["celery", "-A", "workers.app", "worker", "-Q", "reply,persist,promote", "-P", "threads", "-c", "20",
          "--without-mingle", "--without-gossip", "--loglevel", "INFO"]  # fmt: skip
BEAT = ["celery", "-A", "workers.app", "beat", "--schedule", "/tmp/beat", "--pidfile", ""]

image = build(path=str(ROOT), tag="memory-tasks:tests", rm=True)


def _role(command: list[str], wrapper: type[Any] = MemoryWorker) -> Any:
    return container(
        image="{image.id}",
        environment=fxtr("environment"),
        network="{default_pytest_celery_network.name}",
        volumes=fxtr("volumes"),
        wrapper_class=wrapper,
        timeout=120,
        command=command,
    )


first_container, second_container, spare_container = (_role(WORKER) for _ in range(3))
beat_container = _role(BEAT, wrappers.Container)


@pytest.fixture(params=[CELERY_REDIS_BROKER, CELERY_RABBITMQ_BROKER])
def celery_broker(request: pytest.FixtureRequest) -> Iterator[CeleryTestBroker]:
    broker: CeleryTestBroker = request.getfixturevalue(request.param)
    yield broker
    broker.teardown()


@pytest.fixture
def celery_backend_cluster(celery_redis_backend: RedisTestBackend) -> Iterator[CeleryBackendCluster]:
    """The memory's Redis: we need no result backend."""
    found = CeleryBackendCluster(celery_redis_backend)
    yield found
    found.teardown()


@pytest.fixture
def celery_worker_cluster(
    first_container: MemoryWorker, second_container: MemoryWorker, celery_setup_app: Any
) -> Iterator[CeleryWorkerCluster]:
    workers = [CeleryTestWorker(made, app=celery_setup_app) for made in (first_container, second_container)]
    found = CeleryWorkerCluster(*workers)
    yield found
    found.teardown()


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest,
    celery_broker_cluster: CeleryBrokerCluster,
    celery_backend_cluster: CeleryBackendCluster,
    celery_worker_cluster: CeleryWorkerCluster,
    beat_container: wrappers.Container,
    shared: Path,
) -> Iterator[Cluster]:
    """Everything running."""
    found = Cluster(request, celery_broker_cluster, celery_backend_cluster, celery_worker_cluster, shared)
    yield found
    for client in found.clients:
        client.close()
    if request.session.testsfailed:
        for worker in celery_worker_cluster:
            print(worker.logs()[-3000:])
        print(beat_container.logs()[-1000:])
