"""Logging: constant messages with keyed values, to stderr; data never goes there."""

from __future__ import annotations

import logging
import sys

import structlog

from federator.errors import InvalidInput

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("console", "json")

# Local variables would put the bytes of objects, and credentials, into the logs.
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def configure_logging(level: str = "info", log_format: str = "console") -> None:
    """Sets up structlog for the process.

    Args:
        level: one of `LEVELS`.
        log_format: `console` for people, `json` for machines: one object a line.

    Raises:
        InvalidInput: an unknown level or format.
    """
    if level not in LEVELS:
        raise InvalidInput("log level", level, ", ".join(LEVELS))
    if log_format not in FORMATS:
        raise InvalidInput("log format", log_format, ", ".join(FORMATS))
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _TRACEBACKS if log_format == "json" else structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
