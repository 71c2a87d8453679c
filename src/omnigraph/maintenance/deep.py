"""`doctor --deep`: read every row of every branch and tag, and compare what must agree.

Tasks read the rows and send ids and the ends of edges, divided by hash; other tasks compare them. What returns are
numbers, and which files are damaged: no table is in memory as a whole, in this process or on Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.maintenance import Finding, Severity
from omnigraph.api.results import Entry, TableVersion
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor, Executor, Parcel, ParcelRoute, Scattered, exchanged
from omnigraph.core.location import Location
from omnigraph.errors import OmnigraphError
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.maintenance.damage import BACKUP, states
from omnigraph.maintenance.optimize import declared_types
from omnigraph.maintenance.tasks import BTREE, wanted_indices
from omnigraph.storage.files import directory_of
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.layout import IndexSpec, layout_of
from omnigraph.storage.predicates import OneOf, lance_filter
from omnigraph.storage.read import ADDRESS, DST, ID, MOST_VALUES, OFFSET_BITS, SRC, TableReader
from omnigraph.storage.shares import hashed_parcels, received

ROWS_PER_SHARE = 1_000_000
_NODE = "node:"
_IDS = pa.schema([(ID, pa.string())])


def findings(store: Store, choose: ChooseExecutor) -> list[Finding]:
    """Read everything that branches and tags consist of, each version of a table once."""
    # Each state by its own schema: another one may have another type of that name.
    read = [(one.snapshot.entries, declared_types(store.schema_of_row(one.schema).catalog)) for one in states(store)]
    return _DeepRead(store.location, read, choose).run()


_Types = Mapping[str, NodeType | EdgeType]


@dataclass(frozen=True, slots=True)
class EndPair:
    """One end of the edges in a version, and the version of the nodes that it must be among."""

    edges: TableVersion
    column: str
    nodes: TableVersion
    node: str


class _DeepRead:
    """One examination. A handle of its own reads: what another one has cached was not read from the storage."""

    def __init__(
        self, location: Location, states: Sequence[tuple[Mapping[str, Entry], _Types]], choose: ChooseExecutor
    ) -> None:
        self.tables = TableReader(location)
        self.choose = choose
        self.entries = {entry.table: entry for entries, _ in states for entry in entries.values()}
        self.types = {entry.table: types.get(key) for entries, types in states for key, entry in entries.items()}
        self.pairs = list(dict.fromkeys(pair for entries, types in states for pair in self._pairs(entries, types)))
        self.found: list[Finding] = []
        self.unreadable: set[TableVersion] = set()
        self.rows: Counter[TableVersion] = Counter()

    def _pairs(self, entries: Mapping[str, Entry], types: _Types) -> Iterator[EndPair]:
        for key, entry in entries.items():
            edge = types.get(key)
            for column, node in ((SRC, edge.source), (DST, edge.target)) if isinstance(edge, EdgeType) else ():
                if f"{_NODE}{node}" in entries:
                    yield EndPair(entry.table, column, entries[f"{_NODE}{node}"].table, node)

    def run(self) -> list[Finding]:
        rows = sum(entry.row_count for entry in self.entries.values())
        executor = self.choose(rows)
        shares = max(-(-rows // ROWS_PER_SHARE), 1)
        tasks = [replace(task, shares=shares) for table in self.entries for task in self._tasks(table)]
        compared = exchanged(
            lambda: executor.scatter("read", read_fragments, tasks),
            lambda sent: self._compared(executor, sent, shares),
        )
        for table, entry in self.entries.items():
            self._judge(entry, [one for one in compared if one.table == table])
        readable = [table for table in self.entries if table not in self.unreadable]
        indices = [task for table in readable for task in self._indices(table)]
        for one in executor.run("indices", compare_index, indices):
            self._report(one)
        return self.found

    def _find(self, table: TableVersion, message: str, path: str | None = None) -> None:
        subject = path or directory_of(table.path, table.branch)
        finding = Finding(Severity.PROBLEM, subject, f"{table.key}, version {table.version}: {message}", BACKUP)
        if finding not in self.found:
            self.found.append(finding)

    def _report(self, read: Read) -> None:
        for message, path in read.problems:
            self._find(read.table, message, path)

    # Rows

    def _tasks(self, table: TableVersion) -> Iterator[ReadTask]:
        """Divide the fragments of a table into tasks, or find that it cannot be opened."""
        try:
            dataset = self.tables.own_handle(table)
            with lance_call(dataset.uri, "read"):
                sizes = [(one.fragment_id, one.metadata.physical_rows) for one in dataset.get_fragments()]
        except OmnigraphError as error:
            self._find(table, error.message)
            self.unreadable.add(table)
            return
        ends = tuple((self._section(pair), pair.column) for pair in self.pairs if pair.edges == table)
        task = ReadTask(self.tables.location, table, (), list(self.entries).index(table), ends)
        some: list[int] = []
        rows = 0
        for number, size in sizes:
            if some and rows + size > ROWS_PER_SHARE:
                yield replace(task, fragments=tuple(some))
                some, rows = [], 0
            some.append(number)
            rows += size
        if some:
            yield replace(task, fragments=tuple(some))

    def _section(self, pair: EndPair) -> int:
        return len(self.entries) + self.pairs.index(pair)

    def _compared(self, executor: Executor, sent: Scattered[Read], shares: int) -> list[Compared]:
        """Compare the ids of each version with each other, and with the ends of edges."""
        self.rows.clear()  # parcels may be sent again
        for read in sent.results:
            self._report(read)
            self.rows[read.table] += read.rows
            if read.problems:
                self.unreadable.add(read.table)
        routes: dict[int, ParcelRoute] = {}
        tasks: list[CompareIdsTask] = []
        for number, table in enumerate(self.entries):
            pairs = tuple((self._section(pair), pair) for pair in self.pairs if pair.nodes == table)
            routes |= {section: ParcelRoute(len(tasks), spread=True) for section in (number, *dict(pairs))}
            tasks += [CompareIdsTask(table, number, pairs)] * shares
        return executor.gather("check", compare_share, tasks, [sent], routes)

    def _judge(self, entry: Entry, compared: Sequence[Compared]) -> None:
        """Report what the shares of a version have found, if all of it could be read."""
        table = entry.table
        if table in self.unreadable:
            return
        if self.rows[table] != entry.row_count:
            self._find(table, f"it has {self.rows[table]} rows; the graph counts {entry.row_count}")
        if repeated := sum(one.repeated for one in compared):
            self._find(table, f"{repeated} ids occur more than once")
        lost: Counter[EndPair] = Counter()
        for one in compared:
            lost.update(one.lost)
        for pair, count in lost.items():
            if count and pair.edges not in self.unreadable:
                self._find(pair.edges, f"{count} edges have a {pair.column} that is no {pair.node}")

    # Indices

    def _indices(self, table: TableVersion) -> Iterator[IndexTask]:
        """Yield the indices whose answers can be compared with those of a scan."""
        declared = self.types[table]
        built = layout_of(self.tables, table).indices
        columns = self.tables.columns(table)
        for spec in wanted_indices(declared) if declared else ():
            kind = columns.field(spec.column).type if spec.column in columns.names else None
            # A float is a poor key: NaN equals nothing, not even itself.
            if spec.kind == BTREE and spec.name in built and kind is not None and not pa.types.is_floating(kind):
                yield IndexTask(self.tables.location, table, spec)


# Tasks ---------------------------------------------------------------------------------------------

Problem = tuple[str, str | None]  # what is wrong, and the file


@dataclass(frozen=True, slots=True)
class Read:
    """What a task has read, and what is wrong with it."""

    table: TableVersion
    rows: int = 0
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Some fragments, the section of their ids, and those of their ends."""

    location: Location
    table: TableVersion
    fragments: tuple[int, ...]
    ids: int
    ends: tuple[tuple[int, str], ...]
    shares: int = 1


