"""Rows that differ between two versions of a table, found from what the two do not share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import TableVersion
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
from omnigraph.storage.projection import Projection
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
VersionPair = tuple[TableVersion | None, TableVersion | None]
_NONE = np.empty(0, np.int64)
_MOST_TRACED = 32_000_000  # rows, which take 24 bytes each


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
    projections: Mapping[TableVersion, Projection] = field(default_factory=dict)

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
        how = _projection(self.tables, table, self.schema, self.projections)
        return how.of(self.tables.rows_at(table, keys[ADDRESS].to_numpy(), how.names(self.schema.names)))


def _projection(
    tables: TableReader, table: TableVersion, schema: pa.Schema, known: Mapping[TableVersion, Projection]
) -> Projection:
    """Return how to read a version in the columns of a schema: those that it lacks are null."""
    if table in known:
        return known[table]
    stored = tables.columns(table).names
    return Projection(schema, {name: name for name in schema.names if name in stored})


def touched_rows(
    tables: TableReader,
    before: TableVersion | None,
    after: TableVersion | None,
    schema: pa.Schema,
    keys: Sequence[str],
    *,
    projections: Mapping[TableVersion, Projection] | None = None,
) -> Touched:
    """Find the rows that the two versions do not store in the same place, and match them by id.

    Rows are read in the columns of `schema`, their keys in those of `keys`. `projections` say how versions are read
    that call their columns otherwise.
    """
    known = projections or {}
    one, other, compared = _parts(tables, before, after)
    # A few rows are read whole at once, and many by their keys alone: most of them may turn out to be unchanged.
    images = _image(tables, one, schema, known), _image(tables, other, schema, known)
    old, new = (
        key_rows(tables, part, keys) if image is None else image.select([*keys, ADDRESS])
        for part, image in zip((one, other), images, strict=True)
    )
    found = matched(tables, (before, after), schema, old, new)
    return replace(found, compared=compared, images=images, projections=known)


def matched(tables: TableReader, versions: VersionPair, schema: pa.Schema, old: pa.Table, new: pa.Table) -> Touched:
    """Match rows of two versions by id. Of both only keys and addresses are given."""
    # By id and not by address: a row that is written again has another address, and is an update all the same.
    kept, was = pc.is_in(new[ID], value_set=old[ID]), pc.is_in(old[ID], value_set=new[ID])
    return Touched(
        tables,
        *versions,
        schema,
        inserted=new.filter(pc.invert(kept)),
        deleted=old.filter(pc.invert(was)),
        old=old.take(pc.index_in(new[ID].filter(kept), value_set=old[ID])),
        new=new.filter(kept),
        compared=False,
    )


def most_touched(tables: TableReader, before: TableVersion | None, after: TableVersion | None) -> int:
    """Return an upper bound of the rows of either version that the other does not share, without reading any."""
    one, other, _ = unshared(tables, before, after)
    most = max(one.most_rows, other.most_rows)
    return most if most > _MOST_TRACED else max(part.listed(tables).most_rows for part in (one, other))


def _parts(tables: TableReader, before: TableVersion | None, after: TableVersion | None) -> _Unshared:
    """Return the rows that are not shared, one by one where that is known: those that a compaction moved are shared."""
    one, other, compared = unshared(tables, before, after)
    return one.listed(tables), other.listed(tables), compared


def unshared(tables: TableReader, before: TableVersion | None, after: TableVersion | None) -> _Unshared:
    """Return the rows of two versions that they do not share, and whether nothing shows what they share."""
    if before == after:
        return TablePart(before), TablePart(after), False
    if before is None or after is None:
        return whole_table(tables, before), whole_table(tables, after), False
    return _unshared(tables, before, after)


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows of a version: whole fragments, rows that another version has deleted, and single rows by address."""

    table: TableVersion | None
    whole: Sequence[Fragment] = ()
    addresses: Addresses = field(default_factory=lambda: _NONE)
    undeleted: Sequence[Undeleted] = ()

    @property
    def most_rows(self) -> int:
        """An upper bound of the number of rows: deleted ones are counted."""
        return len(self.addresses) + sum(one.rows for one in self.whole) + sum(one.most for one in self.undeleted)

    def listed(self, tables: TableReader) -> TablePart:
        """List the rows that the other version has deleted by their addresses."""
        if not self.undeleted:
            return self
        assert self.table
        found = [one.addresses(tables, self.table) for one in self.undeleted]
        return TablePart(self.table, self.whole, np.concatenate([self.addresses, *found]))

    def slices(self, rows: int) -> Iterator[TablePart]:
        """Divide the part into smaller ones of about so many rows."""
        parts: list[TablePart] = [
            *(TablePart(self.table, [one]) for one in self.whole),
            *(TablePart(self.table, undeleted=[one]) for one in self.undeleted),
            *(TablePart(self.table, (), self.addresses[at : at + rows]) for at in range(0, len(self.addresses), rows)),
        ]
        some: list[TablePart] = []
        size = 0
        for part in parts:
            if some and size + part.most_rows > rows:
                yield _together(some)
                some, size = [], 0
            some.append(part)
            size += part.most_rows
        if some:
            yield _together(some)


