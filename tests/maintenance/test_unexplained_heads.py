"""Tables whose head is not their pin, and no record explains it: everybody refuses, and nobody folds anything in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.maintenance import Severity
from omnigraph.commit import failpoints
from omnigraph.commit.gates import Gate
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import CorruptGraphError, DriftError, RecoveryRequiredError, StorageError
from omnigraph.graph import Graph
from tests.maintenance.scene import PERSON, PLACE, SCHEMA, add, people, table_of
from tests.support.faults import CrashError, crash, foreign_commit
from tests.support.graphs import append, contents, heads_and_pins, plan
from tests.support.mutations import store_of

RECORD = {"type": "Person", "data": {"name": "new", "age": 1}}
ALL_ANEW = [{"type": "Person", "data": {"name": f"p{at}"}} for at in range(6)]
Act = Callable[[Graph], object]
WRITERS: dict[str, Act] = {
    "insert": lambda graph: graph.mutate('query q() { insert Person { name: "new" } }'),
    "update": lambda graph: graph.mutate("query q() { update Person set { age: 1 } where age > 1 }"),
    "delete": lambda graph: graph.mutate('query q() { delete Person where name = "p2" }'),
    "load, append": lambda graph: graph.load([RECORD], mode="append"),
    "load, merge": lambda graph: graph.load([RECORD], mode="merge"),
    "load, overwrite": lambda graph: graph.load(ALL_ANEW, mode="overwrite"),
    "merge": lambda graph: graph.merge("feature"),
    "ensure_indices": lambda graph: graph.ensure_indices(),
    "cleanup": lambda graph: graph.cleanup(keep=1, confirm=True),
    "a preview of cleanup": lambda graph: graph.cleanup(older_than=dt.timedelta(0)),
}
SCHEMAS = {
    "add a property": SCHEMA.replace("age: I32? @index", "age: I32? @index  city: String?"),
    "drop a property": SCHEMA.replace("    tags: [String]?\n", ""),
    "rename a type": SCHEMA.replace("node Person {", 'node Human @rename_from("Person") {').replace(
        "Person -> Person", "Human -> Human"
    ),
    "drop a type": "node Place { title: String }",
}


@pytest.mark.parametrize("writer", [*WRITERS, *SCHEMAS])
def test_whoever_writes_refuses_a_table_that_others_have_moved(graph: Graph, store: Store, writer: str) -> None:
    if writer == "merge":
        graph.create_branch("feature")
        add(graph, 60, branch="feature")
    head = foreign_commit(store, PERSON)
    before = contents(store), heads_and_pins(store), graph.commits(), graph.schema
    with pytest.raises(DriftError, match="repair") as refused:
        WRITERS[writer](graph) if writer in WRITERS else graph.apply_schema(SCHEMAS[writer])
    assert refused.value.details() == {"table_key": PERSON, "pin": head - 1, "head": head}
    assert store.sidecars.pending() == [], "nothing was armed"
    again = omnigraph.open(graph.uri)
    assert (contents(store), heads_and_pins(store), again.commits(), again.schema) == before
    graph.repair(confirm=True, force=True)
    if writer in SCHEMAS:
        assert graph.apply_schema(SCHEMAS[writer]).applied
    else:
        WRITERS[writer](graph)


def test_a_change_of_the_schema_that_does_not_touch_such_a_table_is_made(graph: Graph, store: Store) -> None:
    foreign_commit(store, PERSON)
    assert graph.apply_schema(f"{SCHEMA} node Club {{ name: String @key }}").applied
    assert len(people(graph)) == 6


# A head that is before its pin: versions were lost ---------------------------------------------------


LOOKERS: dict[str, Act] = {
    "optimize": lambda graph: graph.optimize(),
    "ensure_indices": lambda graph: graph.ensure_indices(),
    "repair": lambda graph: graph.repair(confirm=True, force=True),
    "cleanup": lambda graph: graph.cleanup(keep=1, confirm=True),
}


@pytest.mark.parametrize("name", LOOKERS)
def test_a_table_that_has_lost_its_last_version_is_damage_and_no_drift(graph: Graph, name: str) -> None:
    path = Path(graph.uri, table_of(graph, PERSON).path, "_versions")
    latest = min(path.glob("*.manifest"), key=lambda one: one.name)
    kept = latest.read_bytes()
    latest.unlink()
    (path / "latest_version_hint.json").unlink(missing_ok=True)
    damaged, commits = omnigraph.open(graph.uri), graph.commits()
    with pytest.raises((CorruptGraphError, StorageError), match=r"before its pin|is missing") as told:
        LOOKERS[name](damaged)
    assert (told.value.http_status, bool(told.value.hint)) == (500, True)
    assert damaged.commits() == commits
    [problem] = [one for one in damaged.doctor().findings if one.severity is Severity.PROBLEM]
    assert problem.subject == PERSON
    latest.write_bytes(kept)
    assert len(people(omnigraph.open(graph.uri))) == 6


# What a record explains ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["optimize", "ensure_indices", "cleanup"])
def test_upkeep_refuses_while_a_write_that_stopped_half_way_cannot_be_finished(
    graph: Graph, store: Store, name: str
) -> None:
    txn = begin(store)
    with pytest.raises(CrashError), failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash):
        publish(store, plan(txn, append(store, txn, PLACE, [{"id": "x", "title": "x"}])))
    [operation] = store.sidecars.pending()
    before, commits = heads_and_pins(store), graph.commits()
    impatient = Graph(Store.at(Location.parse(graph.uri), gate_timeout=0.2), read_only=True)
    impatient.read_only = False
    with store.gates.hold([Gate(f"table:main:{PLACE}")]), pytest.raises(RecoveryRequiredError) as refused:
        LOOKERS[name](impatient)
    assert refused.value.operation_id == operation
    assert (heads_and_pins(store), graph.commits()) == (before, commits)
    LOOKERS[name](graph)
    assert [row["title"] for row in contents(store)[PLACE]] == ["x"]


# Branches --------------------------------------------------------------------------------------------


def test_nothing_is_removed_while_a_branch_cannot_be_read(graph: Graph) -> None:
    """What it needs is not known."""
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    store = store_of(graph.uri)
    broken = Path(graph.uri, "__manifest", "tree", "feature", "_versions")
    kept = {path: path.read_bytes() for path in broken.glob("*.manifest")}
    for path in kept:
        path.write_bytes(b"damaged")
    files = {path for path in Path(graph.uri).rglob("*") if path.is_file()}
    with pytest.raises(StorageError):
        graph.cleanup(keep=1, confirm=True)
    assert {path for path in Path(graph.uri).rglob("*") if path.is_file()} == files
    for path, data in kept.items():
        path.write_bytes(data)
    graph.cleanup(keep=1, confirm=True)
    assert len(people(omnigraph.open(graph.uri), branch="feature")) == 7
    assert store.sidecars.pending() == []
