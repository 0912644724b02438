"""What the system says about itself: counters, spans and one log line a step. Never a text, never a user's id.

Metrics go to the default registry of prometheus_client, spans to whatever tracer OpenTelemetry is set up with (nowhere,
if it is not), log lines to the logging of the process. Conversations are named by a hash.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import Status, StatusCode
from prometheus_client import Counter, Histogram

from memory_tasks.keys import scope_tag

if TYPE_CHECKING:
    from memory_tasks.models import Completion, Recall, Scope
    from memory_tasks.models import Step as StepName

logger = logging.getLogger("memory_tasks.steps")
tracer = trace.get_tracer("memory_tasks")

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
AGES = (1, 10, 60, 300, 900, 3600, 7200, 14400, 86_400, 604_800)

ACCEPTED = Counter("memory_tasks_accepted", "Messages accepted, each once.")
REPLIES = Counter("memory_tasks_replies", "Turns that ended: persisted, or failed for good.", ["outcome"])
STEPS = Histogram("memory_tasks_step_seconds", "Time of a step.", ["step", "outcome"], buckets=SECONDS)
CALLS = Counter("memory_tasks_model_calls", "Calls of the model.", ["outcome"])
TOKENS = Counter("memory_tasks_model_tokens", "Tokens as the completer reports them.", ["model", "direction"])
RETRIES = Counter("memory_tasks_retries", "Failures of a step that is tried again.", ["step", "reason"])
DEAD = Counter("memory_tasks_turns_dead", "Turns that became dead letters.", ["step", "reason"])
DUPLICATES = Counter("memory_tasks_duplicates_avoided", "Messages for a step that is done or being done.", ["step"])
MALFORMED = Counter("memory_tasks_malformed_messages", "Messages of the broker that were rejected.", ["kind"])
MAILBOX = Histogram(
    "memory_tasks_mailbox_depth", "Messages that wait behind the one that begins.", buckets=(0, 1, 2, 5, 10, 50, 200)
)
RECALLED = Histogram("memory_tasks_recalled_memories", "Memories recalled.", buckets=(0, 1, 2, 3, 4, 6, 8, 12, 20))
RELEVANCE = Histogram(
    "memory_tasks_recall_relevance", "Relevance of the best memory.", buckets=[n / 10 for n in range(1, 11)]
)
DEGRADED = Counter("memory_tasks_recalls_degraded", "Recalls that went on without a part.", ["part"])
PROMOTED = Counter("memory_tasks_promoted_turns", "Turns moved to long-term memory.")
LAG = Histogram("memory_tasks_promotion_lag_seconds", "Age of a turn when it is promoted.", buckets=AGES)


def scope_hash(scope: "Scope") -> str:
    """Names a conversation in logs and spans without saying whose it is."""
    return blake2b(scope_tag(scope).encode(), digest_size=6).hexdigest()


def trace_headers() -> dict[str, str]:
    """The current span, as the ledger keeps it for the steps that follow."""
    headers: dict[str, str] = {}
    inject(headers)
    return headers


class Step:
    """One step of a turn while it runs; says at the end how it went."""

    def __init__(self, name: "StepName") -> None:
        self.name = name
        self.outcome = "done"
        """"done", "retry", "dead" or "stale"."""
        self.error = ""
        """Class name."""


@contextmanager
def step(name: "StepName", scope: "Scope", turn_id: str, headers: Mapping[str, str]) -> Iterator[Step]:
    """Measure a step, in a span that belongs to the trace in which the message was accepted.

    Args:
        name: "recall", "complete" or "persist".
        scope: Whose conversation.
        turn_id: Which turn.
        headers: The trace, as `trace_headers` gave it.
    """
    running, started = Step(name), time.perf_counter()
    hashed = scope_hash(scope)
    # Exceptions are not recorded: their messages are not ours.
    with tracer.start_as_current_span(
        f"memory_tasks.{name}", extract(headers), record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield running
        finally:
            seconds = time.perf_counter() - started
            span.set_attributes({"turn": turn_id, "scope": hashed, "outcome": running.outcome})
            if running.error:
                span.set_status(Status(StatusCode.ERROR, running.error))
            STEPS.labels(name, running.outcome).observe(seconds)
            fields: dict[str, Any] = {
                "step": name, "turn": turn_id, "scope": hashed, "outcome": running.outcome,
                "ms": round(seconds * 1000, 1),
            }  # fmt: skip
            if running.error:
                fields["error"] = running.error
            level = {"done": logging.INFO, "stale": logging.INFO, "retry": logging.WARNING, "dead": logging.ERROR}
            logger.log(level[running.outcome], "%s of turn %s: %s", name, turn_id, running.outcome, extra=fields)


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """A span without a log line."""
    with tracer.start_as_current_span(
        f"memory_tasks.{name}", attributes=attributes, record_exception=False, set_status_on_exception=False
    ):
        yield


def recalled(recall: "Recall") -> None:
    """Count what a recall found."""
    RECALLED.observe(len(recall.memories))
    if recall.memories and recall.memories[0].relevance is not None:
        RELEVANCE.observe(recall.memories[0].relevance)
    for part in recall.degraded:
        DEGRADED.labels(part.partition(":")[0]).inc()


def completed(completion: "Completion") -> None:
    """Count an answer and what it has cost."""
    CALLS.labels("answered").inc()
    for direction, tokens in (("input", completion.input_tokens), ("output", completion.output_tokens)):
        if tokens:
            TOKENS.labels(completion.model or "unknown", direction).inc(tokens)
