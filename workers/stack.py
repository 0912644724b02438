"""Everything on one machine: an embedded Valkey, a worker and beat, and the page."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from workers.valkey import EmbeddedValkey, free_port

STOP_SECONDS = 20.0
URL_FILE = "redis-url"
"""In the data folder while the stack runs: where a client on this machine finds its Redis."""


class Stack:
    """Starts the parts, and stops them in the reverse order.

    Args:
        folder: Data, logs and the beat schedule.
        environment: More MEMORY_TASKS_ settings for worker and beat.
        redis_url: An existing Redis instead of the embedded one.
        concurrency: Threads of the worker.
        web: Address and port of the page; None for no page.

    Example:
        >>> with Stack(Path("memory-tasks-data")) as stack:
        ...     MemoryClient.from_settings(redis_url=stack.redis_url)
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        redis_url: str | None = None,
        concurrency: int = 20,
        web: tuple[str, int] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.redis_url = redis_url or ""
        self.environment: dict[str, str] = dict(environment or {})
        self._concurrency = concurrency
        self._web = web
        self._exit = ExitStack()
        self._pause = threading.Event()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self._exit = undo
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self.redis_url:
                self.redis_url = undo.enter_context(EmbeddedValkey(self.folder / "valkey")).url
            url_file = self.folder / URL_FILE
            url_file.touch(mode=0o600)
            url_file.write_text(self.redis_url)
            undo.callback(url_file.unlink, missing_ok=True)
            self.environment = {
                "MEMORY_TASKS_LONG_TERM_URL": f"sqlite:///{self.folder / 'memory.db'}",
                **self.environment,
                "MEMORY_TASKS_REDIS_URL": self.redis_url,
            }
            if self._web:
                self._serve(*self._web)
            self._celery("beat", "beat", "--schedule", str(self.folder / "beat-schedule"), "--pidfile", "")
            self._celery(
                "worker", "worker", "-Q", "reply,persist,promote", "-P", "threads", "-c", str(self._concurrency),
                "-n", f"memory-tasks-{os.getpid()}@%h", "--without-mingle", "--without-gossip",
            )  # fmt: skip
            self._exit = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _serve(self, host: str, port: int) -> None:
        # The operations view shows what the worker has counted.
        metrics = str(free_port())
        self.environment = {
            "MEMORY_TASKS_METRICS_PORT": metrics,
            "MEMORY_TASKS_METRICS_URLS": json.dumps([f"http://127.0.0.1:{metrics}/metrics"]),
            **self.environment,
        }
        self._start(
            "web", "uvicorn", "--factory", "workers.web:create_app", "--host", host, "--port", str(port),
            "--no-access-log", "--timeout-graceful-shutdown", "3",
        )  # fmt: skip

    def _celery(self, name: str, *arguments: str) -> None:
        self._start(name, "celery", "-A", "workers.app", *arguments, "--loglevel", "INFO")

    def _start(self, name: str, module: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[name] = process
        self._exit.callback(_stop, process)

    def wait(self, seconds: float) -> None:
        """Wait, as long as all processes run.

        Args:
            seconds: How long.

        Raises:
            RuntimeError: Says which one and where its log is.
        """
        self._pause.wait(seconds)
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with code {process.returncode}, see {self.folder / f'{name}.log'}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def running_url(folder: Path) -> str | None:
    """The Redis URL of the stack that runs in a data folder, or None."""
    file = folder / URL_FILE
    return file.read_text() if file.exists() else None
