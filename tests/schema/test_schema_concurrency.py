"""Changes of the schema while others read and write: nobody mixes two schemas, and nobody is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.results import SchemaResult
from omnigraph.commit import failpoints
from omnigraph.commit.store import Store
from omnigraph.errors import ExpectedVersionMismatchError, QueryError, SchemaDriftError
from omnigraph.graph import Graph
from omnigraph.manifest import schema_files
from tests.commit.child import hooked
from tests.schema.town import CHANGES, SCHEMA, edited, look, node
from tests.support.faults import assert_settled, doing
from tests.support.loads import PIPELINE, SMALL, load_by
from tests.support.mutations import at_write, once_prepared, store_of

Write = Callable[[Graph], object]
WRITES: dict[str, Write] = {
    "insert": lambda graph: graph.mutate('query q() { insert Person { name: "eve", age: 5 } }'),
    "update": lambda graph: graph.mutate('query q() { update Person set { age: 5 } where name = "bob" }'),
    "delete": lambda graph: graph.mutate('query q() { delete Person where name = "bob" }'),
    "small load": lambda graph: load_by(SMALL, graph, [node("Person", name="eve", age=5)], "merge"),
    "pipeline load": lambda graph: load_by(PIPELINE, graph, [node("Person", name="eve", age=5)], "merge"),
    "optimize": lambda graph: graph.optimize(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("change", ["add a property", "extend an enum", "add an edge type", "describe"])
def test_a_write_that_was_prepared_before_a_change_is_prepared_anew(graph: Graph, write: str, change: str) -> None:
    graph.load([node("Person", name="dan", age=7)], mode="append")
    serial = omnigraph.open(_copied(graph))
    serial.apply_schema(CHANGES[change].schema)
    WRITES[write](serial)
    other, done = omnigraph.open(graph.uri), False

    # What looked in a table for what to change is not prepared again behind the back of its caller.
    with at_write(1, doing(other.apply_schema, CHANGES[change].schema)), suppress(ExpectedVersionMismatchError):
        WRITES[write](graph)
        done = True
    assert done or (write in ("update", "delete") and CHANGES[change].moves)
    if not done:
        WRITES[write](graph)

    assert look(graph) == look(other) == look(serial)
    assert graph.schema == CHANGES[change].schema
    assert_settled(store_of(graph.uri))


@pytest.mark.parametrize("write", ["insert", "small load", "pipeline load"])
@pytest.mark.parametrize("change", ["drop a property", "rename a property", "rename a node type"])
def test_a_write_that_the_new_schema_does_not_know_is_refused(graph: Graph, write: str, change: str) -> None:
    other = omnigraph.open(graph.uri)
    with (
        pytest.raises((QueryError, omnigraph.errors.LoadRejectedError)),
        at_write(1, doing(other.apply_schema, CHANGES[change].schema)),
    ):
        WRITES[write](graph)
    assert len(graph.commits()) == 4
    assert len(look(graph)) == 6
    assert_settled(store_of(graph.uri))


def test_a_delete_does_not_leave_edges_of_a_type_behind_that_it_did_not_know(graph: Graph) -> None:
    other = omnigraph.open(graph.uri)

    def rival() -> None:
        other.apply_schema(CHANGES["add an edge type"].schema)
        other.mutate('query q() { insert Likes { from: "bob", to: "Ulm" } }')

    with once_prepared(rival):
        graph.mutate('query q() { delete Person where name = "bob" }')
    assert "bob" not in str(look(graph))


def test_of_two_changes_at_once_one_comes_after_the_other(graph: Graph) -> None:
    first, second = CHANGES["add a property"].schema, CHANGES["add a node type"].schema
    holding, go_on = threading.Event(), threading.Event()
    results: list[SchemaResult] = []

    def hold() -> None:
        if not holding.is_set():
            holding.set()
            assert go_on.wait(300)

    def apply_second() -> None:
        results.append(omnigraph.open(graph.uri).apply_schema(second))

    def apply_first() -> None:
        with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, hold):
            results.append(graph.apply_schema(first))

    threads = [threading.Thread(target=apply_first), threading.Thread(target=apply_second)]
    threads[0].start()
    assert holding.wait(300)
    threads[1].start()
    threads[1].join(0.5)
    assert threads[1].is_alive(), "it waits for the one that is under way"
    go_on.set()
    for thread in threads:
        thread.join(300)

    assert [done.applied for done in results] == [True, True]
    kinds = [step.kind for step in results[1].plan.steps]
    assert kinds == ["add_type", "drop_property"], "it was planned on what the first one had made"
    assert omnigraph.open(graph.uri).schema == second


@pytest.mark.parametrize("name", ["many things at once", "extend an enum"])
def test_who_reads_while_a_change_is_made_sees_all_of_it_or_nothing(graph: Graph, name: str) -> None:
    """At every durable write, through a handle from before, one that is opened just then, and one for a read-write."""
    change, before = CHANGES[name], (SCHEMA, look(graph))
    old = omnigraph.open(graph.uri, read_only=True)
    look(old)
    seen: list[tuple[str, list[tuple[str, object]]]] = []

    def hook(operation: str, _: str) -> None:
        readers = (old, omnigraph.open(graph.uri, read_only=True))
        rows = [look(reader) for reader in readers]
        seen.append((operation, [(reader.schema, row) for reader, row in zip(readers, rows, strict=True)]))

    other = omnigraph.open(graph.uri)
    with hooked(hook):
        other.apply_schema(change.schema)
    after = (change.schema, look(graph))
    published = [operation for operation, _ in seen].index("publish")
    assert [states for _, states in seen[: published + 1]] == [[before, before]] * (published + 1)
    assert [states for _, states in seen[published + 1 :]] == [[after, after]] * 4


def test_a_state_that_was_read_before_a_change_keeps_its_schema(graph: Graph, store: Store) -> None:
    """However far the change is, and however many follow."""
    states = [(store.manifest.load(), SCHEMA)]
    wrong: list[str] = []

    def hook(operation: str, _: str) -> None:
        reader = store_of(graph.uri)
        wrong.extend(operation for state, text in states if _text(reader, state) != text)

    with hooked(hook):
        for name in ("add a property", "drop a property", "add a node type"):
            graph.apply_schema(CHANGES[name].schema)
            states.append((store.manifest.load(), CHANGES[name].schema))
    assert [_text(store, state) for state, _ in states] == [text for _, text in states]
    assert wrong == []


def _text(store: Store, state: omnigraph.manifest.state.ManifestState) -> str:
    found = store.schema_of(state)
    assert found
    return found.text


ELSEWHERE = """
import sys, omnigraph
graph = omnigraph.open(sys.argv[1])
print(len(graph.query("query q() { match { $p: Person } return { $p.name } }").rows), flush=True)
sys.stdin.readline()
rows = graph.query("query q() { match { $p: Person } return { $p.name, $p.city } }").rows
graph.mutate('query q() { insert Person { name: "eve", city: "Rom" } }')
print(len(rows), flush=True)
"""


def test_another_process_goes_on_with_the_new_schema(graph: Graph) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ELSEWHERE, graph.uri], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "3\n"
        graph.apply_schema(CHANGES["add a property"].schema)
        out, _ = process.communicate("go on\n", timeout=300)
    assert (process.returncode, out) == (0, "3\n")
    assert {"name": "eve", "city": "Rom"}.items() <= look(graph)[-2]["data"].items()


# The files -----------------------------------------------------------------------------------------


def test_a_schema_file_that_was_edited_is_refused_also_after_a_change(graph: Graph) -> None:
    graph.apply_schema(CHANGES["add a property"].schema)
    file = Path(graph.uri, schema_files.SOURCE)
    good = file.read_text()
    file.write_text(edited(("age: I32?", "age: I32? town: String?")))

    for act in (
        lambda: look(omnigraph.open(graph.uri, read_only=True)),
        lambda: graph.apply_schema(SCHEMA),
        graph.refresh,
    ):
        with pytest.raises(SchemaDriftError) as refused:
            act()
        assert refused.value.path == schema_files.SOURCE
    file.write_text(good)
    graph.mutate('query q() { insert Person { name: "eve", city: "Rom" } }')


@pytest.mark.parametrize("name", schema_files.FILES)
def test_a_schema_file_that_is_gone_or_broken_is_refused_also_after_a_change(graph: Graph, name: str) -> None:
    graph.apply_schema(CHANGES["add a property"].schema)
    file = Path(graph.uri, name)
    good = file.read_bytes()
    for harm in (file.unlink, lambda: file.write_bytes(b"{")):
        harm()
        with pytest.raises(omnigraph.errors.OmnigraphError):
            look(omnigraph.open(graph.uri, read_only=True))
        file.write_bytes(good)
    assert len(look(omnigraph.open(graph.uri))) == 6


def test_files_that_another_implementation_was_about_to_put_in_place_confuse_nobody(graph: Graph, store: Store) -> None:
    for name in schema_files.FILES:
        Path(graph.uri, f"{name}.staging").write_text("node Other { x: I32? }")
    before = look(graph)
    assert look(omnigraph.open(graph.uri)) == before
    graph.apply_schema(CHANGES["add a property"].schema)
    assert omnigraph.open(graph.uri).schema == CHANGES["add a property"].schema
    assert_settled(store)
    assert graph.doctor().is_healthy


def _copied(graph: Graph) -> str:
    return str(shutil.copytree(graph.uri, f"{graph.uri}-copy"))
