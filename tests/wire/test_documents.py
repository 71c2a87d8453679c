"""Whatever an engine answers comes back from its document as it was, also through JSON."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.api import arrow, documents
from omnigraph.api import operations as op
from omnigraph.api.changes import Baseline, Change, ChangeBlock, ChangeOperation, ChangePage, DiffStats, EntityKind
from omnigraph.api.codec import FORMS
from omnigraph.api.options import EntityTake, LoadMode, Resolution, TakeValue
from omnigraph.api.results import (
    Candidate,
    ChangeCounts,
    Commit,
    Entry,
    LoadResult,
    LogEntry,
    MergeOutcome,
    MergeResult,
    MutationResult,
    NamedState,
    ResolvedGroup,
    ResolveResult,
    SchemaResult,
    SchemaRow,
    Snapshot,
    TableVersion,
    Tag,
)
from omnigraph.api.rows import Explanation, PlanStep, Result
from omnigraph.errors import MergeConflict, ResolutionError
from omnigraph.lang import schema_steps
from omnigraph.lang.schema_steps import SchemaPlan

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = st.sampled_from(["a", "b", "Person", "Knows"])
COUNTS = st.dictionaries(NAMES, st.integers(0, 9), max_size=3)
COMMITS = st.builds(Commit, details=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2))
MAYBE = st.none() | COMMITS
TABLES = st.builds(TableVersion, key=st.sampled_from(["node:A", "edge:B"]))
ENTRIES = st.lists(st.builds(Entry, table=TABLES), max_size=2).map(lambda found: {one.key: one for one in found})
CONFLICTS = st.lists(st.builds(MergeConflict), max_size=2).map(tuple)
KINDS = [one for one in vars(schema_steps).values() if isinstance(one, type) and schema_steps.Step in one.__bases__]
STEPS = st.one_of([st.builds(one) for one in KINDS])
VALUES = st.none() | st.booleans() | st.integers() | TEXTS | st.floats(allow_nan=False, allow_infinity=False)
IMAGES = st.fixed_dictionaries({"name": TEXTS, "age": VALUES, "photo": st.none() | st.binary(max_size=4)})


@st.composite
def changed(draw: st.DrawFn) -> Change:
    operation, kind = draw(st.sampled_from(ChangeOperation)), draw(st.sampled_from(EntityKind))
    before = None if operation is ChangeOperation.INSERT else draw(IMAGES)
    after = None if operation is ChangeOperation.DELETE else draw(IMAGES)
    ends = draw(st.tuples(TEXTS, TEXTS)) if kind is EntityKind.EDGE else None
    names = draw(st.sampled_from([("age",), ("src", "age")])) if operation is ChangeOperation.UPDATE else ()
    return Change(operation, kind, draw(NAMES), draw(TEXTS), ends, before, after, names)


BLOCKS = st.builds(ChangeBlock, cause=COMMITS, changes=st.lists(changed(), max_size=2).map(tuple))
PAGES = st.builds(ChangePage, blocks=st.lists(BLOCKS, max_size=2).map(tuple))
ONE_BLOCK = st.builds(ChangePage, blocks=BLOCKS.map(lambda one: (one,)))
STEPS_RUN = st.recursive(
    st.builds(PlanStep, seconds=st.floats(0, 9), inner=st.just([])),
    lambda inner: st.builds(PlanStep, seconds=st.floats(0, 9), inner=st.lists(inner, max_size=1)),
    max_leaves=2,
)
STATS = st.builds(
    DiffStats,
    counts=st.dictionaries(TEXTS, st.dictionaries(st.sampled_from(ChangeOperation), st.integers(1, 9)), max_size=2),
)

BESIDE = {"uri": "uri", "actor": "actor"}  # what an answer says beside the result

# What an engine answers, and what its document is looked up by: the type, or the operation.
ANSWERS: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "commit": (COMMITS, Commit),
    "state": (st.builds(NamedState, commit=MAYBE), NamedState),
    "snapshot": (
        st.builds(Snapshot, branch=st.none() | NAMES, entries=ENTRIES, schema=st.none() | st.builds(SchemaRow)),
        Snapshot,
    ),
    "log": (st.builds(LogEntry, commit=COMMITS), LogEntry),
    "tag": (st.builds(Tag, commit=COMMITS), Tag),
    "branches": (st.lists(NAMES, unique=True).map(lambda names: ["main", *sorted(names)]), op.ListBranches),
    "outcome": (MAYBE, op.FindOutcome),
    "tags": (st.lists(st.builds(Tag, commit=COMMITS), max_size=2), op.ListTags),
    "mutation": (st.builds(MutationResult, commit=MAYBE), MutationResult),
    "load": (
        st.builds(LoadResult, mode=st.sampled_from(LoadMode), nodes=COUNTS, edges=COUNTS, commit=MAYBE),
        LoadResult,
    ),
    "resolve": (
        st.builds(
            ResolveResult,
            candidates=st.lists(st.builds(Candidate, score=st.floats(0, 1)), max_size=2).map(tuple),
            groups=st.lists(st.builds(ResolvedGroup), max_size=2).map(tuple),
            commit=MAYBE,
        ),
        ResolveResult,
    ),
    "merge": (
        st.builds(
            MergeResult,
            outcome=st.sampled_from(MergeOutcome),
            changes=st.dictionaries(TEXTS, st.builds(ChangeCounts), max_size=2),
            conflicts=CONFLICTS,
            commit=MAYBE,
        ),
        op.MergeBranch,
    ),
    "revert": (
        st.builds(
            MergeResult, outcome=st.sampled_from(MergeOutcome), changes=st.just({}), conflicts=CONFLICTS, commit=MAYBE
        ),
        op.RevertCommit,
    ),
    "schema": (
        st.builds(SchemaResult, plan=st.lists(STEPS, max_size=3).map(tuple).map(SchemaPlan), rows=COUNTS, commit=MAYBE),
        op.ApplySchema,
    ),
    "explanation": (
        st.builds(Explanation, commit=MAYBE, steps=st.lists(STEPS_RUN, max_size=2), seconds=st.floats(0, 9)),
        Explanation,
    ),
    "feed": (PAGES, ChangePage),
    "changes of a commit": (ONE_BLOCK, op.ReadCommitChanges),
    "baseline": (st.builds(Baseline), Baseline),
    "stats": (STATS, DiffStats),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_comes_back_from_its_document_as_it_was(kind: str) -> None:
    answers, key = ANSWERS[kind]
    form = FORMS[key]

    @settings(max_examples=25)
    @given(answers)
    def comes_back(answer: Any) -> None:
        again = form.read(json.loads(json.dumps(form.write(answer, BESIDE))))
        assert again == answer
        assert type(again) is type(answer)

    comes_back()


def test_every_kind_of_step_comes_back() -> None:
    assert len(KINDS) == 17
    assert {*KINDS} == {*documents._STEPS.values()}


def test_a_planned_schema_is_one_that_was_not_applied() -> None:
    done = SchemaResult(SchemaPlan((schema_steps.AddType("node", "A"),)), False, 3, {"node:A": 0})  # noqa: FBT003

    assert documents.SCHEMA_PLAN.read(documents.SCHEMA_PLAN.write(done, BESIDE)) == done


TAKES = st.sampled_from(["ours", "theirs", "union", TakeValue(None), TakeValue([1, "a"])])


@given(
    st.builds(
        Resolution,
        st.sampled_from([None, "ours", "theirs"]),
        st.dictionaries(NAMES, st.sampled_from(["ours", "theirs"]), max_size=2)
        | st.dictionaries(NAMES.map(lambda name: f"{name}.p"), TAKES, max_size=2),
        st.dictionaries(
            st.tuples(NAMES, TEXTS),
            st.builds(EntityTake, st.sampled_from(["ours", "theirs"]), st.dictionaries(NAMES, TAKES, max_size=2)),
            max_size=2,
        ),
        st.none() | st.tuples(NAMES, NAMES),
    )
)
def test_a_resolution_comes_back_in_whatever_form_it_was_given(resolution: Resolution) -> None:
    assert documents.resolution_of(json.loads(json.dumps(resolution.to_dict()))) == resolution


@pytest.mark.parametrize("given", ["ours", {"Person": "theirs"}, [{"table_key": "a", "row_id": "b", "take": "ours"}]])
def test_a_resolution_is_understood_as_callers_write_it(given: Any) -> None:
    assert documents.resolution_of(given) == Resolution.of(given)


@pytest.mark.parametrize("given", ["mine", {"types": {"A": "mine"}}, {"default": "mine"}, {"entities": [{}]}, [3]])
def test_a_resolution_that_says_nothing_is_refused(given: Any) -> None:
    with pytest.raises(ResolutionError):
        documents.resolution_of(given)


# Both vocabularies


def test_a_commit_and_a_load_are_told_in_both_vocabularies() -> None:
    commit = Commit("c", "review", 7, "p", None, "eve", 9)
    assert documents.to_document(commit) == {
        "graph_commit_id": "c",
        "manifest_branch": "review",
        "manifest_version": 7,
        "parent_commit_id": "p",
        "merged_parent_commit_id": None,
        "actor_id": "eve",
        "created_at": 9,
        "graph_branch": "review",
        "graph_manifest_version": 7,
    }
    told = documents.INGEST.write(LoadResult("main", LoadMode.MERGE, {"A": 2}, {"B": 1}, None, None), {"uri": "u"})
    assert told == {
        "uri": "u",
        "branch": "main",
        "base_branch": None,
        "branch_created": False,
        "mode": "merge",
        "tables": [{"table_key": "edge:B", "rows_loaded": 1}, {"table_key": "node:A", "rows_loaded": 2}],
        "nodes": [{"name": "A", "entities_loaded": 2, "rows_loaded": 2}],
        "edges": [{"name": "B", "entities_loaded": 1, "rows_loaded": 1}],
        "total_entities": 3,
        "total_rows": 3,
        "actor_id": None,
        "commit": None,
    }


def test_a_changed_edge_has_its_ends_where_they_are_known() -> None:
    moved = Change(ChangeOperation.UPDATE, EntityKind.EDGE, "Knows", "k", ("a", "b"), {"n": 1}, {"n": 2}, ("src", "n"))

    assert documents.to_document(moved) == {
        "kind": "edge",
        "type": {"id": "edge:Knows", "name": "Knows"},
        "id": "k",
        "op": "update",
        "before": {"properties": {"n": 1}},
        "after": {"properties": {"n": 2}, "endpoints": {"from": "a", "to": "b"}},
        "changed": ["src", "n"],
    }


# Arrow


@pytest.mark.parametrize("rows", [0, 3])
def test_the_rows_of_an_answer_come_back_in_the_columns_they_were_in(rows: int) -> None:
    columns = [
        pa.array([at % 2 == 0 for at in range(rows)]),
        pa.array([[at] for at in range(rows)], pa.list_(pa.int32())),
    ]
    table = pa.Table.from_arrays(columns, names=["same", "same"])
    result = Result("q", "review/x", table, Commit("c", None, 1, None, None, None, 5))

    again = arrow.result_of(arrow.stream_of(result, "c"))

    assert again.table.equals(table, check_metadata=True)
    assert again.table.schema.metadata is None
    assert (again.query_name, again.branch, again.commit) == ("q", "review/x", result.commit)
