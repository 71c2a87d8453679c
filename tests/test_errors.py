import copy
import inspect
import json
import os
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from mypy import api as mypy
from rich.cells import cell_len

import omnigraph
from omnigraph import errors
from omnigraph.errors import (
    CompileError,
    Diagnostic,
    MergeConflict,
    OmnigraphError,
    Place,
    ProblemCount,
    SourceError,
    Violation,
)
from omnigraph.lang import Source, compile_schema
from omnigraph.lang.source import Span

_PLACE = Place("schema.pg", 1, 6, 1, "node {")
_DIAGNOSTIC = Diagnostic("P1", "unexpected `{`", _PLACE, "name the type", ("a type name",))
_VIOLATION = Violation("range", "Book", "notes", ("pages",), "0 pages", 2, "write more")
_CONFLICT = MergeConflict(
    "divergent_update", "node:Book", "notes", "Book 'notes' was changed differently on both sides"
)
_SAMPLES: dict[Any, object] = {
    str: "text",
    int: 3,
    float: 2.5,
    str | None: "text",
    list[str]: ["a", "b"],
    Place | None: _PLACE,
    tuple[Violation, ...]: (_VIOLATION, _VIOLATION),
    tuple[ProblemCount, ...]: (ProblemCount("range", "Book", 2),),
    tuple[MergeConflict, ...]: (_CONFLICT, _CONFLICT),
}


def _made(class_: type[OmnigraphError]) -> OmnigraphError:
    """Make an error of the class, with a sample of the declared type in each of its fields."""
    if issubclass(class_, CompileError):
        return class_.of([_DIAGNOSTIC, _DIAGNOSTIC])
    types = get_type_hints(class_, {**vars(errors.base), **vars(errors)})
    fields = {name: _SAMPLES[types[name]] for name in class_.field_names}
    return class_("it broke", hint="try again", **fields)


def _classes() -> dict[str, type[OmnigraphError]]:
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: class_ for name, class_ in found if issubclass(class_, OmnigraphError)}


def _drawn_tree() -> dict[str, str | None]:
    """Read the tree in the docstring: each class and its parent."""
    parents: dict[str, str | None] = {}
    ancestors: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip("│├└─ ").split(" ")[0]
        if name.endswith("Error"):
            depth, rest = divmod(line.index(name), 4)
            assert rest == 0, line
            ancestors[depth:] = [name]
            parents[name] = ancestors[depth - 1] if depth else None
    return parents


@pytest.fixture(params=sorted(_classes()))
def error(request: pytest.FixtureRequest) -> OmnigraphError:
    return _made(_classes()[request.param])


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    real = {name: class_.__base__.__name__ for name, class_ in _classes().items() if class_.__base__}

    assert _drawn_tree() == {**real, "OmnigraphError": None}
    assert omnigraph.errors is errors


def test_every_class_says_something_in_the_docstring_tree_and_in_its_own() -> None:
    drawn = [line for line in (errors.__doc__ or "").splitlines() if "Error " in line]

    assert len(drawn) == len(_classes())
    assert all(class_.__doc__ for class_ in _classes().values())


def test_codes_are_unique() -> None:
    codes = [class_.code for class_ in _classes().values()]

    assert len(set(codes)) == len(codes)


def test_every_code_of_the_first_release_still_exists() -> None:
    released = Path(__file__).with_name("error-codes-0.1.txt").read_text().split()

    assert len(released) == 108
    assert set(released) <= {class_.code for class_ in _classes().values()}


def test_a_star_import_brings_the_errors_and_the_values_they_hold() -> None:
    assert set(errors.__all__) == {
        *_classes(),
        "Diagnostic",
        "MergeConflict",
        "Place",
        "ProblemCount",
        "PropertyConflict",
        "Violation",
    }


# Fields

