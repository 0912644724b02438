"""Adds the tasks to a Celery app."""

from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps
from celery.app.task import Task

from memory_tasks.connection import connect
from memory_tasks.errors import SettingsError, StoreUnavailableError
from memory_tasks.factory import service_from_settings
from memory_tasks.keys import Keys
from memory_tasks.settings import Settings
from memory_tasks.tasks.messages import SurviveMessages, carried_text, count_rejected, rejecting, scope_of, turn_ref
from memory_tasks.tasks.promotion import PromotionSteps
from memory_tasks.tasks.reply import ReplySteps
from memory_tasks.tasks.runtime import Checkpoint, Runtime, ServiceFactory
from memory_tasks.tasks.upkeep import sweep

CELERY_VISIBILITY_TIMEOUT = 3600.0
"""What Celery's Redis transport takes when an app does not say."""


def _checking(app: Celery, runtime: Runtime) -> type[bootsteps.Step]:
    """A step of the worker's start, so that what can't work is said there and not in every task."""

    class CheckMemoryTasks(bootsteps.Step):
        def __init__(self, parent: Any, **options: Any) -> None:
            super().__init__(parent, **options)
            timeout = (app.conf.broker_transport_options or {}).get("visibility_timeout", CELERY_VISIBILITY_TIMEOUT)
            longest = runtime.settings.longest_step
            if (app.conf.broker_url or "").startswith("redis") and timeout <= longest:
                raise SettingsError(
                    f"broker_transport_options['visibility_timeout'] ({timeout:g}) must be larger than "
                    f"completion_timeout + completion_lease ({longest:g}): the broker would send a task "
                    "again that is still allowed to run"
                )
            runtime.try_out()

    return CheckMemoryTasks


def _metrics(app: Celery, settings: Settings) -> type[bootsteps.Step]:
    """The part of a worker that answers Prometheus."""

    class ServeMetrics(bootsteps.StartStopStep):
        requires = {"celery.worker.components:Pool"}  # noqa: RUF012

        def __init__(self, parent: Any, **options: Any) -> None:
            super().__init__(parent, **options)
            self.enabled = settings.metrics_port is not None
            self._server: Any = None

        def start(self, _: Any) -> None:
            from memory_tasks.exporter import SystemCollector, serve_metrics

            collector = SystemCollector(connect(settings.redis_url), Keys(settings.prefix), app)
            self._server = serve_metrics(settings.metrics_port or 0, settings.metrics_address, collector)

        def stop(self, _: Any) -> None:
            if self._server is not None:
                self._server.shutdown()

    return ServeMetrics


def _nowhere(_: str) -> None:
    return None


def register(
    app: Celery,
    service_factory: ServiceFactory = service_from_settings,
    settings: Settings | None = None,
    *,
    checkpoint: Checkpoint = _nowhere,
) -> Runtime:
    """Add the tasks `memory_tasks.*` to an app. Nothing else of the app is changed.

    Args:
        app: Your app. Start a worker with `-Q reply,persist,promote`, and add `beat_schedule(settings)` to beat.
        service_factory: Called once in each worker process with the settings; returns its MemoryService.
        settings: Read from the environment when not given.
        checkpoint: For failure tests: called with the name of each boundary a step crosses.

    Returns:
        The tasks' shared state, for tests and tools.

    Raises:
        SettingsError: The settings are wrong or unsafe together. A worker of the app raises it at its start when
            a part is unknown, or the app's visibility timeout is too short.

    Example:
        >>> register(app, lambda settings: MemoryService(settings, working=..., long_term=..., completer=...))
    """
    settings = settings or Settings.load()
    runtime = Runtime(app, settings, service_factory, checkpoint)
    app.steps["worker"].add(_checking(app, runtime))
    app.steps["consumer"].add(SurviveMessages)
    app.steps["worker"].add(_metrics(app, settings))
    reply = ReplySteps(runtime)
    promotion = PromotionSteps(runtime)

    def task(name: str, **options: Any) -> Callable[[Callable[..., Any]], Task]:
        return lambda function: app.task(
            rejecting(function),
            name=name,
            shared=False,  # other apps of the process get none of them
            acks_late=True,
            reject_on_worker_lost=True,
            ignore_result=True,
            serializer="json",
            Strategy="memory_tasks.tasks.messages:strategy",
            typing=False,  # what arrives is checked inside, where it is counted and rejected
            **options,
        )

    @task("memory_tasks.recall")
    def recall(**message: Any) -> None:
        reply.recall(turn_ref(message))

    @task("memory_tasks.complete")
    def complete(**message: Any) -> str | None:
        return reply.complete(turn_ref(message))

    @task("memory_tasks.persist", bind=True)
    def persist(self: Task, carried: str | None = None, **message: Any) -> None:
        ref = turn_ref(message)
        try:
            reply.persist(ref, carried_text(carried))
        except StoreUnavailableError as error:
            if carried is None:
                raise
            # The answer is nowhere but in this message, so the message itself waits for the ledger, and
            # comes before anybody may take the call over.
            wait = runtime.settings.completion_lease / 4
            raise self.retry(exc=error, countdown=wait, max_retries=None) from None

    @task("memory_tasks.sweep")
    def sweep_turns() -> None:
        sweep(runtime)

    @task("memory_tasks.enumerate_due")
    def enumerate_due() -> None:
        promotion.enumerate_due(app)

    @task("memory_tasks.promote", rate_limit=settings.promote_rate)
    def promote(tag: str) -> None:
        promotion.promote(app, scope_of(tag))

    count_rejected()
    return runtime
