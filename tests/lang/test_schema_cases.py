"""Every schema in the `.pg` case files: accepted, or rejected with exactly the diagnostics it lists."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from omnigraph.errors import Diagnostic, SchemaError
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from tests.support.cases import Case, load_cases

CASES = [case for path in sorted(Path(__file__).parent.glob("cases/*.pg")) for case in load_cases(path)]
CODES = [f"P{number}" for number in range(1, 37)] + [f"C{number}" for number in range(1, 6)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_schema_produces_exactly_what_its_case_expects(case: Case) -> None:
    case.check(_diagnostics(case.source))


def test_windows_line_ends_change_no_diagnostic() -> None:
    changed = [case.name for case in CASES if _found(case.source) != _found(case.source.replace("\n", "\r\n"))]
    assert changed == []


def test_every_problem_is_shown_with_its_line_underlined() -> None:
    with pytest.raises(SchemaError) as caught:
        compile_schema(Source("node Person {\n  name String\n}\nedge Knows: Ghost -> Ghost @card(2..1)\n", "people.pg"))
    assert str(caught.value).split("\n") == [
        "people.pg:2:8: P1: unexpected `String`; expected `:`",
        "2 |   name String",
        "  |        ^^^^^^",
        "",
        "people.pg:4:34: P7: cardinality min 2 exceeds max 1",
        "4 | edge Knows: Ghost -> Ghost @card(2..1)",
        "  |                                  ^",
    ]
    assert caught.value.diagnostics[0].expected == ("`:`",)


def test_a_hopeless_text_yields_twenty_syntax_errors_at_most() -> None:
    assert len(_diagnostics("node Person { name }\n" * 20)) == 20
    assert len(_diagnostics("node Person { name }\n" * 50)) == 20


@pytest.mark.parametrize("code", CODES)
def test_every_code_of_the_schema_language_has_a_case(code: str) -> None:
    assert code in {expected.code for case in CASES for expected in case.expected}


def test_every_case_has_a_sentence_of_its_own() -> None:
    assert [name for name, times in Counter(case.name for case in CASES).items() if times > 1] == []


def _diagnostics(text: str) -> tuple[Diagnostic, ...]:
    try:
        compile_schema(Source(text, "schema.pg"))
    except SchemaError as error:
        return error.diagnostics
    return ()


def _found(text: str) -> list[tuple[str, int, int, str]]:
    return [(found.code, found.place.line, found.place.column, found.message) for found in _diagnostics(text)]
