"""Torn versions: the newest versions of a dataset whose files did not reach the disk before a power cut.

Only bytes decide whether a version is torn, never a failed read: a file that cannot be read now may be fine later.
Lance gives a version file its name when it is complete, so a torn one cannot belong to a living writer.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import lance

from omnigraph.errors import CorruptGraphError
from omnigraph.storage.files import MARK, NamedFile, ends_in, files_of
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.observe import durable_write
from omnigraph.storage.versions import disk_look, version_files

SUFFIX = ".torn"
MOST_VERSIONS = 64  # more than that is no power cut, but a disk that loses files
_LOG = logging.getLogger(__name__)


@disk_look
def torn_versions(uri: str) -> list[tuple[int, Path]]:
    """Return the torn versions of a local dataset, newest first, up to the first that is whole."""
    found: list[tuple[int, Path]] = []
    for number, path in version_files(uri):
        if is_whole(uri, number, path):
            return found
        if len(found) == MOST_VERSIONS:
            message = f"the newest {MOST_VERSIONS} versions of {uri} are damaged"
            raise CorruptGraphError(message, path=uri, hint="check the disk, and restore the graph from a backup")
        found.append((number, path))
    return found


@disk_look
def newest_whole(uri: str) -> tuple[int, Path] | None:
    """Return the newest version of a local dataset that is whole; None if there is none."""
    torn = torn_versions(uri)
    return next((found for found in version_files(uri) if found not in torn), None)


@disk_look
def is_whole(uri: str, version: int, path: Path) -> bool:
    """Return whether a version file and the data and deletion files that it names are complete."""
    return ends_in(path, MARK) and not damaged_files(uri, version)


@disk_look
def damaged_files(uri: str, version: int) -> list[str]:
    """Name the data, deletion and index files of a local version that are missing, or shorter than written."""
    with lance_call(uri, "open"):
        # A handle of its own, without a session: a cached answer would hide what is on the disk now.
        named = list(files_of(lance.dataset(uri, version=version)))
    # A fork shares the files of its base, which is looked at itself.
    own = [(Path(uri) / file.name, file) for file in named if file.base is None]
    return [str(path) for path, file in own if not _is_complete(path, file)]


def _is_complete(path: Path, file: NamedFile) -> bool:
    if file.index is not None:
        # Indices of early releases have no size: nothing proves that one of them is torn.
        return file.size in (None, _size_below(path))
    try:
        length = path.stat().st_size
    except FileNotFoundError:
        return False
    return length > 0 and length == (file.size or length) and ends_in(path, file.end)


def _size_below(directory: Path) -> int:
    """Add up the files below a directory. Unlike `rglob`, a directory that may not be read is an error, not empty."""
    try:
        with os.scandir(directory) as entries:
            return sum(_size_below(Path(one)) if one.is_dir() else one.stat().st_size for one in entries)
    except FileNotFoundError:
        return 0


@disk_look
def torn_past(uri: str, pin: int, is_ours: Callable[[int], bool]) -> list[tuple[int, Path]]:
    """Return the versions of a local dataset past a pin from the first torn one on, newest first.

    A write may move a table several times before anything is synced, so a whole version may follow one that is torn or
    lost. It is no state that the write could go on from. One that another program made is not ours to set aside.
    """
    known = dict(version_files(uri))
    past = {number: path for number, path in known.items() if number > pin}
    # The versions of a new table may begin anywhere: then none is missing between its pin and the first.
    numbers = range(pin + 1 if pin in known else min(past, default=0), max(past, default=pin) + 1)
    whole = {number for number, path in past.items() if is_whole(uri, number, path)}
    first = next((one for one in numbers if one not in whole), None)
    found = sorted(((number, path) for number, path in past.items() if first and number >= first), reverse=True)
    if all(is_ours(number) for number, _ in found if number in whole):
        return found
    return [one for one in torn_versions(uri) if one[0] > pin]


@disk_look
def set_aside_versions(uri: str, pin: int | None = None, is_ours: Callable[[int], bool] = lambda _: False) -> list[int]:
    """Rename the newest versions of a local dataset that are torn, past a pin those of ours that follow them too.

    Return their numbers. The caller holds the gate. Lance then continues behind the newest version that is left. The
    files stay until a cleanup removes them as orphans.
    """
    torn = torn_versions(uri) if pin is None else torn_past(uri, pin, is_ours)
    for number, path in torn:
        durable_write("set aside", str(path))
        path.rename(f"{path}{SUFFIX}")
        _LOG.warning("version %d of %s was torn by a crash, and is set aside as %s%s", number, uri, path.name, SUFFIX)
    return [number for number, _ in torn]


@disk_look
def has_torn_refs(uri: str) -> bool:
    """Return whether a file of a branch or a tag is empty, or names a branch without a version: for a few listings."""
    return any(path.stat().st_size == 0 or _is_bare(uri, path) for path in _refs(uri))


def _refs(uri: str) -> list[Path]:
    return sorted((Path(uri) / "_refs").rglob("*.json"))


def _is_bare(uri: str, ref: Path) -> bool:
    """Return whether a branch has versions, and the content of none reached the disk: it was being created.

    One whose version files are gone has lost more than a power cut takes: that is damage, and must be reported.
    """
    if ref.parent.name != "branches":
        return False
    versions = version_files(f"{uri}/tree/{unquote(ref.stem)}")
    return bool(versions) and all(path.stat().st_size == 0 for _, path in versions)


@disk_look
def set_aside_refs(uri: str) -> list[str]:
    """Rename the files of branches and tags of a local dataset that were torn; return their names."""
    torn = [path for path in _refs(uri) if not _is_json(path) or _is_bare(uri, path)]
    for path in torn:
        durable_write("set aside", str(path))
        path.rename(f"{path}{SUFFIX}")
        _LOG.warning("%s was torn by a crash, and is set aside as %s%s", path, path.name, SUFFIX)
    return [path.name for path in torn]


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True
