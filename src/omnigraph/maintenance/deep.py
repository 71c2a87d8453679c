"""`doctor --deep`: read every row of every branch and tag, and compare what must agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.maintenance import Finding, Severity
from omnigraph.api.results import Entry, TableVersion
from omnigraph.commit.store import Store
from omnigraph.errors import OmnigraphError
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.maintenance.damage import BACKUP, states
from omnigraph.maintenance.optimize import declared_types
from omnigraph.maintenance.tasks import BTREE, wanted_indices
from omnigraph.storage.files import directory_of
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.layout import layout_of
from omnigraph.storage.predicates import OneOf, lance_filter
from omnigraph.storage.read import ADDRESS, DST, ID, MOST_VALUES, OFFSET_BITS, SRC, TableReader

_NODE = "node:"


def findings(store: Store, catalog: Catalog) -> list[Finding]:
    """Read everything that branches and tags consist of, each version of a table once."""
    examination = _Reading(TableReader(store.location), declared_types(catalog))
    for state in states(store):
        examination.state(state.snapshot.entries)
    return examination.found


@dataclass
class _Reading:
    tables: TableReader  # of its own: what another handle has cached was not read from the storage
    types: Mapping[str, NodeType | EdgeType]
    found: list[Finding] = field(default_factory=list)
    read: dict[TableVersion, pa.Table | None] = field(default_factory=dict)

    def state(self, entries: Mapping[str, Entry]) -> None:
        for key, entry in entries.items():
            if entry.table not in self.read:
                self.read[entry.table] = self._table(entry)
            declared, rows = self.types.get(key), self.read[entry.table]
            if isinstance(declared, EdgeType) and rows is not None:
                self._ends(entry.table, declared, rows, entries)

    def _find(self, table: TableVersion, message: str, path: str | None = None) -> None:
        subject = path or directory_of(table.path, table.branch)
        finding = Finding(Severity.PROBLEM, subject, f"{table.key}, version {table.version}: {message}", BACKUP)
        if finding not in self.found:
            self.found.append(finding)

    def _table(self, entry: Entry) -> pa.Table | None:
        """Read all columns of a version; return its ids and ends, None if any is unreadable."""
        table = entry.table
        try:
            dataset = self.tables.own_handle(table)
            parts = list(self._fragments(dataset, table))
        except OmnigraphError as error:
            self._find(table, error.message)
            return None
        if any(part is None for part in parts):
            return None
        kept = [name for name in (ID, SRC, DST) if name in dataset.schema.names]
        rows = pa.concat_tables([part for part in parts if part is not None]) if parts else dataset.schema.empty_table()
        if rows.num_rows != entry.row_count:
            self._find(table, f"it has {rows.num_rows} rows; the graph counts {entry.row_count}")
        repeated = rows.num_rows - pc.count_distinct(rows[ID]).as_py()
        if repeated:
            self._find(table, f"{repeated} ids occur more than once")
        self._indices(dataset, table)
        return rows.select(kept)

    def _fragments(self, dataset: lance.LanceDataset, table: TableVersion) -> Iterator[pa.Table | None]:
        for fragment in dataset.get_fragments():
            described = fragment.metadata
            path = _data_file(dataset, table, described)
            try:
                with lance_call(dataset.uri, "scan"):
                    rows = _read_fragment(dataset, fragment)
            except (OmnigraphError, pa.ArrowException) as error:
                self._find(table, f"it cannot be read: {str(error).partition(chr(10))[0]}", path)
                yield None
                continue
            if rows.num_rows != described.num_rows:
                self._find(table, f"it has {rows.num_rows} rows instead of {described.num_rows}", path)
            yield rows

    def _ends(self, table: TableVersion, edge: EdgeType, rows: pa.Table, entries: Mapping[str, Entry]) -> None:
        for column, node in ((SRC, edge.source), (DST, edge.target)):
            entry = entries.get(f"{_NODE}{node}")
            nodes = self._nodes(entry) if entry else None
            if nodes is None:
                continue  # reported as unreadable
            lost = len(rows) - pc.sum(pc.is_in(rows[column], value_set=nodes)).as_py() if len(rows) else 0
            if lost:
                self._find(table, f"{lost} edges have a {column} that is no {node}")

    def _nodes(self, entry: Entry) -> pa.Array | None:
        if entry.table not in self.read:
            self.read[entry.table] = self._table(entry)
        rows = self.read[entry.table]
        return None if rows is None else rows[ID].combine_chunks()

    # Indices

    def _indices(self, dataset: lance.LanceDataset, table: TableVersion) -> None:
        """Compare what indices find with what a scan finds, for a sample of the values of each column."""
        declared = self.types.get(table.key)
        built = layout_of(self.tables, table).indices
        for spec in wanted_indices(declared) if declared else ():
            kind = dataset.schema.field(spec.column).type if spec.column in dataset.schema.names else None
            # A float is a poor key: NaN equals nothing, not even itself.
            if spec.kind == BTREE and spec.name in built and kind is not None and not pa.types.is_floating(kind):
                self._compare(dataset, table, spec.column, spec.name)

    def _compare(self, dataset: lance.LanceDataset, table: TableVersion, column: str, index: str) -> None:
        try:
            with lance_call(dataset.uri, "scan"):
                values = pc.unique(dataset.scanner(columns=[column]).to_table()[column]).drop_null()
                sample = values.take(np.linspace(0, len(values) - 1, min(len(values), MOST_VALUES)).astype(np.int64))
                chosen = lance_filter(OneOf(column, sample))
                # The same filter twice: only the way to the rows differs, so every difference is damage.
                by_index, by_scan = (_addresses(dataset, column, chosen, use=use) for use in (True, False))
        except OmnigraphError as error:
            self._find(table, f"index {index} cannot be read: {error.message}")
            return
        missed = np.setxor1d(by_index, by_scan)
        if len(missed):
            numbers = set((missed >> OFFSET_BITS).tolist())
            for fragment in dataset.get_fragments():
                if fragment.fragment_id in numbers:
                    message = f"index {index} and this file disagree: one of the two is damaged"
                    self._find(table, message, _data_file(dataset, table, fragment.metadata))


def _read_fragment(dataset: lance.LanceDataset, fragment: Any) -> pa.Table:
    """Read all columns of a fragment, blobs as well; return the ids and ends of its rows."""
    scanner = dataset.scanner(fragments=[fragment], blob_handling="all_binary")
    kept = [name for name in (ID, SRC, DST) if name in dataset.schema.names]
    batches = []
    for batch in scanner.to_batches():
        batch.validate(full=True)  # offsets inside of values, and text that is no UTF-8
        batches.append(batch.select(kept))
    return pa.Table.from_batches(batches, pa.schema([dataset.schema.field(name) for name in kept]))


def _addresses(dataset: lance.LanceDataset, column: str, chosen: str, *, use: bool) -> np.ndarray[Any, Any]:
    scanner = dataset.scanner(columns=[column], filter=chosen, with_row_address=True, use_scalar_index=use)
    return np.asarray(scanner.to_table()[ADDRESS].to_numpy())


def _data_file(dataset: lance.LanceDataset, table: TableVersion, fragment: lance.FragmentMetadata) -> str:
    file = fragment.files[0]
    fork = table.branch if file.base_id is None else dataset.base_paths()[file.base_id].name
    return f"{directory_of(table.path, fork)}/data/{file.path}"
