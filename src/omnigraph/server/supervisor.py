"""Several processes that serve together: they share one socket, and one of them that dies is replaced.

They are made anew, not forked: the threads of lance do not survive a fork.
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
_PAUSE = 1.0  # before a process that has died is replaced
_MARGIN = 5.0


def supervise(serving: Serving, listening: socket.socket, workers: int, when_ready: Callable[[], None]) -> None:
    """Serve with so many processes until a signal says to end; then let each finish what it has under way."""
    with _signals() as told:
        crew = _Crew(serving, listening, told)
        try:
            crew.start(workers)
            if not crew.is_told():
                when_ready()
            crew.keep()
        finally:
            crew.end()


@contextmanager
def _signals() -> Iterator[Connection]:
    """Something to wait for: it can be read once a signal has said to end."""
    told, tell = multiprocessing.Pipe(duplex=False)

    def end(_number: int, _frame: FrameType | None) -> None:
        with suppress(OSError):
            tell.send(None)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection

    def outcome(self) -> OmnigraphError | None:
        """Wait until it is ready (None), or has said why it cannot be."""
        try:
            error: OmnigraphError | None = self.pipe.recv()
        except EOFError:
            return ServerStartError("a process of the server ended while it started", hint="see its log")
        return error


class _Crew:
    """The processes that serve."""

    def __init__(self, serving: Serving, listening: socket.socket, told: Connection) -> None:
        self._serving = serving
        self._listening = listening
        self._told = told
        self._workers: list[_Worker] = []

    def start(self, count: int) -> None:
        """Start them, the first one alone: it makes graphs that are not there yet, and finds out whether it can be."""
        for some in (1, count - 1):
            new = [self._new() for _ in range(some)]
            self._workers += new
            for worker in new:
                wait([worker.pipe, worker.process.sentinel, self._told])
                if self.is_told():
                    return
                if error := worker.outcome():
                    raise error

    def is_told(self) -> bool:
        return self._told.poll()

    def keep(self) -> None:
        """Replace whoever dies, until it is time to end."""
        while not self.is_told():
            wait([self._told, *(worker.process.sentinel for worker in self._workers)])
            for at, worker in enumerate(self._workers):
                if not worker.process.is_alive() and not self.is_told():
                    self._bury(worker)
                    self._told.poll(_PAUSE)
                    self._workers[at] = self._new()

    def end(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        deadline = time.monotonic() + self._serving.limits.shutdown_seconds + _MARGIN
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()

    def _new(self) -> _Worker:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_work, args=(self._serving, self._listening, theirs), daemon=False)
        process.start()
        theirs.close()  # so that its end is seen here
        return _Worker(process, ours)

    def _bury(self, worker: _Worker) -> None:
        from prometheus_client import multiprocess  # noqa: PLC0415 - only now it matters

        pid, code = worker.process.pid, worker.process.exitcode
        logs.log(_LOG, logging.ERROR, "a process of the server has ended, and is replaced", worker=pid, exit_code=code)
        worker.pipe.close()
        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _work(serving: Serving, listening: socket.socket, parent: Connection) -> None:
    from omnigraph.server.worker import serve_as_child  # noqa: PLC0415 - the supervisor itself needs no engine

    serve_as_child(serving, listening, parent)
