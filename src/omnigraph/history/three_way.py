"""Three-way merge of one table: what the source changed since the merge base, on top of what the target changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.options import Resolution
from omnigraph.api.results import ChangeCounts, TableVersion
from omnigraph.errors import MergeConflict
from omnigraph.history.delta import (
    EDGE_KEYS,
    NODE_KEYS,
    Mask,
    Touched,
    VersionPair,
    differing_rows,
    image_schema,
    most_touched,
    touched_rows,
)
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.storage.columns import table_key
from omnigraph.storage.layout import Addresses, fragments
from omnigraph.storage.read import ADDRESS, ID, OFFSET_BITS, SRC, TableReader
from omnigraph.storage.stage import Staged, TableStorage
from omnigraph.write.pending import to_store, without_record
from omnigraph.write.validate import TableChange


@dataclass(frozen=True, slots=True)
class AlignedRows:
    """The rows of some entities in one state, in the same order for all states; missing entities are null rows."""

    there: Mask
    rows: pa.Table

    def differs(self, other: AlignedRows) -> Mask:
        """Return which entities differ between two states."""
        differs: Mask = self.there != other.there
        both = np.flatnonzero(self.there & other.there)
        differs[both] = differing_rows(self.rows.take(both), other.rows.take(both))
        return differs

    def where(self, mask: Mask, other: AlignedRows) -> AlignedRows:
        """Take the marked entities from here and the rest from `other`."""
        # One `take` over both tables, because Arrow has no `if_else` for whole rows.
        at = np.where(mask, np.arange(len(mask)), np.arange(len(mask)) + len(mask))
        both = pa.concat_tables([self.rows, other.rows])
        return AlignedRows(np.where(mask, self.there, other.there), both.take(at))

    def after(self, ids: pa.Array, touched: Touched) -> AlignedRows:
        """Return the entities in the later state of `touched`, given the earlier."""
        return self._replaced(ids, touched, touched.later)

    def before(self, ids: pa.Array, touched: Touched) -> AlignedRows:
        """Return the entities in the earlier state of `touched`, given the later."""
        return self._replaced(ids, touched, touched.earlier)

    def _replaced(self, ids: pa.Array, touched: Touched, rows: pa.Table) -> AlignedRows:
        # A touched id without a row was deleted: it must come out missing, so ids decide here, and not rows.
        moved = pc.is_in(ids, value_set=touched.ids).to_numpy(zero_copy_only=False)
        return align(ids, rows).where(moved, self)


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
        image = image.after(ids, one)
    return ids, image


_NOWHERE = -1


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
    table, so that it gets all that the source has.
    """

    declared: NodeType | EdgeType
    inserted: pa.Table
    updated: pa.Table
    deleted: pa.Table
    replaced: Addresses = field(default_factory=lambda: np.empty(0, np.int64))
    conflicts: tuple[MergeConflict, ...] = ()
    adopts: bool = False
    compared: bool = False

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

    def stage(self, tables: TableStorage, base: TableVersion) -> Staged:
        rows = self.rows
        if not rows.num_rows:
            return tables.stage_delete_rows(base, self.replaced, f"omnigraph: {len(self.replaced)} rows")
        return tables.stage_written(base, tables.write_rows(base, to_store(self.declared, rows)), self.replaced)

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
        touched = find or partial(touched_rows, tables, schema=image_schema(self.declared), keys=self.keys)
        # A fast-forward of this table: no image of the target is needed.
        return self._adopted(tables, touched) if self.adopts else self._merged(tables, resolution, touched)

    def _adopted(self, tables: TableStorage, find: Find) -> MergedTable:
        base = self._bases[0]
        change = find(base, self.source)
        delta = change.delta()
        rows = (delta.inserted, delta.updated, delta.deleted)
        combined = MergedTable(self.declared, *rows, adopts=True, compared=delta.compared)
        return self._placed(tables, combined, find(base, base), change)

    def _merged(self, tables: TableStorage, resolution: Resolution, find: Find) -> MergedTable:
        bases = self._bases
        changes = {base: find(base, self.source) for base in bases}
        ids, source = latest(self.declared, [*changes.values()])

        def image_of(version: TableVersion | None) -> AlignedRows:
            change = changes.get(version) or find(version, self.source)
            return source.before(ids, change)

        # The target is not read as a whole: it is the base, with what the target changed since put over it.
        since = find(bases[0], self.target)
        target = image_of(bases[0]).after(ids, since)
        past, unknown = self._common(self.past, image_of)
        ours, theirs = target.differs(past) | unknown, source.differs(past) | unknown
        # Both sides may make the same change: that is no conflict.
        clash = ours & theirs & source.differs(target)
        conflicts = _Conflicts(self.declared, ids, past, source, target)
        settled, chosen = conflicts.settle(clash, resolution)
        combined = replace(
            self._chosen((theirs & ~ours) | chosen, source, target),
            conflicts=tuple(conflicts.described(np.flatnonzero(clash & ~settled))),
            compared=since.compared or any(change.compared for change in changes.values()),
        )
        return self._placed(tables, combined, since, changes[bases[0]])

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
        self, past: MergeBase, image_of: Callable[[TableVersion | None], AlignedRows]
    ) -> tuple[AlignedRows, Mask]:
        """Return the entities in the merge base, and which are unknown; several bases are merged with each other."""
        # Where several bases conflict, a later merge chose one side. Which one is unknown, so both sides count as
        # changed: the merge reports a conflict instead of silently taking one.
        images = [image_of(base.get(table_key(self.declared))) for base in past.bases]
        image, unknown = images[0], np.zeros(len(images[0].there), np.bool_)
        for other, before in zip(images[1:], past.before, strict=True):
            root, lost = self._common(before, image_of)
            here, there = image.differs(root) | lost, other.differs(root) | lost
            unknown |= here & there & image.differs(other)
            image = image.where(here, other)
        return image, unknown

    def _chosen(self, take: Mask, source: AlignedRows, target: AlignedRows) -> MergedTable:
        changed = take & source.differs(target)
        return MergedTable(
            self.declared,
            source.rows.take(np.flatnonzero(changed & source.there & ~target.there)),
            source.rows.take(np.flatnonzero(changed & source.there & target.there)),
            target.rows.take(np.flatnonzero(changed & ~source.there & target.there)).select(self.keys),
        )


