"""The operations API: how a real system stands, and its dead letters."""

import subprocess
import sys
import uuid

import pytest
import requests

from memory_tasks import TurnFailedError
from tests.conditions import wait_for
from tests.system import System
from tests.web.conftest import Server
from tests.web.host import TOKEN


def ask(host: Server, method: str, path: str, token: str = TOKEN, **turn: str) -> requests.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return requests.request(method, f"{host.url}/operations/{path}", headers=headers, timeout=60, json=turn or None)


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], "ümlaut"])
def test_nothing_is_shown_without_the_token(host: Server, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}".encode()}
    letter = {"user_id": "ann", "conversation_id": "c1", "turn_id": "t1"}
    answers = [
        requests.get(f"{host.url}/operations/{path}", headers=headers) for path in ("overview", "failed", "checks")
    ]
    answers += [
        requests.post(f"{host.url}/operations/failed/{path}", headers=headers, json=letter)
        for path in ("retry", "drop")
    ]
    assert {(answer.status_code, answer.headers["www-authenticate"]) for answer in answers} == {(401, "Bearer")}


def test_the_overview_counts_what_the_workers_did(host: Server, web_system: System) -> None:
    user = f"ann-{uuid.uuid4().hex}"
    before = ask(host, "GET", "overview").json()["counted"]
    for n in range(3):
        web_system.client.reply(user, f"c{n}", "hello pangolin").wait_persisted()
    found = ask(host, "GET", "overview")
    now = found.json()
    assert now["counted"]["replies"]["persisted"] - before["replies"].get("persisted", 0) >= 3
    assert now["counted"]["steps"]["complete"]["seconds"] > 0
    assert now["counted"]["silent"] == ["http://127.0.0.1:9/"]
    assert set(now["queues"]) == {"reply", "persist", "promote"}
    assert now["conversations"] >= 3
    assert now["oldest_unpromoted_seconds"] > 0
    assert "pangolin" not in found.text


def test_a_dead_letter_is_listed_without_its_text_retried_and_dropped(host: Server, web_system: System) -> None:
    user, client = f"ann-{uuid.uuid4().hex}", web_system.client
    pending = [client.reply(user, "c1", f"final:{n} pangolin") for n in (1, 9)]
    for one in pending:
        with pytest.raises(TurnFailedError):
            one.result()
    listed = ask(host, "GET", "failed")
    mine = [turn for turn in listed.json() if turn["user_id"] == user]
    assert [(turn["failed_step"], turn["error"]) for turn in mine] == [("complete", "CompletionError")] * 2
    assert "pangolin" not in listed.text
    first, second = ({"user_id": user, "conversation_id": "c1", "turn_id": one.turn_id} for one in pending)
    assert ask(host, "POST", "failed/retry", **first).status_code == 204
    wait_for(lambda: pending[0].status().state == "persisted", "the retried turn to be answered")
    assert ask(host, "POST", "failed/drop", **second).status_code == 204
    assert ask(host, "POST", "failed/drop", **second).status_code == 404
    assert not [turn for turn in ask(host, "GET", "failed").json() if turn["user_id"] == user]


def test_the_checks_are_the_doctors(host: Server) -> None:
    found = {check["name"]: check for check in ask(host, "GET", "checks").json()}
    assert found["Redis"]["remedy"] == ""
    assert "dead letters" in found


def test_a_web_process_loads_no_completer_and_no_celery_worker() -> None:
    program = "import sys, memory_tasks.web.operations; print('torch' in sys.modules, 'openai' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "False"]
