"""The files that a version of a table consists of, and whether they are there."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import lance

from omnigraph.api.results import TableVersion
from omnigraph.core.location import Location
from omnigraph.errors import StorageError
from omnigraph.storage import bases
from omnigraph.storage.lance_errors import Failure, classify, lance_call
from omnigraph.storage.objects import Listed, ObjectStore, disk_call

_INDICES, _OF_LANCE = "/_indices/", "__lance"
MARK, _ARROW = b"LANC", b"ARROW1"  # what complete files end in


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a version names: its size if the manifest knows it, and how a complete one ends.

    `base` numbers the dataset that holds it, if another does. A segment of an index is a directory: `index` is the name
    of the index, and `size` the sum of its files.
    """

    name: str
    size: int | None
    end: bytes = b""
    base: int | None = None
    index: str | None = None


def files_of(dataset: lance.LanceDataset) -> Iterator[NamedFile]:
    """Yield the files that a version names, below its directory. Reads only its manifest."""
    for fragment in (found.metadata for found in dataset.get_fragments()):
        deleted = fragment.deletion_file
        if deleted is not None:
            name = deleted.path(fragment.id)
            yield NamedFile(name, None, _ARROW if name.endswith(".arrow") else b"", deleted.base_id)
        # Omnigraph writes no overlays; those of another program are files like others.
        for file in (*fragment.files, *(one.data_file for one in fragment.overlays or ())):
            yield NamedFile(f"data/{file.path}", file.file_size_bytes or None, MARK, file.base_id)
    for index in dataset.describe_indices():
        for segment in index.segments:
            yield NamedFile(f"_indices/{segment.uuid}", segment.size_bytes, b"", segment.base_id, index.name)


def ends_in(path: Path, end: bytes) -> bool:
    """Return whether a file ends in some bytes. A file system may keep the length of a torn file, filled with zeros."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(length - len(end), 0))
        return length > 0 and file.read() == end if end else length > 0


def directory_of(path: str, fork: str | None) -> str:
    """Return the directory of a table or of a fork, below the root of the graph."""
    return "/".join((path, *(("tree", fork) if fork else ())))


def version_file(table: TableVersion) -> str:
    """Return the name of the file that describes a version, below the root of the graph."""
    return f"{directory_of(table.path, table.branch)}/{bases.version_file(table.version)}"


def files_below_root(dataset: lance.LanceDataset, table: TableVersion) -> list[NamedFile]:
    """List the files that a version names, each with its name below the root of the graph."""
    with lance_call(dataset.uri, "read"):
        return list(_below_root(dataset, table))


def _below_root(dataset: lance.LanceDataset, table: TableVersion) -> Iterator[NamedFile]:
    # By the names of bases and not by their addresses: a moved graph has others than those that Lance has written down.
    shared = {number: directory_of(table.path, base.name) for number, base in dataset.base_paths().items()}
    own = directory_of(table.path, table.branch)
    for file in files_of(dataset):
        directory = own if file.base is None else shared[file.base]
        yield replace(file, name=f"{directory}/{file.name}")


@dataclass(frozen=True, slots=True)
class Listing:
    """The objects below a table with their sizes, for one request per page."""

    location: Location
    objects: tuple[Listed, ...]
    sizes: dict[str, int]
    indices: dict[str, int]

    @classmethod
    def below(cls, location: Location, objects: ObjectStore, path: str) -> Listing:
        found = tuple(objects.list_below(path))
        indices: dict[str, int] = defaultdict(int)
        for one in found:
            before, _, inside = one.name.rpartition(_INDICES)
            if before:
                indices[f"{before}{_INDICES}{inside.partition('/')[0]}"] += one.size
        return cls(location, found, {one.name: one.size for one in found}, dict(indices))

    def version_file(self, table: TableVersion) -> str:
        """Return the name of the file that describes a version. Early Lance releases number them upwards."""
        old = f"{directory_of(table.path, table.branch)}/_versions/{table.version}.manifest"
        return old if old in self.sizes else version_file(table)

    def fault_of(self, file: NamedFile) -> str | None:
        """Return what is wrong with a file that a version names; None if it is as it was written."""
        size = (self.sizes if file.index is None else self.indices).get(file.name)
        # What Lance keeps for itself, as the old numbers of rewritten fragments, may lie inside the manifest.
        if size is None and file.index is not None and (file.size == 0 or file.index.startswith(_OF_LANCE)):
            return None
        if size is None:
            return "it is missing"
        if file.size is not None and size != file.size:
            return f"it has {size} bytes instead of {file.size}"
        # A request for each file would be too many on an object store, which does not tear files either.
        is_torn = size == 0 or (self.location.is_local and bool(file.end) and not self._is_ended(file))
        return "it was not written to its end" if is_torn else None

    def _is_ended(self, file: NamedFile) -> bool:
        path = self.location.child(file.name)
        try:
            with disk_call("read", path):
                return ends_in(Path(path), file.end)
        except StorageError as error:
            if classify(error) is not Failure.NOT_FOUND:
                raise
            return False  # removed since it was listed
