"""Durability on a local disk: bring what was written onto the medium before something relies on it.

Lance never syncs a file. Without a barrier, a power cut can leave empty files where the newest versions were.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from omnigraph.core.location import Location
from omnigraph.errors import OptionError
from omnigraph.storage.objects import storage_error
from omnigraph.storage.observe import durable_write

ENVIRONMENT = "OMNIGRAPH_DURABILITY"


class Durability(StrEnum):
    """What a commit waits for before it is acknowledged."""

    FULL = "full"  # the whole file system is synced
    FILES = "files"  # each new file is synced: for disks that other programs keep busy, or that several machines share
    OFF = "off"  # nothing: the last commits may be lost in a power cut

    @classmethod
    def of(cls, given: str | None) -> Durability:
        """Return what was given, else what the environment says, else `full`."""
        text = given or os.environ.get(ENVIRONMENT, "").strip() or cls.FULL
        if text not in list(cls):
            message = f"durability cannot be {text!r:.40}"
            raise OptionError(message, option="durability", hint=f"use one of {', '.join(cls)}")
        return cls(text)


class Medium:
    """The disk below the root of one graph. Object stores acknowledge what is durable, so there it does nothing."""

    def __init__(self, location: Location, durability: Durability) -> None:
        self._root = Path(location.uri) if location.is_local else None
        self.durability = durability if self._root else Durability.OFF
        # Names of synced files. A file of a table is never rewritten under its name, so one sync each is enough.
        self._synced: set[str] = set()

    def sync(self, *paths: str) -> None:
        """Return when everything written below the root so far is on the medium.

        `paths` name the directories below the root that were written to; only `files` needs them.
        """
        if self._root is None or self.durability is Durability.OFF:
            return
        durable_write("sync", str(self._root))
        try:
            # One call for all files of a commit: an fsync of each would cost as many waits for the disk.
            if self.durability is Durability.FILES or not _sync_file_system(self._root):
                self._sync_files(paths)
        except OSError as error:
            raise storage_error(error, "sync", str(self._root)) from error

    def _sync_files(self, paths: Iterable[str]) -> None:
        assert self._root
        directories = {self._root}
        for path in paths:
            for directory, files in _tree(self._root / path):
                directories.add(directory)
                new = [name for name in files if f"{directory}/{name}" not in self._synced]
                for name in new:
                    _sync_one(directory / name)
                # Control files are rewritten in place, so they are synced every time.
                self._synced.update(f"{directory}/{name}" for name in new if not name.endswith(".json"))
        # A directory after its files, and the ones above it too: each holds the names of the next.
        above = {parent for one in directories for parent in one.parents if parent.is_relative_to(self._root)}
        for directory in sorted(directories | above, reverse=True):
            _sync_one(directory)


def sync_file(location: Location, name: str) -> None:
    """Bring one file onto the medium, whatever the durability of a commit is."""
    if not location.is_local:
        return
    path, root = Path(location.child(name)), Path(location.uri)
    durable_write("sync file", str(path))
    try:
        for one in (path, path.parent, root):
            _sync_one(one)
    except OSError as error:
        raise storage_error(error, "sync", str(path)) from error


def _tree(top: Path) -> Iterator[tuple[Path, list[str]]]:
    for directory, inside, files in os.walk(top):
        if "tree" in inside and Path(directory) == top:
            inside.remove("tree")  # forks are named on their own: a commit writes to one of them
        yield Path(directory), files


def _sync_one(path: Path) -> None:
    try:
        opened = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # removed since it was listed: a temporary file, or one that a cleanup took
        return
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _sync_file_system(root: Path) -> bool:
    """Sync the file system that holds the root; return False if the platform cannot."""
    # By way of ctypes: the standard library has `os.sync`, which waits for every disk and reports no errors.
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        return False
    opened = os.open(root, os.O_RDONLY)
    try:
        # The kernel reports every write that failed since the last call, also those of pages already dropped.
        if call(opened) != 0:
            number = ctypes.get_errno()
            raise OSError(number or errno.EIO, os.strerror(number or errno.EIO))
    finally:
        os.close(opened)
    return True
