"""Folding against no folding: the same random life of a graph gives the same rows, changes and errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omnigraph
import omnigraph.graph
from omnigraph.errors import OmnigraphError
from omnigraph.graph import Graph
from omnigraph.maintenance import fold
from tests.maintenance.scene import cleaned
from tests.support.faults import assert_settled
from tests.support.graphs import contents
from tests.support.mutations import store_of

SCHEMA = "node Person { name: String @key  age: I32? @index } edge Knows: Person -> Person"
STEPS, KEPT = 45, 12
Step = Callable[[Graph, random.Random], object]


def _branch(graph: Graph, chance: random.Random) -> str:
    return chance.choice(sorted(graph.branches()))


def _mutate(graph: Graph, branch: str, text: str) -> object:
    return graph.mutate(f"query q() {{ {text} }}", branch=branch)


def _insert(graph: Graph, chance: random.Random) -> object:
    number = chance.randrange(40)
    return _mutate(graph, _branch(graph, chance), f'insert Person {{ name: "p{number}", age: {number} }}')


def _update(graph: Graph, chance: random.Random) -> object:
    at, age = chance.randrange(40), chance.randrange(100)
    text = f'update Person set {{ age: {age} }} where name = "p{at}"'  # noqa: S608 - no SQL
    return _mutate(graph, _branch(graph, chance), text)


def _delete(graph: Graph, chance: random.Random) -> object:
    return _mutate(graph, _branch(graph, chance), f'delete Person where name = "p{chance.randrange(40)}"')


def _connect(graph: Graph, chance: random.Random) -> object:
    one, two = chance.randrange(40), chance.randrange(40)
    return _mutate(graph, _branch(graph, chance), f'insert Knows {{ from: "p{one}", to: "p{two}" }}')


def _load(graph: Graph, chance: random.Random) -> object:
    names = chance.sample(range(40), 5)
    rows = [{"type": "Person", "data": {"name": f"p{at}", "age": chance.randrange(9)}} for at in names]
    return graph.load(rows, mode="merge", branch=_branch(graph, chance))


def _fork(graph: Graph, chance: random.Random) -> None:
    graph.create_branch(f"b{chance.randrange(3)}", _branch(graph, chance))


def _merge(graph: Graph, chance: random.Random) -> object:
    return graph.merge(_branch(graph, chance), _branch(graph, chance), resolve="theirs")


def _drop(graph: Graph, chance: random.Random) -> None:
    graph.delete_branch(_branch(graph, chance))


def _revert(graph: Graph, chance: random.Random) -> object:
    """Revert a change of a user: a fold is no place in history that both graphs have."""
    mine = [commit for commit in graph.commits() if not commit.is_maintenance]
    return graph.revert(mine[min(chance.randrange(4), len(mine) - 1)].commit_id, resolve="ours")


def _tidy(graph: Graph, chance: random.Random) -> object:
    return graph.optimize(_branch(graph, chance))


def _clean(graph: Graph, _: random.Random) -> object:
    return cleaned(store_of(graph.uri), keep=KEPT)


COMMON, RARE = [_insert, _update, _delete, _connect, _load], [_fork, _merge, _drop, _revert, _tidy, _clean]


def _outcome(step: Step, graph: Graph, chance: random.Random) -> str:
    try:
        step(graph, chance)
    except OmnigraphError as error:
        return type(error).__name__
    return "done"


def _rows(graph: Graph) -> dict[str, Any]:
    """The rows of every branch. Edges have random ids, so they are compared by their ends."""
    found = {}
    for name in sorted(graph.branches()):
        tables = contents(store_of(graph.uri), None if name == "main" else name)
        ends = sorted((row["src"], row["dst"]) for row in tables["edge:Knows"])
        found[name] = tables["node:Person"], ends
    return found


def _changes(graph: Graph) -> list[Any]:
    """What the last commits of main changed, without those that changed nothing."""
    since = [commit for commit in graph.commits() if not commit.is_maintenance][:KEPT][-1]
    cursor = graph.change_cursor(since.commit_id)
    blocks = [block for block in graph.changes(cursor=cursor).blocks if block.changes]
    return [sorted((str(one.operation), one.id) for one in block.changes if one.kind == "node") for block in blocks]


def _folds(graph: Graph) -> int:
    return sum(commit.actor_id == fold.ACTOR for name in graph.branches() for commit in graph.commits(name))


def _versions(graph: Graph) -> int:
    return sum(entry.table.version for entry in graph.snapshot().entries.values())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", ["apart", "on the way"])
def test_a_graph_that_folds_is_at_every_step_the_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, seed: int
) -> None:
    never = 2**32
    monkeypatch.setattr(omnigraph.graph, "_FOLD_EVERY", 3 if how == "apart" else never)
    monkeypatch.setattr(omnigraph.graph, "_FOLD_WITHIN", never if how == "apart" else 1)
    monkeypatch.setattr(fold, "FEW", 1)
    monkeypatch.setattr(fold, "FEWEST", 2)
    monkeypatch.setattr(fold, "INDEXED", 9 if how == "apart" else 99)
    graphs = [omnigraph.init(tmp_path / upkeep, SCHEMA, upkeep=upkeep, durability="off") for upkeep in ("auto", "off")]
    chooser = random.Random(seed)  # noqa: S311 - repeatable
    for at in range(STEPS):
        step = chooser.choice(COMMON * 3 + RARE)
        ends = {_outcome(step, graph, random.Random(f"{seed} {at}")) for graph in graphs}  # noqa: S311 - the same for both
        assert len(ends) == 1, (step.__name__, ends)
        assert _rows(graphs[0]) == _rows(graphs[1]), step.__name__
    assert [_folds(graph) > 0 for graph in graphs] == [how == "apart", False]
    assert _versions(graphs[0]) > _versions(graphs[1]), "a fold is a version more"
    assert _changes(graphs[0]) == _changes(graphs[1])
    for graph in graphs:
        assert_settled(store_of(graph.uri))
        assert graph.doctor(deep=True).is_healthy
