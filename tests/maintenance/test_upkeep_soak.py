"""Writers, readers, optimize and cleanup at once, for a bounded number of operations: no row is lost, none is wrong."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import omnigraph
from omnigraph.errors import ExpectedVersionMismatchError, HistoryReclaimedError
from omnigraph.graph import Graph
from tests.maintenance.scene import KNOWS, PERSON, coverage, made_of, people
from tests.support.faults import assert_settled
from tests.support.mutations import store_of

SCHEMA = "node Person { name: String @key  age: I32? @index } edge Knows: Person -> Person"
WRITERS = 2
CHANGES = int(os.environ.get("OMNIGRAPH_SOAK_CHANGES", "16"))
Model = dict[str, int]


def test_writers_readers_optimize_and_cleanup_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    uri = str(tmp_path / "g")
    omnigraph.init(uri, SCHEMA)
    done = threading.Event()
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(work, omnigraph.open(uri), done) for work in (tidy, clean, read)]
        models = list(pool.map(lambda number: write(omnigraph.open(uri), number), range(WRITERS)))
        done.set()
        rounds = [other.result() for other in others]
    assert all(rounds), "each of them came round"
    graph, expected = omnigraph.open(uri), {name: age for model in models for name, age in model.items()}
    assert {row["p.name"]: row["p.age"] for row in people(graph)} == expected
    graph.optimize()
    graph.cleanup(keep=1, confirm=True)
    fresh = omnigraph.open(uri)
    assert {row["p.name"]: row["p.age"] for row in people(fresh)} == expected
    assert [len(made_of(fresh, key).parts) for key in (PERSON, KNOWS)] == [1, 1]
    assert all(coverage(fresh, PERSON).values())
    assert_settled(store_of(uri))


def write(graph: Graph, number: int) -> Model:
    """Insert, update and delete people of one's own; returns what must be there at the end."""
    model = Model()
    for at in range(CHANGES):
        name, previous = f"w{number}-{at}", f"w{number}-{at - 1}"
        older = f"w{number}-{at - 2}"
        if at % 4 == 3:
            change, model[older] = f'update Person set {{ age: 99 }} where name = "{older}"', 99  # noqa: S608 - no SQL
        else:
            change, model[name] = f'insert Person {{ name: "{name}", age: {at} }}', at
        if at % 4 == 2:
            change += f' insert Knows {{ from: "{name}", to: "{previous}" }}'
        _insist(graph, f"query q() {{ {change} }}")
        if at % 8 == 7:
            _insist(graph, f'query q() {{ delete Person where name = "w{number}-{at - 7}" }}')
            del model[f"w{number}-{at - 7}"]
    return model


def _insist(graph: Graph, change: str) -> None:
    while True:
        try:
            graph.mutate(change)
        except ExpectedVersionMismatchError:
            continue
        return


def tidy(graph: Graph, done: threading.Event) -> int:
    rounds = 0
    while not done.is_set():
        graph.optimize()
        rounds += 1
    return rounds


def clean(graph: Graph, done: threading.Event) -> int:
    rounds = 0
    while not done.is_set():
        graph.cleanup(keep=2, confirm=True)
        rounds += 1
        done.wait(0.2)
    return rounds


def read(graph: Graph, done: threading.Event) -> int:
    """Every answer is one that was committed: names and ages belong together."""
    rounds = 0
    while not done.is_set():
        try:
            rows = people(graph)
        except HistoryReclaimedError:  # it was slow, and is told so
            continue
        assert len({row["p.name"] for row in rows}) == len(rows)
        assert all(row["p.age"] in (99, int(row["p.name"].partition("-")[2])) for row in rows)
        rounds += 1
    return rounds
