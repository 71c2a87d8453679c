"""An error is told in the form that programs rely on, and a client of ours raises the same one again."""

from __future__ import annotations

import inspect
import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph import errors
from omnigraph.api import problems
from omnigraph.errors import (
    CompileError,
    Diagnostic,
    MergeConflict,
    OmnigraphError,
    Place,
    ProblemCount,
    ServerAnswerError,
    Violation,
)

CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, OmnigraphError)]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
PLACES = st.builds(Place, file=TEXTS, text=TEXTS, line=st.integers(1, 9), column=st.integers(1, 9))
DIAGNOSTICS = st.builds(Diagnostic, place=PLACES, code=TEXTS, message=TEXTS)
FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str | None: st.none() | TEXTS,
    list[str]: st.lists(TEXTS, max_size=3),
    Place | None: st.none() | PLACES,
    tuple[ProblemCount, ...]: st.lists(st.builds(ProblemCount), max_size=2).map(tuple),
    tuple[Violation, ...]: st.lists(st.builds(Violation), min_size=1, max_size=2).map(tuple),
    tuple[MergeConflict, ...]: st.lists(st.builds(MergeConflict), max_size=2).map(tuple),
}


@st.composite
def of_class(draw: st.DrawFn, kind: type[OmnigraphError]) -> OmnigraphError:
    if issubclass(kind, CompileError):
        return kind.of(draw(st.lists(DIAGNOSTICS, min_size=1, max_size=2)))
    hints = get_type_hints(kind, {**vars(errors.base), **vars(errors)})
    fields = {name: draw(FIELDS[hints[name]]) for name in kind.field_names}
    return kind(draw(TEXTS), hint=draw(st.none() | TEXTS), **fields)


def facts(error: OmnigraphError) -> tuple[Any, ...]:
    fields = {name: getattr(error, name) for name in error.field_names}
    return type(error), error.message, error.hint, fields, str(error)


def sent(body: dict[str, Any]) -> Any:
    return json.loads(json.dumps(body))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_told_in_one_form_and_raised_again_as_it_was(kind: type[OmnigraphError]) -> None:
    @settings(max_examples=6)
    @given(of_class(kind))
    def comes_back(error: OmnigraphError) -> None:
        body = problems.body(error, full=True)
        assert facts(problems.raised(problems.status(error), sent(body))) == facts(error)
        problem = body.pop("problem")
        assert body == problems.body(error, full=False)
        assert problem["type"] == kind.__name__
        assert [body.pop("error"), body.pop("code", None) in CODES] == [str(error), True]
        assert len(body) <= 1

    comes_back()


CODES = {
    None, "unauthorized", "forbidden", "bad_request", "not_found", "method_not_allowed", "conflict",
    "too_many_requests", "internal",
}  # fmt: skip
CONFLICT = MergeConflict("divergent_update", "node:Person", "ann", "both changed it")
KEY = Violation("key", "Person", "ann", ("id",), "taken", 0, kind="node")

