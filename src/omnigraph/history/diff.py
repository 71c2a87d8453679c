"""The difference between two states of a graph: which entities were inserted, updated and deleted."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.arrow import change_table, plain_values
from omnigraph.api.changes import Change, ChangeOperation, DiffStats, DiffTally, EntityKind, SchemaDifference
from omnigraph.api.results import Commit, SchemaRow, TableVersion
from omnigraph.commit.store import Store
from omnigraph.core.refs import parse_range
from omnigraph.errors import ChangeCursorError, ChangeRequestError, RefNameError
from omnigraph.history.common_past import fork_point
from omnigraph.history.delta import EDGE_KEYS, NODE_KEYS, Touched, differing, differing_rows, touched_rows
from omnigraph.history.resolve import check_readable, explaining_reclaimed, no_commit, resolve, tables_of
from omnigraph.lang.evolution import plan_schema, renames_of
from omnigraph.lang.schema_facts import IdentifiedSchema
from omnigraph.lang.schema_steps import SchemaPlan
from omnigraph.lang.source import did_you_mean
from omnigraph.manifest.state import GraphState
from omnigraph.storage.projection import Projection
from omnigraph.storage.read import DST, ID, SRC, TableReader

_ROWS = 1024  # read at a time
_ROWS_WITH_BLOBS = 64  # which can be large
_Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Which kinds, types and operations to report. Made by `chosen`, which validates them."""

    kinds: frozenset[EntityKind] = frozenset(EntityKind)
    types: frozenset[str] | None = None
    operations: frozenset[ChangeOperation] = frozenset(ChangeOperation)

    def wants_table(self, key: str) -> bool:
        kind, _, name = key.partition(":")
        return kind in self.kinds and (self.types is None or name in self.types)

    @property
    def digest(self) -> str:
        """A short hash that identifies the filter in a cursor."""
        parts = (sorted(self.kinds), "*" if self.types is None else sorted(self.types), sorted(self.operations))
        # Sorted, so that the order in which a client names types does not invalidate its cursor.
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def chosen(
    kinds: Collection[str] | None,
    types: Collection[str] | None,
    operations: Collection[str] | None,
    known: Collection[str],
) -> ChangeFilter:
    """Validate a filter; None means everything. `known` are the names of all types."""
    for name in types or ():
        if name not in known:
            message = f"type '{name}' not found"
            hint = did_you_mean(name, sorted(known)) or f"use {', '.join(sorted(known))}"
            raise ChangeRequestError(message, option="type", hint=hint)
    return ChangeFilter(
        _members(EntityKind, kinds, "kind"),
        None if types is None else frozenset(types),
        _members(ChangeOperation, operations, "op"),
    )


_E = TypeVar("_E", bound=StrEnum)


def _members(choices: type[_E], given: Collection[str] | None, option: str) -> frozenset[_E]:
    if given is None:
        return frozenset(choices)
    for name in given:
        if name not in list(choices):
            hint = f"use {', '.join(choices)}"
            raise ChangeRequestError(f"unknown {option} '{name}'", option=option, hint=hint)
    return frozenset(map(choices, given))


