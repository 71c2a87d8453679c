"""Three-way merge of one table: what the source changed since the merge base, on top of what the target changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.options import MergeBy, Resolution
from omnigraph.api.results import ChangeCounts, TableVersion
from omnigraph.errors import MergeConflict
from omnigraph.history.delta import (
    EDGE_KEYS,
    NODE_KEYS,
    Mask,
    Touched,
    VersionPair,
    differing,
    most_touched,
    touched_rows,
)
from omnigraph.history.properties import AlignedRows, Matrix, PropertyMerge, Units
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.storage.columns import image_schema, table_key
from omnigraph.storage.layout import Addresses, fragments
from omnigraph.storage.projection import Projection
from omnigraph.storage.read import ADDRESS, DST, ID, OFFSET_BITS, SRC, TableReader
from omnigraph.storage.stage import Staged, TableStorage
from omnigraph.write.pending import to_store, without_record
from omnigraph.write.validate import TableChange


def after(earlier: AlignedRows, ids: pa.Array, touched: Touched) -> AlignedRows:
    """Return entities in the later state of `touched`, given the earlier."""
    return _replaced(earlier, ids, touched, touched.later)


def before(later: AlignedRows, ids: pa.Array, touched: Touched) -> AlignedRows:
    """Return entities in the earlier state of `touched`, given the later."""
    return _replaced(later, ids, touched, touched.earlier)


def _replaced(image: AlignedRows, ids: pa.Array, touched: Touched, rows: pa.Table) -> AlignedRows:
    # A touched id without a row was deleted: it must come out missing, so ids decide here, and not rows.
    moved = pc.is_in(ids, value_set=touched.ids).to_numpy(zero_copy_only=False)
    return align(ids, rows).where(moved, image)


def align(ids: pa.Array, rows: pa.Table) -> AlignedRows:
    """Put rows into the order of some ids."""
    at = pc.index_in(ids, value_set=rows[ID].combine_chunks())
    return AlignedRows(at.is_valid().to_numpy(zero_copy_only=False), rows.take(at))


def latest(declared: NodeType | EdgeType, touched: Sequence[Touched]) -> tuple[pa.Array, AlignedRows]:
    """Return the ids that any of some changes touches, and those entities in the later state."""
    # All touched ids once and in one order: from here on every state is a set of columns aligned with them.
    ids = pc.unique(pa.chunked_array([one.ids for one in touched], pa.string()))
    image = align(ids, image_schema(declared).empty_table())
    for one in touched:
        image = after(image, ids, one)
    return ids, image


_NOWHERE = -1
_AT = "at"  # a position among aligned rows


def row_addresses(tables: TableReader, ids: pa.Array, since: Touched, change: Touched) -> Addresses:
    """Find the row addresses of entities in the target of a merge, in order.

    `since` is what the target did to the base, `change` what the source did to it. What the target has not touched is
    in the same file as in the base; only if a compaction has moved it there must the table be searched.
    """
    assert since.after
    found = _addresses(ids, since.inserted, since.new)
    untouched = found == _NOWHERE
    if untouched.any() and since.before:
        before = _addresses(ids.filter(pa.array(untouched)), change.deleted, change.old)
        found[untouched] = _moved(tables, since.before, since.after, before)
    # Moved by a compaction: only a search of the target finds them.
    lost = ids.filter(pa.array(found == _NOWHERE))
    if len(lost):
        looked_up = tables.lookup(since.after, ID, lost, [ID], addresses=True)[ADDRESS].to_numpy()
        found = np.concatenate([found[found != _NOWHERE], looked_up.astype(np.int64)])
    return np.sort(found)


def _addresses(ids: pa.Array, *parts: pa.Table) -> Addresses:
    """Return the addresses of ids that are among some rows, and `_NOWHERE` for the rest."""
    rows = pa.concat_tables([part.select([ID, ADDRESS]) for part in parts])
    at = pc.index_in(ids, value_set=rows[ID])
    return np.array(rows[ADDRESS].take(at).fill_null(_NOWHERE).to_numpy(), np.int64)  # a copy, to write to


def _moved(tables: TableReader, before: TableVersion, after: TableVersion, addresses: Addresses) -> Addresses:
    """Translate addresses of one version into those of another, for rows that are in the same files."""
    if before == after:
        return addresses
    # Fragments are numbered by each version for itself; the data files identify them.
    files = {one.files: one.number for one in fragments(tables, after)}
    numbers = {one.number: files.get(one.files, _NOWHERE) for one in fragments(tables, before)}
    old, which = np.unique(addresses >> OFFSET_BITS, return_inverse=True)
    new = np.array([numbers.get(number, _NOWHERE) for number in old.tolist()], np.int64)[which]
    offsets = addresses & ((1 << OFFSET_BITS) - 1)
    return np.where((addresses == _NOWHERE) | (new == _NOWHERE), _NOWHERE, (new << OFFSET_BITS) | offsets)


Find = Callable[[TableVersion | None, TableVersion | None], Touched]
"""Finds the rows that two versions of a table do not share."""


@dataclass(frozen=True, slots=True)
class MergeBase:
    """The merge base: one state, or several after a criss-cross merge.

    `before` has for each state but the first what it comes from together with those ahead of it.
    """

    bases: Sequence[Mapping[str, TableVersion]]
    before: Sequence[MergeBase] = ()


def _all(past: MergeBase) -> Iterator[MergeBase]:
    yield past
    for before in past.before:
        yield from _all(before)


@dataclass(frozen=True, slots=True)
class MergedTable:
    """The changes that a merge makes to one table of the target, and its conflicts.

    `replaced` are the addresses in the target of what it has of them. `adopts` says that the target has not touched the
    table, so that it gets all that the source has. `stale` counts the vectors of a property whose text was replaced.
    """

    declared: NodeType | EdgeType
    inserted: pa.Table
    updated: pa.Table
    deleted: pa.Table
    replaced: Addresses = field(default_factory=lambda: np.empty(0, np.int64))
    conflicts: tuple[MergeConflict, ...] = ()
    adopts: bool = False
    compared: bool = False
    stale: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return int(self.inserted.num_rows + self.updated.num_rows + self.deleted.num_rows)

    @property
    def is_empty(self) -> bool:
        return not self.size

    @property
    def rows(self) -> pa.Table:
        """The rows to write."""
        return pa.concat_tables([self.inserted, self.updated])

    @property
    def counts(self) -> ChangeCounts:
        return ChangeCounts(self.inserted.num_rows, self.updated.num_rows, self.deleted.num_rows)

    def stage(self, tables: TableStorage, base: TableVersion, first: Staged | None = None) -> Staged:
        """Stage the rows; `first` is a change of the columns, which they come after."""
        if first is not None:
            after = tables.staged_state(first)
            done = self._stage(tables, after, tables.open(after))
            return replace(first, then=(*first.then, *done.steps))
        return self._stage(tables, base)

    def _stage(self, tables: TableStorage, base: TableVersion, onto: lance.LanceDataset | None = None) -> Staged:
        rows = self.rows
        if not rows.num_rows:
            return tables.stage_delete_rows(base, self.replaced, f"omnigraph: {len(self.replaced)} rows")
        written = tables.write_rows(base, to_store(self.declared, rows), onto=onto)
        return tables.stage_written(base, written, self.replaced)

    @property
    def change(self) -> TableChange:
        """The same as a change to validate. Rows of a merge come from no statement and no input record."""
        keys = [ID, SRC] if isinstance(self.declared, EdgeType) else [ID]
        rows = without_record(self.rows)
        return TableChange(self.declared, rows, self.deleted.select(keys), fresh=not self.updated.num_rows)


@dataclass(frozen=True, slots=True)
class TableMerge:
    """The three-way merge of one table."""

    declared: NodeType | EdgeType
    past: MergeBase
    source: TableVersion | None
    target: TableVersion | None
    by: MergeBy = MergeBy.PROPERTY
    only: frozenset[str] | None = None  # the ids of the entities to merge; all if none are named
    projections: Mapping[TableVersion, Projection] = field(default_factory=dict)

    @property
    def _bases(self) -> list[TableVersion | None]:
        return [base.get(table_key(self.declared)) for base in self.past.bases]

    @property
    def is_needed(self) -> bool:
        """Whether the source has anything that the target may lack."""
        return self.source != self.target and any(base != self.source for base in self._bases)

    @property
    def adopts(self) -> bool:
        """Whether the target has not touched the table: then nothing can conflict."""
        return all(base == self.target for base in self._bases)

    @property
    def pairs(self) -> list[VersionPair]:
        """The versions that are compared with each other: what each base has become, here and there."""
        bases = self._bases
        if self.adopts:
            return [(bases[0], self.source)]
        known = dict.fromkeys(base.get(table_key(self.declared)) for past in _all(self.past) for base in past.bases)
        return [*((one, self.source) for one in known), (bases[0], self.target)]

    def most_rows(self, tables: TableStorage) -> int:
        """Return an upper bound of the rows that the source changed."""
        if not self.is_needed:
            return 0
        return max(most_touched(tables, base, self.source) for base in self._bases)

    def run(self, tables: TableStorage, resolution: Resolution, find: Find | None = None) -> MergedTable | None:
        """Merge the two sides; None if the source changed nothing that the target lacks."""
        if not self.is_needed:
            return None
        how = {"schema": image_schema(self.declared), "keys": self.keys, "projections": self.projections}
        touched = find or partial(touched_rows, tables, **how)
        # A fast-forward of this table: no image of the target is needed.
        return self._adopted(tables, touched) if self.adopts else self._merged(tables, resolution, touched)

    def _adopted(self, tables: TableStorage, find: Find) -> MergedTable:
        base = self._bases[0]
        change = find(base, self.source)
        delta = change.delta()
        rows = (self._wanted(delta.inserted), self._wanted(delta.updated), self._wanted(delta.deleted))
        combined = MergedTable(self.declared, *rows, adopts=True, compared=delta.compared)
        return self._placed(tables, combined, find(base, base), change)

    def _wanted(self, rows: pa.Table) -> pa.Table:
        return rows if self.only is None else rows.filter(pc.is_in(rows[ID], pa.array(self.only, pa.string())))

    def _merged(self, tables: TableStorage, resolution: Resolution, find: Find) -> MergedTable:
        bases = self._bases
        changes = {base: find(base, self.source) for base in bases}
        touched_ids, later = latest(self.declared, [*changes.values()])
        ids, source = touched_ids, later

        def image_of(version: TableVersion | None) -> AlignedRows:
            change = changes.get(version) or find(version, self.source)
            return before(later, touched_ids, change)

        # The target is not read as a whole: it is the base, with what the target changed since put over it.
        since = find(bases[0], self.target)
        units = Units.of(self.declared, self.by)
        base, unknown = self._common(self.past, image_of, units)
        first = image_of(bases[0])
        ids, source = self._joined(ids, source, first.there | base.there, since)
        target = after(first, ids, since)
        sides = PropertyMerge(self.declared, units, base, unknown, source, target)
        merged = sides.derive(sides.settle(sides.decide(), resolution, ids))
        combined = replace(
            self._changes(sides.rows(merged), target, units, ~merged.clashes),
            conflicts=tuple(sides.conflicts(merged, ids)),
            compared=since.compared or any(change.compared for change in changes.values()),
            stale={name: int(marks.sum()) for name, marks in merged.stale},
        )
        return self._placed(tables, combined, since, changes[bases[0]])

    def _joined(self, ids: pa.Array, source: AlignedRows, known: Mask, since: Touched) -> tuple[pa.Array, AlignedRows]:
        """Give an edge of the source the id that the target gave to it, if the schema allows one between its ends.

        Both sides inserted it, under ids that were made up. As two edges they could only break the rule.
        """
        if not isinstance(self.declared, EdgeType) or not any({*one} == {SRC, DST} for one in self.declared.unique):
            return ids, source
        new = source.there & ~known
        ours = since.inserted.filter(pc.invert(pc.is_in(since.inserted[ID], value_set=ids)))
        if not new.any() or not ours.num_rows:
            return ids, source
        at = np.flatnonzero(new)
        ends = source.rows.select([SRC, DST]).take(at).append_column(_AT, pa.array(at))
        found = ends.join(ours.select([ID, SRC, DST]), keys=[SRC, DST], join_type="inner").sort_by(_AT)
        mask = np.zeros(len(ids), np.bool_)
        mask[found[_AT].to_numpy()] = True
        named = pc.replace_with_mask(ids, pa.array(mask), found[ID].combine_chunks())
        column = source.rows.column_names.index(ID)
        renamed = pc.replace_with_mask(source.rows[ID].combine_chunks(), pa.array(mask), found[ID].combine_chunks())
        return named, AlignedRows(
            source.there, source.rows.set_column(column, source.rows.schema.field(column), renamed)
        )

    def _placed(self, tables: TableStorage, combined: MergedTable, since: Touched, change: Touched) -> MergedTable:
        """Add the addresses of the target rows that are updated or deleted."""
        ids = pa.concat_arrays([*combined.updated[ID].chunks, *combined.deleted[ID].chunks, pa.array([], pa.string())])
        if combined.conflicts or not len(ids):  # a merge with conflicts writes nothing
            return combined
        return replace(combined, replaced=row_addresses(tables, ids, since, change))

    @property
    def keys(self) -> Sequence[str]:
        return EDGE_KEYS if isinstance(self.declared, EdgeType) else NODE_KEYS

    def _common(
        self, past: MergeBase, image_of: Callable[[TableVersion | None], AlignedRows], units: Units
    ) -> tuple[AlignedRows, Matrix]:
        """Return the entities in the merge base, and which units are unknown; several bases are merged."""
        # Where several bases conflict, a later merge chose one side. Which one is unknown, so both sides count as
        # changed: the merge reports a conflict instead of silently taking one.
        images = [image_of(base.get(table_key(self.declared))) for base in past.bases]
        image, unknown = images[0], np.zeros((len(units.units), len(images[0].there)), np.bool_)
        for other, earlier in zip(images[1:], past.before, strict=True):
            joined = PropertyMerge(self.declared, units, *self._common(earlier, image_of, units), other, image)
            merged = joined.derive(joined.decide())
            unknown |= merged.clash
            image = joined.rows(merged)
        return image, unknown

    def _changes(self, merged: AlignedRows, target: AlignedRows, units: Units, settled: Mask) -> MergedTable:
        changed = merged.differs(target, units).any(axis=0)
        for one in units.derived:
            changed |= differing(merged.rows[one.column], target.rows[one.column])
        changed &= settled  # what comes of an entity with a conflict is not known
        return MergedTable(
            self.declared,
            merged.rows.take(np.flatnonzero(changed & merged.there & ~target.there)),
            merged.rows.take(np.flatnonzero(changed & merged.there & target.there)),
            target.rows.take(np.flatnonzero(changed & ~merged.there & target.there)).select(self.keys),
        )
