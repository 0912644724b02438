"""All settings, read from the environment with the prefix MEMORY_TASKS_."""

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from memory_tasks.errors import SettingsError
from memory_tasks.models import MemoryConfig, describe

PREFIX = "MEMORY_TASKS_"


def _url_scheme(value: str) -> str:
    if "://" not in value:
        raise ValueError("not a URL, expected something like redis://localhost:6379/0")
    return value


Url = Annotated[str, AfterValidator(_url_scheme)]


class Settings(BaseSettings, MemoryConfig):
    """Every setting with its default. Durations are in seconds.

    Example:
        >>> Settings.load(recent_turns=12).recent_turns
        12
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", hide_input_in_errors=True, frozen=True)

    redis_url: Url = Field("redis://localhost:6379/0", description="Redis of the ledger and working memory.")
    broker_url: Url | None = Field(None, description="Celery's broker; `redis_url` when not given.")
    prefix: str = Field("memory-tasks", pattern=r"^[A-Za-z0-9_.:-]+$", description="Beginning of every Redis key.")
    encryption_keys: SecretStr | None = Field(
        None, description="Fernet keys, newest first, separated by commas: texts are encrypted wherever they are kept."
    )
    long_term_url: str = Field(
        "sqlite:///memory-tasks-data/memory.db", description="Long-term store, or package.module:factory."
    )
    embedder: str = Field(
        "wordllama",
        description="wordllama, sentence-transformers, openai, none, or package.module:attribute.",
    )
    embedder_model: str | None = Field(None, description="Model of the embedder, where it has a choice.")
    completer: str = Field("offline", description="offline, openai, or package.module:attribute.")
    importance_scorer: str | None = Field(None, description="package.module:attribute; keywords when not given.")
    recall_policy: str | None = Field(None, description="package.module:attribute; always search when not given.")

    openai_base_url: str | None = Field(
        None,
        validation_alias=AliasChoices(f"{PREFIX}OPENAI_BASE_URL", "OPENAI_BASE_URL", "openai_base_url"),
        description="OpenAI, vLLM, Ollama, llama.cpp server...; also read from OPENAI_BASE_URL.",
    )
    openai_api_key: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices(f"{PREFIX}OPENAI_API_KEY", "OPENAI_API_KEY", "openai_api_key"),
        description="Also read from OPENAI_API_KEY.",
    )
    openai_model: str = Field("gpt-4o-mini", description="Model that completes.")

    max_turns: int = Field(256, ge=1, description="Turns a scope keeps in working memory.")
    max_overflow: int = Field(10_000, ge=0, description="Turns above max_turns that wait for promotion.")
    promote_after: float = Field(3600, ge=0, description="Age at which a turn moves to long-term memory.")
    promote_batch: int = Field(64, ge=1, le=1000, description="Turns that one promotion task moves.")
    promote_interval: float = Field(30, gt=0, description="How often beat looks for scopes that are due.")
    promote_scopes: int = Field(1000, ge=1, description="Scopes that one look may send to the workers.")
    promote_rate: str | None = Field(None, description='Promotion tasks that a worker begins at most, like "10/s".')

    completion_timeout: float = Field(120, gt=0, description="How long one call of the model may take.")
    completion_lease: float = Field(
        10, ge=1, description="A call whose worker is silent for twice this long is taken over by another."
    )
    completion_attempts: int = Field(4, ge=1, description="Calls of the model that may fail with a retryable error.")
    recall_attempts: int = Field(3, ge=1, description="Recalls that may fail before the turn does.")
    persist_attempts: int = Field(12, ge=1, description="Persists that may fail before the turn is a dead letter.")
    max_deliveries: int = Field(8, ge=2, description="Times a step may take its worker down before the turn fails.")
    retry_base: float = Field(1, gt=0, description="Wait before the first retry; it doubles with each one.")
    retry_cap: float = Field(60, gt=0, description="Longest wait between two retries.")
    step_timeout: float = Field(30, gt=0, description="Recall and persist are taken for lost after this long.")
    republish_after: float = Field(15, gt=0, description="A message nobody has taken is sent again after this long.")
    sweep_interval: float = Field(1, gt=0, description="How often beat looks for turns that need attention.")
    visibility_timeout: float = Field(
        600, gt=0, description="Redis as broker: when an unacknowledged task is sent again."
    )
    metrics_port: int | None = Field(
        None, ge=1, le=65_535, description="Port on which a worker answers Prometheus; none when not given."
    )
    metrics_address: str = Field("127.0.0.1", description="Address for that; 0.0.0.0 in a container.")
    web_user: str = Field("me", min_length=1, description="The only user of the page of `up --web`.")
    web_hosts: tuple[str, ...] = Field(
        ("localhost", "127.0.0.1"), description="Names by which a browser may call that page, as JSON."
    )
    operations_token: SecretStr | None = Field(
        None, min_length=16, description="Opens the page's operations view, which is off when not given."
    )
    metrics_urls: tuple[str, ...] = Field(
        (), description="Prometheus endpoints of the workers, which that view reads, as JSON."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description='Of worker and beat; "auto" is text on a terminal and JSON elsewhere.'
    )
    result_ttl: float = Field(86_400, gt=0, description="How long finished turns stay readable in the ledger.")

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the environment; arguments win over it.

        Raises:
            SettingsError: A setting is unknown, wrong, or unsafe together with another one.
        """
        known = {f"{PREFIX}{name.upper()}" for name in cls.model_fields}
        for name in os.environ:
            if name.startswith(PREFIX) and name not in known:
                near = get_close_matches(name, known, n=1)
                raise SettingsError(f"unknown setting {name}{f'; did you mean {near[0]}?' if near else ''}")
        try:
            settings = cls(**overrides)
        except ValidationError as error:
            raise SettingsError(f"settings ({PREFIX}...): {describe(error)}") from None
        settings.check()
        return settings

    @classmethod
    def documented(cls) -> Iterator[tuple[str, str, str]]:
        """Name of the environment variable, default and meaning of every setting."""
        for name, field in cls.model_fields.items():
            default = field.default
            shown = json.dumps(default) if isinstance(default, tuple) else "" if default is None else f"{default}"
            yield f"{PREFIX}{name.upper()}", shown, field.description or ""

    def check(self) -> None:
        """Refuse combinations in which a task would be sent again while it may still run, or data would be lost.

        Raises:
            SettingsError: Names both settings.
        """
        for lower, low, higher, high, why in (
            (
                "completion_timeout + completion_lease (or step_timeout)", self.longest_step,
                "visibility_timeout", self.visibility_timeout,
                "the broker would send a task again that is still allowed to run",
            ),
            (
                "retry_cap", self.retry_cap, "visibility_timeout", self.visibility_timeout,
                "a retry would wait longer than the broker waits for an answer",
            ),
            (
                "visibility_timeout", self.visibility_timeout, "result_ttl", self.result_ttl,
                "the ledger would forget a finished turn before its last delivery, and answer it again",
            ),
            ("retry_base", self.retry_base, "retry_cap", self.retry_cap, "the first wait is longer than the longest"),
            (
                "recent_turns", self.recent_turns, "max_turns", self.max_turns + 1,
                "recall would ask for more turns than working memory keeps",
            ),
        ):  # fmt: skip
            if low >= high and not (lower == "retry_base" and low == high):
                raise SettingsError(f"{lower} ({low:g}) must be smaller than {higher} ({high:g}): {why}")

        if self.broker_url is None and "+" in self.redis_url.partition("://")[0]:
            raise SettingsError(
                "broker_url must be given when redis_url is a Redis Cluster or a Sentinel service: Celery needs a "
                "broker of its own, like amqp://host//"
            )

    @property
    def broker(self) -> str:
        """The broker's URL."""
        return self.broker_url or self.redis_url

    @property
    def longest_step(self) -> float:
        """Seconds that one task may run at most."""
        return max(self.completion_timeout + self.completion_lease, self.step_timeout)

    @property
    def promote_age(self) -> timedelta:
        """`promote_after` as a duration."""
        return timedelta(seconds=self.promote_after)
