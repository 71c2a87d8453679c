"""Merge a large table in partitions: ranges of ids, one in memory at a time, here or on Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.options import Resolution
from omnigraph.api.results import TableVersion
from omnigraph.core.executor import ChooseExecutor
from omnigraph.core.location import Location
from omnigraph.errors import Violation
from omnigraph.history.three_way import MergedTable, Span, TableMerge
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.storage.read import DST, ID, SRC
from omnigraph.storage.stage import TableStorage
from omnigraph.write.pending import RECORD, to_store
from omnigraph.write.validate import value_violations

MOST_ROWS = 500_000  # merged at once


@dataclass(frozen=True, slots=True)
class MergePartition:
    """The entities of one table with ids in a range. With `base` their rows are written, without it only compared."""

    location: Location
    combination: TableMerge
    resolution: Resolution
    base: TableVersion | None


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """The result of a partition: the keys of its rows, the rules that their values break, the files written."""

    combined: MergedTable | None
    problems: tuple[Violation, ...]
    written: tuple[str, ...]

    @property
    def rows(self) -> int:
        return self.combined.size if self.combined else 0


class PartitionedMerge:
    """One table that is merged in partitions."""

    def __init__(self, tables: TableStorage, combination: TableMerge, resolution: Resolution) -> None:
        ids = combination.ids(tables)
        self._location = tables.location
        self._resolution = resolution
        self._parts = [replace(combination, span=span) for span in spans(ids)]
        self._rows = len(ids)

    def compare(self, choose: ChooseExecutor) -> tuple[MergedTable, tuple[Violation, ...]]:
        """Merge the two sides and check the values. Only keys are kept, so that memory follows ids and not rows."""
        results = self._run(choose, None)
        found = [result.combined for result in results if result.combined]
        assert found, "the two sides are not the same"
        return _joined(found), tuple(problem for result in results for problem in result.problems)

    def write(self, choose: ChooseExecutor, base: TableVersion) -> list[str]:
        """Merge again, and write the resulting rows to files of the table."""
        return [text for result in self._run(choose, base) for text in result.written]

    def _run(self, choose: ChooseExecutor, base: TableVersion | None) -> list[PartitionResult]:
        tasks = [MergePartition(self._location, part, self._resolution, base) for part in self._parts]
        return choose(self._rows).run("write" if base else "compare", merge_partition, tasks)


def merge_partition(partition: MergePartition) -> PartitionResult:
    """Merge one partition."""
    tables = TableStorage(partition.location)
    combined = partition.combination.run(tables, partition.resolution)
    if combined is None:
        return PartitionResult(None, (), ())
    rows = combined.rows
    if partition.base is not None:
        stored = to_store(combined.declared, rows)
        written = tables.write_rows(partition.base.path, partition.base.branch, stored) if rows.num_rows else []
        return PartitionResult(_keys_of(combined), (), tuple(written))
    numbered = rows.append_column(RECORD, pa.nulls(rows.num_rows, pa.int64()))
    return PartitionResult(_keys_of(combined), tuple(value_violations(combined.declared, numbered)), ())


def spans(ids: pa.Array) -> Iterator[Span]:
    """Cut ids into ranges of at most `MOST_ROWS`, roughly."""
    count = -(-len(ids) // MOST_ROWS)
    ordered = ids.take(pc.sort_indices(ids))
    # Equal bounds would make an empty range and skip ids, so they are made distinct below.
    at = np.linspace(0, len(ids), count + 1).astype(np.int64)[1:-1]
    bounds: Sequence[str | None] = [None, *dict.fromkeys(ordered.take(at).to_pylist()), None]
    return pairwise(bounds)


def relations(declared: NodeType | EdgeType) -> list[str]:
    """Return the columns that rules between entities need: ids, ends and unique properties."""
    ends = [SRC, DST] if isinstance(declared, EdgeType) else []
    return list(dict.fromkeys([ID, *ends, *(name for columns in declared.unique for name in columns)]))


def _keys_of(combined: MergedTable) -> MergedTable:
    names = relations(combined.declared)
    return replace(combined, inserted=combined.inserted.select(names), updated=combined.updated.select(names))


def _joined(parts: Sequence[MergedTable]) -> MergedTable:
    first = parts[0]
    return replace(
        first,
        inserted=pa.concat_tables([part.inserted for part in parts]),
        updated=pa.concat_tables([part.updated for part in parts]),
        deleted=pa.concat_tables([part.deleted for part in parts]),
        replaced=np.concatenate([part.replaced for part in parts]),
        conflicts=tuple(conflict for part in parts for conflict in part.conflicts),
        compared=any(part.compared for part in parts),
    )
