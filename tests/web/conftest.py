"""The page's own server on a running system, started as `up --web` starts it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import requests

from tests.conditions import wait_for
from tests.system import System
from tests.web.host import TOKEN
from workers.valkey import EmbeddedValkey, free_port

HOST = "tests.web.host:create_app"


class Server:
    """An app served by uvicorn, which can be stopped and started again on its port.

    Args:
        system: What it talks to.
        app: Its factory.
        environment: Instead of the system's.
    """

    def __init__(self, system: System, app: str, environment: Mapping[str, str] | None = None) -> None:
        self._system, self._app = system, app
        self._environment = system.environment if environment is None else environment
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def log(self) -> str:
        """What it has written, at the most talkative level."""
        return (self._system.folder / f"web-{self._port}.log").read_text()

    def start(self) -> None:
        with (self._system.folder / f"web-{self._port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "uvicorn", "--factory", self._app, "--port", str(self._port),
                    "--log-level", "debug", "--no-access-log", "--timeout-graceful-shutdown", "3",
                ],
                env=self._environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_for(self._answers, "the web server to start", 60)

    def _answers(self) -> bool:
        try:
            return requests.get(self.url, timeout=5).status_code > 0
        except requests.ConnectionError:
            return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            os.kill(self._process.pid, how)
            self._process.wait(30)
            self._process = None


@contextmanager
def serving(system: System, app: str, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    server = Server(system, app, environment)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def web_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system of its own, so that its queues and dead letters are those of these tests."""
    with (
        EmbeddedValkey(tmp_path_factory.mktemp("web-valkey")) as server,
        System(tmp_path_factory.mktemp("web"), server.url, metrics_port=free_port(), operations_token=TOKEN) as system,
    ):
        port = system.settings.metrics_port
        system.environment["MEMORY_TASKS_METRICS_URLS"] = f'["http://127.0.0.1:{port}/metrics", "http://127.0.0.1:9/"]'
        system.start_beat()
        system.start_worker()
        yield system


@pytest.fixture(scope="session")
def host(web_system: System) -> Iterator[Server]:
    """A host's app with the router, whose users say who they are in a header."""
    with serving(web_system, HOST) as server:
        yield server
