"""How worker and beat log: one JSON object a line, or lines for people on a terminal."""

import logging
import sys
from typing import Any

import structlog
from celery import signals

from memory_tasks.settings import Settings


def install(settings: Settings) -> None:
    """Take over logging from Celery, for the worker or beat of this process."""

    def set_up(loglevel: int | str | None = None, logfile: str | None = None, **_: Any) -> None:
        configure(settings, loglevel or logging.INFO, logfile)

    signals.setup_logging.connect(set_up, weak=False, dispatch_uid="memory_tasks.logs")


def configure(settings: Settings, level: int | str = logging.INFO, file: str | None = None) -> None:
    """Send all logging of this process to standard error, or to a file.

    Args:
        settings: `log_format` says how.
        level: The least that is logged.
        file: Where, if not to standard error.
    """
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(default=str)]
        if as_json
        # Tracebacks without the values of variables: those may be somebody's words.
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
