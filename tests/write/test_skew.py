"""Mutations that meet: two that are each right and together wrong, many at once, and upkeep that comes between."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.results import MutationResult
from omnigraph.commit.gates import DEFAULT_TIMEOUT, DIRECTORY, Gate, Held, LocalGates
from omnigraph.commit.store import Store
from omnigraph.errors import ConstraintError, ExpectedVersionMismatchError
from omnigraph.graph import Graph
from omnigraph.storage import observe
from tests.support.faults import assert_settled, at_arrival, doing
from tests.support.graphs import contents
from tests.support.mutations import (
    KNOWS,
    PERSON,
    Query,
    Rival,
    Work,
    broken_rules,
    build_index,
    compact,
    once_prepared,
    small_graph,
    snapshot,
    store_of,
    write_many,
)

SOAK = os.environ.get("OMNIGRAPH_HYPOTHESIS_PROFILE") == "soak"
WRITERS, MUTATIONS = (16, 50) if SOAK else (6, 8)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = str(tmp_path_factory.mktemp("graphs") / "small")
    small_graph(uri)
    return uri


@pytest.fixture
def uri(template: str) -> str:
    return str(shutil.copytree(template, Path(template).with_name(uuid.uuid4().hex)))


@pytest.fixture
def graph(uri: str) -> Graph:
    return omnigraph.open(uri)


@pytest.fixture
def store(uri: str) -> Store:
    """A handle of somebody else."""
    return store_of(uri)


# Two at once ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two mutations prepared on the same graph, and how each ends if the left one is published first, or last.

    An end is the counts of what was changed, or the rule or the table for which the mutation was refused.
    """

    left: Query
    right: Query
    left_first: tuple[object, object]
    right_first: tuple[object, object]


MEETINGS = {
    "the target is deleted, with another edge of the type": Meeting(
        Query('() { delete Person where name = "bob" }'),
        Query('() { insert Knows { from: "dan", to: "bob" } }'),
        left_first=((1, 3), "endpoint"),
        right_first=((1, 4), (0, 1)),
    ),
    "the source is deleted, which has no edge": Meeting(
        Query('() { delete Person where name = "dan" }'),
        Query('() { insert Knows { from: "dan", to: "cat" } }'),
        left_first=((1, 0), "endpoint"),
        right_first=((1, 1), (0, 1)),
    ),
    "the source is deleted, with edges of another type": Meeting(
        Query('() { delete Person where name = "cat" }'),
        Query('() { insert Wrote { from: "cat", to: "n5" } }'),
        left_first=((1, 2), "endpoint"),
        right_first=((1, 3), (0, 1)),
    ),
    "the target is deleted, which has no edge": Meeting(
        Query('() { delete Note where text = "five" }'),
        Query('() { insert Wrote { from: "dan", to: "n5" } }'),
        left_first=((1, 0), "endpoint"),
        right_first=("cardinality", (0, 1)),  # dan would lose his only edge, and he must have one
    ),
    "a source gets its last edge twice": Meeting(
        Query('() { insert Knows { from: "ann", to: "dan" } }'),
        Query('() { insert Knows { from: "ann", to: "ann" } }'),
        left_first=((0, 1), "cardinality"),
        right_first=("cardinality", (0, 1)),
    ),
    "a source gets more edges than are left for it": Meeting(
        Query('() { insert Knows { from: "bob", to: "dan" } insert Knows { from: "bob", to: "ann" } }'),
        Query('() { insert Person { name: "eve" } insert Knows { from: "bob", to: "eve" } }'),
        left_first=((0, 2), "cardinality"),
        right_first=("cardinality", (1, 1)),
    ),
    "two insert one unique value": Meeting(
        Query('() { insert Person { name: "eve", nickName: "it" } }'),
        Query('() { insert Person { name: "fay", nickName: "it" } }'),
        left_first=((1, 0), "unique"),
        right_first=("unique", (1, 0)),
    ),
    "two insert one unique value of a type without a key": Meeting(
        Query('() { insert Note { text: "left", rank: 1 } }'),
        Query('() { insert Note { text: "right", rank: 1 } }'),
        left_first=((1, 0), "unique"),
        right_first=("unique", (1, 0)),
    ),
    "an update and an insert bring one unique value": Meeting(
        Query('() { update Person set { nickName: "it" } where name = "bob" }'),
        Query('() { insert Person { name: "fay", nickName: "it" } }'),
        left_first=((1, 0), "unique"),
        right_first=("conflict node:Person", (1, 0)),
    ),
    "two updates bring one unique value": Meeting(
        Query('() { update Person set { nickName: "it" } where name = "ann" }'),
        Query('() { update Person set { nickName: "it" } where name = "bob" }'),
        left_first=((1, 0), "conflict node:Person"),
        right_first=("conflict node:Person", (1, 0)),
    ),
    "two insert an edge that may be there once": Meeting(
        Query('() { insert Wrote { from: "bob", to: "n5" } }'),
        Query('() { insert Wrote { from: "bob", to: "n5" } }'),
        left_first=((0, 1), "unique"),
        right_first=("unique", (0, 1)),
    ),
    "a source loses its last edges, one with its target": Meeting(
        Query('() { delete Note where text = "one" }'),
        Query('() { delete Wrote where to = "n2" }'),
        left_first=((1, 1), "conflict edge:Wrote"),
        right_first=("cardinality", (0, 1)),
    ),
    "two insert one key, and the later replaces": Meeting(
        Query('() { insert Person { name: "eve", age: 1 } }'),
        Query('() { insert Person { name: "eve", age: 2 } }'),
        left_first=((1, 0), (1, 0)),
        right_first=((1, 0), (1, 0)),
    ),
}


