"""Structured logs: one line an event, key=value, without message bodies or tokens.

Values are escaped, so that a name with line breaks or terminal escapes in it stays one harmless line.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict, Processor

_BEFORE: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _escaped(logger: object, method: str, event: EventDict) -> EventDict:
    """Nothing that breaks a line, moves a terminal's cursor or turns the writing direction gets through."""
    return {key: "".join(map(_shown, value)) if isinstance(value, str) else value for key, value in event.items()}


def _refusals_without_traceback(logger: object, method: str, event: EventDict) -> EventDict:
    """A refused request is its sender's fault: one short warning, whoever floods us with them, not a page of ours."""
    logger_name = str(event.get("logger", ""))
    if logger_name.startswith("django.security"):
        event["level"] = "warning"
    if logger_name.startswith(("django.security", "django.request")) and event.get("level") == "warning":
        event.pop("exc_info", None)
    return event


def _shown(character: str) -> str:
    if character.isprintable() or character == "\n":  # the renderer escapes line feeds
        return character
    return character.encode("unicode_escape").decode()


def logging_config(level: str) -> None:
    """Send every logger of the process, ours and the libraries', to standard error in one form."""
    structlog.configure(
        processors=[*_BEFORE, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_BEFORE, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _refusals_without_traceback,
                structlog.processors.format_exc_info,
                _escaped,
                structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "logger", "event"], bool_as_flag=False),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("django-q", "django", "uvicorn", "uvicorn.error", "uvicorn.access", "django.server"):
        logger = logging.getLogger(name)
        logger.handlers[:] = []
        logger.propagate = True
    logging.getLogger("django-q").setLevel("WARNING")
    logging.getLogger("urllib3").setLevel("WARNING")  # at DEBUG it writes the path of every call, and a path may hold a token