@dataclass(frozen=True, slots=True)
class _Conflicts:
    """Entities that both sides changed differently."""

    declared: NodeType | EdgeType
    ids: pa.Array
    past: AlignedRows
    source: AlignedRows
    target: AlignedRows

    def settle(self, clash: Mask, resolution: Resolution) -> tuple[Mask, Mask]:
        """Return which conflicts a resolution settles, and which of those for the source."""
        settled, theirs = np.zeros(len(clash), np.bool_), np.zeros(len(clash), np.bool_)
        at = np.flatnonzero(clash)
        # A Python loop over conflicts only, which a person has to be able to read.
        sides = [resolution.side(table_key(self.declared), name) for name in self.ids.take(at).to_pylist()]
        settled[at] = [side is not None for side in sides]
        theirs[at] = [side == "theirs" for side in sides]
        return settled, theirs

    def described(self, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[MergeConflict]:
        names = self.ids.take(at).to_pylist()
        there = (image.there[at].tolist() for image in (self.past, self.source, self.target))
        for name, *present in zip(names, *there, strict=True):
            kind, what = _kind(*present)
            yield MergeConflict(kind, table_key(self.declared), name, f"{self.declared.name} '{name}' {what}")


def _kind(was: bool, source: bool, target: bool) -> tuple[str, str]:  # noqa: FBT001 - three facts
    if source and target:
        if was:
            return "divergent_update", "was changed differently on both sides"
        return "divergent_insert", "was inserted differently on both sides"
    by, other = ("source", "target") if target else ("target", "source")
    return "delete_vs_update", f"was deleted on the {by} and changed on the {other}"
