"""A plain model of three-way merge: commits as dictionaries of entities, and what merging two of them must come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.mutations import KNOWS, NOTE, PERSON, WROTE

Entity = tuple[str, str]  # a table and an id in it
Unknown = tuple[Entity, str]  # an entity and one of its units
Row = Mapping[str, Any]
Image = Mapping[Entity, Row]
Conflict = tuple[str, str, str]  # a kind, a table and an id
UNIQUE = {PERSON: ("nickName",), NOTE: ("rank",), WROTE: ("src", "dst")}
ENDS = {KNOWS: (PERSON, PERSON), WROTE: (PERSON, NOTE)}
BOUNDS = {KNOWS: (0, 3), WROTE: (1, 2)}


@dataclass(frozen=True, slots=True)
class Node:
    """A commit: on which branch it was made, as the how many-th version, from which others, and what it holds."""

    name: str
    branch: str
    number: int
    parents: tuple[str, ...]
    image: Image


@dataclass(frozen=True, slots=True)
class Expected:
    """What a merge comes to: how it is called, what changes in the target, and what contradicts."""

    outcome: str
    change: Mapping[Entity, Row | None] = field(default_factory=dict)
    conflicts: frozenset[Conflict] = frozenset()
    contested: frozenset[Entity] = frozenset()

    def applied(self, image: Image) -> Image:
        return applied(image, self.change)

    def counts(self, image: Image) -> dict[str, tuple[int, int, int]]:
        """How many entities of each type are inserted, updated and deleted."""
        told = Counter(
            (key, 2 if row is None else 1 if (key, name) in image else 0) for (key, name), row in self.change.items()
        )
        return {key: (told[key, 0], told[key, 1], told[key, 2]) for key, _ in told}


@dataclass(slots=True)
class History:
    """The commits of a graph by name, and the heads of its branches. What was merged outlives its branch."""

    nodes: dict[str, Node] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    made_from: dict[str, str] = field(default_factory=dict)

    def head(self, branch: str) -> Node:
        return self.nodes[self.heads[branch]]

    def add(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.heads[node.branch] = node.name

    def create(self, branch: str, base: str) -> None:
        """Make a branch of another one, or of a commit."""
        self.heads[branch] = self.heads.get(base, base)
        self.made_from[branch] = base if base in self.heads else self.nodes[base].branch

    def is_needed(self, branch: str) -> bool:
        return branch in self.made_from.values()

    def delete(self, branch: str) -> None:
        del self.heads[branch], self.made_from[branch]

    def copy(self) -> History:
        """The same, to continue from here in another way."""
        return replace(self, heads=dict(self.heads), made_from=dict(self.made_from))

    # The common past

    def distances(self, starts: Iterable[str]) -> dict[str, int]:
        """How far each ancestor is away."""
        found: dict[str, int] = {}
        waiting, steps = list(starts), 0
        while waiting:
            found |= {name: steps for name in waiting if name not in found}
            parents = {parent for name in waiting for parent in self.nodes[name].parents}
            waiting, steps = sorted(parents - found.keys()), steps + 1
        return found

    def bases(self, ones: Collection[str], other: str) -> list[Node]:
        """The common ancestors that no other common ancestor descends from, the nearest first."""
        here, there = self.distances(ones), self.distances([other])
        common = here.keys() & there.keys()
        older = {name for one in common for name in self.distances([one]) if name != one}
        latest = [self.nodes[name] for name in common - older]
        return sorted(latest, key=lambda node: (here[node.name] + there[node.name], -node.number, node.name))

    def past(self, bases: Sequence[Node]) -> tuple[Image, set[Unknown]]:
        """What several commits have in common: themselves merged."""
        befores = [
            self.past(self.bases([node.name for node in bases[:at]], base.name)) for at, base in enumerate(bases) if at
        ]
        return joined([node.image for node in bases], befores)

    # Merging

    def merge(self, source: str, target: str, resolve: str | None) -> Expected:
        """Foretell a merge of a branch, or of a commit, into a branch."""
        one, other = self.nodes[self.heads.get(source, source)], self.head(target)
        bases = self.bases([one.name], other.name)
        names = [node.name for node in bases]
        if one.name in names:
            return Expected("already_up_to_date")
        past, unknown = self.past(bases)
        outcome = "fast_forward" if names == [other.name] else "merged"
        return Combination(past, unknown, one.image, other.image).run(outcome, resolve)

    def revert(self, name: str, target: str) -> Expected:
        node = self.nodes[name]
        before = self.nodes[node.parents[0]].image
        expected = Combination(node.image, (), before, self.head(target).image).run("merged", None)
        return expected if expected.change or expected.conflicts else Expected("already_up_to_date")

    def pick(self, name: str, target: str, resolve: str | None) -> Expected:
        """Foretell a cherry-pick: the change of a commit since its first parent, on a branch."""
        node = self.nodes[name]
        before = self.nodes[node.parents[0]].image
        expected = Combination(before, (), node.image, self.head(target).image).run("merged", resolve)
        return expected if expected.change or expected.conflicts else Expected("already_up_to_date")


def joined(images: Sequence[Image], befores: Sequence[tuple[Image, Collection[Unknown]]]) -> tuple[Image, set[Unknown]]:
    """Merge several states that two sides come from; each but the first has something in common with those before it.

    Return also the units of entities that they contradict each other about.
    """
    image, unknown = images[0], set[Unknown]()
    for other, (root, lost) in zip(images[1:], befores, strict=True):
        change: dict[Entity, Row | None] = {}
        for one in {*image, *other, *root, *(entity for entity, _ in lost)}:
            row, clashes = merged_row(one, root.get(one), lost, other.get(one), image.get(one))
            unknown |= {(one, unit) for unit in clashes}
            change[one] = row
        image = applied(image, change)
    return image, unknown


def merged_row(
    one: Entity,
    was: Row | None,
    unknown: Collection[Unknown],
    theirs: Row | None,
    ours: Row | None,
    *,
    side: str = "ours",
) -> tuple[Row | None, set[str]]:
    """Merge one entity unit by unit. Return what comes of it, contradictions settled for a side, and what they are."""
    units = sorted({unit_of(name) for row in (was, theirs, ours) for name in row or ()} | {THERE})
    if theirs is None or ours is None:  # kept or deleted as a whole
        lost = any((one, unit) in unknown for unit in units)
        changed, kept = lost or theirs != was, lost or ours != was
        clashes = set(units) if changed and kept and theirs != ours else set()
        taken = side == "theirs" if clashes else changed and not kept
        return (theirs if taken else ours), clashes
    row, clashes = dict(ours), set()
    for unit in units:
        lost = (one, unit) in unknown
        before, here, there = (part(given, unit) for given in (was, ours, theirs))
        changed, kept = lost or there != before, lost or here != before
        if changed and kept and here != there:
            clashes.add(unit)
        if (side == "theirs" and unit in clashes) or (changed and not kept):
            row |= there
    return row, clashes


THERE = "id"
_ENDPOINTS = ("src", "dst")


def unit_of(name: str) -> str:
    """The unit that a property is merged with: both ends of an edge are one."""
    return "src" if name in _ENDPOINTS else name


def part(row: Row | None, unit: str) -> dict[str, Any]:
    """The values of one unit. What is not there is null."""
    return {name: (row or {}).get(name) for name in (_ENDPOINTS if unit == "src" else (unit,))}


def applied(image: Image, change: Mapping[Entity, Row | None]) -> dict[Entity, Row]:
    both = {**image, **change}
    return {one: row for one, row in both.items() if row is not None}


@dataclass(frozen=True, slots=True)
class Combination:
    """Two sides, what they come from, and the units of entities of which that is not known."""

    past: Image
    unknown: Collection[Unknown]
    source: Image
    target: Image

    def run(self, outcome: str, resolve: str | None) -> Expected:
        """Combine the sides entity by entity, then see that the rules hold."""
        change: dict[Entity, Row | None] = {}
        clashes, contested = set[Conflict](), set[Entity]()
        source = self._renamed()
        for one in {*self.past, *source, *self.target}:
            was, theirs, ours = self.past.get(one), source.get(one), self.target.get(one)
            row, units = merged_row(one, was, self.unknown, theirs, ours, side=resolve or "ours")
            if row != ours:
                change[one] = row
            if units:
                contested.add(one)
            if units and resolve is None:
                clashes.add((_kind(was, theirs, ours), *one))
                change.pop(one, None)
        # A fast-forward leads to a state that was checked when it was written.
        conflicts = clashes or (set() if outcome == "fast_forward" else set(broken(self.target, change)))
        return Expected(outcome, change, frozenset(conflicts), frozenset(contested))

    def _renamed(self) -> Image:
        """The source, with the ids that the target gave to edges that both inserted where only one may be."""
        new = {
            (key, row["src"], row["dst"]): name
            for (key, name), row in self.target.items()
            if key == WROTE and (key, name) not in self.past and (key, name) not in self.source
        }
        renamed: dict[Entity, Row] = {}
        for (key, name), row in self.source.items():
            known = (key, name) in self.past or (key, name) in self.target or key != WROTE
            other = None if known else new.get((key, row["src"], row["dst"]))
            renamed[key, other or name] = {**row, "id": other} if other and "id" in row else row
        return renamed


def _kind(was: Row | None, theirs: Row | None, ours: Row | None) -> str:
    if theirs and ours:
        return "divergent_update" if was else "divergent_insert"
    return "delete_vs_update"


def broken(target: Image, change: Mapping[Entity, Row | None]) -> Iterator[Conflict]:
    """Every rule that the target would break with the change."""
    merged = applied(target, change)
    kept = {one: row for one, row in target.items() if one not in change}
    gone = {one for one, row in change.items() if row is None and one[0] not in ENDS}
    for (key, name), row in change.items():
        values = [row[column] for column in UNIQUE.get(key, ())] if row else []
        rivals = ([other[column] for column in UNIQUE[key]] for one, other in kept.items() if one[0] == key)
        if values and None not in values and values in rivals:
            yield "unique_violation", key, name
    for (key, name), row in merged.items():
        if key in ENDS and not _ends(key, row) <= merged.keys():
            yield "orphan_edge", key, name
    for key in {key for key, _ in change if key in ENDS}:
        yield from _miscounted(key, target, change, merged, gone)


def _ends(key: str, row: Row) -> set[Entity]:
    source, target = ENDS[key]
    return {(source, row["src"]), (target, row["dst"])}


def _miscounted(
    key: str, target: Image, change: Mapping[Entity, Row | None], merged: Image, gone: Collection[Entity]
) -> Iterator[Conflict]:
    changed = [one for one in change if one[0] == key]
    rows = [row for one in changed for row in (change[one], target.get(one)) if row]
    counts = Counter(row["src"] for one, row in merged.items() if one[0] == key)
    low, high = BOUNDS[key]
    for source in {row["src"] for row in rows}:
        if (ENDS[key][0], source) not in gone and not low <= counts[source] <= high:
            yield "cardinality_violation", key, source
