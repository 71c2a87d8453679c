"""The log: a bounded window of commits in the manifest, and all older ones in segments that are read when needed."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit.checks import OPERATION_WINDOW
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import CorruptGraphError, HistoryReclaimedError, OperationDoneError, StorageError
from omnigraph.lang.identity import new_id
from omnigraph.maintenance.cleanup import CleanupRequest, cleanup
from omnigraph.manifest.migrations import stamped
from omnigraph.manifest.publisher import Changes, Lineage, Manifest
from omnigraph.manifest.rows import COMMIT, SEGMENT, VERSION, MergedPast, TombstoneRow, VersionRow, encode, of_kind
from omnigraph.manifest.segments import DIRECTORY, FAN_OUT, LARGE, WINDOW, Segments
from omnigraph.manifest.state import ManifestState
from omnigraph.manifest.time_travel import state_at
from omnigraph.storage import observe, versions
from tests.support.graphs import COMPANY, PERSON, SCHEMA

MOST = 2 * WINDOW  # commits in the manifest


@pytest.fixture
def local(tmp_path: Path) -> Store:
    omnigraph.init(tmp_path / "graph", SCHEMA)
    return Store.at(Location.parse(tmp_path / "graph"))


def publish(store: Store, times: int = 1, branch: str | None = None) -> None:
    for _ in range(times):
        state = store.manifest.load(branch)
        number = state.actual_version(PERSON) + 1
        changes = Changes((VersionRow(PERSON, number, branch, number),))
        store.manifest.publish(branch, changes, {}, Lineage.new(), state)


def fresh(store: Store, branch: str | None = None) -> ManifestState:
    return Manifest(store.location).load(branch)


def segments_read(store: Store) -> list[str]:
    """Record the segments that are read from the storage from now on, by a manifest that has cached none."""
    store.manifest.log = Segments(store.location)
    store.manifest.forget()
    seen: list[str] = []
    reading = store.manifest.log._objects.read

    def read(name: str) -> bytes:
        seen.append(name)
        return reading(name)

    store.manifest.log._objects.read = read  # type: ignore[method-assign]
    return seen


# What stays and what goes ---------------------------------------------------------------------------


def test_the_manifest_stays_small_and_the_history_whole(local: Store) -> None:
    ids = [commit.commit_id for commit in local.manifest.load().commits()]
    for _ in range(WINDOW * FAN_OUT):
        publish(local)
        state = local.manifest.load()
        ids.append(state.graph_state.commit.commit_id)
        assert of_kind(state.rows, COMMIT).num_rows < MOST
        assert of_kind(state.rows, VERSION).num_rows < MOST + 4
        assert of_kind(state.rows, SEGMENT).num_rows < FAN_OUT
        assert len(list(state.dataset.get_fragments())) == 1

    again = fresh(local)
    assert again == local.manifest.load()
    assert [commit.commit_id for commit in again.commits()] == ids
    assert again.graph_id == ids[0]
    assert all(again.commit(one) for one in ids)
    versions = [row["table_version"] for row in again.history(VERSION).to_pylist() if row["table_key"] == PERSON]
    assert sorted(versions) == list(range(1, len(ids) + 1))


def test_segments_of_one_size_become_one(local: Store) -> None:
    publish(local, WINDOW * (FAN_OUT + 1))

    segments = fresh(local).segments
    assert [one.commits for one in segments] == [WINDOW * FAN_OUT]
    assert len(fresh(local).commits()) == WINDOW * (FAN_OUT + 1) + 1


def test_segments_come_newest_first(local: Store) -> None:
    publish(local, 4 * WINDOW)

    newest = [one.newest for one in fresh(local).segments]
    assert len(newest) > 1
    assert newest == sorted(newest, reverse=True)


def test_a_tombstone_leaves_when_it_hides_nothing(local: Store) -> None:
    local.manifest.publish(None, Changes((), (), (TombstoneRow(COMPANY, 1),)), {}, Lineage.new())
    publish(local, MOST)
    assert fresh(local).tombstones == {COMPANY: 1}
    assert COMPANY not in fresh(local).snapshot.entries

    local.manifest.publish(None, Changes((VersionRow(COMPANY, 2, None, 0),)), {COMPANY: 1}, Lineage.new())
    publish(local, MOST)

    assert fresh(local).tombstones == {}
    assert fresh(local).snapshot.entries[COMPANY].table.version == 2


def test_what_a_merge_brought_in_leaves_with_it(local: Store) -> None:
    past = MergedPast((fresh(local).graph_state.commit,)).to_document()
    lineage = Lineage("01J0000000000000000000000A", None, "x", 1, None, "side", past)
    local.manifest.publish(None, Changes(), {}, lineage)
    publish(local, MOST)

    state = fresh(local)
    assert "graph_merged_past" not in state.rows["object_type"].to_pylist()
    assert state.merged_past(lineage.commit_id) == MergedPast.of_document(past)
    assert state.merged_pasts() == [MergedPast.of_document(past)]


def test_a_large_merge_is_not_written_again_by_every_commit_that_follows(local: Store) -> None:
    commit = fresh(local).graph_state.commit
    past = MergedPast((replace(commit, actor_id="a" * LARGE),)).to_document()
    local.manifest.publish(None, Changes(), {}, Lineage("01J0000000000000000000000A", None, "x", 1, None, "side", past))
    assert fresh(local).rows.nbytes > LARGE

    publish(local)

    state = fresh(local)
    assert state.rows.nbytes < LARGE
    assert of_kind(state.rows, COMMIT).num_rows == 1
    assert len(state.commits()) == 3
    assert state.merged_pasts() == [MergedPast.of_document(past)]


def test_a_branch_inherits_segments_by_name_and_goes_on_by_itself(local: Store) -> None:
    publish(local, MOST)
    local.manifest.create_branch("side", local.manifest.load())
    inherited = fresh(local).segments
    publish(local, MOST, "side")
    publish(local, 1)

    assert set(inherited) < set(fresh(local, "side").segments)
    assert fresh(local).segments == inherited
    assert len(fresh(local, "side").commits()) == 2 * MOST + 1
    assert fresh(local, "side").graph_id == fresh(local).graph_id


def test_a_past_state_has_the_history_of_its_time(local: Store) -> None:
    publish(local, 3 * MOST)
    commits = fresh(local).commits()

    for at in (0, 1, WINDOW, MOST, len(commits) - 2):
        assert state_at(local.manifest, commits[at]).commits() == commits[: at + 1]


# What is read when ----------------------------------------------------------------------------------


def test_a_commit_reads_no_segment_and_a_search_only_those_that_can_answer(local: Store) -> None:
    publish(local, 3 * MOST)
    commits = fresh(local).commits()
    seen = segments_read(local)

    publish(local)
    state = local.manifest.load()
    assert state.commit(commits[-1].commit_id) == commits[-1]
    assert state.commit(Lineage.new().commit_id) is None
    assert state.commit_of_operation("none", OPERATION_WINDOW) is None
    assert state.merged_pasts() == []
    assert seen == []

    assert state.commit(commits[0].commit_id) == commits[0]
    assert [one.commit_id for one in state.commits_like(commits[0].commit_id[:24].lower())] == [commits[0].commit_id]
    assert len(seen) == 1

    assert len(state.commits()) == 3 * MOST + 2
    assert len(seen) == len(state.segments)
    assert local.manifest.load().commits() == state.commits()
    assert len(seen) == len(state.segments), "a segment is read once"


def test_an_operation_id_is_recognized_long_after_it_left_the_manifest(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    insert = "query q($name: String) { insert Person { name: $name } }"
    operation = new_id()
    done = graph.as_operation(operation).mutate(insert, {"name": "first"}).commit
    manifest = Manifest(Location.parse(tmp_path / "graph"))
    for _ in range(MOST):
        manifest.publish(None, Changes(), {}, Lineage.new())

    with pytest.raises(OperationDoneError) as failed:
        graph.as_operation(operation).mutate(insert, {"name": "again"})

    assert done is not None
    assert failed.value.commit_id == done.commit_id
    assert graph.outcome(operation) == done


def test_operation_ids_are_not_searched_for_beyond_their_window(local: Store) -> None:
    local.manifest.publish(None, Changes(), {}, Lineage.new(operation_id="old"))
    publish(local, 3 * MOST)
    state = fresh(local)

    assert state.commit_of_operation("old") is not None
    assert state.commit_of_operation("old", WINDOW) is None


# Files ----------------------------------------------------------------------------------------------


def segment_files(store: Store) -> list[Path]:
    return sorted(Path(store.location.child(DIRECTORY)).iterdir())


@pytest.mark.parametrize("content", [b"", b"ARROW1 and no more"])
def test_a_damaged_segment_is_named(local: Store, content: bytes) -> None:
    publish(local, MOST)
    [file] = segment_files(local)
    file.write_bytes(content)

    with pytest.raises(CorruptGraphError, match=file.name) as failed:
        fresh(local).commits()
    assert failed.value.hint
    assert fresh(local).head == local.manifest.load().head


def test_a_lost_segment_is_an_error_and_doctor_names_it(local: Store) -> None:
    publish(local, MOST)
    [file] = segment_files(local)
    file.unlink()

    with pytest.raises(StorageError, match=file.name):
        fresh(local).commits()
    with omnigraph.open(local.location.uri, read_only=True) as graph:
        assert f"{DIRECTORY}/{file.name}" in [one.subject for one in graph.doctor().findings]


def test_cleanup_removes_segments_that_no_version_names(tmp_path: Path) -> None:
    omnigraph.init(tmp_path / "graph", SCHEMA)
    store = Store.at(Location.parse(tmp_path / "graph"))
    for _ in range(MOST):
        store.manifest.publish(None, Changes(), {}, Lineage.new())
    [named] = [one.name for one in store.manifest.load().segments]
    orphan = store.manifest.log.write(store.manifest.load().history(COMMIT)).name
    commits = store.manifest.load().commits()
    old = time.time() - 30 * 86400
    for file in segment_files(store):
        os.utime(file, (old, old))

    preview = cleanup(store, CleanupRequest(keep=1000))
    assert preview.temporary.files == 1
    cleanup(store, CleanupRequest(keep=1, confirm=True, manifest_age=dt.timedelta()))

    assert not store.objects.exists(orphan)
    assert store.objects.exists(named)
    assert fresh(store).commits() == commits


# The swap -------------------------------------------------------------------------------------------


def removed(store: Store, versions: list[int]) -> None:
    done = store.manifest.table.open().cleanup_old_versions(versions=versions, error_if_tagged_old_versions=False)
    assert done.old_versions == len(versions)


@pytest.mark.parametrize("keep_base", [True, False])
@pytest.mark.parametrize("same_process", [True, False])
def test_a_swap_behind_the_head_is_noticed_and_made_again(
    local: Store, monkeypatch: pytest.MonkeyPatch, *, keep_base: bool, same_process: bool
) -> None:
    """Lance reports success when the versions after the handle were cleaned up: the change would be lost."""
    publish(local)
    stale = local.manifest.load()
    seen = dict(versions._listed)
    publish(local, 5)
    head = local.manifest.load().version
    removed(local, list(range(stale.version + (1 if keep_base else 0), head)))
    if not same_process:
        monkeypatch.setattr(versions, "_listed", seen)

    lineage = Lineage.new("late")
    published = local.manifest.publish(None, Changes((VersionRow(COMPANY, 2, None, 0),)), {COMPANY: 1}, lineage, stale)

    assert published.commit.manifest_version == head + 1 == fresh(local).version
    assert fresh(local).head == published.commit
    assert fresh(local).actual_version(PERSON) == 7
    assert not local.manifest.table.tag_of(stale.version + 1), "the version behind the head is gone again"


def test_a_version_that_was_left_behind_the_head_is_not_taken_for_a_past_state(local: Store) -> None:
    publish(local, 6)
    commits = local.manifest.load().commits()
    stale = local.manifest.load(None, 3)
    removed(local, [4, 5])
    table = local.manifest.table
    table.swap(stale.dataset, table.stage(stale.dataset, stamped(stale.rows_with(encode([])))))
    assert fresh(local).version == 7

    with pytest.raises(HistoryReclaimedError):
        state_at(local.manifest, commits[3])


def test_a_publish_whose_base_is_cleaned_up_right_after_it_stands(local: Store) -> None:
    publish(local, 3)
    base = local.manifest.load()
    hooks: list[str] = []
    table = local.manifest.table
    real = table.newest_few

    def look(branch: str | None, count: int) -> list[tuple[int, str]]:
        if count > 1 and not hooks:
            hooks.append("cleaned")
            removed(local, list(range(2, base.version + 1)))
        return real(branch, count)

    table.newest_few = look  # type: ignore[method-assign]
    published = local.manifest.publish(None, Changes(), {}, Lineage.new(), base)

    assert hooks
    assert fresh(local).head == published.commit


def test_a_reader_whose_version_is_cleaned_up_while_it_reads_reads_the_next(local: Store) -> None:
    publish(local, 2)
    reader = Manifest(local.location)
    opened = reader.table.open
    done: list[int] = []

    def open_slowly(branch: str | None = None, version: int | None = None) -> object:
        dataset = opened(branch, version)
        if not done:
            done.append(int(dataset.version))
            publish(local, 2)
            removed(local, [int(dataset.version)])
        return dataset

    reader.table.open = open_slowly  # type: ignore[method-assign,assignment]

    assert reader.load().version == local.manifest.load().version
    assert done


def test_writers_and_a_cleanup_without_any_age_lose_nothing(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    uri, stop = tmp_path / "graph", threading.Event()
    insert = "query q($name: String) { insert Person { name: $name } }"
    failed: list[Exception] = []

    def clean() -> None:
        store = Store.at(Location.parse(uri))
        while not stop.is_set():
            try:
                cleanup(store, CleanupRequest(keep=1, confirm=True, manifest_age=dt.timedelta()))
            except Exception as error:  # noqa: BLE001 - the test shows it
                failed.append(error)
                return

    thread = threading.Thread(target=clean)
    thread.start()
    for number in range(10):
        graph.mutate(insert, {"name": f"p{number}"})
        assert len(omnigraph.open(uri, read_only=True).commits()) == number + 2
    stop.set()
    thread.join(120)

    assert failed == []
    assert len(graph.commits()) == 11
    found = graph.query("query q() { match { $p: Person } return { count($p) as n } }")
    assert found.rows == [{"n": 10}]


def test_the_rows_of_a_segment_say_what_is_in_it(local: Store) -> None:
    publish(local, MOST)
    [row] = of_kind(fresh(local).rows, SEGMENT).to_pylist()
    [file] = segment_files(local)

    assert row["object_id"] == f"{DIRECTORY}/{file.name}"
    assert json.loads(row["metadata"])["size"] == file.stat().st_size
    with observe.counted() as requests:
        fresh(local)
    assert requests.writes == 0
