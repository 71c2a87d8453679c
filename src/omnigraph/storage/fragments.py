"""What a version of a table is made of: its fragments, and where each of its rows comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.ipc

from omnigraph.errors import StorageError
from omnigraph.storage.lance_errors import Kind, classify, lance_call
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.reading import ADDRESS, OFFSET_BITS, TableReader, TableVersion

Addresses = np.ndarray[Any, Any]
ROW, WRITTEN = "_rowid", "_row_last_updated_at_version"
_ARRAY = "array"  # how lance calls a deletion file in Arrow's format


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of a version. Two with equal `files` hold the same rows, but for those that are deleted."""

    number: int
    files: tuple[object, ...]
    deletions: tuple[int, int] | None
    is_traced: bool  # whether lance knows which row each was before a compaction, and when it was written


def fragments(tables: TableReader, table: TableVersion) -> list[Fragment]:
    """List the fragments of a version. This reads its manifest and no more."""
    dataset = tables.open(table)
    with lance_call(dataset.uri, "read"):
        return [_fragment(fragment.metadata) for fragment in dataset.get_fragments()]


def _fragment(found: lance.FragmentMetadata) -> Fragment:
    files = (*((file.path, tuple(file.fields)) for file in found.files), *map(repr, found.overlays or ()))
    deletions = found.deletion_file
    return Fragment(
        found.id,
        files,
        None if deletions is None else (deletions.read_version, deletions.id),
        found.row_id_meta is not None and found.last_updated_at_version_meta is not None,
    )


def deleted_offsets(tables: TableReader, table: TableVersion, fragment: Fragment) -> Addresses:
    """Read which rows of a fragment are deleted, by their places in it, in order."""
    if fragment.deletions is None:
        return np.empty(0, np.int64)
    dataset = tables.open(table)
    with lance_call(dataset.uri, "read"):
        found = dataset.get_fragment(fragment.number)
        assert found is not None
        deletions = found.metadata.deletion_file
        assert deletions is not None
        bases = dataset.base_paths() if deletions.base_id is not None else {}
    if deletions.file_type == _ARRAY:
        branch = table.branch if deletions.base_id is None else bases[deletions.base_id].name
        stored = ObjectStore(tables.location).read_if_exists(
            _in_table(table, branch, deletions.path(found.fragment_id))
        )
        if stored is not None:
            offsets = pa.ipc.open_file(stored).read_all().column(0).to_numpy()
            return np.sort(offsets.astype(np.int64))
    return _missing_offsets(dataset, found)


def _in_table(table: TableVersion, branch: str | None, name: str) -> str:
    return "/".join((table.path, *(("tree", branch) if branch else ()), name))


def _missing_offsets(dataset: lance.LanceDataset, fragment: lance.LanceFragment) -> Addresses:
    """Lance writes many deletions in a form of its own; then the rows that are left tell which are not."""
    with lance_call(dataset.uri, "read"):
        left = dataset.scanner(columns=[], fragments=[fragment], with_row_address=True).to_table()
        physical = fragment.physical_rows
    offsets = left[ADDRESS].to_numpy().astype(np.int64) & ((1 << OFFSET_BITS) - 1)
    return np.setdiff1d(np.arange(physical), offsets, assume_unique=True)


def origins(tables: TableReader, table: TableVersion, chosen: Sequence[Fragment]) -> pa.Table:
    """Read of each row its address, the number lance knows it by, and the version that wrote it; none of its values."""
    dataset = tables.open(table)
    numbers = {fragment.number for fragment in chosen}
    with lance_call(dataset.uri, "scan"):
        found = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in numbers]
        return dataset.scanner(columns=[ROW, WRITTEN], fragments=found, with_row_address=True).to_table()


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
