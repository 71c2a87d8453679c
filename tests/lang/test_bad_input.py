"""Hostile and broken input: a clear error or the right result, soon, and without eating the memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO

import pytest

from omnigraph.errors import CompileError, Diagnostic, FileAccessError, QueryError, SchemaError, SourceError
from omnigraph.lang import (
    Source,
    compile_query,
    compile_schema,
    format_queries,
    format_schema,
    lint_queries,
    parse_queries,
)
from omnigraph.lang.source import MAX_SOURCE_BYTES
from tests.lang import oracle
from tests.support.cli import quick_program

_SECONDS = 30  # of processor time; what is asked here takes about one if time is linear, and minutes if it is not
_READ = "query q() { match { $p: Person } return { $p } }"


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {_SECONDS} seconds")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def _compile_queries(source: Source) -> object:
    return [compile_query(source, oracle.CATALOG, query.name) for query in parse_queries(source).queries]


def _problem(action: Callable[[Source], object], text: str) -> Diagnostic:
    """The first diagnostic of a text that must be refused, which points into it."""
    with pytest.raises(CompileError) as raised:
        action(Source(text))
    for diagnostic in raised.value.diagnostics:
        oracle.points_inside(diagnostic, text)
    return raised.value.diagnostics[0]


def _peak(action: Callable[[], object]) -> int:
    """The most memory that an action held at once, in bytes."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Text that is no text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, fragment, line, column",
    [
        ("// ok\n// caf\xe9\n".encode("latin-1"), "byte 0xe9 at offset 12", 2, 7),
        ("// é\n// caf".encode() + b"\xe9", "byte 0xe9 at offset 12", 2, 7),
        (b"\xef\xbb\xbf// caf\xe9", "byte 0xe9 at offset 9", 1, 7),
        ("node A {}".encode("utf-16"), "UTF-16", 1, 1),
        (b"\xfe\xff" + "node A {}".encode("utf-16-be"), "UTF-16", 1, 1),
        ("node A {}".encode("utf-16-le"), "NUL", 1, 2),
        (b"node A {}\n\0", "NUL", 2, 1),
        (b"// \xed\xa0\x80", "0xed", 1, 4),
        (b"// \xf0\x9f\x98", "0xf0", 1, 4),
    ],
    ids=["latin-1", "mixed", "bom then latin-1", "utf-16", "utf-16-be", "utf-16 bare", "nul", "surrogate", "cut short"],
)
def test_bytes_that_are_not_utf_8_text_are_refused_where_they_stop_being_it(
    data: bytes, fragment: str, line: int, column: int
) -> None:
    with pytest.raises(SourceError) as raised:
        Source.decode(data, "a.pg")
    diagnostic = raised.value.diagnostics[0]
    assert diagnostic.code == "S1"
    assert fragment in diagnostic.message
    assert (diagnostic.place.file, diagnostic.place.line, diagnostic.place.column) == ("a.pg", line, column)
    assert diagnostic.hint


@pytest.mark.parametrize("bad, fragment", [("\0", "NUL"), ("\ud800", "U+D800"), ("\udfff", "U+DFFF")])
def test_characters_that_no_text_file_can_hold_are_refused_in_strings_too(bad: str, fragment: str) -> None:
    text = f"node A {{}}\n// é {bad}"
    with pytest.raises(SourceError) as raised:
        Source(text)
    diagnostic = raised.value.diagnostics[0]
    oracle.points_inside(diagnostic, text)
    assert fragment in diagnostic.message
    assert (diagnostic.place.line, diagnostic.place.column) == (2, 6)
    str(raised.value).encode()


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    source = Source.decode(b"\xef\xbb\xbfnode A {}")
    assert source.text == "node A {}"
    assert list(compile_schema(source).nodes) == ["A"]


@pytest.mark.parametrize(
    "text", ["node A {\r\n\r\n  a: String\r\n  b Str\r\n}\r\n", "node A {\n\n  a: String\n  b Str\n}\n"]
)
def test_a_carriage_return_before_a_line_feed_moves_no_error(text: str) -> None:
    place = _problem(compile_schema, text).place
    assert (place.line, place.column, place.text) == (4, 5, "  b Str")


