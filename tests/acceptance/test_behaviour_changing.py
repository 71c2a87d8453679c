"""What changing a graph comes to, however it is reached: mutations, loads, branches, merges, the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnigraph.errors import (
    BranchNotFoundError,
    CommitNotFoundError,
    ConstraintError,
    InputNotFoundError,
    InputTypeError,
    KeyConflictError,
    LoadRejectedError,
    MergeConflictError,
    MergeError,
    OmnigraphError,
    OptionError,
    PreconditionFailedError,
    QueryError,
    QueryKindError,
    RefExistsError,
    RefNameError,
    ResolutionError,
    SchemaError,
    SchemaUnsupportedError,
    TagNotFoundError,
)
from tests.acceptance.conftest import ACTOR, SCHEMA, Reached
from tests.acceptance.test_behaviour_reading import ADD, AGE, NAMES, names

AGES = "query ages() { match { $p: Person } return { $p.name as name, $p.age as age } order { $p.name asc } }"


def ages(graph: Reached, branch: str) -> dict[str, int | None]:
    return {row["name"]: row["age"] for row in graph.query(AGES, branch=branch)}


def head(graph: Reached, branch: str) -> str:
    return graph.commits(branch)[0].commit_id


def record(name: str, age: int | None = None) -> dict[str, Any]:
    return {"type": "Person", "data": {"name": name, "age": age}}


# Mutations


def test_a_mutation_is_one_commit_that_the_next_read_sees(shared: Reached, branch: str) -> None:
    before = head(shared, branch)
    text = 'query two() { insert Person { name: "cy", age: 3 } insert Knows { from: "cy", to: "ann" } }'

    done = shared.mutate(text, branch=branch, actor=ACTOR)

    assert (done.query_name, done.branch, done.affected_nodes, done.affected_edges) == ("two", branch, 1, 1)
    assert done.commit == shared.commits(branch)[0]
    assert done.commit is not None
    assert (done.commit.parent_id, done.actor_id, done.commit.actor_id) == (before, ACTOR, ACTOR)
    assert ages(shared, branch) == {"ann": 30, "bob": 40, "cy": 3}


def test_a_mutation_that_finds_nothing_makes_no_commit(shared: Reached, branch: str) -> None:
    before = head(shared, branch)

    done = shared.mutate(AGE, {"name": "nobody", "age": 1}, branch=branch, actor=ACTOR)

    assert (done.affected_nodes, done.commit, head(shared, branch)) == (0, None, before)


def test_a_mutation_can_be_for_one_state_only(shared: Reached, branch: str) -> None:
    before = head(shared, branch)
    shared.mutate(AGE, {"name": "ann", "age": 31}, branch=branch, actor=ACTOR, if_commit=before)

    with pytest.raises(PreconditionFailedError) as caught:
        shared.mutate(AGE, {"name": "ann", "age": 32}, branch=branch, actor=ACTOR, if_commit=before)

    assert (caught.value.expected, caught.value.actual) == (before, head(shared, branch))
    assert ages(shared, branch)["ann"] == 31


MUTATIONS: dict[str, tuple[str, dict[str, Any], type[OmnigraphError]]] = {
    "a read": (NAMES, {}, QueryKindError),
    "inserts and deletes together": (
        'query mixed() { insert Person { name: "x" } delete Person where name = "ann" }', {}, QueryError,
    ),
    "a value out of range": (ADD, {"name": "x", "age": 200}, ConstraintError),
    "an end that is not there": ('query e() { insert Knows { from: "ann", to: "nobody" } }', {}, ConstraintError),
}  # fmt: skip


@pytest.mark.once_on_s3
@pytest.mark.parametrize("case", MUTATIONS)
def test_a_mutation_that_is_refused_changes_nothing(shared: Reached, case: str) -> None:
    text, params, kind = MUTATIONS[case]
    before = head(shared, "main")

    with pytest.raises(kind) as caught:
        shared.mutate(text, params, actor=ACTOR)

    assert type(caught.value) is kind
    assert (head(shared, "main"), names(shared)) == (before, ["ann", "bob"])


def test_a_rule_that_would_be_broken_is_named_with_the_entity_and_the_place(shared: Reached) -> None:
    with pytest.raises(ConstraintError) as caught:
        shared.mutate(ADD, {"name": "x", "age": 200}, actor=ACTOR)

    (violation,) = caught.value.violations
    assert (violation.rule, violation.type_name, violation.entity_id) == ("range", "Person", "x")
    assert violation.properties == ("age",)
    assert caught.value.place is not None
    assert (caught.value.place.file, caught.value.place.line) == ("<query>", 1)


# Loads


@pytest.mark.parametrize(
    "mode, records, expected",
    [
        ("append", [record("cy", 3)], {"ann": 30, "bob": 40, "cy": 3}),
        ("merge", [record("ann", 31), record("cy", 3)], {"ann": 31, "bob": 40, "cy": 3}),
        ("overwrite", [record("ann", 1), record("bob", 2)], {"ann": 1, "bob": 2}),
    ],
)
def test_a_load_appends_merges_or_overwrites(
    shared: Reached, branch: str, mode: str, records: list[dict[str, Any]], expected: dict[str, int]
) -> None:
    done = shared.load(records, mode=mode, branch=branch, actor=ACTOR)

    assert ages(shared, branch) == expected
    assert (done.branch, done.mode, done.nodes, done.edges) == (branch, mode, {"Person": len(records)}, {})
    assert (done.commit, done.actor_id) == (shared.commits(branch)[0], ACTOR)
    assert (done.base_branch, done.branch_created) == (None, False)


def test_files_and_tables_of_any_format_are_loaded(shared: Reached, branch: str, tmp_path: Path) -> None:
    (tmp_path / "Person.csv").write_text("name,age\ncy,3\ndan,4\n")
    pq.write_table(pa.table({"from": ["cy"], "to": ["dan"]}), tmp_path / "Knows.parquet")
    (tmp_path / "more.jsonl").write_bytes('\ufeff{"type":"Person","data":{"name":"eve \u2028"}}'.encode())

    done = shared.load(tmp_path, mode="append", branch=branch, actor=ACTOR)
    tables = shared.load({"Person": pa.table({"name": ["fay"]})}, mode="append", branch=branch, actor=ACTOR)
    nothing = shared.load([], mode="append", branch=branch, actor=ACTOR)

    assert (done.nodes, done.edges, done.total) == ({"Person": 3}, {"Knows": 1}, 4)
    assert (tables.nodes, nothing.total, nothing.commit) == ({"Person": 1}, 0, None)
    assert names(shared, branch=branch) == ["ann", "bob", "cy", "dan", "eve \u2028", "fay"]


def test_records_that_cannot_be_loaded_are_all_told_by_file_and_line(
    shared: Reached, branch: str, tmp_path: Path
) -> None:
    before = head(shared, branch)
    good, bad = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    good.write_text('{"type":"Person","data":{"name":"cy"}}\n')
    bad.write_text(
        '{"type":"Person","data":{"name":"dan","age":"old"}}\n\n{"edge":"Knows","from":"ann","to":"nobody"}\n{"ty'
    )

    with pytest.raises(LoadRejectedError) as caught:
        shared.load([good, bad], mode="append", branch=branch, actor=ACTOR)

    found = [(one.rule, one.file, one.line) for one in caught.value.violations]
    assert [where for _, *where in found] == [[str(bad), 1], [str(bad), 3], [str(bad), 4]]
    assert [rule for rule, *_ in found] == ["type", "endpoint", "json"]
    assert f"{bad}:4: " in str(caught.value)
    assert head(shared, branch) == before


def test_rows_of_a_table_that_cannot_be_loaded_are_told_by_their_place(
    shared: Reached, branch: str, tmp_path: Path
) -> None:
    file = tmp_path / "Person.csv"
    file.write_text("name,age\ncy,3\nann,4\n")

    with pytest.raises(KeyConflictError) as caught:
        shared.load(file, mode="append", branch=branch, actor=ACTOR)

    (problem,) = caught.value.violations
    assert (problem.entity_id, problem.kind, problem.file, problem.line) == ("ann", "node", str(file), 3)
    file.write_text("name,age\ncy,old\n")
    with pytest.raises(LoadRejectedError, match=r"Person\.csv:2: "):
        shared.load(file, mode="append", branch=branch, actor=ACTOR)
    assert names(shared, branch=branch) == ["ann", "bob"]


def test_a_load_can_only_check_and_can_make_its_branch(shared: Reached, branch: str) -> None:
    new = f"{branch}-new"
    checked = shared.load([record("cy")], mode="append", branch=new, base=branch, actor=ACTOR, dry_run=True)
    assert (checked.total, checked.commit, new in shared.branches()) == (1, None, False)

    done = shared.load([record("cy")], mode="append", branch=new, base=branch, actor=ACTOR)

    assert (done.base_branch, done.branch_created) == (branch, True)
    assert (names(shared, branch=new), names(shared, branch=branch)) == (["ann", "bob", "cy"], ["ann", "bob"])


def test_data_that_is_none_is_refused(shared: Reached, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as mode:
        shared.load([], mode="replace")
    assert mode.value.option == "mode"
    with pytest.raises(InputNotFoundError):
        shared.load(tmp_path / "nothing.jsonl", mode="append")
    with pytest.raises(InputTypeError):
        shared.load({"Persn": pa.table({"name": ["x"]})}, mode="append")
    with pytest.raises(BranchNotFoundError):
        shared.load([record("x")], mode="append", branch="nowhere")


# Branches and tags


def test_a_branch_is_made_listed_and_deleted(shared: Reached, branch: str) -> None:
    name = f"{branch}.x"
    shared.create_branch(name, branch)
    shared.mutate(ADD, {"name": "cy"}, branch=name, actor=ACTOR)

    assert shared.branches()[0] == "main"
    assert {branch, name} <= {*shared.branches()}
    assert names(shared, branch=branch) == ["ann", "bob"]
    shared.delete_branch(name)
    assert name not in shared.branches()
    with pytest.raises(BranchNotFoundError) as caught:
        shared.delete_branch(name)
    assert caught.value.branch == name


def test_a_branch_that_cannot_be_made_says_why(shared: Reached, branch: str) -> None:
    for name in (branch, f"{branch}/below"):
        with pytest.raises(RefExistsError) as taken:
            shared.create_branch(name)
        assert taken.value.name == name
    with pytest.raises(RefNameError):
        shared.create_branch("a..b")
    with pytest.raises(BranchNotFoundError):
        shared.create_branch(f"{branch}.y", "nowhere")


def test_a_tag_stays_at_its_commit(shared: Reached, branch: str) -> None:
    name = branch.replace("/", ".")
    made = shared.create_tag(name, branch)
    shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR)

    assert (made.name, made.commit) == (name, shared.commits()[0])
    assert made in shared.tags()
    with pytest.raises(RefExistsError):
        shared.create_tag(name)
    shared.delete_tag(name)
    assert made not in shared.tags()
    with pytest.raises(TagNotFoundError) as caught:
        shared.delete_tag(name)
    assert caught.value.tag == name


# Merges


def test_a_merge_goes_forward_or_joins_two_sides(shared: Reached, branch: str) -> None:
    other = f"{branch}.other"
    shared.create_branch(other, branch)
    shared.mutate(ADD, {"name": "cy", "age": 3}, branch=other, actor=ACTOR)

    would = shared.merge(other, branch, actor=ACTOR, dry_run=True)
    forward = shared.merge(other, branch, actor=ACTOR)
    again = shared.merge(other, branch, actor=ACTOR)
    shared.mutate(ADD, {"name": "dan"}, branch=branch, actor=ACTOR)
    shared.mutate(AGE, {"name": "bob", "age": 41}, branch=other, actor=ACTOR)
    joined = shared.merge(other, branch, actor=ACTOR)

    assert (would.outcome, would.commit, forward.outcome) == ("fast_forward", None, "fast_forward")
    assert would.changes == forward.changes
    assert (again.outcome, again.commit) == ("already_up_to_date", None)
    assert (joined.source, joined.target, joined.outcome) == (other, branch, "merged")
    assert (joined.changes["node:Person"].updated, joined.commit) == (1, shared.commits(branch)[0])
    assert joined.commit is not None
    assert joined.commit.merged_parent_id == head(shared, other)
    assert ages(shared, branch) == {"ann": 30, "bob": 41, "cy": 3, "dan": None}


RESOLUTIONS: list[tuple[Any, int]] = [
    ("ours", 31),
    ({"Person": "theirs", "*": "ours"}, 32),
    ([{"table_key": "node:Person", "row_id": "ann", "take": "theirs"}], 32),
]


@pytest.mark.slow
def test_sides_that_contradict_each_other_are_refused_until_somebody_says_who_wins(
    shared: Reached, branch: str
) -> None:
    theirs = f"{branch}.theirs"
    shared.create_branch(theirs, branch)
    shared.mutate(AGE, {"name": "ann", "age": 31}, branch=branch, actor=ACTOR)
    shared.mutate(AGE, {"name": "ann", "age": 32}, branch=theirs, actor=ACTOR)
    before = head(shared, branch)

    with pytest.raises(MergeConflictError) as caught:
        shared.merge(theirs, branch, actor=ACTOR)

    (conflict,) = caught.value.conflicts
    assert (conflict.kind, conflict.table_key, conflict.id) == ("divergent_update", "node:Person", "ann")
    assert shared.merge(theirs, branch, dry_run=True).conflicts == (conflict,)
    assert conflict.message in str(caught.value)
    assert head(shared, branch) == before
    for at, (resolve, age) in enumerate(RESOLUTIONS):
        shared.create_branch(f"{branch}.{at}", branch)
        done = shared.merge(theirs, f"{branch}.{at}", actor=ACTOR, resolve=resolve)
        assert (done.outcome, done.conflicts, ages(shared, f"{branch}.{at}")["ann"]) == ("merged", (), age)
        assert done.commit is not None
        assert done.commit.details


def test_a_merge_that_has_no_meaning_is_refused(shared: Reached, branch: str) -> None:
    with pytest.raises(MergeError):
        shared.merge(branch, branch)
    with pytest.raises(BranchNotFoundError):
        shared.merge("nowhere", branch)
    with pytest.raises(ResolutionError):
        shared.merge(branch, resolve="mine")


def test_a_commit_is_undone_by_another(shared: Reached, branch: str) -> None:
    made = shared.mutate(AGE, {"name": "ann", "age": 31}, branch=branch, actor=ACTOR).commit
    shared.mutate(ADD, {"name": "cy"}, branch=branch, actor=ACTOR)
    assert made is not None

    done = shared.revert(made.commit_id, branch, actor=ACTOR)

    assert ages(shared, branch) == {"ann": 30, "bob": 40, "cy": None}
    assert (done.source, done.target, done.commit) == (made.commit_id, branch, shared.commits(branch)[0])
    shared.mutate(AGE, {"name": "ann", "age": 33}, branch=branch, actor=ACTOR)
    with pytest.raises(MergeConflictError):
        shared.revert(made.commit_id, branch)
    with pytest.raises(CommitNotFoundError):
        shared.revert("never", branch)


def test_nodes_that_are_the_same_are_merged_in_one_commit(shared: Reached, branch: str) -> None:
    shared.load([record("cy"), record("cyril")], mode="append", branch=branch, actor=ACTOR)
    planned = shared.resolve("Person", pairs=[["cy", "cyril"]], branch=branch, dry_run=True)
    assert (planned.commit, [(one.kept, one.merged) for one in planned.groups]) == (None, [("cy", ("cyril",))])

    done = shared.resolve("Person", pairs=[["cy", "cyril"]], branch=branch, actor=ACTOR)

    assert sorted(ages(shared, branch)) == ["ann", "bob", "cy"]
    assert (done.groups, done.merged, done.commit) == (planned.groups, 1, shared.commits(branch)[0])
    with pytest.raises(OptionError):
        shared.resolve("Person", branch=branch)


def test_work_on_a_branch_is_merged_when_it_ends_well_and_kept_when_not(shared: Reached, branch: str) -> None:
    name = f"{branch}.work"
    with shared.branch(name, base=branch, merge_into=branch, actor=ACTOR) as work:
        work.mutate(ADD, {"name": "cy"})
        work.load([record("dan")], mode="append")
        assert len(work.query(NAMES)) == 4

    assert names(shared, branch=branch) == ["ann", "bob", "cy", "dan"]
    assert name not in shared.branches()
    with pytest.raises(QueryError), shared.branch(name, base=branch, merge_into=branch) as work:
        work.query("nonsense")
    assert (name in shared.branches(), len(names(shared, branch=branch))) == (True, 4)


# The schema


def test_the_schema_is_planned_and_changed_and_the_past_keeps_its_own(own: Reached, tmp_path: Path) -> None:
    before = head(own, "main")
    wider = SCHEMA.replace("node Company { name: String @key }", "node Company { name: String @key  city: String? }")
    file = tmp_path / "wider.pg"
    file.write_text(wider)

    planned = own.plan_schema(file)
    done = own.apply_schema(file, actor=ACTOR)
    again = own.apply_schema(wider, actor=ACTOR)

    assert [step.to_dict()["kind"] for step in planned.plan.steps] == ["add_property"]
    assert (planned.applied, planned.plan.supported, planned.rows) == (False, True, {"node:Company": 1})
    assert (done.applied, done.plan, done.commit) == (True, planned.plan, own.commits()[0])
    assert (again.applied, again.commit, own.schema) == (False, None, wider)
    cities = "query c() { match { $c: Company } return { $c.city } }"
    assert own.query(cities).rows == [{"c.city": None}]
    with pytest.raises(QueryError):
        own.query(cities, snapshot=before)
    assert "city" not in own.at(before).catalog.nodes["Company"].properties
    assert own.diff(before, "main").schema.properties_added == ("node:Company.city",)


def test_a_schema_that_cannot_be_had_is_refused(own: Reached, tmp_path: Path) -> None:
    file = tmp_path / "wrong.pg"
    file.write_text("node Person {")
    with pytest.raises(SchemaError) as wrong:
        own.apply_schema(file)
    assert wrong.value.diagnostics[0].place.file == str(file)

    other = SCHEMA.replace("age: I32?", "age: String?").replace("@range(age, 0..150)", "")
    assert not own.plan_schema(other).plan.supported
    with pytest.raises(SchemaUnsupportedError) as refused:
        own.apply_schema(other)
    assert "OG-MF-106" in refused.value.steps[0]


def test_schemas_of_two_branches_are_merged_with_their_rows(own: Reached) -> None:
    own.create_branch("feature")
    renamed = SCHEMA.replace("age: I32?", 'years: I64? @rename_from("age")').replace("@range(age,", "@range(years,")
    assert own.apply_schema(renamed, branch="feature").applied
    own.apply_schema(SCHEMA + "node More { name: String @key }")
    own.mutate('query add() { insert Person { name: "New"  age: 7 } }')
    own.mutate('query add() { insert Person { name: "Far"  years: 8 } }', branch="feature")

    assert own.merge("feature").outcome == "merged"

    text = "query all() { match { $p: Person $p.years < 9 } return { $p.name, $p.years } order { $p.name asc } }"
    found = own.query(text).rows
    assert found == [{"p.name": "Far", "p.years": 8}, {"p.name": "New", "p.years": 7}]
    assert own.query("query all() { match { $m: More } return { $m.name } }").rows == []
