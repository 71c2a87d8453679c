"""From a text of queries to one compiled query: which is chosen, what is remembered, how it fails."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from omnigraph.core.lru import LruCache
from omnigraph.core.values import Scalar
from omnigraph.errors import OmnigraphError, QueryError, QueryNotFoundError
from omnigraph.lang import compiler, ir
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.compiler import CompiledQuery, compile_query, parse_queries
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.lang.types import STRING, Type

PEOPLE = compile_schema(Source("node Person { name: String @key  age: I32? }"))
OTHERS = compile_schema(Source("node Person { name: String @key  age: I64? }"))

EVERYONE = "query everyone() { match { $p: Person } return { $p.name } }"
ADULTS = "query adults() { match { $p: Person $p.age >= 18 } return { $p.name } }"
ADD = """query add($name: String, $age: I32?) @description("Adds \\"one\\".") @instruction("Ask first.") {
    insert Person { name: $name, age: $age }
}"""


def _compile(text: str, name: str | None = None, catalog: Catalog = PEOPLE) -> CompiledQuery:
    return compile_query(Source(text, "people.gq"), catalog, name)


# What is compiled ----------------------------------------------------------------------------------


def test_a_compiled_query_carries_what_was_declared() -> None:
    compiled = _compile(ADD)
    assert (compiled.name, compiled.description, compiled.instruction) == ("add", 'Adds "one".', "Ask first.")
    assert dict(compiled.parameters) == {"name": STRING, "age": Type(Scalar.I32, nullable=True)}
    assert compiled.is_mutation


def test_a_read_is_no_mutation() -> None:
    compiled = _compile(EVERYONE)
    assert (compiled.description, compiled.instruction, compiled.parameters) == (None, None, {})
    assert not compiled.is_mutation


# Which query is chosen -----------------------------------------------------------------------------


def test_the_only_query_needs_no_name() -> None:
    assert _compile(EVERYONE) == _compile(EVERYONE, "everyone")


def test_a_query_is_chosen_by_its_name() -> None:
    assert [_compile(f"{EVERYONE}\n{ADULTS}", name).name for name in ("adults", "everyone")] == ["adults", "everyone"]


def test_of_queries_with_one_name_the_first_is_chosen() -> None:
    again = EVERYONE.replace("$p.name", "$p.age")
    assert _compile(f"{EVERYONE}\n{again}", "everyone").plan == _compile(EVERYONE).plan


@pytest.mark.parametrize(
    "text, name, message, hint, available",
    [
        (f"{EVERYONE}\n{ADULTS}", "adlts", "query 'adlts' not found", "did you mean `adults`?", ["everyone", "adults"]),
        (EVERYONE, "xyz", "query 'xyz' not found", None, ["everyone"]),
        (EVERYONE, "Everyone", "query 'Everyone' not found", "did you mean `everyone`?", ["everyone"]),
        (EVERYONE, "", "query '' not found", None, ["everyone"]),
        ("", "everyone", "query 'everyone' not found", None, []),
        (f"{EVERYONE}\n{ADULTS}", None, "multiple queries", "it has: everyone, adults", ["everyone", "adults"]),
        ("// nothing", None, "has no query", None, []),
    ],
)
def test_a_query_that_cannot_be_chosen_is_named_with_what_there_is(
    text: str, name: str | None, message: str, hint: str | None, available: list[str]
) -> None:
    with pytest.raises(QueryNotFoundError, match=message) as caught:
        _compile(text, name)
    assert (caught.value.hint, list(caught.value.available)) == (hint, available)
    assert caught.value.details() == {"available": available}


def test_only_the_chosen_query_is_type_checked() -> None:
    wrong = "query wrong() { match { $p: Nobody } return { $p } }"
    assert _compile(f"{wrong}\n{EVERYONE}", "everyone").name == "everyone"
    with pytest.raises(QueryError):
        _compile(f"{wrong}\n{EVERYONE}", "wrong")


# How it fails --------------------------------------------------------------------------------------


def test_the_syntax_errors_of_all_queries_are_reported_whichever_is_chosen() -> None:
    text = f"query a( {{ }}\n{EVERYONE}\nquery b() {{ match {{ }} return {{ 1 }} }}\nquery c() {{ delete person }}\n"
    with pytest.raises(QueryError) as caught:
        _compile(text, "everyone")
    assert [(found.code, found.place.line, found.place.column) for found in caught.value.diagnostics] == [
        ("Q000", 1, 10),
        ("Q000", 3, 21),
        ("Q000", 4, 20),
    ]


def test_a_hopeless_text_yields_twenty_syntax_errors_at_most() -> None:
    with pytest.raises(QueryError) as caught:
        _compile("query broken( { }\n" * 50)
    assert len(caught.value.diagnostics) == 20


@pytest.mark.parametrize(
    "parameters, message, column",
    [
        ("$a: String, $__nanograph_now: DateTime", "parameter name `$__nanograph_now` is reserved", 21),
        ("$a: String, $b: I32, $a: String", "parameter `$a` is declared twice", 30),
    ],
)
def test_a_parameter_that_cannot_be_declared_is_refused(parameters: str, message: str, column: int) -> None:
    with pytest.raises(QueryError) as caught:
        _compile(f"query q({parameters}) {{ match {{ $p: Person }} return {{ $p }} }}")
    (found,) = caught.value.diagnostics
    assert (found.code, found.message, found.place.column) == ("T0", message, column)


def test_an_error_shows_the_line_and_underlines_the_place() -> None:
    with pytest.raises(QueryError) as caught:
        _compile("query q() {\n  match { $p: Persn }\n  return { $p.name }\n}")
    assert str(caught.value).split("\n") == [
        "people.gq:2:15: T1: unknown node type `Persn`",
        "2 |   match { $p: Persn }",
        "  |               ^^^^^",
        "hint: did you mean `Person`?",
    ]
    assert caught.value.details()["diagnostics"][0]["length"] == 5


@pytest.mark.parametrize(
    "text, name",
    [
        ("query q( { }", None),
        ("query q() { match { $p: Persn } return { $p } }\n" * 2, "q"),
        (f"{EVERYONE}\n{ADULTS}", None),
        (EVERYONE, "evryone"),
    ],
)
def test_an_error_survives_being_pickled(text: str, name: str | None) -> None:
    with pytest.raises(OmnigraphError) as caught:
        _compile(text, name)
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert type(copy) is type(caught.value)
    assert (str(copy), copy.hint, copy.details()) == (str(caught.value), caught.value.hint, caught.value.details())


# What is remembered --------------------------------------------------------------------------------


def test_a_repeated_compilation_is_the_same_object() -> None:
    assert _compile(EVERYONE) is _compile(str.join("", EVERYONE))


def test_two_queries_of_one_text_are_parsed_once() -> None:
    source = Source(f"{EVERYONE}\n{ADULTS}", "people.gq")
    assert parse_queries(source) is parse_queries(Source(source.text, source.file))
    assert compile_query(source, PEOPLE, "adults") is not compile_query(source, PEOPLE, "everyone")


def test_another_catalog_is_compiled_for_itself() -> None:
    def age_type(catalog: Catalog) -> Scalar:
        plan = _compile(ADULTS, catalog=catalog).plan
        assert isinstance(plan, ir.ReadPlan)
        scan = plan.steps[0]
        assert isinstance(scan, ir.Scan)
        (predicate,) = scan.predicates
        assert isinstance(predicate, ir.Comparison)
        return predicate.left.type.scalar

    assert [age_type(catalog) for catalog in (PEOPLE, OTHERS, PEOPLE)] == [Scalar.I32, Scalar.I64, Scalar.I32]


def test_an_equal_catalog_shares_what_was_compiled() -> None:
    same = compile_schema(Source("node Person { age: I32?  name: String @key }  // the same, written otherwise"))
    assert _compile(EVERYONE, catalog=same) is _compile(EVERYONE)


@pytest.mark.parametrize("text", ["query q( { }", "query q() { match { $p: Persn } return { $p } }"])
def test_an_error_names_the_file_that_was_asked_for(text: str) -> None:
    for file in ("a.gq", "b.gq", "a.gq"):
        with pytest.raises(QueryError) as caught:
            compile_query(Source(text, file), PEOPLE)
        assert [found.place.file for found in caught.value.diagnostics] == [file]


def test_a_wrong_query_is_wrong_again() -> None:
    for _ in range(2):
        with pytest.raises(QueryError, match="unknown node type"):
            _compile("query q() { match { $p: Persn } return { $p } }")


def test_the_cache_forgets_what_was_not_used_for_longest() -> None:
    cache = LruCache(100)
    first = cache.get("a", object, lambda _: 40)
    second = cache.get("b", object, lambda _: 40)
    assert cache.get("a", object, lambda _: 40) is first
    cache.get("c", object, lambda _: 40)
    assert cache.get("a", object, lambda _: 40) is first
    assert cache.get("b", object, lambda _: 40) is not second


def test_the_cache_does_not_keep_what_alone_exceeds_it() -> None:
    cache = LruCache(100)
    small = cache.get("small", object, lambda _: 100)
    assert cache.get("large", object, lambda _: 101) is not cache.get("large", object, lambda _: 101)
    assert cache.get("small", object, lambda _: 100) is small


def test_the_cache_does_not_keep_a_failure() -> None:
    cache = LruCache(100)

    def fail() -> str:
        raise ValueError("once")

    with pytest.raises(ValueError, match="once"):
        cache.get("a", fail, lambda _: 1)
    assert cache.get("a", lambda: "made", lambda _: 1) == "made"


def test_the_cache_is_bounded_however_small_its_entries() -> None:
    cache = LruCache(1000)
    for key in range(5000):
        cache.get(key, object, lambda _: 1)
    assert len(cache._entries) <= 1000


def test_keeping_an_empty_source_costs_something() -> None:
    assert compiler._cost(Source("")) > 0


def test_no_more_text_is_remembered_than_a_source_may_hold() -> None:
    padding = "//" + "x" * 1_000_000
    sources = [Source(f"{EVERYONE} // {number}\n{padding}", "people.gq") for number in range(6)]
    first = compile_query(sources[0], PEOPLE)
    last = [compile_query(source, PEOPLE) for source in sources[1:]][-1]
    assert compile_query(sources[-1], PEOPLE) is last
    assert compile_query(sources[0], PEOPLE) is not first


def test_threads_that_compile_at_once_get_equal_results() -> None:
    together = threading.Barrier(8)
    sources = [Source(f"{EVERYONE}\n{ADULTS} // threads {number}", "people.gq") for number in range(20)]

    def work(thread: int) -> list[CompiledQuery]:
        together.wait()
        turned = [*sources[thread:], *sources[:thread]]
        compiled = {source.text: compile_query(source, PEOPLE, "adults") for source in turned}
        return [compiled[source.text] for source in sources]

    assert _in_threads(work) == [[_compile(ADULTS)] * 20] * 8
    assert all(compile_query(source, PEOPLE, "adults") is compile_query(source, PEOPLE, "adults") for source in sources)


def test_threads_that_fail_at_once_get_equal_errors() -> None:
    together = threading.Barrier(8)

    def work(_thread: int) -> str:
        together.wait()
        with pytest.raises(QueryError) as caught:
            _compile("query q() { match { $p: Persn } return { $p } } // threads")
        return str(caught.value)

    assert len(set(_in_threads(work))) == 1


def _in_threads(work: Callable[[int], object]) -> list[object]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(work, range(8)))
