"""Locks on files, and the queue in front of one: threads and processes of a machine get their turn in order.

The kernel frees a lock when its process dies, so nothing here needs to be cleaned up by a person.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# The descriptors of lock files that are open in this process. A forked child inherits the locks with them, and would
# keep them when its parent dies.
_open_locks: set[int] = set()
_POLL = 0.002


def _close_inherited() -> None:
    while _open_locks:
        os.close(_open_locks.pop())


os.register_at_fork(after_in_child=_close_inherited)


def open_lock(path: str) -> int:
    """Open a file to lock. `close_lock` must follow."""
    # Closed on exec: a program that this one starts would keep the lock, and outlive it.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o666)
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, flags, 0o666)
    _open_locks.add(file)
    return file


def close_lock(file: int) -> None:
    """Release the lock of a file, and close it."""
    if file in _open_locks:  # otherwise this is a forked child, which has closed it
        _open_locks.discard(file)
        with suppress(OSError):  # closing alone would leave a lock that a forked child inherited
            fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


@contextmanager
def lock_file(path: str) -> Iterator[int]:
    """Open a file to lock. At the end its lock is released, and it is closed."""
    file = open_lock(path)
    try:
        yield file
    finally:
        close_lock(file)


def try_lock(file: int, *, shared: bool = False) -> bool:
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        # Anything else, such as a file system without locks, must not look like a busy lock: the caller would wait for
        # ever.
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


class Queue:
    """The threads and processes that wait for one lock. Each has a ticket: a locked file, named by when it came.

    The queue only says who may try next. What keeps two holders apart is the lock itself.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = str(directory)

    def is_empty(self) -> bool:
        return not self.ahead_of(None)

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """Stand in the queue for the length of a block."""
        name = f"{time.time_ns():020d}.{uuid.uuid4().hex}"
        unnamed, named = Path(self._directory, f".{name}"), Path(self._directory, name)
        with lock_file(str(unnamed)) as file:
            try_lock(file)
            # Locked before it has its name: a ticket that others see without a lock is that of a dead process.
            unnamed.rename(named)
            try:
                yield Ticket(self, name)
            finally:
                named.unlink(missing_ok=True)

    def ahead_of(self, ticket: str | None) -> int:
        """Return how many came before a ticket, or before a newcomer; 0 if all of them are gone."""
        before = sorted(name for name in self._names() if ticket is None or name < ticket)
        # From behind: as long as one living ticket is before this one, it does not matter how many are.
        while before and not self._is_alive(before[-1]):
            before.pop()
        return len(before)

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._directory) as found:
                return [one.name for one in found if not one.name.startswith(".")]
        except FileNotFoundError:  # no one has ever waited here
            return []

    def _is_alive(self, name: str) -> bool:
        """Return whether the process of a ticket lives; remove the ticket if not."""
        path = Path(self._directory, name)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # its turn has come, or it cannot be looked at: then it must not keep others waiting
            return False
        try:
            if not try_lock(file, shared=True):
                return True
            with suppress(OSError):
                path.unlink()
            return False
        finally:
            os.close(file)


class Ticket:
    """A place in a queue."""

    def __init__(self, queue: Queue, name: str) -> None:
        self._queue = queue
        self._name = name
        self._ahead = 0

    def is_first(self) -> bool:
        self._ahead = self._queue.ahead_of(self._name)
        return not self._ahead

    def pause(self, _: float) -> float:
        """Return the longest pause between two looks: the next in line looks often, the others have time."""
        return _POLL * (1 + self._ahead)
