"""Writers, readers, optimize, cleanup and schema changes at once, for a bounded number of operations.

No row is lost, none is wrong, and the graph is what a model of what was acknowledged says. With OMNIGRAPH_SOAK set
there are many more operations.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import omnigraph
from omnigraph.errors import ExpectedVersionMismatchError, HistoryReclaimedError
from omnigraph.graph import Graph
from tests.maintenance.scene import KNOWS, PERSON, coverage, made_of, people
from tests.support.faults import assert_settled
from tests.support.mutations import store_of

SCHEMA = "node Person { name: String @key  age: I32? @index } edge Knows: Person -> Person"
WIDER = SCHEMA.replace("age: I32? @index", "age: I32? @index  town: String? @index")
RENAMED = WIDER.replace("town: String?", 'city: String? @rename_from("town")')
WITH_PLACE = f"{SCHEMA} node Place {{ name: String @key }} edge LivesIn: Person -> Place"
SCHEMAS = (WIDER, RENAMED, SCHEMA, WITH_PLACE, SCHEMA)  # a property comes, is renamed and goes; types come and go
WRITERS = 2
CHANGES = 120 if "OMNIGRAPH_SOAK" in os.environ else 8


@dataclass(slots=True)
class Model:
    """What must be there of what one writer was told is: people with their ages, and who knows whom."""

    ages: dict[str, int] = field(default_factory=dict)
    knows: set[tuple[str, str]] = field(default_factory=set)

    def remove(self, name: str) -> None:
        """A person goes with all that they are known by."""
        del self.ages[name]
        self.knows = {pair for pair in self.knows if name not in pair}


def test_nobody_gets_in_the_way_of_another(tmp_path: Path) -> None:
    uri = str(tmp_path / "g")
    omnigraph.init(uri, SCHEMA)
    done = threading.Event()
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(work, omnigraph.open(uri), done) for work in (tidy, clean, read, evolve)]
        writers = [pool.submit(write, omnigraph.open(uri), number) for number in range(WRITERS)]
        try:
            models = [writer.result() for writer in writers]
        finally:
            done.set()
        rounds = [other.result() for other in others]
    assert all(rounds), "each of them came round"
    graph = omnigraph.open(uri)
    _equals(graph, models)
    graph.apply_schema(SCHEMA)
    graph.optimize()
    graph.cleanup(keep=1, confirm=True)
    fresh = omnigraph.open(uri)
    _equals(fresh, models)
    assert [len(made_of(fresh, key).parts) for key in (PERSON, KNOWS)] == [1, 1]
    assert coverage(fresh, PERSON) == dict.fromkeys(("age_btree", "id_btree", "name_btree"), True)
    assert fresh.doctor().is_healthy
    assert_settled(store_of(uri))


def _equals(graph: Graph, models: list[Model]) -> None:
    expected = {name: age for model in models for name, age in model.ages.items()}
    assert {row["p.name"]: row["p.age"] for row in people(graph)} == expected
    pairs = graph.query("query q() { match { $a: Person $a knows $b } return { $a.name, $b.name } }").rows
    assert {(row["a.name"], row["b.name"]) for row in pairs} == {pair for model in models for pair in model.knows}


def write(graph: Graph, number: int) -> Model:
    """Insert, update and delete people of one's own; returns what must be there at the end."""
    model = Model()
    for at in range(CHANGES):
        name, previous, older = (f"w{number}-{at - back}" for back in range(3))
        if at % 4 == 3:
            change, model.ages[older] = f'update Person set {{ age: 99 }} where name = "{older}"', 99  # noqa: S608
        else:
            change, model.ages[name] = f'insert Person {{ name: "{name}", age: {at} }}', at
        if at % 4 == 2:
            change += f' insert Knows {{ from: "{name}", to: "{previous}" }}'
            model.knows.add((name, previous))
        _insist(graph, f"query q() {{ {change} }}")
        if at % 8 == 7:
            _insist(graph, f'query q() {{ delete Person where name = "w{number}-{at - 6}" }}')
            model.remove(f"w{number}-{at - 6}")
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


def evolve(graph: Graph, done: threading.Event) -> int:
    """Change the schema over and over; what the writers write fits all of them."""
    rounds = 0
    for schema in cycle(SCHEMAS):
        if done.is_set():
            break
        assert graph.apply_schema(schema).applied
        rounds += 1
        done.wait(0.1)
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
