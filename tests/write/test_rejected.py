"""What cannot be carried out: an error with its type and its place, a graph as it was, and a next write that works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import (
    BranchNotFoundError,
    FileAccessError,
    OmnigraphError,
    ParameterError,
    QueryKindError,
    QueryNotFoundError,
    ReadOnlyError,
    ResourceLimitError,
    SourceError,
)
from omnigraph.graph import Graph
from tests.write.mutation_cases import spelled
from tests.write.scene import look, nothing_changes

P, V = "ParameterError parameter_invalid", "ValueRejectedError value_rejected"
# Rules of the schema and numbers out of range are in cases/rules.gq.
REJECTED: list[tuple[str, dict[str, Any] | None, str]] = [
    ('insert Usr { name: "x" }', None, "QueryError T10 1:20 unknown type `Usr`"),
    ("delete Nothing where name = 1", None, "QueryError T10 1:20 unknown type `Nothing`"),
    ('insert User { name: "x", agee: 3 }', None, "QueryError T11 1:38 no property `agee`"),
    ('update User set { agee: 3 } where name = "x"', None, "QueryError T11 1:31 no property `agee`"),
    ("delete User where agee = 3", None, "QueryError T11 1:31 no property `agee`"),
    ('delete User where id = "x"', None, "QueryError T11 1:31 no property `id`"),
    ('insert User { name: "x", age: "3" }', None, "QueryError T3 1:43 does not fit `age: I32?`"),
    ('insert User { name: "x", age: 1.5 }', None, "QueryError T3 1:43 cannot convert 1.5 to I32"),
    ('insert User { name: "x", seen: "2024-01-01" }', None, "QueryError T3 1:44 does not fit `seen: DateTime?`"),
    ('insert User { name: "x", face: [1, 2, 3] }', None, "QueryError T3 1:44 takes 2 numbers, not 3"),
    ('insert User { name: "x", photo: "base64:AQID" }', None, "QueryError T3 1:45 a literal cannot be assigned"),
    ('insert User { name: "x", age: $n }', None, "QueryError T14 1:43 undeclared variable `$n`"),
    ('insert User { name: "x", name: "y" }', None, "QueryError T13 1:38 `name` is assigned twice"),
    ('insert WorksAt { from: "ann" }', None, "QueryError T12 1:20 needs `to`"),
    ('insert User { name: "x" } delete User where age = 1', None, "QueryError D2 1:46 split into separate mutations"),
    ('insert User { name: "x" + }', None, "QueryError Q000 1:39 unexpected `}`"),
    ('($a: F64) insert User { name: "x", age: $a }', {"a": 1.0}, "QueryError T7 1:50 F64 does not fit `age: I32?`"),
    ('($a: I32) insert User { name: "x", age: $a }', {"a": "x"}, f"{P} - 'a': expected an integer"),
    ('($a: I32) insert User { name: "x", age: $a }', {"a": True}, f"{P} - got a boolean"),
    ('($a: I32) insert User { name: "x", age: $a }', {"a": 2**31}, f"{P} - exceeds the I32"),
    ('($a: I32) insert User { name: "x", age: $a }', {}, f"{P} - parameter 'a' not provided"),
    ('($a: I32) insert User { name: "x", age: $a }', {"a": None}, f"{P} - null is not accepted"),
    ('($a: F64) insert User { name: "x", score: $a }', {"a": float("nan")}, f"{P} - finite"),
    ('($a: F64) insert User { name: "x", score: $a }', {"a": float("inf")}, f"{P} - finite"),
    ('($a: Vector(2)) insert User { name: "x", face: $a }', {"a": [1]}, f"{P} - expected 2 values"),
    ('($a: Vector(2)) insert User { name: "x", face: $a }', {"a": [1, float("nan")]}, f"{P} - element 1"),
    ('($a: Vector(3)) insert User { name: "x", face: $a }', {"a": [1, 2, 3]}, "QueryError T7 1:57 does not fit `face"),
    ('($a: Vector(2)) insert User { name: "x", face: $a }', {"a": [1e39, 2]}, f"{P} - element 0"),
    ('($a: [I64]) insert User { name: "x", marks: $a }', {"a": [2**31]}, f"{V} 1:29 exceeds the I32 range"),
    ("($a: String?) insert User { name: $a }", None, f"{V} 1:31 User.name: it is required"),
    ("($a: String?) insert Note { text: $a }", None, f"{V} 1:31 Note.text: it is required"),
    ('($a: String?) insert WorksAt { from: $a, to: "Acme" }', None, f"{V} 1:31 it is required"),
    ('($a: String) insert User { name: "x", photo: $a }', {"a": "base64:*"}, f"{V} 1:30 invalid base64"),
    ('($a: String) insert User { name: "x", photo: $a }', {"a": "file:///secret"}, f"{V} 1:30 external blob"),
    ("($a: String) insert User { name: $a }", {"a": "\ud800"}, f"{P} - surrogate"),
    ('insert WorksAt { from: "ann", to: "Nowhere" }', None, "ConstraintError endpoint 1:20 'Nowhere' not found"),
]  # fmt: skip


@pytest.mark.parametrize("query, params, expected", REJECTED)
def test_a_mutation_that_cannot_be_is_refused_with_its_place(
    rules: Graph, query: str, params: dict[str, Any] | None, expected: str
) -> None:
    head, _, body = query.rpartition(") ") if query.startswith("(") else ("(", "", query)
    with nothing_changes(rules), pytest.raises(OmnigraphError) as caught:
        rules.mutate(f"query q{head}) {{ {body} }}", params)

    *kind, fragment = expected.split(" ", 3)
    *found, message = spelled(caught.value)
    assert found == kind
    assert fragment in message


@pytest.mark.parametrize("params", [[], "x", 3, {1: 2}])
def test_parameters_are_an_object_with_names(rules: Graph, params: Any) -> None:
    with nothing_changes(rules), pytest.raises(ParameterError):
        rules.mutate('query q() { insert User { name: "x" } }', params)


def test_a_pattern_that_no_text_can_be_matched_with_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(OmnigraphError):
        omnigraph.init(tmp_path / "graph", 'node A { key: String @key @check(key, "(") }').mutate(
            'query q() { insert A { key: "a" } }'
        )


# Which query


READ = "query read() { match { $u: User } return { $u.name } }"
TWO = 'query one() { insert User { name: "x" } } query two() { insert User { name: "y" } }'


def test_a_query_that_reads_is_not_a_mutation(rules: Graph) -> None:
    with nothing_changes(rules), pytest.raises(QueryKindError) as caught:
        rules.mutate(READ)
    assert (caught.value.query, caught.value.code) == ("read", "query_kind")


@pytest.mark.parametrize(
    "text, name, problem",
    [(TWO, None, "multiple queries"), (TWO, "three", "query 'three' not found"), ("// nothing", None, "no query")],
)
def test_the_query_must_be_one_of_those_that_are_there(rules: Graph, text: str, name: str | None, problem: str) -> None:
    with nothing_changes(rules), pytest.raises(QueryNotFoundError, match=problem) as caught:
        rules.mutate(text, name=name)
    assert caught.value.available == (["one", "two"] if text is TWO else [])


def test_one_of_several_queries_is_run_by_its_name_also_from_a_file(rules: Graph, tmp_path: Path) -> None:
    file = tmp_path / "two.gq"
    file.write_text(TWO)

    assert rules.mutate(TWO, name="one").query_name == "one"
    assert rules.mutate(file, name="two").query_name == "two"
    assert rules.mutate(str(file), name="two").query_name == "two"
    with nothing_changes(rules), pytest.raises(FileAccessError):
        rules.mutate(tmp_path / "none.gq")


# Where to


def test_a_handle_that_only_reads_does_not_mutate(rules: Graph) -> None:
    before = look(rules)
    with pytest.raises(ReadOnlyError):
        omnigraph.open(rules.uri, read_only=True).mutate(TWO, name="one")
    assert look(rules) == before


def test_a_branch_that_is_not_there_cannot_be_changed(rules: Graph) -> None:
    with nothing_changes(rules), pytest.raises(BranchNotFoundError) as caught:
        rules.mutate(TWO, name="one", branch="nowhere")
    assert caught.value.branch == "nowhere"


# How much


def test_a_text_of_ten_megabytes_is_no_query(rules: Graph) -> None:
    with nothing_changes(rules), pytest.raises(SourceError, match="too large") as caught:
        rules.mutate(f'query q() {{ insert User {{ name: "{"x" * 10_000_000}" }} }}')
    assert len(str(caught.value)) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("body", ["insert User { name: $t }", 'insert User { name: "x", firstName: $t }'])
def test_a_parameter_of_forty_megabytes_is_more_than_one_query_may_bring(rules: Graph, body: str) -> None:
    with nothing_changes(rules), pytest.raises(ResourceLimitError) as caught:
        rules.mutate(f"query q($t: String) {{ {body} }}", {"t": "x" * 40_000_000})
    assert caught.value.limit == 32 * 1024 * 1024
    assert caught.value.actual > 40_000_000
    assert len(str(caught.value)) < 1000


@pytest.mark.slow
def test_a_parameter_of_ten_megabytes_is_stored(rules: Graph) -> None:
    text = "ä'" * 2_500_000 + "x" * 2_500_000

    assert rules.mutate("query q($t: String) { insert Note { text: $t } }", {"t": text}).affected_nodes == 1
    assert rules.mutate("query q($t: String) { delete Note where text = $t }", {"t": text}).affected_nodes == 1
