"""JSON log: one object per line on stderr, without secrets.

Tokens, bodies, query strings and header values are never written, at any level. A request is logged with its route,
not its path; an error that is not one of ours, with its class and stack, not its message.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from omnigraph.errors import OmnigraphError

LEVEL = "OMNIGRAPH_LOG"
REQUESTS = logging.getLogger("omnigraph.server.requests")
_FIELDS = "fields"
_LEVELS = ("debug", "info", "warning", "error")
_QUIET = ("uvicorn.access", "uvicorn.error", "py4j", "asyncio")
_MAX_FRAMES = 20
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def level_from(text: str) -> str:
    """Return the level that a variable names, or info if there is no such level."""
    wanted = text.strip().lower()
    return wanted if wanted in _LEVELS else "info"


def set_up(level: str = "", stream: TextIO | None = None) -> None:
    """Make everything that this process logs lines of JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    # No line shows the source position or the thread, so logging need not find them out for each record.
    logging._srcfile = None  # noqa: SLF001 - as the logging manual recommends
    logging.logThreads = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # The default prints a traceback with the message of the error, in which a value of a client may stand.
    threading.excepthook = _log_thread_failure
    root.setLevel(level_from(level or os.environ.get(LEVEL, "")).upper())
    for name in _QUIET:
        logger = logging.getLogger(name)
        # uvicorn and py4j install handlers of their own, whose lines are not JSON.
        logger.handlers[:] = []
        logger.propagate = True
        logger.setLevel(logging.WARNING)


def log(logger: logging.Logger, level: int, event: str, error: BaseException | None = None, /, **fields: Any) -> None:
    """Log an event with its fields."""
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    logger.log(level, event, extra={_FIELDS: fields}, exc_info=exc_info)


def _log_thread_failure(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread else None
    log(logging.getLogger(__name__), logging.ERROR, "a thread has failed", failure.exc_value, thread=name)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            "pid": record.process,
            **getattr(record, _FIELDS, {}),
            **_error_fields(record.exc_info),
        }
        return _ENCODER.encode(line)


def _error_fields(exc_info: Any) -> dict[str, Any]:
    if not exc_info or exc_info[1] is None:
        return {}
    error: BaseException = exc_info[1]
    fields = {"error": type(error).__name__, "frames": _frames(exc_info[2])}
    # The message of a foreign error may contain what a client sent.
    return {**fields, "message": error.message} if isinstance(error, OmnigraphError) else fields


def _frames(trace: TracebackType | None) -> list[str]:
    found = traceback.extract_tb(trace)[-_MAX_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in found]
