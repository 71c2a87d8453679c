"""One grammar names a state wherever one is named; a new name never reads as something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import omnigraph
from omnigraph.core.refs import Ref, parse_ref, reads_as_commit
from omnigraph.errors import (
    AmbiguousRefError,
    BranchNotFoundError,
    CommitNotFoundError,
    HistoryReclaimedError,
    OmnigraphError,
    RefExistsError,
    RefNameError,
    TagNotFoundError,
)
from omnigraph.graph import Graph
from omnigraph.history import resolve as resolver
from omnigraph.lang.identity import new_id
from omnigraph.manifest.publisher import Manifest
from tests.history.people import ages, head, new_graph, run

NAMES = "query all() { match { $p: Person } return { $p.name } order { $p.name } }"
BEFORE = ["Alice", "Bob", "Carol", "Dan"]
EVE, FAY = 'insert Person { name: "Eve" }', 'insert Person { name: "Fay" }'


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """People before Eve came, tagged `start`; then Eve and Fay."""
    graph = new_graph(tmp_path)
    graph.create_tag("start")
    run(graph, EVE)
    run(graph, FAY)
    return graph


def of_start(graph: Graph) -> list[str]:
    """Every way to name the state before Eve."""
    commit = graph.tags()[0].commit
    return [
        "start",
        "start~0",
        commit.commit_id,
        unique(graph, commit.commit_id),
        unique(graph, commit.commit_id).lower(),
        f" {commit.commit_id} ",
        "main~2",
        f"{head(graph)}~2",
        f"main@{commit.manifest_version}",
        f"main@{commit.commit_id}",
        f"main@{unique(graph, commit.commit_id)}",
        f"main@{commit.manifest_version + 1}~1",
        f"start@{commit.manifest_version}",
    ]


def unique(graph: Graph, commit_id: str) -> str:
    """The shortest prefix of six or more characters that no other commit has."""
    others = [one.commit_id for one in graph.commits() if one.commit_id != commit_id]
    return next(
        commit_id[:size] for size in range(6, 26) if not any(one.startswith(commit_id[:size]) for one in others)
    )


def named(rows: object) -> list[str]:
    return [row["p.name"] for row in rows]  # type: ignore[attr-defined]


# What takes the name of a state, and the id of the commit that it then is about.
TAKERS: dict[str, Callable[[Graph, str], str]] = {
    "at": lambda graph, ref: graph.at(ref).commit.commit_id,  # type: ignore[union-attr]
    "query": lambda graph, ref: graph.query(NAMES, snapshot=ref).commit.commit_id,  # type: ignore[union-attr]
    "query branch": lambda graph, ref: graph.query(NAMES, branch=ref).commit.commit_id,  # type: ignore[union-attr]
    "explain": lambda graph, ref: graph.explain(NAMES, snapshot=ref).commit.commit_id,  # type: ignore[union-attr]
    "commit": lambda graph, ref: graph.commit(ref).commit_id,
    "commits": lambda graph, ref: graph.commits(ref)[0].commit_id,
    "commit_changes": lambda graph, ref: graph.commit_changes(ref).blocks[0].cause.commit_id,
    "diff": lambda graph, ref: graph.diff(ref, "main").before.commit.commit_id,
    "create_tag": lambda graph, ref: graph.create_tag(f"new-{len(graph.tags())}", ref).commit.commit_id,
    "log": lambda graph, ref: graph.log([ref])[0].commit.commit_id,
}


@pytest.mark.parametrize("taker", TAKERS)
def test_every_form_of_a_ref_is_taken_wherever_a_state_is_named(graph: Graph, taker: str) -> None:
    expected = graph.tags()[0].commit.commit_id

    for ref in of_start(graph):
        assert TAKERS[taker](graph, ref) == expected, ref


def test_a_branch_begins_at_whatever_state_is_named(graph: Graph) -> None:
    for number, ref in enumerate(of_start(graph)):
        graph.create_branch(f"b{number}", ref)
        assert [*ages(graph, f"b{number}")] == BEFORE
    graph.load([{"type": "Person", "data": {"name": "Gil"}}], mode="append", branch="loaded", base="main~2")
    assert [*ages(graph, "loaded")] == [*BEFORE, "Gil"]


def test_an_export_and_a_snapshot_are_of_the_state_that_is_named(graph: Graph) -> None:
    for ref in of_start(graph):
        assert (
            sorted(graph.export(snapshot=ref)) == sorted(graph.export(branch=ref)) == sorted(graph.at("start").export())
        )
        assert graph.snapshot(ref) == graph.snapshot("start")


def test_a_feed_starts_after_the_state_that_is_named(graph: Graph) -> None:
    for ref in of_start(graph):
        assert [len(block.changes) for block in graph.changes(after=ref)] == [1, 1]
        assert graph.change_cursor(ref) == graph.change_cursor("start")


def test_a_revert_takes_any_name_of_a_commit(graph: Graph) -> None:
    graph.revert("main~1")
    assert "Eve" not in ages(graph)


def test_a_merge_takes_any_state_as_its_source(graph: Graph) -> None:
    graph.create_branch("feature", "start")
    run(graph, 'insert Person { name: "Gil" }', "feature")
    run(graph, 'insert Person { name: "Hal" }', "feature")

    done = graph.merge("feature~1")
    again = graph.merge("start")

    assert (done.source, done.outcome, again.outcome) == ("feature~1", "merged", "already_up_to_date")
    assert done.commit
    assert done.commit.merged_parent_id == graph.commits("feature")[1].commit_id
    assert done.commit.merged_branch == "feature"
    assert {"Eve", "Fay", "Gil"} <= ages(graph).keys()
    assert "Hal" not in ages(graph)
    assert graph.merge("feature").outcome == "merged"
    assert "Hal" in ages(graph)


def test_first_parents_are_followed_through_a_merge_and_onto_the_branch_below(graph: Graph) -> None:
    graph.create_branch("feature", "start")
    run(graph, 'insert Person { name: "Gil" }', "feature")
    graph.merge("feature")

    assert graph.commit("main~1").commit_id == graph.commits()[0].parent_id
    assert graph.commit("feature~1") == graph.commit("start")


# What is not there


@pytest.mark.parametrize("ref", ["main~99", "start~2", "main@999", "main@nowhere", f"main@{'9' * 5000}"])
def test_a_state_before_the_first_or_after_the_last_is_no_commit(graph: Graph, ref: str) -> None:
    with pytest.raises(CommitNotFoundError) as caught:
        graph.at(ref)
    assert caught.value.hint


def test_an_ambiguous_prefix_is_refused_with_its_candidates(graph: Graph) -> None:
    ids = sorted(commit.commit_id for commit in graph.commits())
    shared = next(size for size in range(25, 5, -1) if len({one[:size] for one in ids[-2:]}) == 1)
    prefix = ids[-1][:shared]
    candidates = [one for one in ids if one.startswith(prefix)]

    with pytest.raises(AmbiguousRefError) as caught:
        graph.commit(prefix)

    assert (caught.value.name, caught.value.candidates, caught.value.http_status) == (prefix, candidates, 400)
    assert candidates[0] in str(caught.value)


def test_a_prefix_has_six_characters_at_least(graph: Graph) -> None:
    with pytest.raises(CommitNotFoundError):
        graph.commit(head(graph)[:5])


@pytest.mark.parametrize(
    "act, hint",
    [
        (lambda graph: graph.at("featrue"), "`feature`"),
        (lambda graph: graph.query(NAMES, branch="featrue"), "`feature`"),
        (lambda graph: graph.mutate(f"query q() {{ {EVE} }}", branch="featrue"), "`feature`"),
        (lambda graph: graph.delete_branch("featrue"), "`feature`"),
        (lambda graph: graph.diff("strat", "main"), "`start`"),
        (lambda graph: graph.delete_tag("strat"), "`start`"),
        (lambda graph: graph.create_branch("new", "strat"), "`start`"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(
    graph: Graph, act: Callable[[Graph], object], hint: str
) -> None:
    graph.create_branch("feature")

    with pytest.raises((BranchNotFoundError, CommitNotFoundError, TagNotFoundError)) as caught:
        act(graph)

    assert f"did you mean {hint}?" in str(caught.value)


def test_a_misspelt_commit_id_is_answered_with_the_one_that_was_meant(graph: Graph) -> None:
    meant = head(graph)
    misspelt = meant[:-1] + ("0" if meant[-1] != "0" else "1")

    with pytest.raises(CommitNotFoundError) as caught:
        graph.commit(misspelt)

    assert f"did you mean `{meant}`?" in str(caught.value)


def test_a_state_that_was_cleaned_up_is_named_as_such(graph: Graph) -> None:
    graph.delete_tag("start")
    gone = graph.commit("main~2").commit_id
    run(graph, 'update Person set { age: 1 } where name = "Eve"')
    graph.create_branch("feature")
    graph.cleanup(keep=1, confirm=True)
    again = omnigraph.open(graph.uri)  # which has nothing in its cache

    assert again.commit("main~3").commit_id == gone  # what it was is still known
    for read in (
        lambda: again.at("main~3").query(NAMES),
        lambda: again.create_branch("b", "main~3"),
        lambda: again.create_tag("t", gone),
        lambda: again.merge("main~3", "feature"),
    ):
        with pytest.raises(HistoryReclaimedError):
            read()


# New names


@pytest.mark.parametrize("cut", [26, 12, 6])
@pytest.mark.parametrize("lower", [False, True])
def test_no_new_name_reads_as_a_commit(graph: Graph, cut: int, lower: bool) -> None:  # noqa: FBT001
    name = head(graph)[:cut]
    name = name.lower() if lower else name

    for create in (graph.create_branch, graph.create_tag):
        with pytest.raises(RefNameError, match="reads as"):
            create(name)

    with pytest.raises(RefNameError, match="reads as"):
        graph.create_branch(new_id())


@pytest.mark.parametrize("name", ["main~1", "main@2", "start@1~2", "a~b"])
def test_no_new_name_reads_as_a_ref_with_an_operator(graph: Graph, name: str) -> None:
    for create in (graph.create_branch, graph.create_tag):
        with pytest.raises(RefNameError):
            create(name)


def test_a_branch_and_a_tag_cannot_share_a_name(graph: Graph) -> None:
    graph.create_branch("feature")

    with pytest.raises(RefExistsError, match="tag 'start' already exists"):
        graph.create_branch("start")
    with pytest.raises(RefExistsError, match="branch 'feature' already exists"):
        graph.create_tag("feature")


@pytest.mark.parametrize("name", ["20261117", "123456", "0042", "v1.0", "facade", "01-draft", "__mine"])
def test_names_that_only_resemble_commit_ids_can_be_given(graph: Graph, name: str) -> None:
    graph.create_tag(name, "start")
    graph.delete_tag(name)
    graph.create_branch(name, "start")

    assert graph.at(name).commit == graph.tags()[0].commit


def test_a_graph_that_has_such_names_already_stays_readable(graph: Graph) -> None:
    """Of names that are given twice the commit counts first, then the branch, then the tag, then a prefix."""
    table, manifest = graph._store.manifest.table, graph._store.manifest
    start, latest = graph.tags()[0].commit, graph.commits()[0]
    prefix = unique(graph, latest.commit_id)
    for name in ("start", start.commit_id, prefix):
        table.create_branch(table.open(None, graph.commit("main~1").manifest_version), name)
    table.create_tag("twice", None, start.manifest_version)
    table.create_branch(table.open(), "twice")

    assert graph.at(start.commit_id).commit == start
    assert {name: graph.at(name).branch for name in ("start", prefix, "twice")} == {
        "start": "start",
        prefix: prefix,
        "twice": "twice",
    }
    assert manifest.load(start.commit_id).branch == start.commit_id
    run(graph, FAY.replace("Fay", "Gil"), start.commit_id)  # a branch that is written to is always a branch
    graph.delete_branch(start.commit_id)


# Parsing


@pytest.mark.parametrize(
    "text, ref",
    [
        ("main", Ref("main")),
        (" a/b ", Ref("a/b")),
        ("main~3", Ref("main", None, 3)),
        ("main@12", Ref("main", "12")),
        ("v1.0@01ABC~2", Ref("v1.0", "01ABC", 2)),
        ("main~0", Ref("main")),
    ],
)
def test_a_ref_is_parsed(text: str, ref: Ref) -> None:
    assert parse_ref(text) == ref
    assert parse_ref(str(ref)) == ref


@pytest.mark.parametrize(
    "text", ["", " ", "~1", "@2", "main~", "main~x", "main@", "main~1@2", "main~1~1", "a b~1", "main@2@3"]
)
def test_what_is_no_ref_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(RefNameError) as caught:
        parse_ref(text)
    assert caught.value.hint


@given(st.text(max_size=20))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        ref = parse_ref(text)
    except RefNameError:
        return
    assert parse_ref(str(ref)) == ref


@given(st.integers(6, 26))
def test_every_beginning_of_a_new_id_reads_as_a_commit(size: int) -> None:
    assert reads_as_commit(new_id()[:size])


# Branches that vanish


@pytest.mark.parametrize("act", ["branches", "commits", "log", "doctor", "repair", "tags"])
def test_a_branch_that_is_deleted_meanwhile_is_left_out(
    graph: Graph, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever named no branch is not answered with the name of one."""
    graph.create_branch("kept")
    expected = getattr(graph, act)()
    listed = Manifest.branches
    monkeypatch.setattr(Manifest, "branches", lambda self: [*listed(self), "vanished"])

    found = getattr(graph, act)()

    if act == "branches":
        assert found == [*expected, "vanished"]  # it was there when they were listed
    elif act == "doctor":
        assert (found.branches, found.findings) == (expected.branches, expected.findings)
    else:
        assert found == expected


def test_a_commit_is_looked_for_beside_branches_that_vanish(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    graph.create_branch("feature")
    run(graph, EVE.replace("Eve", "Gil"), "feature")
    made = graph.commits("feature")[0]
    listed = Manifest.branches
    monkeypatch.setattr(Manifest, "branches", lambda self: ["main", "a-vanished", *listed(self)[1:], "vanished"])

    assert graph.commit(made.commit_id) == made
    assert graph.query(NAMES, snapshot=unique(graph, made.commit_id)).commit
    with pytest.raises(OmnigraphError):
        resolver.find_commit(graph._store.manifest, "nothing")
    assert graph.cleanup(keep=10, confirm=True)
