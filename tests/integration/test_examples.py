"""The example apps, each started as a server and spoken to over HTTP."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conditions import wait_for
from tests.system import System
from workers.valkey import free_port

SERVERS = {
    "fastapi": ("uvicorn", "examples.fastapi_app:app", "--port", "{port}"),
    "flask": ("flask", "--app", "examples.flask_app", "run", "--port", "{port}"),
    "django": ("examples.django_app", "runserver", "127.0.0.1:{port}", "--noreload"),
}


def request(url: str, body: object = None, **headers: str) -> tuple[int, str]:
    headers = {"X-User": "ann", "Content-Type": "application/json", **headers}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def serving(name: str, system: System, folder: Path) -> Iterator[str]:
    port = free_port()
    command = [part.format(port=port) for part in SERVERS[name]]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", *command], env=system.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: _answers(url), f"{name} to start")
        yield url
    finally:
        server.terminate()
        server.wait()


def _answers(url: str) -> bool:
    try:
        return request(url)[0] > 0
    except OSError:
        return False


@pytest.mark.parametrize("name", ["flask", "django"])
def test_an_example_answers_once_and_says_what_is_wrong(name: str, threads_on_redis: System, tmp_path: Path) -> None:
    conversation, key = uuid.uuid4().hex, uuid.uuid4().hex
    with serving(name, threads_on_redis, tmp_path) as url:
        chat = f"{url}/chat/{conversation}"
        answers = [request(chat, {"text": "hello"}, **{"Idempotency-Key": key}) for _ in range(2)]
        assert [status for status, _ in answers] == [200, 200]
        assert {body["answer"] for body in _bodies(answers)} == {"re: hello [2 messages]"}
        assert threads_on_redis.calls(key) == 1
        status, body = request(chat, {"text": "  "})
        assert (status, "empty" in body) == (422, True)
        assert request(chat, {"text": "final:9"})[0] == 502
        status, events = request(f"{chat}/{key}/events")
        assert status == 200
        assert [line for line in events.splitlines() if line.startswith("event:")][-1] == "event: persisted"
        assert request(f"{chat}/no-such-turn/events")[0] == 404
        assert request(f"{chat}/{key}/events", **{"X-User": "bob"})[0] == 404


def _bodies(answers: list[tuple[int, str]]) -> list[Any]:
    return [json.loads(body) for _, body in answers]


def test_fastapi_has_the_router(threads_on_redis: System, tmp_path: Path) -> None:
    with serving("fastapi", threads_on_redis, tmp_path) as url:
        turns = f"{url}/memory/conversations/{uuid.uuid4().hex}/turns"
        status, body = request(turns, {"text": "stream:3 hello"})
        assert status == 202
        turn = json.loads(body)["turn_id"]
        _, events = request(f"{turns}/{turn}/events")
        pieces = [json.loads(line[6:]).get("text", "") for line in events.splitlines() if line.startswith("data: ")]
        assert "".join(pieces) == "re: stream:3 hello [2 messages]"
        assert request(f"{turns}/{turn}/events", **{"X-User": "bob"})[0] == 404
        assert request(f"{turns}/{turn}", **{"X-User": ""})[0] == 401
