"""The rules between entities, checked on large tables by tasks: uniqueness, the ends of edges, cardinality.

The tables are read as they will be: what a merge brings is staged already. Tasks send the columns that a rule is about,
divided by their hash, so that equal values meet in one task. What returns are the first violations and their number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import TableVersion
from omnigraph.core.executor import ChooseExecutor, Executor, Parcel, ParcelRoute, Scattered, exchanged
from omnigraph.core.location import Location
from omnigraph.errors import Violation
from omnigraph.history.delta import TablePart, key_rows, unshared, whole_table
from omnigraph.history.large_merge import MOST_REPORTED
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.storage.columns import declared_of, table_key, table_schema
from omnigraph.storage.layout import Addresses
from omnigraph.storage.read import ADDRESS, DST, ID, OFFSET_BITS, SRC
from omnigraph.storage.shares import hashed_parcels, received
from omnigraph.storage.stage import TableStorage
from omnigraph.write.pending import without_record
from omnigraph.write.validate import TableChange, are_complete, dangling, miscounted, out_of_bounds, repeated_values

ROWS_PER_SHARE = 1_000_000
_NEW, _OLD, _LOST = range(3)  # rows that a merge brings, those that stay, and those that it removes
_IDS = pa.schema([(ID, pa.string())])


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """A large table, before and after a merge, and whether it has lost entities."""

    before: TableVersion
    after: TableVersion
    has_lost: bool


class Violations(list[Violation]):
    """The first violations, and how many there are."""

    def __init__(self, results: Sequence[CheckResult] = ()) -> None:
        super().__init__([violation for one in results for violation in one.violations][:MOST_REPORTED])
        self.unreported = sum(one.found for one in results) - len(self)


def relation_violations(
    tables: TableStorage,
    catalog: Catalog,
    state: Mapping[str, TableVersion],
    large: Mapping[str, CheckedTable],
    choose: ChooseExecutor,
) -> tuple[Violations, set[str]]:
    """Check the large tables of a state; return the violations, and the tables that were read for it."""
    plan = _Plan(tables, catalog, state, large)
    scans = plan.scans()
    rows = sum(scan.part.most_rows for scan in scans)
    shares = max(-(-rows // ROWS_PER_SHARE), 1)
    executor = choose(rows)
    sends = [replace(scan, shares=shares) for scan in scans]
    results = exchanged(
        lambda: executor.scatter("keys", send_columns, sends), lambda sent: plan.run(executor, sent, shares)
    )
    return Violations(results), set(plan.wanted)


# What is compared with what ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extract:
    """Columns that are sent as a section, divided by some of them. Rows that lack one of those are left out."""

    section: int
    keys: tuple[str, ...]
    columns: tuple[str, ...]


class RelationCheck(Protocol):
    """A rule, checked on one share of the rows that it is about."""

    @property
    def sections(self) -> list[int]: ...

    def violations(self, parcels: Sequence[Parcel]) -> Iterator[Violation]: ...


@dataclass(frozen=True, slots=True)
class UniqueCheck:
    """Values of some columns of one type occur once."""

    declared: NodeType | EdgeType
    columns: tuple[str, ...]
    new: int
    old: int

    @property
    def sections(self) -> list[int]:
        return [self.new, self.old]

    def violations(self, parcels: Sequence[Parcel]) -> Iterator[Violation]:
        stored = table_schema(self.declared)
        held = pa.schema([stored.field(name) for name in self.columns])
        rows = received(parcels, self.new, pa.schema([(ID, pa.string()), *held]))
        old = received(parcels, self.old, held)
        change = TableChange(self.declared, without_record(rows), _IDS.empty_table(), fresh=True)
        yield from repeated_values(change, self.columns, lambda _: old)


@dataclass(frozen=True, slots=True)
class EndSection:
    """One end of edges, with their ids."""

    edge: EdgeType
    column: str
    section: int


@dataclass(frozen=True, slots=True)
class CountSections:
    """The sources of edges: of new ones, of those that stay, and of those that are removed."""

    edge: EdgeType
    new: int
    old: int
    lost: int


@dataclass(slots=True)
class NodeCheck:
    """The ends of edges are nodes of one type, and these have as many edges as they should."""

    node: NodeType
    ids: int
    ends: list[EndSection] = field(default_factory=list)
    counts: list[CountSections] = field(default_factory=list)

    @property
    def sections(self) -> list[int]:
        counted = (number for one in self.counts for number in (one.new, one.old, one.lost))
        return [self.ids, *(one.section for one in self.ends), *counted]

    def violations(self, parcels: Sequence[Parcel]) -> Iterator[Violation]:
        ids = received(parcels, self.ids, _IDS)[ID].combine_chunks()
        for end in self.ends:
            rows = received(parcels, end.section, pa.schema([(ID, pa.string()), (end.column, pa.string())]))
            lost = rows.filter(pc.invert(pc.is_in(rows[end.column], value_set=ids)))
            yield from dangling(end.edge, end.column, self.node.name, without_record(lost))
        for one in self.counts:
            new, old, lost = (_sources(parcels, section) for section in (one.new, one.old, one.lost))
            touched = pc.unique(pa.chunked_array([*new.chunks, *lost.chunks], pa.string()))
            # A node that is removed may have too few edges.
            sources = touched.filter(pc.is_in(touched, value_set=ids))
            for source, count in out_of_bounds(one.edge, sources, [*new.chunks, *old.chunks]):
                yield miscounted(one.edge, source, count, None)


def _sources(parcels: Sequence[Parcel], section: int) -> pa.ChunkedArray:
    return received(parcels, section, pa.schema([(SRC, pa.string())]))[SRC]


class _Plan:
    """The checks of some large tables, and what has to be read of each table for them."""

    def __init__(
        self,
        tables: TableStorage,
        catalog: Catalog,
        state: Mapping[str, TableVersion],
        large: Mapping[str, CheckedTable],
    ) -> None:
        self.tables = tables
        self.catalog = catalog
        self.state = state
        self.large = large
        self.sections = 0
        self.nodes: dict[str, NodeCheck] = {}
        self.unique: list[UniqueCheck] = []
        self.wanted: dict[str, dict[int, list[Extract]]] = defaultdict(lambda: defaultdict(list))
        for key, table in large.items():
            self._add(declared_of(catalog, key), table)

    def _add(self, declared: NodeType | EdgeType, table: CheckedTable) -> None:
        key = table_key(declared)
        for columns in declared.unique:
            new = self._want(key, [_NEW], columns, (ID, *columns))
            self.unique.append(UniqueCheck(declared, columns, new, self._want(key, [_OLD], columns, columns)))
        if isinstance(declared, EdgeType):
            for column, end in ((SRC, declared.source), (DST, declared.target)):
                self._want_end(declared, column, end, _NEW)
            if declared.cardinality.lower or declared.cardinality.upper is not None:
                counted = [self._want(key, [role], (SRC,), (SRC,)) for role in (_NEW, _OLD, _LOST)]
                self._node(declared.source).counts.append(CountSections(declared, *counted))
        elif table.has_lost:
            for edge in self.catalog.incident_edges(declared.name):
                for column, end in ((SRC, edge.source), (DST, edge.target)):
                    if end == declared.name:
                        self._want_end(edge, column, end, _OLD)

    def _want_end(self, edge: EdgeType, column: str, end: str, role: int) -> None:
        section = self._want(table_key(edge), [role], (column,), (ID, column))
        self._node(end).ends.append(EndSection(edge, column, section))

    def _node(self, name: str) -> NodeCheck:
        if name not in self.nodes:
            ids = self._want(f"node:{name}", [_NEW, _OLD], (ID,), (ID,))
            self.nodes[name] = NodeCheck(self.catalog.nodes[name], ids)
        return self.nodes[name]

    def _want(self, key: str, roles: Sequence[int], keys: tuple[str, ...], columns: tuple[str, ...]) -> int:
        section = self.sections
        self.sections += 1
        for role in roles:
            self.wanted[key][role].append(Extract(section, keys, columns))
        return section

    def scans(self) -> list[ColumnScan]:
        return [scan for key, roles in sorted(self.wanted.items()) for scan in self._scans(key, roles)]

    def _scans(self, key: str, roles: Mapping[int, list[Extract]]) -> Iterator[ColumnScan]:
        """Read each row that some check asks for once, as a new one or as one that stays."""
        make = partial(ColumnScan, self.tables.location)
        table = self.large.get(key)
        if table is None:
            for part in whole_table(self.tables, self.state[key]).slices(ROWS_PER_SHARE):
                yield make(part, tuple(roles.get(_OLD, ())))
            return
        gone, came, _ = unshared(self.tables, table.before, table.after)
        came = came.listed(self.tables)
        new, old = (tuple(roles.get(role, ())) for role in (_NEW, _OLD))
        whole = {one.number for one in came.whole}
        rest = [one for one in whole_table(self.tables, table.after).whole if one.number not in whole]
        for part in TablePart(table.after, came.whole).slices(ROWS_PER_SHARE) if new else ():
            yield make(part, new)
        for part in TablePart(table.after, rest).slices(ROWS_PER_SHARE) if old or len(came.addresses) else ():
            numbers = [one.number for one in part.whole]
            brought = came.addresses[np.isin(came.addresses >> OFFSET_BITS, numbers)]
            yield make(part, old, new, brought)
        for part in gone.slices(ROWS_PER_SHARE) if _LOST in roles else ():
            yield make(part, tuple(roles[_LOST]))

    def run(self, executor: Executor, sent: Scattered[SentColumns], shares: int) -> list[CheckResult]:
        checks: list[RelationCheck] = [*self.unique, *self.nodes.values()]
        routes: dict[int, ParcelRoute] = {}
        for number, check in enumerate(checks):
            routes |= {section: ParcelRoute(number * shares, spread=True) for section in check.sections}
        tasks = [check for check in checks for _ in range(shares)]
        return executor.gather("check", check_share, tasks, [sent], routes)


# Tasks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnScan:
    """Some rows of a table, and the columns to send of them; of single rows among them, others are sent."""

    location: Location
    part: TablePart
    extracts: tuple[Extract, ...]
    others: tuple[Extract, ...] = ()
    single: Addresses = field(default_factory=lambda: np.empty(0, np.int64))
    shares: int = 1


@dataclass(frozen=True, slots=True)
class SentColumns:
    rows: int


def send_columns(scan: ColumnScan) -> tuple[SentColumns, list[Parcel]]:
    """Send columns of some rows to the tasks that compare them."""
    tables = TableStorage(scan.location)
    names = sorted({name for one in (*scan.extracts, *scan.others) for name in one.columns})
    rows = key_rows(tables, scan.part.listed(tables), names)
    if not rows.num_rows:
        return SentColumns(0), []
    single = np.isin(rows[ADDRESS].to_numpy(), scan.single)
    chosen = [(scan.extracts, rows.filter(pa.array(~single))), (scan.others, rows.filter(pa.array(single)))]
    parcels = [
        parcel
        for extracts, some in chosen
        for one in extracts
        for parcel in hashed_parcels(one.section, _complete(some, one), one.keys, scan.shares)
    ]
    return SentColumns(rows.num_rows), parcels


def _complete(rows: pa.Table, extract: Extract) -> pa.Table:
    return rows.filter(are_complete(rows, extract.keys)).select(list(extract.columns))


@dataclass(frozen=True, slots=True)
class CheckResult:
    violations: tuple[Violation, ...]
    found: int


def check_share(check: RelationCheck, parcels: list[Parcel]) -> CheckResult:
    """Check one share."""
    found = list(check.violations(parcels))
    return CheckResult(tuple(found[:MOST_REPORTED]), len(found))
