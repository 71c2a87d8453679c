"""Background loads: started by one request, polled by others, in any process of the server.

The state of a load is a small file that its process replaces now and then. The processes of one server share the
directory, which is removed when the server stops.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ulid import ULID

from omnigraph.api import problems
from omnigraph.api.access import Action
from omnigraph.api.documents import INGEST
from omnigraph.errors import (
    ForbiddenError,
    InputError,
    LoadNotFoundError,
    OmnigraphError,
    OutcomeUnknownError,
    ServerFailedError,
    TooManyRequestsError,
)
from omnigraph.formats.files import find_files
from omnigraph.graph import Graph
from omnigraph.server.metrics import Metrics
from omnigraph.server.settings import Serving

_WRITE_SECONDS = 0.25
_RUNNING, _DONE, _FAILED = "running", "done", "failed"


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """The arguments of a load."""

    data: tuple[str, ...]
    mode: str = "merge"
    branch: str = "main"
    base: str | None = None
    format: str | None = None
    mapping: dict[str, Any] | None = None
    dry_run: bool = False
    max_bad: int | None = None
    dedupe: str | None = None
    message: str | None = None
    operation_id: str | None = None


class Loads:
    """The loads of one process. Thread-safe."""

    def __init__(self, serving: Serving, metrics: Metrics) -> None:
        self._own = None if serving.folder else TemporaryDirectory(prefix="omnigraph-loads-")
        self._folder = Path(self._own.name if self._own else str(serving.folder))
        self._roots = serving.load_roots
        self._max_running = serving.limits.loads
        self._patience = serving.limits.shutdown_seconds
        self._deadline = float("inf")
        self._metrics = metrics
        self._lock = threading.Lock()
        self._running: dict[str, threading.Thread] = {}

    def start(self, graph_id: str, graph: Graph, order: LoadOrder) -> str:
        """Start a load as the principal of the graph handle; return its id."""
        check_addresses(order.data, self._roots)
        load_id = str(ULID())
        record = _Record(self._folder / f"{graph_id}.{load_id}.json", load_id, order.operation_id)
        graph = graph if order.operation_id is None else graph.as_operation(order.operation_id)
        thread = threading.Thread(target=self._run, args=(load_id, graph, order, record), name=load_id, daemon=True)
        with self._lock:
            if len(self._running) >= self._max_running:
                hint = "retry when one of them is done"
                raise TooManyRequestsError(f"the maximum of {self._max_running} loads is running", hint=hint)
            self._running[load_id] = thread
        try:
            record.write()  # before the thread runs: a client may ask for the load as soon as it knows the id
            thread.start()
        except BaseException:  # a full disk, or no more threads: its place must not stay taken
            with self._lock:
                del self._running[load_id]
            raise
        return load_id

    def state(self, graph_id: str, load_id: str) -> dict[str, Any]:
        """Return the state of a load."""
        try:
            # The id becomes part of a file name, so nothing but an id may pass.
            known = str(ULID.from_str(load_id)) == load_id
            text = (self._folder / f"{graph_id}.{load_id}.json").read_text() if known else None
        except (OSError, ValueError):
            text = None
        if text is None:
            hint = "ask the server that started it; a server forgets its loads when it stops"
            raise LoadNotFoundError(f"load {load_id!r:.40} not found", load_id=load_id[:40], hint=hint)
        return _reported(json.loads(text))

    def end(self) -> None:
        """Start the time limit for shutting down, which requests and loads share."""
        # The first call counts: requests and loads share one period, and a second signal must not begin another.
        self._deadline = min(self._deadline, time.monotonic() + self._patience)

    def close(self) -> None:
        """Wait for the running loads. One that is cut off has changed nothing."""
        self.end()
        for thread in list(self._running.values()):  # a copy: each thread removes itself when it ends
            thread.join(max(0.0, self._deadline - time.monotonic()))
        # Not while a load runs: it is cut off with the process, and stopping Spark under it would log errors instead.
        if "pyspark" in sys.modules and not self._running:
            from omnigraph.spark.session import stop_session  # noqa: PLC0415 - only if Spark was needed

            stop_session()
        if self._own is not None:
            self._own.cleanup()

    def _run(self, load_id: str, graph: Graph, order: LoadOrder, record: _Record) -> None:
        try:
            with self._metrics.loads.track_inprogress():
                options: dict[str, Any] = {
                    "mode": order.mode,
                    "branch": order.branch,
                    "base": order.base,
                    "format": order.format,
                }
                options |= {"max_bad": order.max_bad, "dedupe": order.dedupe, "message": order.message}
                more = {"mapping": order.mapping, "dry_run": order.dry_run, "progress": record}
                done = graph.load(list(order.data), **options, **more)  # type: ignore[arg-type]
            record.end(_DONE, result=INGEST.write(done, {"uri": graph.uri}))
        except OmnigraphError as error:
            record.end(_FAILED, error=problems.body(error, full=True))
        except BaseException:
            problem = ServerFailedError("the load failed; see the server log")
            record.end(_FAILED, error=problems.body(problem, full=True))
            raise  # the excepthook of threads logs it
        finally:
            with self._lock:
                self._running.pop(load_id)


@dataclass(slots=True)
class _Record:
    """The state of a load. It is a progress listener, and writes itself to a file now and then."""

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
        if time.monotonic() - self.written > _WRITE_SECONDS:
            self.write()

    def finish(self) -> None:
        pass

    def end(self, state: str, **rest: Any) -> None:
        self.state, self.rest = state, rest
        self.done = self.total if state == _DONE else self.done
        self.write()

    def write(self) -> None:
        """Replace the file atomically: a reader sees one state or the next."""
        known = {"load_id": self.load_id, "state": self.state, "phase": self.name or None}
        counts = {"done": self.done, "total": self.total, "rows": self.rows}
        owner = {"pid": os.getpid(), "operation_id": self.operation_id}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({**known, **counts, **owner, **self.rest}))
        new.replace(self.path)
        self.written = time.monotonic()


def _reported(known: dict[str, Any]) -> dict[str, Any]:
    """Return the state to report. A load whose process is gone is not running, whatever it wrote last."""
    pid, operation_id = known.pop("pid"), known.pop("operation_id")
    if known["state"] == _RUNNING and not _is_alive(pid):
        asked = "check whether its commit exists" if operation_id is None else f"ask for the outcome of {operation_id}"
        message, hint = "the process of the load has ended", f"{asked}; if it changed nothing, load again"
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


# Load roots ----------------------------------------------------------------------------------------

_S3, _FILE = "s3://", "file://"
_WILDCARD = re.compile(r"[*?\[]")


def check_addresses(addresses: Iterable[str], roots: Iterable[str]) -> None:
    """Refuse an address outside the roots. The error reveals neither what is there nor which roots exist."""
    allowed = [_parts(root) for root in roots]
    for address in addresses:
        if not any(_is_below(address, root) and _leads_inside(address, allowed) for root in allowed):
            message = f"{address!r:.200} is outside the load roots of this server"
            raise ForbiddenError(
                message, action=Action.CHANGE, hint="the operator of the server can add a root to load_roots"
            )


def _is_below(address: str, root: tuple[str, ...]) -> bool:
    # Before links are resolved: behind a wildcard `..` could lead anywhere.
    if ".." in re.split(r"[/\\]", urllib.parse.unquote(address)) or "\0" in address:
        return False
    found = _parts(_fixed(address))
    return found[: len(root)] == root


def _leads_inside(address: str, roots: Sequence[tuple[str, ...]]) -> bool:
    """Whether all files of a directory or a pattern are below the roots: a link among them may lead out."""
    if address.lower().startswith(_S3):
        return True
    with suppress(InputError):  # nothing is there, or nothing that can be read: the load reports it
        found = (_parts(file.uri) for file in find_files(address)[0])
        return all(any(parts[: len(root)] == root for root in roots) for parts in found)
    return True


def _fixed(address: str) -> str:
    """Return the part before the first name with a wildcard: everything that matches has it."""
    wild = _WILDCARD.search(address)
    return address if wild is None else address[: wild.start()].rpartition("/")[0]


def _parts(address: str) -> tuple[str, ...]:
    """Return the names on the way to an address. Local links are resolved, so that none leads out of a root."""
    if address.lower().startswith(_S3):
        return ("s3", *filter(None, address[len(_S3) :].split("/")))
    if address.lower().startswith(_FILE):
        address = urllib.parse.unquote(address[len(_FILE) :]).removeprefix("localhost")
    return ("file", *Path(os.path.realpath(address)).parts)
