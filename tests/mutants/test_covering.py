"""Which tests are chosen against a mutant: those that execute its statement, cheap ones first."""

from __future__ import annotations

import pytest

from tests.mutants.covering import Map, statement

SOURCE = """\
LIMIT = 3


def first(value: int, least: int = 0) -> bool:
    if (
        value > least
        and value < LIMIT
    ):
        return True
    return False
"""
LINES = {4: [], 5: ["slow", "case[1]", "case[2]"], 9: ["case[1]"], 10: ["slow"]}
TESTS = Map({"one.py": LINES}, {"slow": 2.0, "case[1]": 0.1, "case[2]": 0.2, "elsewhere": 0.1})


@pytest.mark.parametrize("line, expected", [(1, (1, 1)), (4, (4, 4)), (7, (5, 8)), (9, (9, 9))])
def test_a_line_belongs_to_the_whole_statement_or_to_the_head_of_a_block(line: int, expected: tuple[int, int]) -> None:
    assert statement(SOURCE, line) == expected


def test_the_tests_of_a_statement_come_with_a_case_of_each_function_first() -> None:
    assert TESTS.tests("one.py", SOURCE, 7) == ["case[1]", "slow", "case[2]"]
    assert TESTS.tests("one.py", SOURCE, 9) == ["case[1]"]


@pytest.mark.parametrize("line", [1, 4])
def test_what_runs_at_import_concerns_all_tests_of_the_module(line: int) -> None:
    assert TESTS.tests("one.py", SOURCE, line) == ["case[1]", "slow", "case[2]"]


def test_a_line_that_no_test_executes_has_none() -> None:
    assert TESTS.tests("two.py", SOURCE, 9) == []
