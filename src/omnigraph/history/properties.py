"""Merge entities property by property: which side each value comes from, and which values contradict each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.arrow import plain_values
from omnigraph.api.options import THEIRS, UNION, MergeBy, Resolution, Take, TakeValue
from omnigraph.errors import MergeConflict, PropertyConflict
from omnigraph.history.delta import Mask, differing
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.storage.columns import image_schema, table_key, to_array
from omnigraph.storage.read import DST, ID, SRC

Matrix = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
"""A mark for each unit (row) and entity (column)."""
_Positions = np.ndarray[tuple[int], np.dtype[np.int64]]

_MOST_SHOWN = 65_536  # bytes of a value in a conflict; larger ones are shown by their digest
_MOST_NUMBERS = 16  # of a vector


@dataclass(frozen=True, slots=True)
class Unit:
    """Columns that are merged as one value."""

    columns: tuple[str, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """The names by which people know them."""
        return tuple(name for name in self.columns if name != ID)


@dataclass(frozen=True, slots=True)
class Derived:
    """A vector that follows the text it was made from, which is in a unit."""

    column: str
    unit: int
    required: bool


@dataclass(frozen=True, slots=True)
class Units:
    """How the columns of a type are merged. The first unit has the id: it decides whether an entity is there."""

    units: tuple[Unit, ...]
    derived: tuple[Derived, ...] = ()

    @classmethod
    def of(cls, declared: NodeType | EdgeType, by: MergeBy) -> Units:
        names = image_schema(declared).names
        if by is MergeBy.ENTITY:
            return cls((Unit(tuple(names)),))
        # The ends of an edge are one value: one end of each side would be an edge that neither side made.
        first = (ID, SRC, DST) if isinstance(declared, EdgeType) else (ID,)
        properties = declared.properties
        embedded = {name: one.embed for name, one in properties.items() if one.embed and one.embed.source in properties}
        units = [Unit(first), *(Unit((name,)) for name in names if name not in first and name not in embedded)]
        place = {unit.columns[0]: at for at, unit in enumerate(units)}
        derived = tuple(
            Derived(name, place[embed.source], not properties[name].type.nullable)
            for name, embed in embedded.items()
            if embed.source in place
        )
        return cls(tuple(units), derived)


@dataclass(frozen=True, slots=True)
class AlignedRows:
    """The rows of some entities in one state, in the same order for all states; missing entities are null rows."""

    there: Mask
    rows: pa.Table

    def differs(self, other: AlignedRows, units: Units) -> Matrix:
        """Return which units of which entities differ. A missing entity has only nulls, its id too."""
        found = np.zeros((len(units.units), len(self.there)), np.bool_)
        for at, unit in enumerate(units.units):
            for name in unit.columns:
                found[at] |= differing(self.rows[name], other.rows[name])
        return found

    def where(self, mask: Mask, other: AlignedRows) -> AlignedRows:
        """Take the marked entities from here and the rest from `other`."""
        columns = [_either(mask, self.rows[name], other.rows[name]) for name in self.rows.column_names]
        return AlignedRows(np.where(mask, self.there, other.there), pa.table(columns, schema=self.rows.schema))


def _either(mask: Mask, one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Take the marked values from `one` and the rest from `other`."""
    if mask.all():
        return one
    if not mask.any():
        return other
    # One `take` over both, because Arrow has no `if_else` for all types of columns.
    at = np.where(mask, np.arange(len(mask)), np.arange(len(mask)) + len(mask))
    return pa.chunked_array([*one.chunks, *other.chunks], one.type).take(at)


@dataclass(frozen=True, slots=True)
class Merged:
    """Which values come from the source, which ones contradict each other, and which are given or made null.

    `given` has for some columns positions and the values there; `stale` marks vectors whose text has changed.
    """

    take: Matrix
    clash: Matrix
    given: tuple[tuple[str, _Positions, pa.Array], ...] = ()
    stale: tuple[tuple[str, Mask], ...] = ()

    @property
    def clashes(self) -> Mask:
        """The entities with a conflict."""
        return np.asarray(self.clash.any(axis=0))


