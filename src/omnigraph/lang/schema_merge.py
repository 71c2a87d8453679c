"""Merge two schemas that come from a common one, by the identity of their types and properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from omnigraph.lang.schema_facts import KIND, NAME, PROSE, Fact, Facts, IdentifiedSchema, named_in, plain

DIVERGENT, RENAMED, NAME_TAKEN, DROPPED = (
    "schema_divergent",
    "schema_rename",
    "schema_name_taken",
    "schema_drop_vs_change",
)
_ABSENT, _UNKNOWN = object(), object()
Element = tuple[str, str]
"""The id of a type, and of one of its properties or an empty text."""


@dataclass(frozen=True, slots=True)
class SchemaConflict:
    """What two schemas say differently about a type or property; `label` is its name, such as `node:Person.age`."""

    kind: str
    element: Element
    label: str
    message: str


Take = Callable[[SchemaConflict], str | None]
"""Chooses a side for a conflict: `ours`, `theirs`, or None."""


@dataclass(frozen=True, slots=True)
class MergedSchema:
    """The facts of a merged schema; `dropped` are elements that one side dropped and the other still has."""

    facts: Facts
    conflicts: tuple[SchemaConflict, ...] = ()
    dropped: Mapping[Element, str] = field(default_factory=dict)


def aliases(base: Facts, ours: IdentifiedSchema, theirs: IdentifiedSchema) -> dict[str, str]:
    """Return the ids of ours for what both sides have added alike, by the ids of theirs."""
    known = {place[0] for place in base} | {place[1] for place in base}
    found: dict[str, str] = {}
    mine, other = plain(ours.catalog), plain(theirs.catalog)
    for key, one in theirs.ids.items():
        same = ours.ids.get(key)
        kind, _, name = key.partition(":")
        kinds = {"interface": "interfaces", "node": "nodes", "edge": "edges"}
        types = [getattr(catalog, kinds[kind]) for catalog in (mine, other)]
        if same and one.id != same.id and not known & {one.id, same.id} and types[0][name] == types[1][name]:
            found |= {one.id: same.id, **{id_: same.properties[name] for name, id_ in one.properties.items()}}
    for key, one in theirs.ids.items():
        before = next((name for name, same in ours.ids.items() if same.id == one.id), None)
        if before is None or one.id in found:
            continue
        properties = ours.ids[before].properties
        kind = {"interface": "interfaces", "node": "nodes", "edge": "edges"}[key.partition(":")[0]]
        declared = [getattr(mine, kind)[before.partition(":")[2]], getattr(other, kind)[key.partition(":")[2]]]
        for name, id_ in one.properties.items():
            new = name in properties and not known & {id_, properties[name]} and id_ != properties[name]
            if new and declared[0].properties[name] == declared[1].properties[name]:
                found[id_] = properties[name]
    return found


def merge_schemas(
    base: Facts, ours: Facts, theirs: Facts, take: Take, kept: Mapping[Element, str] | None = None
) -> MergedSchema:
    """Merge facts: what one side changed is taken, and what both changed differently is a conflict.

    `kept` has the side of elements that are kept although the other side dropped them.
    """
    merging = _Merging(base, ours, theirs)
    for element, keeper in (kept or {}).items():
        merging.settle(element, ours if keeper == "ours" else theirs)
    conflicts: list[SchemaConflict] = []
    for conflict in merging.conflicts():
        side = take(conflict)
        if side is None:
            conflicts.append(conflict)
        else:
            merging.settle(conflict.element, ours if side == "ours" else theirs)
    for conflict, rival in [*merging.taken_names()]:
        side = take(conflict) if conflict.kind == DIVERGENT else None
        if side is None:
            conflicts.append(conflict)
        else:
            merging.settle(conflict.element if side == "ours" else rival, {})
    return MergedSchema(merging.merged, tuple(conflicts), merging.dropped())


def joined_bases(base: Facts, one: Facts, other: Facts) -> Facts:
    """Combine two merge bases. What they contradict each other in is unknown: equal to nothing."""
    merging = _Merging(base, one, other)
    for places in merging.clashes.values():
        for place in places:
            if place[-1] not in (NAME, KIND):
                merging.merged[place] = _UNKNOWN
            else:
                merging.merged.setdefault(place, other.get(place, one.get(place)))
    return merging.merged


class _Merging:
    def __init__(self, base: Facts, ours: Facts, theirs: Facts) -> None:
        self.base, self.ours, self.theirs = base, ours, theirs
        self.merged: dict[Fact, Any] = {}
        self.clashes: dict[Element, list[Fact]] = {}
        for place in dict.fromkeys((*ours, *theirs, *base)):
            self._merge(place)

    def _merge(self, place: Fact) -> None:
        before, mine, other = (facts.get(place, _ABSENT) for facts in (self.base, self.ours, self.theirs))
        taken = other if mine == before else mine
        if before not in (mine, other) and mine != other and place[-1] not in PROSE:
            self.clashes.setdefault((place[0], place[1]), []).append(place)
        elif taken is not _ABSENT:
            self.merged[place] = taken

    def conflicts(self) -> Iterator[SchemaConflict]:
        for element, places in self.clashes.items():
            lost = any((*element, NAME) not in facts for facts in (self.ours, self.theirs))
            if lost:
                yield self._conflict(DROPPED, element, "one side dropped it, and the other changed it")
            elif [place[-1] for place in places] == [NAME]:
                names = " and ".join(f"'{facts[*element, NAME]}'" for facts in (self.ours, self.theirs))
                yield self._conflict(RENAMED, element, f"the two sides renamed it, to {names}")
            else:
                aspects = sorted({str(place[2]) for place in places})
                yield self._conflict(DIVERGENT, element, f"the two sides changed it differently: {', '.join(aspects)}")
        yield from self._dangling()

    def _dangling(self) -> Iterator[SchemaConflict]:
        """Yield what one side dropped, and the other added something to, or refers to."""
        there = {(place[0], place[1]) for place in self.merged if place[-1] == NAME}
        gone = {}
        for place, value in self.merged.items():
            for element in ((place[0], ""), (place[0], place[1]), *self._named_in(place, value)):
                if element not in there and element not in self.clashes:
                    gone[element] = self._conflict(DROPPED, element, "one side dropped it, and the other uses it")
                    break
        yield from gone.values()

    def _named_in(self, place: Fact, value: Any) -> Iterator[Element]:
        if value is _UNKNOWN:
            return
        for id_ in named_in(place, value):
            if any((id_, "", NAME) in facts for facts in (self.ours, self.theirs)):
                yield id_, ""
            elif any((place[0], id_, NAME) in facts for facts in (self.ours, self.theirs)):
                yield place[0], id_

    def settle(self, element: Element, side: Facts) -> None:
        """Take all that one side says about an element, and about the properties of a type."""

        def concerns(place: Fact) -> bool:
            return (place[0], place[1]) == element or (not element[1] and place[0] == element[0])

        # The properties of a type follow it only if one of the sides has dropped it.
        whole = any((*element, NAME) not in facts for facts in (self.ours, self.theirs))
        for place in [one for one in self.merged if concerns(one) and (whole or one[1] == element[1])]:
            del self.merged[place]
        if (*element, NAME) not in side:
            gone = element[1] or element[0]
            self.merged = {place: value for place, value in self.merged.items() if gone not in named_in(place, value)}
        self.merged |= {
            place: value for place, value in side.items() if concerns(place) and (whole or place[1] == element[1])
        }

    def taken_names(self) -> Iterator[tuple[SchemaConflict, Element]]:
        """Yield the types of one kind, and the properties of one type, that have one name; and which has it as well."""
        scopes = {}
        for place, name in self.merged.items():
            if place[-1] == NAME:
                scope = self.merged.get((place[0], "", KIND)) if not place[1] else place[0]
                scopes[place[0], place[1]] = (scope, bool(place[1]), name)
        counts = Counter(scopes.values())
        for element, scope in scopes.items():
            if counts[scope] > 1 and (*element, NAME) in self.theirs:
                both_new = not any((*one, NAME) in self.base for one, other in scopes.items() if other == scope)
                kind = DIVERGENT if both_new else NAME_TAKEN
                why = "both sides added it, differently" if both_new else "the other side gives another one this name"
                rival = next(one for one, other in scopes.items() if other == scope and one != element)
                yield self._conflict(kind, element, why), rival

    def dropped(self) -> dict[Element, str]:
        """Return what is gone, with the side that still has it."""
        found = {}
        for place in self.base:
            element = (place[0], place[1])
            if place[-1] == NAME and place not in self.merged:
                if place in self.ours and place not in self.theirs:
                    found[element] = "ours"
                elif place in self.theirs and place not in self.ours:
                    found[element] = "theirs"
        return found

    def label(self, element: Element) -> str:
        for facts in (self.ours, self.theirs, self.base):
            if (*element, NAME) in facts:
                type_ = f"{facts[element[0], '', KIND]}:{facts[element[0], '', NAME]}"
                return f"{type_}.{facts[*element, NAME]}" if element[1] else type_
        return ":".join(element)

    def _conflict(self, kind: str, element: Element, why: str) -> SchemaConflict:
        label = self.label(element)
        what = f"property {label.partition(':')[2]}" if element[1] else label.replace(":", " ", 1)
        return SchemaConflict(kind, element, label, f"{what}: {why}")
