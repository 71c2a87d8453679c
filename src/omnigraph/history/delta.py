"""Rows that differ between two versions of a table, found from what the two do not share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import TableVersion
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.storage.columns import table_schema
from omnigraph.storage.layout import (
    ROW,
    WRITTEN,
    Addresses,
    Fragment,
    common_version,
    deleted_offsets,
    fragments,
    has_same_deletions,
    origins,
)
from omnigraph.storage.read import ADDRESS, DST, ID, MOST_VALUES, OFFSET_BITS, SRC, TableReader

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def differing_rows(one: pa.Table, other: pa.Table) -> Mask:
    """Return which rows differ between two tables with the same columns."""
    differs = np.zeros(one.num_rows, np.bool_)
    for name in one.column_names:
        differs |= differing(one[name], other[name])
    return differs


def differing(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Mask:
    """Return which values of two columns differ. Null equals only null; floats are compared bit by bit."""
    # Arrow would cast one to the other, and 1 would equal 1.0 across a change of the type.
    assert one.type == other.type, "values of two types do not compare"
    return _differing(_whole(one), _whole(other))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _differing(one: pa.Array, other: pa.Array) -> Mask:
    there, here = _numpy(one.is_valid()), _numpy(other.is_valid())
    differs: Mask = there != here  # null differs from every value, and from no other null
    both = there & here
    if both.any():
        # Without nulls from here on: Arrow answers null where one side is null, and vectors have no slot there.
        mask = pa.array(both)
        differs[both] = _unequal(one.filter(mask), other.filter(mask))
    return differs


def _unequal(one: pa.Array, other: pa.Array) -> Mask:
    """Compare values without nulls."""
    if pa.types.is_fixed_size_list(one.type):
        inner = _differing(one.flatten(), other.flatten())
        return np.asarray(inner.reshape(len(one), -1).any(axis=1))
    if pa.types.is_list(one.type):
        return _unequal_lists(one, other)
    if pa.types.is_floating(one.type):
        # Bit by bit: -0.0 is a change from 0.0, and a NaN that stays the same is none.
        bits = np.dtype(f"u{one.type.bit_width // 8}")
        return np.asarray(_numpy(one).view(bits) != _numpy(other).view(bits))
    return np.asarray(_numpy(pc.not_equal(one, other)))


def _unequal_lists(one: pa.Array, other: pa.Array) -> Mask:
    lengths = _numpy(pc.list_value_length(one))
    differs: Mask = lengths != _numpy(pc.list_value_length(other))
    alike = np.flatnonzero(~differs)
    inner = _differing(one.take(alike).flatten(), other.take(alike).flatten())
    # A list differs if any of its items does, so mark the list that each differing item belongs to.
    owners = np.repeat(alike, lengths[alike])
    differs[owners[inner]] = True
    return differs


def _numpy(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)


NODE_KEYS, EDGE_KEYS = (ID,), (ID, SRC, DST)
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class TableDelta:
    """The rows that one version of a table inserts, updates and deletes relative to another.

    `inserted` and `updated` hold whole rows as they are afterwards, a Blob as its bytes; `deleted` the ids, and the
    endpoints of edges. `compared`: the versions share no files, so all rows were compared.
    """

    inserted: pa.Table
    updated: pa.Table
    deleted: pa.Table
    compared: bool


def image_schema(declared: NodeType | EdgeType) -> pa.Schema:
    """Return the columns of a table as they are compared: a Blob as its bytes."""
    stored = table_schema(declared)
    blobs = {name for name, property_ in declared.properties.items() if property_.type.is_blob}
    return pa.schema(
        [pa.field(name, pa.large_binary()) if name in blobs else stored.field(name) for name in stored.names]
    )


@dataclass(frozen=True, slots=True)
class Touched:
    """The rows that two versions of a table do not share, by key and address; values are read on request.

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
    images: tuple[pa.Table | None, pa.Table | None] = (None, None)

    def updates(self, size: int = MOST_VALUES) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield rows of ids that exist on both sides and differ, before and after, a batch at a time."""
        for at in range(0, self.new.num_rows, size):
            before, after = self.rows_before(self.old.slice(at, size)), self.rows_after(self.new.slice(at, size))
            differs = differing_rows(before, after)
            if differs.any():
                mask = pa.array(differs)
                yield before.filter(mask), after.filter(mask)

    def delta(self) -> TableDelta:
        """Read the rows and leave out those that turn out to be equal."""
        updated = [now for _, now in self.updates()]
        return TableDelta(
            self.rows_after(self.inserted),
            pa.concat_tables(updated) if updated else self.schema.empty_table(),
            self.deleted.drop_columns(ADDRESS),
            self.compared,
        )

    def within(self, first: str | None, last: str | None) -> Touched:
        """Keep the entities with `first` <= id < `last`; None is no bound."""
        kept = {name: _within(getattr(self, name), first, last) for name in ("inserted", "deleted", "old", "new")}
        return replace(self, **kept)

    @property
    def ids(self) -> pa.Array:
        """The ids whose stored row is not the same on both sides."""
        chunks = [chunk for keys in (self.inserted, self.deleted, self.new) for chunk in keys[ID].chunks]
        return pa.concat_arrays([*chunks, pa.array([], pa.string())])

    @property
    def earlier(self) -> pa.Table:
        """All touched rows of the earlier version."""
        return self.rows_before(pa.concat_tables([self.deleted, self.old]))

    @property
    def later(self) -> pa.Table:
        """All touched rows of the later version."""
        return self.rows_after(pa.concat_tables([self.inserted, self.new]))

    def rows_before(self, keys: pa.Table) -> pa.Table:
        return self._rows(self.before, self.images[0], keys)

    def rows_after(self, keys: pa.Table) -> pa.Table:
        return self._rows(self.after, self.images[1], keys)

    def _rows(self, table: TableVersion | None, image: pa.Table | None, keys: pa.Table) -> pa.Table:
        """Read whole rows, from memory if they were read already."""
        if table is None or not keys.num_rows:
            return self.schema.empty_table()
        if image is not None:
            return image.take(pc.index_in(keys[ADDRESS], value_set=image[ADDRESS])).drop_columns(ADDRESS)
        names = _stored(self.tables, table, self.schema)
        return _conformed(self.tables.rows_at(table, keys[ADDRESS].to_numpy(), names), self.schema)


def _within(keys: pa.Table, first: str | None, last: str | None) -> pa.Table:
    if first is not None:
        keys = keys.filter(pc.greater_equal(keys[ID], first))
    return keys if last is None else keys.filter(pc.less(keys[ID], last))


def _stored(tables: TableReader, table: TableVersion, schema: pa.Schema) -> list[str]:
    stored = tables.columns(table).names
    return [name for name in schema.names if name in stored]


def _conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Add the columns that a version of the table lacks, as nulls."""
    stored = rows.column_names
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
    """Find the rows that the two versions do not store in the same place, and match them by id.

    Rows are read in the columns of `schema`, their keys in those of `keys`.
    """
    one, other, compared = _parts(tables, before, after)
    # A few rows are read whole at once, and many by their keys alone: most of them may turn out to be unchanged.
    images = _image(tables, one, schema), _image(tables, other, schema)
    old, new = (
        _keys(tables, part, keys) if image is None else image.select([*keys, ADDRESS])
        for part, image in zip((one, other), images, strict=True)
    )
    # By id and not by address: a row that is written again has another address, and is an update all the same.
    kept, was = pc.is_in(new[ID], value_set=old[ID]), pc.is_in(old[ID], value_set=new[ID])
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
        images=images,
    )