def read_fragments(task: ReadTask) -> tuple[Read, list[Parcel]]:
    """Read all columns of some fragments, and send the ids and ends."""
    dataset = TableReader(task.location).own_handle(task.table)
    with lance_call(dataset.uri, "read"):
        chosen = [one for one in dataset.get_fragments() if one.fragment_id in task.fragments]
    rows, problems, parcels = 0, list[Problem](), list[Parcel]()
    for fragment in chosen:
        described = fragment.metadata
        path = _data_file(dataset, task.table, described)
        try:
            with lance_call(dataset.uri, "scan"):
                found = _read_fragment(dataset, fragment)
        except (OmnigraphError, pa.ArrowException) as error:
            problems.append((f"it cannot be read: {str(error).partition(chr(10))[0]}", path))
            continue
        if found.num_rows != described.num_rows:
            problems.append((f"it has {found.num_rows} rows instead of {described.num_rows}", path))
        rows += found.num_rows
        for section, name in ((task.ids, ID), *task.ends):
            values = pa.table({ID: found[name]})
            parcels += hashed_parcels(section, values.filter(values[ID].is_valid()), [ID], task.shares)
    return Read(task.table, rows, tuple(problems)), parcels


def _read_fragment(dataset: lance.LanceDataset, fragment: Any) -> pa.Table:
    """Read all columns of a fragment, blobs as well; return the ids and ends of its rows."""
    scanner = dataset.scanner(fragments=[fragment], blob_handling="all_binary")
    kept = [name for name in (ID, SRC, DST) if name in dataset.schema.names]
    batches = []
    for batch in scanner.to_batches():
        batch.validate(full=True)  # offsets inside of values, and text that is no UTF-8
        batches.append(batch.select(kept))
    return pa.Table.from_batches(batches, pa.schema([dataset.schema.field(name) for name in kept]))


