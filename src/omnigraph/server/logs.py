"""The log: one line of JSON on stderr for everything that happens, and never a secret in it.

Tokens, bodies, query strings and the values of headers are not written, whatever the level. Of a request it says the
route, not the path; of an error that is not one of ours, its kind and where it came from, not what it says.
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
_QUIET = ("uvicorn.access", "uvicorn.error", "py4j", "asyncio", "httpx", "httpcore")
_FRAMES = 20


def level_from(text: str) -> str:
    """The level that a variable asks for; info if it asks for nothing that there is."""
    wanted = text.strip().lower()
    return wanted if wanted in _LEVELS else "info"


def set_up(level: str = "", stream: TextIO | None = None) -> None:
    """Let everything that this process logs be lines of JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    # What no line shows need not be found out for each: where in the code it was said, and by which thread.
    logging._srcfile = None  # noqa: SLF001 - as the manual of logging has it
    logging.logThreads = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    threading.excepthook = _thread_failed
    root.setLevel(level_from(level or os.environ.get(LEVEL, "")).upper())
    for name in _QUIET:
        logger = logging.getLogger(name)
        logger.handlers[:] = []
        logger.propagate = True
        logger.setLevel(logging.WARNING)


def log(logger: logging.Logger, level: int, event: str, error: BaseException | None = None, /, **fields: Any) -> None:
    """Log an event with its fields."""
    about = None if error is None else (type(error), error, error.__traceback__)
    logger.log(level, event, extra={_FIELDS: fields}, exc_info=about)


def _thread_failed(about: threading.ExceptHookArgs) -> None:
    name = about.thread.name if about.thread else None
    log(logging.getLogger(__name__), logging.ERROR, "a thread has failed", about.exc_value, thread=name)


_JSON = json.JSONEncoder(ensure_ascii=False, default=str)


class JsonLines(logging.Formatter):
    """One object per record, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            "pid": record.process,
            **getattr(record, _FIELDS, {}),
            **_error(record.exc_info),
        }
        return _JSON.encode(line)


def _error(about: Any) -> dict[str, Any]:
    if not about or about[1] is None:
        return {}
    error: BaseException = about[1]
    told = {"error": type(error).__name__, "frames": _frames(about[2])}
    # What others say may hold what a client sent.
    return {**told, "message": error.message} if isinstance(error, OmnigraphError) else told


def _frames(trace: TracebackType | None) -> list[str]:
    found = traceback.extract_tb(trace)[-_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in found]
