"""The physical layout of a table version: its fragments, its deletions, its indices."""

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
# IVF_FLAT, not IVF_PQ: on few rows Lance trains an empty PQ index without an error.
INDEX_KINDS = ("BTREE", "INVERTED", "IVF_FLAT")
ROW, WRITTEN = "_rowid", "_row_last_updated_at_version"
_ARRAY = "array"  # Lance's name for a deletion file in Arrow format


@dataclass(frozen=True, slots=True)
class Deletions:
    """The file that lists the deleted rows of a fragment; `base` numbers the dataset that holds it, if another does."""

    path: str
    is_plain: bool
    base: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of a version. Two fragments with equal `files` hold the same rows, except for deleted ones."""

    number: int
    files: tuple[object, ...]
    rows: int  # deleted rows included
    deletions: Deletions | None
    is_traced: bool  # whether Lance tracks the row ids and versions of its rows
    live: int  # rows without the deleted ones


def fragments(tables: TableReader, table: TableVersion) -> list[Fragment]:
    """List the fragments of a version. Reads only the manifest of the version."""
    dataset = tables.open(table)
    with lance_call(dataset.uri, "read"):
        return [_fragment(fragment.metadata) for fragment in dataset.get_fragments()]


def _fragment(found: lance.FragmentMetadata) -> Fragment:
    # With the fields: a change of the schema may leave a file in place and take a column out of it.
    files = (*((path_of(file), tuple(file.fields)) for file in found.files), *map(repr, found.overlays or ()))
    deleted = found.deletion_file
    return Fragment(
        found.id,
        files,
        found.physical_rows,
        Deletions(deleted.path(found.id), deleted.file_type == _ARRAY, deleted.base_id, found.num_deletions)
        if deleted
        else None,
        found.row_id_meta is not None and found.last_updated_at_version_meta is not None,
        found.num_rows,
    )


def column_numbers(tables: TableReader, table: TableVersion) -> dict[str, int]:
    """Return the number that each column has in the files: by a change of the schema a name may get another one."""
    dataset = tables.open(table)
    with lance_call(dataset.uri, "read"):
        return {one.name(): one.id() for one in dataset.lance_schema.fields()}


def path_of(file: DataFile) -> str:
    """Return the path of a file. The public property builds a class per call, too slow for thousands of files."""
    return str(file._path)  # noqa: SLF001


def has_same_deletions(one: Fragment, other: Fragment) -> bool:
    """Return whether two fragments have the same deletions. Lance never reuses the name of a deletion file."""
    return (one.deletions and one.deletions.path) == (other.deletions and other.deletions.path)


def deleted_offsets(tables: TableReader, table: TableVersion, fragment: Fragment) -> Addresses:
    """Return the sorted offsets of the deleted rows of a fragment."""
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
    """Derive the deleted rows from those that are left: Lance stores many deletions in a format of its own."""
    left = tables.scan_fragments(table, [fragment.number], [])[ADDRESS].to_numpy().astype(np.int64)
    offsets = left & ((1 << OFFSET_BITS) - 1)
    return np.setdiff1d(np.arange(fragment.rows), offsets, assume_unique=True)


def origins(tables: TableReader, table: TableVersion, chosen: Sequence[Fragment]) -> pa.Table:
    """Read the address, row id and writing version of each row, and none of its values."""
    return tables.scan_fragments(table, [fragment.number for fragment in chosen], [ROW, WRITTEN])


def common_version(tables: TableReader, one: TableVersion, other: TableVersion) -> int:
    """Return the last version that two versions of a table both descend from; 0 if that is unknown."""
    if one.path != other.path:
        return 0
    if one.branch == other.branch:
        return min(one.version, other.version)
    try:
        known = tables.branch_points(one)
    except StorageError as error:
        if classify(error) is not Failure.NOT_FOUND:  # Lance fails so when a branch is deleted during the listing
            raise
        return 0
    if any(table.branch is not None and table.branch not in known for table in (one, other)):
        return 0
    here, there = ([*known.get(table.branch or "", ()), (table.version, "")] for table in (one, other))
    return next((min(mine[0], its[0]) for mine, its in zip(here, there, strict=False) if mine != its), 0)


# Layout --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FragmentSize:
    """The number of a fragment, its live rows, its deleted rows, and the bytes of its files if they are known."""

    number: int
    rows: int
    deleted: int
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of an index, and the fragments it covers."""

    uuid: str
    covers: frozenset[int]


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The fragments of a table version in order, and its indices by name."""

    parts: tuple[FragmentSize, ...]
    indices: Mapping[str, tuple[Segment, ...]]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(part.number for part in self.parts)

    def covered(self, index: str) -> frozenset[int]:
        """Return the fragments of this version that an index covers."""
        segments = self.indices.get(index, ())
        return self.numbers & frozenset(number for one in segments for number in one.covers)

    def covering(self, number: int) -> frozenset[str]:
        """Return the uuids of the index segments that cover a fragment."""
        segments = (one for index in self.indices.values() for one in index)
        return frozenset(one.uuid for one in segments if number in one.covers)


def layout_of(
    tables: TableReader, table: TableVersion, *, is_made: bool = False, newest: int | None = None
) -> TableLayout:
    """Read the layout of a version, or of its newest fragments.

    Reads only its manifest; nothing if the caller has just opened or made it.
    """
    # A handle of its own: `describe_indices` locks the handle against all other calls.
    dataset = tables.own_copy(table) if is_made else tables.own_handle(table)
    with lance_call(dataset.uri, "read"):
        found = [fragment.metadata for fragment in dataset.get_fragments()[-newest if newest else None :]]
        described = dataset.describe_indices()
    parts = tuple(FragmentSize(one.id, one.num_rows, one.num_deletions, _size(one)) for one in found)
    segments = {
        one.name: tuple(Segment(str(part.uuid), frozenset(part.fragment_ids)) for part in one.segments)
        for one in described
    }
    return TableLayout(parts, segments)


def _size(fragment: lance.FragmentMetadata) -> int | None:
    sizes = [file.file_size_bytes for file in fragment.files]
    return sum(size for size in sizes if size) if all(sizes) else None


def has_value(tables: TableReader, table: TableVersion, column: str, fragments: Sequence[int]) -> bool:
    """Return whether a column has any value in some fragments."""
    dataset = tables.open(table)
    with lance_call(dataset.uri, "scan"):
        chosen = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in fragments]
        condition = f"`{column}` IS NOT NULL"
        # No column and one row: the scan stops at the first value.
        scanner = dataset.scanner(columns=[], filter=condition, fragments=chosen, limit=1, with_row_id=True)
        return bool(chosen) and bool(scanner.to_table().num_rows)


# Indices -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index to build on one column, by its kind."""

    column: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.column}_{self.kind.lower()}"