def test_a_lone_carriage_return_is_a_space_and_ends_no_line() -> None:
    assert compile_schema(Source("node A {\r a: String\r}\r")).nodes["A"].properties
    diagnostic = _problem(compile_schema, "node A {\r a String }")
    assert (diagnostic.place.line, diagnostic.place.column) == (1, 13)
    assert "\r" not in str(diagnostic)


@pytest.mark.parametrize("name", ["missing.pg", ".", "a\0b", "n" * 5000])
def test_what_is_no_readable_file_gives_a_file_access_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileAccessError, match="cannot read") as raised:
        Source.read(tmp_path / name)
    assert raised.value.path == str(tmp_path / name)


# Size ----------------------------------------------------------------------------------------------


def test_a_file_of_ten_megabytes_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "big.pg"
    path.write_bytes(b"node A {}\n" * 1_000_000)

    def read() -> None:
        with pytest.raises(SourceError, match="at most 4,194,304 bytes"):
            Source.read(path)

    assert _peak(read) < 2 * MAX_SOURCE_BYTES


@pytest.mark.parametrize("text", ["x" * 10_000_000, "\n" * 4_200_000, "é" * 2_500_000], ids=["line", "lines", "wide"])
def test_a_text_past_the_limit_is_refused_in_little_memory(text: str) -> None:
    def refuse() -> None:
        with pytest.raises(SourceError, match="at most 4,194,304"):
            Source(text)

    assert _peak(refuse) < 3 * MAX_SOURCE_BYTES


_ROOM = MAX_SOURCE_BYTES - 40


