"""The catalog that a good schema compiles to."""

from __future__ import annotations

import pytest

from omnigraph.lang.catalog import Cardinality, Catalog, Check, Embed, Metadata, NodeType, Range
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source

PEOPLE = """
node Person { name: String @key age: I32? @range(age, 0..150) }
node Company { name: String @key }
edge WorksAt: Person -> Company @card(0..1) { since: Date @index }
edge Knows: Person -> Person { @unique(src, dst) }
"""


def _catalog(text: str) -> Catalog:
    return compile_schema(Source(text, "schema.pg"))


def _node(body: str) -> NodeType:
    return _catalog(f"node Thing {{ {body} }}").nodes["Thing"]


def test_types_and_properties_are_sorted_by_name() -> None:
    catalog = _catalog("""
        interface Zoned { zone: String area: String }
        interface Aged { age: I32 }
        node Shop implements Zoned, Aged { name: String city: String }
        node Cafe {}
        edge Sells: Shop -> Cafe { to_go: Bool price: F64 }
        edge Buys: Cafe -> Shop
    """)
    assert [list(types) for types in (catalog.interfaces, catalog.nodes, catalog.edges)] == [
        ["Aged", "Zoned"],
        ["Cafe", "Shop"],
        ["Buys", "Sells"],
    ]
    assert list(catalog.interfaces["Zoned"].properties) == ["area", "zone"]
    assert list(catalog.nodes["Shop"].properties) == ["age", "area", "city", "name", "zone"]
    assert list(catalog.edges["Sells"].properties) == ["price", "to_go"]


def test_an_empty_schema_makes_an_empty_catalog() -> None:
    assert _catalog("") == Catalog({}, {}, {})


@pytest.mark.parametrize(
    "written, shown",
    [
        ("String", "String"),
        ("String?", "String?"),
        ("DateTime", "DateTime"),
        ("[String]", "[String]"),
        ("[ String ] ?", "[String]?"),
        ("enum(b, a)", "enum(a, b)"),
        ("enum(b,a)?", "enum(a, b)?"),
        ("Vector(3)", "Vector(3)"),
        ("Vector(003)?", "Vector(3)?"),
    ],
)
def test_a_type_is_shown_in_its_canonical_spelling(written: str, shown: str) -> None:
    assert str(_node(f"x: {written}").properties["x"].type) == shown


def test_enum_values_are_stored_sorted() -> None:
    assert _node("state: enum(open, closed, blocked)").properties["state"].type.enum == ("blocked", "closed", "open")


def test_a_node_gets_the_properties_and_the_key_of_its_interface() -> None:
    catalog = _catalog("""
        interface Slugged { slug: String @key @description("in the address") title: String @index @unique }
        node Doc implements Slugged { body: String }
    """)
    doc = catalog.nodes["Doc"]
    assert (doc.key, doc.indexes, doc.unique, doc.implements) == (("slug",), (("title",),), (("title",),), ("Slugged",))
    assert doc.properties["slug"].metadata == Metadata(description="in the address")
    assert {name: property_.interfaces for name, property_ in doc.properties.items()} == {
        "body": (),
        "slug": ("Slugged",),
        "title": ("Slugged",),
    }


def test_an_interface_gives_its_embedding() -> None:
    catalog = _catalog("""
        interface Embedded { title: String v: Vector(3) @embed(title) }
        node Doc implements Embedded {}
    """)
    assert catalog.nodes["Doc"].properties["v"].embed == Embed("title")


def test_a_property_declared_again_takes_nothing_from_the_interface() -> None:
    catalog = _catalog("""
        interface Slugged { slug: String @key @index @description("in the address") }
        node Doc implements Slugged { slug: String @unique }
    """)
    doc = catalog.nodes["Doc"]
    assert (doc.key, doc.indexes, doc.unique) == ((), (), (("slug",),))
    assert doc.properties["slug"].metadata == Metadata()
    assert doc.properties["slug"].interfaces == ()


