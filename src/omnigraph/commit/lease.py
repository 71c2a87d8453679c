"""A lease: an object that makes its holder the only writer of something, as long as it is renewed.

The object is created if absent, then renewed and released by compare-and-swap. A process that sees it unchanged for its
whole lifetime, by its own clock, may take it over; clocks of two machines are never compared. Those who have waited for
a while stand in a line, which is a part of the object: a lease that is released belongs to the first of them.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress

from omnigraph.errors import GateTimeoutError, StorageDeniedError, StorageError, StorageFullError
from omnigraph.storage.objects import ObjectStore, Version

_SAFE = 0.8  # share of the lifetime in which the holder relies on it; the rest is a margin before takeover
_RELEASES = 3  # attempts
_RENEWALS = 3
IN_LINE_AFTER = 5.0  # seconds of waiting; standing in line costs the waiter a request, and the holder two
_LOG = logging.getLogger(__name__)


class Lease:
    """One lease. Releasing it writes it free; its object is never deleted, so it cannot be deleted by mistake."""

    def __init__(
        self,
        objects: ObjectStore,
        name: str,
        path: str,
        lifetime: float,
        seen: dict[str, tuple[object, float]],
        *,
        released: dict[str, Version],
    ) -> None:
        self.name = name
        self.was_renewed = False  # by another holder, while we watched
        self.is_next = False  # in line
        self._objects = objects
        self._path = path
        self._lifetime = lifetime
        self._seen = seen
        self._released = released
        self._looked: tuple[object, object] | None = None
        self._since: float | None = None  # when we began to wait
        self._line: list[str] = []  # the tokens of those who wait, while the lease is ours
        # By token and not by process: two threads of one process are two holders.
        self._token = str(uuid.uuid4())
        self._serial = 0
        self._version: Version | None = None
        self._renewed = 0.0
        self._failure: StorageError | None = None
        self._lock = threading.Lock()

    def try_acquire(self, *, stands_in_line: bool = False) -> bool:
        """Take the lease if no other process holds it, or waits for it in front of us."""
        # Most often no other process has taken it since we released it: then one request is enough.
        free = self._released.pop(self._path, None)
        if free is not None and self._write(free):
            return True
        # Another process took it since, and may have released it: a caller that does not wait must not find it held.
        found = self._objects.read_versioned(self._path)
        if found is None:
            return self._write(None)
        if self._is_ours(found[0]) or self._is_over(*found):
            self._line = [one for one in self._left_in_line(found[0]) if one != self._token]
            return self._write(found[1])
        if stands_in_line:
            self._stand_in_line(*found)
        return False

    def is_free(self) -> bool:
        """Return whether no live process holds the lease, without taking it."""
        found = self._objects.read_versioned(self._path)
        return found is None or self._is_over(*found)

    def renew(self) -> None:
        """Rewrite the lease to extend it, unless it has expired: others may have seen it dead and taken over.

        A failed attempt is repeated at once, because another process may just have stood in line, and then at the next
        interval; `check` knows how long the lease is good for.
        """
        with self._lock, suppress(StorageError):
            for _ in range(_RENEWALS):
                if not self._is_mine() or self._write(self._version):
                    return

    def check(self) -> None:
        if not self._is_mine():
            message = f"the lease on gate '{self.name}' was lost"
            raise GateTimeoutError(message, gate=self.name, holder=self.holder(), waited=0.0, hint="try again")

    def release(self) -> None:
        """Write the lease free, if it is still ours. A failure only makes others wait; it must not fail the write."""
        with self._lock:
            # First of all: a renewal that waits for the lock must not write the lease held again after it was released.
            version, self._version = self._version, None
            failures = 0
            while version is not None and failures < _RELEASES:
                try:
                    free = self._objects.replace(self._path, self._body(held=False), version)
                    if free is not None:
                        self._note_released(free)
                        return
                    version = self._still_held()
                except StorageError as error:
                    failures += 1
                    _LOG.warning("the lease on gate '%s' could not be released: %s", self.name, error.message)

    def _note_released(self, free: Version) -> None:
        if not self._line:  # otherwise it belongs to the first in line
            self._released[self._path] = free

    def _still_held(self) -> Version | None:
        """Return the version of the lease if it is ours still, and only another process has stood in line."""
        found = self._objects.read_versioned(self._path)
        if found is None or not self._is_ours(found[0]) or _read_body(found[0]).get("held") is False:
            return None
        self._line = _line(_read_body(found[0]))
        return found[1]

    # The line

    def _stand_in_line(self, body: bytes, version: Version) -> None:
        """Put ourselves at the end of the line, once we have waited long enough. If that fails, the next look does it.

        It changes nothing else, above all not by whom the lease is held and whether it was renewed.
        """
        content = _read_body(body)
        line = _line(content)
        self.is_next = line[:1] == [self._token]
        self._since = now() if self._since is None else self._since
        if content and self._token not in line and now() - self._since >= IN_LINE_AFTER:
            with suppress(StorageError):
                self._objects.replace(self._path, _with_line(content, [*line, self._token]), version)

    def withdraw(self) -> None:
        """Leave the line. A failure only makes others wait for a lifetime when our turn comes."""
        for _ in range(_RELEASES if self._since is not None else 0):
            with suppress(StorageError):
                found = self._objects.read_versioned(self._path)
                content = _read_body(found[0]) if found else {}
                line = _line(content)
                if found is None or self._token not in line:
                    return
                line.remove(self._token)
                if self._objects.replace(self._path, _with_line(content, line), found[1]) is not None:
                    return

    def _left_in_line(self, body: bytes) -> list[str]:
        """Return who still waits when we take the lease: if it was free and not for us, the first in line is dead."""
        content = _read_body(body)
        line = _line(content)
        return line[1:] if content.get("held") is False else line

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
        content = _read_body(found[0])
        self._version, self._line = found[1], _line(content)  # another process may have stood in line since
        if _state(content) != _state(_read_body(body)):
            return False
        self._renewed = asked
        return True

    def _is_over(self, body: bytes, version: Version) -> bool:
        """Return whether the lease was released, or has been unchanged for its lifetime since we first saw it so.

        A lease that was released to another process in line is as good as held, for as long.
        """
        content, at = _read_body(body), now()
        if content.get("held") is False and _line(content)[:1] in ([], [self._token]):
            return True
        state = _state(content) if content else version
        looked, self._looked = self._looked, (content.get("token"), state)
        self.was_renewed = looked is not None and looked[0] == self._looked[0] and looked[1] != state
        seen, since = self._seen.get(self._path, (None, at))
        if seen != state:
            self._seen[self._path] = (state, at)
            return False
        return at - since > self._lifetime

    def _body(self, *, held: bool = True) -> bytes:
        who = f"{me()}, thread {threading.get_ident()}"
        content = {"holder": who, "token": self._token, "serial": self._serial, "held": held}
        return _with_line(content, self._line)


def _with_line(content: Mapping[str, object], line: list[str]) -> bytes:
    rest = {name: value for name, value in content.items() if name != "line"}
    return json.dumps({**rest, "line": line} if line else rest).encode()


def _line(content: Mapping[str, object]) -> list[str]:
    """Return who stands in line for a lease, the first one first."""
    found = content.get("line")
    return [str(one) for one in found] if isinstance(found, list) else []


def _state(content: Mapping[str, object]) -> object:
    """Return what changes when a lease is taken, renewed or released, and not when another process stands in line."""
    first = _line(content)[:1] if content.get("held") is False else []
    return content.get("token"), content.get("serial"), content.get("held"), *first


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