@pytest.mark.parametrize(
    "text",
    [
        "node A {}\n" + "// a comment\n" * (_ROOM // 13),
        "node A {}\n" + "\r\n" * (_ROOM // 2),
        f"node A /*{'x' * _ROOM}*/ {{}}",
        f'node A @note("{"é" * (_ROOM // 2)}") {{}}',
    ],
    ids=["comments", "lines", "one comment", "one text"],
)
def test_a_text_just_under_the_limit_is_fine(text: str) -> None:
    assert 0 <= MAX_SOURCE_BYTES - len(text.encode()) < 60
    assert list(compile_schema(Source(text)).nodes) == ["A"]


@pytest.mark.slow
def test_an_error_behind_a_million_lines_is_found_in_little_memory() -> None:
    lines = 1_000_000
    text = "\n" * lines + "x"

    def compile_it() -> None:
        with pytest.raises(SchemaError, match="unexpected `x`") as raised:
            compile_schema(Source(text))
        assert raised.value.diagnostics[0].place.line == lines + 1

    assert _peak(compile_it) < 16 * lines


@pytest.mark.slow
def test_many_errors_on_one_long_line_do_not_copy_it_for_each() -> None:
    text = "node A { " + "a: String " * 4000 + "}\n"

    def compile_it() -> None:
        with pytest.raises(SchemaError, match="duplicate property"):
            compile_schema(Source(text))

    assert _peak(compile_it) < 32 * 1024 * 1024


@pytest.mark.parametrize(
    "action, text",
    [
        (compile_schema, f"node A {{ {'a' * 1_000_000}: String ;"),
        (compile_schema, f'node A @note("{"é" * 1_000_000}") ;'),
        (_compile_queries, f"{' ' * 1_000_000}query q() ;"),
        (_compile_queries, f"query q() {{ match {{ $p: {'P' * 1_000_000} }} return {{ $p }} }}"),
        (_compile_queries, f"query {'q' * 1_000_000} {{"),
    ],
    ids=["name", "text", "spaces", "unknown type", "query name"],
)
def test_an_error_on_a_line_of_a_million_characters_is_told_in_a_few(
    action: Callable[[Source], object], text: str
) -> None:
    diagnostic = _problem(action, text)
    assert diagnostic.place.column > len(text) - 50 or diagnostic.place.length > 1000
    assert len(str(diagnostic)) < 1000


# Nesting and numbers -------------------------------------------------------------------------------

_DEEP = 10_000


@pytest.mark.parametrize(
    "opening, inner, closing",
    [
        ("query q() { match { $p.a = " + "[" * _DEEP, "1", "]" * _DEEP + " } return { $p } }"),
        ("query q() { insert P { a: " + "[" * _DEEP, "", "]" * _DEEP + " } }"),
        ("query q() { match { " + "not { " * _DEEP, "$p knows $f", "}" * _DEEP + " } return { $p } }"),
        ("query q() { match { $p: P } return { " + "count(" * _DEEP, "$p", ")" * _DEEP + " } }"),
        ("query q() { match { $p: P } return { " + "search(1, " * _DEEP, "$p", ")" * _DEEP + " } }"),
    ],
    ids=["list", "assigned list", "not", "calls", "second arguments"],
)
@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("action", [parse_queries, format_queries, _compile_queries])
def test_nesting_ten_thousand_deep_is_refused(
    action: Callable[[Source], object],
    opening: str,
    inner: str,
    closing: str,
    is_closed: bool,  # noqa: FBT001
) -> None:
    diagnostic = _problem(action, opening + inner + closing * is_closed)
    assert diagnostic.code == "Q000"
    assert "nested" in diagnostic.message


@pytest.mark.parametrize(
    "bracket", ["(", "[", "{", "<", "/*", '"', ")", "]", "}", "((", "{[", "@key(", "node A {", "query q("]
)
@pytest.mark.parametrize("before", ["", "node A { a: ", "node A @note", "query q", "query q() { match { $p "])
def test_ten_thousand_brackets_of_any_kind_anywhere_are_a_syntax_error(before: str, bracket: str) -> None:
    text = before + bracket * _DEEP
    assert _problem(compile_schema, text).code == "P1"
    assert _problem(_compile_queries, text).code == "Q000"
    assert not lint_queries(Source(text), oracle.CATALOG, {}).ok


def test_nesting_that_is_allowed_is_handled_to_the_end() -> None:
    depth = 90
    oracle.check_queries(
        f"query q() {{ match {{ {'not { ' * depth} $p.a = {'[' * 5}{']' * 5} {'}' * depth} }}"
        f"return {{ {'count(' * depth} $p {')' * depth} }} }}"
    )


_HUGE = "9" * 10_000


@pytest.mark.parametrize(
    "text, code",
    [
        ("node A { v: Vector(N) }", "P5"),
        ("edge E: A -> A @card(N..)", "P8"),
        ("edge E: A -> A @card(0..N)", "P8"),
        ("node A { x: I64 @range(x, N..) }", "P1"),
        ("node A { x: I64 @range(x, -N..) }", "P1"),
        ("node A { x: I64 @range(x, ..N) }", "P1"),
        ("node A { x: F64 @range(x, N.5..) }", "P1"),
        ("node A @note(N) {}", "P1"),
        ("node A @note(x, y=N) {}", "P1"),
        ("node A @note(N.5) {}", "P1"),
    ],
)
def test_a_number_of_ten_thousand_digits_in_a_schema_gives_a_typed_error(text: str, code: str) -> None:
    with pytest.raises(SchemaError) as raised:
        compile_schema(Source(f"{text.replace('N', _HUGE)}\nnode B {{}}"))
    found = raised.value.diagnostics
    assert code in {diagnostic.code for diagnostic in found}
    assert all(len(str(diagnostic)) < 1000 for diagnostic in found)


@pytest.mark.parametrize(
    "text, code",
    [
        ("query q($v: Vector(N)) { delete Person where age = 1 }", "Q000"),
        (f"{_READ[:-1]} limit N }}", "Q000"),
        ("query q() { match { $p: Person $p knows{N,3} $f } return { $p } }", "Q000"),
        ("query q() { match { $p: Person $p knows{1,N} $f } return { $p } }", "Q000"),
        ("query q() { match { $p: Person $p.age = N } return { $p } }", "Q000"),
        ("query q() { match { $p: Person $p.age = N.5 } return { $p } }", "Q000"),
        ("query q() { match { $p: Person { age: N } } return { $p } }", "Q000"),
        ("query q() { match { $p: Person } return { [1, N] } }", "Q000"),
        ('query q() { match { $p: Person fuzzy($p.bio, "x", N) } return { $p } }', "Q000"),
        ("query q() { update Person set { age: N } where age = 1 }", "Q000"),
        ("query q() { delete Person where age = N }", "Q000"),
        ('query q() { delete Person where born = date("N") }', "T3"),
    ],
)
def test_a_number_of_ten_thousand_digits_in_a_query_gives_a_typed_error(text: str, code: str) -> None:
    diagnostic = _problem(_compile_queries, text.replace("N", _HUGE))
    assert diagnostic.code == code
    assert len(str(diagnostic)) < 1000


def test_ten_thousand_zeros_or_decimals_are_a_number_like_any_other() -> None:
    zeros, decimals = "0" * 10_000, "3" * 10_000
    node = f"node A {{ v: Vector({zeros}3) x: F64 @range(x, {zeros}1..2.{decimals}) }}"
    catalog = compile_schema(Source(f"{node} edge E: A -> A @card({zeros}..{zeros}7)"))
    assert catalog.nodes["A"].properties["v"].type.dimension == 3
    assert catalog.nodes["A"].ranges[0].upper == pytest.approx(2 + 1 / 3)
    assert catalog.edges["E"].cardinality.upper == 7
    clauses = f"$p: Person $p.age < 1.{decimals} $p knows{{{zeros}1,2}} $f"
    compile_query(Source(f"query q() {{ match {{ {clauses} }} return {{ $p }} limit {zeros}5 }}"), oracle.CATALOG)


# Never closed, never right -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action, text, line, column",
    [
        (compile_schema, 'node A @note("never', 1, 14),
        (compile_schema, 'node A @note("a\\"', 1, 14),
        (compile_schema, 'node A @note("a\\', 1, 14),
        (compile_schema, "node A {}\n/* never", 2, 1),
        (compile_schema, "node A {}\n/* never *", 2, 1),
        (compile_schema, "node A {} /*/", 1, 11),
        (_compile_queries, 'query q() @description("never) {\n}', 1, 24),
        (_compile_queries, f"{_READ}\n\n/* never", 3, 1),
    ],
)
def test_what_is_never_closed_is_reported_where_it_starts(
    action: Callable[[Source], object], text: str, line: int, column: int
) -> None:
    diagnostic = _problem(action, text)
    assert (diagnostic.place.line, diagnostic.place.column) == (line, column)
    assert diagnostic.hint
    assert "never closed" in diagnostic.hint


@pytest.mark.parametrize(
    "action, text",
    [
        (compile_schema, "node 1\n" * 100_000),
        (compile_schema, "node A { a }\n" * 100_000),
        (compile_schema, "node A {\n" * 100_000),
        (compile_schema, "node A {" + "a String\n" * 100_000 + "}"),
        (_compile_queries, "query 1\n" * 100_000),
        (_compile_queries, "query q() { match { } }\n" * 100_000),
        (_compile_queries, "}\n" * 100_000),
    ],
)
def test_of_a_hundred_thousand_syntax_errors_the_first_few_are_reported_soon(
    action: Callable[[Source], object], text: str
) -> None:
    with pytest.raises((SchemaError, QueryError)) as raised:
        action(Source(text))
    lines = [diagnostic.place.line for diagnostic in raised.value.diagnostics]
    assert 1 <= len(lines) <= 20
    assert lines == sorted(lines)
    assert lines[0] <= 2


# Time ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("comment", ["// a: (b)\n", "/* a: (b) */ ", "////\n", "/**/"])
def test_fifty_thousand_comments_are_all_kept(comment: str) -> None:
    text = f"node A {{ a: String @key {comment * 25_000} b: I32 {comment * 25_000} }}"
    source = Source(text)
    assert list(compile_schema(source).nodes["A"].properties) == ["a", "b"]
    assert oracle.comments(format_schema(source)) == [comment.strip()] * 50_000


@pytest.mark.parametrize(
    "comment", ["/" * 1000, "// " * 1000, "// a: (b) " * 1000, "/* " * 1000 + "*/", "/*" + "*" * 1000 + "/"]
)
@pytest.mark.parametrize(
    "text",
    [
        "query q() {{ match {0}\n{{ $p {0}\n: Person }} return {{ $p.name as {0}\ncount }} order {{ count {0}\n}} }}",
        'query q() {{ update {0}\nPerson set {{ age: 1 }} where {0}\nname = "a" }}',
    ],
    ids=["read", "write"],
)
def test_a_long_comment_behind_a_word_is_read_at_once_and_means_nothing(text: str, comment: str) -> None:
    plain, commented = (compile_query(Source(text.format(filling)), oracle.CATALOG) for filling in ("", comment))
    assert commented == plain


_SLOW_SCHEMAS = {
    "annotations": "node A { a: String " + "@key /* */ " * 10_000 + "}",
    "escaped quotes": 'node A { a: "' + '\\"' * 100_000,
    "quotes": "node A { a: " + '" ' * 100_001,
    "quotes on lines": "node A { a: " + '"\n' * 100_001,
    "open comments": "node A { a: " + "/* " * 50_000,
    "open comments on lines": "node A { a: " + "/*\n" * 50_000,
    "stars": "node A { a: /*" + "*" * 500_000,
    "spaces": "node A { a: String @key" + " " * 500_000 + "b }",
    "enum": "node A { a: enum(" + ", ".join(f"v{number}" for number in range(30_000)) + ", v29999) }",
    "near names": "\n".join(
        f"node Somebody{at} {{}}\nedge Edge{at}: Somebudy{at} -> Somebody{at}" for at in range(1000)
    ),
}
_SLOW_QUERIES = {
    "angles": "$p <a " * 10_000,
    "open angles": "$p " + "<a " * 50_000,
    "angle and spaces": "$p <" + " " * 500_000,
    "quotes": '$p.name = "' + '\\"' * 100_000,
}
_LONG_QUERIES = {
    "comparisons": " ".join(f"$p.age = {number}" for number in range(8000)),
    "paths": " ".join(f"$x{number} knows $x{number + 1}" for number in range(8000)) + " $x8000 knows $p",
    "negations": "not { $p knows $f } " * 2000,
    "list": "[" + "1, " * 10_000 + "1] contains $p.age",
}


@pytest.mark.slow
@pytest.mark.parametrize("text", _SLOW_SCHEMAS.values(), ids=_SLOW_SCHEMAS)
def test_a_schema_made_to_be_slow_is_refused_soon(text: str) -> None:
    with pytest.raises(SchemaError):
        compile_schema(Source(text))


@pytest.mark.parametrize("clauses", _SLOW_QUERIES.values(), ids=_SLOW_QUERIES)
def test_a_query_made_to_be_slow_is_refused_soon(clauses: str) -> None:
    with pytest.raises(QueryError):
        compile_query(Source(f"query q() {{ match {{ $p: Person {clauses} }} return {{ $p }} }}"), oracle.CATALOG)


@pytest.mark.slow
@pytest.mark.parametrize("clauses", _LONG_QUERIES.values(), ids=_LONG_QUERIES)
def test_a_long_query_is_compiled_and_formatted_soon(clauses: str) -> None:
    source = Source(f"query q() {{ match {{ $p: Person {clauses} }} return {{ $p }} }}")
    assert compile_query(source, oracle.CATALOG).name == "q"
    assert format_queries(source)


# The command line ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, fragment",
    [
        (b"// caf\xe9\nnode A {}\n", "a.pg:1:7: S1: byte 0xe9"),
        (b"node A {}\n" * 1_000_000, "4,194,304 bytes"),
        (b"node A {}\n\0", "a.pg:2:1: S1: a NUL character"),
        (b"node A {\r\n  a Str\r\n}\r\n", "a.pg:2:5: P1:"),
    ],
    ids=["latin-1", "ten megabytes", "nul", "crlf"],
)
@pytest.mark.parametrize("command", [("fmt",), ("lint", "--query", "a.gq", "--schema")], ids=["fmt", "lint"])
def test_the_command_line_refuses_bad_files_in_a_few_words(
    tmp_path: Path, command: tuple[str, ...], data: bytes, fragment: str
) -> None:
    path = tmp_path / "a.pg"
    path.write_bytes(data)
    run = quick_program(*command, path)
    assert (run.code, run.out) == (1, "")
    assert fragment in run.err
    assert len(run.err) < 1000
    assert path.read_bytes() == data


def test_the_command_line_reads_no_more_of_stdin_than_a_source_may_hold() -> None:
    program = [sys.executable, "-m", "omnigraph", "fmt", "-", "--lang", "pg"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin
        assert process.stderr
        with pytest.raises(BrokenPipeError):
            _flood(process.stdin)
        said = process.stderr.read().decode()
    assert process.returncode == 1
    assert "S1" in said
    assert "Traceback" not in said


def _flood(stream: IO[bytes]) -> None:
    for _ in range(64):
        stream.write(b"// a\n" * 200_000)


@pytest.mark.parametrize("text", ["-\r\r", "-\r\r\n", "node A {\r\r\n- }"])
def test_carriage_returns_at_the_end_of_a_line_are_not_part_of_what_is_shown(text: str) -> None:
    assert not _problem(compile_schema, text).place.text.endswith("\r")
