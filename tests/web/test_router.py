"""The router in a host's app, over HTTP, with a real worker behind it."""

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from memory_tasks import Scope
from tests.conditions import wait_for
from tests.conftest import make_turn
from tests.system import System
from tests.web.conftest import Server


class User:
    """Somebody's requests."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._url = url

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        options["headers"] = {"x-user": self.name, **options.get("headers", {})}
        return requests.request(method, f"{self._url}/{path}", timeout=60, **options)

    def send(self, text: str, conversation: str = "c1", **options: Any) -> str:
        body = {"text": text, **options.pop("body", {})}
        accepted = self.ask("POST", f"conversations/{conversation}/turns", json=body, **options)
        assert accepted.status_code == 202, accepted.text
        return str(accepted.json()["turn_id"])

    def events(self, turn: str, conversation: str = "c1", **headers: str) -> list[dict[str, str]]:
        path = f"conversations/{conversation}/turns/{turn}/events"
        answer = self.ask("GET", path, headers=headers, stream=True)
        assert answer.status_code == 200, answer.text
        return list(sse(answer))

    def persisted(self, turn: str, conversation: str = "c1") -> None:
        assert self.events(turn, conversation)[-1]["event"] in ("persisted", "promoted")


def sse(answer: requests.Response) -> Iterator[dict[str, str]]:
    """The events of a stream as they come."""
    received = b""
    for part in answer.iter_content(chunk_size=None):
        *events, received = (received + part).split(b"\r\n\r\n")
        for event in events:
            # A line that begins with a colon is a heartbeat.
            lines = [line for line in event.decode().split("\r\n") if not line.startswith(":")]
            if lines:
                yield {name: value for name, _, value in (line.partition(": ") for line in lines)}


@pytest.fixture
def ann(host: Server) -> User:
    return User(f"{host.url}/memory", f"ann-{uuid.uuid4().hex}")


@pytest.fixture
def bob(host: Server) -> User:
    return User(f"{host.url}/memory", f"bob-{uuid.uuid4().hex}")


def test_a_message_is_accepted_answered_and_found_through_its_links(ann: User) -> None:
    accepted = ann.ask("POST", "conversations/c1/turns", json={"text": "hello"})
    body = accepted.json()
    assert (accepted.status_code, body["state"], accepted.headers["location"]) == (
        202, "accepted", f"turns/{body['turn_id']}",
    )  # fmt: skip
    events = list(sse(ann.ask("GET", f"conversations/c1/{body['links']['events']}", stream=True)))
    assert [event["event"] for event in events] == ["chunk", "completed", "persisted"]
    turn = ann.ask("GET", f"conversations/c1/{body['links']['turn']}").json()
    assert (turn["answer"], turn["state"], turn["model_calls"]) == ("re: hello [2 messages]", "persisted", 1)
    assert ann.ask("GET", f"conversations/c1/{body['links']['memories']}").json()["memories"] == []


def test_the_same_key_is_one_turn_and_another_text_is_refused(ann: User, web_system: System) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    assert {ann.send("pay once", headers=key) for _ in range(4)} == {key["Idempotency-Key"]}
    ann.persisted(key["Idempotency-Key"])
    assert ann.send("pay once", headers=key) == key["Idempotency-Key"]
    other = ann.ask("POST", "conversations/c1/turns", json={"text": "pay twice"}, headers=key)
    assert (other.status_code, "nothing was accepted" in other.json()["detail"]) == (422, True)
    assert web_system.calls(key["Idempotency-Key"]) == 1


def test_a_reader_that_comes_back_misses_nothing_and_sees_nothing_twice(ann: User, web_system: System) -> None:
    gate = uuid.uuid4().hex
    turn = ann.send(f"hold:{gate} a long answer")
    path = f"conversations/c1/turns/{turn}/events"
    seen: list[dict[str, str]] = []
    with ann.ask("GET", path, stream=True) as answer:
        for event in sse(answer):
            seen.append(event)
            if len(seen) == 2:
                break
    (web_system.folder / gate).touch()
    seen += ann.events(turn, **{"Last-Event-ID": seen[-1]["id"]})
    assert len({event["id"] for event in seen}) == len(seen)
    assert "".join(json.loads(event["data"])["text"] for event in seen) == f"re: hold:{gate} a long answer [2 messages]"
    after = ann.ask("GET", f"{path}?after={seen[1]['id']}", stream=True)
    assert [event["id"] for event in sse(after)] == [event["id"] for event in seen[2:]]
    over = ann.ask("GET", path, headers={"Last-Event-ID": seen[-1]["id"]})
    assert (over.status_code, over.text) == (204, "")
    assert web_system.calls(turn) == 1


def test_many_readers_that_go_away_leave_no_connection_behind(ann: User, web_system: System) -> None:
    gate = uuid.uuid4().hex
    turn = ann.send(f"gate:{gate} wait")
    redis = web_system.client.redis
    before = redis.info("clients")["connected_clients"]

    def leave(_: int) -> None:
        ann.ask("GET", f"conversations/c1/turns/{turn}/events", stream=True).close()

    with ThreadPoolExecutor(20) as readers:
        list(readers.map(leave, range(60)))
    # A reader's connection goes back to the pool, at the latest when its blocking read ends.
    wait_for(lambda: blocked(redis) <= 1, "the readers to be gone", 30)
    assert redis.info("clients")["connected_clients"] - before <= 65
    (web_system.folder / gate).touch()
    ann.persisted(turn)
    assert web_system.calls(turn) == 1


def blocked(redis: Any) -> int:
    """Readers that wait on an event stream; the worker waits for tasks."""
    return sum(client["cmd"] == "xread" for client in redis.client_list())


def test_what_was_recalled_is_shown_with_its_evidence(ann: User, web_system: System) -> None:
    scope = Scope(user_id=ann.name, conversation_id="c1")
    web_system.service.remember(scope, make_turn("t1", "the zebra lives in Kenya"))
    turn = ann.send("where does the zebra live")
    ann.persisted(turn)
    (memory,) = ann.ask("GET", f"conversations/c1/turns/{turn}/memories").json()["memories"]
    assert memory["user_message"] == "the zebra lives in Kenya"
    assert memory["words"] > 0.5 < memory["meaning"]
    found = ann.ask("POST", "conversations/c1/memories/search", json={"query": "zebra"}).json()
    assert ([one["turn_id"] for one in found["memories"]], found["total"]) == (["t1"], 1)
    assert [one["turn_id"] for one in ann.ask("GET", "conversations/c1/memories").json()["memories"]] == ["t1"]


def test_nobody_sees_or_erases_what_is_anothers(ann: User, bob: User) -> None:
    turn = ann.send("my secret", body={"remember": True})
    ann.persisted(turn)
    for method, path in (
        ("GET", "conversations/c1/turns"),
        ("GET", f"conversations/c1/turns/{turn}"),
        ("GET", f"conversations/c1/turns/{turn}/events"),
        ("GET", f"conversations/c1/turns/{turn}/memories"),
        ("DELETE", f"conversations/c1/turns/{turn}"),
        ("DELETE", "conversations/c1"),
    ):
        answer = bob.ask(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path
    assert bob.ask("GET", "export").text == bob.ask("GET", "conversations/c1/export").text == ""
    assert bob.ask("POST", "conversations/c1/memories/search", json={"query": "secret"}).json()["memories"] == []
    assert bob.ask("DELETE", "user").json() == {"working": 0, "long_term": 0, "ledger": 0}
    named = bob.ask("POST", "conversations/c1/turns", json={"text": "hello", "user_id": ann.name})
    assert named.status_code == 422
    assert "my secret" in ann.ask("GET", "export").text


def test_forgetting_says_how_much_it_erased(ann: User) -> None:
    turns = [ann.send(f"note {n}", body={"remember": True}) for n in range(3)]
    ann.persisted(turns[-1])
    wait_for(lambda: ann.ask("GET", "conversations/c1/memories").json()["total"] == 3, "all to be remembered")
    one = ann.ask("DELETE", f"conversations/c1/turns/{turns[0]}")
    assert (one.status_code, one.json()) == (200, {"working": 1, "long_term": 1, "ledger": 1})
    assert ann.ask("DELETE", f"conversations/c1/turns/{turns[0]}").status_code == 404
    exported = [json.loads(line)["user_message"] for line in ann.ask("GET", "export").text.splitlines()]
    assert set(exported) == {"note 1", "note 2"}
    assert ann.ask("DELETE", "conversations/c1").json() == {"working": 2, "long_term": 2, "ledger": 2}
    assert ann.ask("GET", "conversations/c1/turns").status_code == 404
    other = ann.send("elsewhere", "c2")
    ann.persisted(other, "c2")
    assert ann.ask("DELETE", "user").json()["working"] == 1


@pytest.mark.parametrize(
    ("status", "options"),
    [
        (400, {"data": "{", "headers": {"content-type": "application/json"}}),
        (400, {"data": b"\xff\xfe", "headers": {"content-type": "application/json"}}),
        (413, {"data": b'"' + b"x" * 10_000_000 + b'"', "headers": {"content-type": "application/json"}}),
        (415, {"data": '{"text": "hello"}', "headers": {"content-type": "text/plain"}}),
        (415, {"data": '{"text": "hello"}'}),
        (422, {"json": {"text": "   "}}),
        (422, {"json": {"text": 3}}),
        (422, {"json": {"text": "x" * 1_100_000}}),
        (422, {"json": ["hello"]}),
        (422, {"json": {"text": "hello"}, "headers": {"Idempotency-Key": "a/b"}}),
        (422, {"json": {"text": "hello"}, "headers": {"Idempotency-Key": "x" * 3000}}),
    ],
)
def test_a_wrong_request_is_explained(ann: User, status: int, options: dict[str, Any]) -> None:
    answer = ann.ask("POST", "conversations/c1/turns", **options)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert answer.json()["status"] == status
    assert "xxx" not in answer.text
    assert ann.ask("GET", "conversations/c1/turns").status_code == 404


@pytest.mark.parametrize(
    "conversation", ["%00", "..%2f..", "x" * 3000, "%ff", "a%2Fb", "%F0%9F%A6%93", "<script>", "%2e%2e"]
)
def test_a_strange_id_is_no_error_of_ours(ann: User, conversation: str) -> None:
    answer = ann.ask("POST", f"conversations/{conversation}/turns", json={"text": "hello"})
    assert answer.status_code in (202, 404, 422), answer.text
    assert ann.ask("GET", f"conversations/{conversation}/turns").status_code in (200, 404, 422)


def test_without_a_login_nothing_is_there(host: Server) -> None:
    for path in ("memory/export", "memory/conversations/c1/turns"):
        answer = requests.get(f"{host.url}/{path}", timeout=30)
        assert (answer.status_code, answer.json()["title"]) == (401, "Unauthorized")
    odd = requests.get(f"{host.url}/memory/export", headers={"x-user": "x" * 3000}, timeout=30)
    assert odd.status_code == 422


def test_who_asks_too_often_is_told_to_wait_and_others_are_not(host: Server) -> None:
    greedy, other = (User(f"{host.url}/strict", f"{name}-{uuid.uuid4().hex}") for name in ("greedy", "other"))
    body = {"text": "hello"}
    answers = [greedy.ask("POST", "conversations/c1/turns", json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert "2 per 1 minute" in answers[-1].json()["detail"]
    assert greedy.ask("GET", "conversations/c1/turns").status_code == 200
    assert other.ask("POST", "conversations/c1/turns", json=body).status_code == 202


def test_no_text_is_in_the_logs_of_the_most_talkative_host(ann: User, host: Server) -> None:
    turn = ann.send("stream:3 pangolin", body={"remember": True})
    ann.persisted(turn)
    ann.ask("POST", "conversations/c1/memories/search", json={"query": "pangolin"})
    ann.ask("POST", "conversations/c1/turns", json={"text": 3, "pangolin": "pangolin"})
    ann.ask("GET", "export")
    assert host.log
    assert "pangolin" not in host.log


def test_redis_that_is_away_is_a_503_that_says_to_repeat(ann: User, web_system: System) -> None:
    # Without a replica that it asks for, Redis refuses to write.
    web_system.client.redis.config_set("min-replicas-to-write", 1)
    answer = ann.ask("POST", "conversations/c1/turns", json={"text": "hello"})
    web_system.client.redis.config_set("min-replicas-to-write", 0)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "127.0.0.1" not in answer.text
