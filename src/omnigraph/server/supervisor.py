"""Several server processes on one socket; a process that dies is replaced.

They are spawned, not forked: the threads of Lance do not survive a fork.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from omnigraph.errors import OmnigraphError, ServerStartError
from omnigraph.server import logs
from omnigraph.server.settings import Serving

_LOG = logging.getLogger(__name__)
_SPAWN = multiprocessing.get_context("spawn")
_RESTART_SECONDS = 1.0  # a process that dies at once must not be restarted in a busy loop
_MARGIN_SECONDS = 5.0


def supervise(serving: Serving, listening: socket.socket, workers: int, on_ready: Callable[[], None]) -> None:
    """Serve with `workers` processes until a signal arrives; then let each finish its requests."""
    with _signals() as stopping:
        pool = _WorkerPool(serving, listening, stopping)
        try:
            pool.start(workers)
            if not pool.is_stopping():
                on_ready()
            pool.keep()
        finally:
            pool.end()


@contextmanager
def _signals() -> Iterator[Connection]:
    """Return a pipe that becomes readable when a signal asks the server to stop."""
    # A pipe and not an event: `wait` below watches it together with the processes, and a handler may write to it
    # safely.
    stopping, stop = multiprocessing.Pipe(duplex=False)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        with suppress(OSError):
            stop.send(None)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection

    def outcome(self) -> OmnigraphError | None:
        """Wait until the process is ready (None) or reports why it cannot start."""
        try:
            error: OmnigraphError | None = self.pipe.recv()
        except EOFError:
            return ServerStartError("a server process ended while it started", hint="see the server log")
        return error


class _WorkerPool:
    """The server processes."""

    def __init__(self, serving: Serving, listening: socket.socket, stopping: Connection) -> None:
        self._serving = serving
        self._listening = listening
        self._stopping = stopping
        self._workers: list[_Worker] = []

    def start(self, count: int) -> None:
        """Start the processes."""
        # The first one alone: it creates missing graphs, and shows whether the server can start at all.
        for some in (1, count - 1):
            new = [self._spawn() for _ in range(some)]
            self._workers += new
            for worker in new:
                wait([worker.pipe, worker.process.sentinel, self._stopping])
                if self.is_stopping():
                    return
                # A process that cannot start at all is fatal now; one that dies later is replaced by `keep`.
                if error := worker.outcome():
                    raise error

    def is_stopping(self) -> bool:
        return self._stopping.poll()

    def keep(self) -> None:
        """Replace processes that die, until a signal arrives."""
        while not self.is_stopping():
            wait([self._stopping, *(worker.process.sentinel for worker in self._workers)])
            for at, worker in enumerate(self._workers):
                if not worker.process.is_alive() and not self.is_stopping():
                    self._log_death(worker)
                    self._stopping.poll(_RESTART_SECONDS)
                    self._workers[at] = self._spawn()

    def end(self) -> None:
        for worker in self._workers:  # all of them before any wait: they share one period of grace
            worker.process.terminate()
        deadline = time.monotonic() + self._serving.limits.shutdown_seconds + _MARGIN_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()  # does nothing to a process that has ended

    def _spawn(self) -> _Worker:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_work, args=(self._serving, self._listening, theirs), daemon=False)
        process.start()
        theirs.close()  # else the end of the child would not be seen here
        return _Worker(process, ours)

    def _log_death(self, worker: _Worker) -> None:
        from prometheus_client import multiprocess  # noqa: PLC0415 - a supervisor rarely needs it

        pid, code = worker.process.pid, worker.process.exitcode
        logs.log(_LOG, logging.ERROR, "a server process has ended and is replaced", worker=pid, exit_code=code)
        worker.pipe.close()
        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _work(serving: Serving, listening: socket.socket, parent: Connection) -> None:
    from omnigraph.server.worker import serve_as_child  # noqa: PLC0415 - loads the engine, which a supervisor does not need

    serve_as_child(serving, listening, parent)
