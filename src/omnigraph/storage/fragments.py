"""What a version of a table is made of: its fragments, and where each of its rows comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.ipc
from lance.fragment import DataFile

from omnigraph.api.results import TableVersion
from omnigraph.errors import StorageError
from omnigraph.storage.lance_errors import Kind, classify, lance_call
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.reading import ADDRESS, OFFSET_BITS, TableReader

Addresses = np.ndarray[Any, Any]
ROW, WRITTEN = "_rowid", "_row_last_updated_at_version"
_ARRAY = "array"  # how lance calls a deletion file in Arrow's format


@dataclass(frozen=True, slots=True)
class Deletions:
    """The file that says which rows of a fragment are deleted; `base` numbers the dataset that has it, if another."""

    path: str
    is_plain: bool
    base: int | None


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of a version. Two with equal `files` hold the same rows, but for those that are deleted."""

    number: int
    files: tuple[object, ...]
    rows: int  # with those that are deleted
    deletions: Deletions | None
    is_traced: bool  # whether lance knows which row each was before a compaction, and when it was written


def fragments(tables: TableReader, table: TableVersion) -> list[Fragment]:
    """List the fragments of a version. This reads its manifest and no more."""
    dataset = tables.open(table)
    with lance_call(dataset.uri, "read"):
        return [_fragment(fragment.metadata) for fragment in dataset.get_fragments()]


def _fragment(found: lance.FragmentMetadata) -> Fragment:
    files = (*((path_of(file), tuple(file.fields)) for file in found.files), *map(repr, found.overlays or ()))
    deleted = found.deletion_file
    return Fragment(
        found.id,
        files,
        found.physical_rows,
        Deletions(deleted.path(found.id), deleted.file_type == _ARRAY, deleted.base_id) if deleted else None,
        found.row_id_meta is not None and found.last_updated_at_version_meta is not None,
    )


def path_of(file: DataFile) -> str:
    """Where a file is. Lance makes a class each time it is asked itself, which is felt with thousands of files."""
    return str(file._path)  # noqa: SLF001


def has_same_deletions(one: Fragment, other: Fragment) -> bool:
    """Tell whether the same rows of two fragments are deleted. Lance never gives two such files one name."""
    return (one.deletions and one.deletions.path) == (other.deletions and other.deletions.path)


def deleted_offsets(tables: TableReader, table: TableVersion, fragment: Fragment) -> Addresses:
    """Read which rows of a fragment are deleted, by their places in it, in order."""
    deletions = fragment.deletions
    if deletions is None:
        return np.empty(0, np.int64)
    if deletions.is_plain:
        branch = table.branch if deletions.base is None else _base_branch(tables, table, deletions.base)
        stored = ObjectStore(tables.location).read_if_exists(_in_table(table, branch, deletions.path))
        if stored is not None:
            offsets = pa.ipc.open_file(stored).read_all().column(0).to_numpy()
            return np.sort(offsets.astype(np.int64))
    return _missing_offsets(tables, table, fragment)


def _base_branch(tables: TableReader, table: TableVersion, base: int) -> str | None:
    dataset = tables.open(table)
    with lance_call(dataset.uri, "read"):
        name = dataset.base_paths()[base].name
    return None if name is None else str(name)


def _in_table(table: TableVersion, branch: str | None, name: str) -> str:
    return "/".join((table.path, *(("tree", branch) if branch else ()), name))


def _missing_offsets(tables: TableReader, table: TableVersion, fragment: Fragment) -> Addresses:
    """Lance writes many deletions in a form of its own; then the rows that are left tell which are not."""
    left = tables.scan_fragments(table, [fragment.number], [])[ADDRESS].to_numpy().astype(np.int64)
    offsets = left & ((1 << OFFSET_BITS) - 1)
    return np.setdiff1d(np.arange(fragment.rows), offsets, assume_unique=True)


def origins(tables: TableReader, table: TableVersion, chosen: Sequence[Fragment]) -> pa.Table:
    """Read of each row its address, the number lance knows it by, and the version that wrote it; none of its values."""
    return tables.scan_fragments(table, [fragment.number for fragment in chosen], [ROW, WRITTEN])


def common_version(tables: TableReader, one: TableVersion, other: TableVersion) -> int:
    """Find the last version that two versions of a table both come from; 0 if that cannot be told."""
    if one.path != other.path:
        return 0
    if one.branch == other.branch:
        return min(one.version, other.version)
    try:
        known = tables.branch_points(one)
    except StorageError as error:
        if classify(error) is not Kind.NOT_FOUND:  # how lance fails when a branch is deleted while it lists them
            raise
        return 0
    if any(table.branch is not None and table.branch not in known for table in (one, other)):
        return 0
    here, there = ([*known.get(table.branch or "", ()), (table.version, "")] for table in (one, other))
    return next((min(mine[0], its[0]) for mine, its in zip(here, there, strict=False) if mine != its), 0)
