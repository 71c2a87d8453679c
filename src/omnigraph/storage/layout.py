"""What a version of a table is made of: its fragments, and where each of its rows comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.ipc
from lance.fragment import DataFile

from omnigraph.api.results import TableVersion
from omnigraph.errors import StorageError
from omnigraph.storage.lance_errors import Failure, classify, lance_call
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.read import ADDRESS, OFFSET_BITS, TableReader

Addresses = np.ndarray[Any, Any]
INDEX_KINDS = ("BTREE", "INVERTED", "IVF_FLAT")
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
        if classify(error) is not Failure.NOT_FOUND:  # how lance fails when a branch is deleted while it lists them
            raise
        return 0
    if any(table.branch is not None and table.branch not in known for table in (one, other)):
        return 0
    here, there = ([*known.get(table.branch or "", ()), (table.version, "")] for table in (one, other))
    return next((min(mine[0], its[0]) for mine, its in zip(here, there, strict=False) if mine != its), 0)


# Layout --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FragmentSize:
    """A fragment: its number, its rows, and how many more of them are deleted."""

    number: int
    rows: int
    deleted: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an index, and the fragments it covers."""

    uuid: str
    covers: frozenset[int]


@dataclass(frozen=True, slots=True)
class TableLayout:
    """What a version of a table physically consists of: its fragments in order, its indices by name."""

    parts: tuple[FragmentSize, ...]
    indices: Mapping[str, tuple[Segment, ...]]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(part.number for part in self.parts)

    def covered(self, index: str) -> frozenset[int]:
        """The fragments of this version that an index covers."""
        segments = self.indices.get(index, ())
        return self.numbers & frozenset(number for one in segments for number in one.covers)

    def covering(self, number: int) -> frozenset[str]:
        """The segments of indices that cover a fragment."""
        segments = (one for index in self.indices.values() for one in index)
        return frozenset(one.uuid for one in segments if number in one.covers)


def layout_of(tables: TableReader, table: TableVersion) -> TableLayout:
    """Look at a version. This reads its manifest and no more."""
    dataset = tables.own_handle(table)
    with lance_call(dataset.uri, "read"):
        found = [fragment.metadata for fragment in dataset.get_fragments()]
        described = dataset.describe_indices()
    parts = tuple(FragmentSize(one.id, one.num_rows, one.num_deletions) for one in found)
    segments = {
        one.name: tuple(Segment(str(part.uuid), frozenset(part.fragment_ids)) for part in one.segments)
        for one in described
    }
    return TableLayout(parts, segments)


def has_value(tables: TableReader, table: TableVersion, column: str, fragments: Sequence[int]) -> bool:
    """Tell whether a column holds anything at all in some fragments."""
    dataset = tables.open(table)
    with lance_call(dataset.uri, "scan"):
        chosen = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in fragments]
        condition = f"`{column}` IS NOT NULL"
        scanner = dataset.scanner(columns=[], filter=condition, fragments=chosen, limit=1, with_row_id=True)
        return bool(chosen) and bool(scanner.to_table().num_rows)


# Indices -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index to build: BTREE, INVERTED or IVF_FLAT on one column."""

    column: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.column}_{self.kind.lower()}"


def write_index(dataset: lance.LanceDataset, index: IndexSpec, fragments: Sequence[int]) -> lance.Index:
    """Write an index over some fragments; it counts once a commit names it."""
    options: dict[str, Any] = {"num_partitions": 1, "metric": "L2"} if index.kind == "IVF_FLAT" else {}
    built = dataset.create_index_uncommitted(
        index.column, index.kind, name=index.name, fragment_ids=list(fragments), replace=True, **options
    )
    # A text index is only readable once its parts are merged, and lance does not say so at commit.
    return dataset.merge_existing_index_segments([built]) if index.kind == "INVERTED" else built


def index_segments(dataset: lance.LanceDataset, chosen: Callable[[str, str], bool]) -> list[lance.Index]:
    """The present segments of indices, chosen by the name of the index and their uuid.

    Who builds them anew names them as removed: lance dies on a fragment that is covered twice.
    """
    return [
        lance.Index(part.uuid, index.name, index.fields, part.dataset_version_at_last_update, part.fragment_ids, 0)
        for index in dataset.describe_indices()
        for part in index.segments
        if chosen(index.name, str(part.uuid))
    ]


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """An index to build over some fragments, in the place of some of its segments."""

    spec: IndexSpec
    fragments: tuple[int, ...]
    replaces: tuple[str, ...] = ()
