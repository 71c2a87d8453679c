"""What a handle remembers from one call to the next is never believed when the storage says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

import omnigraph
from omnigraph.commit.gates import Gate, LeaseGates
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import BranchNotFoundError, GateTimeoutError, HistoryReclaimedError, QueryError, SchemaDriftError
from omnigraph.graph import Graph
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.storage.bases import file_name
from omnigraph.storage.objects import ObjectStore
from tests.support.graphs import contents

SCHEMA = "node Person { name: String @key age: I32? }\nnode Town { name: String @key }\n"
WITH_CITY = SCHEMA.replace("age: I32?", "age: I32? city: String?")
NAMES = "query q() { match { $p: Person } return { $p.name } order { $p.name } }"
WRITE = [Gate("schema", shared=True), Gate("branch:main")]


@pytest.fixture
def graph(root_uri: str) -> Graph:
    """A graph with a commit and a branch that has a commit of its own."""
    graph = omnigraph.init(root_uri, SCHEMA)
    add(graph, "ann")
    return graph


def add(graph: Graph, name: str, branch: str = "main", age: int = 1) -> None:
    graph.mutate(
        "query q($n: String, $a: I32) { insert Person { name: $n, age: $a } }", {"n": name, "a": age}, branch=branch
    )


def names(graph: Graph, branch: str = "main", snapshot: str | None = None) -> list[str]:
    return [row["p.name"] for row in graph.query(NAMES, branch=branch, snapshot=snapshot).rows]


def objects_of(graph: Graph) -> ObjectStore:
    return ObjectStore(Location.parse(graph.uri))


def replacing(graph: Graph) -> Callable[[], None]:
    """Remember all files of a graph; return how to put them in place of whatever is there then."""
    objects = objects_of(graph)
    saved = {one.name: objects.read(one.name) for one in objects.list_below("")}

    def put_back() -> None:
        objects.delete_below("")
        for name, data in saved.items():
            objects.write(name, data)

    return put_back


# States --------------------------------------------------------------------------------------------


def test_a_branch_that_was_made_again_at_the_same_version_is_read_again(graph: Graph) -> None:
    reader = omnigraph.open(graph.uri, read_only=True)
    versions = []
    for name in ("eve", "fay"):
        graph.create_branch("side")
        add(graph, name, "side")
        versions.append(graph.snapshot("side").manifest_version)

        assert names(reader, "side") == ["ann", name]
        assert names(reader, "side") == ["ann", name]
        graph.delete_branch("side")
    assert versions[0] == versions[1], "the number does not show the difference"


def test_a_branch_whose_reference_is_gone_is_gone_though_its_files_are_there(graph: Graph) -> None:
    graph.create_branch("side")
    before = graph.snapshot("side").manifest_version
    assert names(graph, "side") == ["ann"]
    graph._store.manifest.load("side", before)

    objects_of(graph).delete(f"{MANIFEST_PATH}/_refs/branches/side.json")

    for version in (None, before):
        with pytest.raises(BranchNotFoundError):
            graph._store.manifest.load("side", version)


def test_a_past_state_of_a_graph_that_was_replaced_is_not_that_of_the_former_one(graph: Graph) -> None:
    put_back = replacing(graph)
    add(graph, "ours")
    version = graph.snapshot().manifest_version
    add(graph, "ours too")
    manifest = graph._store.manifest
    lost = manifest.load(None, version)
    assert manifest.load(None, version) is lost, "it is cached"

    put_back()
    other = omnigraph.open(graph.uri)
    add(other, "theirs")
    add(other, "theirs too")

    # Without a look at main before: the tag of the version has to show it.
    found = manifest.load(None, version)
    assert found.head
    assert lost.head
    assert (found.version, found.graph_id) == (lost.version, lost.graph_id)
    assert found.head.commit_id != lost.head.commit_id
    assert names(graph, snapshot=found.head.commit_id) == ["ann", "theirs"]


def test_a_past_state_that_was_removed_is_gone_though_it_was_read_before(graph: Graph) -> None:
    old = graph.commits()[0]
    add(graph, "bob")
    assert names(graph, snapshot=old.commit_id) == ["ann"]

    objects_of(graph).delete(f"{MANIFEST_PATH}/_versions/{file_name(old.manifest_version)}")

    with pytest.raises(HistoryReclaimedError):
        names(graph, snapshot=old.commit_id)


def test_the_states_of_many_branches_are_not_all_kept(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnigraph.manifest.publisher._MOST_BRANCHES", 2)
    for name in ("one", "two", "three"):
        graph.create_branch(name)
        assert names(graph, name) == ["ann"]

    manifest = graph._store.manifest
    assert len(manifest._last) == 2
    assert None in manifest._last, "main stays"


# The schema ----------------------------------------------------------------------------------------


def test_a_schema_that_another_handle_changed_is_used_by_the_next_call(graph: Graph) -> None:
    other = omnigraph.open(graph.uri)
    insert = 'query q() { insert Person { name: "eve", city: "Rome" } }'
    with pytest.raises(QueryError):
        other.mutate(insert)

    graph.apply_schema(WITH_CITY)

    other.mutate(insert)
    cities = "query q() { match { $p: Person } return { $p.city } order { $p.name } }"
    assert [row["p.city"] for row in other.query(cities).rows] == [None, "Rome"]


def test_comments_that_another_handle_changed_are_read_by_the_next_call(graph: Graph) -> None:
    other = omnigraph.open(graph.uri)
    assert other.schema == SCHEMA
    for text in (f"// one\n{SCHEMA}", f"// two\n{SCHEMA}"):
        graph.apply_schema(text)

        assert graph.schema == other.schema == text


def test_a_graph_of_another_schema_in_the_same_place_is_read_by_its_own(graph: Graph) -> None:
    objects = objects_of(graph)
    objects.delete_below("")
    other = omnigraph.init(graph.uri, "node Book { title: String @key }")
    other.mutate('query q() { insert Book { title: "new" } }')

    found = graph.query("query q() { match { $b: Book } return { $b.title } }").rows

    assert found == [{"b.title": "new"}]


REFUSED: dict[str, Callable[[Graph], object]] = {
    "open": lambda handle: omnigraph.open(handle.uri),
    "refresh": Graph.refresh,
    "schema": lambda handle: handle.schema,
    "plan": lambda handle: handle.plan_schema(WITH_CITY),
    "apply": lambda handle: handle.apply_schema(WITH_CITY),
}


@pytest.mark.parametrize("act", REFUSED)
def test_a_file_that_was_edited_is_refused_where_the_schema_matters(graph: Graph, act: str) -> None:
    objects_of(graph).write("_schema.pg", SCHEMA.replace("I32", "I64").encode())
    assert names(graph) == ["ann"], "a read uses the schema of the graph, which is known"

    with pytest.raises(SchemaDriftError):
        REFUSED[act](graph)


# Tables --------------------------------------------------------------------------------------------


def test_a_row_that_this_handle_appended_is_updated_by_the_next_write_of_its_key(graph: Graph) -> None:
    for age in (2, 3, 4):
        add(graph, "bob", age=age)

    found = contents(graph._store)["node:Person"]
    assert [(row["id"], row["age"]) for row in found] == [("ann", 1), ("bob", 4)]


def test_rows_that_another_handle_appended_or_removed_are_seen_by_the_next_write(graph: Graph) -> None:
    other = omnigraph.open(graph.uri)
    add(graph, "bob")
    add(other, "cyd")
    add(graph, "cyd", age=2)
    other.mutate('query q() { delete Person where name = "bob" }')
    add(graph, "bob", age=3)

    found = contents(graph._store)["node:Person"]
    assert sorted((row["id"], row["age"]) for row in found) == [("ann", 1), ("bob", 3), ("cyd", 2)]


def test_a_write_needs_no_version_that_a_cleanup_removed(graph: Graph) -> None:
    """A handle that has only appended since then searches that version and what it appended."""
    table = graph.snapshot().entries["node:Person"].table
    tables = graph._store.tables
    for name in ("bob", "cyd"):
        add(graph, name)
    newest = graph.snapshot().entries["node:Person"].table
    assert tables._growth(newest).since.version < newest.version
    tables._kept.clear()
    for version in range(1, newest.version):
        objects_of(graph).delete(f"{table.path}/_versions/{file_name(version)}")

    add(graph, "dan")
    add(graph, "bob", age=2)

    assert names(graph) == ["ann", "bob", "cyd", "dan"]


# Leases --------------------------------------------------------------------------------------------


def test_a_lease_that_another_process_took_since_its_release_is_not_taken(s3_uri: str) -> None:
    ours, theirs = (lease_gates(s3_uri) for _ in range(2))
    with ours.hold(WRITE):
        pass
    with ExitStack() as stack:
        held = stack.enter_context(theirs.hold(WRITE))

        with pytest.raises(GateTimeoutError), ours.hold(WRITE, 0.0):
            pytest.fail("both hold it")
        held.check()
    with ours.hold(WRITE) as again:
        again.check()


def lease_gates(uri: str) -> LeaseGates:
    gates = Store.at(Location.parse(uri)).gates
    assert isinstance(gates, LeaseGates)
    return gates
