"""What turns one version of a table into another, found from what the two do not share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.history.equality import differing_rows
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.storage.columns import table_schema
from omnigraph.storage.fragments import (
    ROW,
    WRITTEN,
    Addresses,
    Fragment,
    common_version,
    deleted_offsets,
    fragments,
    origins,
)
from omnigraph.storage.reading import ADDRESS, DST, ID, MOST_VALUES, OFFSET_BITS, SRC, TableReader, TableVersion

NODE_KEYS, EDGE_KEYS = (ID,), (ID, SRC, DST)
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class TableDelta:
    """The rows that one version inserts, updates and deletes with respect to another.

    `inserted` and `updated` hold whole rows as they are afterwards, a Blob as its bytes; `deleted` the ids, and the
    endpoints of edges. `compared` says that nothing tells what the versions have in common, so all rows were compared.
    """

    inserted: pa.Table
    updated: pa.Table
    deleted: pa.Table
    compared: bool


def table_delta(
    tables: TableReader, before: TableVersion | None, after: TableVersion | None, declared: NodeType | EdgeType
) -> TableDelta:
    """Find what turns `before` into `after`; None means that the table is not there. Equal rows are not part of it."""
    schema = image_schema(declared)
    found = touched_rows(tables, before, after, schema, EDGE_KEYS if isinstance(declared, EdgeType) else NODE_KEYS)
    updated = [now for _, now in found.updates()]
    return TableDelta(
        found.rows_after(found.inserted),
        pa.concat_tables(updated) if updated else schema.empty_table(),
        found.deleted.drop_columns(ADDRESS),
        found.compared,
    )


def image_schema(declared: NodeType | EdgeType) -> pa.Schema:
    """The columns of a table as they are read: a Blob is its bytes."""
    stored = table_schema(declared)
    blobs = {name for name, property_ in declared.properties.items() if property_.type.is_blob}
    return pa.schema(
        [pa.field(name, pa.large_binary()) if name in blobs else stored.field(name) for name in stored.names]
    )


@dataclass(frozen=True, slots=True)
class Touched:
    """The rows that two versions of a table do not share, by their keys and addresses; values are read on request.

    `deleted` are rows of `before` and `inserted` rows of `after`; `old` and `new` are the two rows of one id, which may
    turn out to be equal.
    """

    tables: TableReader
    before: TableVersion | None
    after: TableVersion | None
    schema: pa.Schema
    inserted: pa.Table
    deleted: pa.Table
    old: pa.Table
    new: pa.Table
    compared: bool

    def updates(self, size: int = MOST_VALUES) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Read the rows of ids that are on both sides, some at a time, and keep those that differ: before, after."""
        for at in range(0, self.new.num_rows, size):
            before, after = self.rows_before(self.old.slice(at, size)), self.rows_after(self.new.slice(at, size))
            differs = differing_rows(before, after)
            if differs.any():
                mask = pa.array(differs)
                yield before.filter(mask), after.filter(mask)

    def rows_before(self, keys: pa.Table) -> pa.Table:
        return _rows(self.tables, self.before, self.schema, keys)

    def rows_after(self, keys: pa.Table) -> pa.Table:
        return _rows(self.tables, self.after, self.schema, keys)