@dataclass(frozen=True, slots=True)
class PropertyMerge:
    """Two states of some entities, what they come from, and the units of which that is unknown."""

    declared: NodeType | EdgeType
    units: Units
    base: AlignedRows
    unknown: Matrix
    source: AlignedRows
    target: AlignedRows

    def decide(self) -> Merged:
        """Find what each side changed. A change of one side is taken; the same change of both is no conflict."""
        ours = self.target.differs(self.base, self.units) | self.unknown
        theirs = self.source.differs(self.base, self.units) | self.unknown
        differs = self.source.differs(self.target, self.units)
        take, clash = theirs & ~ours, ours & theirs & differs
        for one in self.units.derived:  # a vector that must be there, and that neither side has made for the text
            if one.required:
                clash[one.unit] |= self._source_of(one, Merged(take, clash))[1]
        # An entity that only one side has is kept or deleted as a whole.
        whole = self.source.there != self.target.there
        changed, kept = theirs[:, whole].any(axis=0), ours[:, whole].any(axis=0)
        take[:, whole] = changed & ~kept
        clash[:, whole] = changed & kept
        return Merged(take, clash)

    def settle(self, merged: Merged, resolution: Resolution, ids: pa.Array) -> Merged:
        """Resolve conflicts: by property, else entity, else property of the type, else type, else the default."""
        settling = _Settling(self, merged, resolution, ids)
        return settling.run() if merged.clash.any() else merged

    def derive(self, merged: Merged) -> Merged:
        """Decide where vectors come from: from the side whose text is taken, if it made them for that text."""
        if not self.units.derived:
            return merged
        stale, clash = [], merged.clash
        for one in self.units.derived:
            lost = self._source_of(one, merged)[1]
            if one.required:
                # A side that was chosen brings its own vector; a text of neither side has none.
                text = self.units.units[one.unit].columns[0]
                clash = clash.copy()
                for at in (at for name, at, _ in merged.given if name == text):
                    clash[one.unit, at] = True
            elif lost.any():
                stale.append((one.column, lost))
        return Merged(merged.take, clash, merged.given, tuple(stale))

    def _source_of(self, one: Derived, merged: Merged) -> tuple[Mask, Mask]:
        """Return for which entities a vector comes from the source, and for which neither side has the right one."""
        base, source, target = (side.rows[one.column] for side in (self.base, self.source, self.target))
        text = self.units.units[one.unit].columns[0]
        ours = differing(target, base) | self.unknown[one.unit]
        theirs = differing(source, base) | self.unknown[one.unit]
        taken = merged.take[one.unit]
        other_text = differing(self.source.rows[text], self.target.rows[text])
        whole = self.source.there != self.target.there
        # Two vectors of one text: both are right, and which one is kept makes no difference.
        from_source = np.where(other_text | whole, taken, theirs & ~ours)
        made, elsewhere = np.where(taken, theirs, ours), np.where(taken, ours, theirs)
        lost = other_text & ~whole & ~made & elsewhere
        for name, at, _ in merged.given:
            if name == text:
                lost[at] = True
        return from_source, lost & ~merged.clash[one.unit]

    def rows(self, merged: Merged) -> AlignedRows:
        """Return the entities as they are after the merge."""
        columns: dict[str, pa.ChunkedArray] = {}
        for unit, take in zip(self.units.units, merged.take, strict=True):
            for name in unit.columns:
                columns[name] = _either(take, self.source.rows[name], self.target.rows[name])
        for name, at, values in merged.given:
            columns[name] = _replaced(columns[name], at, values)
        for one in self.units.derived:
            from_source, lost = self._source_of(one, merged)
            column = _either(from_source, self.source.rows[one.column], self.target.rows[one.column])
            at = np.flatnonzero(lost & (not one.required))
            columns[one.column] = _replaced(column, at, pa.nulls(len(at), column.type))
        schema = self.target.rows.schema
        there = np.where(merged.take[0], self.source.there, self.target.there)
        return AlignedRows(there, pa.table([columns[name] for name in schema.names], schema=schema))

    def conflicts(self, merged: Merged, ids: pa.Array) -> Iterator[MergeConflict]:
        """Describe the conflicts, with the values of each property on each side."""
        at = np.flatnonzero(merged.clashes)
        names = ids.take(at).to_pylist()
        values = [_shown_rows(side.rows.take(at)) for side in (self.base, self.target, self.source)]
        for number, (position, name) in enumerate(zip(at.tolist(), names, strict=True)):
            was, source, target = (bool(aligned.there[position]) for aligned in (self.base, self.source, self.target))
            kind, what = _kind(was, source, target)
            found: tuple[PropertyConflict, ...] = ()
            combined: tuple[str, ...] = ()
            if source and target and len(self.units.units) > 1:
                found = tuple(
                    _conflict(column, [one[column][number] for one in values], was)
                    for column in self._columns(merged.clash[:, position])
                )
                combined = tuple(self._columns(merged.take[:, position]))
                what += f": {', '.join(one.name for one in found)}"
            message = f"{self.declared.name} '{name}' {what}"
            yield MergeConflict(kind, table_key(self.declared), name, message, found, combined)

    def _columns(self, marked: Mask) -> Iterator[str]:
        for unit, mark in zip(self.units.units, marked.tolist(), strict=True):
            if mark:
                yield from unit.shown


def _replaced(column: pa.ChunkedArray, at: _Positions, values: pa.Array) -> pa.ChunkedArray:
    """Put values at some positions of a column."""
    if not len(at):
        return column
    order = np.arange(len(column))
    order[at] = len(column) + np.arange(len(at))
    return pa.chunked_array([*column.chunks, values.cast(column.type)], column.type).take(order)


def _conflict(name: str, values: Sequence[Any], was: bool) -> PropertyConflict:  # noqa: FBT001 - a fact
    base, ours, theirs = values
    return PropertyConflict(name, base, ours, theirs, has_base=was)


