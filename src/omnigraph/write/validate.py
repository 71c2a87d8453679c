"""The validator: which rules of the schema a change would break. It reads only what the change touches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import TableVersion
from omnigraph.commit.plan import Inserted, WriteTxn
from omnigraph.core.values import FLOATS
from omnigraph.errors import PatternError, Violation
from omnigraph.lang.catalog import Catalog, Check, EdgeType, NodeType, Range
from omnigraph.lang.ir import Operator
from omnigraph.storage.columns import image_schema, table_key
from omnigraph.storage.predicates import AllOf, OneOf, arrow_expression, comparison
from omnigraph.storage.projection import Projection
from omnigraph.storage.read import DST, ID, MOST_VALUES, SRC
from omnigraph.storage.stage import Staged, TableStorage
from omnigraph.write.pending import RECORD, without_record

TWICE, TAKEN = "occurs twice in one change", "is already taken"
_SHOWN = 80
_MOST_COMPARED = 8192
_EMBED = "give the vector; `omnigraph embed` adds it to a file of records"
_WORDINGS = {
    "enum": "invalid enum value {value} for {label} {why}",
    "required": "{label} {why}",
    "finite": "{label} {why}, not {value}",
}


@dataclass(frozen=True, slots=True)
class TableChange:
    """The change of one type: the entities it brings, as they will be, and those it removes.

    `removed` has ids, and for edges sources. An id in both is replaced. `fresh`: none of the new ids can exist.
    `detached`: no edge is left that names a removed node.
    """

    declared: NodeType | EdgeType
    rows: pa.Table
    removed: pa.Table
    fresh: bool = False
    detached: bool = False

    @property
    def touched(self) -> pa.Array:
        """The ids of all committed entities that the change replaces or removes."""
        brought = [] if self.fresh else self.rows[ID].chunks
        return pa.chunked_array([*brought, *self.removed[ID].chunks], pa.string()).combine_chunks()

    @property
    def gone(self) -> pa.Array:
        """The ids that will not exist any more."""
        return _except(self.removed[ID].combine_chunks(), self.rows[ID].combine_chunks())


@dataclass(frozen=True, slots=True)
class ExistingTable:
    """A version of a table, and how it is read in the columns that it is to have."""

    table: TableVersion
    projection: Projection


def _no_rows(declared: NodeType | EdgeType, columns: Sequence[str]) -> pa.Table:
    schema = image_schema(declared)
    return pa.schema([schema.field(name) for name in columns]).empty_table()


@dataclass(slots=True)
class CommittedRows:
    """The graph that a change is validated against. Records which tables were read.

    `ahead` are tables that are staged already, and checked by other means: these are read as they will be.
    """

    tables: TableStorage
    txn: WriteTxn
    read_set: set[str] = field(default_factory=set)
    ahead: Mapping[str, TableVersion] = field(default_factory=dict)
    # Tables of which the schema changes together with the rows: where they are now, and how they are read. None if new.
    changing: Mapping[str, ExistingTable | None] = field(default_factory=dict)

    def lookup(self, declared: NodeType | EdgeType, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        key = table_key(declared)
        if key not in self.changing or key in self.ahead:
            return self.tables.lookup(self._table(declared), column, values, columns)
        at = self.changing[key]
        if at is None or column not in at.projection.stored:
            return _no_rows(declared, columns)
        found = self.tables.lookup(at.table, at.projection.stored[column], values, at.projection.names(columns))
        return at.projection.of(found, columns)

    def matching(self, declared: NodeType | EdgeType, groups: pa.Table) -> pa.Table:
        """Read the id and columns of rows that may hold one of the groups of values."""
        key, names = table_key(declared), groups.column_names
        changing = key in self.changing and key not in self.ahead
        at = self.changing[key] if changing else None
        if changing and (at is None or not at.projection.stored.keys() >= set(names)):
            return _no_rows(declared, [ID, *names])
        table = at.table if at else self._table(declared)
        stored = at.projection.stored if at else {name: name for name in (ID, *names)}
        # The values of each column are filtered separately, so a row may match a mixture; `_taken` joins on all of
        # them.
        found = []
        for first in range(0, groups.num_rows, MOST_VALUES):
            chunk = groups.slice(first, MOST_VALUES)
            wanted = AllOf(tuple(OneOf(stored[name], chunk[name].combine_chunks().unique()) for name in names))
            rows = self.tables.scan(table, [stored[name] for name in (ID, *names)], wanted)
            found.append(at.projection.of(rows, [ID, *names]) if at else rows)
        return pa.concat_tables(found)

    def _table(self, declared: NodeType | EdgeType) -> Any:
        key = table_key(declared)
        # Everything that validation reads must be unchanged at the publish, or two valid changes could contradict each
        # other.
        self.read_set.add(key)
        return self.ahead.get(key) or self.txn.entries[key].table


def violations(catalog: Catalog, committed: CommittedRows, changes: Mapping[str, TableChange]) -> Iterator[Violation]:
    """Yield every rule that the change would break: values first, then uniqueness, endpoints and cardinality."""
    # Nodes before edges: a violation of a node explains those of its edges.
    for change in sorted(changes.values(), key=lambda change: isinstance(change.declared, EdgeType)):
        yield from value_violations(change.declared, change.rows)
    yield from relation_violations(catalog, committed, changes)


def relation_violations(
    catalog: Catalog, committed: CommittedRows, changes: Mapping[str, TableChange]
) -> Iterator[Violation]:
    """Yield the violations of rules about several entities."""
    relations = _Relations(catalog, committed, changes)
    for change in changes.values():
        if isinstance(change.declared, NodeType):
            yield from _uniqueness(change, committed)
            yield from relations.orphans(change)
    for change in changes.values():
        if isinstance(change.declared, EdgeType):
            yield from _uniqueness(change, committed)
            yield from relations.endpoints(change, change.declared)
            yield from relations.cardinality(change, change.declared)


# Values --------------------------------------------------------------------------------------------


def value_violations(declared: NodeType | EdgeType, rows: pa.Table) -> Iterator[Violation]:
    """Yield the violations of rules about single values. Null violates none of them but `required`."""
    for name, property_ in declared.properties.items():
        column = rows[name]
        if not property_.type.nullable:
            missing = rows.filter(pc.is_null(column))
            yield from _broken(declared, missing, "required", name, "is required, and there is no value")
        if property_.type.enum:
            # A missing value is no wrong enum value; `required` reports it.
            wrong = pc.invert(pc.is_in(column, pa.array([*property_.type.enum, None])))
            expected = ", ".join(property_.type.enum)
            yield from _broken(declared, rows.filter(wrong), "enum", name, f"(expected: {expected})")
        if property_.type.scalar in FLOATS and not property_.type.is_list:
            infinite = rows.filter(pc.invert(pc.is_finite(column)))
            yield from _broken(declared, infinite, "finite", name, "must be a finite number")
    if isinstance(declared, NodeType):
        for range_ in declared.ranges:
            yield from _range(declared, rows, range_)
        for check in declared.checks:
            yield from _check(declared, rows, check)


def with_required(declared: NodeType | EdgeType, rows: pa.Table) -> pa.Table:
    """Drop the rows that lack a required value: no table can hold them."""
    for name, property_ in declared.properties.items():
        if not property_.type.nullable and rows[name].null_count:
            rows = rows.filter(pc.is_valid(rows[name]))
    return rows


def _range(declared: NodeType, rows: pa.Table, rule: Range) -> Iterator[Violation]:
    type_ = declared.properties[rule.property].type
    for operator, bound in ((Operator.GE, rule.lower), (Operator.LE, rule.upper)):
        if bound is None:
            continue
        # By the predicate of queries, not as floats: those hold no integer beyond 2**53 exactly, and no bound of a U64.
        inside = arrow_expression(comparison(rule.property, type_, operator, bound))
        outside = rows.filter(pc.field(rule.property).is_valid() & ~inside)
        yield from _broken(declared, outside, "range", rule.property, f"must keep {rule}")


def _check(declared: NodeType, rows: pa.Table, rule: Check) -> Iterator[Violation]:
    found = _matches(declared, rows[rule.property], rule)
    yield from _broken(declared, rows.filter(pc.invert(found)), "check", rule.property, f"must match {rule.pattern!r}")


def check_patterns(catalog: Catalog) -> None:
    """Raise if a pattern of the schema cannot be compiled."""
    for declared in catalog.nodes.values():
        for rule in declared.checks:
            _matches(declared, pa.array([""]), rule)


def _matches(declared: NodeType, column: pa.Array | pa.ChunkedArray, rule: Check) -> Any:
    try:
        return pc.match_substring_regex(column, rule.pattern)
    except pa.ArrowInvalid as error:
        message = f"the pattern of {declared.name}.{rule.property} cannot be used: {str(error).partition(': ')[2]}"
        hint = "use RE2 syntax, which has no look-around and no back-references"
        raise PatternError(
            message, type_name=declared.name, property=rule.property, pattern=rule.pattern, hint=hint
        ) from None


def _broken(declared: NodeType | EdgeType, rows: pa.Table, rule: str, name: str, why: str) -> Iterator[Violation]:
    label = f"{declared.name}.{name}"
    wording = _WORDINGS.get(rule, f"@{rule} violation on {{label}}: {{value}} {{why}}")
    hint = _EMBED if rule == "required" and declared.properties[name].embed else None
    for row in _plain(rows.select([ID, name, RECORD])):
        message = wording.format(value=_shown(row[name]), label=label, why=why)
        yield Violation(rule, declared.name, row[ID], (name,), message, row[RECORD], hint)


# Uniqueness ----------------------------------------------------------------------------------------


def _uniqueness(change: TableChange, committed: CommittedRows) -> Iterator[Violation]:
    for columns in change.declared.unique:
        yield from repeated_values(change, columns, partial(committed.matching, change.declared))


def repeated_values(
    change: TableChange, columns: Sequence[str], matching: Callable[[pa.Table], pa.Table]
) -> Iterator[Violation]:
    """Yield the entities whose values occur twice; `matching` reads committed rows that may hold some values."""
    rows = _complete(change.rows.select([ID, RECORD, *columns]), columns)
    yield from _repeated(change, rows, columns)
    yield from _taken(change, rows, columns, matching)


def are_complete(rows: pa.Table, columns: Iterable[str]) -> pa.Array:
    """Return which rows must be unique: null exempts a row, and so does NaN or an infinity, reported elsewhere."""
    complete = np.ones(rows.num_rows, bool)
    for name in columns:
        is_floating = pa.types.is_floating(rows[name].type)
        good = pc.fill_null(pc.is_finite(rows[name]), fill_value=False) if is_floating else rows[name].is_valid()
        complete &= good.to_numpy()
    return pa.array(complete)


def _complete(rows: pa.Table, columns: Iterable[str]) -> pa.Table:
    """Drop the rows that uniqueness does not concern, and normalise -0.0 to 0.0."""
    rows = rows.filter(are_complete(rows, columns))
    for name in columns:
        if pa.types.is_floating(rows[name].type):
            # Adding 0.0 turns -0.0 into 0.0: they are one value, but group differently.
            rows = rows.set_column(rows.column_names.index(name), name, pc.add(rows[name], 0.0))
    return rows


def inserted(
    brought: Mapping[str, tuple[NodeType | EdgeType, pa.Table]], staged: Iterable[Staged]
) -> dict[str, Inserted] | None:
    """Return the values of new rows that another insert may take from them, if it comes first.

    None if the change does more than insert rows, or too many to compare them with those of others.
    """
    few = sum(rows.num_rows for _, rows in brought.values()) <= _MOST_COMPARED
    if not few or not all(one.is_append for one in staged):
        return None
    return {key: _contested(declared, rows) for key, (declared, rows) in brought.items()}


def _contested(declared: NodeType | EdgeType, rows: pa.Table) -> Inserted:
    columns = {(ID,), *map(tuple, declared.unique)}
    if isinstance(declared, EdgeType) and declared.cardinality.upper is not None:
        columns.add((SRC,))  # two inserts may each be within the bound, and both together beyond it
    return {names: _complete(rows.select(list(names)), names) for names in sorted(columns)}


def _repeated(change: TableChange, rows: pa.Table, columns: Sequence[str]) -> Iterator[Violation]:
    """Report every entity that repeats the values of an earlier one in the same change."""
    if rows.group_by(list(columns)).aggregate([]).num_rows == rows.num_rows:
        return
    if rows[RECORD].null_count:  # of a merge: in the order of ids, however its work was divided
        rows = rows.sort_by(ID)
    numbered = rows.append_column("at", pa.array(np.arange(rows.num_rows)))
    first = numbered.group_by(list(columns)).aggregate([("at", "min")])["at_min"]
    later = np.setdiff1d(np.arange(rows.num_rows), first.to_numpy())
    yield from not_unique(change.declared, rows.take(later), columns, TWICE)


def _taken(
    change: TableChange, rows: pa.Table, columns: Sequence[str], matching: Callable[[pa.Table], pa.Table]
) -> Iterator[Violation]:
    """Report every entity that has the values of a committed one which the change leaves as it is."""
    if not rows.num_rows:
        return
    found = matching(rows.select(list(columns)))
    # An entity that the change replaces or removes gives up its values.
    others = _complete(_without(found, change.touched), columns).select(list(columns))
    held = rows.join(others.group_by(list(columns)).aggregate([]), keys=list(columns), join_type="left semi")
    yield from not_unique(change.declared, held.sort_by(RECORD), columns, TAKEN)


def not_unique(declared: NodeType | EdgeType, rows: pa.Table, columns: Sequence[str], why: str) -> Iterator[Violation]:
    """Report entities whose values must be unique and are not."""
    label = columns[0] if len(columns) == 1 else f"({', '.join(columns)})"
    for row in _plain(rows):
        value = ", ".join(_shown(_one_zero(row[name])) for name in columns)
        message = f"@unique violation on {declared.name}.{label}: {value} {why}"
        yield Violation("unique", declared.name, row[ID], tuple(columns), message, row[RECORD])


def _one_zero(value: Any) -> Any:
    """Return 0.0 for both zeros."""
    return 0.0 if value == 0 and isinstance(value, float) else value


# Edges ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Relations:
    """The rules between nodes and edges, checked on the committed rows and all changes together."""

    catalog: Catalog
    committed: CommittedRows
    changes: Mapping[str, TableChange]

    def endpoints(self, change: TableChange, edge: EdgeType) -> Iterator[Violation]:
        """Report the edges that name nodes which do not exist."""
        # Each type once: both ends of an edge may be of one type, and then one lookup serves both.
        missing = {name: self._missing(change, edge, name) for name in dict.fromkeys((edge.source, edge.target))}
        for column, type_name in ((SRC, edge.source), (DST, edge.target)):
            rows = change.rows.filter(pc.is_in(change.rows[column], missing[type_name]))
            yield from dangling(edge, column, type_name, rows)

    def _missing(self, change: TableChange, edge: EdgeType, type_name: str) -> pa.Array:
        """Return the ids that edges name as nodes of a type, and that exist neither in the graph nor in the change."""
        brought = self.changes.get(f"node:{type_name}")
        columns = [name for name, end in ((SRC, edge.source), (DST, edge.target)) if end == type_name]
        chunks = [chunk for name in columns for chunk in change.rows[name].chunks]
        wanted = pc.unique(pa.chunked_array(chunks, pa.string()))
        if brought:
            # Nodes of the same change count, so both can be inserted together.
            wanted = _except(wanted, brought.rows[ID].combine_chunks())
        if not len(wanted):
            return wanted
        found = self.committed.lookup(self.catalog.nodes[type_name], ID, wanted, [ID])[ID].combine_chunks()
        return _except(wanted, _except(found, brought.gone) if brought else found)

    def orphans(self, change: TableChange) -> Iterator[Violation]:
        """Report the edges that stay although one of their nodes goes."""
        # A mutation removes the edges of its deleted nodes itself; a merge or an overwrite may leave some.
        gone = pa.array([], pa.string()) if change.detached else change.gone
        for edge in self.catalog.incident_edges(change.declared.name) if len(gone) else ():
            staying = self.changes.get(table_key(edge))
            for column, end in ((SRC, edge.source), (DST, edge.target)):
                if end != change.declared.name:
                    continue
                found = self.committed.lookup(edge, column, gone, [ID, column])
                left = _without(found, staying.touched) if staying else found
                yield from dangling(edge, column, end, without_record(left))

    def cardinality(self, change: TableChange, edge: EdgeType) -> Iterator[Violation]:
        """Report the sources with too many or too few edges."""
        bounds = edge.cardinality
        if not bounds.lower and bounds.upper is None:
            return
        sources = self._affected_sources(change, edge)
        if not len(sources):
            return
        # Committed edges that stay, plus those of the change: an edge that moves is counted once, at its new source.
        kept = _without(self.committed.lookup(edge, SRC, sources, [ID, SRC]), change.touched)
        for source, count in out_of_bounds(edge, sources, [*kept[SRC].chunks, *change.rows[SRC].chunks]):
            yield miscounted(edge, source, count, _last_record(change.rows, source))

    def _affected_sources(self, change: TableChange, edge: EdgeType) -> pa.Array:
        """Return the sources of edges that are added, removed or moved, except those that are removed themselves."""
        chunks = [*change.rows[SRC].chunks, *change.removed[SRC].chunks]
        # An edge that moves to another source changes the count of its old one as well.
        if change.rows.num_rows and not change.fresh:
            before = self.committed.lookup(edge, ID, change.rows[ID].combine_chunks(), [SRC])
            chunks += before[SRC].chunks
        sources = pc.unique(pa.chunked_array(chunks, pa.string()))
        nodes = self.changes.get(f"node:{edge.source}")
        if f"node:{edge.source}" in self.committed.ahead:
            return self.committed.lookup(self.catalog.nodes[edge.source], ID, sources, [ID])[ID].combine_chunks()
        return _except(sources, nodes.gone) if nodes else sources


def dangling(edge: EdgeType, column: str, type_name: str, rows: pa.Table) -> Iterator[Violation]:
    """Report edges whose endpoint does not exist."""
    for row in rows.select([ID, column, RECORD]).to_pylist():
        message = f"{column} {_shown(row[column])} not found in {type_name}"
        hint = f"insert the {type_name} first, or in the same change"
        yield Violation("endpoint", edge.name, row[ID], (column,), message, row[RECORD], hint)


def _except(values: pa.Array, others: pa.Array) -> pa.Array:
    return values.filter(pc.invert(pc.is_in(values, others)))


def miscounted(edge: EdgeType, source: str, count: int, record: int | None) -> Violation:
    """Report a source with too many or too few edges."""
    bounds = edge.cardinality
    bound = f"min {bounds.lower}" if count < bounds.lower else f"max {bounds.upper}"
    message = f"@card violation on edge {edge.name}: source {_shown(source)} has {count} edges ({bound})"
    return Violation("cardinality", edge.name, source, (SRC,), message, record)


def out_of_bounds(edge: EdgeType, sources: pa.Array, chunks: Sequence[pa.Array]) -> Iterator[tuple[str, int]]:
    """Yield the sources that occur too rarely or too often, and how often."""
    positions = pc.drop_null(pc.index_in(pa.chunked_array(chunks, pa.string()), value_set=sources))
    counts = np.bincount(positions.to_numpy(), minlength=len(sources))
    most = np.inf if edge.cardinality.upper is None else edge.cardinality.upper
    for at in np.flatnonzero((counts < edge.cardinality.lower) | (counts > most)).tolist():
        yield sources[at].as_py(), int(counts[at])


def _last_record(rows: pa.Table, source: str) -> int | None:
    records = rows.filter(pc.equal(rows[SRC], source))[RECORD]
    return records[-1].as_py() if len(records) else None


def _without(rows: pa.Table, ids: pa.Array) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows[ID], ids))) if len(ids) else rows


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows as plain values, date-times with their time."""
    moments = [at for at, field in enumerate(rows.schema) if pa.types.is_date64(field.type)]
    for at in moments:
        rows = rows.set_column(at, rows.column_names[at], rows.column(at).cast(pa.timestamp("ms")))
    plain: list[dict[str, Any]] = rows.to_pylist()
    return plain


def _shown(value: object) -> str:
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
