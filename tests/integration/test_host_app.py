"""A host's own Celery app, with our tasks added: everything of theirs stays as it was."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery

from beat_schedule import beat_schedule
from memory_tasks import MemoryClient, Settings, register
from memory_tasks.tasks.publisher import QUEUES
from tests.conditions import wait_for
from tests.system import System
from workers.valkey import EmbeddedValkey


def test_registering_changes_nothing_of_theirs(settings: Settings) -> None:
    app = Celery("theirs", broker="memory://")
    app.conf.update(task_serializer="yaml", timezone="Asia/Tokyo", task_routes={"theirs.*": "theirs"}, enable_utc=False)
    before = {name: app.conf[name] for name in app.conf}
    tasks = set(app.tasks)
    register(app, settings=settings)
    assert {name: app.conf[name] for name in app.conf} == before
    assert set(app.tasks) - tasks == set(QUEUES)


@contextmanager
def host(valkey: EmbeddedValkey, folder: Path, system: System) -> Iterator[dict[str, str]]:
    """Worker and beat of the example."""
    environment = {
        **system.environment,
        "BROKER_URL": f"redis://127.0.0.1:{valkey.port}/1",
        "RESULT_BACKEND": f"redis://127.0.0.1:{valkey.port}/2",
        # Its clock is not ours either.
        "TZ": "America/New_York",
    }
    worker = ("worker", "-Q", "celery,reply,persist,promote", "-P", "threads", "-c", "10", "--loglevel", "INFO")
    commands = {"worker": worker, "beat": ("beat", "--schedule", str(folder / "schedule"), "--pidfile", "")}
    processes = []
    try:
        for name, arguments in commands.items():
            with (folder / f"host-{name}.log").open("wb") as log:
                command = [sys.executable, "-m", "celery", "-A", "examples.host_celery_app", *arguments]
                processes.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
        wait_for(lambda: " ready." in (folder / "host-worker.log").read_text(), "the worker to be ready", 60)
        yield environment
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait(30)


def test_the_example_answers_promotes_and_still_does_its_own_work(
    own_valkey: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        System(tmp_path / "system", own_valkey.url, promote_after=0.5) as system,
        host(own_valkey, tmp_path, system) as environment,
    ):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        from examples import host_celery_app

        memory = MemoryClient(system.settings, host_celery_app.app)
        pending = memory.reply("ann", "c1", "remember the tea")
        assert pending.result().answer.startswith("re: remember the tea")
        assert host_celery_app.report.delay(("a", "b")).get(timeout=30) == 2
        memory.reply("ann", "c1", "hello").wait_persisted()
        # Beat of theirs sweeps and promotes.
        wait_for(lambda: len(list(system.service.long_term.export())) == 2, "promotion")
        assert host_celery_app.app.conf.timezone == "Europe/Berlin"
        assert host_celery_app.app.conf.task_serializer == "yaml"
        expected = {"nightly", *beat_schedule(system.settings)}
        assert set(host_celery_app.app.conf.beat_schedule) == expected
        assert "ContentDisallowed" not in (tmp_path / "host-worker.log").read_text()
        memory.close()
