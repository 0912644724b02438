"""A marked secret goes through every path, with every failure, and is found only where it belongs."""

import base64
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memory_tasks import MemoryTasksError
from memory_tasks.cli import app
from tests.conditions import wait_for
from tests.system import System
from workers.valkey import EmbeddedValkey, free_port

SECRET = "pangolin-4711"


def broker_messages(valkey: EmbeddedValkey) -> str:
    """All that was ever written to a server, from its append-only file, with the bodies of messages decoded."""
    written = b"".join(file.read_bytes() for file in valkey.folder.rglob("*.aof"))
    decoded = []
    for found in re.findall(rb"[A-Za-z0-9+/]{24,}={0,2}", written):
        whole = found.rstrip(b"=")
        decoded.append(base64.b64decode(whole[: len(whole) // 4 * 4]))
    return (written + b" ".join(decoded)).decode(errors="replace")


def raised(act: Callable[[], object]) -> str:
    """What an error says and shows of itself and of its causes."""
    with pytest.raises(MemoryTasksError) as failure:
        act()
    shown, error = [], failure.value
    while error is not None:
        shown.append(f"{error} {error!r}")
        error = error.__cause__  # type: ignore[assignment]
    return " ".join(shown)


def test_a_secret_is_found_in_no_log_message_result_error_or_metric(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    port = free_port()
    with EmbeddedValkey(tmp_path / "broker") as broker:
        with System(
            tmp_path / "system",
            own_valkey.url,
            variables={"TEST_SAVE_PATIENCE": "0.5"},
            broker_url=broker.url,
            metrics_port=port,
            importance_scorer="tests.faults:quoting_scorer",
            persist_attempts=2,
            recall_attempts=2,
            completion_attempts=2,
            promote_after=0.5,
        ) as system:
            system.start_beat()
            system.start_worker()
            seen = _all_paths(system, own_valkey)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                seen["metrics"] = answer.read().decode()
            seen |= {f"log of {name}": system.log(name) for name in ("worker", "beat")}
            environment = {k: v for k, v in system.environment.items() if k.startswith("MEMORY_TASKS_")}
            for command in (["failed", "list"], ["scopes"], ["doctor"]):
                seen[" ".join(command)] = CliRunner().invoke(app, command, env=environment).output
        broker.stop()
        seen["broker"] = broker_messages(broker)
    assert "carried" in seen["broker"]
    assert "complete of turn" in seen["log of worker"]
    assert {place for place, text in seen.items() if SECRET in text or "4711" in text} == set()


def _all_paths(system: System, valkey: EmbeddedValkey) -> dict[str, str]:
    client, seen = system.client, dict[str, str]()

    def send(name: str, message: str, **options: bool) -> object:
        return client.reply("ann", name, f"{message} {SECRET}", idempotency_key=name, **options)  # type: ignore[arg-type]

    # The scorer fails on the first, so its long-term write is tried twice and becomes a dead letter.
    send("scorer", "hello")
    wait_for(lambda: client.pending("ann", "scorer", "scorer").status().state == "failed", "the scorer to give up")
    (system.faults / "scores").touch()
    client.retry_failed("ann", "scorer", "scorer")
    for name, message in (("streamed", "stream:3"), ("once more", "retryable:1"), ("plain", "hello")):
        send(name, message)
        assert SECRET in client.pending("ann", name, name).result().answer
        client.pending("ann", name, name).wait_persisted()
    for name, message in (("refused", "final:9"), ("raising", "raise:9"), ("overloaded", "retryable:9")):
        send(name, message)
        seen[name] = raised(client.pending("ann", name, name).result)
    (system.faults / "search").write_text("1")
    send("blind", "hello")
    seen["blind"] = raised(client.pending("ann", "blind", "blind").result)
    (system.faults / "search").unlink()
    (system.faults / "upsert").write_text("1")
    send("unsaved", "hello", remember=True)
    wait_for(lambda: client.pending("ann", "unsaved", "unsaved").status().state == "failed", "saving to be given up")
    (system.faults / "upsert").unlink()
    client.retry_failed("ann", "unsaved", "unsaved")
    (system.faults / "kill-complete.before_call").touch()
    send("killed", "hello")
    wait_for(lambda: system.processes["worker"].poll() is not None, "the worker to be killed")
    system.kill("worker")
    system.start_worker()
    assert SECRET in client.pending("ann", "killed", "killed").result().answer
    # The ledger goes away while the model answers: the answer travels on through the broker.
    send("carried", "gate:go hello")
    wait_for(lambda: system.calls("carried") == 1, "the model to be called")
    valkey.stop()
    (system.folder / "go").touch()
    wait_for(lambda: "travels on in the message" in system.log("worker"), "the answer to travel")
    seen["down"] = raised(lambda: send("nowhere", "hello"))
    valkey.start()
    assert SECRET in client.pending("ann", "carried", "carried").result().answer
    assert system.calls("carried") == 1
    return seen


def test_an_embedder_that_quotes_is_not_quoted(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with System(
        tmp_path / "system", own_valkey.url, embedder="tests.faults:quoting_embedder", persist_attempts=2,
        promote_after=0.2,
    ) as system:  # fmt: skip
        system.start_beat()
        system.start_worker()
        first = system.client.reply("ann", "c1", f"hello {SECRET}")
        assert first.result().degraded == ["embedder: RuntimeError"]
        second = system.client.reply("ann", "c1", f"remember {SECRET}")
        wait_for(lambda: second.status().state == "failed", "the long-term write to be given up")
        wait_for(lambda: "can't be promoted yet" in system.log("worker"), "promotion to fail")
        assert second.status().error == "PartialWriteError"
        assert SECRET not in system.log("worker") + system.log("beat")
