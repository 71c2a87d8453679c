"""A lease: an object that makes its holder the only writer of something, as long as it is renewed.

The object is created if absent, then renewed and released by compare-and-swap. A process that sees it unchanged for its
whole lifetime, by its own clock, may take it over; clocks of two machines are never compared.
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

_SAFE = 0.8  # share of the lifetime in which the holder relies on it; the rest is a margin before takeover
_RELEASES = 3  # attempts
_LOG = logging.getLogger(__name__)


class Lease:
    """One lease. Releasing it writes it free; its object is never deleted, so it cannot be deleted by mistake."""

    def __init__(
        self,
        objects: ObjectStore,
        name: str,
        path: str,
        lifetime: float,
        seen: dict[str, tuple[Version, float]],
        *,
        released: dict[str, Version],
    ) -> None:
        self.name = name
        self.was_renewed = False  # by another holder, while we watched
        self._objects = objects
        self._path = path
        self._lifetime = lifetime
        self._seen = seen
        self._released = released
        self._looked: tuple[object, Version] | None = None
        # By token and not by process: two threads of one process are two holders.
        self._token = str(uuid.uuid4())
        self._serial = 0
        self._version: Version | None = None
        self._renewed = 0.0
        self._failure: StorageError | None = None
        self._lock = threading.Lock()

    def try_acquire(self) -> bool:
        # Most often no other process has taken it since we released it: then one request is enough.
        free = self._released.pop(self._path, None)
        if free is not None and self._write(free):
            return True
        # Another process took it since, and may have released it: a caller that does not wait must not find it held.
        found = self._objects.read_versioned(self._path)
        if found is None:
            return self._write(None)
        return (self._is_ours(found[0]) or self._is_over(*found)) and self._write(found[1])

    def is_free(self) -> bool:
        """Return whether no live process holds the lease, without taking it."""
        found = self._objects.read_versioned(self._path)
        return found is None or self._is_over(*found)

    def renew(self) -> None:
        """Rewrite the lease to extend it, unless it has expired: others may have seen it dead and taken over.

        A failed attempt is repeated at the next interval; `check` knows how long the lease is good for.
        """
        with self._lock, suppress(StorageError):
            if self._is_mine():
                self._write(self._version)

    def check(self) -> None:
        if not self._is_mine():
            message = f"the lease on gate '{self.name}' was lost"
            raise GateTimeoutError(message, gate=self.name, holder=self.holder(), waited=0.0, hint="try again")

    def release(self) -> None:
        """Write the lease free, if it is still ours. A failure only makes others wait; it must not fail the write."""
        with self._lock:
            # First of all: a renewal that waits for the lock must not write the lease held again after it was released.
            version, self._version = self._version, None
            if version is None:
                return
            for _ in range(_RELEASES):
                try:
                    free = self._objects.replace(self._path, self._body(held=False), version)
                except StorageError as error:
                    _LOG.warning("the lease on gate '%s' could not be released: %s", self.name, error.message)
                else:
                    if free is not None:
                        self._released[self._path] = free
                    return

    def holder(self) -> str:
        found = self._objects.read_if_exists(self._path)
        return str(_read_body(found).get("holder", "another process")) if found else "no process"

    def in_the_way(self) -> str:
        """Name the holder; if the storage failed instead, raise its error."""
        if self._failure:
            raise self._failure
        return self.holder()

    def _is_mine(self) -> bool:
        return self._version is not None and now() - self._renewed < self._lifetime * _SAFE

    def _is_ours(self, body: bytes) -> bool:
        return _read_body(body).get("token") == self._token

    def _write(self, expected: Version | None) -> bool:
        """Write the lease as ours. Its lifetime counts from the request, not from the answer.

        Every attempt writes different content: S3 derives e-tags from content, so an equal body would not look renewed.
        """
        # The request may take effect late, but never before this moment: counting from here is on the safe side.
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
            # A permanent failure is raised at once; a transient one is looked up by the caller, because it may have
            # worked.
            raise
        except StorageError as error:
            _LOG.warning("the lease on gate '%s' could not be written: %s", self.name, error.message)
            self._failure = error
            return None

    def _look(self, body: bytes, asked: float) -> bool:
        """Read the lease after a write failed or lost: the object found may be our own, with its answer lost."""
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
        """Return whether the lease was released, or has been unchanged for its lifetime since we first saw it so."""
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
    """Decode a lease. A body that is no lease counts as held until it has not changed for a lifetime."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {}


def me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def now() -> float:
    """Return a clock that continues while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