@pytest.fixture(scope="module", params=["threads", "processes"])
def rivals(request: pytest.FixtureRequest) -> Iterator[tuple[Rival, Rival]]:
    make = Rival.thread if request.param == "threads" else Rival.process
    pair = make(), make()
    yield pair
    for rival in pair:
        rival.close()
    observe.set_write_hook(None)


@pytest.mark.parametrize("order", ["left first", "right first", "together"])
@pytest.mark.parametrize("meeting", MEETINGS.values(), ids=MEETINGS)
def test_of_two_mutations_that_cannot_both_be_right_the_second_sees_the_first(
    uri: str, store: Store, rivals: tuple[Rival, Rival], meeting: Meeting, order: str
) -> None:
    commits = len(store.manifest.load().commits())
    for rival, query in zip(rivals, (meeting.left, meeting.right), strict=True):
        rival.prepare(uri, query)
    ends = tuple(map(_end, _run(rivals, order)))
    possible = {"left first": [meeting.left_first], "right first": [meeting.right_first]}
    assert ends in possible.get(order, [meeting.left_first, meeting.right_first])
    assert broken_rules(contents(store)) == []
    assert len(store.manifest.load().commits()) == commits + sum(isinstance(end, tuple) for end in ends)
    assert_settled(store)


def _run(rivals: tuple[Rival, Rival], order: str) -> list[Any]:
    if order == "together":
        for rival in rivals:
            rival.go_on()
        return [rival.outcome() for rival in rivals]
    outcomes = {}
    for rival in rivals if order == "left first" else reversed(rivals):
        rival.go_on()
        outcomes[rival] = rival.outcome()
    return [outcomes[rival] for rival in rivals]


def _end(outcome: Any) -> object:
    match outcome:
        case MutationResult():
            return outcome.affected_nodes, outcome.affected_edges
        case ConstraintError():
            return outcome.violations[0].rule
        case ExpectedVersionMismatchError():
            return f"conflict {outcome.table_key}"
    raise AssertionError(outcome)


# Many at once --------------------------------------------------------------------------------------


def test_what_many_processes_are_told_of_is_one_chain_of_commits(uri: str, store: Store) -> None:
    omnigraph.open(uri).mutate('query hub() { insert Person { name: "hub" } }')
    before = store.manifest.load().commits()
    rivals = [Rival.process() for _ in range(WRITERS)]
    for number, rival in enumerate(rivals):
        rival.start_many(uri, number, MUTATIONS)
    done = [rival.outcome(patience=1800 if SOAK else 600) for rival in rivals]
    for rival in rivals:
        rival.close()
    assert all(isinstance(work, Work) for work in done), done
    told = [commit for work in done for commit in work.commits]
    after = store.manifest.load().commits()
    assert len(told) == WRITERS * MUTATIONS
    assert sorted(told) == sorted(commit.commit_id for commit in after[len(before) :] if not commit.is_maintenance)
    assert [commit.parent_id for commit in after[1:]] == [commit.commit_id for commit in after[:-1]]
    _check_people(contents(store), WRITERS, MUTATIONS)
    assert_settled(store)


def test_what_the_threads_that_share_a_handle_are_told_of_is_one_chain_of_commits(graph: Graph, store: Store) -> None:
    writers, mutations = 6, 8
    graph.mutate('query hub() { insert Person { name: "hub" } }')
    before = len(graph.commits())
    with ThreadPoolExecutor(writers) as pool:
        done = list(pool.map(lambda number: write_many(graph, number, mutations), range(writers)))
    told = [commit for work in done for commit in work.commits]
    assert len(told) == writers * mutations
    assert sorted(told) == sorted(commit.commit_id for commit in graph.commits()[:-before] if not commit.is_maintenance)
    _check_people(contents(store), writers, mutations)
    assert_settled(store)