def most_touched(tables: TableReader, before: TableVersion | None, after: TableVersion | None) -> int:
    """Return an upper bound of the rows of `after` that `before` does not share, without reading any."""
    return _parts(tables, before, after)[1].most_rows


def _parts(tables: TableReader, before: TableVersion | None, after: TableVersion | None) -> tuple[_Part, _Part, bool]:
    if before == after:
        return _Part(before), _Part(after), False
    if before is None or after is None:
        return _everything(tables, before), _everything(tables, after), False
    return _unshared(tables, before, after)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a version: whole fragments, and single rows by address."""

    table: TableVersion | None
    whole: Sequence[Fragment] = ()
    addresses: Addresses = field(default_factory=lambda: _NONE)

    @property
    def most_rows(self) -> int:
        """An upper bound of the number of rows: deleted ones are counted."""
        return len(self.addresses) + sum(fragment.rows for fragment in self.whole)


def _everything(tables: TableReader, table: TableVersion | None) -> _Part:
    return _Part(table, fragments(tables, table) if table else ())


def _unshared(tables: TableReader, before: TableVersion, after: TableVersion) -> tuple[_Part, _Part, bool]:
    """Leave out rows that both versions have in the same files, and rows that a compaction only moved."""
    old, new = ({one.files: one for one in fragments(tables, table)} for table in (before, after))
    # Data files never change, so a fragment of the same files has the same rows, up to its deletions.
    both = old.keys() & new.keys()
    gone, came = [], []
    for files in both:
        if not has_same_deletions(old[files], new[files]):
            # In both directions: on two branches, each may have deleted rows that the other has kept.
            was, is_ = (deleted_offsets(tables, t, f[files]) for t, f in ((before, old), (after, new)))
            gone.append(_addresses(old[files], np.setdiff1d(is_, was, assume_unique=True)))
            came.append(_addresses(new[files], np.setdiff1d(was, is_, assume_unique=True)))
    one = _Part(before, [old[files] for files in old if files not in both], np.concatenate([_NONE, *gone]))
    other = _Part(after, [new[files] for files in new if files not in both], np.concatenate([_NONE, *came]))
    if not one.whole or not other.whole:
        return one, other, False
    # Both have fragments of their own. A compaction, too, writes new ones, with rows that have not changed.
    # Tables of early releases have no row ids: then all rows are compared, and the result says so.
    is_traced = all(fragment.is_traced for part in (one, other) for fragment in part.whole)
    since = common_version(tables, before, after) if is_traced else 0
    return (*_without_moved(tables, one, other, since), False) if since else (one, other, not both)


def _addresses(fragment: Fragment, offsets: Addresses) -> Addresses:
    return (fragment.number << OFFSET_BITS) | offsets


def _without_moved(tables: TableReader, one: _Part, other: _Part, since: int) -> tuple[_Part, _Part]:
    """Leave out rows of whole fragments that both versions inherited from their common version.

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
    left = np.delete(_column(found, ADDRESS), moved)  # rows by address now: some of each fragment are left out
    return _Part(part.table, (), np.concatenate([part.addresses, left]))


