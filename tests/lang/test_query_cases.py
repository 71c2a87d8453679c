"""Every query in the `.gq` case files: accepted, or rejected with exactly the diagnostics it lists."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from omnigraph.errors import Diagnostic, QueryError
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.compiler import compile_query, parse_queries
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from tests.support.cases import Case, load_cases

FOLDER = Path(__file__).parent / "cases"
CASES = [case for path in sorted(FOLDER.glob("*.gq")) for case in load_cases(path)]
CODES = [
    *("Q000", "D2", *(f"T{number}" for number in range(25))),
    *(f"T{number}" for number in (38, 39, 40, 41, 42, 43, 44, 45, 56, 57, 58)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_query_produces_exactly_what_its_case_expects(case: Case) -> None:
    case.check(_diagnostics(case.source, _catalog(case.file)))


@pytest.mark.slow
def test_windows_line_ends_change_no_diagnostic() -> None:
    changed = [case.name for case in CASES if _found(case) != _found(case, line_end="\r\n")]
    assert changed == []


@pytest.mark.parametrize(
    "source, advice",
    [
        ("query q() { match { $p: Person } return { $p } order { $p.name $p.age } }", "literal"),
        ("query q() { match { $p: Person } return { $p } limit $p }", "literal"),
        ("query q() { delete Person where $p.name = 1 }", "literal"),
        ("query q() { match { $p: Person $p.height > 1.5e3 } return { $p } }", "digit before the decimal point"),
        ("query q() { match { $p: Person } return { $p } limit 1.5 }", "digit before the decimal point"),
    ],
)
def test_advice_that_does_not_apply_is_not_given(source: str, advice: str) -> None:
    (found,) = _diagnostics(source, _catalog("queries.gq"))
    assert advice not in (found.hint or "")


@pytest.mark.parametrize("code", CODES)
def test_every_code_of_the_query_language_has_a_case(code: str) -> None:
    assert code in {expected.code for case in CASES for expected in case.expected}


def test_every_case_of_a_file_has_a_sentence_of_its_own() -> None:
    names = Counter((case.file, case.name) for case in CASES)
    assert [name for name, times in names.items() if times > 1] == []


@cache
def _catalog(case_file: str) -> Catalog:
    """Compile the schema of a case file: the one of its name, or the shared one."""
    own = FOLDER / Path(case_file).with_suffix(".schema")
    return compile_schema(Source.read(own if own.exists() else FOLDER / "queries.schema"))


def _diagnostics(text: str, catalog: Catalog) -> list[Diagnostic]:
    """Compile every query of a text, and collect what is wrong with it."""
    source = Source(text, "queries.gq")
    found: list[Diagnostic] = []
    try:
        names = [query.name for query in parse_queries(source).queries]
    except QueryError as error:
        return [*error.diagnostics]
    assert len(set(names)) == len(names), "of two queries with one name only the first would be checked"
    for name in names:
        try:
            compile_query(source, catalog, name)
        except QueryError as error:
            found += error.diagnostics
    return found


def _found(case: Case, line_end: str = "\n") -> list[tuple[str, int, int, str]]:
    text = case.source.replace("\n", line_end)
    diagnostics = _diagnostics(text, _catalog(case.file))
    return [(found.code, found.place.line, found.place.column, found.message) for found in diagnostics]
