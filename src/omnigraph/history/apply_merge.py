"""Apply a three-way merge to a branch in one commit, or report all conflicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from omnigraph.api.options import Resolution
from omnigraph.api.results import ChangeCounts, Commit, Entry, Snapshot, TableVersion
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.publish import write
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor
from omnigraph.errors import MergeConflict, MergeConflictError, SchemaBoundaryError, Violation
from omnigraph.history import partitions
from omnigraph.history.partitions import PartitionedMerge
from omnigraph.history.three_way import MergeBase, MergedTable, TableMerge
from omnigraph.lang.catalog import EdgeType
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import VersionRow
from omnigraph.manifest.state import HEAD
from omnigraph.storage.columns import declared_of
from omnigraph.storage.read import ID, SRC
from omnigraph.storage.stage import Staged
from omnigraph.write.pending import RECORD, to_store
from omnigraph.write.validate import CommittedRows, TableChange, relation_violations, value_violations

_KINDS = {
    "endpoint": "orphan_edge",
    "unique": "unique_violation",
    "key": "unique_violation",
    "cardinality": "cardinality_violation",
}


@dataclass(frozen=True, slots=True)
class MergeInput:
    """What to merge into a branch: the changes from the merge base to the source, and how conflicts are resolved.

    `is_checked` says that the result is the source itself, which was checked when it was written.
    """

    past: MergeBase
    source: Snapshot
    resolution: Resolution
    is_checked: bool = False

    @property
    def table_keys(self) -> list[str]:
        return sorted({*self.source.entries, *(key for base in self.past.bases for key in base)})


class MergeAttempt:
    """A merge tried on one state of the target branch; a branch that moves needs another attempt."""

    def __init__(self, store: Store, txn: WriteTxn, merge_input: MergeInput, choose: ChooseExecutor) -> None:
        self.choose = choose
        self.store = store
        self.txn = txn
        self.input = merge_input
        if merge_input.source.schema != txn.base.schema:
            message = "the two states have different schemas and cannot be merged"
            raise SchemaBoundaryError(message, hint="export the entities at the earlier state and load them instead")
        merge_input.resolution.check(txn.entries)
        self.partitioned: dict[str, PartitionedMerge] = {}
        self.problems: list[Violation] = []
        found = ((key, self._combine(key)) for key in merge_input.table_keys if key in txn.entries)
        self.tables = {key: combined for key, combined in found if combined}
        self.committed = CommittedRows(store.tables, txn)
        self.conflicts = tuple(sorted(self._conflicts(), key=_order))

    def _combine(self, key: str) -> MergedTable | None:
        source, target = self.input.source.entries.get(key), self.txn.entries[key]
        tables = self.store.tables
        one = TableMerge(
            declared_of(self.txn.catalog, key),
            self.input.past,
            source.table if source else None,
            target.table,
        )
        rows = target.row_count + (source.row_count if source else 0)
        if rows <= partitions.MOST_ROWS or one.most_rows(tables) <= partitions.MOST_ROWS:
            return one.run(tables, self.input.resolution)
        self.partitioned[key] = PartitionedMerge(tables, one, self.input.resolution)
        combined, problems = self.partitioned[key].compare(self.choose)
        self.problems += problems
        return combined

    def _conflicts(self) -> tuple[MergeConflict, ...]:
        """Find rows that conflict; if there are none, the rules of the schema that the result would break."""
        clashes = tuple(conflict for combined in self.tables.values() for conflict in combined.conflicts)
        if clashes or self.input.is_checked:
            return clashes
        changes = {key: _change(combined) for key, combined in self.tables.items() if not combined.is_empty}
        values = [
            *(one for key in changes.keys() - self.partitioned for one in _values(changes[key])),
            *self.problems,
        ]
        related = relation_violations(self.txn.catalog, self.committed, changes)
        return tuple(_broken(violation, changes) for violation in (*values, *related))

    @property
    def counts(self) -> dict[str, ChangeCounts]:
        return {
            key: ChangeCounts(one.inserted.num_rows, one.updated.num_rows, one.deleted.num_rows)
            for key, one in self.tables.items()
            if not one.is_empty
        }

    @property
    def compared(self) -> tuple[str, ...]:
        return tuple(key for key, combined in self.tables.items() if combined.compared)

    def plan(self, lineage: Lineage) -> PublishPlan:
        """Stage the changed tables and plan their publication."""
        adoptions = {key: row for key in self.tables if (row := self._adoption(key))}
        changing = [key for key, one in self.tables.items() if not one.is_empty and key not in adoptions]
        return PublishPlan(
            self.txn,
            WriterKind.BRANCH_MERGE,
            tuple(TableAction(self._stage(key)) for key in changing),
            adoptions=tuple(adoptions.values()),
            lineage=lineage,
            # The merge base depends on the head, so a head that moves makes the plan stale even if no table moved.
            read_set=frozenset({HEAD, *self.tables, *self.committed.read_set}),
        )

    def _adoption(self, key: str) -> VersionRow | None:
        """Return the version of main that a branch can refer to instead of copying rows, if there is one.

        Only main qualifies: any other branch may be deleted together with its files.
        """
        entry, target = self.input.source.entries.get(key), self.txn.entries[key].table
        on_main = self.txn.branch is not None and entry is not None and entry.table.branch is None
        if entry is None or not on_main or not self.tables[key].adopts or entry.table.version <= target.version:
            return None
        return VersionRow(key, entry.table.version, None, entry.row_count)

    def _stage(self, key: str) -> Staged:
        combined, tables = self.tables[key], self.store.tables
        base = self.txn.writable_table(tables, key)
        replaced, rows = combined.replaced, combined.rows
        if not rows.num_rows:
            return tables.stage_delete_rows(base, replaced, f"omnigraph: {len(replaced)} rows")
        if key in self.partitioned:
            return tables.stage_written(base, self.partitioned[key].write(self.choose, base), replaced)
        written = tables.write_rows(base.path, base.branch, to_store(combined.declared, rows))
        return tables.stage_written(base, written, replaced)


def apply_merge(
    store: Store,
    branch: str | None,
    input_on: Callable[[WriteTxn], MergeInput | None],
    lineage: Callable[[MergeInput], Lineage],
    choose: ChooseExecutor,
) -> tuple[MergeAttempt | None, Commit | None]:
    """Apply a three-way merge to a branch in one commit, or raise with all conflicts. No input, no change."""

    def prepare(txn: WriteTxn) -> tuple[PublishPlan | None, MergeAttempt | None]:
        merge_input = input_on(txn)
        if merge_input is None:
            return None, None
        attempt = MergeAttempt(store, txn, merge_input, choose)
        refuse(attempt.conflicts)
        made = lineage(merge_input)
        if made.merged_parent_id is None and not attempt.counts:  # a revert of what is undone already
            return None, attempt
        return attempt.plan(made), attempt

    published, attempt = write(store, branch, prepare)
    return attempt, published.commit if published else None


def refuse(conflicts: Sequence[MergeConflict]) -> None:
    if conflicts:
        count = f"{len(conflicts):,} conflicts" if len(conflicts) > 1 else "1 conflict"
        hint = "look at both sides, then choose with `ours` or `theirs`, or change one of the branches"
        message = f"the two sides contradict each other, nothing was changed: {count}"
        raise MergeConflictError(message, conflicts=tuple(conflicts), hint=hint)


def tables_of(entries: Mapping[str, Entry]) -> dict[str, TableVersion]:
    return {key: entry.table for key, entry in entries.items()}


def _change(combined: MergedTable) -> TableChange:
    rows = combined.rows
    keys = [ID, SRC] if isinstance(combined.declared, EdgeType) else [ID]
    return TableChange(
        combined.declared,
        rows.append_column(RECORD, pa.nulls(rows.num_rows, pa.int64())),
        combined.deleted.select(keys),
        fresh=not combined.updated.num_rows,
    )


def _values(change: TableChange) -> Iterator[Violation]:
    return value_violations(change.declared, change.rows)


def _order(conflict: MergeConflict) -> tuple[str, str, str, str]:
    return conflict.table_key, conflict.id or "", conflict.kind, conflict.message


def _broken(violation: Violation, changes: Mapping[str, TableChange]) -> MergeConflict:
    kind = _KINDS.get(violation.rule, "value_constraint_violation")
    of_node = violation.rule not in ("endpoint", "cardinality") and f"node:{violation.type_name}" in changes
    key = f"{'node' if of_node else 'edge'}:{violation.type_name}"
    return MergeConflict(kind, key, violation.entity_id, violation.message)
