"""Real containers are killed and restarted while conversations run."""

import pytest
from pytest_celery import CeleryTestSetup

from memory_tasks import MemoryClient
from memory_tasks.pending import PendingReply
from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]


def talk(client: MemoryClient, begin: int, end: int, words: str = "") -> list[PendingReply]:
    """Messages in ten conversations, a few in each."""
    return [
        client.reply("ann", f"c{n % 10}", f"{words} message {n}", idempotency_key=f"t{n}") for n in range(begin, end)
    ]


def test_two_workers_share_conversations(celery_setup: CeleryTestSetup, cluster: Cluster) -> None:
    assert len(celery_setup.worker_cluster) == 2
    cluster.accounted(talk(cluster.client(), 0, 60, "work:0.05"))
    assert len({call.pid for calls in cluster.calls().values() for call in calls}) >= 1


def test_a_worker_that_is_killed_is_replaced(cluster: Cluster) -> None:
    client = cluster.client()
    pending = talk(client, 0, 10, "gate:open")
    cluster.wait_for_calls(10)
    pending += talk(client, 10, 40)
    cluster.workers[0].kill()
    cluster.start_spare()
    cluster.open_gate("open")
    # Of the ten calls that ran, those of the killed worker are made again; no other is.
    cluster.accounted(pending, again=10)


def test_the_broker_is_restarted(cluster: Cluster) -> None:
    client = cluster.client()
    pending = talk(client, 0, 10, "gate:open")
    cluster.wait_for_calls(10)
    pending += talk(client, 10, 30)
    cluster.broker.restart()
    cluster.open_gate("open")
    pending += talk(cluster.client(), 30, 50)
    cluster.accounted(pending)
