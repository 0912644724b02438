"""A real RabbitMQ of our own, on loopback, with its data in a folder."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import amqp

from tests.conditions import wait_for
from tests.requirements import required
from workers.valkey import free_port

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = SERVER.with_name("rabbitmqctl")


class RabbitMQ:
    """Starts at once; `stop(SIGKILL)` and `start` restart it with its data.

    Args:
        folder: Where its files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._dist, self._epmd = free_port(), free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._hosts = 0

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._port}//"

    def new_host(self) -> str:
        """The URL of a virtual host that nobody uses: queues have the same names in every system."""
        self._hosts += 1
        name, user, all = f"host{self._hosts}", "guest", ".*"
        bits = ",".join(f'<<"{bit}">>' for bit in (user, name, all, all, all, "tests"))
        subprocess.run(
            [CONTROL, "--node", self._node, "eval", f"""rabbit_vhost:add(<<"{name}">>, <<"tests">>),
             rabbit_auth_backend_internal:set_permissions({bits})."""],
            env=self._environment, stdin=subprocess.DEVNULL, check=True, capture_output=True,
        )  # fmt: skip
        return f"{self.url[:-1]}{name}"

    @property
    def _node(self) -> str:
        return f"tests-{self._port}@localhost"

    @property
    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self._folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(self._dist),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "mnesia"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq"),
        }

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "plugins").write_text("[].")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [SERVER],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self._answers, "RabbitMQ to start", 90)

    def _answers(self) -> bool:
        try:
            with amqp.Connection(f"127.0.0.1:{self._port}", connect_timeout=2):
                return True
        except (OSError, amqp.AMQPError):
            return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server and the port mapper it has started."""
        if self._process is None:
            return
        group = self._process.pid
        self._process.send_signal(how)
        if how == signal.SIGKILL:
            os.killpg(group, how)
        self._process.wait(60)
        self._process = None
        subprocess.run(
            ["epmd", "-port", str(self._epmd), "-kill"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


def required_rabbitmq() -> None:
    """Go on where RabbitMQ is installed."""
    required(SERVER.exists() and shutil.which("epmd"), "RabbitMQ is not installed: apt-get install rabbitmq-server")