def _kind(was: bool, source: bool, target: bool) -> tuple[str, str]:  # noqa: FBT001 - three facts
    if source and target:
        if was:
            return "divergent_update", "was changed differently on both sides"
        return "divergent_insert", "was inserted differently on both sides"
    by, other = ("source", "target") if target else ("target", "source")
    return "delete_vs_update", f"was deleted on the {by} and changed on the {other}"


# Values in conflicts -------------------------------------------------------------------------------


def _shown_rows(rows: pa.Table) -> Mapping[str, Sequence[Any]]:
    return {name: [_shown(value) for value in _plain(rows[name])] for name in rows.column_names}


def _plain(column: pa.ChunkedArray) -> list[Any]:
    return column.to_pylist() if pa.types.is_large_binary(column.type) else plain_values(column)


def _shown(value: Any) -> Any:
    """Return a value as JSON has it, and what is too large to read by its size and digest."""
    if isinstance(value, bytes):
        return _digest(value)
    if isinstance(value, str) and len(value) > _MOST_SHOWN:
        return _digest(value.encode())
    if isinstance(value, list) and len(value) > _MOST_NUMBERS and all(isinstance(one, float) for one in value):
        return _digest(np.array(value, np.float32).tobytes())
    return value


def _digest(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


# Resolutions ---------------------------------------------------------------------------------------


class _Settling:
    """Applies a resolution to the conflicts of one table."""

    def __init__(self, merge: PropertyMerge, merged: Merged, resolution: Resolution, ids: pa.Array) -> None:
        self.merge = merge
        self.resolution = resolution
        self.ids = ids
        self.key = table_key(merge.declared)
        self.take, self.clash = merged.take.copy(), merged.clash.copy()
        self.both: Mask = merge.source.there & merge.target.there
        self.given: dict[str, tuple[list[_Positions], list[pa.Array]]] = {}

    def run(self) -> Merged:
        # The precise ones first: what they settle is no conflict any more.
        self._entities()
        for number, unit in enumerate(self.merge.units.units):
            names = unit.shown if len(self.merge.units.units) > 1 else ()
            taken = next((one for name in names if (one := self.resolution.of_property(self.key, name))), None)
            self._settle(number, self.both, taken or self.resolution.of_type(self.key))
            self._settle(number, ~self.both, self.resolution.of_type(self.key))
        given = tuple((name, np.concatenate(at), pa.concat_arrays(values)) for name, (at, values) in self.given.items())
        return Merged(self.take, self.clash, given)

    def _entities(self) -> None:
        chosen = self.resolution.entities_of(self.key)
        if not chosen:
            return
        at = pc.index_in(pa.array(list(chosen), pa.string()), value_set=self.ids).to_pylist()
        for position, one in zip(at, chosen.values(), strict=True):
            if position is None:
                continue  # settled by the branches themselves meanwhile
            mask = np.zeros(len(self.both), np.bool_)
            mask[position] = True
            for number, unit in enumerate(self.merge.units.units):
                by_property = [one.properties[name] for name in unit.shown if name in one.properties]
                taken = by_property[0] if by_property and self.both[position] else one.take
                self._settle(number, mask, taken)

    def _settle(self, number: int, among: Mask, taken: Take | None) -> None:
        """Settle the conflicts of one unit."""
        marked = self.clash[number] & among
        if taken is None or not marked.any():
            return
        if isinstance(taken, TakeValue) or taken == UNION:
            marked = self._give(number, np.flatnonzero(marked & self.both), taken)
        else:
            self.take[number] = np.where(marked, taken == THEIRS, self.take[number])
        self.clash[number] &= ~marked

    def _give(self, number: int, at: _Positions, taken: Take) -> Mask:
        """Give entities a value of neither side. Return which ones got it: only a single property can."""
        settled = np.zeros(len(self.both), np.bool_)
        unit = self.merge.units.units[number]
        property_ = self.merge.declared.properties.get(unit.columns[0])
        if len(unit.columns) > 1 or property_ is None or not len(at):
            return settled
        if isinstance(taken, TakeValue):
            values = to_array(property_.type, [self.resolution.decoded(property_.type, taken)] * len(at))
        elif property_.type.is_list:
            values = self._union(unit.columns[0], at)
        else:
            return settled
        positions, parts = self.given.setdefault(unit.columns[0], ([], []))
        positions.append(at)
        parts.append(values)
        settled[at] = True
        return settled

    def _union(self, name: str, at: _Positions) -> pa.Array:
        """Return the items of both sides: those of the target first, then those that only the source has."""
        ours, theirs = (side.rows[name].take(at) for side in (self.merge.target, self.merge.source))
        joined = [
            None if one is None and other is None else list(dict.fromkeys([*(one or ()), *(other or ())]))
            for one, other in zip(ours.to_pylist(), theirs.to_pylist(), strict=True)
        ]
        return pa.array(joined, ours.type)
