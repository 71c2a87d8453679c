"""Gates: mutual exclusion between the writers of a graph, across threads and processes.

On a local disk a gate is an advisory lock on a file, which the kernel frees when its process dies. On an object store
it is a lease, which expires unless its holder renews it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from omnigraph.commit.file_locks import Queue, close_lock, open_lock, try_lock
from omnigraph.commit.lease import Lease, me, now
from omnigraph.core.location import Location
from omnigraph.errors import GateTimeoutError
from omnigraph.storage.objects import ObjectStore, Version, storage_error

DIRECTORY = "__gates"
SHARED = "schema"  # the one gate that many may hold at once
DEFAULT_TIMEOUT = 60.0
LEASE_SECONDS = 15.0
_RENEWALS = 3
_LONGEST_NAME = 200
_IN_BRANCH = "table:"  # these gates are only taken behind that of their branch, so they have no queue
_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.05
_LONGEST_REMOTE_WAIT, _SHORTEST_REMOTE_WAIT, _HALVED = 1.0, 0.1, 2.0  # the longest pause is halved after 2 s
_LONG_WAIT = 10.0  # seconds, from which on a wait is logged
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate by name. A shared gate has any number of holders, or one exclusive holder."""

    name: str
    shared: bool = False

    def __post_init__(self) -> None:
        assert not self.shared or self.name == SHARED, "only this one may be shared"


class Held(Protocol):
    """The gates that one write holds."""

    def check(self) -> None:
        """Raise if a gate was lost. Call it before every durable step."""


def gates_of(location: Location, objects: ObjectStore, timeout: float = DEFAULT_TIMEOUT) -> LocalGates | LeaseGates:
    if location.is_local:
        return LocalGates(location.child(DIRECTORY), timeout)
    return LeaseGates(objects, timeout)


@lru_cache(maxsize=1024)
def _file_name(gate: str) -> str:
    """Return the file name of a gate. Long names, from long type names, are hashed."""
    # A name becomes one file: without quoting, `branch:a/b` would be a file in a directory.
    quoted = urllib.parse.quote(gate, safe="")
    return quoted if len(quoted) <= _LONGEST_NAME else hashlib.sha256(gate.encode()).hexdigest()


def _wait(
    name: str,
    timeout: float,
    attempt: Callable[[], bool],
    holder: Callable[[], str],
    *,
    worth_it: Callable[[], bool] | None,
    longest: Callable[[float], float],
) -> None:
    """Retry with growing pauses; raise GateTimeoutError at the deadline, or when `worth_it` turns false.

    `longest` returns the longest pause for a caller that has waited for so many seconds.
    """
    start, pause = now(), _FIRST_WAIT
    while not attempt():
        waited = now() - start
        # Waiting for a record that its writer has deleted meanwhile would only delay the caller.
        if waited > timeout or not (worth_it is None or worth_it()):
            who = holder()
            message = f"gate '{name}' is held by {who}; gave up after {waited:.1f} s"
            hint = "wait for the other write, then try again"
            raise GateTimeoutError(message, gate=name, holder=who, waited=waited, hint=hint)
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - spreads waiters, guards nothing
        pause = min(pause * 2, longest(waited))
    waits.add(name, now() - start)


def remote_pause(waited: float) -> float:
    """Return the longest pause between two looks at a lease, each of which is a request.

    Who has waited longer looks more often, and so comes before those who arrived later most of the time. After
    `IN_LINE_AFTER` a waiter stands in line, and always does.
    """
    return max(_LONGEST_REMOTE_WAIT / (1 + waited / _HALVED), _SHORTEST_REMOTE_WAIT)


