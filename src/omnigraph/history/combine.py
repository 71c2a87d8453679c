"""The three-way combination: what one side did to a table since the common past, on top of what the other did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.options import Resolution
from omnigraph.api.results import TableVersion
from omnigraph.errors import MergeConflict
from omnigraph.history.delta import EDGE_KEYS, NODE_KEYS, Touched, image_schema, most_touched, touched_rows
from omnigraph.history.equality import Mask
from omnigraph.history.image import Image, latest
from omnigraph.history.places import places
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.storage.columns import table_key
from omnigraph.storage.layout import Addresses
from omnigraph.storage.read import ID
from omnigraph.storage.stage import TableStorage

_NONE = np.empty(0, np.int64)
Span = tuple[str | None, str | None]
"""A range of ids: from the first, up to but without the last; None is no bound."""


@dataclass(frozen=True, slots=True)
class Past:
    """What both sides come from: one state, or several.

    `before` has for each state but the first what it comes from together with those ahead of it.
    """

    bases: Sequence[Mapping[str, TableVersion]]
    before: Sequence[Past] = ()


@dataclass(frozen=True, slots=True)
class Combined:
    """What the target must get of one table: rows that are new or other, ids that go, and what contradicts.

    `replaced` are the places in the target of what it has of them. `adopts` says that the target has not touched the
    table, so that it gets all that the source has.
    """

    declared: NodeType | EdgeType
    inserted: pa.Table
    updated: pa.Table
    deleted: pa.Table
    replaced: Addresses
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
        """The rows that come."""
        return pa.concat_tables([self.inserted, self.updated])


@dataclass(frozen=True, slots=True)
class Combination:
    """One table in the states that are combined, or the entities in it whose ids are in a span."""

    declared: NodeType | EdgeType
    past: Past
    source: TableVersion | None
    target: TableVersion | None
    span: Span = (None, None)

    @property
    def _bases(self) -> list[TableVersion | None]:
        return [base.get(table_key(self.declared)) for base in self.past.bases]

    def most_rows(self, tables: TableStorage) -> int:
        """How many rows of the source may be new to the target, at most."""
        if self.source == self.target:
            return 0
        return max(most_touched(tables, base, self.source) for base in self._bases)

    def ids(self, tables: TableStorage) -> pa.Array:
        """The ids that the source may have something for the target of."""
        found = [self._touched(tables, base, self.source).ids for base in self._bases]
        return pc.unique(pa.chunked_array([chunk for ids in found for chunk in ids.chunks], pa.string()))

    def run(self, tables: TableStorage, resolution: Resolution) -> Combined | None:
        """Combine the two sides; None if the source has nothing for the target."""
        bases = self._bases
        if self.source == self.target or all(base == self.source for base in bases):
            return None
        if all(base == self.target for base in bases):
            return self._adopted(tables, bases[0])
        return self._merged(tables, bases, resolution)

    def _adopted(self, tables: TableStorage, base: TableVersion | None) -> Combined:
        change = self._touched(tables, base, self.source)
        delta = change.delta()
        combined = Combined(
            self.declared, delta.inserted, delta.updated, delta.deleted, _NONE, adopts=True, compared=delta.compared
        )
        return self._placed(tables, combined, self._touched(tables, base, base), change)

    def _merged(self, tables: TableStorage, bases: Sequence[TableVersion | None], resolution: Resolution) -> Combined:
        changes = {base: self._touched(tables, base, self.source) for base in bases}
        ids, source = latest(self.declared, [*changes.values()])

        def image_of(version: TableVersion | None) -> Image:
            change = changes.get(version) or self._touched(tables, version, self.source)
            return source.before(ids, change)

        since = self._touched(tables, bases[0], self.target)
        target = image_of(bases[0]).after(ids, since)
        past, unknown = self._common(self.past, image_of)
        ours, theirs = target.differs(past) | unknown, source.differs(past) | unknown
        clash = ours & theirs & source.differs(target)
        conflicts = _Conflicts(self.declared, ids, past, source, target)
        taken = conflicts.settle(clash, resolution)
        take = (theirs & ~ours) | taken.theirs
        combined = replace(
            self._chosen(take, source, target),
            conflicts=conflicts.told(clash & ~taken.settled),
            compared=since.compared or any(change.compared for change in changes.values()),
        )
        return self._placed(tables, combined, since, changes[bases[0]])

    def _placed(self, tables: TableStorage, combined: Combined, since: Touched, change: Touched) -> Combined:
        """Find what changes and what goes in the target, if there is any."""
        ids = pa.concat_arrays([*combined.updated[ID].chunks, *combined.deleted[ID].chunks, pa.array([], pa.string())])
        if combined.conflicts or not len(ids):
            return combined
        return replace(combined, replaced=places(tables, ids, since, change))

    def _touched(self, tables: TableStorage, before: TableVersion | None, after: TableVersion | None) -> Touched:
        return touched_rows(tables, before, after, image_schema(self.declared), self._keys).within(*self.span)

    @property
    def _keys(self) -> Sequence[str]:
        return EDGE_KEYS if isinstance(self.declared, EdgeType) else NODE_KEYS

    def _common(self, past: Past, image_of: Callable[[TableVersion | None], Image]) -> tuple[Image, Mask]:
        """The common past of the entities: of several states, the three-way combination of them all.

        Where they contradict each other, somebody has chosen since; what that was is not known any more.
        """
        images = [image_of(base.get(table_key(self.declared))) for base in past.bases]
        image, unknown = images[0], np.zeros(len(images[0].there), np.bool_)
        for other, before in zip(images[1:], past.before, strict=True):
            root, lost = self._common(before, image_of)
            here, there = image.differs(root) | lost, other.differs(root) | lost
            unknown |= here & there & image.differs(other)
            image = image.where(here, other)
        return image, unknown

    def _chosen(self, take: Mask, source: Image, target: Image) -> Combined:
        changed = take & source.differs(target)
        return Combined(
            self.declared,
            source.rows.take(np.flatnonzero(changed & source.there & ~target.there)),
            source.rows.take(np.flatnonzero(changed & source.there & target.there)),
            target.rows.take(np.flatnonzero(changed & ~source.there & target.there)).select(self._keys),
            _NONE,
        )


@dataclass(frozen=True, slots=True)
class _Settled:
    """Which conflicts a resolution settles, and which of those in favour of the source."""

    settled: Mask
    theirs: Mask


@dataclass(frozen=True, slots=True)
class _Conflicts:
    """Entities that the two sides changed each in its own way."""

    declared: NodeType | EdgeType
    ids: pa.Array
    past: Image
    source: Image
    target: Image

    def settle(self, clash: Mask, resolution: Resolution) -> _Settled:
        settled, theirs = np.zeros(len(clash), np.bool_), np.zeros(len(clash), np.bool_)
        at = np.flatnonzero(clash)
        sides = [resolution.side(table_key(self.declared), name) for name in self.ids.take(at).to_pylist()]
        settled[at] = [side is not None for side in sides]
        theirs[at] = [side == "theirs" for side in sides]
        return _Settled(settled, theirs)

    def told(self, clash: Mask) -> tuple[MergeConflict, ...]:
        return tuple(self._conflicts(np.flatnonzero(clash)))

    def _conflicts(self, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[MergeConflict]:
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