def _check_people(rows: Any, writers: int, mutations: int) -> None:
    """Every fourth mutation of a writer begins with somebody new, who gets two edges and a score."""
    assert broken_rules(rows) == []
    scores = {row["name"]: row["score"] for row in rows[PERSON] if row["name"].startswith("w")}
    edges = {(row["src"], row["dst"]) for row in rows[KNOWS] if row["src"].startswith("w")}
    firsts = [
        (f"w{number}-{at}", f"w{number}-{at + 3}", at) for number in range(writers) for at in range(0, mutations, 4)
    ]
    expected_scores: dict[str, float | None] = {
        first: at + 2.0 if at + 2 < mutations else 0.0 for first, _, at in firsts
    }
    assert scores == expected_scores | {last: None for _, last, at in firsts if at + 3 < mutations}
    to_hub = {(first, "hub") for first, _, at in firsts if at + 1 < mutations}
    assert edges == to_hub | {(first, last) for first, last, at in firsts if at + 3 < mutations}


# What comes between --------------------------------------------------------------------------------

UPDATE = Query('() { update Person set { score: 1.0 } where name = "ann" }')
DELETE = Query('() { delete Person where name = "bob" }')
INSERT = Query('() { insert Person { name: "eve" } insert Knows { from: "eve", to: "ann" } }')
UPSERT = Query('() { insert Person { name: "ann", age: 99 } }')
SOMEBODY_NEW = Query('() { insert Person { name: "new", age: 77 } }')

Upkeep = Callable[[Store], object]
UPKEEP: dict[str, tuple[Upkeep, ...]] = {
    "an index": (lambda store: build_index(store, PERSON, "name"),),
    "an index built anew": (
        lambda store: build_index(store, PERSON, "id"),
        lambda store: build_index(store, PERSON, "id"),
    ),
    "a compaction": (lambda store: compact(store, PERSON),),
    "a compaction that moves an index": (
        lambda store: build_index(store, PERSON, "id"),
        lambda store: compact(store, PERSON),
    ),
}


@pytest.fixture
def fragmented(graph: Graph) -> Graph:
    """The graph, with more than one fragment of people to compact."""
    for name in ("x", "y"):
        graph.mutate("query add($n: String) { insert Person { name: $n } }", {"n": name})
    return graph


def test_everything_here_is_prepared_on_a_table_with_several_fragments(fragmented: Graph, store: Store) -> None:
    table = fragmented.snapshot().entries[PERSON].table
    assert len(store.tables.open(table).get_fragments()) > 1


@pytest.mark.parametrize("query", [UPDATE, DELETE, INSERT, UPSERT], ids=["update", "delete", "insert", "upsert"])
@pytest.mark.parametrize("upkeep", UPKEEP.values(), ids=UPKEEP)
def test_a_mutation_goes_on_when_only_upkeep_came_between(
    fragmented: Graph, store: Store, upkeep: tuple[Upkeep, ...], query: Query
) -> None:
    commits, alone = len(fragmented.commits()), _alone(fragmented, query)
    with once_prepared(*(doing(act, store) for act in upkeep)):
        done = query.run(fragmented)
    assert (done.affected_nodes, done.affected_edges) == alone
    assert len(fragmented.commits()) == commits + len(upkeep) + 1
    assert broken_rules(contents(store)) == []
    assert_settled(store)


@pytest.mark.parametrize("query", [UPDATE, DELETE], ids=["update", "delete"])
@pytest.mark.parametrize("then", [None, "an index", "a compaction"])
@pytest.mark.parametrize("first", [None, "an index", "a compaction"])
def test_a_change_of_what_it_found_is_lost_when_the_table_changed(
    fragmented: Graph, store: Store, query: Query, first: str | None, then: str | None
) -> None:
    other = omnigraph.open(fragmented.uri)
    expected = fragmented.snapshot().entries[PERSON].table.version
    left = list[Any]()
    upkeep = [[doing(act, store) for act in UPKEEP[name]] if name else [] for name in (first, then)]
    others = (*upkeep[0], doing(SOMEBODY_NEW.run, other), *upkeep[1], lambda: left.append(snapshot(store)))
    with pytest.raises(ExpectedVersionMismatchError) as caught, once_prepared(*others):
        query.run(fragmented)
    actual = fragmented.snapshot().entries[PERSON].table.version
    assert caught.value.details() == {"table_key": PERSON, "expected": expected, "actual": actual}
    assert [snapshot(store)] == left
    assert_settled(store)
    assert query.run(fragmented).commit


