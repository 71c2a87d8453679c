"""`omnigraph branch`, `tag` and `revert`: their options, their exit codes, and what they print."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from omnigraph.cli.address import Storage
from omnigraph.graph import Graph
from tests.history.people import ages, head, new_graph, rows, run
from tests.support.cli import Run, command, error_on_stdout, quick_program

EVE = 'insert Person { name: "Eve", age: 22 }'
OLDER = 'update Person set { age: 31 } where name = "Alice"'
OLDEST = 'update Person set { age: 32 } where name = "Alice"'


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A graph named `g` in the working directory, with a branch that has Eve."""
    monkeypatch.chdir(tmp_path)
    made = new_graph(tmp_path)
    made.create_branch("feature")
    run(made, EVE, "feature")
    return made


@pytest.fixture
def clashing(graph: Graph) -> Graph:
    """The branch and main differ over Alice."""
    run(graph, OLDER, "feature")
    run(graph, OLDEST)
    return graph


def echo(label: str, uri: str = "g") -> str:
    return f"omnigraph {label} → {uri} (direct, local)\n"


# branch create, list, delete


def test_a_branch_is_made_from_main_and_the_target_is_told(graph: Graph) -> None:
    assert quick_program("branch", "create", "agent/1", "--uri", "g") == Run(
        0, "created branch agent/1 from main\n", echo("branch create")
    )
    assert rows(graph, "agent/1") == rows(graph)


def test_a_branch_is_made_from_what_is_named_and_told_as_a_document(graph: Graph) -> None:
    done = command("branch", "create", " leaf ", "--uri", "g", "--from", "feature", "--as", "eve", "--json", "--quiet")

    assert (done.code, done.err) == (0, "")
    assert done.document == {"uri": "g", "from": "feature", "name": "leaf", "actor_id": "eve"}
    assert "Eve" in ages(graph, "leaf")


@pytest.mark.parametrize("address", [["--uri", "g"], ["--store", "g"], ["g"]])
def test_branches_are_listed_by_name_wherever_the_graph_is_named(graph: Graph, address: list[str]) -> None:
    graph.create_branch("a")

    assert command("branch", "list", *address) == Run(0, "a\nfeature\nmain\n", "")
    assert command("branch", "list", *address, "--json").document == {"branches": ["a", "feature", "main"]}


def test_a_branch_is_deleted(graph: Graph) -> None:
    assert command("branch", "delete", "feature", "--uri", "g") == Run(
        0, "deleted branch feature\n", echo("branch delete")
    )
    graph.create_branch("again")
    done = command("branch", "delete", "again", "--uri", "g", "--json", "--as", "eve", "--yes")
    assert done.document == {"uri": "g", "name": "again", "actor_id": "eve"}
    assert graph.branches() == ["main"]


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["create", "main"], "branch 'main' already exists"),
        (["create", "feature"], "branch 'feature' already exists"),
        (["create", "feature/x"], "one name lies below the other"),
        (["create", "__schema_apply_lock__"], "it is reserved"),
        (["create", "x", "--from", "nowhere"], "no branch, tag or commit 'nowhere'"),
        (["delete", "main"], "'main' cannot be deleted"),
        (["delete", "nowhere"], "branch 'nowhere' not found"),
        (["merge", "main"], "cannot be merged into itself"),
        (["merge", "nowhere"], "no branch, tag or commit 'nowhere'"),
        (["merge", "feature", "--into", "nowhere"], "branch 'nowhere' not found"),
        (["merge", "feature", "--resolve", "Persn=ours"], "unknown type 'Persn'"),
        (["merge", "feature", "--resolve", "Person=mine"], "'mine' is not a side"),
        (["merge", "feature", "--resolve", "missing.json"], "cannot read missing.json"),
    ],
)
def test_what_cannot_be_done_ends_with_1_and_says_why(graph: Graph, arguments: list[str], problem: str) -> None:
    before = graph.branches()

    done = command("branch", *arguments, "--uri", "g")

    assert (done.code, done.out) == (1, "")
    assert problem in done.err
    assert graph.branches() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["branch", "create", "--uri", "g"],
        ["branch", "create", "x", "g", "--uri", "g"],
        ["branch", "merge", "feature", "g", "--ours", "--theirs"],
        ["branch", "merge", "--uri", "g"],
        ["branch", "list", "g", "--from", "main"],
        ["tag", "create"],
        ["revert", "--uri", "g"],
    ],
)
@pytest.mark.usefixtures("graph")
def test_a_wrong_command_line_ends_with_2(arguments: list[str]) -> None:
    assert command(*arguments).code == 2


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_deleting_from_a_place_that_others_share_needs_a_word_more(more: list[str]) -> None:
    done = command("branch", "delete", "feature", "--uri", "s3://bucket/g", *more)

    assert (done.code, error_on_stdout(done)) == (1, bool(more))
    assert done.err == "s3://bucket/g is not local\nhint: add --yes to remove data from it without a question"


