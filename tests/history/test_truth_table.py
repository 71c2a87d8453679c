"""What a merge makes of every pair of actions on its two sides. A pair that nobody has decided fails the collection."""

from __future__ import annotations

import itertools
from enum import StrEnum
from pathlib import Path

import pytest

from omnigraph.api.results import MergeOutcome
from omnigraph.graph import Graph
from tests.history.people import acquaintances, ages, conflicts, head, new_graph, records, rows, run


class Op(StrEnum):
    """What a side does."""

    NOOP = "noop"
    ADD_NODE = "addNode"
    REMOVE_NODE = "removeNode"
    ADD_EDGE = "addEdge"
    REMOVE_EDGE = "removeEdge"
    SET_PROPERTY = "setProperty"
    NET_ZERO_EDGE = "netZeroEdge"
    DROP_PROPERTY = "dropProperty"
    ADD_LABEL = "addLabel"
    REMOVE_LABEL = "removeLabel"


# Why no mutation can do it: a schema is changed on main only, while there is no other branch; a node has one type.
UNSUPPORTED = {
    Op.DROP_PROPERTY: "changes the schema",
    Op.ADD_LABEL: "a node has one type",
    Op.REMOVE_LABEL: "a node has one type",
}

# P persons, K acquaintances, A the age of Alice, E whether Eve is there. The left side is the branch that is merged.
TABLE = """
left        | noop               | addNode                          | removeNode                        | addEdge                 | removeEdge         | setProperty                        | netZeroEdge
noop        | UpToDate           | UpToDate                         | UpToDate                          | UpToDate                | UpToDate           | UpToDate                           | UpToDate
addNode     | FF P5 K1 A30 E+    | divergent_insert node:Person Eve | Merged P4 K1 A- E+                | Merged P5 K2 A30 E+     | Merged P5 K0 A30 E+| Merged P5 K1 A31 E+                | Merged P5 K1 A30 E+
removeNode  | FF P3 K1 A- E-     | Merged P4 K1 A- E+               | Merged P3 K1 A- E-                | orphan_edge edge:Knows  | Merged P3 K0 A- E- | delete_vs_update node:Person Alice | Merged P3 K1 A- E-
addEdge     | FF P4 K2 A30 E-    | Merged P5 K2 A30 E+              | orphan_edge edge:Knows            | Merged P4 K3 A30 E-     | Merged P4 K1 A30 E-| Merged P4 K2 A31 E-                | Merged P4 K2 A30 E-
removeEdge  | FF P4 K0 A30 E-    | Merged P5 K0 A30 E+              | Merged P3 K0 A- E-                | Merged P4 K1 A30 E-     | Merged P4 K0 A30 E-| Merged P4 K0 A31 E-                | Merged P4 K0 A30 E-
setProperty | FF P4 K1 A31 E-    | Merged P5 K1 A31 E+              | delete_vs_update node:Person Alice| Merged P4 K2 A31 E-     | Merged P4 K0 A31 E-| divergent_update node:Person Alice | Merged P4 K1 A31 E-
netZeroEdge | FF P4 K1 A30 E-    | Merged P5 K1 A30 E+              | Merged P3 K1 A- E-                | Merged P4 K2 A30 E-     | Merged P4 K0 A30 E-| Merged P4 K1 A31 E-                | Merged P4 K1 A30 E-
"""  # noqa: E501 - a table
OUTCOMES = {"UpToDate": MergeOutcome.ALREADY_UP_TO_DATE, "FF": MergeOutcome.FAST_FORWARD, "Merged": MergeOutcome.MERGED}


def _cells() -> dict[tuple[Op, Op], list[str]]:
    heading, *lines = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()]
    return {
        (Op(left), Op(right)): cell.split()
        for left, *cells in lines
        for right, cell in zip(heading[1:], cells, strict=True)
    }


CELLS = _cells()
POSSIBLE = [op for op in Op if op not in UNSUPPORTED]
assert set(CELLS) == set(itertools.product(POSSIBLE, POSSIBLE)), "every pair of actions is decided"


def _act(graph: Graph, op: Op, branch: str, *, age_of_eve: int = 22, age_of_alice: int = 31) -> None:
    statements = {
        Op.NOOP: (),
        Op.ADD_NODE: (f'insert Person {{ name: "Eve", age: {age_of_eve} }}',),
        Op.REMOVE_NODE: ('delete Person where name = "Alice"',),
        Op.ADD_EDGE: ('insert Knows { from: "Alice", to: "Carol" }',),
        Op.REMOVE_EDGE: ('delete Knows where from = "Bob"',),
        Op.SET_PROPERTY: (f'update Person set {{ age: {age_of_alice} }} where name = "Alice"',),  # noqa: S608 - .gq
        Op.NET_ZERO_EDGE: ('insert Knows { from: "Dan", to: "Alice" }', 'delete Knows where from = "Dan"'),
    }
    for statement in statements[op]:
        run(graph, statement, branch)


def _state(graph: Graph) -> list[str]:
    people = ages(graph)
    edges = len(acquaintances(graph))
    return [f"P{len(people)}", f"K{edges}", f"A{people.get('Alice', '-')}", f"E{'+' if 'Eve' in people else '-'}"]


@pytest.mark.parametrize("right", POSSIBLE)
@pytest.mark.parametrize("left", POSSIBLE)
def test_a_merge_of_two_actions_is_as_the_table_says(left: Op, right: Op, tmp_path: Path) -> None:
    graph = new_graph(tmp_path)
    graph.create_branch("feature")
    _act(graph, left, "feature")
    _act(graph, right, "main", age_of_eve=21 if left is right else 22, age_of_alice=32 if left is right else 31)
    verdict, *expected = CELLS[left, right]

    if verdict in OUTCOMES:
        _is_merged(graph, OUTCOMES[verdict], expected)
    else:
        kind, table, *entity = verdict, *expected
        [(found_kind, found_table, found_id)] = conflicts(graph, "feature")
        assert (found_kind, found_table) == (kind, table)
        assert found_id is not None
        assert entity in ([], [found_id])
        assert _state(graph) == _alone(left, right)


def _is_merged(graph: Graph, outcome: MergeOutcome, expected: list[str]) -> None:
    target, source, branch = head(graph), head(graph, "feature"), rows(graph, "feature")
    done = graph.merge("feature")

    assert done.outcome is outcome
    assert expected in ([], _state(graph))
    if outcome is MergeOutcome.ALREADY_UP_TO_DATE:
        assert (head(graph), done.commit) == (target, None)
    else:
        assert done.commit == graph.commits()[0]
        assert (done.commit.parent_id, done.commit.merged_parent_id) == (target, source)
    assert (head(graph, "feature"), rows(graph, "feature")) == (source, branch)
    again = graph.merge("feature")
    assert (again.outcome, again.commit) == (MergeOutcome.ALREADY_UP_TO_DATE, None)
    assert len(graph.commits()) == len({commit.commit_id for commit in graph.commits()})
    assert records(graph) == []


def _alone(left: Op, right: Op) -> list[str]:
    """What the action of the target makes by itself: that which a branch that has only done it brings."""
    _, *state = CELLS[right, Op.NOOP]
    other = {Op.SET_PROPERTY: "A32"}.get(right) if left is right else None
    return [other if other and part.startswith("A") else part for part in state]


def test_what_no_mutation_can_do_is_in_no_cell() -> None:
    impossible = [pair for pair in itertools.product(Op, Op) if set(pair) & UNSUPPORTED.keys()]

    assert len(impossible) == 51
    assert not CELLS.keys() & set(impossible)
