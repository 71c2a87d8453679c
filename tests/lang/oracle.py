"""What must hold for any text at all. The property tests and the fuzz target ask the same questions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from omnigraph.errors import CompileError, Diagnostic, QueryError, SchemaError, SourceError
from omnigraph.lang import Source, compile_query, compile_schema, format_queries, format_schema, lint_queries
from omnigraph.lang.compiler import parse_queries
from omnigraph.lang.query_parser import parse_query_file
from omnigraph.lang.schema_parser import parse_schema_tree
from omnigraph.lang.source import Rejection

SCHEMA = """
node Person {
    name: String @key
    age: I32?
    bio: String?
    order: String?
    tags: [String]?
    born: Date?
    face: Vector(2)?
    photo: Blob?
}
node Company { name: String @key  kind: enum(small, large)? }
edge Knows: Person -> Person { since: Date? }
edge WorksAt: Person -> Company
"""
CATALOG = compile_schema(Source(SCHEMA))

_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|(//[^\n]*|/\*.*?\*/)', re.DOTALL)


def check_bytes(data: bytes) -> None:
    """Ask everything of bytes: the first says which language the others are in, `.gq` if it is odd."""
    check = check_queries if data[:1] and data[0] % 2 else check_schema
    try:
        text = Source.decode(data[1:]).text
    except SourceError:
        return
    check(text)


def check_schema(text: str) -> None:
    """Ask everything of a text taken as `.pg`: a result or a typed error each time, and a faithful layout."""
    source = _source(text)
    if source is None:
        return
    formatted = _check_format(source, format_schema, parse_schema_tree, SchemaError)
    meaning = _outcome(source, compile_schema, SchemaError)
    if formatted is not None:
        assert _outcome(formatted, compile_schema, SchemaError) == meaning


def check_queries(text: str) -> None:
    """Ask everything of a text taken as `.gq`: a result or a typed error each time, and a faithful layout."""
    source = _source(text)
    if source is None:
        return
    formatted = _check_format(source, format_queries, parse_query_file, QueryError)
    report = lint_queries(source, CATALOG, {"kind": "file", "path": "schema.pg"})
    json.dumps(report.to_dict())
    assert report.ok or any(report.results) or any(report.findings)
    if formatted is None:
        assert not report.ok
        _outcome(source, parse_queries, QueryError)
        return
    names = {str(query.name) for query in parse_queries(source).queries}
    for name in names:
        meaning = meaning_of(source, name)
        assert meaning_of(formatted, name) == meaning


def meaning_of(source: Source, name: str) -> Any:
    """The compiled query, or what is wrong with it."""
    return _outcome(source, lambda given: compile_query(given, CATALOG, name), QueryError)


def comments(text: str) -> list[str]:
    """Every comment of a text; what looks like one inside quotes is none."""
    found = (match[1] for match in _COMMENT.finditer(text) if match[1])
    return [comment.rstrip().replace("\r\n", "\n") for comment in found]


def points_inside(diagnostic: Diagnostic, text: str) -> None:
    """Assert that a diagnostic names a line and a column that exist, and underlines just them."""
    place = diagnostic.place
    lines = text.split("\n")
    assert 1 <= place.line <= len(lines)
    line = lines[place.line - 1].rstrip("\r")
    assert place.text == line[place.skipped :][: len(place.text)]
    assert place.text == line or len(place.text) >= 100
    assert 1 <= place.column <= len(line) + 1
    rest = len(line) - (place.column - 1)
    assert 1 <= place.length <= max(1, rest)
    shown, under = place.underlined().split("\n")
    assert re.fullmatch(rf" {{{len(str(place.line))}}} \| *\^+", under)
    assert len(shown) <= len(f"{place.line} | ") + 100
    if place.text.isascii():
        marked = shown[under.index("^") : len(under)]
        assert _printable(line[place.column - 1 :]).startswith(_printable(marked))
        assert len(marked) == place.length or len(marked) <= 1 or shown.endswith(marked)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _source(text: str) -> Source | None:
    try:
        return Source(text)
    except SourceError as error:
        points_inside(error.diagnostics[0], text)
        return None


def _check_format(
    source: Source,
    layout: Callable[[Source], str],
    parse: Callable[[Source], tuple[Any, list[Rejection]]],
    error: type[CompileError],
) -> Source | None:
    """Format what parses: the same tree, the same comments, and nothing left to change the second time."""
    tree, problems = parse(source)
    text = _outcome(source, layout, error)
    if problems:
        assert isinstance(text, list), "text that does not parse was formatted"
        return None
    assert isinstance(text, str), "text that parses was not formatted"
    formatted = Source(text)
    again, new_problems = parse(formatted)
    assert not new_problems
    assert again == tree
    assert comments(text) == comments(source.text)
    assert layout(formatted) == text
    return formatted


def _outcome(source: Source, make: Callable[[Source], Any], error: type[CompileError]) -> Any:
    """The result, or the codes and messages of a typed error whose diagnostics are sound."""
    try:
        return make(source)
    except error as raised:
        problem = raised
    assert str(problem)
    json.dumps(problem.details())
    for diagnostic in problem.diagnostics:
        points_inside(diagnostic, source.text)
    return [(diagnostic.code, diagnostic.message) for diagnostic in problem.diagnostics]
