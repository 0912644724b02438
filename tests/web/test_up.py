"""`memory-tasks up --web`, as a newcomer starts it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.conditions import wait_for
from workers.valkey import free_port


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_up_serves_the_page_and_an_answer(tmp_path: Path, host: str) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_TASKS_")}
    with (tmp_path / "shown").open("wb") as shown:
        up = subprocess.Popen(
            [
                sys.executable, "-m", "memory_tasks", "up", "--web", "--host", host, "--port", str(port),
                "--data", str(tmp_path / "data"),
            ],
            env=environment, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown,
        )  # fmt: skip
    try:
        wait_for(lambda: _get(url), "the page", 60)
        assert "<title>memory-tasks</title>" in requests.get(url, timeout=10).text
        turns = f"{url}/api/conversations/c1/turns"
        turn = requests.post(turns, json={"text": "hello"}, timeout=10).json()["turn_id"]
        wait_for(lambda: requests.get(f"{turns}/{turn}", timeout=10).json()["state"] == "persisted", "the answer", 60)
        assert requests.get(f"{url}/operations/overview", timeout=10).status_code == 404
        warned = "put your own login in front of it" in " ".join((tmp_path / "shown").read_text().split())
        assert warned == (host == "0.0.0.0")
    finally:
        up.terminate()
        assert up.wait(60) == 0


def _get(url: str) -> Any:
    try:
        return requests.get(url, timeout=5).ok
    except requests.ConnectionError:
        return False