@dataclass(frozen=True, slots=True)
class TablePair:
    """A table that differs between two states: its version in each, or None."""

    key: str
    before: TableVersion | None
    after: TableVersion | None
    # If the schema differs: the columns of the later version by their names in the earlier, without those that are new.
    stored: Mapping[str, str] | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """Nodes before edges, then by type."""
        return self.is_edge, self.key

    @property
    def is_edge(self) -> bool:
        return self.key.startswith(f"{EntityKind.EDGE}:")

    @property
    def keys(self) -> Sequence[str]:
        return EDGE_KEYS if self.is_edge else NODE_KEYS

    @property
    def shown(self) -> TableVersion:
        """The version whose columns are compared: that of the later state, if it has the table."""
        version = self.after or self.before
        assert version is not None
        return version


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Some changed rows of one type, in columns. `before` and `after` are the two images of updated rows."""

    key: str
    inserted: pa.Table
    before: pa.Table
    after: pa.Table
    deleted: pa.Table
    compared: bool

    @property
    def counts(self) -> dict[ChangeOperation, int]:
        parts = (self.inserted, self.after, self.deleted)
        return {name: part.num_rows for name, part in zip(ChangeOperation, parts, strict=True) if part.num_rows}

    def changes(self) -> list[Change]:
        """The rows as changes, in the order of their ids."""
        found = [
            *changes_of(self.key, ChangeOperation.INSERT, None, self.inserted),
            *changes_of(self.key, ChangeOperation.UPDATE, self.before, self.after),
            *changes_of(self.key, ChangeOperation.DELETE, self.deleted, None),
        ]
        return sorted(found, key=lambda change: change.id)


@dataclass(frozen=True, slots=True)
class Diff:
    """The changes from one state of a graph to another, read on demand and in batches.

    Changes come in order: nodes before edges, then by type and id.
    """

    tables: TableReader
    before: GraphState
    after: GraphState
    filter: ChangeFilter
    schemas: SchemaPair | None = None

    def __iter__(self) -> Iterator[Change]:
        for rows in self.rows():
            yield from rows.changes()

    def rows(self) -> Iterator[ChangedRows]:
        """Yield the changed rows in batches, each of one type."""
        with self.explaining_reclaimed():
            for pair in self.pairs():
                yield from changed_rows(pair.key, touched(self.tables, pair), self.filter)

    def stats(self) -> DiffStats:
        """Count the changes."""
        tally = DiffTally()
        for rows in self.rows():
            tally.add(rows)
        return tally.stats

    @property
    def schema(self) -> SchemaDifference:
        """The types and properties that only one of the two states has."""
        if self.schemas is not None:
            return self.schemas.difference
        types: tuple[list[str], list[str]] = ([], [])
        properties: tuple[list[str], list[str]] = ([], [])
        for pair in self.pairs():
            if pair.before is None or pair.after is None:
                types[pair.after is None].append(pair.key)
                continue
            old, new = (self.tables.columns(table).names for table in (pair.before, pair.after))
            properties[0].extend(f"{pair.key}.{name}" for name in new if name not in old)
            properties[1].extend(f"{pair.key}.{name}" for name in old if name not in new)
        return SchemaDifference(*map(tuple, (*types, *properties)))

    def to_arrow(self) -> pa.Table:
        """Return all changes as one table; `before` and `after` are JSON."""
        return change_table(rows.changes() for rows in self.rows())

    def pairs(self) -> list[TablePair]:
        """Return the tables that differ, nodes before edges."""
        old, new = tables_of(self.before.snapshot), tables_of(self.after.snapshot)
        if self.schemas is not None:
            found = [pair for pair in self.schemas.pairs(old, new) if self.filter.wants_table(pair.key)]
            return sorted(found, key=lambda pair: pair.order)
        wanted = filter(self.filter.wants_table, old.keys() | new.keys())
        found = [TablePair(key, old.get(key), new.get(key)) for key in wanted]
        return sorted((pair for pair in found if pair.before != pair.after), key=lambda pair: pair.order)

    def check_readable(self) -> None:
        """Raise HistoryReclaimedError if a cleanup has removed tables of one of the states."""
        for commit, tables in self._sides():
            check_readable(self.tables, commit, tables)

    def explaining_reclaimed(self) -> AbstractContextManager[None]:
        """Raise HistoryReclaimedError for a file that a cleanup removed since the tables were opened."""
        return explaining_reclaimed(self.tables, self._sides)

    def _sides(self) -> list[tuple[Commit, list[TableVersion]]]:
        """Return the commit of each state with its tables that the other does not share."""
        pairs = self.pairs()
        return [
            (self.before.commit, [pair.before for pair in pairs if pair.before]),
            (self.after.commit, [pair.after for pair in pairs if pair.after]),
        ]


def diff(
    store: Store,
    before: str,
    after: str | None,
    *,
    kinds: Collection[str] | None = None,
    types: Collection[str] | None = None,
    operations: Collection[str] | None = None,
) -> Diff:
    """Return the changes from one state to another, each named by a ref; of `a...b` those of b since it left a."""
    one, other = _two_states(store, before, after)
    found = diff_of(store, one, other, chosen(kinds, types, operations, type_names(one, other)))
    found.check_readable()  # the caller learns it now, and not from the first change that it reads
    return found


def _two_states(store: Store, before: str, after: str | None) -> tuple[GraphState, GraphState]:
    sides = parse_range(before, "...") if after is None else None
    if sides is not None:
        main, branch = (resolve(store.manifest, ref, no_commit) for ref in sides)
        return fork_point(store.manifest, main, branch), branch.graph_state
    if after is None:
        message = f"{before!r:.80} is one state, and a difference needs two"
        raise RefNameError(message, name=before, hint="name both, or write `main...branch`")
    one, other = (resolve(store.manifest, ref, no_commit).graph_state for ref in (before, after))
    return one, other


def diff_of(store: Store, before: GraphState, after: GraphState, wanted: ChangeFilter) -> Diff:
    rows = before.snapshot.schema, after.snapshot.schema
    pair = None if rows[0] == rows[1] else SchemaPair(*(identified(store, row) for row in rows))
    return Diff(store.tables, before, after, wanted, pair)


def identified(store: Store, row: SchemaRow | None) -> IdentifiedSchema:
    """Return a schema with the identity of its types."""
    accepted = store.schema_of_row(row)
    return IdentifiedSchema(accepted.catalog, store.ids_of_row(row), accepted.text)


@dataclass(frozen=True, slots=True)
class SchemaPair:
    """The schemas of two states, matched by the identity of types and properties."""

    before: IdentifiedSchema
    after: IdentifiedSchema

    @property
    def plan(self) -> SchemaPlan:
        return plan_schema(self.before.catalog, self.after.catalog, renames=renames_of(self.before.ids, self.after.ids))

    @property
    def difference(self) -> SchemaDifference:
        names = renames_of(self.before.ids, self.after.ids)
        old, new = (set(filter(_has_table, one.ids)) for one in (self.before, self.after))
        added, removed, renamed = [], [], [f"{old} -> {new}" for new, old in names.types.items() if old != new]
        for key, kept in names.properties.items():
            if _has_table(key):
                before, after = self.before.ids[names.types[key]].properties, self.after.ids[key].properties
                added += [f"{key}.{name}" for name in after if name not in kept]
                removed += [f"{names.types[key]}.{name}" for name in before if name not in kept.values()]
                renamed += [f"{names.types[key]}.{one} -> {key}.{name}" for name, one in kept.items() if name != one]
        types = (new - names.types.keys(), old - set(names.types.values()))
        return SchemaDifference(*(tuple(sorted(one)) for one in (*types, added, removed, renamed)))

    def pairs(self, old: Mapping[str, TableVersion], new: Mapping[str, TableVersion]) -> Iterator[TablePair]:
        """Yield the tables that differ, by their later keys."""
        names = renames_of(self.before.ids, self.after.ids)
        for key, table in new.items():
            before = old.get(names.types.get(key, ""))
            if before is None or replace(before, key=key) != table:
                system = {name: name for name in (EDGE_KEYS if key.startswith("edge:") else NODE_KEYS)}
                yield TablePair(key, before, table, {**system, **names.properties.get(key, {})} if before else None)
        gone = old.keys() - set(names.types.values())
        yield from (TablePair(key, old[key], None) for key in gone)


def _has_table(key: str) -> bool:
    return not key.startswith("interface:")


def type_names(*states: GraphState) -> set[str]:
    return {key.partition(":")[2] for state in states for key in state.snapshot.entries}


def touched(tables: TableReader, pair: TablePair) -> Touched:
    """Find the rows that the two versions of a table do not share."""
    schema, projections = tables.columns(pair.shown), dict[TableVersion, Projection]()
    if pair.before and pair.after:
        other = tables.columns(pair.before)
        if pair.stored is not None:
            stored = {name: one for name, one in pair.stored.items() if name in schema.names and one in other.names}
            other = pa.schema([other.field(one).with_name(name) for name, one in stored.items()])
            schema = _widest(schema, other)
            projections[pair.before] = Projection(schema, stored)
        else:
            schema = _widest(schema, other)
    return touched_rows(tables, pair.before, pair.after, schema, pair.keys, projections=projections)


def _widest(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return the columns in the wider type of two: its values may not fit the other, whichever state is the later."""
    both = [pa.schema([one.field(name) for name in schema.names if name in other.names]) for one in (schema, other)]
    common = pa.unify_schemas(both, promote_options="permissive")
    return pa.schema([common.field(one.name) if one.name in common.names else one for one in schema])


