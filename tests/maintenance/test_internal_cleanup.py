"""Old versions of the manifest go with the commits that they are the states of; what anybody may need stays."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.maintenance import CleanupResult, TableCleanup
from omnigraph.commit import failpoints
from omnigraph.commit.store import Store
from omnigraph.errors import HistoryReclaimedError, OmnigraphError
from omnigraph.graph import Graph
from omnigraph.manifest.rows import MANIFEST_PATH
from tests.maintenance.scene import add, cleaned, manifest_versions, people
from tests.support.faults import assert_settled
from tests.support.mutations import once_prepared, store_of

UPDATE = "query q() { update Person set { age: 1 } where age >= 0 }"


def of_manifest(done: CleanupResult) -> TableCleanup:
    [row] = [row for row in done.tables if row.table_key == MANIFEST_PATH]
    return row


def is_readable(graph: Graph, commit_id: str) -> bool:
    try:
        omnigraph.open(graph.uri, read_only=True).query(
            "query q() { match { $p: Person } return { count($p) as n } }", snapshot=commit_id
        )
    except HistoryReclaimedError as error:
        return error.commit_id != commit_id
    return True


def test_the_versions_of_kept_commits_stay_and_no_others(graph: Graph, store: Store) -> None:
    commits = graph.commits()
    before = len(manifest_versions(store))
    done = of_manifest(cleaned(store, keep=3))
    assert set(manifest_versions(store)) == {commit.manifest_version for commit in commits[:3]} | {
        store.manifest.load().version
    }
    assert done.old_versions_removed == before - len(manifest_versions(store))
    assert done.bytes_removed > 0
    assert [is_readable(graph, commit.commit_id) for commit in commits] == [True] * 3 + [False] * (len(commits) - 3)
    fresh = omnigraph.open(graph.uri)
    assert [commit.commit_id for commit in fresh.commits()] == [commit.commit_id for commit in commits]
    add(fresh, 50)
    assert len(people(fresh)) == 7
    assert_settled(store)


def test_whatever_asks_for_a_state_that_is_gone_is_told_so(graph: Graph, store: Store) -> None:
    commits = graph.commits()
    old, head = commits[-3].commit_id, commits[0].commit_id
    cleaned(store, keep=1)
    fresh = omnigraph.open(graph.uri)
    asked: dict[str, Callable[[], object]] = {
        "query": lambda: people(fresh, snapshot=old),
        "at": lambda: fresh.at(old).query("query q() { match { $p: Person } return { $p.name } }"),
        "export": lambda: list(fresh.export(snapshot=old)),
        "diff": lambda: fresh.diff(old, head).stats(),
        "changes": lambda: fresh.changes(after=old),
        "branch": lambda: fresh.create_branch("late", old),
        "tag": lambda: fresh.create_tag("late", old),
        "revert": lambda: fresh.revert(commits[-4].commit_id),
    }
    for ask in asked.values():
        with pytest.raises(HistoryReclaimedError):
            ask()
    assert fresh.branches() == ["main"]


def test_young_versions_stay_whatever_is_kept(graph: Graph, store: Store) -> None:
    before = manifest_versions(store)
    assert of_manifest(graph.cleanup(keep=1, confirm=True)).old_versions_removed == 0
    assert manifest_versions(store) == before
    old = time.time() - 2 * 86400
    for path in Path(graph.uri, MANIFEST_PATH, "_versions").iterdir():
        os.utime(path, (old, old))
    told = of_manifest(graph.cleanup(keep=1))
    assert manifest_versions(store) == before
    assert of_manifest(graph.cleanup(keep=1, confirm=True)) == told
    assert told.old_versions_removed == len(before) - len(manifest_versions(store)) > 0


def test_a_longer_past_can_be_asked_for_after_a_shorter_one(graph: Graph, store: Store) -> None:
    cleaned(store, keep=2)
    add(graph, 50)
    left = manifest_versions(store)
    assert of_manifest(cleaned(store, keep=100)).error is None
    assert manifest_versions(store) == left
    assert [is_readable(graph, commit.commit_id) for commit in graph.commits()[:4]] == [True, True, True, False]


def test_a_removal_that_stopped_half_way_does_not_stop_the_next(graph: Graph, store: Store) -> None:
    """The files of a state are gone, and its version is still there."""
    graph.optimize()
    needed = {file.path for one in store.manifest.load().dataset.get_fragments() for file in one.data_files()}
    data = [path for path in Path(graph.uri, MANIFEST_PATH, "data").iterdir() if path.name not in needed]
    assert data
    for path in data:
        path.unlink()
    assert not is_readable(graph, graph.commits()[-2].commit_id)
    assert of_manifest(cleaned(store, keep=100)).error is None
    assert of_manifest(cleaned(store, keep=1)).old_versions_removed > 0
    assert len(people(omnigraph.open(graph.uri))) == 6


# What somebody needs -------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_tag_names_and_what_a_branch_began_at_stays(graph: Graph, store: Store) -> None:
    commits = graph.commits()
    graph.create_tag("release", commits[6].commit_id)
    graph.create_branch("lazy", commits[4].commit_id)
    graph.create_branch("busy", commits[5].commit_id)
    add(graph, 60, branch="busy")
    expected = {name: people(graph, branch=name) for name in ("lazy", "busy")}
    graph.mutate(UPDATE)
    graph.optimize()
    for _ in range(2):
        cleaned(store, keep=1)
    fresh = omnigraph.open(graph.uri)
    assert {name: people(fresh, branch=name) for name in expected} == expected
    assert [tag.commit.commit_id for tag in fresh.tags()] == [commits[6].commit_id]
    assert is_readable(graph, commits[6].commit_id)
    assert not is_readable(graph, commits[8].commit_id)
    for name in expected:
        add(fresh, 70, branch=name)
        fresh.merge(name, "main")
    assert "p70" in {row["p.name"] for row in people(fresh)}
    assert_settled(store)


def test_branches_can_be_merged_after_a_cleanup_as_before_it(graph: Graph, store: Store) -> None:
    """What both have in common is neither a head nor where one of them began."""
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    add(graph, 61)
    graph.merge("main", "feature")
    graph.mutate('query q() { delete Person where name = "p61" }', branch="feature")
    for at in range(62, 65):
        add(graph, at)
    add(graph, 65, branch="feature")
    cleaned(store, keep=1)
    fresh = omnigraph.open(graph.uri)
    fresh.merge("feature", "main")
    assert {row["p.name"] for row in people(fresh)} == {f"p{at}" for at in (*range(6), 60, 62, 63, 64, 65)}


def test_a_common_past_that_is_gone_all_the_same_is_not_passed_over(graph: Graph) -> None:
    """To go by an older one would bring back what was deleted since."""
    graph.create_branch("feature")
    base = graph.commits()[0]
    add(graph, 60, branch="feature")
    add(graph, 61)
    [file] = [one for one in _manifest_files(graph) if one.name.startswith(f"{2**64 - 1 - base.manifest_version:020d}")]
    file.unlink()
    with pytest.raises(HistoryReclaimedError) as caught:
        omnigraph.open(graph.uri).merge("feature", "main")
    assert caught.value.commit_id == base.commit_id


def _manifest_files(graph: Graph) -> list[Path]:
    return list(Path(graph.uri, MANIFEST_PATH, "_versions").iterdir())


def test_what_a_record_of_recovery_needs_stays(graph: Graph, store: Store) -> None:
    """A writer dies after its commit is visible, while a cleanup is under way, and others write on."""
    other = omnigraph.open(graph.uri)
    before = manifest_versions(store)

    def dying() -> None:
        with failpoints.armed(failpoints.PUBLISH_AFTER_MANIFEST, _die), pytest.raises(Killed):
            add(other, 70)

    row = of_manifest(cleaned(store, dying, keep=1))
    assert "stopped half-way" in str(row.error)
    assert manifest_versions(store)[: len(before)] == before
    fresh = omnigraph.open(graph.uri)
    assert len(people(fresh)) == 7
    assert of_manifest(cleaned(store, keep=1)).error is None
    assert_settled(store)


class Killed(BaseException):
    """Stands for the end of a process: no code of ours catches it."""


def _die() -> None:
    raise Killed


# Others who write ----------------------------------------------------------------------------------


def test_a_write_under_way_lands_once_whatever_was_removed_since_it_began(graph: Graph, store: Store) -> None:
    other = omnigraph.open(graph.uri)

    def meanwhile() -> None:
        for at in range(70, 73):
            add(other, at)
        other.optimize()
        cleaned(store_of(graph.uri), keep=1)

    with once_prepared(meanwhile):
        add(graph, 60)
    names = [row["p.name"] for row in people(omnigraph.open(graph.uri))]
    assert sorted(names) == sorted(f"p{at}" for at in (*range(6), 60, 70, 71, 72))
    assert len(manifest_versions(store)) < 8
    assert_settled(store)


def test_commits_that_come_while_it_runs_are_not_judged_by_what_was_seen_before(graph: Graph, store: Store) -> None:
    other = omnigraph.open(graph.uri)

    def meanwhile() -> None:
        for at in range(70, 73):
            add(other, at)

    cleaned(store, meanwhile, keep=3)
    assert [is_readable(graph, commit.commit_id) for commit in graph.commits()[:3]] == [True] * 3


def test_the_record_of_recoveries_is_cleaned_up_as_well(graph: Graph, store: Store) -> None:
    for at in range(60, 63):
        with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, _die), pytest.raises(Killed):
            add(omnigraph.open(graph.uri), at)
        graph = omnigraph.open(graph.uri)
    rows = store.audit.rows()
    assert len(rows) == 3
    removed = {row.table_key: row for row in cleaned(store, keep=1).tables}["_graph_commit_recoveries.lance"]
    assert (removed.old_versions_removed, removed.error) == (2, None)
    assert store.audit.rows() == rows
    with pytest.raises(OmnigraphError):
        graph.cleanup(older_than=dt.timedelta(-1))
