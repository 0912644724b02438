"""Metrics, spans and log lines of real workers."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.parser import text_string_to_metric_families

from memory_tasks.telemetry import scope_hash
from tests.conditions import wait_for
from tests.integration.test_recovery import SCOPE
from tests.system import System
from workers.valkey import EmbeddedValkey, free_port

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(port: int) -> tuple[str, Samples]:
    """What a worker tells Prometheus."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return text, {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum of all samples of a name that have these labels."""
    return sum(found for (n, given), found in samples.items() if n == name and set(labels.items()) <= given)


def test_the_processes_of_a_pool_count_together_and_say_nothing_of_anybody(
    own_valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    port = free_port()
    with System(tmp_path, own_valkey.url, module="workers.app", metrics_port=port, promote_after=0.5) as system:
        system.start_beat()
        system.start_worker(pool="prefork", concurrency=2)
        pending = [
            system.client.reply(f"user-{n}", "private-chat", f"{word} pangolin", idempotency_key=f"turn-{n}")
            for n, word in enumerate(["hello"] * 10 + ["remember"] * 2 + ["retryable:1", "final:9"])
        ]
        for one in pending[:-1]:
            one.wait_persisted()
        system.client.reply("user-0", "private-chat", "pangolin again").wait_persisted()
        wait_for(lambda: pending[-1].status().state == "failed", "the turn that must fail")
        wait_for(lambda: len(list(system.service.long_term.export())) == 14, "all turns to be promoted")
        text, samples = scrape(port)
        assert value(samples, "memory_tasks_replies_total", outcome="persisted") == 14
        assert value(samples, "memory_tasks_replies_total", outcome="failed") == 1
        for step in ("recall", "complete", "persist"):
            assert value(samples, "memory_tasks_step_seconds_count", step=step, outcome="done") >= 14
        assert value(samples, "memory_tasks_model_calls_total") == 16
        assert value(samples, "memory_tasks_model_tokens_total", model="stand-in", direction="output") == 14
        assert value(samples, "memory_tasks_retries_total", step="complete", reason="RetryableCompletionError") == 1
        assert value(samples, "memory_tasks_turns_dead_total", step="complete", reason="CompletionError") == 1
        assert value(samples, "memory_tasks_promotion_lag_seconds_count") >= 1
        assert value(samples, "memory_tasks_promoted_turns_total") >= 12
        assert value(samples, "memory_tasks_mailbox_depth_count") >= 15
        assert value(samples, "memory_tasks_recalled_memories_count") >= 15
        assert value(samples, "memory_tasks_dead_letters") == 1
        assert (
            value(samples, "memory_tasks_up", server="redis") == value(samples, "memory_tasks_up", server="broker") == 1
        )
        assert {labels for name, labels in samples if name == "memory_tasks_queue_length"} == {
            frozenset({("queue", queue)}) for queue in ("persist", "promote", "reply")
        }
        assert not any(secret in text for secret in ("user-", "private-chat", "pangolin", "turn-1"))
        dashboard = Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json"
        alerts = Path(__file__).parents[2] / "deploy" / "alerts.yaml"
        named = {name for name, _ in samples} | {
            "memory_tasks_malformed_messages_total",
            "memory_tasks_duplicates_avoided_total",
        }
        for file in (dashboard, alerts):
            used = {word for word in _words(file.read_text()) if word.startswith("memory_tasks_")}
            assert used
            assert used <= named, f"{file.name} uses metrics that no worker has"


def _words(text: str) -> set[str]:
    return set("".join(char if char.isalnum() or char == "_" else " " for char in text).split())


def test_metrics_say_that_redis_is_down_instead_of_failing(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    port = free_port()
    with System(tmp_path, own_valkey.url, metrics_port=port) as system:
        system.start_worker()
        own_valkey.stop()
        samples = scrape(port)[1]
        assert (
            value(samples, "memory_tasks_up", server="redis") == value(samples, "memory_tasks_up", server="broker") == 0
        )


def test_a_port_that_is_taken_is_said_at_the_start(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with System(tmp_path, own_valkey.url, metrics_port=own_valkey.port) as system:
        system.start_worker(wait=False)
        wait_for(lambda: "MEMORY_TASKS_METRICS_PORT" in system.log("worker"), "the worker to say so")
        assert "needs a port of its own" in system.log("worker")


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """An OpenTelemetry collector: its URL, and what it is sent."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = __import__("gzip").decompress(body)
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_one_trace_goes_from_the_web_request_to_the_worker(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with collector() as (url, received):
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with System(tmp_path, own_valkey.url, module="workers.app", variables=variables) as system:
            system.start_worker()
            # What a web framework's instrumentation does for each request.
            with TracerProvider().get_tracer("web").start_as_current_span("POST /chat") as request:
                pending = system.client.reply("ann", "c1", "remember the pangolin")
            trace_id = request.get_span_context().trace_id.to_bytes(16, "big")
            wait_for(lambda: pending.status().state == "promoted", "the turn to be promoted")
            wanted = {f"memory_tasks.{name}" for name in ("recall", "complete", "persist", "promote")}
            spans = wait_for(lambda: _spans(received, trace_id, wanted), "the worker's spans")
            assert all("pangolin" not in str(span) and "ann" not in str(span).split() for span in spans)
            recall = next(span for span in spans if span.name == "memory_tasks.recall")
            shown = {attribute.key: attribute.value.string_value for attribute in recall.attributes}
            assert shown == {"turn": pending.turn_id, "scope": scope_hash(SCOPE), "outcome": "done"}
    assert trace.get_current_span() is trace.INVALID_SPAN


def _spans(received: list[ExportTraceServiceRequest], trace_id: bytes, wanted: set[str]) -> list[object] | None:
    spans = [
        span
        for request in list(received)
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.trace_id == trace_id
    ]
    return spans if wanted <= {span.name for span in spans} else None


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_each_step_is_one_line(own_valkey: EmbeddedValkey, tmp_path: Path, log_format: str) -> None:
    with System(tmp_path, own_valkey.url, log_format=log_format) as system:
        system.start_worker()
        pending = system.client.reply("ann", "c1", "remember the pangolin")
        wait_for(lambda: pending.status().state == "promoted", "the turn to be promoted")
        wait_for(lambda: f"persist of turn {pending.turn_id}: done" in system.log("worker"), "the last line")
        lines = [line for line in system.log("worker").splitlines() if pending.turn_id in line and "of turn" in line]
        assert len(lines) == 3
        if log_format == "json":
            steps = [json.loads(line) for line in lines]
            assert [step["step"] for step in steps] == ["recall", "complete", "persist"]
            assert {step["scope"] for step in steps} == {scope_hash(SCOPE)}
            assert all(
                step["outcome"] == "done" and step["ms"] > 0 and step["turn"] == pending.turn_id for step in steps
            )
            assert all(json.loads(line) for line in system.log("worker").splitlines() if line.startswith("{"))
        else:
            assert all("scope=" in line and "outcome=done" in line for line in lines)
        assert "pangolin" not in system.log("worker")
