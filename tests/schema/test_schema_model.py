"""Random histories of schema changes, writes and merges on branches, against a plain model by identity."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import MergeConflictError
from omnigraph.graph import Graph
from tests.schema.town import look
from tests.support.faults import assert_settled
from tests.support.mutations import store_of

BRANCHES = ("main", "one", "two")
NAMES = ("a", "b", "c", "d")
IDS = ("x", "y", "z")
WIDER = {"I32": "I64", "I64": "I64", "String": "String"}
SEEDS = range(int(os.environ.get("OMNIGRAPH_SOAK", "0")) * 40 or 6)

Facts = Mapping[Any, Any]


@dataclass(frozen=True)
class State:
    """A commit: properties by identity, each with its name and type; rows with values by identity."""

    properties: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    past: frozenset[int] = frozenset()  # the commits that it descends from, itself too

    def text(self, before: State | None = None) -> str:
        lines = []
        for id_, (name, type_) in self.properties.items():
            old = before.properties.get(id_) if before else None
            hint = f' @rename_from("{old[0]}")' if old and old[0] != name else ""
            lines.append(f"{name}: {type_}?{hint}")
        return f"node Thing {{ name: String @key {' '.join(lines)} }}"

    def shown(self) -> dict[str, dict[str, Any]]:
        return {
            one: {name: row.get(id_) for id_, (name, _) in self.properties.items()} for one, row in self.rows.items()
        }


class Contradiction(Exception):  # noqa: N818 - a result of the model
    """The two sides of a merge contradict each other."""


def three_way(before: Any, mine: Any, other: Any) -> Any:
    if other in (mine, before):
        return mine
    if mine == before:
        return other
    raise Contradiction


def same_added(base: State, mine: State, other: State) -> dict[str, str]:
    """What both sides added under one name and with one type is one property."""
    new = {one: id_ for id_, one in mine.properties.items() if id_ not in base.properties}
    return {id_: new[one] for id_, one in other.properties.items() if id_ not in base.properties and one in new}


def renamed(state: State, ids: Mapping[str, str]) -> State:
    properties = {ids.get(id_, id_): one for id_, one in state.properties.items()}
    rows = {one: {ids.get(id_, id_): value for id_, value in row.items()} for one, row in state.rows.items()}
    return State(properties, rows, state.past)


def only(row: Mapping[str, Any] | None, properties: Facts) -> dict[str, Any] | None:
    return None if row is None else {id_: value for id_, value in row.items() if id_ in properties}


def merged(base: State, mine: State, other: State) -> State:
    other = renamed(other, same_added(base, mine, other))
    properties: dict[str, Any] = {}
    for id_ in {**mine.properties, **other.properties}:
        sides: Any = [state.properties.get(id_) for state in (base, mine, other)]
        if sides[0] is not None and None in sides[1:]:
            keeper = mine if sides[1] else other
            changed = keeper.properties.get(id_, sides[0]) != sides[0] or any(
                row.get(id_) != base.rows.get(one, {}).get(id_) for one, row in keeper.rows.items()
            )
            if changed:
                raise Contradiction
        elif None in sides[1:] or sides[0] is None:
            properties[id_] = sides[1] or sides[2]
        else:
            properties[id_] = tuple(three_way(*(side[at] for side in sides)) for at in range(2))
    names = [name for name, _ in properties.values()]
    freed = {
        mine.properties[id_][0] for id_ in mine.properties if properties.get(id_, ("",))[0] != mine.properties[id_][0]
    }
    if len(set(names)) < len(names) or freed & set(names):
        raise Contradiction  # a name is taken twice, or by another property in the same change
    rows: dict[str, Any] = {}
    for one in {**mine.rows, **other.rows}:
        sides = [
            {id_: row[id_] for id_ in properties if row.get(id_) is not None}
            if (row := state.rows.get(one)) is not None
            else None
            for state in (base, mine, other)
        ]
        if None in sides[1:] and sides[0] is not None:
            if (sides[1] if sides[2] is None else sides[2]) != sides[0]:
                raise Contradiction
        elif None in sides[1:]:
            rows[one] = sides[1] if sides[1] is not None else sides[2]
        else:
            before = sides[0] or {}
            values = {id_: three_way(before.get(id_), sides[1].get(id_), sides[2].get(id_)) for id_ in properties}
            rows[one] = {id_: value for id_, value in values.items() if value is not None}
    return State(properties, rows)


class World:
    def __init__(self, graph: Graph, random: Random) -> None:
        self.graph, self.random = graph, random
        self.commits: list[State] = []
        self.count = 0
        self.merges = self.conflicts = self.changes = 0
        first = self.commit(State({"p": ("a", "I32")}), [])
        self.heads = dict.fromkeys(BRANCHES, first)

    def commit(self, state: State, parents: list[State]) -> State:
        past = frozenset({len(self.commits)}).union(*(one.past for one in parents))
        made = State(state.properties, state.rows, past)
        self.commits.append(made)
        return made

    def step(self) -> None:
        branch = self.random.choice(BRANCHES)
        kind = self.random.choice(("write", "write", "schema", "merge"))
        {"write": self.write, "schema": self.schema, "merge": self.merge}[kind](branch)
        for name in BRANCHES:
            found = {one["data"]["id"]: one["data"] for one in look(self.graph, branch=name)}
            got = {one: {key: row[key] for key in row if key not in ("id", "name")} for one, row in found.items()}
            assert got == self.heads[name].shown(), name

    def write(self, branch: str) -> None:
        state, one = self.heads[branch], self.random.choice(IDS)
        rows = dict(state.rows)
        if one in rows and self.random.random() < 0.3:
            del rows[one]
            self.graph.mutate(f'query q() {{ delete Thing where name = "{one}" }}', branch=branch)
        else:
            values = {}
            for id_, (_, type_) in state.properties.items():
                number = self.random.randrange(3)
                values[id_] = None if not number else str(number) if type_ == "String" else number
            data = {state.properties[id_][0]: value for id_, value in values.items()}
            rows[one] = {id_: value for id_, value in values.items() if value is not None}
            self.graph.load([{"type": "Thing", "data": {"name": one, **data}}], mode="merge", branch=branch)
        self.heads[branch] = self.commit(State(state.properties, rows), [state])

    def schema(self, branch: str) -> None:
        state = self.heads[branch]
        properties, used = dict(state.properties), {name for name, _ in state.properties.values()}
        free = [name for name in NAMES if name not in used]
        what = self.random.choice(("add", "rename", "drop", "widen"))
        id_ = self.random.choice(sorted(properties)) if properties else None
        if what == "add" and free:
            self.count += 1
            properties[f"p{self.count}"] = (self.random.choice(free), self.random.choice(("I32", "String")))
        elif what == "rename" and id_ and free:
            properties[id_] = (self.random.choice(free), properties[id_][1])
        elif what == "drop" and id_:
            del properties[id_]
        elif what == "widen" and id_:
            properties[id_] = (properties[id_][0], WIDER[properties[id_][1]])
        if properties == state.properties:
            return
        made = State(
            properties, {one: {k: v for k, v in row.items() if k in properties} for one, row in state.rows.items()}
        )
        assert self.graph.apply_schema(made.text(state), branch=branch).applied
        self.changes += 1
        self.heads[branch] = self.commit(made, [state])

    def merge(self, branch: str) -> None:
        source = self.random.choice([name for name in BRANCHES if name != branch])
        mine, other = self.heads[branch], self.heads[source]
        if other.past <= mine.past:
            assert self.graph.merge(source, into=branch).outcome == "already_up_to_date"
            return
        common = mine.past & other.past
        latest = [at for at in common if not any(at in self.commits[one].past for one in common if one != at)]
        if len(latest) > 1:
            return  # several merge bases: test_schema_branches.py has them
        base = self.commits[latest[0]]
        try:
            expected = merged(base, mine, other)
        except Contradiction:
            with pytest.raises(MergeConflictError):
                self.graph.merge(source, into=branch)
            self.conflicts += 1
            return
        self.graph.merge(source, into=branch)
        self.merges += 1
        self.heads[branch] = self.commit(expected, [mine, other])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_history_is_that_of_the_model(tmp_path: Path, seed: int) -> None:
    graph = omnigraph.init(str(tmp_path / "g"), State({"p": ("a", "I32")}).text())
    for name in BRANCHES[1:]:
        graph.create_branch(name)
    world = World(graph, Random(seed))  # noqa: S311 - a test that can be repeated
    for _ in range(40):
        world.step()
    assert min(world.merges + world.conflicts, world.changes) > 1
    assert_settled(store_of(graph.uri))
