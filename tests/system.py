"""Real worker and beat processes for a test."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from memory_tasks import MemoryClient, MemoryService, Settings
from memory_tasks.factory import service_from_settings
from tests import model
from tests.conditions import wait_for
from tests.faults import FAULTS

FAST = {
    "sweep_interval": 0.2,
    "promote_interval": 0.3,
    "republish_after": 1.0,
    "completion_lease": 1.0,
    "completion_timeout": 20.0,
    "step_timeout": 3.0,
    "retry_base": 0.1,
    "retry_cap": 1.0,
}
"""Settings that make a system recover within seconds instead of minutes."""


class System:
    """Workers and beat on a Redis, each a process that can be killed; `with` stops them however the test ends.

    Args:
        folder: Logs, the long-term store, the model's calls and the faults.
        redis_url: A running server.
        module: Of the Celery app.
        variables: More environment variables of its processes.
        settings: Settings that differ from `FAST`.
    """

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        module: str = "tests.worker",
        variables: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self._module = module
        self.faults = folder / "faults"
        self.faults.mkdir(parents=True, exist_ok=True)
        (folder / "calls").touch()
        chosen = {
            "redis_url": redis_url,
            "long_term_url": f"sqlite:///{folder / 'memory.db'}",
            "completer": "tests.model:complete",
            **FAST,
            **settings,
        }
        self.settings = Settings.load(**chosen)
        self.environment = {
            **os.environ,
            **{f"MEMORY_TASKS_{name.upper()}": str(value) for name, value in chosen.items()},
            model.CALLS: str(folder),
            FAULTS: str(self.faults),
            "PYTHONUNBUFFERED": "1",
            **(variables or {}),
        }
        self.client = MemoryClient(self.settings)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._service: MemoryService | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def service(self) -> MemoryService:
        """The same stores, in this process."""
        if self._service is None:
            self._service = service_from_settings(self.settings)
        return self._service

    def calls(self, turn_id: str) -> int:
        """How often the model was called for a turn."""
        return len(self.call_records().get(turn_id, []))

    def call_records(self) -> dict[str, list[model.Call]]:
        """All calls of the model, by turn."""
        return model.read_calls(self.folder)

    def log(self, name: str) -> str:
        """What a process has written."""
        return (self.folder / f"{name}.log").read_text()

    def start_worker(
        self,
        name: str = "worker",
        *,
        pool: str = "threads",
        concurrency: int = 10,
        queues: str = "reply,persist,promote",
        wait: bool = True,
        wrapper: tuple[str, ...] = (),
    ) -> None:
        """Start a worker and wait until it consumes."""
        seen = self.log(name).count(" ready.") if (self.folder / f"{name}.log").exists() else 0
        self._start(
            name, "worker", "-Q", queues, "-P", pool, "-c", str(concurrency), "-n", f"{name}@{self.folder.name}",
            "--without-mingle", "--without-gossip", wrapper=wrapper,
        )  # fmt: skip
        if wait:
            self.wait_ready(name, seen)

    def wait_ready(self, name: str, seen: int = 0) -> None:
        """Wait until a worker consumes."""
        wait_for(lambda: self.log(name).count(" ready.") > seen, f"{name} to be ready, see its log", 60)

    def start_beat(self, name: str = "beat") -> None:
        """Start beat; several under different names are allowed."""
        self._start(name, "beat", "--schedule", str(self.folder / f"{name}-schedule"), "--pidfile", "")

    def _start(self, name: str, *arguments: str, wrapper: tuple[str, ...] = ()) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*wrapper, sys.executable, "-m", "celery", "-A", self._module, *arguments, "--loglevel", "INFO"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """SIGKILL a process with its children."""
        process = self.processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str, seconds: float = 30) -> int:
        """SIGTERM a process and wait for its end; its exit code."""
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(seconds)

    def close(self) -> None:
        """Stop everything, hard where it does not stop in time."""
        for process in self.processes.values():
            process.terminate()
        for name in list(self.processes):
            try:
                self.processes[name].wait(15)
            except subprocess.TimeoutExpired:
                self.kill(name)
        self.client.close()