BODIES: dict[str, tuple[OmnigraphError, int, str]] = {
    "a table that moved": (
        errors.ExpectedVersionMismatchError("m", table_key="node:Person", expected=5, actual=6, hint="h"),
        409,
        (
            '{"error": "m\\nhint: h", "code": "conflict", '
            '"manifest_conflict": {"table_key": "node:Person", "expected": 5, "actual": 6}}'
        ),
    ),
    "the head of a branch that moved": (
        errors.ExpectedVersionMismatchError("m", table_key="graph_head", expected=5, actual=6),
        409,
        (
            '{"error": "m", "code": "conflict", '
            '"read_set_conflict": {"member": "graph_head", "expected": "5", "actual": "6"}}'
        ),
    ),
    "an id that is taken": (
        errors.KeyConflictError("m", violations=(KEY,)),
        409,
        (
            '{"error": "m\\n  taken", "code": "conflict", "key_conflict": {"table_key": "node:Person", "key": "ann", '
            '"entity_kind": "node", "type_name": "Person", "entity_id": "ann"}}'
        ),
    ),
    "sides that contradict each other": (
        errors.MergeConflictError("m", conflicts=(CONFLICT,)),
        409,
        (
            '{"error": "m\\n  divergent_update: both changed it", "code": "conflict", "merge_conflicts": '
            '[{"table_key": "node:Person", "row_id": "ann", "kind": "divergent_update", "message": "both changed it"}]}'
        ),
    ),
    "a commit that cannot be told": (
        errors.ChangeRefusedError("m", commit_id="c", reason="parentless_commit"),
        409,
        (
            '{"error": "m", "code": "conflict", '
            '"change_diff_refusal": {"graph_commit_id": "c", "reason": "parentless_commit"}}'
        ),
    ),
    "a branch that is there": (errors.RefExistsError("m", name="x"), 409, '{"error": "m", "code": "conflict"}'),
    "a past that is gone": (
        errors.HistoryReclaimedError("m", commit_id="c"),
        410,
        '{"error": "m", "change_feed_gap": {"first_unreadable_commit_id": "c"}}',
    ),
    "a condition that is lost": (
        errors.PreconditionFailedError("m", expected="a", actual=None),
        412,
        '{"error": "m", "precondition_failure": {"expected": "a", "actual": null}}',
    ),
    "too much": (
        errors.ResourceLimitError("m", resource="changes", limit=1, actual=2),
        413,
        '{"error": "m", "code": "bad_request", "resource_limit": {"resource": "changes", "limit": 1, "actual": 2}}',
    ),
    "half-way": (
        errors.RecoveryRequiredError("m", operation_id="o"),
        503,
        '{"error": "m", "recovery_required": {"operation_id": "o"}}',
    ),
    "not known yet": (
        errors.OutcomeUnknownError("m", operation_id="o"),
        503,
        '{"error": "m", "recovery_required": {"operation_id": "o"}}',
    ),
    "no token": (errors.UnauthorizedError("m"), 401, '{"error": "m", "code": "unauthorized"}'),
    "not allowed": (errors.ForbiddenError("m", action="change"), 403, '{"error": "m", "code": "forbidden"}'),
    "no branch": (errors.BranchNotFoundError("m", branch="b"), 404, '{"error": "m", "code": "not_found"}'),
    "a parameter": (errors.ParameterError("m", parameter="p"), 400, '{"error": "m", "code": "bad_request"}'),
    "too many": (errors.TooManyRequestsError("m"), 429, '{"error": "m", "code": "too_many_requests"}'),
    "storage": (errors.StorageError("m", path="p", operation="read"), 500, '{"error": "m", "code": "internal"}'),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_is_byte_for_byte_what_programs_expect(case: str) -> None:
    error, status, expected = BODIES[case]

    assert problems.status(error) == status
    assert json.dumps(problems.body(error, full=False)) == expected


@pytest.mark.parametrize(
    "told",
    [None, [], "text", {}, {"error": 3}, {"problem": None}, {"problem": {"type": "Exception"}}, {"problem": "x"},
     {"problem": {"type": 3}}, {"problem": {"type": "Place"}}, {"problem": {"type": "StorageError"}},
     {"problem": {"type": "StorageError", "message": "m", "hint": None, "fields": {}}}],
)  # fmt: skip
def test_an_answer_that_is_not_ours_is_told_by_its_status(told: Any) -> None:
    error = problems.raised(502, told)

    assert type(error) is ServerAnswerError
    assert (error.status, error.message) == (502, "the server answered with status 502")


def test_an_answer_of_another_make_is_told_by_its_text() -> None:
    error = problems.raised(404, {"error": "branch 'x' not found", "code": "not_found"})

    assert isinstance(error, ServerAnswerError)
    assert (error.message, error.status) == ("branch 'x' not found", 404)
