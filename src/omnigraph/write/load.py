"""A load that fits in memory: check its records against the graph and stage them, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.options import LoadMode
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.errors import Violation
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.manifest.publisher import Lineage
from omnigraph.storage.read import DST, ID, SRC
from omnigraph.storage.stage import Staged, TableStorage
from omnigraph.write.pending import RECORD, newest, to_store
from omnigraph.write.validate import (
    TWICE,
    CommittedRows,
    TableChange,
    inserted,
    not_unique,
    relation_violations,
    value_violations,
    with_required,
)


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one type. `fresh`: all of their ids were generated, so none can exist."""

    declared: NodeType | EdgeType
    rows: pa.Table
    fresh: bool


class SmallLoad:
    """One load on one state of the graph."""

    def __init__(self, tables: TableStorage, txn: WriteTxn, mode: LoadMode) -> None:
        self.tables = tables
        self.txn = txn
        self.mode = mode
        self.committed = CommittedRows(tables, txn)

    def problems(self, batches: Mapping[str, Batch]) -> Iterator[Violation]:
        """Yield everything that is wrong with the records, by themselves, among each other and against the graph."""
        for batch in batches.values():
            yield from value_violations(batch.declared, batch.rows)
        # A row without a required value has been reported, and cannot be compared with the graph.
        whole = {key: replace(one, rows=with_required(one.declared, one.rows)) for key, one in batches.items()}
        changes = {key: self._change(key, batch) for key, batch in whole.items()}
        for key, batch in whole.items():
            yield from self._identity(key, batch)
        yield from relation_violations(self.txn.catalog, self.committed, changes)

    def plan(self, batches: Mapping[str, Batch], lineage: Lineage) -> PublishPlan:
        """Stage the records, which have no problems."""
        actions = tuple(TableAction(self._stage(key, batch)) for key, batch in sorted(batches.items()))
        # An overwrite replaces what it has not read row by row: rows that others add meanwhile would be lost silently.
        must_be_unchanged = frozenset(batches) if self.mode is LoadMode.OVERWRITE else frozenset()
        read_set = frozenset(self.committed.read_set)
        brought = {key: (one.declared, one.rows) for key, one in batches.items()}
        return PublishPlan(
            self.txn,
            WriterKind.LOAD,
            actions,
            lineage=lineage,
            read_set=read_set,
            must_be_unchanged=must_be_unchanged,
            inserted=inserted(brought, (action.staged for action in actions)),
        )

    def _change(self, key: str, batch: Batch) -> TableChange:
        keyed = isinstance(batch.declared, NodeType) and bool(batch.declared.key)
        # Otherwise a repeated id is a violation of its own, and both records are validated.
        rows = newest(batch.rows) if self.mode is LoadMode.MERGE and not keyed else batch.rows
        removed = rows.slice(0, 0)
        if self.mode is LoadMode.OVERWRITE:
            columns = [ID, SRC] if isinstance(batch.declared, EdgeType) else [ID]
            removed = self.tables.scan(self.txn.entries[key].table, columns)
        return TableChange(batch.declared, rows, removed, fresh=batch.fresh or self.mode is LoadMode.APPEND)

    def _identity(self, key: str, batch: Batch) -> Iterator[Violation]:
        """Report repeated ids and, in an append, ids that exist."""
        if batch.fresh:
            return
        declared, rows = batch.declared, batch.rows
        again = _repeated(rows)
        if isinstance(declared, NodeType) and declared.key:
            yield from not_unique(declared, again, declared.key, TWICE)
        elif self.mode is not LoadMode.MERGE:
            yield from existing(declared, again)
        if self.mode is LoadMode.APPEND:
            # Another writer may insert one of these ids before the publish.
            self.committed.read_set.add(key)
            ids = rows[ID].combine_chunks()
            found = self.tables.lookup(self.txn.entries[key].table, ID, ids, [ID])[ID].combine_chunks()
            # A record that repeats an id has been reported for that.
            once = rows.filter(pc.invert(pc.is_in(rows[RECORD], again[RECORD].combine_chunks())))
            yield from existing(declared, once.filter(pc.is_in(once[ID], found)))

    def _stage(self, key: str, batch: Batch) -> Staged:
        table = self.txn.writable_table(self.tables, key)
        rows = to_store(batch.declared, newest(batch.rows))
        if self.mode is LoadMode.OVERWRITE:
            return self.tables.stage_overwrite(table, rows)
        ids = rows[ID].combine_chunks()
        # An append costs less than an upsert, and most merges bring new ids only: one lookup decides.
        if self.mode is LoadMode.MERGE and not batch.fresh and self.tables.lookup(table, ID, ids, [ID]).num_rows:
            return self.tables.stage_upsert(table, rows)
        return self.tables.stage_append(table, rows)


def doubles(declared: NodeType | EdgeType) -> bool:
    """Return whether a merge of edges without ids may store an edge a second time."""
    return isinstance(declared, EdgeType) and not any(set(columns) <= {SRC, DST} for columns in declared.unique)


def existing(declared: NodeType | EdgeType, rows: pa.Table) -> Iterator[Violation]:
    """Report records whose ids exist."""
    kind = "node" if isinstance(declared, NodeType) else "edge"
    for row in rows.select([ID, RECORD]).to_pylist():
        message = f"{kind} type '{declared.name}' already has this id: '{row[ID]}'"
        hint = "load it with mode `merge`"
        yield Violation("key", declared.name, row[ID], (ID,), message, row[RECORD], hint, kind=kind)


def _repeated(rows: pa.Table) -> pa.Table:
    """Return the rows whose id an earlier row has."""
    numbered = pa.table({ID: rows[ID], "at": np.arange(rows.num_rows)})
    first = numbered.group_by(ID).aggregate([("at", "min")])["at_min"].to_numpy()
    return rows.take(np.setdiff1d(np.arange(rows.num_rows), first))