_USER_CODE = """\
from omnigraph.errors import CompileError, OmnigraphError, SchemaError, TagNotFoundError, ValueRejectedError

TagNotFoundError("no such tag", tag="v1")
TagNotFoundError("no such tag", tag="v1", hint="create it")
TagNotFoundError("no such tag", tga="v1")  # call-arg
TagNotFoundError("no such tag")  # call-arg
TagNotFoundError("no such tag", tag=1)  # arg-type
TagNotFoundError("no such tag", "create it", tag="v1")  # call-arg
TagNotFoundError(tag="v1")  # call-arg
ValueRejectedError("too big", type_name="Book", property="pages", place=None)
ValueRejectedError("too big", type_name="Book", property="pages")  # call-arg
SchemaError("wrong", diagnostics=())
SchemaError("wrong", diagnostic=())  # call-arg
TagNotFoundError("no such tag", tag="v1").tga  # attr-defined


class NewError(OmnigraphError):  # call-arg
    pass
"""


@pytest.mark.slow
def test_a_wrong_field_is_an_error_for_mypy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A package with the errors alone: importing the real one makes mypy read all of it.
    (tmp_path / "omnigraph").mkdir()
    (tmp_path / "omnigraph" / "__init__.py").touch()
    (tmp_path / "omnigraph" / "errors").symlink_to(Path(errors.__file__).parent)
    (tmp_path / "user.py").write_text(_USER_CODE)
    monkeypatch.chdir(tmp_path)

    report, _, status = mypy.run(["--strict", "--config-file", os.devnull, "--no-error-summary", "user.py"])

    lines = enumerate(_USER_CODE.splitlines(), start=1)
    expected = {(number, line.split("  # ")[1]) for number, line in lines if "  # " in line}
    found = re.findall(r"user\.py:(\d+): error: .*\[([a-z-]+)\]", report)
    assert status == 1
    assert {(int(number), code) for number, code in found} == expected, report


@pytest.mark.parametrize("fields", [{"tga": "v1"}, {}, {"tag": "v1", "tga": "v1"}], ids=str)
def test_a_wrong_field_is_a_type_error_at_run_time(fields: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="TagNotFoundError takes the fields"):
        errors.TagNotFoundError("no such tag", **fields)


def test_every_error_carries_what_a_program_and_a_person_need(error: OmnigraphError) -> None:
    assert error.code == type(error).__dict__["code"]
    assert error.code.isidentifier()
    assert error.code == error.code.lower()
    assert 400 <= error.http_status < 600
    assert error.message
    assert error.message in str(error)
    assert error.hint
    assert f"hint: {error.hint}" in str(error)
    assert json.loads(json.dumps(error.details())) == error.details()


def _facts(error: OmnigraphError) -> tuple[Any, ...]:
    return type(error), error.code, error.message, error.hint, error.details(), str(error), error.args


@pytest.mark.parametrize(
    "again",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],  # noqa: S301 - our own bytes
    ids=["pickle", "copy", "deepcopy"],
)
def test_every_error_survives_pickling_and_copying(
    error: OmnigraphError, again: Callable[[OmnigraphError], OmnigraphError]
) -> None:
    assert _facts(again(error)) == _facts(error)


def test_details_hold_the_declared_fields_and_nothing_else() -> None:
    problem = errors.QueryNotFoundError("no such query", available=["a", "b"])

    assert problem.details() == {"available": ["a", "b"]} == {"available": problem.available}
    assert problem.hint is None
    assert errors.LiteralError("no date").details() == {}


def test_a_compile_error_tells_every_diagnostic_and_leads_with_the_first() -> None:
    other = Diagnostic("P2", "reserved", Place("schema.pg", 3, 1, 2, "id"))
    problem = CompileError.of([_DIAGNOSTIC, other])

    assert (problem.message, problem.hint) == (_DIAGNOSTIC.message, _DIAGNOSTIC.hint)
    assert str(problem) == f"{_DIAGNOSTIC}\n\n{other}"
    assert [found["code"] for found in problem.details()["diagnostics"]] == ["P1", "P2"]


def test_a_compile_error_needs_a_diagnostic() -> None:
    with pytest.raises(IndexError):
        CompileError.of([])


# Places and violations


def test_an_error_with_a_place_reads_as_a_diagnostic_does() -> None:
    problem = errors.ValueRejectedError("too big", type_name="Book", property="pages", place=_PLACE, hint="shrink it")

    assert str(problem) == "schema.pg:1:6: too big\n1 | node {\n  |      ^\nhint: shrink it"
    assert problem.details() == {
        "type_name": "Book",
        "property": "pages",
        "place": {"file": "schema.pg", "line": 1, "column": 6},
    }