def changed_rows(
    key: str, touched: Touched, wanted: ChangeFilter, beyond: str | None = None, part: tuple[int, int] = (0, 1)
) -> Iterator[ChangedRows]:
    """Yield the changed rows of one table in the order of their ids, starting after `beyond`.

    `part` is the number of one of several parts of about the same size, and how many there are.
    """
    size = _ROWS_WITH_BLOBS if pa.large_binary() in touched.schema.types else _ROWS
    number, parts = part
    which, places = (np.array_split(found, parts)[number] for found in _in_order(touched, wanted, beyond))
    for at in range(0, len(which), size):
        found = _read(key, touched, which[at : at + size], places[at : at + size])
        if found.counts:
            yield found


def _in_order(touched: Touched, wanted: ChangeFilter, beyond: str | None) -> tuple[_Numbers, _Numbers]:
    """Return the operation of each touched row in the order of ids, and its index among the rows of that operation."""
    parts = [touched.inserted, touched.new, touched.deleted]
    kept = [
        part.num_rows if operation in wanted.operations else 0
        for operation, part in zip(ChangeOperation, parts, strict=True)
    ]
    # Sorted by id before any row is read: a page can stop anywhere, and the next begins behind a known id.
    ids = pa.chunked_array(
        [chunk for part, count in zip(parts, kept, strict=True) for chunk in part[ID].slice(0, count).chunks],
        pa.string(),
    )
    which = np.repeat(np.arange(len(parts)), kept)
    places = np.concatenate([np.arange(count) for count in kept])
    order = pc.sort_indices(ids).to_numpy()
    if beyond is not None:
        order = order[pc.greater(ids, whole_id(beyond, ids)).to_numpy()[order]]
    return which[order], places[order]


