"""A change that whoever asks for it gives an id: it is found by that, and made only once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import omnigraph
from omnigraph import Graph
from omnigraph.commit import failpoints
from omnigraph.errors import OperationDoneError, OptionError, RecoveryRequiredError
from omnigraph.lang.identity import new_id
from tests.support.faults import CrashError, crash

SCHEMA = "node Person { name: String @key  age: I32? }"
ADD = "query add($name: String) { insert Person { name: $name } }"
CHANGES: dict[str, Callable[[Graph], object]] = {
    "mutate": lambda graph: graph.mutate(ADD, {"name": "cy"}),
    "load": lambda graph: graph.load([{"type": "Person", "data": {"name": "cy"}}], mode="merge"),
    "merge": lambda graph: graph.merge("side"),
    "revert": lambda graph: graph.revert(graph.commits()[0].commit_id),
    "apply_schema": lambda graph: graph.apply_schema(SCHEMA.replace("age", "years")),
}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    made = omnigraph.init(tmp_path / "graph", SCHEMA)
    made.mutate(ADD, {"name": "ann"})
    return made


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found_by_the_id_that_it_was_given(graph: Graph, name: str) -> None:
    if name == "merge":
        graph.create_branch("side")
        graph.mutate(ADD, {"name": "bob"}, branch="side")
    operation = new_id()

    CHANGES[name](graph.as_operation(operation))

    found = graph.outcome(operation)
    assert found == graph.commits()[0]
    assert found.operation_id == operation != found.commit_id
    assert graph.outcome(found.commit_id) == found
    assert graph.outcome(new_id()) is None


def test_a_change_with_an_id_is_made_once_however_often_it_is_sent(graph: Graph) -> None:
    operation = new_id()
    done = graph.as_operation(operation).mutate(ADD, {"name": "cy"})

    with pytest.raises(OperationDoneError) as caught:
        graph.as_operation(operation).mutate(ADD, {"name": "other"})

    assert done.commit
    assert (caught.value.operation_id, caught.value.commit_id) == (operation, done.commit.commit_id)
    assert graph.commits()[0] == done.commit
    assert len(graph.query("query q() { match { $p: Person } return { $p.name } }").rows) == 2


def test_of_changes_with_one_id_at_the_same_time_one_is_made(graph: Graph) -> None:
    operation = new_id()

    def add(name: str) -> str:
        try:
            graph.as_operation(operation).mutate(ADD, {"name": name})
        except OperationDoneError:
            return "refused"
        return "made"

    with ThreadPoolExecutor(3) as pool:
        told = sorted(pool.map(add, ("x", "y", "z")))

    assert told == ["made", "refused", "refused"]
    assert len(graph.commits()) == 3


@pytest.mark.parametrize(
    "at, survives", [(failpoints.PUBLISH_BEFORE_MANIFEST, True), (failpoints.PUBLISH_AFTER_SIDECAR, False)]
)
def test_recovery_keeps_the_id_and_a_reader_is_told_that_it_is_not_settled(
    graph: Graph, at: str, *, survives: bool
) -> None:
    operation = new_id()
    with pytest.raises(CrashError), failpoints.armed(at, crash):
        graph.as_operation(operation).mutate(ADD, {"name": "cy"})
    with pytest.raises(RecoveryRequiredError):
        omnigraph.open(graph.uri, read_only=True).outcome(operation)

    found = omnigraph.open(graph.uri).outcome(operation)

    assert (found is not None) == survives
    assert found is None or found.operation_id == operation


def test_what_is_under_way_has_no_outcome_yet(graph: Graph) -> None:
    operation, held = new_id(), failpoints.Rendezvous()
    with ThreadPoolExecutor(1) as pool, failpoints.armed(failpoints.PUBLISH_AFTER_GATES, held):
        doing = pool.submit(graph.as_operation(operation).mutate, ADD, {"name": "cy"})
        held.wait_until_reached()
        with pytest.raises(RecoveryRequiredError, match="not settled") as caught:
            graph.outcome(operation)
        held.release()
        done = doing.result()

    assert "ask again" in str(caught.value.hint)
    assert graph.outcome(operation) == done.commit


@pytest.mark.parametrize(
    "given", ["", "x", "01arz3ndektsv4rrffq69g5fav", "81ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAV\n"]
)
def test_only_an_id_of_our_form_can_be_given(graph: Graph, given: str) -> None:
    with pytest.raises(OptionError, match="cannot be the id"):
        graph.as_operation(given)
