"""Merging two schemas by the identity of their types: each row of the table of rules, and what schemas are as facts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from omnigraph.errors import SchemaError
from omnigraph.lang import Source, compile_schema, plan_schema
from omnigraph.lang.schema_facts import IdentifiedSchema, plain, schema_of
from omnigraph.lang.schema_ids import carried, decoded, encoded, first_ids
from omnigraph.lang.schema_merge import MergedSchema, aliases, joined_bases, merge_schemas
from omnigraph.lang.schema_text import schema_text
from tests.support.cases import load_cases

BASE = """
node Person { name: String @key  age: I32?  mood: enum(calm, glad)? }
node Town { name: String @key }
edge Knows: Person -> Person { since: I32? }
"""


def first(text: str) -> IdentifiedSchema:
    catalog = compile_schema(Source(text))
    return IdentifiedSchema(catalog, first_ids(catalog), text)


def changed(schema: IdentifiedSchema, *edits: tuple[str, str]) -> IdentifiedSchema:
    """The schema after an edit of its text, with the ids that a change of it leaves."""
    text = schema.text
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    catalog = compile_schema(Source(text))
    return IdentifiedSchema(catalog, carried(schema.ids, plan_schema(schema.catalog, catalog), catalog), text)


def merged(
    ours: list[tuple[str, str]], theirs: list[tuple[str, str]], take: str | None = None, base: str = BASE
) -> tuple[MergedSchema, IdentifiedSchema]:
    """Merge what two sides make of one schema; return the result and the side of the target."""
    start = first(base)
    mine, other = changed(start, *ours), changed(start, *theirs)
    other = other.named(aliases(start.facts, mine, other))
    return merge_schemas(start.facts, mine.facts, other.facts, lambda _: take), mine


ADD = ("age: I32?", "age: I32? city: String?")
WIDE = ("age: I32?", "age: I64?")
RENAME = ("age: I32?", 'years: I32? @rename_from("age")')
CARD = ("Knows: Person -> Person", "Knows: Person -> Person @card(0..3)")
NO_TOWN = ("node Town { name: String @key }", "")
RENAME_TYPE = (
    ("node Town {", 'node City @rename_from("Town") {'),
    ("node Person {", 'node Human @rename_from("Person") {'),
    ("Knows: Person -> Person", "Knows: Human -> Human"),
)


@dataclass(frozen=True, slots=True)
class Case:
    ours: list[tuple[str, str]]
    theirs: list[tuple[str, str]]
    becomes: list[tuple[str, str]]


CASES = {
    "nothing": Case([], [], []),
    "a property added by one": Case([], [ADD], [ADD]),
    "a property added by both alike": Case([ADD], [ADD], [ADD]),
    "a property added by each": Case(
        [ADD], [("mood:", "size: I64? mood:")], [("age: I32?", "age: I32? city: String? size: I64?")]
    ),
    "a type added by both alike": Case(
        [("node Town", "node Club { c: String @key } node Town")],
        [("edge Knows", "node Club { c: String @key } edge Knows")],
        [("node Town", "node Club { c: String @key } node Town")],
    ),
    "renamed by one, widened by the other": Case(
        [RENAME], [("age: I32?", "age: I64?")], [("age: I32?", "years: I64?")]
    ),
    "renamed by both alike": Case([RENAME], [RENAME], [("age: I32?", "years: I32?")]),
    "types renamed by one, an edge added by the other": Case(
        [*RENAME_TYPE],
        [("edge Knows", "edge In: Person -> Town edge Knows")],
        [
            ("node Town {", "node City {"),
            ("node Person {", "node Human {"),
            ("edge Knows: Person -> Person", "edge In: Human -> City edge Knows: Human -> Human"),
        ],
    ),
    "dropped by one": Case([], [("age: I32?", "")], [("age: I32?", "")]),
    "a type dropped by one": Case(
        [ADD], [("node Town { name: String @key }", "")], [ADD, ("node Town { name: String @key }", "")]
    ),
    "constraints of each": Case(
        [("age: I32?", "age: I32? @unique @range(age, 0..9)")],
        [("mood: enum(calm, glad)?", 'mood: enum(calm, glad, wild)? @check(name, "a")')],
        [
            ("age: I32?", "age: I32? @unique @range(age, 0..9)"),
            ("mood: enum(calm, glad)?", 'mood: enum(calm, glad, wild)? @check(name, "a")'),
        ],
    ),
    "an index of each": Case(
        [("age: I32?", "age: I32? @index")],
        [("mood:", "@index(name) mood:")],
        [("age: I32?", "age: I32? @index @index(name)")],
    ),
    "prose": Case(
        [("node Town", 'node Town @description("ours")')],
        [("node Town", 'node Town @description("theirs")')],
        [("node Town", 'node Town @description("ours")')],
    ),
    "a cardinality": Case([ADD], [CARD], [ADD, CARD]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_both_sides_did_comes_together(name: str) -> None:
    case = CASES[name]
    found, mine = merged(case.ours, case.theirs)
    expected = BASE
    for old, new in case.becomes:
        expected = expected.replace(old, new)

    assert found.conflicts == ()
    catalog, ids = schema_of(found.facts)
    assert catalog == plain(compile_schema(Source(expected)))
    kept = {one.id for one in mine.ids.values()}
    assert {one.id for key, one in ids.items() if one.id in kept}, "what was there keeps its identity"
    other, _ = merged(case.theirs, case.ours)
    if name != "prose":  # of which each side keeps its own
        assert schema_of(other.facts)[0] == catalog


CONFLICTS = {
    "two types of one name": (
        [("node Town", "node Club { c: String @key } node Town")],
        [("node Town", "node Club { d: String @key } node Town")],
        ("schema_divergent", "node:Club"),
    ),
    "two properties of one name": (
        [("age: I32?", "age: I32? city: String?")],
        [("age: I32?", "age: I32? city: I32?")],
        ("schema_divergent", "node:Person.city"),
    ),
    "two names": (
        [("age: I32?", 'years: I32? @rename_from("age")')],
        [("age: I32?", 'since_birth: I32? @rename_from("age")')],
        ("schema_rename", "node:Person.age"),
    ),
    "two onto one name": (
        [("age: I32?", 'x: I32? @rename_from("age")')],
        [("mood: enum", "x: enum"), ("glad)?", 'glad)? @rename_from("mood")')],
        ("schema_name_taken", "node:Person.x"),
    ),
    "dropped, and widened": (
        [("age: I32?", "")],
        [("age: I32?", "age: I64?")],
        ("schema_drop_vs_change", "node:Person.age"),
    ),
    "dropped, and an index added": (
        [("age: I32?", "")],
        [("age: I32?", "age: I32? @index")],
        ("schema_drop_vs_change", "node:Person.age"),
    ),
    "a type dropped, and a property added": (
        [("node Town { name: String @key }", "")],
        [("node Town { name: String @key }", "node Town { name: String @key size: I32? }")],
        ("schema_drop_vs_change", "node:Town"),
    ),
    "two types of a value": (
        [("age: I32?", "age: I64?")],
        [("age: I32?", "age: F64?")],
        ("schema_divergent", "node:Person.age"),
    ),
    "two enums": (
        [("glad)", "glad, a)")],
        [("glad)", "glad, b)")],
        ("schema_divergent", "node:Person.mood"),
    ),
    "two ranges": (
        [("age: I32?", "age: I32? @range(age, 0..1)")],
        [("age: I32?", "age: I32? @range(age, 0..2)")],
        ("schema_divergent", "node:Person"),
    ),
    "two cardinalities": (
        [("Knows: Person -> Person", "Knows: Person -> Person @card(0..3)")],
        [("Knows: Person -> Person", "Knows: Person -> Person @card(0..2)")],
        ("schema_divergent", "edge:Knows"),
    ),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_what_the_sides_contradict_each_other_in_is_a_conflict(name: str) -> None:
    ours, theirs, (kind, label) = CONFLICTS[name]

    for one, other in ((ours, theirs), (theirs, ours)):
        found, _ = merged(one, other)
        assert (kind, label) in {(conflict.kind, _old_name(conflict.label)) for conflict in found.conflicts}


def _old_name(label: str) -> str:
    return label.replace(".years", ".age").replace(".since_birth", ".age")


@pytest.mark.parametrize("side", ["ours", "theirs"])
@pytest.mark.parametrize("name", [name for name in CONFLICTS if name != "two onto one name"])
def test_a_conflict_is_settled_by_a_side(name: str, side: str) -> None:
    ours, theirs, _ = CONFLICTS[name]
    found, _ = merged(ours, theirs, take=side)

    assert found.conflicts == ()
    expected = changed(first(BASE), *(ours if side == "ours" else theirs))
    assert schema_of(found.facts)[0] == plain(expected.catalog)


def test_what_is_dropped_is_named_with_the_side_that_has_it() -> None:
    found, mine = merged([ADD], [("node Town { name: String @key }", ""), ("since: I32?", "")])

    ids = mine.ids
    assert found.dropped == {
        (ids["node:Town"].id, ""): "ours",
        (ids["node:Town"].id, ids["node:Town"].properties["name"]): "ours",
        (ids["edge:Knows"].id, ids["edge:Knows"].properties["since"]): "ours",
    }


def test_what_two_bases_contradict_each_other_in_is_not_taken_from_either() -> None:
    start = first(BASE)
    one, other = changed(start, ("age: I32?", "age: I64?")), changed(start, ("age: I32?", "age: F64?"))
    base = joined_bases(start.facts, one.facts, other.facts)

    assert merge_schemas(base, one.facts, one.facts, lambda _: None).conflicts == ()
    assert merge_schemas(base, one.facts, other.facts, lambda _: None).conflicts != ()


SCHEMAS = [case.source for path in sorted((Path(__file__).parent / "cases").glob("*.pg")) for case in load_cases(path)]


def test_a_schema_is_its_facts_and_its_text() -> None:
    sound = []
    for text in SCHEMAS:
        with suppress(SchemaError):
            sound.append(first(text))
    assert len(sound) > 50
    for schema in sound:
        catalog, ids = schema_of(schema.facts)
        assert (catalog, ids) == (plain(schema.catalog), schema.ids)
        assert plain(compile_schema(Source(schema_text(catalog)))) == catalog, schema.text
        assert decoded(encoded(ids)) == ids
        assert merge_schemas(schema.facts, schema.facts, schema.facts, lambda _: None).facts == schema.facts