def test_an_error_whose_place_is_not_known_reads_as_any_other() -> None:
    problem = errors.ConstraintError("too few edges", place=None, violations=(_VIOLATION,), hint="add one")

    assert str(problem) == "too few edges\nhint: add one"
    assert problem.details() == {"place": None, "violations": [_VIOLATION.to_dict()]}


def test_a_violation_names_what_broke_which_rule() -> None:
    assert _VIOLATION.to_dict() == {
        "file": None,
        "line": None,
        "rule": "range",
        "type": "Book",
        "id": "notes",
        "properties": ["pages"],
        "message": "0 pages",
    }


@pytest.mark.parametrize(
    "file, line, shown",
    [(None, None, "0 pages"), ("a.jsonl", None, "a.jsonl: 0 pages"), ("a.jsonl", 7, "a.jsonl:7: 0 pages")],
)
def test_a_violation_tells_the_file_and_the_line_it_comes_from(file: str | None, line: int | None, shown: str) -> None:
    assert str(replace(_VIOLATION, file=file, line=line)) == shown


@pytest.mark.parametrize("count, rest", [(1, ""), (20, ""), (21, "\n  and 1 more"), (2020, "\n  and 2,000 more")])
def test_a_rejected_load_shows_the_first_problems_and_counts_the_rest(count: int, rest: str) -> None:
    problem = errors.LoadRejectedError("refused", violations=(_VIOLATION,) * count, hint="fix them")

    shown = min(count, 20)
    assert str(problem) == "refused" + "\n  0 pages" * shown + rest + "\nhint: fix them"
    assert problem.details() == {"count": count, "counts": [], "violations": [_VIOLATION.to_dict()] * shown}


def test_a_rejected_load_counts_the_problems_that_it_does_not_have() -> None:
    counts = (ProblemCount("range", "Book", 30_000), ProblemCount("json", None, 2))
    problem = errors.LoadRejectedError("refused", violations=(_VIOLATION,) * 30, counts=counts)

    assert str(problem).endswith("\n  and 29,982 more\n  in all: 30,000 range of Book, 2 json")
    assert (problem.count, problem.details()["counts"][1]) == (30_002, {"rule": "json", "type": None, "count": 2})


@pytest.mark.parametrize("count, rest", [(1, ""), (20, ""), (21, "\n  and 1 more"), (2020, "\n  and 2,000 more")])
def test_a_refused_merge_shows_the_first_conflicts_and_has_all_of_them(count: int, rest: str) -> None:
    problem = errors.MergeConflictError("refused", conflicts=(_CONFLICT,) * count, hint="choose")

    shown = f"\n  divergent_update: {_CONFLICT.message}" * min(count, 20)
    assert str(problem) == f"refused{shown}{rest}\nhint: choose"
    assert problem.details() == {"merge_conflicts": [_CONFLICT.to_dict()] * count}


# Diagnostics


def test_a_diagnostic_reads_as_place_source_line_caret_and_hint() -> None:
    assert str(_DIAGNOSTIC) == (
        "schema.pg:1:6: P1: unexpected `{`\n"
        "1 | node {\n"
        "  |      ^\n"
        "hint: name the type"
    )  # fmt: skip


def test_a_diagnostic_without_a_hint_ends_with_its_caret() -> None:
    assert str(Diagnostic("P1", "m", _PLACE)).splitlines()[-1].strip(" |") == "^"


def test_a_diagnostic_as_json_has_the_place_spread_out() -> None:
    assert _DIAGNOSTIC.to_dict() == {
        "code": "P1",
        "message": "unexpected `{`",
        "file": "schema.pg",
        "line": 1,
        "column": 6,
        "length": 1,
        "hint": "name the type",
        "expected": ["a type name"],
    }


def _underlined(text: str, target: str) -> tuple[str, str]:
    """Underline `target` in a source: the shown line and the carets, both without their gutters."""
    at = text.index(target)
    shown, carets = Source(text).place(Span(at, at + len(target))).underlined().splitlines()
    gutter = shown.index(" | ") + 3
    assert carets[:gutter].strip() == "|"
    return shown[gutter:], carets[gutter:]


