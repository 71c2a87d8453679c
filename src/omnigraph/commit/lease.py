"""A lease: the right to be the only writer of something, kept as an object that its holder renews.

The object is made with create-if-absent, then renewed and released with compare-and-swap. Somebody who sees it
unchanged for its whole lifetime, by his own clock, may take it over; no two clocks are ever compared.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress

from omnigraph.errors import GateTimeoutError, StorageDeniedError, StorageError, StorageFullError
from omnigraph.storage.objects import ObjectStore, Version

_SAFE = 0.8  # the part of a lease's lifetime in which its holder may rely on it
_RELEASES = 3  # attempts
_LOG = logging.getLogger(__name__)


class Lease:
    """One lease. Its object is never deleted: it is written free, so that nobody else's can be removed by mistake."""

    def __init__(
        self, objects: ObjectStore, name: str, path: str, lifetime: float, seen: dict[str, tuple[Version, float]]
    ) -> None:
        self.name = name
        self.was_renewed = False  # by somebody else, while we looked
        self._objects = objects
        self._path = path
        self._lifetime = lifetime
        self._seen = seen
        self._looked: tuple[object, Version] | None = None
        self._token = str(uuid.uuid4())
        self._serial = 0
        self._version: Version | None = None
        self._renewed = 0.0
        self._failure: StorageError | None = None
        self._lock = threading.Lock()

    def try_acquire(self) -> bool:
        found = self._objects.read_versioned(self._path)
        if found is None:
            return self._write(None)
        return (self._is_ours(found[0]) or self._is_over(*found)) and self._write(found[1])

    def is_free(self) -> bool:
        """Tell whether nobody alive holds the lease, without taking it."""
        found = self._objects.read_versioned(self._path)
        return found is None or self._is_over(*found)

    def renew(self) -> None:
        """Write the lease anew, unless it is over: it must not come back to life under those who found it dead.

        If that fails it is tried again next time; `check` knows how long the lease is good for.
        """
        with self._lock, suppress(StorageError):
            if self._is_mine():
                self._write(self._version)

    def check(self) -> None:
        if not self._is_mine():
            message = f"the lease on gate '{self.name}' was lost"
            raise GateTimeoutError(message, gate=self.name, holder=self.holder(), hint="try again")

    def release(self) -> None:
        """Write the lease free, if it is still ours. A failure costs others a wait, and must not fail the write."""
        with self._lock:
            version, self._version = self._version, None
            if version is None:
                return
            for _ in range(_RELEASES):
                try:
                    self._objects.replace(self._path, self._body(held=False), version)
                except StorageError as error:
                    _LOG.warning("the lease on gate '%s' could not be released: %s", self.name, error.message)
                else:
                    return

    def holder(self) -> str:
        found = self._objects.read_if_exists(self._path)
        return str(_read_body(found).get("holder", "somebody")) if found else "nobody"

    def in_the_way(self) -> str:
        """Say who holds the lease; if it is storage that is in the way, raise what it said."""
        if self._failure:
            raise self._failure
        return self.holder()

    def _is_mine(self) -> bool:
        return self._version is not None and now() - self._renewed < self._lifetime * _SAFE

    def _is_ours(self, body: bytes) -> bool:
        return _read_body(body).get("token") == self._token

    def _write(self, expected: Version | None) -> bool:
        """Write the lease as ours. It counts from when it was asked for, not from when the answer came.

        Every attempt writes something new: one that looked like the last would not be seen to renew it.
        """
        self._serial += 1
        asked, body = now(), self._body()
        version = self._put(body, expected)
        if version is None:
            return self._look(body, asked)
        self._version, self._renewed = version, asked
        return True

    def _put(self, body: bytes, expected: Version | None) -> Version | None:
        self._failure = None
        try:
            if expected is None:
                return self._objects.create(self._path, body)
            return self._objects.replace(self._path, body, expected)
        except (StorageDeniedError, StorageFullError):
            raise
        except StorageError as error:
            _LOG.warning("the lease on gate '%s' could not be written: %s", self.name, error.message)
            self._failure = error
            return None

    def _look(self, body: bytes, asked: float) -> bool:
        """Look what is there when a write failed, or found another first: that may have been ours, unanswered."""
        found = self._objects.read_versioned(self._path)
        if found is None or not self._is_ours(found[0]):
            self._version = None
            return False
        self._version = found[1]
        if found[0] != body:
            return False
        self._renewed = asked
        return True

    def _is_over(self, body: bytes, version: Version) -> bool:
        """A lease is over when it was released, or has looked the same for its lifetime since we first saw it so."""
        content, at = _read_body(body), now()
        if content.get("held") is False:
            return True
        looked, self._looked = self._looked, (content.get("token"), version)
        self.was_renewed = looked is not None and looked[0] == self._looked[0] and looked[1] != version
        seen, since = self._seen.get(self._path, (None, at))
        if seen != version:
            self._seen[self._path] = (version, at)
            return False
        return at - since > self._lifetime

    def _body(self, *, held: bool = True) -> bytes:
        who = f"{me()}, thread {threading.get_ident()}"
        return json.dumps({"holder": who, "token": self._token, "serial": self._serial, "held": held}).encode()


def _read_body(body: bytes) -> dict[str, object]:
    """What a lease says; something that is none counts as held, until it has not changed for a lifetime."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {}


def me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def now() -> float:
    """A clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
