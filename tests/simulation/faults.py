"""A call that meets a fault: how it ends, and what it leaves on the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import omnigraph
from omnigraph.commit import audit, failpoints
from omnigraph.core.location import Location
from omnigraph.errors import OmnigraphError, StorageFullError
from omnigraph.graph import Graph
from omnigraph.storage import observe
from tests.simulation.generator import Step
from tests.support.deaths import DIED
from tests.support.faults import CrashError, broken_storage, failing
from tests.support.forks import forked
from tests.support.mutations import at_write
from tests.support.power import Recorder, write_files
from tests.support.s3 import S3Server

DURABILITY = "full"
SLEEP_SECONDS = 20  # longer than a lease lasts
_REFUSED = 3
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the public API that can be made by another process."""

    method: str
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    operation: str | None = None

    def on(self, graph: Graph) -> Any:
        handle = graph.as_operation(self.operation) if self.operation else graph
        return getattr(handle, self.method)(*self.arguments, **self.options)


@dataclass(frozen=True, slots=True)
class End:
    """How a call ended: it returned, it raised, or its process died and nothing is known."""

    how: str
    value: Any = None
    error: Exception | None = None
    met_fault: bool = False


def carry_out(call: Call, graph: Graph, step: Step, clock: Clock, rival: Callable[[], None]) -> End:
    """Make a call with the fault of its step."""
    act = lambda: call.on(graph)  # noqa: E731 - what every fault is wrapped around
    match step.fault:
        case "crash":
            return _crash(act, step.at)
        case "eio":
            with failing(None, "", after=step.at - 1, times=1, error=broken_storage) as failed:
                return _ended(act, failed)
        case "full":
            with failing(None, "", after=step.at - 1, error=_full) as failed:
                return _ended(act, failed)
        case "race":
            with _at_first_stage(rival):
                return _ended(act)
        case "cut":
            return _cut(act, Path(graph.uri), step)
        case "kill":
            return _kill(call, graph.uri, step.at)
        case "sleep":
            with at_write(step.at, clock.sleep) as written:
                end = _ended(act)
            return End(end.how, end.value, end.error, len(written) >= step.at)
        case "lost" | "repeated" | "slow":
            return _on_server(act, Location.parse(graph.uri).bucket, step)
    return _ended(act)


def _ended(act: Callable[[], Any], failed: list[str] | None = None) -> End:
    try:
        return End("returned", act(), None, bool(failed))
    except Exception as error:  # noqa: BLE001 - the oracles judge it
        return End("raised", None, error, bool(failed))


def _crash(act: Callable[[], Any], at: int) -> End:
    """Die at a durable write: from there on nothing is written, whatever the code tries while it unwinds."""
    with failing(None, "", after=at - 1, error=lambda *_: CrashError()) as failed:
        end = _ended(act)
    return End("died", met_fault=True) if failed else end


def _full(operation: str, path: str) -> Exception:
    return StorageFullError(f"cannot {operation} {path}: no space is left", path=path, operation=operation)


@contextmanager
def _at_first_stage(action: Callable[[], None]) -> Iterator[None]:
    """Act once, when the call begins to write something that nobody sees yet: no gate is held then."""
    left = [action]

    def hook(operation: str, path: str) -> None:
        is_staged = operation.startswith(("stage ", "rewrite ", "build ", "create", "write "))
        if left and is_staged and audit.PATH not in path:  # a recovery makes the audit log, with its gates held
            left.pop()()

    previous = observe.set_write_hook(hook)
    try:
        yield
    finally:
        observe.set_write_hook(previous)


def _cut(act: Callable[[], Any], root: Path, step: Step) -> End:
    """Cut the power at one of the moments of a call, and leave one of the disks that can be left."""
    ends: list[End] = []
    cuts = Recorder(root).run(lambda: ends.append(_ended(act)))
    if ends[0].error is not None:
        return ends[0]
    cut = cuts[step.pick % len(cuts)]
    states = list(cut.states(2, step.pick))
    _, disk = states[step.pick // 97 % len(states)]
    write_files(root, disk)
    return End("returned" if cut.acknowledged else "died", ends[0].value, met_fault=True)


def _kill(call: Call, uri: str, at: int) -> End:
    """Make the call in another process, which dies at a durable write."""
    process = forked(_in_child, (call, uri, at))
    process.start()
    process.join(_PATIENCE)
    process.kill()
    ends = {0: "returned", DIED: "died", _REFUSED: "refused"}
    assert process.exitcode in ends, f"the process ended with {process.exitcode}"
    return End(ends[process.exitcode], met_fault=process.exitcode == DIED)


def _in_child(call: Call, uri: str, at: int) -> None:
    graph = omnigraph.open(uri, durability=DURABILITY)
    with at_write(at, failpoints.die):
        try:
            call.on(graph)
        except OmnigraphError:
            os._exit(_REFUSED)


def _on_server(act: Callable[[], Any], bucket: str, step: Step) -> End:
    server = S3Server.of_environment()
    server.arm(bucket, step.fault, step.at)
    try:
        end = _ended(act)
    finally:
        server.arm(bucket, "none")
    return End(end.how, end.value, end.error, met_fault=True)


def crash_while_opening(uri: str, at: int) -> None:
    """Open a graph in a process that dies while it recovers."""
    with suppress(CrashError), failing(None, "", after=at - 1, error=lambda *_: CrashError()):
        omnigraph.open(uri, durability=DURABILITY)


class Clock:
    """The clocks of this process: the wall clock jumps either way, the clock of leases only forward."""

    def __init__(self) -> None:
        self._wall = 0.0
        self._boot = 0.0

    def jump(self, seconds: float) -> None:
        self._wall += seconds

    def sleep(self) -> None:
        """The machine slept: every lease that this process holds is over."""
        self._boot += SLEEP_SECONDS

    @contextmanager
    def installed(self) -> Iterator[None]:
        time_, time_ns, clock_gettime = time.time, time.time_ns, time.clock_gettime
        time.time = lambda: time_() + self._wall
        time.time_ns = lambda: time_ns() + int(self._wall * 1e9)
        time.clock_gettime = lambda which: clock_gettime(which) + self._boot
        try:
            yield
        finally:
            time.time, time.time_ns, time.clock_gettime = time_, time_ns, clock_gettime
