"""The version files of a local dataset: which ones there are, and which is the newest.

A directory may have thousands of them, and a commit asks six times for the newest. Lance leaves a hint beside them:
the number of the version that it made last. So a look reads the hint and probes a few names, however many there are.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from omnigraph.storage.bases import NEWEST, file_name
from omnigraph.storage.objects import disk_call

HINT = "latest_version_hint.json"
LISTED_FOR = 60.0  # seconds for which a listing lets the hint be used
_MOST_LISTED = 4096
_LONGEST_HINT = 4096  # bytes; one that is longer is not read whole, and so not used
_MANIFEST = ".manifest"
_DIGITS = 20

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Listed:
    """The last listing of a directory: when it was made, of which directory, and the newest version seen since."""

    at: float
    inode: int
    newest: int


_listed: dict[str, _Listed] = {}


def disk_look(look: Callable[Concatenate[str, _P], _T]) -> Callable[Concatenate[str, _P], _T]:
    """Let a function that looks at a local dataset raise errors of ours if the disk fails."""

    @wraps(look)
    def typed(uri: str, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        with disk_call("read", uri):
            return look(uri, *arguments, **options)

    return typed


def version_number(name: str) -> int | None:
    """Return the version that a file below `_versions` describes; None if it describes none."""
    number = name.removesuffix(_MANIFEST)
    if number == name or not number.isdecimal():
        return None
    return NEWEST - int(number) if len(number) == _DIGITS else int(number)


@disk_look
def version_files(uri: str) -> list[tuple[int, Path]]:
    """List the version files of a local dataset, newest first."""
    directory = Path(uri) / "_versions"
    found = ((version_number(name), directory / name) for name in _names(directory))
    return sorted(((number, path) for number, path in found if number is not None), reverse=True)


@disk_look
def newest_files(uri: str, count: int) -> list[tuple[int, str]]:
    """Return the newest one or two versions of a local dataset, torn or not, and their files, newest first."""
    # A commit does this six times. So files are texts here: a `Path` takes longer to make than to look at.
    directory = f"{uri}/_versions"
    return _hinted(directory, count) or _from_listing(directory, count)


def _hinted(directory: str, count: int) -> list[tuple[int, str]]:
    """Return the newest versions by the hint; nothing if only a listing can answer.

    Every commit of Lance writes the hint, after the version. It is behind if its writer died in between: then the next
    version exists. It misleads only if that one was removed too. So it is not used without a listing of this minute,
    nor if it is behind what was seen since.
    """
    known = _listed.get(directory)
    if known is None or time.monotonic() - known.at > LISTED_FOR or known.inode != _inode(directory):
        return []
    number = _read_hint(directory)
    if number is None or number < known.newest or os.path.lexists(f"{directory}/{file_name(number + 1)}"):
        return []
    found = [(one, path) for one in range(number, number - count, -1) if (path := _file_of(directory, one))]
    # Lance names all versions of a dataset alike. So only one that early releases made can have a next one of theirs.
    if found and not found[0][1].endswith(file_name(number)) and _file_of(directory, number + 1):
        return []
    if len(found) < count:
        return []
    _listed[directory] = _Listed(known.at, known.inode, number)
    return found


def _read_hint(directory: str) -> int | None:
    try:
        file = os.open(f"{directory}/{HINT}", os.O_RDONLY | os.O_CLOEXEC)  # less to do than for a file object
        try:
            number = json.loads(os.read(file, _LONGEST_HINT))["version"]
        finally:
            os.close(file)
    except (OSError, ValueError, TypeError, KeyError):
        return None  # of an early release, or torn: a listing raises what is wrong with the directory
    return number if isinstance(number, int) else None


def _file_of(directory: str, version: int) -> str | None:
    """Return the file of a version; None if there is none. Early Lance releases name it by its number."""
    path = f"{directory}/{file_name(version)}"
    if os.path.lexists(path):
        return path
    path = f"{directory}/{version}{_MANIFEST}"
    return path if os.path.lexists(path) else None


def _from_listing(directory: str, count: int) -> list[tuple[int, str]]:
    # Before the listing: a directory that takes its place meanwhile is then known by another number.
    at, inode = time.monotonic(), _inode(directory)
    names = _names(Path(directory))
    # By name the newest comes first. Names of early Lance releases are shorter, and are looked at one by one.
    first = [min(names)] if count == 1 and names else sorted(names)[:count]
    found = [(version_number(one), f"{directory}/{one}") for one in first if len(one) == _DIGITS + len(_MANIFEST)]
    newest = [(number, path) for number, path in found if number is not None]
    if len(newest) < count:
        every = version_files(directory.removesuffix("/_versions"))
        newest = [(number, str(path)) for number, path in every[:count]]
    if newest and inode is not None:
        if len(_listed) >= _MOST_LISTED:
            _listed.clear()
        _listed[directory] = _Listed(at, inode, newest[0][0])
    return newest


def _inode(directory: str) -> int | None:
    try:
        return os.stat(directory).st_ino  # noqa: PTH116 - as above
    except OSError:
        return None  # the listing raises it


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - the quickest way to the names of thousands
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []  # opening the dataset raises the error that says why
