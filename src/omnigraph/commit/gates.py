"""Gates: whoever holds one is the only writer of what it names, among all threads and processes of a graph.

On a local disk a gate is an advisory lock on a file, which the kernel frees when its process dies. On an object store
it is a lease: an object made with create-if-absent and renewed with compare-and-swap. Somebody who sees a lease
unchanged for its whole lifetime, by his own clock, may take it over; no two clocks are ever compared.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from omnigraph.errors import GateTimeoutError, StorageDeniedError
from omnigraph.storage.location import Location
from omnigraph.storage.objects import ObjectStore, Version

DIRECTORY = "__gates"
DEFAULT_TIMEOUT = 60.0
LEASE_SECONDS = 15.0
_RENEWALS = 3
_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.05


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate by name. Many may hold one shared, while nobody holds it alone."""

    name: str
    shared: bool = False


class Held(Protocol):
    """The gates of one write, while it holds them."""

    def check(self) -> None:
        """Raise if a gate was lost. Call it before every durable step."""


def gates_of(location: Location, objects: ObjectStore, timeout: float = DEFAULT_TIMEOUT) -> LocalGates | LeaseGates:
    if location.is_local:
        return LocalGates(Path(location.child(DIRECTORY)), timeout)
    return LeaseGates(objects, timeout)


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _wait(name: str, timeout: float, attempt: Callable[[], bool], holder: Callable[[], str]) -> None:
    """Try until it works, a little less often each time; say who is in the way when time is up."""
    deadline, pause = time.monotonic() + timeout, _FIRST_WAIT
    while not attempt():
        if time.monotonic() > deadline:
            who = holder()
            message = f"gate '{name}' was held by {who} for more than {timeout:g} s"
            raise GateTimeoutError(message, gate=name, holder=who, hint="wait for the other write, then try again")
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - spreads waiters, guards nothing
        pause = min(pause * 2, _LONGEST_WAIT)


class LocalGates:
    """Gates as locks on files below the root."""

    patience = 0.0  # the kernel knows at once whether a holder is alive

    def __init__(self, directory: Path, timeout: float) -> None:
        self._directory = directory
        self._timeout = timeout

    @contextmanager
    def hold(self, gates: Sequence[Gate], timeout: float | None = None) -> Iterator[Held]:
        """Take the gates in the given order, or raise GateTimeoutError naming who holds one."""
        with ExitStack() as stack:
            for gate in gates:
                stack.enter_context(self._locked(gate, self._timeout if timeout is None else timeout))
            yield _Locked()

    @contextmanager
    def _locked(self, gate: Gate, timeout: float) -> Iterator[None]:
        path = self._directory / f"{urllib.parse.quote(gate.name, safe='')}.lock"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except PermissionError as error:
            message = f"cannot lock {path}: {error.strerror}"
            raise StorageDeniedError(message, path=str(path), operation="lock", hint="check its permissions") from error
        try:
            attempt = partial(_try_lock, file, gate.shared)
            _wait(gate.name, timeout, attempt, lambda: path.read_text() or "another process")
            if not gate.shared:
                os.ftruncate(file, 0)
                os.pwrite(file, _me().encode(), 0)
            yield
        finally:
            os.close(file)


def _try_lock(file: int, shared: bool) -> bool:  # noqa: FBT001 - the two kinds of one lock
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


class _Locked:
    def check(self) -> None:
        """The kernel keeps a lock until it is let go."""


