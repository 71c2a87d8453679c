"""`cleanup`: what no kept commit, branch, tag or write under way needs goes, if it is confirmed; nothing else does."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.maintenance import CleanupResult
from omnigraph.api.progress import SilentProgress
from omnigraph.api.results import Commit
from omnigraph.commit.store import Store
from omnigraph.errors import DriftError, HistoryReclaimedError, OmnigraphError, RetentionError
from omnigraph.graph import Graph
from omnigraph.maintenance.retention import Policy
from omnigraph.manifest.rows import MANIFEST_PATH
from tests.maintenance.scene import KNOWS, PERSON, PLACE, add, people, table_of
from tests.support.faults import assert_settled, foreign_commit
from tests.support.graphs import contents

DAY = dt.timedelta(days=1)
LONG_AGO = time.time() - 30 * 86400


def readable(graph: Graph, commits: list[Commit]) -> list[bool]:
    """Of each commit whether all of it can be read, by a handle that remembers nothing."""
    fresh = omnigraph.open(graph.uri, read_only=True)
    return [_is_readable(fresh, commit.commit_id) for commit in commits]


def _is_readable(graph: Graph, commit_id: str) -> bool:
    try:
        list(graph.export(snapshot=commit_id))
    except HistoryReclaimedError as error:
        return error.commit_id != commit_id
    return True


def files(graph: Graph) -> set[Path]:
    return {path for path in Path(graph.uri).rglob("*") if path.is_file() and "__gates" not in path.parts}


def removed(done: CleanupResult) -> dict[str, int]:
    """How many versions of each table of the graph; the manifest keeps all that are young."""
    return {row.table_key: row.old_versions_removed for row in done.tables if row.table_key != MANIFEST_PATH}


def age(path: Path) -> None:
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        os.utime(one, (LONG_AGO, LONG_AGO))


def test_the_last_commits_can_be_read_and_older_ones_say_that_they_were_cleaned_up(graph: Graph, store: Store) -> None:
    commits, before = graph.commits(), contents(store)
    done = graph.cleanup(keep=4, confirm=True)
    assert readable(graph, commits) == [True] * 4 + [False] * (len(commits) - 4)
    assert contents(store) == before
    assert all(count > 0 for key, count in removed(done).items() if key != PLACE)
    assert_settled(store)


@pytest.mark.parametrize("keep", [0, 1])
def test_the_head_stays_and_can_be_written_to_whatever_is_kept(graph: Graph, keep: int) -> None:
    graph.cleanup(keep=keep, confirm=True)
    assert readable(graph, graph.commits()[:2]) == [True, False]
    add(graph, 50)
    assert len(people(graph)) == 7
    graph.optimize()
    graph.cleanup(keep=keep, confirm=True)
    assert len(people(omnigraph.open(graph.uri))) == 7


def test_without_confirmation_it_tells_what_would_go_and_touches_nothing(graph: Graph) -> None:
    before, sizes = files(graph), {path: path.stat().st_size for path in files(graph)}
    told = graph.cleanup(keep=1)
    assert files(graph) == before
    assert not told.confirmed
    done = graph.cleanup(keep=1, confirm=True)
    assert (told.tables, told.temporary) == (done.tables, done.temporary)
    assert sum(sizes[path] for path in before - files(graph)) == sum(row.bytes_removed for row in done.tables)
    assert removed(graph.cleanup(keep=1, confirm=True)) == {PERSON: 0, KNOWS: 0, PLACE: 0}


@pytest.mark.slow
def test_a_commit_goes_only_if_it_is_neither_young_nor_among_the_last(graph: Graph) -> None:
    commits = graph.commits()
    assert removed(graph.cleanup(older_than=DAY, confirm=True)) == {PERSON: 0, KNOWS: 0, PLACE: 0}
    graph.cleanup(keep=1, older_than=DAY, confirm=True)
    assert all(readable(graph, commits))
    graph.cleanup(keep=6, older_than=dt.timedelta(), confirm=True)
    assert readable(graph, commits) == [True] * 6 + [False] * (len(commits) - 6)
    graph.cleanup(older_than=dt.timedelta(), confirm=True)
    assert readable(graph, commits)[:2] == [True, False]


def test_an_age_beyond_the_calendar_keeps_everything(graph: Graph) -> None:
    commits = graph.commits()
    for age in (dt.timedelta(days=900_000), dt.timedelta.max):
        graph.cleanup(older_than=age, orphan_age=age, confirm=True)
    assert all(readable(graph, commits))


@pytest.mark.parametrize(
    "keep, hours, oldest",
    [(1, None, 9), (4, None, 6), (99, None, 0), (None, 0, 9), (None, 2.5, 6), (5, 2.5, 5), (2, 99, 0)],
)
def test_the_state_that_was_current_when_the_time_began_is_the_oldest_that_stays(
    keep: int | None, hours: float | None, oldest: int
) -> None:
    now = dt.datetime(2026, 1, 1, 9, tzinfo=dt.UTC)
    times = [int(now.replace(hour=at).timestamp() * 1e6) for at in range(10)]
    commits = [Commit(str(at), None, at, None, None, None, time) for at, time in enumerate(times)]
    age = None if hours is None else dt.timedelta(hours=hours)
    assert Policy(keep, age).oldest_kept(commits, now).commit_id == str(oldest)


@pytest.mark.parametrize("policy", [{}, {"keep": -1}, {"older_than": -DAY}], ids=str)
def test_it_must_be_told_what_to_keep(graph: Graph, policy: dict[str, object]) -> None:
    before = files(graph)
    with pytest.raises(RetentionError):
        graph.cleanup(**policy, confirm=True)  # type: ignore[arg-type]
    assert files(graph) == before


# What others need ----------------------------------------------------------------------------------


def test_what_a_branch_has_only_inherited_stays(graph: Graph) -> None:
    graph.create_branch("lazy", graph.commits()[4].commit_id)
    expected = people(graph, branch="lazy")
    graph.mutate("query q() { update Person set { age: 1 } where age >= 0 }")
    graph.optimize()
    graph.cleanup(keep=1, confirm=True)
    assert people(omnigraph.open(graph.uri), branch="lazy") == expected
    add(graph, 60, branch="lazy")
    assert len(people(graph, branch="lazy")) == len(expected) + 1


@pytest.mark.slow
def test_what_a_fork_was_made_from_stays(graph: Graph) -> None:
    graph.ensure_indices()
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    expected = people(graph, branch="feature")
    graph.load([{"type": "Person", "data": {"name": f"p{at}"}} for at in range(6)], mode="overwrite")
    for _ in range(2):
        graph.cleanup(keep=1, confirm=True)
    fresh = omnigraph.open(graph.uri)
    assert people(fresh, branch="feature") == expected
    add(fresh, 61, branch="feature")
    fresh.optimize("feature")
    fresh.cleanup(keep=1, confirm=True)
    assert len(people(omnigraph.open(graph.uri), branch="feature")) == len(expected) + 1


def test_what_a_tag_names_stays(graph: Graph) -> None:
    commits = graph.commits()
    graph.create_tag("release", commits[6].commit_id)
    graph.cleanup(keep=1, confirm=True)
    assert readable(graph, [commits[0], commits[3], commits[6]]) == [True, False, True]
    graph.delete_tag("release")
    graph.cleanup(keep=1, confirm=True)
    assert readable(graph, [commits[6]]) == [False]


class Branching(SilentProgress):
    """Makes a branch when the first table is done."""

    def __init__(self, graph: Graph, base: str) -> None:
        self._left = [(graph, base)]

    def advance(self, tasks: int, rows: int) -> None:  # noqa: ARG002 - the shape of a progress
        for graph, base in self._left:
            graph.create_branch("late", base)
        self._left = []


def test_a_branch_that_is_made_meanwhile_is_seen(graph: Graph) -> None:
    old, expected = graph.commits()[0].commit_id, people(graph)
    graph.mutate("query q() { update Person set { age: 1 } where age >= 0 }")
    graph.cleanup(keep=1, confirm=True, progress=Branching(omnigraph.open(graph.uri), old))
    assert people(omnigraph.open(graph.uri), branch="late") == expected


# What nobody needs ---------------------------------------------------------------------------------


def test_forks_of_branches_that_are_gone_go_and_those_of_live_ones_stay(graph: Graph, store: Store) -> None:
    graph.create_branch("live")
    add(graph, 60, branch="live")
    legitimate = table_of(graph, PERSON, "live").branch
    table = table_of(graph, PERSON)
    gone, fresh = (store.tables.fork(table, name).branch for name in ("gone", "live"))
    done = graph.cleanup(keep=100, confirm=True)
    [row] = [row for row in done.tables if row.table_key == PERSON]
    assert row.forks_removed == (gone,)
    assert store.tables.forks(table.path) == sorted([str(legitimate), str(fresh)]), "it may be about to be published"
    graph.cleanup(keep=100, confirm=True, orphan_age=dt.timedelta())
    assert store.tables.forks(table.path) == [legitimate]
    assert len(people(graph, branch="live")) == 7


def test_a_fork_stays_without_an_error_while_another_one_that_stays_was_made_from_it(
    graph: Graph, store: Store
) -> None:
    """The defect: cleanup tried to delete the parent, Lance refused, and the rest of the table was not cleaned."""
    graph.create_branch("parent")
    add(graph, 60, branch="parent")
    graph.create_branch("child", "parent")
    add(graph, 61, branch="child")
    parent, child = (str(table_of(graph, PERSON, name).branch) for name in ("parent", "child"))
    graph.delete_branch("child")
    graph.delete_branch("parent")
    graph.create_branch("child")  # its name is in use again: the fork may be about to be published

    kept = [graph.cleanup(keep=1, confirm=confirm) for confirm in (False, True)]
    assert [(row.error, row.forks_removed) for done in kept for row in done.tables if row.table_key == PERSON] == [
        (None, ())
    ] * 2
    assert removed(kept[1])[PERSON], "the versions of the table are cleaned up all the same"
    assert store.tables.forks(table_of(graph, PERSON).path) == sorted([parent, child])
    assert graph.doctor().is_healthy
    assert not [one for one in graph.doctor().findings if "deleted branch" in one.message], "a cleanup would not help"

    [row] = [row for row in _without_age(graph).tables if row.table_key == PERSON]
    assert (row.error, row.forks_removed) == (None, (child, parent))
    assert store.tables.forks(table_of(graph, PERSON).path) == []
    assert len(people(graph, branch="child")) == 6


def _without_age(graph: Graph) -> CleanupResult:
    return graph.cleanup(keep=1, confirm=True, orphan_age=dt.timedelta())


def test_files_of_dead_loads_and_dead_staging_go_when_they_are_old(graph: Graph, store: Store) -> None:
    table = table_of(graph, PERSON)
    staged = store.tables.stage_append(table, store.tables.open(table).to_table().slice(0, 1))
    store.tables.read_staged(staged)
    store.objects.write("__tmp/load-1/part/a", b"abc")
    new = files(graph)
    assert graph.cleanup(keep=100, confirm=True).temporary.files == 0
    assert files(graph) == new, "they may be those of a write that is under way"
    for path in new:
        age(path)
    done = graph.cleanup(keep=100, confirm=True)
    gone = {str(path.relative_to(graph.uri)).partition(os.sep)[2] for path in new - files(graph)}
    assert (done.temporary.files, done.temporary.size) == (1, 3)
    assert any("_versions" in name and "/d" in name for name in gone)
    assert any("/data/" in name for name in gone)
    assert len(people(omnigraph.open(graph.uri))) == 6


# What stands in the way ----------------------------------------------------------------------------


def test_what_fails_on_one_table_does_not_stop_the_others(graph: Graph, store: Store) -> None:
    path = Path(graph.uri, table_of(graph, KNOWS).path, "_versions")
    oldest = max(path.glob("*.manifest"), key=lambda one: one.name)
    kept = oldest.read_bytes()
    oldest.write_bytes(b"damaged")
    done = {row.table_key: row for row in graph.cleanup(keep=1, confirm=True).tables}
    assert done[KNOWS].error
    assert done[PERSON].error is None
    assert done[PERSON].old_versions_removed > 0
    oldest.write_bytes(kept)
    again = {row.table_key: row for row in graph.cleanup(keep=1, confirm=True).tables}
    assert again[KNOWS].error is None
    assert again[KNOWS].old_versions_removed > 0
    assert_settled(store)


def test_a_table_that_others_have_moved_is_refused_before_anything_goes(graph: Graph, store: Store) -> None:
    foreign_commit(store, PERSON)
    before = files(graph)
    with pytest.raises(DriftError):
        graph.cleanup(keep=1, confirm=True)
    assert files(graph) == before


def test_an_export_of_what_was_cleaned_up_says_so(graph: Graph) -> None:
    old = graph.commits()[6].commit_id
    graph.cleanup(keep=1, confirm=True)
    with pytest.raises(HistoryReclaimedError) as caught:
        list(omnigraph.open(graph.uri).export(snapshot=old))
    assert caught.value.commit_id == old
    assert isinstance(caught.value, OmnigraphError)


# Orphans -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["main", "feature"])
def test_files_of_a_write_that_was_killed_go_from_the_given_age_on(graph: Graph, store: Store, branch: str) -> None:
    graph.optimize()
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    graph.create_tag("v1")
    graph.cleanup(keep=100, confirm=True)  # what the compaction made and no commit needs
    table = table_of(graph, PERSON, branch)
    before = files(graph)
    rows = store.tables.open(table).to_table().slice(0, 1)
    for _ in range(2):
        store.tables.stage_append(table, rows)  # and never committed
    staged = {path for path in files(graph) - before if "/data/" in path.as_posix()}
    assert len(staged) == 2
    young = graph.cleanup(keep=100, confirm=True, orphan_age=dt.timedelta(hours=1))
    assert staged <= files(graph), "they may be those of a write that is under way"
    assert sum(row.bytes_removed for row in young.tables) == 0
    size = sum(path.stat().st_size for path in staged)
    preview = graph.cleanup(keep=100, orphan_age=dt.timedelta())
    assert staged <= files(graph)
    done = graph.cleanup(keep=100, confirm=True, orphan_age=dt.timedelta())
    assert done.tables == preview.tables
    [row] = [row for row in done.tables if row.table_key == PERSON]
    assert row.bytes_removed == size
    assert not staged & files(graph)
    assert {path for path in before if "/data/" in path.as_posix()} <= files(graph), "what a version names stays"
    fresh = omnigraph.open(graph.uri)
    assert (len(people(fresh)), len(people(fresh, branch="feature"))) == (6, 7)
    assert fresh.doctor(deep=True).is_healthy


def test_files_that_were_set_aside_go_when_they_are_old(graph: Graph) -> None:
    paths = [MANIFEST_PATH, table_of(graph, PERSON).path]
    torn = [Path(graph.uri, path, "_versions", "18446744073709551000.manifest.torn") for path in paths]
    for path in torn:
        path.write_bytes(b"half")
    graph.cleanup(keep=100, confirm=True)
    assert all(path.exists() for path in torn)
    preview = graph.cleanup(keep=100, orphan_age=dt.timedelta())
    assert graph.cleanup(keep=100, confirm=True, orphan_age=dt.timedelta()).tables == preview.tables
    assert not any(path.exists() for path in torn)