@dataclass(frozen=True, slots=True)
class CompareIdsTask:
    """One share of the ids of a version, and of the ends that must be among them."""

    table: TableVersion
    ids: int
    pairs: tuple[tuple[int, EndPair], ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """How many ids are there more than once, and how many ends are none of them."""

    table: TableVersion
    repeated: int
    lost: Mapping[EndPair, int]


def compare_share(task: CompareIdsTask, parcels: list[Parcel]) -> Compared:
    """Compare ids with each other, and with ends."""
    ids = received(parcels, task.ids, _IDS)[ID]
    known = pc.unique(ids)
    lost = {}
    for section, pair in task.pairs:
        ends = received(parcels, section, _IDS)[ID]
        lost[pair] = len(ends) - (pc.sum(pc.is_in(ends, value_set=known)).as_py() or 0)
    return Compared(task.table, len(ids) - len(known), lost)


@dataclass(frozen=True, slots=True)
class IndexTask:
    location: Location
    table: TableVersion
    index: IndexSpec


def compare_index(task: IndexTask) -> Read:
    """Compare what an index finds with what a scan finds, for a sample of the values."""
    column, name = task.index.column, task.index.name
    dataset = TableReader(task.location).own_handle(task.table)
    try:
        with lance_call(dataset.uri, "scan"):
            rows = dataset.count_rows()
            at = np.unique(np.linspace(0, rows - 1, min(rows, MOST_VALUES)).astype(np.int64)) if rows else ()
            sample = pc.unique(dataset.take(list(map(int, at)), columns=[column])[column]).drop_null()
            chosen = lance_filter(OneOf(column, sample))
            # The same filter twice: only the way to the rows differs, so every difference is damage.
            by_index, by_scan = (_addresses(dataset, column, chosen, use=use) for use in (True, False))
    except OmnigraphError as error:
        return Read(task.table, problems=((f"index {name} cannot be read: {error.message}", None),))
    numbers = set((np.setxor1d(by_index, by_scan) >> OFFSET_BITS).tolist())
    message = f"index {name} and this file disagree: one of the two is damaged"
    damaged = [one.metadata for one in dataset.get_fragments() if one.fragment_id in numbers]
    return Read(task.table, problems=tuple((message, _data_file(dataset, task.table, one)) for one in damaged))


def _addresses(dataset: lance.LanceDataset, column: str, chosen: str, *, use: bool) -> np.ndarray[Any, Any]:
    scanner = dataset.scanner(columns=[column], filter=chosen, with_row_address=True, use_scalar_index=use)
    return np.asarray(scanner.to_table()[ADDRESS].to_numpy())


def _data_file(dataset: lance.LanceDataset, table: TableVersion, fragment: lance.FragmentMetadata) -> str:
    file = fragment.files[0]
    fork = table.branch if file.base_id is None else dataset.base_paths()[file.base_id].name
    return f"{directory_of(table.path, fork)}/data/{file.path}"
