"""How worker and beat log: one JSON object a line, or lines for people on a terminal."""

import logging
import sys
from typing import Any

import structlog
from celery import signals
from structlog.tracebacks import ExceptionDictTransformer

from memory_tasks.settings import Settings

FIELDS = ("step", "turn", "scope", "outcome", "ms", "error")
"""What a line may hold beside its text. Celery's own fields have a task's arguments, and with them the user's id."""
CHATTY = ("celery.worker.strategy", "celery.app.trace", "celery.worker.request")
"""They say for each task, two or three times, what the line of the step says once."""


def install(settings: Settings) -> None:
    """Take over logging from Celery, for the worker or beat of this process."""

    def set_up(loglevel: int | str | None = None, logfile: str | None = None, **_: Any) -> None:
        configure(settings, loglevel or logging.INFO, logfile)

    signals.setup_logging.connect(set_up, weak=False, dispatch_uid="memory_tasks.logs")


def _first_line_of_celery(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Celery shows messages it can't use, line after line, whatever they hold."""
    record = event.get("_record")
    if record is not None and record.name.startswith("celery.") and record.levelno >= logging.WARNING:
        event["event"] = str(event["event"]).partition("\n")[0]
    return event


def configure(settings: Settings, level: int | str = logging.INFO, file: str | None = None) -> None:
    """Send all logging of this process to standard error, or to a file.

    Args:
        settings: `log_format` says how.
        level: The least that is logged.
        file: Where, if not to standard error.
    """
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        _first_line_of_celery,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(allow=FIELDS),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    # Tracebacks without the values of variables: those may be somebody's words.
    tracebacks = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
    renderer: list[structlog.typing.Processor] = (
        [tracebacks, structlog.processors.JSONRenderer(default=str)]
        if as_json
        else [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    handler = logging.FileHandler(file) if file else logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
