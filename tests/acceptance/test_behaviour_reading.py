"""What reading a graph comes to, however it is reached: queries, the past, exports, what changed."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.errors import (
    AmbiguousRefError,
    BranchNotFoundError,
    ChangeCursorError,
    ChangeRefusedError,
    ChangeRequestError,
    CommitNotFoundError,
    ExportTypeError,
    OmnigraphError,
    ParameterError,
    QueryError,
    QueryKindError,
    QueryNotFoundError,
    RefExistsError,
    RefNameError,
    ResourceLimitError,
)
from tests.acceptance.conftest import ACTOR, Reached

ONE = "query one($name: String) { match { $p: Person { name: $name } } return { $p.age, $p.name } }"
NAMES = "query names() { match { $p: Person } return { $p.name } order { $p.name asc } }"
ADD = "query add($name: String, $age: I32?) { insert Person { name: $name, age: $age } }"
AGE = "query age($name: String, $age: I32) { update Person set { age: $age } where name = $name }"
FULL = """
query full() {
    match { $p: Person }
    return { $p.name, $p.born, $p.nicks, $p.rating, $p.name as name, $p.age as name }
    order { $p.name asc }
}
"""


def names(graph: Reached, **state: Any) -> list[str]:
    return [row["p.name"] for row in graph.query(NAMES, **state).rows]


def test_a_query_takes_parameters_and_answers_with_columns_in_order(shared: Reached) -> None:
    found = shared.query(ONE, {"name": "bob"})

    assert (found.query_name, found.branch, found.columns) == ("one", "main", ["p.age", "p.name"])
    assert found.rows == [{"p.age": 40, "p.name": "bob"}]
    assert found.commit == shared.commits()[0]


def test_the_values_and_types_of_an_answer_are_those_of_the_graph(shared: Reached) -> None:
    found = shared.query(FULL).to_arrow()

    assert found.schema.types == [
        pa.string(), pa.date32(), pa.list_(pa.string()), pa.float64(), pa.string(), pa.int32(),
    ]  # fmt: skip
    assert found.schema.metadata is None
    assert found.to_batches()[0].to_pydict()["p.born"] == [dt.date(1990, 5, 6), None]
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == [
        ("ann", dt.date(1990, 5, 6), ["A", "\u2028"], None, "ann", 30),
        ("bob", None, None, 0.1, "bob", 40),
    ]


def test_an_answer_without_rows_has_its_columns(shared: Reached) -> None:
    found = shared.query(ONE, {"name": "nobody"})

    assert (found.rows, found.columns, len(found)) == ([], ["p.age", "p.name"], 0)


def test_a_query_is_chosen_by_name_and_can_come_from_a_file(shared: Reached, tmp_path: Path) -> None:
    file = tmp_path / "queries.gq"
    file.write_text(f"{ONE}\n{NAMES}")

    assert shared.query(file, name="names").rows == [{"p.name": "ann"}, {"p.name": "bob"}]
    with pytest.raises(QueryNotFoundError) as caught:
        shared.query(file, name="other")
    assert caught.value.available == ["one", "names"]


REFUSALS: dict[str, tuple[str, dict[str, Any], type[OmnigraphError], dict[str, Any]]] = {
    "a type that is not there": ("query q() { match { $p: Persn } return { $p.name } }", {}, QueryError, {}),
    "a syntax error": ("query q( { }", {}, QueryError, {}),
    "a mutation": (ADD, {"params": {"name": "x"}}, QueryKindError, {"query": "add"}),
    "a parameter that is missing": (ONE, {}, ParameterError, {"parameter": "name"}),
    "a parameter of another type": (ONE, {"params": {"name": 3}}, ParameterError, {"parameter": "name"}),
    "a parameter that JSON has not": (ONE, {"params": {"name": {1, 2}}}, ParameterError, {"parameter": "name"}),
    "a branch that is not there": (NAMES, {"branch": "nowhere"}, BranchNotFoundError, {"branch": "nowhere"}),
    "a branch no branch can be": (NAMES, {"branch": "a..b"}, RefNameError, {"name": "a..b"}),
    "a commit that is not there": (NAMES, {"snapshot": "none"}, CommitNotFoundError, {"commit_id": "none"}),
}


@pytest.mark.once_on_s3
@pytest.mark.parametrize("case", REFUSALS)
def test_a_query_that_cannot_be_answered_says_why(shared: Reached, case: str) -> None:
    text, asked, kind, fields = REFUSALS[case]

    with pytest.raises(kind) as caught:
        shared.query(text, **asked)

    assert type(caught.value) is kind
    assert {name: getattr(caught.value, name) for name in fields} == fields
    assert caught.value.message
    assert caught.value.message in str(caught.value)


def test_what_is_wrong_with_a_query_is_told_with_its_place_and_its_file(shared: Reached, tmp_path: Path) -> None:
    file = tmp_path / "wrong.gq"
    file.write_text("query q() {\n  match { $p: Persn }\n  return { $p.name }\n}")

    with pytest.raises(QueryError) as caught:
        shared.query(file)

    (problem,) = caught.value.diagnostics
    assert (problem.code, problem.place.line, problem.place.column) == ("T1", 2, 15)
    assert problem.place.file == str(file)
    assert "^^^^^" in str(caught.value)


def test_an_explanation_tells_the_steps_and_their_rows(shared: Reached) -> None:
    found = shared.explain(NAMES)

    assert (found.query_name, found.branch, found.rows) == ("names", "main", 2)
    assert found.commit == shared.commits()[0]
    assert [(step.kind, step.rows) for step in found.steps] == [("Scan", 2), ("Order", 2), ("Project", 2)]
    assert "Scan $p: Person" in str(found)


def test_the_schema_and_the_tables_of_a_graph_are_told(shared: Reached) -> None:
    found = shared.snapshot()

    assert "node Company" in shared.schema
    assert sorted(shared.catalog.nodes) == ["Company", "Person"]
    assert {key: entry.row_count for key, entry in found.entries.items()} == {
        "edge:Knows": 1, "edge:WorksAt": 1, "node:Company": 1, "node:Person": 2,
    }  # fmt: skip
    assert found.branch is None
    assert found.manifest_version == shared.commits()[0].manifest_version


def test_a_commit_can_be_read_as_it_was(shared: Reached, branch: str) -> None:
    before = shared.commits(branch)[0].commit_id
    after = shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR).commit

    assert names(shared, branch=branch) == ["ann", "bob", "cy"]
    assert names(shared, snapshot=before) == ["ann", "bob"]
    found = shared.query(NAMES, snapshot=after.commit_id if after else None)
    assert (len(found), found.commit) == (3, after)


def test_a_pinned_state_stays_what_it_is(shared: Reached, branch: str) -> None:
    pinned = shared.at(branch)
    shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR)

    assert [row["p.name"] for row in pinned.query(NAMES)] == ["ann", "bob"]
    assert pinned.query(NAMES).branch == branch
    assert pinned.explain(NAMES).rows == 2
    assert len(list(pinned.export(types=["Person"]))) == 2
    assert pinned.commit == shared.commits()[0]
    assert sorted(pinned.catalog.nodes) == ["Company", "Person"]


def test_a_state_is_named_by_a_branch_a_tag_or_a_commit(shared: Reached, branch: str) -> None:
    first = shared.commits(branch)[0]
    tag = shared.create_tag(f"t{first.commit_id}{len(shared.tags())}", branch)
    shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR)

    assert [shared.at(ref).commit for ref in (tag.name, first.commit_id)] == [first, first]
    assert shared.at(branch).commit == shared.commits(branch)[0]
    with pytest.raises(BranchNotFoundError):
        shared.at("nowhere")


@pytest.mark.slow
def test_every_form_of_a_ref_names_a_state_wherever_one_is_named(shared: Reached, branch: str) -> None:
    first = shared.commits(branch)[0]
    name = f"v{len(shared.tags())}.0"
    shared.create_tag(name, branch)
    shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR)
    known = [entry.commit.commit_id for entry in shared.log()]
    sizes = range(6, 27)
    prefix = next(one for size in sizes if sum(id_.startswith(one := first.commit_id[:size]) for id_ in known) == 1)

    for ref in (name, first.commit_id, prefix, f"{branch}~1", f"{branch}@{first.manifest_version}", f"{name}~0"):
        assert names(shared, snapshot=ref) == names(shared, branch=ref) == ["ann", "bob"], ref
        assert len(list(shared.export(snapshot=ref, types=["Person"]))) == 2
        assert shared.at(ref).commit == shared.commit(ref) == shared.commits(ref)[0] == first
        assert [change.id for change in shared.diff(ref, branch)] == ["cy"]
        assert [len(block.changes) for block in shared.changes(branch, after=ref)] == [1]
    assert shared.commit_changes(f"{branch}~0").blocks[0].changes[0].id == "cy"


def test_a_name_that_is_not_there_is_answered_with_the_closest_one(shared: Reached, branch: str) -> None:
    for act in (shared.at, shared.commit, shared.snapshot, lambda ref: shared.query(NAMES, snapshot=ref)):
        with pytest.raises((BranchNotFoundError, CommitNotFoundError)) as caught:
            act(f"{branch}x")
        assert f"did you mean `{branch}`?" in str(caught.value)


def test_a_prefix_that_several_commits_have_is_refused_and_no_new_name_reads_as_one(own: Reached) -> None:
    for name in ("cy", "di"):
        own.mutate(ADD, {"name": name}, actor=ACTOR)
    two, one = (commit.commit_id for commit in own.commits()[:2])
    prefix = one[: next(at for at in range(26) if one[at] != two[at])]

    with pytest.raises(AmbiguousRefError) as caught:
        own.commit(prefix)
    assert {one, two} <= set(caught.value.candidates)
    for create in (own.create_branch, own.create_tag):
        for name in (one, two[:6], two.lower()):
            with pytest.raises(RefNameError, match="reads as"):
                create(name)
    own.create_tag("v1")
    with pytest.raises(RefExistsError, match="tag 'v1' already exists"):
        own.create_branch("v1")


def test_a_commit_is_found_wherever_it_is(shared: Reached, branch: str) -> None:
    made = shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR).commit

    assert made is not None
    assert shared.commit(made.commit_id) == made
    assert (made.branch, made.actor_id) == (branch, ACTOR)
    assert shared.commits(branch, actor=ACTOR)[0] == made
    assert shared.commits(branch, actor="somebody else") == []
    assert shared.outcome(made.commit_id, branch) == made
    with pytest.raises(CommitNotFoundError) as caught:
        shared.commit("never")
    assert caught.value.commit_id == "never"


def test_the_log_tells_which_branches_and_tags_are_at_a_commit(shared: Reached, branch: str) -> None:
    made = shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR).commit

    found = shared.log([branch])

    assert [entry.commit for entry in found] == shared.commits(branch)
    assert (found[0].commit, found[0].branches) == (made, (branch,))
    assert {entry.commit.commit_id for entry in shared.log()} >= {entry.commit.commit_id for entry in found}


def test_an_export_is_lines_that_a_load_takes(shared: Reached) -> None:
    lines = list(shared.export())

    assert all(line.endswith("\n") for line in lines)
    records = [json.loads(line) for line in lines]
    assert [record.get("edge") or record["type"] for record in records] == [
        "Knows", "WorksAt", "Company", "Person", "Person",
    ]  # fmt: skip
    assert records[3]["data"]["nicks"] == ["A", "\u2028"]
    assert records[3]["data"]["photo"] == "base64:AAEC"


def test_an_export_can_be_of_some_types_of_the_past_and_into_a_file(
    shared: Reached, branch: str, tmp_path: Path
) -> None:
    before = shared.commits(branch)[0]
    shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR)

    done = shared.export(tmp_path / "people.jsonl", snapshot=before.commit_id, types=["Person", "edge:Knows"])

    assert (done.nodes, done.edges, done.commit, done.total) == ({"Person": 2}, {"Knows": 1}, before, 3)
    assert len((tmp_path / "people.jsonl").read_bytes().splitlines()) == 3
    assert len(list(shared.export(branch=branch, types=["Person"]))) == 3
    assert (list(shared.export(types=[])), shared.export(tmp_path / "no.jsonl", types=()).total) == ([], 0)
    with pytest.raises(ExportTypeError) as caught:
        shared.export(types=["Persn"])
    assert caught.value.type_name == "Persn"


def test_a_difference_tells_what_was_inserted_updated_and_deleted(shared: Reached, branch: str) -> None:
    shared.mutate(ADD, {"name": "cy", "age": 3}, branch=branch, actor=ACTOR)
    shared.mutate(AGE, {"name": "ann", "age": 31}, branch=branch, actor=ACTOR)
    shared.mutate("query drop() { delete Person where name = 'bob' }".replace("'", '"'), branch=branch, actor=ACTOR)

    found = shared.diff("main", branch)

    told = [(change.operation, change.kind, change.id, change.changed) for change in found]
    assert told == [
        ("update", "node", "ann", ("age",)),
        ("delete", "node", "bob", ()),
        ("insert", "node", "cy", ()),
        ("delete", "edge", "k1", ()),
    ]
    assert found.stats().counts == {
        "node:Person": {"insert": 1, "update": 1, "delete": 1},
        "edge:Knows": {"delete": 1},
    }
    assert (found.before.commit, found.after.commit) == (shared.commits()[0], shared.commits(branch)[0])
    assert not found.schema
    assert found.to_arrow()["id"].to_pylist() == ["ann", "bob", "cy", "k1"]


def test_a_change_has_the_properties_before_and_after_bytes_and_ends_included(shared: Reached) -> None:
    first = shared.commits()[-1].commit_id
    found = {change.id: change for change in shared.diff(first, "main")}

    assert found["ann"].after == {
        "age": 30, "born": "1990-05-06", "name": "ann", "nicks": ["A", "\u2028"], "photo": b"\0\1\2", "rating": None,
    }  # fmt: skip
    assert found["k1"].endpoints == ("ann", "bob")
    assert found["k1"].after == {"since": "2020-01-01"}


def test_a_difference_can_be_of_some_changes_only(shared: Reached, branch: str) -> None:
    shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR)
    shared.mutate(AGE, {"name": "ann", "age": 31}, branch=branch, actor=ACTOR)

    assert [one.id for one in shared.diff("main", branch, operations=["update"])] == ["ann"]
    assert shared.diff("main", branch, kinds=["edge"]).stats().total == 0
    assert shared.diff("main", branch, types=["Person"]).stats().total == 2
    with pytest.raises(ChangeRequestError) as caught:
        shared.diff("main", branch, types=["Persn"])
    assert caught.value.option == "type"


def test_changes_are_told_commit_by_commit_and_page_by_page(shared: Reached, branch: str) -> None:
    start = shared.commits(branch)[0].commit_id
    made = [shared.mutate(ADD, {"name": name}, branch=branch, actor=ACTOR).commit for name in ("cy", "dan", "eve")]

    first = shared.changes(branch, after=start, limit=2)
    assert first.next_page_token is not None
    last = shared.changes(branch, page_token=first.next_page_token, limit=2)

    assert [block.cause for block in (*first, *last)] == made
    assert [change.id for block in (*first, *last) for change in block.changes] == ["cy", "dan", "eve"]
    assert (first.cursor, first.caught_up, last.next_page_token, last.caught_up) == (None, False, None, True)
    again = shared.changes(branch, cursor=last.cursor)
    assert (again.blocks, again.caught_up) == ((), True)


def test_a_feed_refuses_what_it_cannot_tell(shared: Reached) -> None:
    genesis = shared.commits()[-1].commit_id

    with pytest.raises(ChangeCursorError):
        shared.changes(cursor="nonsense")
    with pytest.raises(ChangeRequestError):
        shared.changes(start="now", cursor="x")
    with pytest.raises(ResourceLimitError) as large:
        shared.changes(limit=8193)
    assert (large.value.resource, large.value.limit, large.value.actual) == ("changes", 8192, 8193)
    with pytest.raises(ChangeRefusedError) as refused:
        shared.commit_changes(genesis)
    assert (refused.value.commit_id, refused.value.reason) == (genesis, "parentless_commit")


def test_what_one_commit_changed_is_told(shared: Reached, branch: str) -> None:
    made = shared.mutate(AGE, {"name": "ann", "age": 31}, branch=branch, actor=ACTOR).commit
    assert made is not None

    page = shared.commit_changes(made.commit_id)

    (block,) = page.blocks
    assert block.cause == made
    assert [(one.id, one.changed, one.before and one.before["age"]) for one in block.changes] == [("ann", ("age",), 30)]


def test_whoever_begins_with_a_baseline_misses_nothing(shared: Reached, branch: str) -> None:
    begins = shared.baseline(branch, types=["Person"])
    exported = list(shared.export(snapshot=begins.commit_id, types=begins.tables))
    shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR)

    page = shared.changes(branch, cursor=begins.cursor, types=["Person"])

    assert (begins.commit_id, begins.tables, len(exported)) == (shared.commits()[0].commit_id, ("node:Person",), 2)
    assert [change.id for block in page for change in block.changes] == ["cy"]
    cursor = shared.change_cursor(begins.commit_id, branch)
    assert shared.changes(branch, cursor=cursor).blocks == page.blocks