class Waits:
    """How often, and for how many seconds, the threads of this process have waited for gates."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._seconds = 0, 0.0

    def snapshot(self) -> tuple[int, float]:
        with self._lock:
            return self._count, self._seconds

    def add(self, gate: str, seconds: float) -> None:
        if seconds < _FIRST_WAIT:
            return
        with self._lock:
            self._count, self._seconds = self._count + 1, self._seconds + seconds
        if seconds > _LONG_WAIT:
            _LOG.warning("waited %.1f s for gate '%s'", seconds, gate)


waits = Waits()


class LocalGates:
    """Gates as locks on files below the root of the graph."""

    patience = 0.0  # the kernel knows at once whether a holder is alive
    can_be_lost = False  # the kernel keeps a lock until it is released

    def __init__(self, directory: str | Path, timeout: float) -> None:
        self._directory = str(directory)
        self.timeout = timeout

    @contextmanager
    def hold(
        self, gates: Sequence[Gate], timeout: float | None = None, worth_it: Callable[[], bool] | None = None
    ) -> Iterator[Held]:
        """Hold the gates, taken in the given order; raise GateTimeoutError if one cannot be taken in time.

        `worth_it` is polled while waiting; when it returns false, the wait ends.
        """
        longest = self.timeout if timeout is None else timeout
        taken: list[_LockFile] = []
        try:
            for gate in gates:
                self._take(gate, longest, worth_it, taken)
            yield _Locked(taken)
        finally:
            for one in reversed(taken):
                close_lock(one.file)

    def _take(self, gate: Gate, timeout: float, worth_it: Callable[[], bool] | None, taken: list[_LockFile]) -> None:
        """Take one gate. The shared gate has a second lock in front of it.

        An exclusive holder locks that one first and keeps it, so overlapping shared holders cannot starve it.
        """
        if gate.name == SHARED:
            before = self._locked(gate, f"before {gate.name}", timeout, worth_it)
            taken.append(before)
        taken.append(self._locked(gate, gate.name, timeout, worth_it))
        if gate.shared:
            taken.remove(before)
            close_lock(before.file)

    def _locked(self, gate: Gate, name: str, timeout: float, worth_it: Callable[[], bool] | None) -> _LockFile:
        path = f"{self._directory}/{_file_name(name)}.lock"
        with _lock_failures(path):
            file = open_lock(path)
            try:
                _lock_in_turn(gate, path, file, timeout, worth_it)
                # The file names the holder for error messages; only the lock itself has meaning.
                os.ftruncate(file, 0)
                if not gate.shared:
                    os.pwrite(file, me().encode(), 0)
            except BaseException:
                close_lock(file)
                raise
        return _LockFile(gate.name, path, file)


def _lock_in_turn(gate: Gate, path: str, file: int, timeout: float, worth_it: Callable[[], bool] | None) -> None:
    """Lock a file behind those who wait for it already; raise GateTimeoutError if the turn does not come in time."""
    attempt, queue = partial(try_lock, file, shared=gate.shared), Queue(f"{path.removesuffix('.lock')}.queue")
    holder = partial(_named_in, path)
    wait = partial(_wait, gate.name, timeout, holder=holder, worth_it=worth_it)
    if gate.name.startswith(_IN_BRANCH):
        wait(attempt, longest=lambda _: _LONGEST_WAIT)
    # No ticket for a caller that does not wait: it asks whether the holder is alive, and must not pass those who queue.
    elif timeout <= 0:
        wait(lambda: queue.is_empty() and attempt(), longest=lambda _: _LONGEST_WAIT)
    elif not (queue.is_empty() and attempt()):
        with queue.ticket() as ticket:
            wait(lambda: ticket.is_first() and attempt(), longest=ticket.pause)


def _named_in(path: str) -> str:
    return Path(path).read_text() or "another process"


@dataclass(frozen=True, slots=True)
class _LockFile:
    gate: str
    path: str
    file: int

    def is_in_place(self) -> bool:
        """Return whether the path still names the locked file: another copy of the graph has files of its own."""
        try:
            there = os.stat(self.path)  # noqa: PTH116 - quicker, and a commit does this many times
            return os.path.samestat(os.fstat(self.file), there)
        except FileNotFoundError:
            return False


@contextmanager
def _lock_failures(path: str) -> Iterator[None]:
    """Turn failures of the file system (no locks, no space) into storage errors."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, "lock", path) from error


class _Locked:
    def __init__(self, files: Sequence[_LockFile]) -> None:
        self._files = files

    def check(self) -> None:
        """Raise if the graph was replaced. Otherwise the kernel keeps a lock until it is released."""
        for file in self._files:
            if not file.is_in_place():
                message = f"the lock of gate '{file.gate}' is gone: the graph was replaced or removed"
                raise GateTimeoutError(message, gate=file.gate, holder="no process", waited=0.0, hint="try again")


