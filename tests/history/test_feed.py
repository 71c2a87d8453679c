"""A reader of changes gets every one of them, commit by commit, however often it comes back."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.api.changes import ChangePage
from omnigraph.commit.plan import PublishPlan, TableAction, WriteTxn
from omnigraph.errors import (
    BranchNotFoundError,
    ChangeCursorError,
    ChangeRefusedError,
    ChangeRequestError,
    CommitNotFoundError,
    HistoryReclaimedError,
    RefNameError,
    ResourceLimitError,
)
from omnigraph.graph import Graph
from omnigraph.history.feed import CursorPosition, CursorScope, decode
from omnigraph.manifest import segments
from omnigraph.storage.stage import SchemaChange
from tests.support.graphs import plan, write_plan

SCHEMA = """
node Person { name: String @key  age: I32? }
edge Knows: Person -> Person
"""


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "g", SCHEMA)


def add(graph: Graph, *names: str, branch: str = "main") -> str:
    statements = " ".join(f'insert Person {{ name: "{name}" }}' for name in names)
    done = graph.mutate(f"query add() {{ {statements} }}", branch=branch)
    assert done.commit
    return done.commit.commit_id


def told(page: ChangePage) -> list[list[str]]:
    """The ids of each block."""
    return [[change.id for change in block.changes] for block in page.blocks]


def everything(graph: Graph, **options: Any) -> tuple[list[list[str]], ChangePage, int]:
    """Follow page tokens to the end of a poll: the ids of all blocks, the last page, and how many pages there were."""
    page = graph.changes(**options)
    found, pages = told(page), 1
    while page.next_page_token:
        assert page.cursor is None
        assert not page.caught_up
        options = {**options, "start": None, "cursor": None, "page_token": page.next_page_token}
        page = graph.changes(**options)
        found, pages = found + told(page), pages + 1
    return found, page, pages


def test_a_feed_that_starts_now_tells_what_comes_after(graph: Graph) -> None:
    add(graph, "Ann")
    page = graph.changes()
    assert (told(page), page.caught_up) == ([], True)

    second = add(graph, "Bob")
    page = graph.changes(cursor=page.cursor)

    assert told(page) == [["Bob"]]
    assert [block.cause.commit_id for block in page] == [second]
    assert page.caught_up
    assert told(graph.changes(cursor=page.cursor)) == []


def test_a_feed_from_the_beginning_tells_each_commit_in_its_turn(graph: Graph) -> None:
    first = add(graph, "Bob", "Ann")
    graph.mutate('query change() { update Person set { age: 1 } where name = "Ann" }')
    graph.mutate('query drop() { delete Person where name = "Bob" }')

    page = graph.changes(start="beginning")

    assert told(page) == [["Ann", "Bob"], ["Ann"], ["Bob"]]
    assert [change.operation for block in page for change in block.changes] == ["insert", "insert", "update", "delete"]
    assert told(graph.changes(after=first)) == told(graph.changes(start=f"after:{first}")) == [["Ann"], ["Bob"]]


def test_a_poll_costs_what_it_returns_and_not_what_the_history_is_long(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "WINDOW", 2)  # older commits are in log segments
    for at in range(12):
        add(graph, f"p{at}")
    cursor = graph.changes(start="now").cursor
    add(graph, "last")
    read: list[str] = []
    look = segments.Segments.read

    def noted(log: segments.Segments, names: Sequence[str]) -> list[pa.Table]:
        read.extend(names)
        return look(log, names)

    monkeypatch.setattr(segments.Segments, "read", noted)

    assert told(graph.changes(cursor=cursor)) == [["last"]]
    assert graph.baseline().commit_id == graph.at("main").commit.commit_id  # type: ignore[union-attr]
    assert graph.commit("main~1").commit_id == graph.commit("main").parent_id
    assert read == []

    found, _, _ = everything(graph, start="beginning")
    assert found == [*([f"p{at}"] for at in range(12)), ["last"]]
    assert read


def test_what_was_told_is_told_again_to_who_comes_with_the_same_cursor(graph: Graph) -> None:
    start = graph.changes().cursor
    add(graph, "Ann")

    once, again = graph.changes(cursor=start), omnigraph.open(graph.uri).changes(cursor=start)

    assert told(once) == [["Ann"]]
    assert once == again


def test_a_page_ends_in_the_middle_of_a_commit_and_the_next_goes_on_there(graph: Graph) -> None:
    start = graph.changes().cursor
    names = [f"p{number:02d}" for number in range(10)]
    add(graph, *names)
    add(graph, "q1", "q2")

    for limit, pages in ((1, 12), (3, 4), (5, 3), (10, 2), (11, 2), (12, 1), (1000, 1)):
        found, last, count = everything(graph, cursor=start, limit=limit)
        assert [name for block in found for name in block] == [*names, "q1", "q2"], limit
        assert count == pages, limit
        assert last.caught_up
        assert told(graph.changes(cursor=last.cursor)) == []


def test_a_page_is_bounded_in_bytes_but_holds_at_least_one_change(graph: Graph) -> None:
    start = graph.changes().cursor
    add(graph, *(letter * 400 for letter in "abc"))

    found, _, pages = everything(graph, cursor=start, max_bytes=1)

    assert [[name[0] for name in block] for block in found] == [["a"], ["b"], ["c"]]
    assert pages == 3
    assert everything(graph, cursor=start, max_bytes=2500)[2] == 2


def test_a_token_is_short_however_long_the_ids_are(graph: Graph) -> None:
    start = graph.changes().cursor
    names = [f"{'é' * 3000}{number}" for number in range(3)]
    add(graph, *names)

    page = graph.changes(cursor=start, limit=1)
    assert page.next_page_token
    assert len(page.next_page_token) <= 4096
    found, _, pages = everything(graph, cursor=start, limit=1)

    assert [name for block in found for name in block] == names
    assert pages == 3


def test_a_poll_tells_some_commits_and_its_cursor_goes_on_behind_them(graph: Graph) -> None:
    cursor = graph.changes().cursor
    for number in range(5):
        add(graph, f"p{number}")

    seen = []
    while True:
        page = graph.changes(cursor=cursor, max_commits=2)
        seen += told(page)
        cursor = page.cursor
        if page.caught_up:
            break

    assert seen == [[f"p{number}"] for number in range(5)]


def test_commits_that_come_while_pages_are_read_wait_for_the_next_poll(graph: Graph) -> None:
    start = graph.changes().cursor
    add(graph, "a", "b", "c")
    page = graph.changes(cursor=start, limit=2)
    add(graph, "d")

    rest = graph.changes(page_token=page.next_page_token)

    assert told(rest) == [["c"]]
    assert not rest.caught_up
    assert told(graph.changes(cursor=rest.cursor)) == [["d"]]


def test_upkeep_is_a_block_without_changes(graph: Graph) -> None:
    for number in range(3):
        add(graph, f"p{number}")
    start = graph.changes().cursor
    before = graph.snapshot().manifest_version

    graph.optimize()

    assert graph.snapshot().manifest_version > before
    page = graph.changes(cursor=start)
    assert {len(block.changes) for block in page.blocks} == {0}
    assert page.blocks
    assert page.caught_up


def test_a_filter_leaves_out_changes_but_no_commit(graph: Graph) -> None:
    start = graph.changes(kinds=["edge"]).cursor
    add(graph, "Ann", "Bob")
    graph.mutate('query meet() { insert Knows { from: "Ann", to: "Bob" } }')

    page = graph.changes(cursor=start, kinds=["edge"])

    assert [[change.kind for change in block.changes] for block in page] == [[], ["edge"]]


def test_a_merge_is_one_block_with_all_that_it_brought(graph: Graph) -> None:
    add(graph, "Ann")
    graph.create_branch("side")
    start = graph.changes().cursor
    add(graph, "Bob", branch="side")
    add(graph, "Cleo", branch="side")
    add(graph, "Dan")
    graph.merge("side")

    page = graph.changes(cursor=start)

    assert told(page) == [["Dan"], ["Bob", "Cleo"]]
    assert page.blocks[-1].cause.merged_parent_id
    assert told(graph.changes("side", start="beginning")) == [["Ann"], ["Bob"], ["Cleo"]]


# What is refused


def test_a_cursor_does_not_fit_a_branch_made_again(graph: Graph) -> None:
    graph.create_branch("side")
    cursor = graph.changes("side").cursor
    add(graph, "Ann", branch="side")
    assert told(graph.changes("side", cursor=cursor)) == [["Ann"]]
    graph.delete_branch("side")
    graph.create_branch("side")

    with pytest.raises(ChangeCursorError, match="made again"):
        graph.changes("side", cursor=cursor)
    with pytest.raises(ChangeCursorError, match="another branch"):
        graph.changes("main", cursor=cursor)
    with pytest.raises(BranchNotFoundError):
        graph.changes("nowhere")


def test_a_cursor_belongs_to_its_graph_branch_and_filter(graph: Graph, tmp_path: Path) -> None:
    cursor = graph.changes().cursor
    other = omnigraph.init(tmp_path / "other", SCHEMA)
    cases: list[tuple[Graph, dict[str, Any], str]] = [
        (other, {}, "another graph"),
        (graph, {"kinds": ["node"]}, "another filter"),
        (graph, {"operations": ["delete"]}, "another filter"),
    ]

    for reader, options, problem in cases:
        with pytest.raises(ChangeCursorError, match=problem):
            reader.changes(cursor=cursor, **options)


def _tampered(cursor: str) -> list[str]:
    version, scope, position = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    made = [
        [version + 1, scope, position],
        [version, scope, {**position, "after": 7}],
        [version, scope, {"after": position["after"], "more": 1}],
        [version, scope],
        "text",
    ]
    return [base64.urlsafe_b64encode(json.dumps(one).encode()).decode() for one in made]


def test_what_is_no_cursor_is_rejected(graph: Graph) -> None:
    cursor = graph.changes().cursor
    assert cursor

    for text in ("", "x", "é", "!!!!", cursor[:-3], "A" * 5000, *_tampered(cursor)):
        with pytest.raises((ChangeCursorError, ChangeRequestError)):
            graph.changes(cursor=text)


def test_the_text_of_a_cursor_stays_the_same_between_releases() -> None:
    text = "WzEseyJncmFwaCI6ImciLCJicmFuY2giOiJiIiwiZmlsdGVyIjoiZiJ9LHsiYWZ0ZXIiOiIwMUEiLCJ1bnRpbCI6IjAxQiIsInRhYmxlIjoidCIsImVudGl0eSI6ImUifV0"  # noqa: E501
    scope, position = CursorScope("g", "b", "f"), CursorPosition("01A", "01B", "t", "e")

    assert position.encode(scope) == text
    assert decode(text, scope) == position


@pytest.mark.parametrize(
    "options, error",
    [
        ({"start": "yesterday"}, ChangeRequestError),
        ({"start": "now", "cursor": "x"}, ChangeRequestError),
        ({"limit": 0}, ChangeRequestError),
        ({"limit": 8193}, ResourceLimitError),
        ({"max_bytes": 2**25 + 1}, ResourceLimitError),
        ({"max_commits": 513}, ResourceLimitError),
        ({"kinds": ["rows"]}, ChangeRequestError),
        ({"types": ["Nobody"]}, ChangeRequestError),
        ({"start": "after:nothing"}, CommitNotFoundError),
        ({"after": "nothing"}, CommitNotFoundError),
        ({"start": "after:"}, CommitNotFoundError),
        ({"branch": ""}, RefNameError),
        ({"branch": "x" * 10_000}, RefNameError),
    ],
)
def test_a_request_that_cannot_be_is_refused(graph: Graph, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        graph.changes(**options)

    assert "hint:" in str(caught.value)


def test_a_gap_names_the_commit_that_cannot_be_read_after_what_can_be_told(graph: Graph) -> None:
    start = graph.changes().cursor
    commits = [add(graph, f"p{number}") for number in range(3)]
    table = graph.snapshot().entries["node:Person"].table
    graph._store.tables.head(table.path, None).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    reader = omnigraph.open(graph.uri)

    with pytest.raises(HistoryReclaimedError) as caught:
        reader.changes(cursor=start)

    assert caught.value.commit_id == reader.commits()[-1].commit_id
    assert reader.changes(after=commits[2]).caught_up
    page = reader.changes(start="now")
    add(reader, "p9")
    assert told(reader.changes(cursor=page.cursor)) == [["p9"]]


def test_a_reader_that_has_the_tables_open_is_told_of_a_gap_as_well(graph: Graph) -> None:
    start = graph.changes().cursor
    past = [add(graph, f"p{number}") for number in range(3)]
    reader = omnigraph.open(graph.uri)
    for version in (1, 2, 3, 4):
        table = replace(graph.snapshot().entries["node:Person"].table, version=version)
        reader._store.tables.open(table)
    graph.optimize()
    graph.cleanup(keep=1, confirm=True)

    with pytest.raises(HistoryReclaimedError):
        reader.changes(cursor=start)
    with pytest.raises(HistoryReclaimedError):
        list(reader.diff(past[0], past[2]))


def _schema_commit(graph: Graph) -> str:
    """Publish a change of columns as applying a schema does."""

    def prepare(txn: WriteTxn) -> PublishPlan:
        base = txn.entries["node:Person"].table
        staged = graph._store.tables.stage_schema_change(base, SchemaChange(add=(pa.field("nick", pa.string()),)))
        return plan(txn, TableAction(staged))

    done = write_plan(graph._store, None, prepare)
    assert done
    return done.commit.commit_id


def test_a_change_of_the_schema_is_refused_after_what_comes_before_it_was_told(graph: Graph) -> None:
    start = graph.changes().cursor
    add(graph, "Ann")
    changed = _schema_commit(graph)

    page = graph.changes(cursor=start)
    assert told(page) == [["Ann"]]
    assert not page.caught_up
    with pytest.raises(ChangeRefusedError) as caught:
        graph.changes(cursor=page.cursor)

    assert (caught.value.commit_id, caught.value.reason) == (changed, "schema_boundary")
    assert graph.changes(after=changed).caught_up


# One commit


def test_the_changes_of_one_commit_are_told_by_pages(graph: Graph) -> None:
    add(graph, "Ann")
    commit = add(graph, "a", "b", "c")

    page = graph.commit_changes(commit, limit=2)
    rest = graph.commit_changes(commit, page_token=page.next_page_token)

    assert (told(page), told(rest)) == ([["a", "b"]], [["c"]])
    assert (page.cursor, rest.cursor, rest.next_page_token) == (None, None, None)
    assert page.blocks[0].cause.commit_id == commit


def test_the_first_commit_has_no_changes_to_tell(graph: Graph) -> None:
    genesis = graph.commits()[-1].commit_id

    with pytest.raises(ChangeRefusedError) as caught:
        graph.commit_changes(genesis)

    assert (caught.value.reason, caught.value.commit_id) == ("parentless_commit", genesis)


def test_a_page_token_of_one_commit_does_not_fit_another(graph: Graph) -> None:
    first, second = add(graph, "a", "b"), add(graph, "c", "d")
    page = graph.commit_changes(first, limit=1)

    with pytest.raises(ChangeCursorError):
        graph.commit_changes(second, page_token=page.next_page_token)
