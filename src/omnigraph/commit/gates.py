"""Gates: whoever holds one is the only writer of what it names, among all threads and processes of a graph.

On a local disk a gate is an advisory lock on a file, which the kernel frees when its process dies. On an object store
it is a lease: an object made with create-if-absent, then renewed and released with compare-and-swap. Somebody who sees
a lease unchanged for its whole lifetime, by his own clock, may take it over; no two clocks are ever compared.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import random
import socket
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from omnigraph.errors import GateTimeoutError, StorageError
from omnigraph.storage.location import Location
from omnigraph.storage.objects import ObjectStore, Version, storage_error

DIRECTORY = "__gates"
DEFAULT_TIMEOUT = 60.0
LEASE_SECONDS = 15.0
_RENEWALS = 3
_SAFE = 0.8  # the part of a lease's lifetime in which its holder may rely on it
_LONGEST_NAME = 200
_FIRST_WAIT, _LONGEST_WAIT, _LONGEST_REMOTE_WAIT = 0.001, 0.05, 1.0
_LOG = logging.getLogger(__name__)


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


def _file_name(gate: str) -> str:
    """A name for the file of a gate; a long one, of a long type name, is hashed."""
    quoted = urllib.parse.quote(gate, safe="")
    return quoted if len(quoted) <= _LONGEST_NAME else hashlib.sha256(gate.encode()).hexdigest()


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _wait(
    name: str, timeout: float, attempt: Callable[[], bool], holder: Callable[[], str], longest: float = _LONGEST_WAIT
) -> None:
    """Try until it works, a little less often each time; say who is in the way when time is up."""
    deadline, pause = _now() + timeout, _FIRST_WAIT
    while not attempt():
        if _now() > deadline:
            who = holder()
            message = f"gate '{name}' was held by {who} for more than {timeout:g} s"
            raise GateTimeoutError(message, gate=name, holder=who, hint="wait for the other write, then try again")
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - spreads waiters, guards nothing
        pause = min(pause * 2, longest)


class LocalGates:
    """Gates as locks on files below the root."""

    patience = 0.0  # the kernel knows at once whether a holder is alive,
    can_be_lost = False  # and keeps a lock until it is let go

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
        path = self._directory / f"{_file_name(gate.name)}.lock"
        try:
            file = _open_lock(path)
        except OSError as error:
            raise storage_error(error, "lock", str(path)) from error
        try:
            attempt = partial(_try_lock, file, gate.shared)
            _wait(gate.name, timeout, attempt, lambda: path.read_text() or "another process")
            os.ftruncate(file, 0)
            if not gate.shared:
                os.pwrite(file, _me().encode(), 0)
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing would not let go of what a forked child has inherited
            os.close(file)


def _open_lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


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
    """Gates as leases on an object store. `lifetime` is how long one lasts that nobody renews."""

    can_be_lost = True

    def __init__(self, objects: ObjectStore, timeout: float, lifetime: float = LEASE_SECONDS) -> None:
        self._objects = objects
        self._timeout = timeout + lifetime
        self._lifetime = lifetime
        self.patience = lifetime * 1.2  # how long it takes to tell a dead holder from one that is alive
        # Since when each lease has looked as it does; kept between writes, so that each adds to the observation.
        self._seen: dict[str, tuple[Version, float]] = {}

    @contextmanager
    def hold(self, gates: Sequence[Gate], timeout: float | None = None) -> Iterator[Held]:
        """Take the gates in the given order, or raise GateTimeoutError naming who holds one.

        A table's gate needs no lease, for whoever takes it holds the gate of its branch as well. A shared gate is no
        object: its holders look that nobody holds it alone, before they take the others and again when they have
        them; whoever takes it alone takes the others after it, and so waits for those who looked before.
        """
        deadline = _now() + (self._timeout if timeout is None else timeout)
        alone = [gate for gate in gates if not gate.shared and not gate.name.startswith("table:")]
        shared = [gate for gate in gates if gate.shared]
        while True:
            for gate in shared:
                free = self._lease(gate)
                _wait(gate.name, deadline - _now(), free.is_free, free.holder, _LONGEST_REMOTE_WAIT)
            with self._leases(alone, deadline) as leases:
                if all(self._lease(gate).is_free() for gate in shared):
                    yield _Leases(leases)
                    return

    @contextmanager
    def _leases(self, gates: Sequence[Gate], deadline: float) -> Iterator[list[_Lease]]:
        leases: list[_Lease] = []
        stop = threading.Event()
        renewer = threading.Thread(target=self._renew, args=(leases, stop), daemon=True)
        renewer.start()
        try:
            for gate in gates:
                lease = self._lease(gate)
                _wait(gate.name, deadline - _now(), lease.try_acquire, lease.holder, _LONGEST_REMOTE_WAIT)
                leases.append(lease)
            yield leases
        finally:
            stop.set()
            renewer.join()
            for lease in reversed(leases):
                lease.release()

    def _lease(self, gate: Gate) -> _Lease:
        return _Lease(self._objects, gate.name, self._lifetime, self._seen)

    def _renew(self, leases: list[_Lease], stop: threading.Event) -> None:
        while not stop.wait(self._lifetime / _RENEWALS):
            for lease in list(leases):
                lease.renew()


class _Leases:
    def __init__(self, leases: Sequence[_Lease]) -> None:
        self._leases = leases

    def check(self) -> None:
        for lease in self._leases:
            lease.check()


class _Lease:
    """One lease. Its object is never deleted: it is written free, so that nobody else's can be removed by mistake."""

    def __init__(
        self, objects: ObjectStore, name: str, lifetime: float, seen: dict[str, tuple[Version, float]]
    ) -> None:
        self._objects = objects
        self._name = name
        self._path = f"{DIRECTORY}/{_file_name(name)}.json"
        self._lifetime = lifetime
        self._seen = seen
        self._token = str(uuid.uuid4())
        self._serial = 0
        self._version: Version | None = None
        self._renewed = 0.0
        self._lock = threading.Lock()

    def try_acquire(self) -> bool:
        asked = _now()
        found = self._objects.read_versioned(self._path)
        if found is None:
            won = self._objects.create(self._path, self._body())
        else:
            won = self._is_over(*found) and self._objects.replace(self._path, self._body(), found[1])
        return won and self._own(asked)

    def is_free(self) -> bool:
        """Tell whether nobody alive holds the lease, without taking it."""
        found = self._objects.read_versioned(self._path)
        return found is None or self._is_over(*found)

    def renew(self) -> None:
        """Write the lease anew. If that fails it is tried again next time; `check` knows how long it is good for."""
        with self._lock:
            if self._version is None:
                return
            asked = _now()
            self._serial += 1
            try:
                if not (self._objects.replace(self._path, self._body(), self._version) and self._own(asked)):
                    self._version = None
            except StorageError as error:
                _LOG.warning("the lease on gate '%s' could not be renewed: %s", self._name, error.message)

    def check(self) -> None:
        if not self._is_mine():
            message = f"the lease on gate '{self._name}' was lost"
            raise GateTimeoutError(message, gate=self._name, holder=self.holder(), hint="try again")

    def release(self) -> None:
        """Write the lease free, if it is still ours. A failure costs others a wait, and must not fail the write."""
        with self._lock:
            version, self._version = self._version, None
            if version is not None:
                try:
                    self._objects.replace(self._path, self._body(held=False), version)
                except StorageError as error:
                    _LOG.warning("the lease on gate '%s' could not be released: %s", self._name, error.message)

    def holder(self) -> str:
        found = self._objects.read_if_exists(self._path)
        return str(_read_body(found).get("holder", "somebody")) if found else "nobody"

    def _is_mine(self) -> bool:
        return self._version is not None and _now() - self._renewed < self._lifetime * _SAFE

    def _own(self, asked: float) -> bool:
        """Note that the lease is ours; it counts from when it was asked for, not from when the answer came."""
        found = self._objects.read_versioned(self._path)
        if found is None or found[0] != self._body():
            return False
        self._version, self._renewed = found[1], asked
        return True

    def _is_over(self, body: bytes, version: Version) -> bool:
        """A lease is over when it was released, or has looked the same for its lifetime since we first saw it so."""
        if _read_body(body).get("held") is False:
            return True
        now = _now()
        if self._seen.get(self._path, (None, now))[0] != version:
            self._seen[self._path] = (version, now)
        return now - self._seen[self._path][1] > self._lifetime

    def _body(self, *, held: bool = True) -> bytes:
        who = f"{_me()}, thread {threading.get_ident()}"
        return json.dumps({"holder": who, "token": self._token, "serial": self._serial, "held": held}).encode()


def _read_body(body: bytes) -> dict[str, object]:
    """What a lease says; something that is none counts as held, until it has not changed for a lifetime."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {}


def _now() -> float:
    """A clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