def _column(found: pa.Table, name: str) -> Addresses:
    return found[name].to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _image(tables: TableReader, part: _Part, schema: pa.Schema) -> pa.Table | None:
    """Read all columns at once if the rows are few: a second read would cost more. Blobs may be too large for it."""
    if not 0 < part.most_rows <= MOST_VALUES or pa.large_binary() in schema.types or part.table is None:
        return None
    rows = _read(tables, part, _stored(tables, part.table, schema))
    return _conformed(rows, schema).append_column(ADDRESS, rows[ADDRESS])


def _keys(tables: TableReader, part: _Part, names: Sequence[str]) -> pa.Table:
    """Read the keys and addresses of rows."""
    if part.table is None or not part.most_rows:
        return pa.schema([*((name, pa.string()) for name in names), (ADDRESS, pa.int64())]).empty_table()
    return _read(tables, part, names)


def _read(tables: TableReader, part: _Part, names: Sequence[str]) -> pa.Table:
    assert part.table
    found = []
    if part.whole:
        found.append(tables.scan_fragments(part.table, [one.number for one in part.whole], names))
    if len(part.addresses):
        rows = tables.rows_at(part.table, part.addresses, names)
        found.append(rows.append_column(ADDRESS, pa.array(part.addresses)))
    # A scan returns unsigned addresses; all arithmetic on them here is signed.
    at = found[0].column_names.index(ADDRESS)
    return pa.concat_tables([rows.set_column(at, ADDRESS, rows[ADDRESS].cast(pa.int64())) for rows in found])
