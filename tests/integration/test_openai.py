"""The OpenAI-compatible completer and embedder against a real HTTP server of our own."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from memory_tasks import (
    Completion,
    CompletionError,
    Message,
    ReplyRequest,
    RetryableCompletionError,
    Scope,
    Settings,
)
from memory_tasks.completers import load_completer
from memory_tasks.embedders import embed, load_embedder

REQUEST = ReplyRequest(scope=Scope(user_id="ann", conversation_id="c1"), message="hello", turn_id="t1")
MESSAGES = [Message(role="user", content="hello")]


class Provider(ThreadingHTTPServer):
    """Answers as `behaviour` says, and keeps what it was asked."""

    behaviour = "ok"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, Any, dict[str, Any]]] = []


class Handler(BaseHTTPRequestHandler):
    server: Provider

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append((self.path, self.headers, body))
        if self.path == "/embeddings":
            data = [{"object": "embedding", "index": n, "embedding": [n + 1, 0, 0]} for n in range(len(body["input"]))]
            self._answer(200, json.dumps({"object": "list", "model": "m", "data": data[::-1], "usage": {}}))
        elif self.server.behaviour.isdigit():
            status = int(self.server.behaviour)
            self._answer(status, '{"error": {"message": "you said: hello"}}', ("retry-after", "0.01"))
        else:
            self._stream()

    def _stream(self) -> None:
        pieces: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("he", "y")]
        if self.server.behaviour == "ok":
            pieces.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            pieces.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}})
        lines = [
            json.dumps({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m-1", **piece})
            for piece in pieces
        ]
        self._answer(200, "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]), kind="text/event-stream")

    def _answer(self, status: int, text: str, *headers: tuple[str, str], kind: str = "application/json") -> None:
        self.send_response(status)
        for name, value in (("content-type", kind), ("content-length", str(len(text))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def settings(provider: Provider) -> Settings:
    return Settings.load(
        completer="openai",
        embedder="openai",
        openai_base_url=f"http://127.0.0.1:{provider.server_port}",
        openai_api_key="very-secret",
        completion_timeout=5,
    )


def complete(settings: Settings) -> list[Any]:
    answer: Any = load_completer(settings)(MESSAGES, REQUEST)
    return list(answer)


def test_an_answer_streams_with_its_model_and_tokens(provider: Provider, settings: Settings) -> None:
    assert complete(settings) == [
        "he", "y", Completion(text="hey", model="m-1", input_tokens=5, output_tokens=2),
    ]  # fmt: skip
    path, headers, body = provider.requests[0]
    assert path == "/chat/completions"
    assert headers["Authorization"] == "Bearer very-secret"
    assert headers["X-Client-Request-Id"] == "t1"
    assert body["messages"] == [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("status", [429, 503])
def test_overload_is_tried_again_by_the_sdk_and_then_retryable(
    provider: Provider, settings: Settings, status: int
) -> None:
    provider.behaviour = str(status)
    with pytest.raises(RetryableCompletionError, match=str(status)) as failure:
        complete(settings)
    assert failure.value.retry_after == 0.01
    assert len(provider.requests) == 3


def test_a_refusal_is_final_and_does_not_quote_the_prompt(provider: Provider, settings: Settings) -> None:
    provider.behaviour = "400"
    with pytest.raises(CompletionError, match="400") as failure:
        complete(settings)
    assert not isinstance(failure.value, RetryableCompletionError)
    assert "hello" not in str(failure.value)


def test_a_stream_that_ends_in_mid_answer_is_no_answer(provider: Provider, settings: Settings) -> None:
    provider.behaviour = "cut"
    with pytest.raises(RetryableCompletionError, match="mid-answer"):
        complete(settings)


def test_a_provider_that_is_down_is_retryable(settings: Settings) -> None:
    down = settings.model_copy(update={"openai_base_url": "http://127.0.0.1:9"})
    with pytest.raises(RetryableCompletionError, match="APIConnectionError"):
        complete(down)


def test_embeddings_come_in_the_order_of_the_texts(provider: Provider, settings: Settings) -> None:
    embedder = load_embedder(settings)
    assert embedder is not None
    assert embedder.dimension == 3
    assert [list(vector) for vector in embedder.embed(["a", "", "c"])] == [[1, 0, 0], [2, 0, 0], [3, 0, 0]]
    assert embed(embedder, ["a", "b"]).tolist() == [[1, 0, 0], [1, 0, 0]]
    assert provider.requests[1][2]["input"] == ["a", " ", "c"]
