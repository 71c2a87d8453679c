"""A graph is made once, opens for everybody, and says what is wrong when it does not."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import lance
import obstore
import pytest

import omnigraph
from omnigraph.commit import failpoints
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import (
    AlreadyInitializedError,
    BranchNotFoundError,
    CommitNotFoundError,
    CorruptGraphError,
    FileAccessError,
    GraphNotFoundError,
    NotAGraphError,
    OmnigraphError,
    SchemaDriftError,
    SchemaError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    UnsupportedUriError,
)
from omnigraph.manifest import schema_files
from omnigraph.manifest.publisher import Changes, Lineage
from omnigraph.manifest.rows import TombstoneRow, VersionRow, commit_record, encode
from omnigraph.storage import objects, observe
from omnigraph.storage.observe import counted
from tests.support.contenders import contending, make_graph
from tests.support.deaths import die_each, dying_init
from tests.support.faults import CrashError, add_company, failing, interrupt, small_graph
from tests.support.graphs import COMPANY, PERSON, SCHEMA, append, contents, heads_and_pins, person, plan
from tests.support.s3 import S3Server
from tests.support.templates import Templates

TINY = "node A { name: String @key } node B { name: String @key } edge Likes: A -> B"
SCHEMA_FILES = ["__schema_state.json", "_schema.ir.json", "_schema.pg"]
_NOBODY = 65534
modes = pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "read-write"])


@pytest.fixture
def graph(root_uri: str, templates: Templates) -> omnigraph.Graph:
    return templates.copy("people", lambda uri: omnigraph.init(uri, SCHEMA), root_uri)


def store_of(uri: str) -> Store:
    return Store.at(Location.parse(uri))


def manifest(uri: str) -> lance.LanceDataset:
    """The manifest by plain pylance."""
    location = Location.parse(uri)
    return lance.dataset(location.child("__manifest"), storage_options=location.storage_options)


def everything(uri: str) -> dict[str, tuple[str | None, int]]:
    """Every object below the root, with what tells one content from another."""
    location = Location.parse(uri)
    listed = obstore.list(objects._store(location, retry=True), location.key).collect()
    return {str(meta["path"]).removeprefix(f"{location.key}/"): (meta["e_tag"], meta["size"]) for meta in listed}


def top(uri: str) -> list[str]:
    return sorted({name.partition("/")[0] for name in everything(uri)})


@contextmanager
def hook(act: Callable[[str, str], None]) -> Iterator[None]:
    previous = observe.set_write_hook(act)
    try:
        yield
    finally:
        observe.set_write_hook(previous)


def assert_usable(uri: str, commits: int = 1) -> None:
    """The graph opens, its heads are its pins, and it takes a write."""
    with omnigraph.open(uri) as opened:
        assert len(opened.commits()) == commits
        store = store_of(uri)
        assert all(head == pin for head, pin in heads_and_pins(store).values())
        txn = begin(store)
        key = next(key for key in txn.entries if key.startswith("node:"))
        publish(store, plan(txn, append(store, txn, key, [{"id": "x", "name": "x"}])))
        assert len(opened.commits()) == commits + 1


# Init


def test_a_new_graph_has_a_manifest_a_table_for_each_type_and_three_schema_files(root_uri: str) -> None:
    omnigraph.init(root_uri, TINY)

    assert top(root_uri) == sorted(["__manifest", *SCHEMA_FILES, "edges", "nodes"])
    tables = {"/".join(name.split("/")[:2]) for name in everything(root_uri) if name[0] in "ne"}
    assert tables == {"nodes/af63fc4c860222ec", "nodes/af63ff4c86022805", "edges/a3a9a5b55e9923bf"}
    (genesis,) = omnigraph.open(root_uri, read_only=True).commits()
    assert (genesis.parent_id, genesis.merged_parent_id, genesis.actor_id) == (None, None, None)
    assert (genesis.branch, genesis.manifest_version, manifest(root_uri).version) == (None, 1, 1)


def test_a_new_graph_has_every_table_empty_at_version_one(graph: omnigraph.Graph) -> None:
    entries = graph.snapshot().entries

    assert [(entry.table.version, entry.table.branch, entry.row_count) for entry in entries.values()] == [
        (1, None, 0)
    ] * 4
    assert set(contents(store_of(graph.uri))) == set(entries) == {PERSON, COMPANY, "edge:Knows", "edge:WorksAt"}
    assert all(not rows for rows in contents(store_of(graph.uri)).values())


def test_every_dataset_is_created_with_the_settings_of_the_format(graph: omnigraph.Graph) -> None:
    location = Location.parse(graph.uri)
    paths = ["__manifest", *(entry.table.path for entry in graph.snapshot().entries.values())]

    for path in paths:
        handle = lance.dataset(location.child(path), storage_options=location.storage_options)
        # The manifest is written whole by each commit: its rows need no identity, which costs bytes for each commit.
        assert handle.has_stable_row_ids == (path != "__manifest"), path
        assert handle.data_storage_version == "2.2", path
        assert not [key for key in handle.config() if "cleanup" in key], path


@pytest.mark.parametrize("given", ["text", "path", "name of a file"])
def test_the_schema_is_given_as_a_text_or_as_a_file(tmp_path: Path, given: str) -> None:
    file = tmp_path / "tiny.pg"
    file.write_text(f"// tiny\n{TINY}")
    ways: dict[str, str | Path] = {"text": file.read_text(), "path": file, "name of a file": str(file)}

    graph = omnigraph.init(tmp_path / "graph", ways[given])

    assert graph.schema == file.read_text() == (tmp_path / "graph" / "_schema.pg").read_text()
    assert set(graph.catalog.nodes) == {"A", "B"}


def test_a_schema_that_is_refused_leaves_nothing(root_uri: str) -> None:
    with pytest.raises(SchemaError):
        omnigraph.init(root_uri, "node A { a: Sting }")

    assert everything(root_uri) == {}


@pytest.mark.parametrize("as_text", [True, False])
def test_a_schema_file_that_is_not_there_is_named(tmp_path: Path, *, as_text: bool) -> None:
    missing = tmp_path / "missing.pg"

    with pytest.raises(FileAccessError) as failure:
        omnigraph.init(tmp_path / "graph", str(missing) if as_text else missing)

    assert failure.value.path == str(missing)
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize("uri", ["{}/x", "file://{}/x", "{}/sub/../x", "{}/x/"])
def test_one_graph_has_many_addresses(tmp_path: Path, uri: str) -> None:
    assert omnigraph.init(uri.format(tmp_path), TINY).uri == f"{tmp_path}/x"

    assert omnigraph.open(tmp_path / "x").uri == f"{tmp_path}/x"


@pytest.mark.parametrize("force", [False, True])
def test_a_graph_is_not_made_twice(graph: omnigraph.Graph, *, force: bool) -> None:
    before = everything(graph.uri)

    with pytest.raises(AlreadyInitializedError) as failure:
        omnigraph.init(graph.uri, TINY, force=force)

    assert failure.value.uri == graph.uri
    assert failure.value.hint
    assert everything(graph.uri) == before


@pytest.mark.parametrize("name", SCHEMA_FILES)
def test_a_single_schema_file_is_in_the_way(root_uri: str, name: str) -> None:
    store_of(root_uri).objects.write(name, b"mine")

    with pytest.raises(AlreadyInitializedError) as failure:
        omnigraph.init(root_uri, TINY)

    assert "force" in (failure.value.hint or ""), "it cannot be opened instead"
    assert list(everything(root_uri)) == [name]
    omnigraph.init(root_uri, TINY, force=True)
    assert_usable(root_uri)


# Init, two at once


def _init(uri: str, schema: str = SCHEMA) -> str:
    try:
        omnigraph.init(uri, schema)
    except AlreadyInitializedError:
        return "already"
    return "made"


@pytest.mark.parametrize("turn", range(3))
def test_of_eight_threads_that_make_one_graph_one_does(root_uri: str, turn: int) -> None:
    uri, start = f"{root_uri}-{turn}", threading.Barrier(8)

    def run(_: int) -> str:
        start.wait()
        return _init(uri)

    with ThreadPoolExecutor(8) as pool:
        outcome = sorted(pool.map(run, range(8)))

    assert outcome == [*["already"] * 7, "made"]
    assert_usable(uri)


def test_of_three_processes_that_make_one_graph_one_does(root_uri: str) -> None:
    with contending(3, make_graph, SCHEMA) as make:
        for turn in range(4):
            assert sorted(make(f"{root_uri}-{turn}")) == ["already", "already", "made"]
    for turn in range(4):
        assert_usable(f"{root_uri}-{turn}")


@pytest.mark.parametrize("at", [failpoints.INIT_AFTER_SCHEMA_PG_WRITTEN, failpoints.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN])
def test_who_comes_while_a_graph_is_being_made_is_turned_away(root_uri: str, at: str) -> None:
    held = failpoints.Rendezvous()
    with failpoints.armed(at, held), ThreadPoolExecutor(1) as pool:
        first = pool.submit(_init, root_uri)
        held.wait_until_reached()
        assert _init(root_uri, TINY) == "already"
        held.release()
        assert first.result() == "made"

    assert set(omnigraph.open(root_uri).catalog.nodes) == {"Person", "Company"}
    assert_usable(root_uri)


def test_who_looked_before_the_other_began_is_turned_away_at_the_claim(root_uri: str) -> None:
    others: list[str] = []

    def before_the_claim(operation: str, path: str) -> None:
        if operation == "create" and path.endswith("_schema.pg") and not others:
            others.append("on its way")
            others.append(_init(root_uri, TINY))

    with hook(before_the_claim), pytest.raises(AlreadyInitializedError):
        omnigraph.init(root_uri, SCHEMA)

    assert others[1:] == ["made"]
    assert set(omnigraph.open(root_uri).catalog.nodes) == {"A", "B"}
    assert_usable(root_uri)


def test_a_slow_init_does_no_harm_to_the_graph_that_was_forced_past_it(root_uri: str) -> None:
    held = failpoints.Rendezvous()
    with failpoints.armed(failpoints.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN, held), ThreadPoolExecutor(1) as pool:
        slow = pool.submit(omnigraph.init, root_uri, SCHEMA)
        held.wait_until_reached()
        omnigraph.init(root_uri, SCHEMA, force=True)
        held.release()
        with pytest.raises(OmnigraphError):
            slow.result()

    assert_usable(root_uri)


# Init, interrupted


class InjectedError(Exception):
    """No error of ours."""


def _raise() -> None:
    raise InjectedError


@pytest.mark.parametrize("at", [failpoints.INIT_AFTER_SCHEMA_PG_WRITTEN, failpoints.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN])
def test_an_init_that_fails_takes_its_files_back(root_uri: str, at: str) -> None:
    with failpoints.armed(at, _raise), pytest.raises(InjectedError):
        omnigraph.init(root_uri, SCHEMA)

    assert everything(root_uri) == {}
    omnigraph.init(root_uri, SCHEMA)
    assert_usable(root_uri)


def test_an_init_that_fails_when_the_graph_is_there_leaves_the_graph(root_uri: str) -> None:
    with failpoints.armed(failpoints.INIT_AFTER_MANIFEST_CREATED, _raise), pytest.raises(InjectedError):
        omnigraph.init(root_uri, SCHEMA)

    assert_usable(root_uri)


@contextmanager
def failing_at(ordinals: range, error: Exception) -> Iterator[list[str]]:
    """Let the durable writes of some ordinals, counted from 1, fail; yields what was tried."""
    tried: list[str] = []

    def act(operation: str, path: str) -> None:
        tried.append(f"{operation} {path}")
        if len(tried) in ordinals:
            raise error

    with hook(act):
        yield tried


def _writes_of_an_init(uri: str) -> int:
    with failing_at(range(0), CrashError()) as tried:
        omnigraph.init(uri, SCHEMA)
    return len(tried)


@pytest.mark.slow
def test_an_init_that_fails_at_any_write_can_be_done_again(root_uri: str) -> None:
    for ordinal in range(
        1, _writes_of_an_init(root_uri)
    ):  # the last one only removes the claim of a graph that is made
        uri = f"{root_uri}-{ordinal}"
        error = StorageError(f"write {ordinal} failed", path=uri, operation="test")

        with failing_at(range(ordinal, ordinal + 1), error), pytest.raises(StorageError) as failure:
            omnigraph.init(uri, SCHEMA)

        assert failure.value is error
        assert not set(top(uri)) & {*SCHEMA_FILES, "__manifest"}
        omnigraph.init(uri, SCHEMA)
        assert_usable(uri)


@pytest.mark.slow
def test_an_init_that_dies_at_any_write_can_be_forced(root_uri: str) -> None:
    """From some write on nothing gets through, as if the process were dead."""
    for ordinal in range(
        1, _writes_of_an_init(root_uri)
    ):  # the last one only removes the claim of a graph that is made
        uri = f"{root_uri}-{ordinal}"

        with failing_at(range(ordinal, sys.maxsize), CrashError()), pytest.raises(CrashError):
            omnigraph.init(uri, SCHEMA)

        for read_only in (True, False):
            with pytest.raises((GraphNotFoundError, NotAGraphError)) as failure:
                omnigraph.open(uri, read_only=read_only)
            assert failure.value.hint
        omnigraph.init(uri, SCHEMA, force=True)
        assert_usable(uri)


def test_the_failure_of_an_init_is_told_and_not_that_of_tidying_up(root_uri: str) -> None:
    first = StorageError("the first", path="a", operation="test")

    def act(operation: str, path: str) -> None:
        if operation == "create table":
            raise first
        if operation == "delete":
            raise StorageError("the second", path=path, operation=operation)

    with hook(act), pytest.raises(StorageError) as failure:
        omnigraph.init(root_uri, SCHEMA)

    assert failure.value is first


@pytest.mark.parametrize(
    "at, made",
    [
        (failpoints.INIT_AFTER_SCHEMA_PG_WRITTEN, False),
        (failpoints.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN, False),
        (failpoints.INIT_AFTER_MANIFEST_CREATED, True),
    ],
)
def test_a_process_that_dies_while_it_makes_a_graph_leaves_a_graph_or_none(
    tmp_path: Path, at: str, *, made: bool
) -> None:
    uri = str(tmp_path / "graph")

    die_each(dying_init, [(uri, SCHEMA, at)])

    with pytest.raises(AlreadyInitializedError) as failure:
        omnigraph.init(uri, SCHEMA)
    assert ("force" in (failure.value.hint or "")) is not made
    if not made:
        omnigraph.init(uri, SCHEMA, force=True)
    assert_usable(uri)


def test_what_a_failed_init_left_of_other_tables_is_no_obstacle(root_uri: str) -> None:
    other = SCHEMA.replace("age: I32?", "age: String?")
    with hook(lambda operation, path: _raise() if (operation, path[-10:]) == ("create", "__manifest") else None):
        for _ in range(2):
            with pytest.raises(InjectedError):
                omnigraph.init(root_uri, other)
    assert top(root_uri) == ["edges", "nodes"]

    graph = omnigraph.init(root_uri, SCHEMA)

    store = store_of(root_uri)
    assert {key: entry.row_count for key, entry in graph.snapshot().entries.items()} == dict.fromkeys(
        contents(store), 0
    )
    assert str(store.tables.open(graph.snapshot().entries[PERSON].table).schema.field("age").type) == "int32"
    assert_usable(root_uri)


def test_files_of_a_manifest_that_was_never_committed_are_no_obstacle(root_uri: str) -> None:
    """What is left when the disk is full, or the process dies, before the first version of the manifest is there."""
    store_of(root_uri).objects.write("__manifest/data/0.lance", b"half")

    with pytest.raises((GraphNotFoundError, NotAGraphError)):
        omnigraph.open(root_uri)
    omnigraph.init(root_uri, SCHEMA)

    assert_usable(root_uri)


# Open


def test_a_graph_is_seen_through_every_handle_as_it_is_now(graph: omnigraph.Graph) -> None:
    other, reader = omnigraph.open(graph.uri), omnigraph.open(graph.uri, read_only=True)
    store = store_of(graph.uri)
    txn = begin(store)
    published = publish(store, plan(txn, append(store, txn, PERSON, [person("ada"), person("bob")]), actor="ann"))

    for handle in (graph, other, reader):
        assert handle.snapshot() == published.state.snapshot
        assert handle.snapshot().entries[PERSON].row_count == 2
        assert [commit.actor_id for commit in handle.commits()] == ["ann", None]
        assert handle.commit(published.commit.commit_id) == published.commit
        assert handle.branches() == ["main"]
        handle.refresh()


def test_commits_are_listed_newest_first_and_by_actor(graph: omnigraph.Graph) -> None:
    publisher = store_of(graph.uri).manifest
    made = [publisher.publish(None, Changes(), {}, Lineage.new(actor)).commit for actor in ("ann", "bob", "ann", None)]
    (genesis,) = [commit for commit in graph.commits() if commit.parent_id is None]

    assert graph.commits() == [*reversed(made), genesis]
    assert graph.commits(actor="ann") == [made[2], made[0]]
    assert graph.commits(actor="nobody") == []


def test_a_commit_is_found_from_every_branch_and_an_unknown_one_is_named(graph: omnigraph.Graph) -> None:
    manifest(graph.uri).create_branch("side", storage_options=Location.parse(graph.uri).storage_options)
    theirs = store_of(graph.uri).manifest.publish("side", Changes(), {}, Lineage.new("bob")).commit

    assert graph.branches() == ["main", "side"]
    assert graph.commit(theirs.commit_id) == theirs
    assert graph.commits("side") == [theirs, *graph.commits()]
    for unknown in ("01J0000000000000000000000A", "", PERSON, "graph_head:main"):
        with pytest.raises(CommitNotFoundError) as failure:
            graph.commit(unknown)
        assert failure.value.commit_id == unknown
    for read in (graph.snapshot, graph.commits):
        with pytest.raises(BranchNotFoundError) as missing:
            read("nowhere")
        assert missing.value.branch == "nowhere"


def test_a_handle_is_a_context_and_says_what_it_is(tmp_path: Path) -> None:
    with omnigraph.init(tmp_path, TINY) as graph:
        assert (graph.uri, graph.read_only, graph.schema) == (str(tmp_path), False, TINY)
        assert repr(graph) == f"<Graph {tmp_path}>"
    with omnigraph.open(tmp_path, read_only=True) as reader:
        assert repr(reader) == f"<Graph {tmp_path} read-only>"
    with pytest.raises(InjectedError), reader:
        raise InjectedError


def test_the_engine_is_loaded_when_it_is_first_asked_for() -> None:
    code = "import sys, omnigraph; print('lance' in sys.modules); omnigraph.Graph; print('lance' in sys.modules)"

    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert run.stdout.split() == ["False", "True"]
    assert {"Graph", "init", "open", "errors"} <= set(omnigraph.__all__)


def test_a_row_of_an_unknown_kind_is_ignored(graph: omnigraph.Graph) -> None:
    before = graph.snapshot().entries
    spell = VersionRow(PERSON, 9, None, 9).record() | {"object_id": "spell:1", "object_type": "table_spell"}
    options = Location.parse(graph.uri).storage_options
    lance.write_dataset(encode([spell]), manifest(graph.uri).uri, mode="append", storage_options=options)

    for read_only in (True, False):
        assert omnigraph.open(graph.uri, read_only=read_only).snapshot().entries == before
    assert_usable(graph.uri)


def test_a_table_that_is_gone_is_still_in_older_snapshots(graph: omnigraph.Graph) -> None:
    before = graph.snapshot()
    publisher = store_of(graph.uri).manifest
    publisher.publish(None, Changes((), (), (TombstoneRow(PERSON, 1),)), {PERSON: 1}, Lineage.new())

    assert set(before.entries) - set(graph.snapshot().entries) == {PERSON}
    assert publisher.load(None, before.manifest_version).snapshot == before
    assert contents(store_of(graph.uri))[COMPANY] == []


# The schema contract


def test_a_remark_in_the_schema_is_no_drift(graph: omnigraph.Graph) -> None:
    text = f"// a remark\n{SCHEMA}"
    store_of(graph.uri).objects.write("_schema.pg", text.encode())

    assert graph.snapshot().entries
    assert graph.schema == text
    graph.refresh()
    assert_usable(graph.uri)


@pytest.mark.once_on_s3
@modes
@pytest.mark.parametrize("operation", ["refresh", "open"])
def test_a_changed_property_is_drift_to_a_handle_that_looks_again_and_to_a_new_one(
    root_uri: str, operation: str, *, read_only: bool
) -> None:
    omnigraph.init(root_uri, SCHEMA)
    handle = omnigraph.open(root_uri, read_only=read_only)
    store_of(root_uri).objects.write("_schema.pg", SCHEMA.replace("I32?", "I64?").encode())
    before = everything(root_uri)

    again = partial(omnigraph.open, root_uri, read_only=read_only)
    with pytest.raises(SchemaDriftError, match="schema evolution is locked"):
        (again if operation == "open" else getattr(handle, operation))()

    assert everything(root_uri) == before


def test_a_changed_property_is_drift_to_the_next_write(graph: omnigraph.Graph) -> None:
    store = store_of(graph.uri)
    store.objects.write("_schema.pg", SCHEMA.replace("I32?", "I64?").encode())
    before = manifest(graph.uri).version

    with pytest.raises(SchemaDriftError):
        add_company(store, "acme")

    assert manifest(graph.uri).version == before


def test_the_schema_that_is_put_back_ends_the_drift(graph: omnigraph.Graph) -> None:
    store = store_of(graph.uri)
    store.objects.write("_schema.pg", TINY.encode())
    with pytest.raises(SchemaDriftError):
        graph.refresh()

    store.objects.write("_schema.pg", SCHEMA.encode())

    graph.refresh()
    assert graph.snapshot().entries
    assert_usable(graph.uri)


@pytest.mark.once_on_s3
@modes
@pytest.mark.parametrize("names", [SCHEMA_FILES[:1], SCHEMA_FILES[1:2], SCHEMA_FILES[:2]])
def test_a_graph_without_its_compiled_schema_does_not_open(
    graph: omnigraph.Graph, names: list[str], *, read_only: bool
) -> None:
    for name in names:
        store_of(graph.uri).objects.delete(name)
    before = everything(graph.uri)

    with pytest.raises(SchemaDriftError, match="is missing") as failure:
        omnigraph.open(graph.uri, read_only=read_only)

    assert failure.value.hint
    assert everything(graph.uri) == before


@modes
def test_a_graph_without_its_schema_does_not_open_and_the_file_is_named(
    graph: omnigraph.Graph, *, read_only: bool
) -> None:
    store_of(graph.uri).objects.delete("_schema.pg")
    before = everything(graph.uri)

    with pytest.raises(OmnigraphError) as failure:
        omnigraph.open(graph.uri, read_only=read_only)

    assert "_schema.pg" in str(failure.value)
    assert everything(graph.uri) == before


def compiled_elsewhere(uri: str, number: int = 1) -> dict[str, bytes]:
    """Put the compiled files of another implementation in place of ours; return all three files."""
    files = store_of(uri).objects
    files.write("_schema.ir.json", json.dumps({"ir_version": number, "nodes": [], "edges": []}, indent=2).encode())
    state = {"format_version": 1, "schema_ir_hash": "0" * 64, "schema_identity_version": 1}
    files.write("__schema_state.json", json.dumps(state).encode())
    return {name: files.read(name) for name in SCHEMA_FILES}


def test_the_files_of_a_schema_that_another_implementation_compiled_stay_valid_for_it(
    graph: omnigraph.Graph, caplog: pytest.LogCaptureFixture
) -> None:
    """The defect: a read-write open rewrote them without `ir_version`, and the other refused the graph from then on."""
    theirs, files = compiled_elsewhere(graph.uri), store_of(graph.uri).objects
    before = everything(graph.uri)
    assert omnigraph.open(graph.uri, read_only=True).snapshot().entries
    assert everything(graph.uri) == before

    changed = omnigraph.open(graph.uri)
    changed.mutate('query add() { insert Person { name: "zoe" } }')
    assert omnigraph.open(graph.uri).snapshot().entries[PERSON].row_count == 1
    assert {name: files.read(name) for name in SCHEMA_FILES} == theirs
    assert caplog.messages == []


def test_an_edit_of_a_source_that_another_implementation_compiled_is_drift_once_the_graph_was_opened(
    graph: omnigraph.Graph,
) -> None:
    compiled_elsewhere(graph.uri)
    omnigraph.open(graph.uri)
    files = store_of(graph.uri).objects
    text = files.read("_schema.pg")
    files.write("_schema.pg", text + b"// a remark\n")
    assert omnigraph.open(graph.uri).snapshot().entries
    files.write("_schema.pg", text + b"node Other { name: String @key }\n")
    for read_only in (True, False):
        with pytest.raises(SchemaDriftError, match="locked"):
            omnigraph.open(graph.uri, read_only=read_only)

    compiled_elsewhere(graph.uri, 2)  # they changed the schema themselves, by their own rules
    assert "Other" in omnigraph.open(graph.uri, read_only=True).catalog.nodes


def test_our_fingerprint_beside_the_files_of_another_implementation_is_written_again_if_it_is_torn(
    graph: omnigraph.Graph,
) -> None:
    compiled_elsewhere(graph.uri)
    omnigraph.open(graph.uri)
    files = store_of(graph.uri).objects
    known = files.read(schema_files.BESIDE)
    files.write(schema_files.BESIDE, b"")
    assert omnigraph.open(graph.uri).snapshot().entries
    assert files.read(schema_files.BESIDE) == known


def test_a_schema_change_that_locks_another_implementation_out_warns_before_it(
    graph: omnigraph.Graph, caplog: pytest.LogCaptureFixture
) -> None:
    compiled_elsewhere(graph.uri)
    opened = omnigraph.open(graph.uri)
    wanted = opened.schema + "node Other { name: String @key }\n"
    opened.apply_schema(f"// the same\n{opened.schema}")
    assert caplog.messages == []
    opened.plan_schema(wanted)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot open it any more" in caplog.text
    caplog.clear()
    with failing("create table", "nodes/"), pytest.raises(StorageError):
        opened.apply_schema(wanted)
    assert "cannot open it any more" in caplog.text, "before the first write"
    assert opened.apply_schema(wanted).applied
    caplog.clear()
    assert omnigraph.open(graph.uri).apply_schema(f"{wanted}node Third {{ name: String @key }}").applied
    assert caplog.messages == [], "only before the first one"


# Read-only


def _leave_nothing(_: Store) -> None:
    pass


def _leave_a_write_half_way(store: Store) -> None:
    txn = begin(store)
    interrupt(store, plan(txn, append(store, txn, PERSON, [person("zoe")])), failpoints.PUBLISH_BEFORE_MANIFEST)


def _leave_a_corrupt_record(store: Store) -> None:
    store.objects.write("__recovery/01J0000000000000000000000A.json", b"{")


def _leave_staging_files(store: Store) -> None:
    for name in SCHEMA_FILES:
        store.objects.write(f"{name}.staging", b"node New { name: String @key }")


@pytest.mark.parametrize(
    "leave", [_leave_nothing, _leave_a_write_half_way, _leave_a_corrupt_record, _leave_staging_files]
)
def test_reading_only_writes_nothing(
    root_uri: str, request: pytest.FixtureRequest, leave: Callable[[Store], None]
) -> None:
    store = small_graph(root_uri)
    rows = contents(store)
    leave(store)
    before = everything(root_uri)
    durable_writes: list[str] = []
    server: S3Server | None = request.getfixturevalue("s3_server") if store.location.bucket else None
    sent = server.requests(store.location.bucket) if server else None

    with counted() as requests, hook(lambda operation, path: durable_writes.append(f"{operation} {path}")):
        with omnigraph.open(root_uri, read_only=True) as graph:
            snapshot = graph.snapshot()
            (latest, *_) = graph.commits()
            assert graph.commit(latest.commit_id) == latest
            assert graph.branches() == ["main"]
            graph.refresh()
            found = {key: store.tables.open(entry.table).count_rows() for key, entry in snapshot.entries.items()}
        made = requests.requests

    assert made.total > 0
    assert (made.writes, durable_writes) == (0, [])
    if server and sent is not None:
        seen = server.requests(store.location.bucket) - sent
        assert {kind: seen[kind] for kind in asdict(made)} == asdict(made)
    assert everything(root_uri) == before
    assert found == {key: len(table) for key, table in rows.items()}


def test_reading_only_works_on_a_disk_that_cannot_be_written(public: Path) -> None:
    root = public / "graph"
    store = small_graph(str(root))
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    with unprivileged():
        graph = omnigraph.open(root, read_only=True)
        assert graph.snapshot().entries[PERSON].row_count == 3
        assert len(graph.commits()) == 2
    assert store.sidecars.pending() == []


# Bad input


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permissions do not hold for root, so be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that nobody can reach, as opposed to `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
        for path in Path(name).rglob("*"):
            path.chmod(0o755)


def _ways_in(uri: str) -> list[Callable[[], object]]:
    return [
        partial(omnigraph.open, uri),
        partial(omnigraph.open, uri, read_only=True),
        partial(omnigraph.init, uri, TINY),
    ]


@modes
def test_a_graph_that_is_not_there_is_named(root_uri: str, *, read_only: bool) -> None:
    with pytest.raises(GraphNotFoundError) as failure:
        omnigraph.open(root_uri, read_only=read_only)

    assert failure.value.uri == root_uri
    assert root_uri in failure.value.message
    assert "init" in (failure.value.hint or "")
    assert everything(root_uri) == {}
    assert not Location.parse(root_uri).is_local or not Path(root_uri).exists()


@modes
def test_an_empty_directory_is_no_graph(tmp_path: Path, *, read_only: bool) -> None:
    with pytest.raises(GraphNotFoundError):
        omnigraph.open(tmp_path, read_only=read_only)

    assert list(tmp_path.iterdir()) == []


@modes
@pytest.mark.parametrize("name", ["notes.txt", "deep/er/notes.txt"])
def test_something_else_is_not_a_graph(root_uri: str, name: str, *, read_only: bool) -> None:
    store_of(root_uri).objects.write(name, TINY.encode())

    with pytest.raises(NotAGraphError) as failure:
        omnigraph.open(root_uri, read_only=read_only)

    assert failure.value.uri == root_uri
    assert failure.value.hint
    assert list(everything(root_uri)) == [name]


@pytest.mark.parametrize("uri", ["gs://bucket/x", "http://host/x", "az://c/x", "ftp://h/x", "S3:/bucket/x", ""])
def test_an_address_of_an_unknown_kind_is_refused(uri: str) -> None:
    for act in _ways_in(uri):
        with pytest.raises(UnsupportedUriError) as failure:
            act()
        assert failure.value.uri == uri
        assert failure.value.hint


@pytest.mark.parametrize("below", ["", "/graph"])
def test_a_file_where_a_directory_should_be_is_named(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    uri = f"{file}{below}"

    for act in _ways_in(uri):
        with pytest.raises(OmnigraphError) as failure:
            act()
        assert isinstance(failure.value, StorageError | NotAGraphError)
        assert str(file) in failure.value.message
        assert failure.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "in the way"


@modes
@pytest.mark.parametrize("name", ["_schema.ir.json", "__schema_state.json", "__manifest"])
def test_the_wrong_kind_of_thing_below_the_root_is_named(tmp_path: Path, name: str, *, read_only: bool) -> None:
    omnigraph.init(tmp_path, TINY)
    wrong = tmp_path / name
    if wrong.is_dir():
        shutil.rmtree(wrong)
        wrong.write_text("a file")
    else:
        wrong.unlink()
        wrong.mkdir()
        (wrong / "file").write_text("a directory")

    with pytest.raises(OmnigraphError) as failure:
        omnigraph.open(tmp_path, read_only=read_only)

    assert name in str(failure.value)


def test_a_directory_that_may_not_be_written_is_left_as_it_is(public: Path) -> None:
    closed = public / "closed"
    closed.mkdir()
    closed.chmod(0o555)

    for uri in (closed, closed / "graph"):
        with unprivileged(), pytest.raises(StorageDeniedError) as failure:
            omnigraph.init(uri, TINY)
        assert str(uri) in failure.value.path
        assert failure.value.hint
    assert list(closed.iterdir()) == []


def test_a_directory_that_may_not_be_read_is_an_error_never_absence(public: Path) -> None:
    omnigraph.init(public / "graph", TINY)
    (public / "graph").chmod(0)

    for read_only in (True, False):
        with unprivileged(), pytest.raises(StorageDeniedError) as failure:
            omnigraph.open(public / "graph", read_only=read_only)
        assert str(public / "graph") in failure.value.path
        assert failure.value.hint


def test_a_bucket_that_may_not_be_used_is_an_error_never_absence(s3_uri: str) -> None:
    uri = f"{s3_uri}/denied/graph"

    for act in _ways_in(uri):
        with pytest.raises(StorageDeniedError) as failure:
            act()
        assert uri in failure.value.path
        assert "credentials" in (failure.value.hint or "")


@modes
def test_a_manifest_row_that_makes_no_sense_is_damage(graph: omnigraph.Graph, *, read_only: bool) -> None:
    commit = commit_record(graph.commits()[0]) | {"object_id": "01J0000000000000000000000A", "metadata": "{"}
    options = Location.parse(graph.uri).storage_options
    lance.write_dataset(encode([commit]), manifest(graph.uri).uri, mode="append", storage_options=options)
    before = everything(graph.uri)

    with pytest.raises(CorruptGraphError) as failure:
        omnigraph.open(graph.uri, read_only=read_only).commits()

    assert "__manifest" in failure.value.path
    assert failure.value.hint
    assert everything(graph.uri) == before


@modes
def test_a_manifest_without_its_versions_is_named(tmp_path: Path, *, read_only: bool) -> None:
    omnigraph.init(tmp_path, TINY)
    shutil.rmtree(tmp_path / "__manifest" / "_versions")

    with pytest.raises(OmnigraphError) as failure:
        omnigraph.open(tmp_path, read_only=read_only)

    assert str(tmp_path) in failure.value.message
    assert failure.value.hint


_ON_A_SMALL_DISK = [
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-ec",
    'mount -t tmpfs -o size=512k none "$0"; exec "$@"',
]
_FILL = """
import os, sys
from pathlib import Path
import omnigraph
from omnigraph.errors import StorageFullError
root, schema = Path(sys.argv[1]), sys.argv[2]
filler, pages, failures = root / "filler", 0, 0
while True:
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    os.truncate(filler, max(0, filler.stat().st_size - pages * 4096))
    try:
        omnigraph.init(root / str(pages), schema)
        break
    except StorageFullError as error:
        assert str(root) in error.path and error.hint, error
        left = {path.name for path in (root / str(pages)).glob("*")}
        assert not left & {"_schema.pg", "_schema.ir.json", "__schema_state.json"}, left
        failures += 1
    finally:
        filler.unlink()
    graph = omnigraph.init(root / str(pages), schema)
    assert len(graph.snapshot().entries) == 3, pages
    omnigraph.open(graph.uri)
    __import__("shutil").rmtree(root / str(pages))
    pages += 1
omnigraph.open(root / str(pages)).snapshot()
print(failures)
"""


def test_a_disk_without_space_fails_the_init_and_free_space_mends_it(tmp_path: Path) -> None:
    """One page more is free each time, so that every write of an init is once the first to find no space."""
    if not shutil.which("unshare") or subprocess.run([*_ON_A_SMALL_DISK, tmp_path, "true"], check=False).returncode:
        pytest.skip("a small disk can be mounted only where user namespaces are allowed")

    command = [*_ON_A_SMALL_DISK, str(tmp_path), sys.executable, "-c", _FILL, str(tmp_path), TINY]
    run = subprocess.run(command, check=False, capture_output=True, text=True)

    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 5


def test_a_store_without_space_fails_the_init(s3_uri: str) -> None:
    uri = f"{s3_uri}/full/graph"

    with pytest.raises(StorageFullError) as failure:
        omnigraph.init(uri, TINY)

    assert uri in failure.value.path
    assert failure.value.hint
