"""Every query of the case files: its columns, their types and its rows, or the error that it raises."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import OmnigraphError
from omnigraph.graph import Graph
from tests.query.query_cases import QueryCase, load_query_cases

CASES = [case for path in sorted((Path(__file__).parent / "cases").glob("*.gq")) for case in load_query_cases(path)]
ANSWERED = [case for case in CASES if not case.error]
REFUSED = [case for case in CASES if case.error]
TESTED_ELSEWHERE = {("S", 12)}  # with an index and without: test_search.py


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("case", ANSWERED, ids=str)
def test_a_query_answers_what_its_case_lists(
    case: QueryCase,
    copy_of: Callable[[str], Graph],
    shared: Callable[[str], Graph],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    graph = copy_of(case.graph) if case.records else shared(case.graph)
    if case.records:
        graph.load(case.records, mode="append")

    found = graph.query(case.source, case.parameters)

    assert [f"{field.name}:{field.type}" for field in found.to_arrow().schema] == case.columns
    rows, expected = [*map(_comparable, found.rows)], [*map(_comparable, case.rows)]
    if not case.is_ordered:
        rows, expected = sorted(rows, key=repr), sorted(expected, key=repr)
    assert rows == expected


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Floats to six digits, for distances are of single precision."""
    return {name: _rounded(value) for name, value in row.items()}


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_query_that_cannot_be_answered_says_why(
    case: QueryCase, shared: Callable[[str], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OmnigraphError) as caught:
        shared(case.graph).query(case.source, case.parameters)

    assert case.error
    kind, fragment = case.error
    assert (type(caught.value).__name__, fragment in str(caught.value)) == (kind, True), caught.value


def test_every_numbered_behaviour_of_the_language_has_a_case() -> None:
    found = {(letter, int(number)) for case in CASES for letter, number in re.findall(r"\b([RFS])(\d+)\b", case.name)}
    numbered = {(letter, at) for letter, last in (("R", 43), ("F", 12), ("S", 12)) for at in range(1, last + 1)}
    assert found | TESTED_ELSEWHERE == numbered
