"""Procedures against networkx, on graphs with loops, parallel edges and nodes without edges."""

from __future__ import annotations

import networkx as nx  # type: ignore[import-untyped]
import numpy as np
import pytest

import omnigraph
from omnigraph.errors import ParameterError
from omnigraph.graph import Graph
from tests.query.scene import edge, node

SCHEMA = "node Person { name: String @key } edge Knows: Person -> Person { km: F64? }"
PEOPLE = [f"p{number:02}" for number in range(40)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, nx.MultiDiGraph]:
    random = np.random.default_rng(7)
    pairs = [*random.integers(0, 34, (70, 2)).tolist(), [1, 1], [2, 3], [2, 3], [34, 35]]
    ends = [(PEOPLE[source], PEOPLE[target]) for source, target in pairs]
    lengths = random.integers(0, 9, len(ends)).tolist()
    graph = omnigraph.init(str(tmp_path_factory.mktemp("procedures") / "graph"), SCHEMA)
    graph.load(
        [
            *(node("Person", name=name) for name in PEOPLE),
            *(edge("Knows", *pair, km=km) for pair, km in zip(ends, lengths, strict=True)),
        ],
        mode="append",
    )
    same = nx.MultiDiGraph()
    same.add_nodes_from(PEOPLE)
    same.add_edges_from((*pair, {"km": km}) for pair, km in zip(ends, lengths, strict=True))
    return graph, same


def _called(graph: Graph, call: str, parameters: dict[str, object] | None = None) -> dict[str, object]:
    declared = ", ".join(f"${name}: String" for name in parameters or {})
    text = f"query q({declared}) {{ match {{ call {call} yield $p, $x }} return {{ $p.name, $x }} }}"
    return {str(row["p.name"]): row["x"] for row in graph.query(text, parameters).rows}


def test_ranks(made: tuple[Graph, nx.MultiDiGraph]) -> None:
    graph, same = made
    found = _called(graph, "pagerank(knows, damping: 0.8)")
    links = nx.to_numpy_array(nx.DiGraph(same), nodelist=PEOPLE, weight=None)
    # A node without edges shares its rank with all; then the ranks solve a system of linear equations.
    links[links.sum(axis=1) == 0] = 1
    shares = (links / links.sum(axis=1, keepdims=True)).T
    count = len(PEOPLE)
    expected = np.linalg.solve(np.eye(count) - 0.8 * shares, np.full(count, 0.2 / count))
    assert [found[name] for name in PEOPLE] == pytest.approx(expected.tolist(), abs=1e-9)


def test_components_have_the_name_of_their_smallest_node(made: tuple[Graph, nx.MultiDiGraph]) -> None:
    graph, same = made
    expected = {one: min(part) for part in nx.weakly_connected_components(same) for one in part}
    assert _called(graph, "components(knows)") == expected


@pytest.mark.parametrize("direction", ["out", "in", "both"])
def test_distances(made: tuple[Graph, nx.MultiDiGraph], direction: str) -> None:
    graph, same = made
    other = {"out": same, "in": same.reverse(), "both": same.to_undirected()}[direction]
    call = f'distances(knows, from: $from, direction: "{direction}")'
    assert _called(graph, call, {"from": "p02"}) == nx.single_source_shortest_path_length(other, "p02")


def test_weighted_distances(made: tuple[Graph, nx.MultiDiGraph]) -> None:
    graph, same = made
    found = _called(graph, 'distances(knows, from: "p02", weight: "km")')
    assert found == pytest.approx(nx.single_source_dijkstra_path_length(same, "p02", weight="km"))


def test_from_a_node_that_is_not_there_nothing_is_reached(made: tuple[Graph, nx.MultiDiGraph]) -> None:
    assert _called(made[0], "distances(knows, from: $from)", {"from": "nobody"}) == {}


@pytest.mark.parametrize("direction", ["out", "in", "both"])
def test_degrees(made: tuple[Graph, nx.MultiDiGraph], direction: str) -> None:
    graph, same = made
    simple = nx.DiGraph(same)
    near = {
        name: {*(simple.succ[name] if direction != "in" else ()), *(simple.pred[name] if direction != "out" else ())}
        for name in PEOPLE
    }
    found = _called(graph, f'degree(knows, direction: "{direction}")')
    assert found == {name: len(others) for name, others in near.items()}


def test_triangles(made: tuple[Graph, nx.MultiDiGraph]) -> None:
    graph, same = made
    simple = nx.Graph(same)
    simple.remove_edges_from(list(nx.selfloop_edges(simple)))
    expected = nx.triangles(simple)
    assert sum(expected.values()) > 0
    assert _called(graph, "triangles(knows)") == expected


def test_communities_are_connected_and_agreed_upon(made: tuple[Graph, nx.MultiDiGraph]) -> None:
    graph, same = made
    found = _called(graph, "communities(knows)")
    near = nx.Graph(same)
    assert {one for one in found if not near[one]} == {one for one in found if found[one] == one and not near[one]}
    assert len({*found.values()}) < len(PEOPLE)
    for one, label in found.items():
        labels = [found[other] for other in near[one]] + [label]
        assert labels.count(label) >= max(labels.count(other) for other in labels) - 1


def test_the_result_joins_and_goes_on(made: tuple[Graph, nx.MultiDiGraph]) -> None:
    graph, same = made
    text = """query q() {
        match {
            $p: Person { name: "p02" }
            $p knows $f
            call degree(knows) yield $f, $n
            call components(knows) yield $f, $c
            $n > 1
        }
        return { $f.name, $n * 10 as n, $c }
        order { $n desc, $f.name }
    }"""
    simple = nx.DiGraph(same)
    (component,) = [part for part in nx.weakly_connected_components(same) if "p02" in part]
    expected = [(name, simple.out_degree(name) * 10, min(component)) for name in simple.succ["p02"]]
    expected = sorted((row for row in expected if row[1] > 10), key=lambda row: (-row[1], row[0]))
    assert [tuple(row.values()) for row in graph.query(text).rows] == expected


def test_groups_of_components(made: tuple[Graph, nx.MultiDiGraph]) -> None:
    graph, same = made
    text = "query q() { match { call components(knows) yield $p, $c } return { $c, count($p) as n } }"
    expected = {min(part): len(part) for part in nx.weakly_connected_components(same)}
    assert {row["c"]: row["n"] for row in graph.query(text).rows} == expected


def test_unusable_options(made: tuple[Graph, nx.MultiDiGraph]) -> None:
    with pytest.raises(ParameterError, match=r"'damping' is 1\.5"):
        _called(made[0], "pagerank(knows, damping: 1.5)")


def test_a_graph_without_edges(tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = omnigraph.init(str(tmp_path_factory.mktemp("none") / "graph"), SCHEMA)
    for call in ("pagerank", "components", "communities", "degree", "triangles"):
        assert _called(graph, f"{call}(knows)") == {}
    graph.load([node("Person", name="a"), node("Person", name="b")], mode="append")
    assert _called(graph, "pagerank(knows)") == pytest.approx({"a": 0.5, "b": 0.5})
    assert _called(graph, "triangles(knows)") == {"a": 0, "b": 0}
    assert _called(graph, 'distances(knows, from: "a")') == {"a": 0}
    assert _called(graph, 'distances(knows, from: "a", weight: "km")') == {"a": 0.0}
