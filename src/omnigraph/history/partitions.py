"""Combining a table in shares: ranges of ids, so that one share of what changed is held at a time, here or on Spark."""

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

MOST_ROWS = 500_000  # that are combined at once


@dataclass(frozen=True, slots=True)
class MergePartition:
    """The entities of one table with ids in a range. `base` is where their rows go; without it they are looked at."""

    location: Location
    combination: TableMerge
    resolution: Resolution
    base: TableVersion | None


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """What a share comes to: the keys of its rows, what is wrong with their values, and the files they were put in."""

    combined: MergedTable | None
    problems: tuple[Violation, ...]
    written: tuple[str, ...]

    @property
    def rows(self) -> int:
        return self.combined.size if self.combined else 0


class PartitionedMerge:
    """One table that is combined in shares."""

    def __init__(self, tables: TableStorage, combination: TableMerge, resolution: Resolution) -> None:
        ids = combination.ids(tables)
        self._location = tables.location
        self._resolution = resolution
        self._parts = [replace(combination, span=span) for span in spans(ids)]
        self._rows = len(ids)

    def look(self, choose: ChooseExecutor) -> tuple[MergedTable, tuple[Violation, ...]]:
        """Combine the two sides, and check the values of what comes; of the rows only the keys are kept."""
        results = self._run(choose, None)
        found = [result.combined for result in results if result.combined]
        assert found, "the two sides are not the same"
        return _joined(found), tuple(problem for result in results for problem in result.problems)

    def write(self, choose: ChooseExecutor, base: TableVersion) -> list[str]:
        """Write the rows that come to files of a table."""
        return [text for result in self._run(choose, base) for text in result.written]

    def _run(self, choose: ChooseExecutor, base: TableVersion | None) -> list[PartitionResult]:
        tasks = [MergePartition(self._location, part, self._resolution, base) for part in self._parts]
        return choose(self._rows).run("write" if base else "compare", combine, tasks)


def combine(share: MergePartition) -> PartitionResult:
    """Combine one share."""
    tables = TableStorage(share.location)
    combined = share.combination.run(tables, share.resolution)
    if combined is None:
        return PartitionResult(None, (), ())
    rows = combined.rows
    if share.base is not None:
        stored = to_store(combined.declared, rows)
        written = tables.write_rows(share.base.path, share.base.branch, stored) if rows.num_rows else []
        return PartitionResult(_keys_of(combined), (), tuple(written))
    numbered = rows.append_column(RECORD, pa.nulls(rows.num_rows, pa.int64()))
    return PartitionResult(_keys_of(combined), tuple(value_violations(combined.declared, numbered)), ())


def spans(ids: pa.Array) -> Iterator[Span]:
    """Cut ids into ranges of about as many as are combined at once."""
    count = -(-len(ids) // MOST_ROWS)
    ordered = ids.take(pc.sort_indices(ids))
    at = np.linspace(0, len(ids), count + 1).astype(np.int64)[1:-1]
    bounds: Sequence[str | None] = [None, *dict.fromkeys(ordered.take(at).to_pylist()), None]
    return pairwise(bounds)


def relations(declared: NodeType | EdgeType) -> list[str]:
    """The columns by which entities are judged beside each other."""
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