@pytest.mark.parametrize(
    "address, local", [("g", True), ("/a/b", True), ("file:///a", True), ("s3://b/g", False), ("gs://b/g", False)]
)
def test_an_address_without_a_scheme_or_of_a_file_is_local(address: str, local: bool) -> None:  # noqa: FBT001
    assert Storage(address).is_local is local


# branch merge


def test_a_merge_tells_its_outcome_in_a_line(graph: Graph) -> None:
    merge = ("branch", "merge", "feature", "--uri", "g")

    assert quick_program(*merge) == Run(0, "merged feature into main: fast_forward\n", echo("branch merge"))
    assert command(*merge, "--quiet") == Run(0, "merged feature into main: already_up_to_date\n", "")
    run(graph, OLDER, "feature")
    run(graph, 'delete Person where name = "Dan"')
    assert command(*merge, "--quiet") == Run(0, "merged feature into main: merged\n", "")


def test_a_merge_into_another_branch_is_told_as_a_document(graph: Graph) -> None:
    graph.create_branch("review")

    done = command("branch", "merge", "feature", "g", "--into", "review", "--as", "eve", "--json")

    commit = done.document.pop("commit")
    assert {**done.document, "commit": commit["graph_commit_id"]} == {
        "source": "feature",
        "target": "review",
        "outcome": "fast_forward",
        "actor_id": "eve",
        "changes": {"node:Person": {"inserted": 1, "updated": 0, "deleted": 0}},
        "conflicts": [],
        "compared": [],
        "commit": head(graph, "review"),
        "source_commit": head(graph, "feature"),
        "target_commit": head(graph),
    }
    assert graph.commits("review")[0].actor_id == "eve"


def test_a_merged_branch_is_deleted_on_request(graph: Graph) -> None:
    done = command("branch", "merge", "feature", "--uri", "g", "--delete-branch", "--quiet")

    assert done == Run(0, "merged feature into main: fast_forward\ndeleted branch feature\n", "")
    assert graph.branches() == ["main"]


def test_a_refused_deletion_after_a_merge_is_a_warning(graph: Graph) -> None:
    graph.create_branch("leaf", "feature")
    merge = ("branch", "merge", "feature", "--uri", "g", "--delete-branch", "--quiet")

    done = command(*merge)
    again = command(*merge, "--json")

    assert (done.code, done.out) == (0, "merged feature into main: fast_forward\n")
    assert done.err == (
        "warning: branch feature was merged, but not deleted: branch 'feature' is needed by branch 'leaf'\n"
    )
    assert again.document["branch_deleted"] is False
    assert again.document["branch_delete_error"] == "branch 'feature' is needed by branch 'leaf'"
    assert "Eve" in ages(graph)


def test_a_deletion_that_worked_has_no_error_in_the_document(graph: Graph) -> None:
    done = command("branch", "merge", "feature", "--uri", "g", "--delete-branch", "--json")

    assert (done.document["branch_deleted"], done.document["branch_delete_error"]) == (True, None)
    assert graph.branches() == ["main"]


def test_a_preview_counts_what_would_come_and_changes_nothing(graph: Graph) -> None:
    before = graph.commits()

    done = command("branch", "merge", "feature", "--uri", "g", "--dry-run", "--delete-branch")

    assert done == Run(
        0,
        "would merge feature into main: fast_forward\nnode:Person: 1 inserted, 0 updated, 0 deleted\n",
        "",
    )
    assert (graph.commits(), graph.branches()) == (before, ["main", "feature"])


@pytest.mark.usefixtures("clashing")
def test_a_preview_of_a_merge_that_would_be_refused_ends_with_1_and_names_the_conflicts() -> None:
    done = command("branch", "merge", "feature", "--uri", "g", "--dry-run")
    document = command("branch", "merge", "feature", "--uri", "g", "--dry-run", "--json")

    assert done.code == document.code == 1
    assert done.out.splitlines()[-1] == (
        "conflict divergent_update: Person 'Alice' was changed differently on both sides: age"
    )
    assert document.document["dry_run"] is True
    assert [one["row_id"] for one in document.document["conflicts"]] == ["Alice"]


@pytest.mark.usefixtures("clashing")
def test_a_refused_merge_tells_people_and_programs_the_conflicts() -> None:
    people = quick_program("branch", "merge", "feature", "--uri", "g")
    programs = quick_program("branch", "merge", "feature", "--uri", "g", "--json")

    assert (people.code, people.out) == (1, "")
    assert people.err == echo("branch merge") + (
        "Error: the two sides contradict each other, nothing was changed: 1 conflict\n"
        "  divergent_update: Person 'Alice' was changed differently on both sides: age\n"
        "hint: look at both sides, then choose with `ours` or `theirs`, or change one of the branches\n"
    )
    assert programs.code == 1
    assert programs.document["code"] == "conflict"
    assert [one["table_key"] for one in programs.document["merge_conflicts"]] == ["node:Person"]


