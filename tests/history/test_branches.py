"""Branches: made without copying, changed without touching others, deleted without leaving anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

import omnigraph
from omnigraph.commit import failpoints
from omnigraph.errors import (
    BranchInUseError,
    BranchNotFoundError,
    CommitNotFoundError,
    MergeConflictError,
    OmnigraphError,
    ReadOnlyError,
    RefExistsError,
    RefNameError,
    StorageError,
)
from omnigraph.graph import Graph
from omnigraph.history.old_merges import MARK
from omnigraph.storage.observe import counted
from tests.history.people import acquaintances, ages, files, head, new_graph, records, refused, rows, run
from tests.support.faults import CrashError, crash, failing

EVE = 'insert Person { name: "Eve", age: 22 }'
EVERYBODY = "query all() { match { $p: Person } return { $p.name } }"
FAY = {"type": "Person", "data": {"name": "Fay"}}
KNOWS = 'insert Knows { from: "Alice", to: "Dan" }'


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return new_graph(tmp_path)


def forked(graph: Graph, branch: str) -> set[str]:
    """The tables of which a branch has a version of its own."""
    return {key for key, entry in graph.snapshot(branch).entries.items() if entry.table.owner == branch}


def forks(graph: Graph) -> set[str]:
    """The branches that tables have natively, whoever uses them."""
    tables = {entry.table.path for entry in graph.snapshot().entries.values()}
    return {name for path in tables for name in lance.dataset(f"{graph.uri}/{path}").branches.list()}


# Making and changing


def test_a_branch_begins_as_its_base_is_and_no_file_of_a_table_is_written(graph: Graph) -> None:
    before = [name for name in files(graph) if not name.startswith("__manifest")]
    commits = graph.commits()

    graph.create_branch("feature")

    assert graph.branches() == ["main", "feature"]
    assert rows(graph, "feature") == rows(graph)
    assert graph.commits("feature") == graph.commits() == commits
    assert [name for name in files(graph) if not name.startswith("__manifest")] == before


def test_a_change_on_a_branch_leaves_main_and_other_branches_as_they_are(graph: Graph) -> None:
    main = rows(graph)
    graph.create_branch("feature")
    graph.create_branch("other")

    run(graph, EVE, "feature")
    run(graph, 'update Person set { age: 31 } where name = "Alice"', "feature")
    run(graph, 'delete Person where name = "Bob"', "feature")

    assert ages(graph, "feature") == {"Alice": 31, "Carol": 40, "Dan": 50, "Eve": 22}
    assert acquaintances(graph, "feature") == []
    assert rows(graph) == rows(graph, "other") == main
    assert [commit.branch for commit in graph.commits("feature")][:3] == ["feature"] * 3


def test_a_change_of_main_is_not_seen_on_a_branch_that_was_made_before(graph: Graph) -> None:
    graph.create_branch("feature")
    before = rows(graph, "feature")

    run(graph, EVE)
    run(graph, 'delete Knows where from = "Bob"')

    assert rows(graph, "feature") == before


@pytest.mark.parametrize(
    "statements, written",
    [
        (KNOWS, {"edge:Knows"}),
        (EVE, {"node:Person"}),
        (EVE + 'insert Knows { from: "Eve", to: "Dan" }', {"edge:Knows", "node:Person"}),
        ('delete Person where name = "Dan"', {"node:Person"}),
        ('delete Person where name = "Bob"', {"edge:Knows", "node:Person"}),
    ],
)
def test_only_the_tables_that_are_written_are_forked(graph: Graph, statements: str, written: set[str]) -> None:
    graph.create_branch("feature")
    assert forked(graph, "feature") == set()

    run(graph, statements, "feature")

    assert forked(graph, "feature") == written
    assert len(forks(graph)) == len(written)


def test_a_second_change_goes_to_the_same_fork(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    first = graph.snapshot("feature").entries["node:Person"].table

    run(graph, 'delete Person where name = "Eve"', "feature")

    second = graph.snapshot("feature").entries["node:Person"].table
    assert (second.branch, second.version) == (first.branch, first.version + 1)


def test_a_change_that_is_refused_forks_nothing_that_counts(graph: Graph) -> None:
    graph.create_branch("feature")

    refused(graph, lambda: run(graph, 'insert Knows { from: "Alice", to: "Nobody" }', "feature"), "feature")

    assert forked(graph, "feature") == set()
    run(graph, KNOWS, "feature")
    assert len(acquaintances(graph, "feature")) == 2


def test_a_branch_of_a_branch_begins_as_that_is_and_goes_its_own_way(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")

    graph.create_branch("deeper", "feature")
    run(graph, 'update Person set { age: 23 } where name = "Eve"', "deeper")
    run(graph, KNOWS, "deeper")

    assert ages(graph, "deeper")["Eve"] == 23
    assert ages(graph, "feature")["Eve"] == 22
    assert "Eve" not in ages(graph)
    assert forked(graph, "deeper") == {"node:Person", "edge:Knows"}
    assert [commit.branch for commit in graph.commits("deeper")] == ["deeper", "deeper", "feature", None, None]


def test_a_branch_may_begin_at_a_tag_or_a_commit_of_the_past(graph: Graph) -> None:
    then = head(graph)
    graph.create_tag("start")
    run(graph, EVE)
    graph.create_branch("feature")
    run(graph, 'delete Person where name = "Dan"', "feature")

    graph.create_branch("at-tag", "start")
    graph.create_branch("at-commit", then)
    graph.create_branch("at-commit-of-branch", head(graph, "feature"))

    assert "Eve" not in ages(graph, "at-tag")
    assert rows(graph, "at-tag") == rows(graph, "at-commit")
    assert rows(graph, "at-commit-of-branch") == rows(graph, "feature")
    run(graph, 'delete Person where name = "Bob"', "at-commit-of-branch")


def test_another_handle_sees_a_branch_and_its_changes_at_once(graph: Graph) -> None:
    reader = omnigraph.open(graph.uri, read_only=True)
    graph.create_branch("feature")
    run(graph, EVE, "feature")

    assert reader.branches() == ["main", "feature"]
    assert "Eve" in ages(reader, "feature")


@pytest.mark.parametrize("act", ["create_branch", "delete_branch", "merge", "create_tag", "delete_tag", "revert"])
def test_a_handle_opened_read_only_changes_no_branch_or_tag(graph: Graph, act: str) -> None:
    graph.create_branch("feature")

    with pytest.raises(ReadOnlyError):
        getattr(omnigraph.open(graph.uri, read_only=True), act)("feature")


# Names


# Everything that takes the name of a branch.
APIS: dict[str, Callable[[Graph, str], object]] = {
    "create": lambda graph, name: graph.create_branch(name),
    "base": lambda graph, name: graph.create_branch("new", name),
    "delete": lambda graph, name: graph.delete_branch(name),
    "merge": lambda graph, name: graph.merge(name),
    "into": lambda graph, name: graph.merge("main", name),
    "context": lambda graph, name: graph.branch(name).__enter__(),
    "snapshot": lambda graph, name: graph.snapshot(name),
    "commits": lambda graph, name: graph.commits(name),
    "query": lambda graph, name: graph.query(EVERYBODY, branch=name),
    "mutate": lambda graph, name: graph.mutate(f"query q() {{ {EVE} }}", branch=name),
    "load": lambda graph, name: graph.load([FAY], mode="merge", branch=name),
    "load base": lambda graph, name: graph.load([FAY], mode="merge", branch="new", base=name),
    "export": lambda graph, name: list(graph.export(branch=name)),
    "revert": lambda graph, name: graph.revert(head(graph), name),
    "tag": lambda graph, name: graph.create_tag(name),
    "tagged": lambda graph, name: graph.create_tag("new", name),
    "untag": lambda graph, name: graph.delete_tag(name),
    "optimize": lambda graph, name: graph.optimize(name),
    "ensure_indices": lambda graph, name: graph.ensure_indices(name),
    "diff": lambda graph, name: graph.diff("main", name),
    "diff at": lambda graph, name: graph.diff(f"{name}@2", "main"),
    "outcome": lambda graph, name: graph.outcome("x", name),
    "embed": lambda graph, name: graph.embed(branch=name),
}
READS_A_STATE = {"base", "merge", "snapshot", "commits", "query", "load base", "export", "tagged", "diff", "diff at"}
RESERVED = ["__schema_apply_lock__", " __schema_apply_lock__", "main/x", " main/x"]
IMPOSSIBLE = ["", " ", "a..b", "a/", "/a", "a//b", ".", "a/./b", "-a", "a/-b", "a b", "a\\b", "a:b", "a@b", "a.lock"]


@pytest.mark.parametrize("api", APIS)
def test_a_name_that_no_branch_can_have_is_refused_wherever_one_is_named(graph: Graph, api: str) -> None:
    before = files(graph)
    names = [name for name in RESERVED + IMPOSSIBLE if "@" not in name or api not in READS_A_STATE]

    for name in names:
        with pytest.raises(RefNameError) as caught:
            APIS[api](graph, name)
        assert (caught.value.name.strip(), caught.value.http_status) == (name.strip(), 400)
        assert caught.value.hint

    assert files(graph) == before


def test_an_internal_branch_is_neither_listed_nor_used(graph: Graph) -> None:
    lance.dataset(f"{graph.uri}/__manifest").create_branch("__schema_apply_lock__")

    assert graph.branches() == ["main"]
    for act in APIS.values():
        with pytest.raises(RefNameError):
            act(graph, "__schema_apply_lock__")


def test_names_that_earlier_formats_kept_for_themselves_are_ordinary_ones(graph: Graph) -> None:
    graph.create_branch("__run__1")

    assert graph.branches() == ["main", "__run__1"]
    assert omnigraph.open(graph.uri).branches() == ["main", "__run__1"]


@pytest.mark.parametrize("name", ["x" * 181, "/".join("x" * 31), "ü" * 19])
def test_a_name_is_refused_before_it_is_too_long_for_a_file(graph: Graph, name: str) -> None:
    with pytest.raises(RefNameError, match="too long"):
        graph.create_branch(name)


@pytest.mark.parametrize(
    "name",
    ["x" * 180, "/".join("x" * 30), "ü" * 18, "agent/42", "a.b-c_d", "日本", "Main", "mainly/x", "tree", "_refs/data"],
)
def test_a_branch_of_any_other_name_can_be_made_changed_merged_and_deleted(graph: Graph, name: str) -> None:
    graph.create_branch(f"  {name} ")
    assert graph.branches() == ["main", name]
    run(graph, EVE, f" {name} ")

    graph.merge(name)
    graph.delete_branch(f" {name}")

    assert "Eve" in ages(graph)
    assert graph.branches() == ["main"]
    graph.cleanup(keep=100, confirm=True)
    assert forks(graph) == set()
    assert [file for file in files(graph) if "/tree/" in file] == []


@pytest.mark.parametrize("name", ["main", " main "])
def test_main_can_neither_be_made_nor_deleted(graph: Graph, name: str) -> None:
    with pytest.raises(RefNameError, match="already exists"):
        graph.create_branch(name)
    with pytest.raises(RefNameError, match="cannot be deleted"):
        graph.delete_branch(name)


@pytest.mark.parametrize("first, second", [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a/b", "a/b/c"), ("a", " a ")])
def test_a_name_is_taken_once_and_no_name_lies_below_another(graph: Graph, first: str, second: str) -> None:
    graph.create_branch(first)
    run(graph, EVE, first)

    with pytest.raises(RefExistsError):
        graph.create_branch(second)

    assert graph.branches() == ["main", first]
    assert "Eve" in ages(graph, first)


@pytest.mark.parametrize(
    "api", [api for api in APIS if api not in ("create", "context", "tag", "untag", "embed", "diff")]
)
def test_a_branch_that_is_not_there_is_not_found_wherever_one_is_named(graph: Graph, api: str) -> None:
    before = files(graph)

    with pytest.raises(BranchNotFoundError) as caught:
        APIS[api](graph, "nowhere")

    assert caught.value.branch == "nowhere"
    assert files(graph) == before


# Deleting


def test_a_cleanup_removes_the_forks_and_files_of_a_deleted_branch_and_nothing_else(graph: Graph) -> None:
    graph.create_branch("other")
    run(graph, EVE, "other")
    before, there = files(graph), rows(graph, "other")
    graph.create_branch("feature")
    run(graph, EVE + KNOWS, "feature")

    graph.delete_branch("feature")
    graph.cleanup(keep=100, confirm=True)

    assert graph.branches() == ["main", "other"]
    assert [name for name in files(graph) if name != MARK] == before
    assert rows(graph, "other") == there
    with pytest.raises(BranchNotFoundError):
        rows(graph, "feature")
    with pytest.raises(BranchNotFoundError):
        graph.delete_branch("feature")


def test_a_branch_from_which_others_were_made_is_deleted_after_them(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    graph.create_branch("leaf", "feature")
    graph.create_branch("sprout", head(graph, "feature"))
    graph.create_tag("there", "feature")

    with pytest.raises(BranchInUseError, match="branch 'leaf', branch 'sprout', tag 'there'") as caught:
        graph.delete_branch("feature")
    assert (caught.value.branch, caught.value.http_status) == ("feature", 409)
    assert rows(graph, "leaf") == rows(graph, "feature")

    graph.delete_branch("leaf")
    graph.delete_branch("sprout")
    with pytest.raises(BranchInUseError, match="needed by tag 'there'"):
        graph.delete_branch("feature")
    graph.delete_tag("there")
    graph.delete_branch("feature")
    assert graph.branches() == ["main"]


def test_a_branch_of_a_commit_needs_the_branch_that_made_it_and_no_other_that_is_at_it(graph: Graph) -> None:
    """The defect: it was tied to the first branch by name that had the commit, which then could not be deleted."""
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    graph.create_branch("aside", "feature")
    graph.create_branch("sprout", head(graph, "feature"))
    there = rows(graph, "feature")

    graph.delete_branch("aside")
    with pytest.raises(BranchInUseError, match="needed by branch 'sprout'"):
        graph.delete_branch("feature")
    assert rows(graph, "sprout") == there


def test_a_branch_can_be_made_again_and_has_nothing_of_the_one_before(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    graph.delete_branch("feature")

    graph.create_branch("feature")

    assert rows(graph, "feature") == rows(graph)
    run(graph, 'insert Person { name: "Fay" }', "feature")
    assert ages(graph, "feature").keys() - ages(graph).keys() == {"Fay"}


def test_a_long_lived_handle_sees_that_a_branch_is_another_one_of_its_name(graph: Graph) -> None:
    reader = omnigraph.open(graph.uri)
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    assert "Eve" in ages(reader, "feature")
    graph.delete_branch("feature")

    graph.create_branch("feature")
    run(graph, 'insert Person { name: "Fay" }', "feature")

    assert ages(reader, "feature").keys() - ages(graph).keys() == {"Fay"}
    run(reader, KNOWS, "feature")
    assert len(acquaintances(graph, "feature")) == 2


def test_a_name_is_free_while_the_forks_of_its_former_branch_are_there(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE + KNOWS, "feature")

    graph.delete_branch("feature")

    assert graph.branches() == ["main"]
    assert len(forks(graph)) == 2
    graph.create_branch("feature")
    run(graph, 'insert Person { name: "Fay" }', "feature")
    assert ages(graph, "feature").keys() - ages(graph).keys() == {"Fay"}
    graph.merge("feature")


def test_a_branch_is_gone_though_the_process_dies_before_its_forks_are(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")

    with failpoints.armed(failpoints.BRANCH_DELETED, crash), pytest.raises(CrashError):
        graph.delete_branch("feature")

    assert graph.branches() == ["main"]
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    assert "Eve" in ages(omnigraph.open(graph.uri), "feature")


def test_a_branch_that_cannot_be_deleted_is_whole(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    before = rows(graph, "feature")

    with failing("delete branch", "feature"), pytest.raises(StorageError):
        graph.delete_branch("feature")

    assert rows(graph, "feature") == before


def test_deleting_the_fork_of_a_branch_leaves_one_that_is_just_being_made(graph: Graph) -> None:
    """With `agent/1` lance removes the directory `agent`, and what it does not know of there."""
    graph.create_branch("agent/1")
    run(graph, EVE, "agent/1")
    graph.create_branch("agent/2")
    tables = graph._store.tables  # the moment between a fork and the commit that names it
    made = tables.fork(graph.snapshot().entries["node:Person"].table, "agent/2")
    ref = next(Path(graph.uri).glob(f"*/*/_refs/branches/*{(made.branch or '').partition('/')[0]}*"))
    hidden = ref.rename(ref.with_suffix(".hidden"))

    graph.delete_branch("agent/1")

    hidden.rename(ref)
    assert tables.open(made).count_rows() == 4


# Cost


def _of_many(folder: Path, count: int) -> Graph:
    types = "\n".join(f"node T{number} {{ name: String @key }}" for number in range(count))
    made = omnigraph.init(folder / str(count), types)
    made.mutate('query q() { insert T0 { name: "a" } }')
    return omnigraph.open(made.uri)


def test_making_a_branch_and_its_first_read_cost_the_same_whatever_the_number_of_types(tmp_path: Path) -> None:
    made, read = [], []
    for count in (3, 60):
        graph = _of_many(tmp_path, count)
        with counted() as requests:
            graph.create_branch("feature")
        made.append(requests.requests)
        with counted() as requests:
            graph.query("query q() { match { $t: T0 } return { $t.name } }", branch="feature")
        read.append(requests.requests)

    assert made[0] == made[1]
    assert read[0] == read[1]
    assert made[0].total < 40
    assert read[0].total < 20


# Working on a branch


def test_a_branch_that_is_worked_on_is_merged_and_deleted_in_the_end(graph: Graph) -> None:
    with graph.branch("agent/42", merge_into="main", actor="agent") as branch:
        branch.mutate(f"query q() {{ {EVE} }}")
        branch.load([{"type": "Person", "data": {"name": "Fay"}}], mode="append")
        assert branch.query(EVERYBODY).rows != graph.query(EVERYBODY).rows
        assert branch.snapshot() == graph.snapshot("agent/42")
        assert [commit.actor_id for commit in branch.commits()][:2] == ["agent", "agent"]

    assert ages(graph).keys() >= {"Eve", "Fay"}
    assert graph.branches() == ["main"]
    assert (graph.commits()[0].actor_id, records(graph)) == ("agent", [])


def test_a_branch_on_which_work_fails_is_left_as_it_is(graph: Graph) -> None:
    before = rows(graph)

    def work() -> None:
        with graph.branch("agent/42", merge_into="main") as branch:
            branch.mutate(f"query q() {{ {EVE} }}")
            raise CrashError

    with pytest.raises(CrashError):
        work()

    assert rows(graph) == before
    assert "Eve" in ages(graph, "agent/42")


def test_a_branch_that_contradicts_its_target_is_left_to_be_looked_at(graph: Graph) -> None:
    def work() -> None:
        with graph.branch("agent/42", merge_into="main") as branch:
            branch.mutate(f"query q() {{ {EVE} }}")
            run(graph, 'insert Person { name: "Eve", age: 99 }')

    with pytest.raises(MergeConflictError):
        work()

    assert ages(graph)["Eve"] == 99
    assert ages(graph, "agent/42")["Eve"] == 22


def test_a_branch_is_worked_on_again_and_brought_up_to_date(graph: Graph) -> None:
    with graph.branch("agent/42") as branch:
        branch.mutate(f"query q() {{ {EVE} }}")
    run(graph, 'insert Person { name: "Fay" }')

    with graph.branch(" agent/42 ", merge_into="main") as branch:
        branch.merge("main")
        assert ages(graph, "agent/42").keys() >= {"Eve", "Fay"}

    assert graph.branches() == ["main"]


def test_a_branch_that_others_were_made_from_stays_though_its_work_is_merged(
    graph: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    with graph.branch("agent/42", merge_into="main") as branch:
        branch.mutate(f"query q() {{ {EVE} }}")
        graph.create_branch("leaf", "agent/42")

    assert "Eve" in ages(graph)
    assert graph.branches() == ["main", "agent/42", "leaf"]
    assert "was merged, but not deleted" in caplog.text


def test_a_branch_is_worked_on_from_another_base(graph: Graph) -> None:
    graph.create_branch("review")
    run(graph, EVE, "review")

    with graph.branch("agent/42", base="review", merge_into="review") as branch:
        branch.mutate('query q() { update Person set { age: 23 } where name = "Eve" }')

    assert ages(graph, "review")["Eve"] == 23
    assert "Eve" not in ages(graph)


# Loading onto a new branch

NOBODY = {"edge": "Knows", "from": "Fay", "to": "Nobody"}


def test_a_load_makes_the_branch_it_is_for_of_the_base_it_names(graph: Graph) -> None:
    done = graph.load([FAY], mode="append", branch="nightly", base="main")

    assert (done.branch, done.base_branch, done.branch_created) == ("nightly", "main", True)
    assert "Fay" in ages(graph, "nightly")
    assert "Fay" not in ages(graph)
    again = graph.load([FAY], mode="merge", branch="nightly", base="main")
    assert (again.base_branch, again.branch_created) == ("main", False)


def test_a_load_begins_a_branch_as_another_one_is(graph: Graph) -> None:
    graph.create_branch("review")
    run(graph, EVE, "review")

    graph.load([FAY], mode="append", branch="nightly", base=" review ")

    assert ages(graph, "nightly").keys() >= {"Eve", "Fay"}


def test_a_load_that_is_refused_leaves_no_branch(graph: Graph) -> None:
    before = rows(graph)

    with pytest.raises(OmnigraphError, match="refused"):
        graph.load([FAY, NOBODY], mode="append", branch="nightly", base="main")

    assert graph.branches() == ["main"]
    assert rows(graph) == before


def test_a_check_of_a_load_makes_no_branch_and_checks_against_the_base(graph: Graph) -> None:
    before = files(graph)

    done = graph.load([FAY], mode="append", branch="nightly", base="main", dry_run=True)
    assert (done.branch, done.base_branch, done.branch_created) == ("nightly", "main", False)
    with pytest.raises(OmnigraphError, match=re.escape("not found in Person")):
        graph.load([NOBODY], mode="append", branch="nightly", base="main", dry_run=True)

    assert files(graph) == before


def test_without_a_base_a_load_makes_no_branch(graph: Graph) -> None:
    with pytest.raises(BranchNotFoundError):
        graph.load([FAY], mode="append", branch="nightly")
    with pytest.raises(BranchNotFoundError, match="nowhere"):
        graph.load([FAY], mode="append", branch="nightly", base="nowhere")
    graph.create_branch("a/b")
    with pytest.raises(RefExistsError):
        graph.load([FAY], mode="append", branch="a", base="main")

    assert graph.branches() == ["main", "a/b"]


def test_a_failed_load_leaves_a_branch_that_somebody_else_has_begun_to_use(graph: Graph) -> None:
    def somebody() -> None:
        run(omnigraph.open(graph.uri), EVE, "nightly")

    with failpoints.armed(failpoints.BRANCH_CREATED, somebody), pytest.raises(OmnigraphError, match="refused"):
        graph.load([NOBODY], mode="append", branch="nightly", base="main")

    assert "Eve" in ages(graph, "nightly")


# Commits of branches


def test_a_commit_of_a_branch_is_found_from_everywhere(graph: Graph) -> None:
    graph.create_branch("feature")
    run(graph, EVE, "feature")
    made = graph.commits("feature")[0]

    assert graph.commit(made.commit_id) == made
    found = graph.query(EVERYBODY, snapshot=made.commit_id)
    assert {"p.name": "Eve"} in found.rows
    graph.delete_branch("feature")
    with pytest.raises(CommitNotFoundError):
        graph.commit(made.commit_id)