@pytest.mark.parametrize(
    "before",
    [
        "",
        "node ",
        "\t",
        "\t\tnode\t",
        "東京 ",
        "한글ｗｉｄｅ ",
        "😀😀",
        "e\u0301e\u0301 ",
        "\u0e01\u0e34\u0e19 ",
        "\u0915\u0902 ",
        "\u2764\ufe0e ",
        "a\u200bb ",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("target", ["BAD", "木", "B"])
def test_the_carets_stand_under_the_place(before: str, target: str) -> None:
    shown, carets = _underlined(f"first\n{before}{target} after\nlast", target)

    head, tail, rest = shown.partition(target)
    assert (tail, rest) == (target, " after")
    assert "\t" not in shown
    assert len(carets) - len(carets.lstrip()) == cell_len(head)
    assert carets.strip() == "^" * cell_len(target)


@pytest.mark.parametrize("pad", [0, 30, 60, 200, 5000])
@pytest.mark.parametrize("rest", [0, 60, 5000])
def test_a_long_line_is_clipped_around_the_place(pad: int, rest: int) -> None:
    shown, carets = _underlined("x" * pad + "BAD" + "y" * rest, "BAD")

    assert len(shown) <= 110
    assert shown[carets.index("^") :].startswith("BAD")
    assert carets.strip() == "^^^"


def test_carets_do_not_run_past_the_shown_line() -> None:
    shown, carets = _underlined("x" * 90 + "B" * 5000, "B" * 5000)

    assert len(carets) == len(shown)


def test_carets_of_a_place_over_several_lines_end_with_the_first() -> None:
    shown, carets = _underlined("a BAD\nMORE\n", "BAD\nMORE")

    assert (shown, carets) == ("a BAD", "  ^^^")


@pytest.mark.parametrize("text, line", [("node A {", 1), ("node A {\r\n", 1), ("a\nb\n", 2)])
def test_the_end_of_a_line_has_a_place(text: str, line: int) -> None:
    end = len(text.rstrip("\r\n"))
    place = Source(text).place(Span(end, end + 1))

    shown, carets = place.underlined().splitlines()
    assert (place.line, place.length) == (line, 1)
    assert carets.index("^") == len(shown)
    assert carets.count("^") == 1


@pytest.mark.parametrize("text, line, column", [("", 1, 1), ("ab", 1, 3), ("ab\n", 2, 1), ("ab\r\n\r\n", 3, 1)])
def test_the_end_of_the_file_has_a_place(text: str, line: int, column: int) -> None:
    place = Source(text).place(Span(len(text), len(text)))

    assert (place.line, place.column, place.length) == (line, column, 1)
    assert place.underlined().splitlines()[1].count("^") == 1


def test_an_unfinished_schema_is_reported_where_its_text_ends() -> None:
    with pytest.raises(CompileError) as caught:
        compile_schema(Source("node A {\n    a: String\n\n", "schema.pg"))

    place = caught.value.diagnostics[0].place
    assert (place.file, place.line, place.column) == ("schema.pg", 2, 14)
    assert place.underlined() == f"2 |     a: String\n  | {' ' * 13}^"


def test_a_carriage_return_is_no_part_of_the_shown_line() -> None:
    assert Source("ab\r\ncd\r\n").place(Span(4, 6)) == Place("<text>", 2, 1, 2, "cd")


def test_the_gutter_is_as_wide_as_the_line_number() -> None:
    place = Source("\n" * 122 + "BAD").place(Span(122, 125))

    assert place.underlined() == "123 | BAD\n    | ^^^"


def test_columns_count_characters_behind_a_byte_order_mark_and_before_bad_bytes() -> None:
    assert Source.decode("\ufeffnode".encode()).text == "node"
    with pytest.raises(SourceError) as caught:
        Source.decode(b"\xef\xbb\xbfab\n\xc3\xa9\xff", "bad.pg")

    (found,) = caught.value.diagnostics
    assert (found.code, found.place.line, found.place.column) == ("S1", 2, 2)