def test_a_property_of_two_interfaces_names_both() -> None:
    catalog = _catalog("""
        interface Zoned { name: String }
        interface Aged { name: String }
        node Doc implements Zoned, Aged {}
    """)
    assert catalog.nodes["Doc"].properties["name"].interfaces == ("Aged", "Zoned")
    assert catalog.nodes["Doc"].implements == ("Aged", "Zoned")


@pytest.mark.parametrize(
    "written, embed",
    [
        ('@embed("title")', Embed("title")),
        ("@embed(title)", Embed("title")),
        ('@embed("title", model="m")', Embed("title", "m")),
    ],
)
def test_an_embedding_knows_its_source_and_model(written: str, embed: Embed) -> None:
    assert _node(f"title: String v: Vector(3) {written}").properties["v"].embed == embed


@pytest.mark.parametrize("written", ["@key(tenant, slot)", "@key(slot, tenant)"])
def test_the_parts_of_a_key_are_in_alphabetical_order(written: str) -> None:
    assert _node(f"tenant: String slot: I32 {written}").key == ("slot", "tenant")


def test_the_columns_of_rules_are_sorted_and_named_once() -> None:
    thing = _node("b: I32 @index a: I32 @unique(b, a, b) @unique(a, b) @unique(b) @index(b) @index(b, a)")
    assert thing.unique == (("a", "b"), ("b",))
    assert thing.indexes == (("a", "b"), ("b",))


def test_a_bare_rule_is_the_rule_of_one_property() -> None:
    bare = _node("a: I32 @key b: I32 @unique c: I32 @index")
    assert bare == _node("a: I32 b: I32 c: I32 @key(a) @unique(b) @index(c)")
    assert (bare.key, bare.unique, bare.indexes) == (("a",), (("b",),), (("c",),))


def test_an_edge_may_be_unique_and_indexed_over_its_ends() -> None:
    edge = _catalog("node A {} edge E: A -> A { x: I32 @unique(src, dst) @index(src, x) }").edges["E"]
    assert (edge.unique, edge.indexes) == ((("dst", "src"),), (("src", "x"),))


@pytest.mark.parametrize(
    "bounds, lower, upper",
    [
        ("0..100", 0, 100),
        ("-5..-1", -5, -1),
        ("0..", 0, None),
        ("..10", None, 10),
        ("..-10", None, -10),
        ("-0.5..0.25", -0.5, 0.25),
        ("9007199254740993..", 9007199254740993, None),
    ],
)
def test_a_range_has_a_minimum_and_a_maximum(bounds: str, lower: float | None, upper: float | None) -> None:
    assert _node(f"x: F64 @range(x, {bounds})").ranges == (Range("x", lower, upper),)


def test_a_check_keeps_its_decoded_pattern() -> None:
    assert _node(r'x: String @check(x, "^\\d\"\t$")').checks == (Check("x", '^\\d"\t$'),)


@pytest.mark.parametrize(
    "written, cardinality",
    [("", Cardinality(0, None)), ("@card(0..)", Cardinality()), ("@card(1..01)", Cardinality(1, 1))],
)
def test_an_edge_has_a_cardinality(written: str, cardinality: Cardinality) -> None:
    assert _catalog(f"node A {{}} edge E: A -> A {written}").edges["E"].cardinality == cardinality


def test_annotations_become_metadata() -> None:
    catalog = _catalog("""
        node Doc @description("a \\"text\\"") @instruction("cite") @rename_from("Document")
          @team(core) @a(1, z=true, b="x") {
          title: String @rename_from(name) @default("x") @pii
        }
        edge Cites: Doc -> Doc @description("names")
    """)
    doc = catalog.nodes["Doc"]
    assert doc.metadata == Metadata('a "text"', "cite", "Document", ('@a(1, b="x", z=true)', "@team(core)"))
    assert doc.properties["title"].metadata == Metadata(rename_from="name", opaque=('@default("x")', "@pii"))
    assert catalog.edges["Cites"].metadata == Metadata("names")