@pytest.mark.parametrize(
    "meanwhile",
    [
        Query('() { insert Note { text: "other" } }'),
        Query('() { insert Knows { from: "cat", to: "dan" } }'),
        Query('() { update Note set { rank: 5 } where text = "one" }'),
    ],
    ids=["a node", "an edge", "an update"],
)
@pytest.mark.parametrize("query", [UPDATE, DELETE], ids=["update", "delete"])
def test_a_change_of_what_it_found_goes_on_when_another_table_changed(
    graph: Graph, store: Store, query: Query, meanwhile: Query
) -> None:
    commits = len(graph.commits())
    with once_prepared(doing(meanwhile.run, omnigraph.open(graph.uri))):
        assert query.run(graph).commit
    assert len(graph.commits()) == commits + 2
    assert broken_rules(contents(store)) == []
    assert_settled(store)


@pytest.mark.parametrize(
    "meanwhile",
    [
        Query('() { insert Person { name: "eve", age: 5, nickName: "e" } }'),
        Query('() { update Person set { age: 50 } where name = "ann" }'),
        Query('() { delete Person where name = "cat" }'),
        Query('() { insert Knows { from: "ann", to: "dan" } }'),
    ],
    ids=["insert", "update", "delete", "edge"],
)
@pytest.mark.parametrize("query", [INSERT, UPSERT], ids=["insert", "upsert"])
def test_an_insert_is_prepared_anew_as_often_as_others_come_first(
    graph: Graph, store: Store, query: Query, meanwhile: Query
) -> None:
    commits, alone = len(graph.commits()), _alone(graph, query)
    with once_prepared(doing(meanwhile.run, omnigraph.open(graph.uri))):
        done = query.run(graph)
    assert (done.affected_nodes, done.affected_edges) == alone
    assert len(graph.commits()) == commits + 2
    assert broken_rules(contents(store)) == []
    assert_settled(store)


def test_an_insert_that_replaces_what_came_between_replaces_all_of_it(graph: Graph, store: Store) -> None:
    meanwhile = Query('() { insert Person { name: "eve", age: 5, nickName: "e" } }')
    with once_prepared(doing(meanwhile.run, omnigraph.open(graph.uri))):
        Query('() { insert Person { name: "eve", score: 2.0 } }').run(graph)
    (eve,) = (row for row in contents(store)[PERSON] if row["id"] == "eve")
    assert eve == {"id": "eve", "name": "eve", "score": 2.0, "age": None, "nickName": None}


@pytest.mark.parametrize(
    "query",
    [
        Query('() { update Person set { score: 1.0 } where age = 77 insert Note { text: "mine" } }'),
        Query('() { delete Person where age = 77 delete Knows where from = "bob" }'),
    ],
    ids=["update", "delete"],
)
def test_a_statement_that_found_nothing_is_lost_when_others_bring_what_it_looked_for(
    graph: Graph, store: Store, query: Query
) -> None:
    somebody_comes = once_prepared(doing(SOMEBODY_NEW.run, omnigraph.open(graph.uri)))
    with pytest.raises(ExpectedVersionMismatchError) as caught, somebody_comes:
        query.run(graph)
    assert caught.value.table_key == PERSON
    assert_settled(store)


class Turnstile(LocalGates):
    """Gates before which something happens when that of a branch is asked for the second time."""

    def __init__(self, store: Store, action: Callable[[], None]) -> None:
        super().__init__(Path(store.location.child(DIRECTORY)), DEFAULT_TIMEOUT)
        self._act = at_arrival(2, action)

    @contextmanager
    def hold(self, gates: Sequence[Gate], *patience: Any, **more: Any) -> Iterator[Held]:
        if any(gate.name.startswith("branch:") for gate in gates):
            self._act()
        with super().hold(gates, *patience, **more) as held:
            yield held


def test_a_change_that_goes_on_past_upkeep_is_still_lost_when_the_table_changes_then(uri: str, store: Store) -> None:
    """Upkeep makes the first attempt fail; before the second has its gates, somebody changes what it looked at."""
    change = Query('() { update Person set { score: 9.0 } where name = "ann" }')
    gates = Turnstile(store, doing(change.run, omnigraph.open(uri)))
    graph = Graph(replace(store_of(uri), gates=gates), read_only=False)
    commits = len(graph.commits())
    upkeep = once_prepared(doing(build_index, store, PERSON, "name"))
    with pytest.raises(ExpectedVersionMismatchError), upkeep:
        UPDATE.run(graph)
    assert len(graph.commits()) == commits + 2
    assert_settled(store)


def _alone(graph: Graph, query: Query) -> tuple[int, int]:
    """What a mutation does to a copy of the graph where nobody else is."""
    done = query.run(omnigraph.open(shutil.copytree(graph.uri, f"{graph.uri}-alone")))
    return done.affected_nodes, done.affected_edges
