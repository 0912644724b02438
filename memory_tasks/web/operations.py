"""What people who operate the system look at, behind a token of its own. No text of a conversation is in it."""

import hmac
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from memory_tasks.client import MemoryClient
from memory_tasks.connection import without_password
from memory_tasks.health import checks
from memory_tasks.models import MAX_ID_CHARS, Identifier, now
from memory_tasks.registry import overview
from memory_tasks.tasks.publisher import queue_lengths
from memory_tasks.turns import TurnStatus
from memory_tasks.web.problems import ProblemRoute, documented

SCRAPE_SECONDS = 2.0
DESCRIBED: dict[str, Any] = {"pattern": r"^[^\x00]*[^\s\x00][^\x00]*$"}
"""What Identifier checks, as far as OpenAPI can say it."""
MAX_METRICS_BYTES = 4 * 1024 * 1024


class Summed(BaseModel):
    """How often something happened, and the seconds of all of them together."""

    count: float = 0
    seconds: float = 0


class Counted(BaseModel):
    """What the workers have counted since they started, all of them together."""

    replies: dict[str, float] = Field(description="Turns that ended, by outcome.")
    steps: dict[str, Summed] = Field(description="Time of each step.")
    promotion_lag: Summed = Field(description="Age of the turns when they were promoted.")
    silent: list[str] = Field(description="Workers of MEMORY_TASKS_METRICS_URLS that did not answer.")


class Overview(BaseModel):
    """How the system stands now."""

    at: datetime
    queues: dict[str, int]
    conversations: int
    due: int
    oldest_unpromoted_seconds: float
    dropped: int
    dead_letters: int
    counted: Counted


Id = Annotated[Identifier, Field(min_length=1, max_length=MAX_ID_CHARS, json_schema_extra=DESCRIBED)]


class FailedTurn(BaseModel):
    """Names a dead letter."""

    model_config = ConfigDict(extra="forbid")

    user_id: Id
    conversation_id: Id
    turn_id: Id


class DeadLetter(FailedTurn):
    """A turn that failed for good, and why."""

    failed_at: datetime | None
    failed_step: str | None
    error: str | None
    model_calls: int

    @classmethod
    def of(cls, status: TurnStatus) -> "DeadLetter":
        """From what the ledger says."""
        return cls(
            **status.scope.model_dump(),
            turn_id=status.turn_id,
            failed_at=status.times.get("failed"),
            failed_step=status.failed_step,
            error=status.error,
            model_calls=status.calls,
        )


class CheckView(BaseModel):
    """One of the doctor's checks. Without a remedy all is well."""

    name: str
    found: str
    remedy: str


def operations(client: MemoryClient, token: SecretStr, metrics_urls: Sequence[str] = ()) -> APIRouter:
    """A router for operators: how the system stands, its dead letters, and the doctor's checks.

    Args:
        client: Of the system.
        token: Whoever sends it as `Authorization: Bearer` may see the ids of users, and retry and drop their turns.
        metrics_urls: Prometheus endpoints of the workers, for what only they have counted.

    Example:
        >>> app.include_router(operations(client, settings.operations_token), prefix="/operations")
    """

    def admitted(request: Request) -> None:
        expected = f"Bearer {token.get_secret_value()}"
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), expected.encode()):
            raise HTTPException(401, "The operations token is missing or wrong.", {"WWW-Authenticate": "Bearer"})

    routes = APIRouter(
        route_class=ProblemRoute,
        tags=["operations"],
        dependencies=[Depends(admitted)],
        responses=documented(401, 422, 503),
    )

    @routes.get("/overview")
    def look() -> Overview:
        """Queues, promotion, and what the workers have counted."""
        found = overview(client.redis, client.keys)
        at = now()
        return Overview(
            at=at,
            queues=queue_lengths(client.app),
            conversations=found.scopes,
            due=found.due,
            oldest_unpromoted_seconds=(at - found.oldest).total_seconds() if found.oldest else 0,
            dropped=found.dropped,
            dead_letters=client.ledger.count_dead(),
            counted=counted(metrics_urls),
        )

    @routes.get("/failed")
    def list_failed(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[DeadLetter]:
        """Dead letters."""
        return [DeadLetter.of(status) for status in islice(client.failed(), limit)]

    @routes.post("/failed/retry", status_code=204, responses=documented(400, 404, 413, 415))
    def retry(turn: FailedTurn) -> None:
        """Let a dead letter go on from its saved state. The model is not called again if it has answered."""
        client.retry_failed(turn.user_id, turn.conversation_id, turn.turn_id)

    @routes.post("/failed/drop", status_code=204, responses=documented(400, 404, 413, 415))
    def drop(turn: FailedTurn) -> None:
        """Erase a dead letter."""
        client.drop_failed(turn.user_id, turn.conversation_id, turn.turn_id)

    @routes.get("/checks")
    def check() -> list[CheckView]:
        """What `memory-tasks doctor` looks at."""
        return [CheckView(name=one.name, found=one.found, remedy=one.remedy) for one in checks(client)]

    return routes


def counted(urls: Sequence[str]) -> Counted:
    """Ask the workers what they have counted.

    Args:
        urls: Their Prometheus endpoints. One that does not answer is named in `silent`.
    """
    replies: dict[str, float] = defaultdict(float)
    steps: dict[str, Summed] = defaultdict(Summed)
    lag, silent = Summed(), list[str]()
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=SCRAPE_SECONDS) as answer:  # noqa: S310, the operator's own URL
                text = answer.read(MAX_METRICS_BYTES).decode()
        except OSError:
            silent.append(without_password(url))
            continue
        for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
            match sample.name:
                case "memory_tasks_replies_total":
                    replies[sample.labels["outcome"]] += sample.value
                case "memory_tasks_step_seconds_count":
                    steps[sample.labels["step"]].count += sample.value
                case "memory_tasks_step_seconds_sum":
                    steps[sample.labels["step"]].seconds += sample.value
                case "memory_tasks_promotion_lag_seconds_count":
                    lag.count += sample.value
                case "memory_tasks_promotion_lag_seconds_sum":
                    lag.seconds += sample.value
    return Counted(replies=replies, steps=steps, promotion_lag=lag, silent=silent)