@pytest.mark.parametrize("word", ["Knows", "KNOWS", "knows", "kNOWS"])
def test_an_edge_is_found_whatever_the_case_of_the_word(word: str) -> None:
    catalog = _catalog(PEOPLE)
    assert catalog.edge_by_word(word) is catalog.edges["Knows"]


@pytest.mark.parametrize("word", ["know", "knows_", "Person", ""])
def test_a_word_that_is_no_edge_finds_none(word: str) -> None:
    assert _catalog(PEOPLE).edge_by_word(word) is None


@pytest.mark.parametrize(
    "node_type, edges", [("Person", ["Knows", "WorksAt"]), ("Company", ["WorksAt"]), ("Nobody", [])]
)
def test_the_edges_at_a_node_are_found_from_both_ends(node_type: str, edges: list[str]) -> None:
    assert [edge.name for edge in _catalog(PEOPLE).incident_edges(node_type)] == edges


def test_an_edge_within_one_type_is_reflexive() -> None:
    assert {name: edge.is_reflexive for name, edge in _catalog(PEOPLE).edges.items()} == {
        "Knows": True,
        "WorksAt": False,
    }


@pytest.mark.parametrize(
    "one, other",
    [
        ("node A {} node B {}", "node B {} node A {}"),
        ("node A { x: I32 y: I32 }", "node A { y: I32 x: I32 }"),
        ("node A { x: enum(a, b) }", "node A { x: enum(b, a) }"),
        ("node A { x: I32 @index }", "node A { x: I32 @index(x) }"),
        ("node A { x: I32 y: I32 @key(x, y) }", "node A { x: I32 y: I32 @key(y, x) }"),
        ("node A { x: Vector(3) }", "// a comment\nnode A{x:Vector(03)}"),
        ("node A @a @b {}", "node A @b @a {}"),
        ("node A {} edge E: A -> A", "node A {} edge E: A -> A @card(0..) {}"),
        ("node A { x: I32 @range(x, 0..1) @range(x, 2..) }", "node A { x: I32 @range(x, 2..) @range(x, 0..1) }"),
        ("node A { x: F64 @range(x, 0..1) }", "node A { x: F64 @range(x, 0.0..1.00) }"),
        (
            "interface I { x: I32 } interface J { y: I32 } node A implements I, J {}",
            "interface J { y: I32 } interface I { x: I32 } node A implements J, I {}",
        ),
    ],
)
def test_schemas_of_one_meaning_are_one_catalog(one: str, other: str) -> None:
    assert _catalog(one) == _catalog(other)
    assert _catalog(one).fingerprint == _catalog(other).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        ("name: String @key age", "name: String age"),
        ("age: I32?", "age: I32"),
        ("age: I32?", "age: I64?"),
        ("age: I32?", 'age: I32? @description("in years")'),
        ("age: I32?", "age: I32? @pii"),
        ("0..150", "0..151"),
        ("0..150", "..150"),
        ("@range(age, 0..150)", "@index(age)"),
        ("@range(age, 0..150)", "@unique(age)"),
        ("@card(0..1)", "@card(0..2)"),
        ("@card(0..1)", ""),
        ("Person -> Company", "Company -> Person"),
        ("since: Date @index", "since: Date"),
        ("@unique(src, dst)", "@unique(src)"),
        ("edge Knows", "edge KNOWS"),
        ("node Company", "node Firm {} node Company"),
        ("node Company", "interface Named {} node Company"),
    ],
    ids="{0[0]} becomes {0[1]}".format,
)
def test_schemas_of_different_meaning_are_different_catalogs(change: tuple[str, str]) -> None:
    assert PEOPLE.count(change[0]) == 1
    before, after = _catalog(PEOPLE), _catalog(PEOPLE.replace(*change))
    assert before != after
    assert before.fingerprint != after.fingerprint


def test_a_property_of_an_interface_is_not_the_same_as_one_of_the_node() -> None:
    injected = _catalog("interface I { x: I32 } node A implements I {}")
    declared = _catalog("interface I { x: I32 } node A implements I { x: I32 }")
    assert injected.fingerprint != declared.fingerprint
