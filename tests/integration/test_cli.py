"""The command line, as a person uses it: real processes."""

import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memory_tasks import Memory, Scope, TurnFailedError
from memory_tasks.cli import app
from tests.conditions import wait_for
from tests.conftest import make_turn
from tests.system import System
from workers.valkey import free_port

COMMAND = (sys.executable, "-m", "memory_tasks")


def clean_environment(**settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_TASKS_")}
    return {**kept, "COLUMNS": "160", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", **settings}


def processes_using(folder: Path) -> list[str]:
    """Command lines of running processes that name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to look for left processes")
def test_the_demo_recalls_what_only_long_term_memory_has_and_leaves_nothing(tmp_path: Path) -> None:
    environment = clean_environment(TMPDIR=str(tmp_path))
    done = subprocess.run([*COMMAND, "demo"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Mia" in done.stdout
    assert "recall found it" in done.stdout
    assert re.search(r"recalled \+\d+ ms, completed \+\d+ ms, persisted", done.stdout)
    assert list(tmp_path.iterdir()) == []
    assert processes_using(tmp_path) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_either(tmp_path: Path, how: signal.Signals) -> None:
    environment = clean_environment(TMPDIR=str(tmp_path))
    process = subprocess.Popen(
        [*COMMAND, "demo"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("you"):
            break
    process.send_signal(how)
    process.stdout.read()
    assert process.wait(60) != 0
    assert list(tmp_path.iterdir()) == []
    assert processes_using(tmp_path) == []


def test_up_runs_until_interrupted_and_keeps_its_data(tmp_path: Path) -> None:
    environment = clean_environment()
    data = tmp_path / "data"
    for turn in ("first", "second"):
        process = subprocess.Popen(
            [*COMMAND, "up", "--data", str(data)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_for(lambda: (data / "redis-url").exists() and (data / "redis-url").read_text(), "the stack to start")
        chat = subprocess.run(
            [*COMMAND, "chat", "--data", str(data), "--user", "ann"],
            env=environment,
            input=f"!the {turn} tea is sencha\n\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert chat.returncode == 0, chat.stdout + chat.stderr
        assert ("first tea" in chat.stdout) == (turn == "second")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert "data is kept" in process.stdout.read()
    assert processes_using(data) == []


def run(system: System, *arguments: str) -> tuple[int, str]:
    """Run a command in this process, with the settings of a system."""
    settings = {name: value for name, value in system.environment.items() if name.startswith("MEMORY_TASKS_")}
    result = CliRunner().invoke(app, arguments, env={**settings, "COLUMNS": "200"})
    return result.exit_code, result.output


def test_status_and_failed(threads_on_redis: System) -> None:
    system = threads_on_redis
    pending = system.client.reply("cli", "c1", "final:1 [bold]x[/]", idempotency_key="[red]turn")
    with pytest.raises(TurnFailedError):
        pending.result()
    code, output = run(system, "status", "[red]turn")
    assert code == 0
    assert re.search(r"state\s+failed", output)
    assert re.search(r"model calls\s+1", output)
    code, output = run(system, "failed", "list")
    assert "[red]turn" in output
    assert "complete" in output
    assert "CompletionError" in output
    named = ("--user", "cli", "--conversation", "c1")
    assert "CompletionError" in run(system, "failed", "show", "[red]turn", *named)[1]
    assert run(system, "failed", "retry", "[red]turn")[0] == 0
    assert pending.wait_persisted().calls == 2
    assert run(system, "failed", "drop", "[red]turn")[0] == 1

    dropped = system.client.reply("cli", "c1", "final:9 x", idempotency_key="drop me")
    with pytest.raises(TurnFailedError):
        dropped.result()
    assert "Dropped" in run(system, "failed", "drop", "drop me")[1]
    code, output = run(system, "status", "drop me")
    assert code == 1
    assert "UnknownTurnError" in output


def test_recall_shows_what_would_be_recalled_and_why_the_rest_is_not(own_system: System) -> None:
    scope = Scope(user_id="ann", conversation_id="c1")
    turns = [("t1", "I like green tea", 1), ("t2", "i like green tea!", 2)]
    turns += [(f"t{day}", f"invoice number {day} is due", day) for day in range(3, 8)]
    own_system.service.long_term.upsert(
        [
            Memory(scope=scope, turn=make_turn(id, text, "", created_at=datetime(2024, 5, day, tzinfo=UTC)))
            for id, text, day in turns
        ]
    )
    named = ("--user", "ann", "--conversation", "c1")
    code, output = run(own_system, "recall", "Which tea do I like?", *named)
    assert code == 0
    assert output.lower().count("i like green tea") == 1
    assert "invoice number 7" not in output
    explained = run(own_system, "recall", "Which tea do I like?", *named, "--explain")[1]
    assert "not recalled: a recent turn or a better memory says the same" in explained
    assert "below RECALL_MIN_RELEVANCE" in explained
    assert "t1" not in run(own_system, "recall", "Which tea?", *named, "--until", "2024-05-01")[1]
    assert "like green tea!" in run(own_system, "recall", "Which tea?", *named, "--since", "2024-05-02")[1]
    closest = run(own_system, "recall", "xylophone", *named)[1]
    assert "Nothing is recalled. This came closest:" in closest
    assert (
        "Nothing is in long-term memory there."
        in run(own_system, "recall", "x", "--user", "a", "--conversation", "b")[1]
    )


def test_no_dead_letters_is_said_in_words(own_system: System) -> None:
    assert "No dead letters" in run(own_system, "failed", "list")[1]


def test_health_notices_missing_parts_and_a_worker_that_does_not_consume(own_system: System) -> None:
    code, output = run(own_system, "health")
    assert (code, "start beat" in output) == (1, True)
    own_system.start_beat()
    own_system.start_worker("both")
    wait_for(lambda: run(own_system, "health")[0] == 0, "the system to be healthy")
    node = f"both@{own_system.folder.name}"
    assert run(own_system, "health", "--worker", node)[0] == 0
    own_system.kill("both")
    own_system.start_worker("sweeper", queues="persist")
    own_system.client.reply("ann", "c1", "hello")
    wait_for(lambda: "nobody took them" in run(own_system, "health")[1], "the missing consumer to be noticed", 60)
    os.killpg(own_system.processes["sweeper"].pid, signal.SIGSTOP)
    code, output = run(own_system, "health", "--worker", f"sweeper@{own_system.folder.name}")
    assert (code, "restart it" in output) == (1, True)
    own_system.kill("sweeper")


def test_the_doctor_has_a_remedy_for_what_is_not_well(own_system: System) -> None:
    own_system.client.redis.config_set("appendonly", "no")
    own_system.client.reply("ann", "c1", "hello")
    code, output = run(own_system, "doctor")
    assert code == 1
    for expected in ("CONFIG SET appendonly yes", "start beat", "reply 1", "from Redis", "made with this embedder"):
        assert expected in output
    own_system.client.redis.config_set("appendonly", "yes")
    own_system.start_beat()
    own_system.start_worker()
    wait_for(lambda: run(own_system, "doctor")[0] == 0, "all to be well")
    keys, redis = own_system.client.keys, own_system.client.redis
    for minute in (-1, 0, 1):
        # As if two beats had been running.
        redis.set(keys.sweeps(int(time.time() // 60) + minute), int(2 * 60 / own_system.settings.sweep_interval))
    code, output = run(own_system, "doctor")
    assert (code, "run beat once" in output, "no task may run longer than" in output) == (1, True, True)
    code, output = run(
        System(own_system.folder, own_system.settings.redis_url, embedder="sentence-transformers"), "doctor"
    )
    assert (code, "memory-tasks[sentence-transformers]" in output) == (1, True)
    broken = System(
        own_system.folder, own_system.settings.redis_url, broker_url=f"amqp://app:secret@127.0.0.1:{free_port()}"
    )
    code, output = run(broken, "doctor")
    assert (code, "MEMORY_TASKS_BROKER_URL" in output, "secret" in output) == (1, True, False), output
    other = System(own_system.folder, own_system.settings.redis_url, embedder="none")
    code, output = run(other, "doctor")
    assert (code, "IndexMismatchError" in output) == (1, True)


def test_wrong_use_is_explained(own_system: System) -> None:
    code, output = run(own_system, "status", "t", "--user", "ann")
    assert code == 2
    assert "--conversation" in output
    own_system.environment["MEMORY_TASKS_RECENT_TURN"] = "4"
    code, output = run(own_system, "failed", "list")
    assert code == 1
    assert "did you mean MEMORY_TASKS_RECENT_TURNS" in output
    assert "memory-tasks demo" in run(own_system, "--help")[1]
    del own_system.environment["MEMORY_TASKS_RECENT_TURN"]
    assert "MEMORY_TASKS_RECENT_TURNS" in run(own_system, "settings")[1]


def test_up_ends_when_a_part_ends(tmp_path: Path) -> None:
    environment = clean_environment(MEMORY_TASKS_COMPLETER="no_such_module:thing", MEMORY_TASKS_RETRY_CAP="9999")
    done = subprocess.run(
        [*COMMAND, "up", "--data", str(tmp_path)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert ".log" in done.stdout + done.stderr