class LeaseGates:
    """Gates as leases on an object store."""

    def __init__(self, objects: ObjectStore, timeout: float, lifetime: float = LEASE_SECONDS) -> None:
        self._objects = objects
        self._timeout = timeout + lifetime
        self._lifetime = lifetime
        self.patience = lifetime * 1.2  # how long it takes to tell a dead holder from one that is alive

    @contextmanager
    def hold(self, gates: Sequence[Gate], timeout: float | None = None) -> Iterator[Held]:
        """Take the gates in the given order, or raise GateTimeoutError naming who holds one.

        A shared gate is no object: its holders look, once they hold the others, that nobody holds it alone.
        Whoever takes it alone takes the others after it, and so waits for those who looked before.
        """
        limit = self._timeout if timeout is None else timeout
        leases: list[_Lease] = []
        stop = threading.Event()
        renewer = threading.Thread(target=self._renew, args=(leases, stop), daemon=True)
        renewer.start()
        try:
            for gate in gates:
                if not gate.shared:
                    leases.append(self._acquire(gate.name, limit))  # noqa: PERF401 - renewed from when it is taken
            for gate in gates:
                if gate.shared:
                    lease = _Lease(self._objects, gate.name, self._lifetime)
                    _wait(gate.name, limit, lease.is_free, lease.holder)
            yield _Leases(leases)
        finally:
            stop.set()
            renewer.join()
            for lease in reversed(leases):
                lease.release()

    def _renew(self, leases: list[_Lease], stop: threading.Event) -> None:
        while not stop.wait(self._lifetime / _RENEWALS):
            for lease in list(leases):
                lease.renew()

    def _acquire(self, name: str, timeout: float) -> _Lease:
        lease = _Lease(self._objects, name, self._lifetime)
        _wait(name, timeout, lease.try_acquire, lease.holder)
        return lease


class _Leases:
    def __init__(self, leases: Sequence[_Lease]) -> None:
        self._leases = leases

    def check(self) -> None:
        for lease in self._leases:
            lease.check()


class _Lease:
    """One lease; `renewed` is when it was last known to be ours, by our own clock."""

    def __init__(self, objects: ObjectStore, name: str, lifetime: float) -> None:
        self._objects = objects
        self._name = name
        self._path = f"{DIRECTORY}/{urllib.parse.quote(name, safe='')}.json"
        self._lifetime = lifetime
        self._version: Version | None = None
        self._renewed = 0.0
        self._serial = 0
        self._seen: tuple[Version, float] | None = None
        self._lock = threading.Lock()

    def try_acquire(self) -> bool:
        now = time.monotonic()
        if self._objects.create(self._path, self._body()):
            return self._own(now)
        dead = self._dead_version(now)
        return dead is not None and self._objects.replace(self._path, self._body(), dead) and self._own(now)

    def is_free(self) -> bool:
        """Tell whether nobody alive holds the lease, without taking it."""
        gone = self._objects.read_if_exists(self._path) is None
        return gone or self._dead_version(time.monotonic()) is not None

    def _dead_version(self, now: float) -> Version | None:
        """The version of a lease that has not changed for its lifetime since we first saw it."""
        found = self._objects.read_versioned(self._path)
        if found is None:
            return None
        if self._seen is None or self._seen[0] != found[1]:
            self._seen = (found[1], now)
        return found[1] if now - self._seen[1] > self._lifetime else None

    def _own(self, now: float) -> bool:
        found = self._objects.read_versioned(self._path)
        if found is None or found[0] != self._body():
            return False
        self._version, self._renewed = found[1], now
        return True

    def renew(self) -> None:
        with self._lock:
            if self._version is None:
                return
            now = time.monotonic()
            self._serial += 1
            if self._objects.replace(self._path, self._body(), self._version):
                self._own(now)
            else:
                self._version = None

    def check(self) -> None:
        if self._version is None or time.monotonic() - self._renewed > self._lifetime * 0.8:
            message = f"the lease on gate '{self._name}' was lost"
            raise GateTimeoutError(message, gate=self._name, holder=self.holder(), hint="try again")

    def release(self) -> None:
        with self._lock:
            if self._version is not None and time.monotonic() - self._renewed < self._lifetime * 0.8:
                self._objects.delete(self._path)
            self._version = None

    def holder(self) -> str:
        found = self._objects.read_if_exists(self._path)
        return str(json.loads(found)["holder"]) if found else "nobody"

    def _body(self) -> bytes:
        return json.dumps(
            {"holder": f"{_me()}, thread {threading.get_ident()}", "token": id(self), "serial": self._serial}
        ).encode()