def _rows(tables: TableReader, table: TableVersion | None, schema: pa.Schema, keys: pa.Table) -> pa.Table:
    """Read whole rows; a property that the version does not have is null in them."""
    if table is None or not keys.num_rows:
        return schema.empty_table()
    stored = tables.columns(table).names
    rows = tables.rows_at(table, keys[ADDRESS].to_numpy(), [name for name in schema.names if name in stored])
    columns = [
        rows[field.name].cast(field.type) if field.name in stored else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def touched_rows(
    tables: TableReader,
    before: TableVersion | None,
    after: TableVersion | None,
    schema: pa.Schema,
    keys: Sequence[str],
) -> Touched:
    """Find the rows that are not the same stored row in both versions, and match them by id.

    Rows are read in the columns of `schema`, their keys in those of `keys`.
    """
    if before == after:
        one, other, compared = _Part(before), _Part(after), False
    elif before is None or after is None:
        one, other, compared = _everything(tables, before), _everything(tables, after), False
    else:
        one, other, compared = _unshared(tables, before, after)
    old, new = _keys(tables, one, keys), _keys(tables, other, keys)
    kept, was = _in_both(old, new)
    return Touched(
        tables,
        before,
        after,
        schema,
        inserted=new.filter(pc.invert(kept)),
        deleted=old.filter(pc.invert(was)),
        old=old.take(pc.index_in(new[ID].filter(kept), value_set=old[ID])),
        new=new.filter(kept),
        compared=compared,
    )


def _in_both(old: pa.Table, new: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    return pc.is_in(new[ID], value_set=old[ID]), pc.is_in(old[ID], value_set=new[ID])


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a version: all of some fragments, and others by their addresses."""

    table: TableVersion | None
    whole: Sequence[Fragment] = ()
    addresses: Addresses = field(default_factory=lambda: _NONE)


def _everything(tables: TableReader, table: TableVersion | None) -> _Part:
    return _Part(table, fragments(tables, table) if table else ())


def _unshared(tables: TableReader, before: TableVersion, after: TableVersion) -> tuple[_Part, _Part, bool]:
    """Leave out the rows that both versions have in the same files, and those that a compaction only moved."""
    old, new = ({one.files: one for one in fragments(tables, table)} for table in (before, after))
    both = old.keys() & new.keys()
    gone, came = [], []
    for files in both:
        if old[files].deletions != new[files].deletions:
            was, is_ = (deleted_offsets(tables, t, f[files]) for t, f in ((before, old), (after, new)))
            gone.append(_addresses(old[files], np.setdiff1d(is_, was, assume_unique=True)))
            came.append(_addresses(new[files], np.setdiff1d(was, is_, assume_unique=True)))
    one = _Part(before, [old[files] for files in old if files not in both], np.concatenate([_NONE, *gone]))
    other = _Part(after, [new[files] for files in new if files not in both], np.concatenate([_NONE, *came]))
    if not one.whole or not other.whole:
        return one, other, False
    since = common_version(tables, before, after) if _are_traced(one, other) else 0
    return (*_without_moved(tables, one, other, since), False) if since else (one, other, not both)


def _addresses(fragment: Fragment, offsets: Addresses) -> Addresses:
    return (fragment.number << OFFSET_BITS) | offsets


def _are_traced(*parts: _Part) -> bool:
    return all(fragment.is_traced for part in parts for fragment in part.whole)


def _without_moved(tables: TableReader, one: _Part, other: _Part, since: int) -> tuple[_Part, _Part]:
    """Leave out the rows of whole fragments that both versions have from their common past.

    A compaction keeps the number of each row and the version that wrote it. One version of one branch writes a number
    at most once, so up to the version that both come from, equal pairs are one row.
    """
    assert one.table
    assert other.table
    old, new = origins(tables, one.table, one.whole), origins(tables, other.table, other.whole)
    _, here, there = np.intersect1d(_column(old, ROW), _column(new, ROW), assume_unique=True, return_indices=True)
    was, is_ = _column(old, WRITTEN)[here], _column(new, WRITTEN)[there]
    same = (was == is_) & (was <= since)
    if not same.any():
        return one, other
    return _rest(one, old, here[same]), _rest(other, new, there[same])


def _rest(part: _Part, found: pa.Table, moved: Addresses) -> _Part:
    left = np.delete(_column(found, ADDRESS), moved)
    return _Part(part.table, (), np.concatenate([part.addresses, left]))


def _column(found: pa.Table, name: str) -> Addresses:
    return found[name].to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _keys(tables: TableReader, part: _Part, names: Sequence[str]) -> pa.Table:
    """Read the keys of some rows, with their addresses."""
    schema = pa.schema([*((name, pa.string()) for name in names), (ADDRESS, pa.int64())])
    found = []
    if part.table and part.whole:
        found.append(tables.scan_fragments(part.table, [one.number for one in part.whole], names))
    if part.table and len(part.addresses):
        rows = tables.rows_at(part.table, part.addresses, names)
        found.append(rows.append_column(ADDRESS, pa.array(part.addresses)))
    return pa.concat_tables([rows.cast(schema) for rows in found]) if found else schema.empty_table()