_ROWS_PER_PARTITION = 4096
_MOST_PARTITIONS = 1024
_SAMPLE_RATE = 64  # vectors of each partition that are trained with; Lance's 256 take four times as long


def partitions(rows: int) -> int:
    """Return into how many partitions the index of so many vectors is divided."""
    return min(max(rows // _ROWS_PER_PARTITION, 1), _MOST_PARTITIONS)


def _vector_options(dataset: lance.LanceDataset, column: str, fragments: Sequence[int]) -> dict[str, Any]:
    chosen = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in fragments]
    rows = sum(fragment.count_rows() for fragment in chosen)
    if partitions(rows) > 1:  # training needs as many vectors as partitions, and most rows may have none
        rows = dataset.scanner(
            columns=[], filter=f"`{column}` IS NOT NULL", fragments=chosen, with_row_id=True
        ).count_rows()
    return {"num_partitions": partitions(rows), "metric": "L2", "sample_rate": _SAMPLE_RATE}


def write_index(dataset: lance.LanceDataset, index: IndexSpec, fragments: Sequence[int]) -> lance.Index:
    """Write an index over some fragments. It takes effect once a commit names it."""
    options = _vector_options(dataset, index.column, fragments) if index.kind == "IVF_FLAT" else {}
    built = dataset.create_index_uncommitted(
        index.column, index.kind, name=index.name, fragment_ids=list(fragments), replace=True, **options
    )
    # Without this merge the commit of a text index succeeds, and the first query fails.
    return dataset.merge_existing_index_segments([built]) if index.kind == "INVERTED" else built


def index_segments(dataset: lance.LanceDataset, chosen: Callable[[str, str], bool]) -> list[lance.Index]:
    """Return the current index segments, filtered by index name and segment uuid.

    A rebuild must name the segments that it replaces: Lance panics if two segments cover one fragment.
    """
    return [
        lance.Index(part.uuid, index.name, index.fields, part.dataset_version_at_last_update, part.fragment_ids, 0)
        for index in dataset.describe_indices()
        for part in index.segments
        if chosen(index.name, str(part.uuid))
    ]


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """An index to build over some fragments, and the segments it replaces."""

    spec: IndexSpec
    fragments: tuple[int, ...]
    replaces: tuple[str, ...] = ()