def _together(parts: Sequence[TablePart]) -> TablePart:
    whole = [one for part in parts for one in part.whole]
    undeleted = [one for part in parts for one in part.undeleted]
    return TablePart(parts[0].table, whole, np.concatenate([part.addresses for part in parts]), undeleted)


@dataclass(frozen=True, slots=True)
class Undeleted:
    """The rows of a fragment that are deleted in another version, which has the same fragment."""

    fragment: Fragment
    other: Fragment
    other_table: TableVersion

    @property
    def most(self) -> int:
        return self.other.deletions.rows if self.other.deletions else 0

    def addresses(self, tables: TableReader, table: TableVersion) -> Addresses:
        was, is_ = (deleted_offsets(tables, *one) for one in ((table, self.fragment), (self.other_table, self.other)))
        return (self.fragment.number << OFFSET_BITS) | np.setdiff1d(is_, was, assume_unique=True)


_Unshared = tuple[TablePart, TablePart, bool]


def whole_table(tables: TableReader, table: TableVersion | None) -> TablePart:
    return TablePart(table, fragments(tables, table) if table else ())


def _unshared(tables: TableReader, before: TableVersion, after: TableVersion) -> _Unshared:
    """Leave out rows that both versions have in the same files, and rows that a compaction only moved."""
    old, new = ({one.files: one for one in fragments(tables, table)} for table in (before, after))
    # Data files never change, so a fragment of the same files has the same rows, up to its deletions.
    both = [files for files in old if files in new]
    changed = [files for files in both if not has_same_deletions(old[files], new[files])]
    # In both directions: on two branches, each may have deleted rows that the other has kept.
    gone = [Undeleted(old[files], new[files], after) for files in changed if new[files].deletions]
    came = [Undeleted(new[files], old[files], before) for files in changed if old[files].deletions]
    one = TablePart(before, [old[files] for files in old if files not in new], undeleted=gone)
    other = TablePart(after, [new[files] for files in new if files not in old], undeleted=came)
    if not one.whole or not other.whole:
        return one, other, False
    # Both have fragments of their own. A compaction, too, writes new ones, with rows that have not changed.
    # Tables of early releases have no row ids: then all rows are compared, and the result says so.
    is_traced = all(fragment.is_traced for part in (one, other) for fragment in part.whole)
    since = common_version(tables, before, after) if is_traced else 0
    if not since:
        return one, other, not both
    # So many rows are not traced in memory: those that were only moved turn out to be equal.
    few = sum(fragment.rows for part in (one, other) for fragment in part.whole) <= _MOST_TRACED
    return (*_without_moved(tables, one, other, since), False) if few else (one, other, False)


def _without_moved(tables: TableReader, one: TablePart, other: TablePart, since: int) -> tuple[TablePart, TablePart]:
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


def _rest(part: TablePart, found: pa.Table, moved: Addresses) -> TablePart:
    left = np.delete(_column(found, ADDRESS), moved)  # rows by address now: some of each fragment are left out
    return TablePart(part.table, (), np.concatenate([part.addresses, left]), part.undeleted)


def _column(found: pa.Table, name: str) -> Addresses:
    return found[name].to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _image(
    tables: TableReader, part: TablePart, schema: pa.Schema, known: Mapping[TableVersion, Projection]
) -> pa.Table | None:
    """Read all columns at once if the rows are few: a second read would cost more. Blobs may be too large for it."""
    if not 0 < part.most_rows <= MOST_VALUES or pa.large_binary() in schema.types or part.table is None:
        return None
    how = _projection(tables, part.table, schema, known)
    rows = _read(tables, part, how.names(schema.names))
    return how.of(rows).append_column(ADDRESS, rows[ADDRESS])


def key_rows(tables: TableReader, part: TablePart, names: Sequence[str]) -> pa.Table:
    """Read the keys and addresses of rows."""
    if part.table is None or not part.most_rows:
        return pa.schema([*((name, pa.string()) for name in names), (ADDRESS, pa.int64())]).empty_table()
    return _read(tables, part, names)


def _read(tables: TableReader, part: TablePart, names: Sequence[str]) -> pa.Table:
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