class LeaseGates:
    """Gates as leases on an object store. A lease that is not renewed expires after `lifetime` seconds."""

    can_be_lost = True

    def __init__(self, objects: ObjectStore, timeout: float, lifetime: float = LEASE_SECONDS) -> None:
        self._objects = objects
        self.timeout = timeout + lifetime
        self._lifetime = lifetime
        self.patience = lifetime * 1.2  # long enough to distinguish a dead holder from a live one
        # Since when each lease has been unchanged. Kept between writes, so that short waits add up to one observation.
        self._seen: dict[str, tuple[object, float]] = {}
        # The versions of leases that this process released last: unchanged, they are still free.
        self._released: dict[str, Version] = {}

    @contextmanager
    def hold(
        self, gates: Sequence[Gate], timeout: float | None = None, worth_it: Callable[[], bool] | None = None
    ) -> Iterator[Held]:
        """Hold the gates, taken in the given order; raise GateTimeoutError if one cannot be taken in time.

        `worth_it` is polled while waiting; when it returns false, the wait ends. A timeout of at most `patience` means
        "find out whether the holder is dead": a holder that renews its lease meanwhile is alive, and the wait ends at
        once.
        """
        deadline = now() + (self.timeout if timeout is None else timeout)
        wait = _Wait(deadline, worth_it, for_the_dead=timeout is not None and timeout <= self.patience)
        # The gate of a table needs no lease: its taker always holds the gate of the branch.
        alone = [gate for gate in gates if not gate.shared and not gate.name.startswith("table:")]
        # A shared gate is no object. Its holders check that it has no exclusive holder after they took the other gates;
        # an exclusive holder then takes the gates of all branches, and so waits for those who checked before it. Who
        # finds it taken waits without holding anything.
        shared = [gate for gate in gates if gate.shared]
        while True:
            with self._leases(alone, wait) as leases:
                if all(self._lease(gate).is_free() for gate in shared):
                    yield _Leases(leases)
                    return
            for gate in shared:
                free = self._lease(gate)
                wait.until(free, free.is_free)

    @contextmanager
    def _leases(self, gates: Sequence[Gate], wait: _Wait) -> Iterator[list[Lease]]:
        leases: list[Lease] = []
        stop = threading.Event()
        # Started before the first lease is taken: waiting for the second may take longer than the first one lives.
        renewer = threading.Thread(target=self._renew, args=(leases, stop), daemon=True)
        renewer.start()
        try:
            for gate in gates:
                lease = self._lease(gate)
                wait.take(lease)
                leases.append(lease)
            yield leases
        finally:
            stop.set()
            renewer.join()
            # In reverse, so that a waiter for the first gate finds the others free when it gets there.
            for lease in reversed(leases):
                lease.release()

    def _lease(self, gate: Gate) -> Lease:
        path = f"{DIRECTORY}/{_file_name(gate.name)}.json"
        return Lease(self._objects, gate.name, path, self._lifetime, self._seen, released=self._released)

    def _renew(self, leases: list[Lease], stop: threading.Event) -> None:
        while not stop.wait(self._lifetime / _RENEWALS):
            for lease in list(leases):
                lease.renew()


@dataclass(frozen=True, slots=True)
class _Wait:
    """How long to wait for leases, and what for."""

    deadline: float
    worth_it: Callable[[], bool] | None
    for_the_dead: bool

    def take(self, lease: Lease) -> None:
        """Wait until a lease is ours; leave its line if that takes too long."""
        try:
            # Who only asks whether the holder is dead stands in no one's way.
            self.until(lease, partial(lease.try_acquire, stands_in_line=not self.for_the_dead))
        except BaseException:
            lease.withdraw()
            raise

    def until(self, lease: Lease, attempt: Callable[[], bool]) -> None:
        def worth_it() -> bool:
            alive = self.for_the_dead and lease.was_renewed
            return not alive and (self.worth_it is None or self.worth_it())

        def longest(waited: float) -> float:
            return _SHORTEST_REMOTE_WAIT if lease.is_next else remote_pause(waited)

        left = self.deadline - now()
        _wait(lease.name, left, attempt, lease.in_the_way, worth_it=worth_it, longest=longest)


class _Leases:
    def __init__(self, leases: Sequence[Lease]) -> None:
        self._leases = leases

    def check(self) -> None:
        for lease in self._leases:
            lease.check()