def _read(key: str, touched: Touched, which: _Numbers, places: _Numbers) -> ChangedRows:
    inserts, updates, deletes = (pa.array(places[which == number]) for number in range(len(ChangeOperation)))
    before = touched.rows_before(touched.old.take(updates))
    after = touched.rows_after(touched.new.take(updates))
    # A row that was written again with the same values is touched, but has not changed.
    differs = pa.array(differing_rows(before, after))
    return ChangedRows(
        key,
        touched.rows_after(touched.inserted.take(inserts)),
        before.filter(differs),
        after.filter(differs),
        touched.rows_before(touched.deleted.take(deletes)),
        touched.compared,
    )


def changes_of(
    key: str, operation: ChangeOperation, before: pa.Table | None, after: pa.Table | None
) -> Iterator[Change]:
    present = before if after is None else after
    assert present is not None
    kind, _, name = key.partition(":")
    is_edge = kind == EntityKind.EDGE
    hidden = EDGE_KEYS if is_edge else NODE_KEYS
    ends = zip(*(present[end].to_pylist() for end in (SRC, DST)), strict=True) if is_edge else itertools.repeat(None)
    both = before is not None and after is not None
    changed = _changed_names(before, after) if both else itertools.repeat(())
    sides = (itertools.repeat(None) if side is None else _properties(side, hidden) for side in (before, after))
    # Not strict: an absent side is repeated without end.
    for id_, endpoints, old, new, names in zip(present[ID].to_pylist(), ends, *sides, changed, strict=False):
        yield Change(operation, EntityKind(kind), name, id_, endpoints, old, new, names)


def _properties(rows: pa.Table, hidden: Sequence[str]) -> Iterator[dict[str, Any]]:
    names = [name for name in rows.column_names if name not in hidden]
    columns = [plain_values(rows[name]) for name in names]
    return (dict(zip(names, [column[at] for column in columns], strict=True)) for at in range(rows.num_rows))


def _changed_names(before: pa.Table, after: pa.Table) -> list[tuple[str, ...]]:
    masks = [(name, differing(before[name], after[name])) for name in after.column_names]
    return [tuple(name for name, mask in masks if mask[at]) for at in range(after.num_rows)]


# Positions in a table ------------------------------------------------------------------------------

_LONGEST_ID, _PREFIX = 256, 64  # bytes
_HASHED = "\0"  # occurs in no id


def short_id(text: str) -> str:
    """Return the form of an id in a token: a long id becomes a prefix and a hash, so that tokens stay short."""
    # In bytes: a token has a limit in bytes, and an id of 256 characters may have 1,024 of them.
    data = text.encode()
    if len(data) <= _LONGEST_ID:
        return text
    return f"{data[:_PREFIX].decode(errors='ignore')}{_HASHED}{hashlib.sha256(data).hexdigest()}"


def whole_id(short: str, ids: pa.ChunkedArray) -> str:
    """Find the id that `short_id` made a token of."""
    prefix, hashed, _ = short.partition(_HASHED)
    if not hashed:
        return short
    # By prefix first: hashing every id of a large table would cost more than the page.
    alike = ids.filter(pc.starts_with(ids, prefix)).to_pylist()
    found = next((one for one in alike if short_id(one) == short), None)
    if found is None:
        raise ChangeCursorError("change cursor rejected: the entity it stops at no longer exists", hint="start again")
    return str(found)
