"""Graphs of older formats: migrated at every point where a runner can die or meet another, or read as they are."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import omnigraph
from omnigraph.api.results import Commit
from omnigraph.commit.failpoints import Rendezvous
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import (
    ContentionError,
    CorruptGraphError,
    FormatTooNewError,
    FormatTooOldError,
    OmnigraphError,
    StorageError,
)
from omnigraph.manifest.migrations import ACTORS_PATH, ATTEMPTS, COMMITS_PATH, migrate, read_stamp
from omnigraph.manifest.publisher import Changes, Lineage, Manifest
from omnigraph.manifest.rows import MANIFEST_PATH, OBJECT_ID, STAMP_KEY, head_id, head_record
from omnigraph.storage import observe
from omnigraph.storage.internal import primary_key
from tests.support.forks import FORKS, forked
from tests.support.graphs import PERSON, append, contents, person, plan
from tests.support.old_graphs import OldGraph, migrate_together, old_rows, unpacked

OLD_FORMATS = (1, 2, 3, 4)
# A migration from the first format takes every step there is.
EVERYWHERE = [*(("local", version) for version in OLD_FORMATS), ("s3", 1)]
RUNS = ("__run__01", "__run__02")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "graph")


def store_of(old: OldGraph) -> Store:
    return Store.at(old.location)


def names(old: OldGraph, branch: str | None = None) -> list[str]:
    return [row["name"] for row in contents(store_of(old), branch)[PERSON]]


def state_of(old: OldGraph, branch: str | None = None) -> tuple[int, int | None]:
    """The stamp of a branch of the manifest and its version, which every change moves."""
    dataset = old.dataset(MANIFEST_PATH, branch)
    return read_stamp(dataset), dataset.version


def assert_is_current(old: OldGraph, uri: str | None = None, branch: str | None = None) -> None:
    """Everything that a finished migration promises."""
    manifest = Manifest(Location.parse(uri or old.uri))
    state = manifest.load(branch)
    assert read_stamp(state.dataset) == 5
    assert primary_key(state.dataset) == []
    rows = state.dataset.to_table().to_pylist()
    ids = [row[OBJECT_ID] for row in rows]
    assert len(ids) == len(set(ids))
    assert {row[OBJECT_ID] for row in rows if row["object_type"] == "graph_commit"} == {
        commit.commit_id for commit in old.history[branch]
    }
    heads = {row[OBJECT_ID]: row["metadata"] for row in rows if row["object_type"] == "graph_head"}
    first = old.history[branch][0].commit_id
    assert heads == {head_id(branch): head_record(old.history[branch][-1], first)["metadata"]}
    assert state.graph_id == first
    assert state.commits() == old.history[branch]
    assert state.head == old.history[branch][-1]
    assert not [name for name in manifest.branches() if name.startswith("__run__")]


@contextmanager
def hooked(hook: observe.WriteHook) -> Iterator[None]:
    previous = observe.set_write_hook(hook)
    try:
        yield
    finally:
        observe.set_write_hook(previous)


def durable_writes(action: Callable[[], Any]) -> list[str]:
    seen: list[str] = []
    with hooked(lambda operation, _: seen.append(operation)):
        action()
    return seen


# One runner ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("root_uri, version", EVERYWHERE, indirect=["root_uri"])
def test_an_old_graph_becomes_current_with_its_history_and_its_rows(root_uri: str, version: int) -> None:
    old = OldGraph(root_uri, version, runs=RUNS if version < 3 else ())

    assert migrate(Manifest(old.location), None) == version

    assert_is_current(old)
    assert names(old) == ["Ada", "Bob"]
    if version < 4:
        assert old.dataset(COMMITS_PATH).count_rows() == 3
        assert old.dataset(ACTORS_PATH).count_rows() == 1


@pytest.mark.parametrize("version", OLD_FORMATS)
def test_a_second_migration_writes_nothing(uri: str, version: int) -> None:
    old = OldGraph(uri, version, runs=RUNS if version < 3 else ())
    manifest = Manifest(old.location)
    migrate(manifest, None)
    before = state_of(old)

    assert durable_writes(lambda: migrate(manifest, None)) == []

    assert state_of(old) == before


def test_a_graph_that_never_had_commits_is_migrated_without_any(uri: str) -> None:
    old = OldGraph(uri, 3)
    old.remove(COMMITS_PATH)
    old.remove(ACTORS_PATH)

    migrate(Manifest(old.location), None)

    state = Manifest(old.location).load()
    assert read_stamp(state.dataset) == 5
    assert state.commits() == []
    assert names(old) == ["Ada", "Bob"]


def test_commits_whose_authors_were_never_kept_have_none(uri: str) -> None:
    old = OldGraph(uri, 3)
    old.remove(ACTORS_PATH)

    migrate(Manifest(old.location), None)

    assert Manifest(old.location).load().commits() == [replace(commit, actor_id=None) for commit in old.history[None]]


def test_what_an_old_commit_does_not_say_is_left_open(uri: str) -> None:
    old = OldGraph(uri, 3)
    old.rewrite_history(old.dataset(COMMITS_PATH).to_table(columns=["graph_commit_id", "manifest_version"]))

    migrate(Manifest(old.location), None)

    state = Manifest(old.location).load()
    assert state.commits() == [replace(commit, parent_id=None, created_at=0) for commit in old.history[None]]


@pytest.mark.parametrize("unit, more", [("us", 0), ("ns", 0), ("ns", 999)])
def test_the_time_of_an_old_commit_may_be_a_timestamp(uri: str, unit: str, more: int) -> None:
    old = OldGraph(uri, 3)
    rows = old.dataset(COMMITS_PATH).to_table()
    index = rows.schema.get_field_index("created_at")
    times = rows["created_at"].cast(pa.timestamp("us")).cast(pa.timestamp(unit, "UTC"))
    times = pc.add(times.cast(pa.int64()), more).cast(times.type)  # parts of a microsecond are dropped
    old.rewrite_history(rows.set_column(index, "created_at", times))

    migrate(Manifest(old.location), None)

    assert Manifest(old.location).load().commits() == old.history[None]


def test_a_commit_that_was_recorded_twice_is_copied_once(uri: str) -> None:
    old = OldGraph(uri, 3)
    old.append_commits(old.history[None])

    migrate(Manifest(old.location), None)

    assert_is_current(old)


def test_a_history_without_ids_is_refused(uri: str) -> None:
    old = OldGraph(uri, 3)
    old.rewrite_history(old.dataset(COMMITS_PATH).to_table(columns=["manifest_version"]))
    before = state_of(old)

    with pytest.raises(CorruptGraphError, match="graph_commit_id"):
        migrate(Manifest(old.location), None)

    assert state_of(old) == before


# Refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stamp, error", [(6, FormatTooNewError), (0, FormatTooOldError)])
def test_a_format_out_of_range_is_refused_by_everyone(uri: str, stamp: int, error: type[OmnigraphError]) -> None:
    old = OldGraph(uri, 3)
    old.dataset(MANIFEST_PATH).update_schema_metadata({STAMP_KEY: str(stamp)})
    before = state_of(old)

    for action in (
        lambda: migrate(Manifest(old.location), None),
        lambda: omnigraph.open(old.uri, read_only=True),
        lambda: omnigraph.open(old.uri),
    ):
        with pytest.raises(error):
            action()

    assert state_of(old) == before


@pytest.mark.parametrize("version, key", [(1, "object_type"), (3, "object_type"), (3, None)])
def test_a_manifest_whose_key_is_another_column_is_refused(uri: str, version: int, key: str | None) -> None:
    old = OldGraph(uri, version, key=key)
    before = state_of(old)

    with pytest.raises(CorruptGraphError, match="primary key"):
        migrate(Manifest(old.location), None)

    assert state_of(old) == before


# Dying ---------------------------------------------------------------------------------------------


class PowerCutError(Exception):
    """What ends a runner at a durable write."""


@contextmanager
def power_cut(at: int) -> Iterator[None]:
    left = iter(range(at))

    def cut(operation: str, path: str) -> None:
        if next(left, None) is None:
            raise PowerCutError(operation, path)

    with hooked(cut), pytest.raises(PowerCutError):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("version", OLD_FORMATS)
def test_a_migration_that_died_anywhere_is_finished_by_the_next(tmp_path: Path, version: int) -> None:
    old = OldGraph(str(tmp_path / "graph"), version, runs=RUNS if version < 3 else ())
    writes = durable_writes(lambda: migrate(Manifest(_copy(old, tmp_path / "counted")), None))

    for ordinal in range(len(writes)):
        location = _copy(old, tmp_path / f"cut-{ordinal}")
        with power_cut(ordinal):
            migrate(Manifest(location), None)
        died_at = read_stamp(Manifest(location).table.open())
        assert died_at == version + writes[:ordinal].count("stamp")

        assert migrate(Manifest(location), None) == died_at

        assert_is_current(old, location.uri)


def _copy(old: OldGraph, to: Path) -> Location:
    shutil.copytree(old.uri, to)
    return Location.parse(to)


def test_what_an_older_release_committed_after_the_copy_is_copied_too(uri: str) -> None:
    old = OldGraph(uri, 3)
    with power_cut(1):
        migrate(Manifest(old.location), None)
    assert Manifest(old.location).load().commits() == old.history[None]
    old.commit("Cy", actor="carol")

    migrate(Manifest(old.location), None)

    assert_is_current(old)


# Failing reads -------------------------------------------------------------------------------------


def _garble(path: Path) -> None:
    min(path.glob("_versions/*.manifest")).write_bytes(b"no manifest")


def _lose_versions(path: Path) -> None:
    shutil.rmtree(path / "_versions")


def _lose_data(path: Path) -> None:
    shutil.rmtree(path / "data")


@pytest.mark.parametrize("path", [COMMITS_PATH, ACTORS_PATH])
@pytest.mark.parametrize("damage", [_garble, _lose_versions, _lose_data])
def test_a_history_that_cannot_be_read_now_is_not_taken_for_none(
    uri: str, path: str, damage: Callable[[Path], None]
) -> None:
    old = OldGraph(uri, 3)
    before = state_of(old)
    shutil.copytree(Path(uri, path), Path(uri, "aside"))
    damage(Path(uri, path))

    with pytest.raises(StorageError):
        migrate(Manifest(old.location), None)

    assert state_of(old) == before
    shutil.rmtree(Path(uri, path))
    Path(uri, "aside").rename(Path(uri, path))
    migrate(Manifest(old.location), None)
    assert_is_current(old)


# Several runners -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("version", OLD_FORMATS)
def test_a_runner_held_at_any_durable_write_converges_with_one_that_finished(tmp_path: Path, version: int) -> None:
    old = OldGraph(str(tmp_path / "graph"), version, runs=RUNS if version < 3 else ())
    writes = durable_writes(lambda: migrate(Manifest(_copy(old, tmp_path / "counted")), None))

    for ordinal in range(len(writes)):
        location = _copy(old, tmp_path / f"held-{ordinal}")
        _overtake(location, ordinal, version)
        assert_is_current(old, location.uri)


def _overtake(location: Location, ordinal: int, version: int) -> None:
    """Hold one runner at a durable write until another has finished."""
    rendezvous, found = Rendezvous(), []
    slow = threading.Thread(target=lambda: found.append(migrate(Manifest(location), None)))
    left = iter(range(ordinal))

    def hold(_operation: str, _path: str) -> None:
        if threading.current_thread() is slow and next(left, None) is None:
            rendezvous()

    with hooked(hold):
        slow.start()
        rendezvous.wait_until_reached()
        migrate(Manifest(location), None)
        finished = Manifest(location).table.open().version
        rendezvous.release()
        slow.join(300)
    assert found == [version]
    assert Manifest(location).table.open().version == finished, "the one that came too late changed something"


@pytest.mark.parametrize("root_uri", ["local", "s3"], indirect=True)
def test_threads_that_migrate_at_once_converge(root_uri: str) -> None:
    old = OldGraph(root_uri, 1, runs=RUNS)
    barrier = threading.Barrier(4)
    failed: list[Exception] = []

    def run() -> None:
        try:
            migrate_together(barrier, old.uri)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)

    assert failed == []
    assert_is_current(old)


def test_processes_that_migrate_at_once_converge(uri: str) -> None:
    old = OldGraph(uri, 1, runs=[f"__run__{number:02}" for number in range(8)])
    barrier = FORKS.Barrier(2)
    processes = [forked(migrate_together, (barrier, old.uri)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)

    assert [process.exitcode for process in processes] == [0, 0]
    assert_is_current(old)


def _mark_something(manifest: lance.LanceDataset, serial: int) -> None:
    manifest.update_field_metadata({OBJECT_ID: {"rival": str(serial)}})


def _stamp_something(manifest: lance.LanceDataset, serial: int) -> None:
    manifest.update_schema_metadata({"rival": str(serial)})


def _move_the_head(manifest: lance.LanceDataset, serial: int) -> None:
    commit = Commit(f"rival-{serial}", None, 1, None, None, None, serial)
    rows = old_rows([head_record(commit)])
    manifest.merge_insert(OBJECT_ID).when_matched_update_all().when_not_matched_insert_all().execute(rows)


def _bring_back_a_run(manifest: lance.LanceDataset, serial: int) -> None:
    manifest.create_branch(f"__run__rival_{serial}")


@pytest.mark.parametrize(
    "version, operation, rival",
    [
        (1, "mark", _mark_something),
        (1, "stamp", _stamp_something),
        (2, "delete branch", _bring_back_a_run),
        (3, "publish", _move_the_head),
        (3, "stamp", _stamp_something),
        (4, "publish", _stamp_something),
    ],
)
def test_losing_every_attempt_is_an_error_to_retry(
    uri: str, version: int, operation: str, rival: Callable[[lance.LanceDataset, int], None]
) -> None:
    old = OldGraph(uri, version, runs=RUNS[:1])
    won: list[int] = []

    def compete(about_to: str, _path: str) -> None:
        if about_to == operation and len(won) < 50:
            won.append(len(won))
            rival(old.dataset(MANIFEST_PATH), len(won))

    with hooked(compete), pytest.raises(ContentionError) as failed:
        migrate(Manifest(old.location), None)

    assert failed.value.attempts == ATTEMPTS <= len(won)
    assert state_of(old)[0] == version
    migrate(Manifest(old.location), None)
    assert Manifest(old.location).load().commits() == old.history[None]


# Branches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root_uri, version", EVERYWHERE, indirect=["root_uri"])
def test_a_branch_is_migrated_by_itself(root_uri: str, version: int) -> None:
    old = OldGraph(root_uri, version)
    old.fork("feature")
    old.commit("Cy", branch="feature", actor="carol")
    main = state_of(old)

    assert migrate(Manifest(old.location), "feature") == version

    assert_is_current(old, branch="feature")
    assert names(old, "feature") == ["Ada", "Bob", "Cy"]
    assert state_of(old) == main

    migrate(Manifest(old.location), None)
    assert_is_current(old)
    assert_is_current(old, branch="feature")


def test_a_branch_that_never_reached_the_history_has_that_of_its_parents_up_to_the_fork(uri: str) -> None:
    old = OldGraph(uri, 3)
    old.fork("team")
    old.commit("Cy", branch="team")
    old.fork("team/feature", "team", with_history=False)
    old.commit("Dan", branch="team")

    migrate(Manifest(old.location), "team/feature")

    assert_is_current(old, branch="team/feature")
    assert [commit.branch for commit in old.history["team/feature"]] == [None, None, None, "team"]


def test_runs_of_runs_are_swept_and_those_that_branches_descend_from_are_kept(uri: str) -> None:
    old = OldGraph(uri, 2, runs=["__run__a", "__run__b"])
    chain = ["__run__a", *(f"__run__a{depth}" for depth in range(ATTEMPTS + 1))]
    for parent, child in pairwise(chain):
        old.dataset(MANIFEST_PATH).create_branch(child, (parent, None))
    old.dataset(MANIFEST_PATH).create_branch("feature", ("__run__b", None))

    migrate(Manifest(old.location), None)

    assert Manifest(old.location).branches() == ["main", "__run__b", "feature"]
    assert [row["name"] for row in contents(store_of(old), "feature")[PERSON]] == ["Ada", "Bob"]


def test_a_branch_made_under_the_freed_name_survives_the_migration_of_another(uri: str) -> None:
    old = OldGraph(uri, 2, runs=RUNS)
    old.fork("feature")
    migrate(Manifest(old.location), None)
    old.dataset(MANIFEST_PATH).create_branch("__run__mine")

    assert migrate(Manifest(old.location), "feature") == 2

    assert Manifest(old.location).branches() == ["main", "__run__mine", "feature"]


# Reading and writing through the graph --------------------------------------------------------------


@pytest.mark.parametrize("root_uri, version", EVERYWHERE, indirect=["root_uri"])
def test_reading_an_old_graph_shows_its_history_and_writes_nothing(root_uri: str, version: int) -> None:
    old = OldGraph(root_uri, version)
    old.fork("feature")
    old.commit("Cy", branch="feature", actor="carol")
    before = state_of(old), state_of(old, "feature")

    with observe.counted() as requests:
        graph = omnigraph.open(old.uri, read_only=True)
        main, feature = graph.commits(), graph.commits("feature")
        found = graph.commit(feature[0].commit_id)
        snapshot = graph.snapshot("feature")

    assert requests.writes == 0
    assert main == old.history[None][::-1]
    assert feature == old.history["feature"][::-1]
    assert found == feature[0]
    assert snapshot.entries[PERSON].row_count == 3
    assert (state_of(old), state_of(old, "feature")) == before


def test_a_reader_of_a_half_migrated_graph_sees_each_commit_once(uri: str) -> None:
    old = OldGraph(uri, 3)
    with power_cut(1):
        migrate(Manifest(old.location), None)

    assert omnigraph.open(uri, read_only=True).commits() == old.history[None][::-1]


def test_an_earlier_version_of_a_migrated_graph_has_the_history_of_its_time(uri: str) -> None:
    old = OldGraph(uri, 3)
    migrate(Manifest(old.location), None)
    second = old.history[None][1]

    state = Manifest(old.location).load(version=second.manifest_version)

    assert state.commits() == old.history[None][:2]


def test_a_reader_is_told_when_the_history_cannot_be_read(uri: str) -> None:
    OldGraph(uri, 3)
    _lose_versions(Path(uri, COMMITS_PATH))

    with pytest.raises(StorageError):
        omnigraph.open(uri, read_only=True).commits()


@pytest.mark.parametrize("version", OLD_FORMATS)
def test_opening_an_old_graph_to_write_migrates_main_and_the_next_commit_follows_the_last(
    uri: str, version: int
) -> None:
    old = OldGraph(uri, version, runs=RUNS if version < 3 else ())

    omnigraph.open(uri).close()

    assert_is_current(old)
    store = store_of(old)
    txn = begin(store)
    published = publish(store, plan(txn, append(store, txn, PERSON, [person("Dan")])))
    assert published.commit.parent_id == old.history[None][-1].commit_id
    assert names(old) == ["Ada", "Bob", "Dan"]


def test_the_first_write_to_an_old_branch_migrates_it(uri: str) -> None:
    old = OldGraph(uri, 2)
    old.fork("feature")
    old.commit("Cy", branch="feature", actor="carol")
    omnigraph.open(uri).close()
    assert state_of(old, "feature")[0] == 2

    store = store_of(old)
    txn = begin(store, "feature")
    published = publish(store, plan(txn, append(store, txn, PERSON, [person("Dan")])))

    assert state_of(old, "feature")[0] == 5
    assert omnigraph.open(uri).commits("feature") == [published.commit, *old.history["feature"][::-1]]
    assert published.commit.parent_id == old.history["feature"][-1].commit_id
    assert omnigraph.open(uri).commits() == old.history[None][::-1]


def test_a_publish_outlasts_a_migration_that_lost_to_others(uri: str) -> None:
    old = OldGraph(uri, 3)
    lineage = Lineage.new()
    won: list[str] = []

    def compete(operation: str, path: str) -> None:
        if operation == "stamp" and len(won) < ATTEMPTS:
            won.append(path)
            lance.dataset(path).update_schema_metadata({"rival": str(len(won))})

    with hooked(compete):
        published = Manifest(old.location).publish(None, Changes(), {}, lineage)

    assert len(won) == ATTEMPTS
    assert published.commit.parent_id == old.history[None][-1].commit_id
    assert Manifest(old.location).load().commits() == [*old.history[None], published.commit]


# A real graph of version 4 --------------------------------------------------------------------------


def commits_of(graph: omnigraph.Graph) -> dict[str, list[str]]:
    branches = ("main", "side", "kept")  # without the folds that a write may bring
    return {name: [one.commit_id for one in graph.commits(name) if not one.is_maintenance] for name in branches}


def people_of(graph: omnigraph.Graph, branch: str = "main", snapshot: str | None = None) -> list[str]:
    source = "query q() { match { $p: Person } return { $p.name as name } }"
    found = graph.query(source, branch=branch, snapshot=snapshot)
    return sorted(row["name"] for row in found.rows)


def test_a_real_graph_of_version_4_is_read_as_it_is(tmp_path: Path) -> None:
    root, then = unpacked(tmp_path / "graph")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    with observe.counted() as requests, omnigraph.open(root, read_only=True) as graph:
        assert commits_of(graph) == then["commits"]
        assert {name: people_of(graph, branch=name) for name in commits_of(graph)} == {
            name: then[name] for name in then["commits"]
        }

    assert requests.writes == 0
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_real_graph_of_version_4_is_migrated_branch_by_branch(tmp_path: Path) -> None:
    root, then = unpacked(tmp_path / "graph")
    graph = omnigraph.open(root)
    insert = 'query q() { insert Person { name: "new" } }'
    graph.mutate(insert)

    assert commits_of(graph)["main"][1:] == then["commits"]["main"]
    assert people_of(graph) == sorted([*then["main"], "new"])
    table = Manifest(Location.parse(root)).table
    assert [read_stamp(table.open(branch)) for branch in (None, "side", "kept")] == [5, 4, 4]
    middle = then["commits"]["main"][20]
    assert len(people_of(graph, snapshot=middle)) < len(then["main"])
    graph.mutate(insert, branch="kept")
    assert commits_of(graph)["kept"][1:] == then["commits"]["kept"]
    graph.merge("kept")
    assert {"k0", "new"} <= set(people_of(graph))
    state = Manifest(Location.parse(root)).load()
    assert state.graph_id == then["commits"]["main"][-1]
    assert len(state.segments) == 1
    assert sorted(one.commit_id for one in state.commits()) == sorted(commits_of(graph)["main"])
