"""Three-way merge of one table: what the source changed since the merge base, on top of what the target changed.

A large table is merged in partitions: ranges of ids, one in memory at a time, here or on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.options import Resolution
from omnigraph.api.results import TableVersion
from omnigraph.core.executor import ChooseExecutor
from omnigraph.core.location import Location
from omnigraph.errors import MergeConflict, Violation
from omnigraph.history.delta import (
    EDGE_KEYS,
    NODE_KEYS,
    Mask,
    Touched,
    differing_rows,
    image_schema,
    most_touched,
    touched_rows,
)
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.storage.columns import table_key
from omnigraph.storage.layout import Addresses, fragments
from omnigraph.storage.read import ADDRESS, DST, ID, OFFSET_BITS, SRC, TableReader
from omnigraph.storage.stage import TableStorage, data_files
from omnigraph.storage.unpublished import note
from omnigraph.write.pending import to_store, without_record
from omnigraph.write.validate import TableChange, value_violations


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


Span = tuple[str | None, str | None]
"""A range of ids: from the first, up to but without the last; None is no bound."""


@dataclass(frozen=True, slots=True)
class MergeBase:
    """The merge base: one state, or several after a criss-cross merge.

    `before` has for each state but the first what it comes from together with those ahead of it.
    """

    bases: Sequence[Mapping[str, TableVersion]]
    before: Sequence[MergeBase] = ()


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
    def change(self) -> TableChange:
        """The same as a change to validate. Rows of a merge come from no statement and no input record."""
        keys = [ID, SRC] if isinstance(self.declared, EdgeType) else [ID]
        rows = without_record(self.rows)
        return TableChange(self.declared, rows, self.deleted.select(keys), fresh=not self.updated.num_rows)


@dataclass(frozen=True, slots=True)
class TableMerge:
    """The three-way merge of one table, or of the entities in it whose ids are in a span."""

    declared: NodeType | EdgeType
    past: MergeBase
    source: TableVersion | None
    target: TableVersion | None
    span: Span = (None, None)

    @property
    def _bases(self) -> list[TableVersion | None]:
        return [base.get(table_key(self.declared)) for base in self.past.bases]

    def most_rows(self, tables: TableStorage) -> int:
        """Return an upper bound of the rows that the source changed."""
        if self.source == self.target:
            return 0
        return max(most_touched(tables, base, self.source) for base in self._bases)

    def ids(self, tables: TableStorage) -> pa.Array:
        """Return the ids that the source may have changed."""
        found = [self._touched(tables, base, self.source).ids for base in self._bases]
        return pc.unique(pa.chunked_array(found, pa.string()))

    def run(self, tables: TableStorage, resolution: Resolution) -> MergedTable | None:
        """Merge the two sides; None if the source changed nothing that the target lacks."""
        bases = self._bases
        if self.source == self.target or all(base == self.source for base in bases):
            return None
        # A fast-forward of this table: nothing can conflict, so no image of the target is needed.
        if all(base == self.target for base in bases):
            return self._adopted(tables, bases[0])
        return self._merged(tables, bases, resolution)

    def _adopted(self, tables: TableStorage, base: TableVersion | None) -> MergedTable:
        change = self._touched(tables, base, self.source)
        delta = change.delta()
        rows = (delta.inserted, delta.updated, delta.deleted)
        combined = MergedTable(self.declared, *rows, adopts=True, compared=delta.compared)
        return self._placed(tables, combined, self._touched(tables, base, base), change)

    def _merged(
        self, tables: TableStorage, bases: Sequence[TableVersion | None], resolution: Resolution
    ) -> MergedTable:
        changes = {base: self._touched(tables, base, self.source) for base in bases}
        ids, source = latest(self.declared, [*changes.values()])

        def image_of(version: TableVersion | None) -> AlignedRows:
            change = changes.get(version) or self._touched(tables, version, self.source)
            return source.before(ids, change)

        # The target is not read as a whole: it is the base, with what the target changed since put over it.
        since = self._touched(tables, bases[0], self.target)
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

    def _touched(self, tables: TableStorage, before: TableVersion | None, after: TableVersion | None) -> Touched:
        return touched_rows(tables, before, after, image_schema(self.declared), self._keys).within(*self.span)

    @property
    def _keys(self) -> Sequence[str]:
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
            target.rows.take(np.flatnonzero(changed & ~source.there & target.there)).select(self._keys),
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


# Partitions ----------------------------------------------------------------------------------------

MOST_ROWS = 500_000  # merged at once


@dataclass(frozen=True, slots=True)
class MergePartition:
    """The entities of one table with ids in a range. With `base` their rows are written, without it only compared."""

    location: Location
    combination: TableMerge
    resolution: Resolution
    base: TableVersion | None


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """The result of a partition: the keys of its rows, the rules that their values break, the files written."""

    combined: MergedTable | None
    problems: tuple[Violation, ...]
    written: tuple[str, ...]

    @property
    def rows(self) -> int:
        return self.combined.size if self.combined else 0


class PartitionedMerge:
    """One table that is merged in partitions."""

    def __init__(self, tables: TableStorage, combination: TableMerge, resolution: Resolution) -> None:
        ids = combination.ids(tables)
        self._location = tables.location
        self._resolution = resolution
        self._parts = [replace(combination, span=span) for span in spans(ids)]
        self._rows = len(ids)

    def compare(self, choose: ChooseExecutor) -> tuple[MergedTable, tuple[Violation, ...]]:
        """Merge the two sides and check the values. Only keys are kept, so that memory follows ids and not rows."""
        results = self._run(choose, None)
        found = [result.combined for result in results if result.combined]
        assert found, "the two sides are not the same"
        return _joined(found), tuple(problem for result in results for problem in result.problems)

    def write(self, choose: ChooseExecutor, base: TableVersion) -> list[str]:
        """Merge again, and write the resulting rows to files of the table."""
        written = [text for result in self._run(choose, base) for text in result.written]
        note(base, data_files(written))  # tasks on other machines have written them
        return written

    def _run(self, choose: ChooseExecutor, base: TableVersion | None) -> list[PartitionResult]:
        tasks = [MergePartition(self._location, part, self._resolution, base) for part in self._parts]
        return choose(self._rows).run("write" if base else "compare", merge_partition, tasks)


def merge_partition(partition: MergePartition) -> PartitionResult:
    """Merge one partition."""
    tables = TableStorage(partition.location)  # this may run on another machine
    combined = partition.combination.run(tables, partition.resolution)
    if combined is None:
        return PartitionResult(None, (), ())
    rows, problems, written = combined.rows, list[Violation](), list[str]()
    if partition.base is None:
        problems += value_violations(combined.declared, combined.change.rows)
    elif rows.num_rows:
        written += tables.write_rows(partition.base, to_store(combined.declared, rows))
    return PartitionResult(_keys_of(combined), tuple(problems), tuple(written))


def spans(ids: pa.Array) -> Iterator[Span]:
    """Cut ids into ranges of at most `MOST_ROWS`, roughly."""
    count = -(-len(ids) // MOST_ROWS)
    ordered = ids.take(pc.sort_indices(ids))
    # Equal bounds would make an empty range and skip ids: `fromkeys` makes them distinct.
    at = np.linspace(0, len(ids), count + 1).astype(np.int64)[1:-1]
    bounds: Sequence[str | None] = [None, *dict.fromkeys(ordered.take(at).to_pylist()), None]
    return pairwise(bounds)


def _keys_of(combined: MergedTable) -> MergedTable:
    """Keep the columns that rules between entities need: ids, ends and unique properties."""
    declared = combined.declared
    ends = [SRC, DST] if isinstance(declared, EdgeType) else []
    names = list(dict.fromkeys([ID, *ends, *(name for columns in declared.unique for name in columns)]))
    return replace(combined, inserted=combined.inserted.select(names), updated=combined.updated.select(names))


def _joined(parts: Sequence[MergedTable]) -> MergedTable:
    tables = {
        name: pa.concat_tables([getattr(part, name) for part in parts]) for name in ("inserted", "updated", "deleted")
    }
    return replace(
        parts[0],
        **tables,
        replaced=np.concatenate([part.replaced for part in parts]),
        conflicts=tuple(conflict for part in parts for conflict in part.conflicts),
        compared=any(part.compared for part in parts),
    )
