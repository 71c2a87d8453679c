"""Loads that run in the background: begun by one request, asked about by others, in whichever process they arrive.

What is known of a load is a small file that its process replaces now and then. The processes of one server share the
directory; it goes when the server does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ulid import ULID

from omnigraph.api import problems
from omnigraph.api.documents import ingest_output
from omnigraph.errors import (
    LoadNotFoundError,
    OmnigraphError,
    OutcomeUnknownError,
    ServerFailedError,
    TooManyRequestsError,
)
from omnigraph.graph import Graph
from omnigraph.server.load_roots import check_addresses
from omnigraph.server.metrics import Metrics
from omnigraph.server.settings import Serving

_EVERY = 0.25
_RUNNING, _DONE, _FAILED = "running", "done", "failed"


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What to load, and how."""

    data: tuple[str, ...]
    mode: str = "merge"
    branch: str = "main"
    base: str | None = None
    format: str | None = None
    mapping: dict[str, Any] | None = None
    dry_run: bool = False
    operation_id: str | None = None


class Loads:
    """The loads of one process."""

    def __init__(self, serving: Serving, metrics: Metrics) -> None:
        self._own = None if serving.folder else TemporaryDirectory(prefix="omnigraph-loads-")
        self._folder = Path(self._own.name if self._own else str(serving.folder))
        self._roots = serving.load_roots
        self._at_once = serving.limits.loads
        self._patience = serving.limits.shutdown_seconds
        self._deadline = float("inf")
        self._metrics = metrics
        self._lock = threading.Lock()
        self._running: dict[str, threading.Thread] = {}

    def begin(self, graph_id: str, graph: Graph, order: LoadOrder) -> str:
        """Begin a load in the name of whoever holds the graph; return its id."""
        check_addresses(order.data, self._roots)
        load_id = str(ULID())
        record = _Record(self._folder / f"{graph_id}.{load_id}.json", load_id, order.operation_id)
        graph = graph if order.operation_id is None else graph.as_operation(order.operation_id)
        thread = threading.Thread(target=self._run, args=(load_id, graph, order, record), name=load_id, daemon=True)
        with self._lock:
            if len(self._running) >= self._at_once:
                hint = "wait until one of them is done"
                raise TooManyRequestsError(f"{self._at_once} loads are under way already", hint=hint)
            self._running[load_id] = thread
        record.write()
        thread.start()
        return load_id

    def state(self, graph_id: str, load_id: str) -> dict[str, Any]:
        """Tell how far a load of a graph is."""
        try:
            known = str(ULID.from_str(load_id)) == load_id
            text = (self._folder / f"{graph_id}.{load_id}.json").read_text() if known else None
        except (OSError, ValueError):
            text = None
        if text is None:
            hint = "ask the server that began it; it forgets its loads when it ends"
            raise LoadNotFoundError(f"load {load_id!r:.40} not found", load_id=load_id[:40], hint=hint)
        return _told(json.loads(text))

    def end(self) -> None:
        """From now on the time runs in which everything must be done, loads and requests alike."""
        self._deadline = min(self._deadline, time.monotonic() + self._patience)

    def close(self) -> None:
        """Wait for what is under way; what is not done then changes nothing."""
        self.end()
        for thread in list(self._running.values()):
            thread.join(max(0.0, self._deadline - time.monotonic()))
        if "pyspark" in sys.modules and not self._running:
            from omnigraph.spark.session import stop_session  # noqa: PLC0415 - only if Spark was needed

            stop_session()
        if self._own is not None:
            self._own.cleanup()

    def _run(self, load_id: str, graph: Graph, order: LoadOrder, record: _Record) -> None:
        try:
            with self._metrics.loads.track_inprogress():
                options = {"mode": order.mode, "branch": order.branch, "base": order.base, "format": order.format}
                more = {"mapping": order.mapping, "dry_run": order.dry_run, "progress": record}
                done = graph.load(list(order.data), **options, **more)  # type: ignore[arg-type]
            record.end(_DONE, result=ingest_output(graph.uri, done))
        except OmnigraphError as error:
            record.end(_FAILED, error=problems.body(error, full=True))
        except BaseException:
            problem = ServerFailedError("the load failed, and the log of the server says why")
            record.end(_FAILED, error=problems.body(problem, full=True))
            raise  # to the log
        finally:
            with self._lock:
                self._running.pop(load_id)


@dataclass(slots=True)
class _Record:
    """What is known of a load: a pipeline tells it, and now and then it is written down."""

    path: Path
    load_id: str
    operation_id: str | None
    state: str = _RUNNING
    name: str = ""
    done: int = 0
    total: int = 0
    rows: int = 0
    rest: dict[str, Any] = field(default_factory=dict)
    written: float = 0.0

    def phase(self, name: str, total_tasks: int) -> None:
        if name != self.name:
            self.name, self.done, self.total, self.rows = name, 0, 0, 0
        self.total += total_tasks
        self.write()

    def advance(self, tasks: int, rows: int) -> None:
        self.done += tasks
        self.rows += rows
        if time.monotonic() - self.written > _EVERY:
            self.write()

    def finish(self) -> None:
        pass

    def end(self, state: str, **rest: Any) -> None:
        self.state, self.rest = state, rest
        self.done = self.total if state == _DONE else self.done
        self.write()

    def write(self) -> None:
        """Replace the file at once: whoever reads it sees one state or the next."""
        known = {"load_id": self.load_id, "state": self.state, "phase": self.name or None}
        counts = {"done": self.done, "total": self.total, "rows": self.rows}
        owner = {"pid": os.getpid(), "operation_id": self.operation_id}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({**known, **counts, **owner, **self.rest}))
        new.replace(self.path)
        self.written = time.monotonic()


def _told(known: dict[str, Any]) -> dict[str, Any]:
    """A load whose process is gone is not running, whatever it has written last."""
    pid, operation_id = known.pop("pid"), known.pop("operation_id")
    if known["state"] == _RUNNING and not _is_alive(pid):
        asked = "look whether its commit is there" if operation_id is None else f"ask for the outcome of {operation_id}"
        message, hint = "the process that loaded has ended", f"{asked}; if it changed nothing, load again"
        error = OutcomeUnknownError(message, operation_id=operation_id, hint=hint)
        return {**known, "state": _FAILED, "error": problems.body(error, full=True)}
    return known


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
