"""The validator: every rule, every violation of a change, and a cost that follows the change and not the graph."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.api.results import TableVersion
from omnigraph.commit.plan import TableAction
from omnigraph.commit.publish import begin, publish
from omnigraph.errors import Violation
from omnigraph.graph import Graph
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.storage.columns import table_key
from omnigraph.storage.predicates import Predicate
from omnigraph.storage.stage import TableStorage
from omnigraph.write.pending import Pending, PendingMode, to_store
from omnigraph.write.validate import CommittedRows, TableChange, violations, with_required
from tests.support.graphs import plan
from tests.write.scene import store_of

Row = dict[str, Any]


class CountedTables(TableStorage):
    """The tables, and how often they were scanned."""

    scans = 0

    def scan(
        self,
        table: TableVersion,
        columns: Sequence[str],
        predicate: Predicate | None = None,
        *,
        addresses: bool = False,
    ) -> pa.Table:
        self.scans += 1
        return super().scan(table, columns, predicate, addresses=addresses)


def declared(graph: Graph, name: str) -> NodeType | EdgeType:
    return graph.catalog.nodes.get(name) or graph.catalog.edges[name]


def change(
    graph: Graph, name: str, rows: Iterable[Row] = (), removed: Iterable[tuple[str, str | None]] = (), **more: Any
) -> TableChange:
    """What brings some rows and removes others; a row that goes is named by its id and, of an edge, its source."""
    pending = Pending(declared(graph, name))
    for number, row in enumerate(rows):
        pending.insert(row, number, PendingMode.MERGE)
    gone = list(removed)
    ids, sources = pa.array([row[0] for row in gone], pa.string()), pa.array([row[1] for row in gone], pa.string())
    return TableChange(declared(graph, name), pending.image(), pa.table({"id": ids, "src": sources}), **more)


def broken(graph: Graph, *changes: TableChange) -> list[Violation]:
    """All that a change would break."""
    store = store_of(graph)
    by_key = {table_key(one.declared): one for one in changes}
    return list(violations(graph.catalog, CommittedRows(store.tables, begin(store)), by_key))


def short(found: Iterable[Violation]) -> list[tuple[str, str | None, int | None]]:
    return [(one.rule, one.entity_id, one.record) for one in found]


def node(name: str, **values: Any) -> Row:
    return {"id": name, "key": name, **values}


def edge(name: str, src: str, dst: str, **values: Any) -> Row:
    return {"id": name, "src": src, "dst": dst, **values}


def made(tmp_path: Path, schema: str, *statements: str) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", schema)
    if statements:
        graph.mutate(f"query seed() {{ {' '.join(statements)} }}")
    return graph


# Values


VALUES = """node Thing {
    key: String @key
    need: I32
    mood: enum(calm, sad)?
    size: F64?
    rate: F32?
    wide: U64?
    exact: I64?
    huge: U64?
    code: String?
    photo: Blob?
    @range(size, -1..10.5)
    @range(wide, 5..)
    @range(exact, ..9007199254740992)
    @range(huge, 1..18446744073709551614)
    @check(code, "[0-9]$")
}
edge Has: Thing -> Thing { mood: enum(calm, sad) }"""


@pytest.mark.parametrize(
    "values, rules",
    [
        ({}, []),
        ({"mood": "calm", "size": -1.0, "wide": 5, "code": "x1", "rate": 0.5, "photo": b""}, []),
        ({"size": 10.5, "wide": 2**64 - 1, "code": "1\n2"}, []),
        ({"need": None}, ["required"]),
        ({"mood": "Calm"}, ["enum"]),
        ({"mood": ""}, ["enum"]),
        ({"size": -1.0000001}, ["range"]),
        ({"size": 10.6}, ["range"]),
        ({"wide": 4}, ["range"]),
        ({"exact": 2**53}, []),
        ({"exact": 2**53 + 1}, ["range"]),
        ({"huge": 0}, ["range"]),
        ({"huge": 2**64 - 2}, []),
        ({"huge": 2**64 - 1}, ["range"]),
        ({"size": math.nan}, ["finite", "range"]),
        ({"size": math.inf}, ["finite", "range"]),
        ({"rate": -math.inf}, ["finite"]),
        ({"code": "x"}, ["check"]),
        ({"code": ""}, ["check"]),
        ({"need": None, "mood": "x", "size": 11.0, "code": "y"}, ["check", "enum", "range", "required"]),
    ],
)
def test_each_rule_about_values_is_checked_and_null_keeps_them_all(
    tmp_path: Path, values: Row, rules: list[str]
) -> None:
    graph = made(tmp_path, VALUES)
    change_ = change(graph, "Thing", [node("before", need=1), node("it", **{"need": 1, **values})])

    found = broken(graph, change_)

    assert sorted({one.rule for one in found}) == rules
    assert {(one.entity_id, one.record, one.type_name, one.hint) for one in found} <= {("it", 1, "Thing", None)}


def test_a_missing_vector_comes_with_the_way_to_make_it(tmp_path: Path) -> None:
    graph = made(tmp_path, "node Doc { key: String @key  title: String  gist: Vector(2) @embed(title) }")

    found = broken(graph, change(graph, "Doc", [node("a")]))

    explained = {one.properties: "omnigraph embed" in (one.hint or "") for one in found}
    assert explained == {("gist",): True, ("title",): False}


def test_rows_without_a_required_value_are_dropped_and_no_others(tmp_path: Path) -> None:
    graph = made(tmp_path, VALUES)
    rows = change(graph, "Thing", [node("null", need=1), node("lacks"), node("all", need=2, mood="sad")]).rows

    assert with_required(declared(graph, "Thing"), rows)["id"].to_pylist() == ["null", "all"]


def test_every_value_of_every_row_is_reported_nodes_first(tmp_path: Path) -> None:
    graph = made(tmp_path, VALUES)
    things = change(graph, "Thing", [node("a", need=1, mood="x"), node("b"), node("c", need=2, mood="y", code="z")])
    edges = change(graph, "Has", [edge("e", "a", "b", mood="x"), edge("f", "a", "b")])

    found = broken(graph, edges, things)

    assert sorted(short(found[:4])) == [("check", "c", 2), ("enum", "a", 0), ("enum", "c", 2), ("required", "b", 1)]
    assert sorted(short(found[4:])) == [("enum", "e", 0), ("required", "f", 1)]
    words = {one.message for one in found}
    assert "invalid enum value 'x' for Thing.mood (expected: calm, sad)" in words
    assert any(word.startswith("@check violation on Thing.code: 'z'") for word in words)


def test_a_long_value_is_shown_in_part(tmp_path: Path) -> None:
    graph = made(tmp_path, VALUES)

    whole, part = broken(
        graph, change(graph, "Thing", [node("a", need=1, code="x" * 78), node("b", need=1, code="x" * 100_000)])
    )

    assert f" '{'x' * 78}' " in whole.message
    assert f" '{'x' * 78}… " in part.message


# Uniqueness


UNIQUE_VALUES: dict[str, tuple[Any, Any, Any]] = {
    "String": ("o'\\\n", "o'\\\n", "o"),
    "Bool": (True, True, False),
    "I32": (-(2**31), -(2**31), 2**31 - 1),
    "I64": (-(2**63), -(2**63), 2**63 - 1),
    "U32": (2**32 - 1, 2**32 - 1, 0),
    "U64": (2**64 - 1, 2**64 - 1, 2**64 - 2),
    "F32": (0.0, -0.0, 0.5),
    "F64": (-0.0, 0.0, 5e-324),
    "Date": (dt.date(1, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    "DateTime": (
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 998_000, dt.UTC),
    ),
    "enum(a, b)": ("a", "a", "b"),
}


@pytest.mark.parametrize("kind", UNIQUE_VALUES)
def test_a_value_of_any_type_is_unique_in_a_change_and_in_the_graph(tmp_path: Path, kind: str) -> None:
    first, same, different = UNIQUE_VALUES[kind]
    graph = made(tmp_path, f"node A {{ key: String @key  v: {kind}? @unique }}")
    rows = [node("a", v=first), node("b", v=different), node("c", v=same), node("d"), node("e")]
    assert short(broken(graph, change(graph, "A", rows))) == [("unique", "c", 2)]

    stored(graph, [node("old", v=first), node("null")])
    assert short(broken(graph, change(graph, "A", [node("a", v=same), node("b", v=different), node("c")]))) == [
        ("unique", "a", 0)
    ]


def stored(graph: Graph, rows: list[Row]) -> None:
    """Put rows of any value into the table of A, past what a query can say."""
    store = store_of(graph)
    txn = begin(store)
    image = to_store(declared(graph, "A"), change(graph, "A", rows).rows)
    publish(store, plan(txn, TableAction(store.tables.stage_append(txn.entries["node:A"].table, image))))


@pytest.mark.parametrize("kind", ["F32", "F64"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_unique_value_that_is_no_number_is_reported_like_any_other(tmp_path: Path, kind: str, value: float) -> None:
    graph = made(tmp_path, f"node A {{ key: String @key  v: {kind}? @unique }}", 'insert A { key: "old", v: 1 }')

    found = short(broken(graph, change(graph, "A", [node("a", v=value), node("b", v=1.0)])))

    assert ("finite", "a", 0) in found
    assert ("unique", "b", 1) in found


@pytest.mark.parametrize("kind, value, shown", [("F64", -0.0, "0.0"), ("F64", 1.0, "1.0"), ("I32", 0, "0")])
def test_a_repeated_value_is_shown_and_both_zeros_alike(tmp_path: Path, kind: str, value: float, shown: str) -> None:
    graph = made(tmp_path, f"node A {{ key: String @key  v: {kind}? @unique }}")

    (found,) = broken(graph, change(graph, "A", [node("a", v=value), node("b", v=value)]))

    assert found.message.startswith(f"@unique violation on A.v: {shown} ")


PAIRS = "node A { key: String @key  x: String?  y: I32? @unique(y, x) }"


@pytest.mark.parametrize(
    "rows, found",
    [
        ([("a", "p", 1)], ["a"]),
        ([("a", "p", 2), ("b", "q", 1)], []),
        ([("a", "q", 9), ("b", "r", 9), ("c", "q", 9), ("d", "q", 9)], ["c", "d"]),
        ([("a", "p", None), ("b", "p", None), ("c", None, 1), ("d", None, 1), ("e", None, None)], []),
        ([("a", "n", None), ("b", "n", 5)], []),
        ([("a", "p", 1), ("b", "p", 1)], ["a", "b"]),
        ([("old", "p", 1)], []),
        ([("old", "z", 1), ("a", "p", 1)], []),
        ([("old", "p", None), ("a", "p", 1)], []),
    ],
)
def test_a_pair_is_unique_as_a_whole_unless_it_has_a_null(
    tmp_path: Path, rows: list[tuple[str, str | None, int | None]], found: list[str]
) -> None:
    graph = made(
        tmp_path,
        PAIRS,
        'insert A { key: "old", x: "p", y: 1 } insert A { key: "other", x: "q", y: 2 } insert A { key: "n", x: "n" }',
    )

    reported = broken(graph, change(graph, "A", [node(name, x=x, y=y) for name, x, y in rows]))

    assert sorted({str(one.entity_id) for one in reported}) == found
    assert {one.properties for one in reported} <= {("x", "y")}


def test_a_holder_that_is_replaced_or_removed_gives_its_value_up(tmp_path: Path) -> None:
    graph = made(
        tmp_path,
        "node A { key: String @key  v: I32? @unique }",
        *(f'insert A {{ key: "k{number}", v: {number} }}' for number in range(4)),
    )
    rows = [node("k0", v=10), node("k1", v=0), node("new", v=2), node("bad", v=3)]

    found = broken(graph, change(graph, "A", rows, removed=[("k2", None)]))

    assert short(found) == [("unique", "bad", 3)]
    assert found[0].message.startswith("@unique violation on A.v: 3")


def test_an_edge_may_be_unique_by_its_ends(tmp_path: Path) -> None:
    graph = made(
        tmp_path,
        "node A { key: String @key } edge E: A -> A { note: String? @unique(src, dst) }",
        'insert A { key: "a" } insert A { key: "b" } insert E { from: "a", to: "b" }',
    )
    rows = [edge("1", "b", "a"), edge("2", "a", "b"), edge("3", "b", "b"), edge("4", "b", "a")]

    assert sorted(short(broken(graph, change(graph, "E", rows, fresh=True)))) == [
        ("unique", "2", 1),
        ("unique", "4", 3),
    ]


# Endpoints


ENDS = "node A { key: String @key } node B { key: String @key } edge E: A -> B"


def test_an_end_is_found_in_the_graph_or_in_the_change_and_nowhere_else(tmp_path: Path) -> None:
    graph = made(
        tmp_path,
        ENDS,
        'insert A { key: "a" } insert B { key: "b" } insert B { key: "gone" } insert A { key: "O\'Neil" }',
    )
    rows = [
        edge("1", "a", "b"),
        edge("2", "new", "newer"),
        edge("3", "b", "b"),
        edge("4", "a", "a"),
        edge("5", "x", "y"),
        edge("6", "a", "gone"),
        edge("7", "O'Neil", "b"),
    ]
    nodes = change(graph, "A", [node("new")]), change(graph, "B", [node("newer")], removed=[("gone", None)])

    found = broken(graph, change(graph, "E", rows, fresh=True), *nodes)

    assert sorted((one.entity_id, one.message) for one in found) == [
        ("3", "src 'b' not found in A"),
        ("4", "dst 'a' not found in B"),
        ("5", "dst 'y' not found in B"),
        ("5", "src 'x' not found in A"),
        ("6", "dst 'gone' not found in B"),
    ]
    assert {one.rule for one in found} == {"endpoint"}


def test_an_edge_that_stays_without_one_of_its_nodes_is_reported_for_either_end(tmp_path: Path) -> None:
    graph = made(tmp_path, ENDS, 'insert A { key: "a" } insert B { key: "b" } insert E { from: "a", to: "b" }')
    for gone, message in (("A", "src 'a' not found in A"), ("B", "dst 'b' not found in B")):
        found = broken(graph, change(graph, gone, [], removed=[(gone.lower(), None)]))
        assert [one.message for one in found] == [message]


# Cardinality


BOUNDS = """node A { key: String @key } node B { key: String @key }
edge E: A -> B @card(1..2)"""


def bounded(tmp_path: Path) -> Graph:
    """`one` has one edge, `two` has two, `none` has none."""
    return made(
        tmp_path,
        BOUNDS,
        *(f'insert A {{ key: "{name}" }}' for name in ("one", "two", "none")),
        'insert B { key: "b" }',
        *(f'insert E {{ from: "{name}", to: "b" }}' for name in ("one", "two", "two")),
    )


def ids_of(graph: Graph, source: str) -> list[str]:
    store = store_of(graph)
    rows = store.tables.open(store.manifest.load().snapshot.entries["edge:E"].table).to_table().to_pylist()
    return [row["id"] for row in rows if row["src"] == source]


def counted(found: Sequence[Violation]) -> list[tuple[str | None, str]]:
    assert {one.rule for one in found} <= {"cardinality"}
    return sorted((one.entity_id, one.message.partition(" has ")[2]) for one in found)


@pytest.mark.parametrize(
    "sources, found",
    [
        (["one"], []),
        (["none"], []),
        (["none", "none"], []),
        (["two"], [("two", "3 edges (max 2)")]),
        (["one", "one"], [("one", "3 edges (max 2)")]),
        (["none"] * 3, [("none", "3 edges (max 2)")]),
        (["two", "one", "one"], [("one", "3 edges (max 2)"), ("two", "3 edges (max 2)")]),
    ],
)
def test_edges_that_come_are_counted_with_those_that_are_there(
    tmp_path: Path, sources: list[str], found: list[tuple[str, str]]
) -> None:
    graph = bounded(tmp_path)
    rows = [edge(str(number), source, "b") for number, source in enumerate(sources)]

    reported = broken(graph, change(graph, "E", rows, fresh=True))

    assert counted(reported) == found
    last = {source: number for number, source in enumerate(sources)}
    assert [one.record for one in reported] == [last[str(one.entity_id)] for one in reported]


def test_a_source_that_loses_its_edges_is_counted(tmp_path: Path) -> None:
    graph = bounded(tmp_path)
    (one,), (first, second) = ids_of(graph, "one"), ids_of(graph, "two")

    assert counted(broken(graph, change(graph, "E", removed=[(one, "one")]))) == [("one", "0 edges (min 1)")]
    assert broken(graph, change(graph, "E", removed=[(first, "two")])) == []
    gone = change(graph, "E", removed=[(first, "two"), (second, "two"), (one, "one")])
    assert counted(broken(graph, gone)) == [("one", "0 edges (min 1)"), ("two", "0 edges (min 1)")]
    assert counted(broken(graph, gone, change(graph, "A", removed=[("two", None)]))) == [("one", "0 edges (min 1)")]


def test_an_edge_that_moves_is_counted_where_it_was_and_where_it_is(tmp_path: Path) -> None:
    graph = bounded(tmp_path)
    (one,), (first, second) = ids_of(graph, "one"), ids_of(graph, "two")

    assert counted(broken(graph, change(graph, "E", [edge(one, "two", "b")]))) == [
        ("one", "0 edges (min 1)"),
        ("two", "3 edges (max 2)"),
    ]
    assert broken(graph, change(graph, "E", [edge(first, "one", "b")])) == []
    assert broken(graph, change(graph, "E", [edge(first, "two", "b"), edge(one, "one", "b")])) == []
    assert broken(graph, change(graph, "E", [edge(one, "two", "b"), edge(first, "one", "b")])) == []
    assert counted(broken(graph, change(graph, "E", [edge(first, "none", "b"), edge(second, "none", "b")]))) == [
        ("two", "0 edges (min 1)")
    ]


def test_a_node_that_never_had_an_edge_is_not_asked_for_one(tmp_path: Path) -> None:
    graph = bounded(tmp_path)

    assert broken(graph, change(graph, "A", [node("new")])) == []


# All of it


def test_violations_of_all_rules_come_in_their_order(tmp_path: Path) -> None:
    graph = made(
        tmp_path,
        """node A { key: String @key  v: I32? @unique @range(v, 0..5) }
        edge E: A -> A @card(0..1) { note: String? @unique }""",
        'insert A { key: "old", v: 1 } insert A { key: "free" } insert E { from: "old", to: "old", note: "n" }',
    )
    nodes = change(graph, "A", [node("a", v=1), node("b", v=9)])
    edges = change(graph, "E", [edge("1", "old", "nobody", note="n"), edge("2", "old", "a")], fresh=True)

    found = [(one.rule, one.entity_id) for one in broken(graph, edges, nodes)]

    assert found == [("range", "b"), ("unique", "a"), ("unique", "1"), ("endpoint", "1"), ("cardinality", "old")]


def test_a_change_that_breaks_nothing_names_nothing_and_reads_what_it_must(tmp_path: Path) -> None:
    graph = bounded(tmp_path)
    store = store_of(graph)
    committed = CommittedRows(store.tables, begin(store))
    rows = change(graph, "E", [edge("1", "none", "b")], fresh=True)

    assert list(violations(graph.catalog, committed, {"edge:E": rows})) == []
    assert committed.read_set == {"node:A", "node:B", "edge:E"}


# Cost


@pytest.mark.parametrize("size", [1, 60])
def test_the_number_of_scans_follows_the_rules_and_neither_the_graph_nor_the_change(tmp_path: Path, size: int) -> None:
    graph = made(
        tmp_path,
        """node A { key: String @key  v: I32? @unique  w: String? @unique }
        edge E: A -> A @card(0..100) { note: String? @unique }""",
        *(f'insert A {{ key: "k{number}", v: {number} }}' for number in range(size)),
        *(f'insert E {{ from: "k0", to: "k{number}" }}' for number in range(size)),
    )
    store = store_of(graph)
    tables = CountedTables(store.location)
    nodes = change(graph, "A", [node(f"n{number}", v=1000 + number, w=f"w{number}") for number in range(size)])
    edges = change(
        graph,
        "E",
        [edge(f"e{number}", f"k{number}", f"n{number}", note=f"x{number}") for number in range(size)],
        fresh=True,
    )

    found = list(violations(graph.catalog, CommittedRows(tables, begin(store)), {"node:A": nodes, "edge:E": edges}))

    assert found == []
    # Two unique columns of the nodes, one of the edges, the sources that are not new, and the edges they have.
    assert tables.scans == 5