@pytest.mark.parametrize(
    "options, age",
    [
        (["--ours"], 32),
        (["--theirs"], 31),
        (["--resolve", "Person=theirs"], 31),
        (["--ours", "--resolve", "node:Person=theirs"], 31),
        (["--theirs", "--resolve", "Knows=theirs", "--resolve", "Person=ours"], 32),
        (["--ours", "--resolve", "list.json"], 31),
        (["--resolve", "preview.json"], 31),
    ],
)
def test_a_side_is_chosen_for_all_for_a_type_or_for_an_entity(clashing: Graph, options: list[str], age: int) -> None:
    preview = command("branch", "merge", "feature", "--uri", "g", "--dry-run", "--json").document
    for conflict in preview["conflicts"]:
        conflict["take"] = "theirs"
    Path("preview.json").write_text(json.dumps(preview))
    Path("list.json").write_text(json.dumps(preview["conflicts"]))

    done = command("branch", "merge", "feature", "--uri", "g", *options)

    assert done.code == 0, done.err
    assert ages(clashing)["Alice"] == age
    assert "resolution" in (clashing.commits()[0].details or {})


@pytest.mark.parametrize("text", ["{", "3", "{}", '["Alice"]', '[{"table_key": "node:Person"}]', "\udcff"])
@pytest.mark.usefixtures("clashing")
def test_a_list_that_cannot_be_used_is_refused(text: str) -> None:
    Path("list.json").write_bytes(text.encode(errors="surrogateescape"))

    done = command("branch", "merge", "feature", "--uri", "g", "--resolve", "list.json")

    assert (done.code, done.out) == (1, "")
    assert re.search("list|resolution", done.err)


# tag and revert


def test_tags_are_made_listed_and_deleted(graph: Graph) -> None:
    at = head(graph, "feature")

    assert command("tag", "create", "v1", "--uri", "g", "--at", "feature") == Run(
        0, f"created tag v1 at {at}\n", echo("tag create")
    )
    assert command("tag", "list", "g") == Run(0, f"v1 {at}\n", "")
    [listed] = command("tag", "list", "--uri", "g", "--json").document["tags"]
    assert (listed["name"], listed["commit"]["graph_commit_id"]) == ("v1", at)
    assert command("tag", "delete", "v1", "--uri", "g", "--quiet") == Run(0, "deleted tag v1\n", "")
    made = command("tag", "create", "v2", "g", "--json").document
    assert (made["uri"], made["name"], made["commit"]["graph_commit_id"]) == ("g", "v2", head(graph))
    assert command("tag", "delete", "v2", "g", "--json").document == {"uri": "g", "name": "v2"}
    assert command("tag", "delete", "v2", "g").code == 1


def test_a_commit_is_undone_and_told_in_a_line(graph: Graph) -> None:
    undone = head(graph, "feature")

    done = command("revert", undone, "--uri", "g", "--branch", "feature", "--as", "eve")

    made = graph.commits("feature")[0]
    assert done == Run(0, f"reverted {undone} on feature: by {made.commit_id}\n", echo("revert"))
    assert made.actor_id == "eve"
    assert "Eve" not in ages(graph, "feature")
    again = command("revert", undone, "--uri", "g", "--branch", "feature", "--quiet")
    assert again == Run(0, f"reverted {undone} on feature: there was nothing left to undo\n", "")


def test_a_revert_that_contradicts_is_refused_unless_a_side_is_chosen(clashing: Graph) -> None:
    undone = head(clashing)
    run(clashing, 'update Person set { age: 33 } where name = "Alice"')

    refused = command("revert", undone, "g", "--json")
    done = command("revert", undone, "g", "--json", "--theirs")

    assert (refused.code, refused.document["code"]) == (1, "conflict")
    assert (done.code, done.document["reverted"], done.document["branch"]) == (0, undone, "main")
    assert ages(clashing)["Alice"] == 30


# load --from


def test_a_load_onto_a_new_branch_says_that_it_was_made(graph: Graph) -> None:
    Path("fay.jsonl").write_text('{"type": "Person", "data": {"name": "Fay"}}\n')
    load = (
        "load",
        "g",
        "--data",
        "fay.jsonl",
        "--mode",
        "merge",
        "--branch",
        "nightly",
        "--from",
        "feature",
        "--quiet",
    )

    made = command(*load)
    again = command(*load, "--json")

    assert made.code == 0
    assert made.out.splitlines()[1] == "branch nightly created from feature"
    assert (again.document["base_branch"], again.document["branch_created"]) == ("feature", False)
    assert ages(graph, "nightly").keys() >= {"Eve", "Fay"}
