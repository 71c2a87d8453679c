"""What a result offers: rows, Arrow, pandas, HTML."""

from __future__ import annotations

import datetime as dt
import json
import math
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.api.arrow import result_of, stream_of
from omnigraph.api.rows import Result
from omnigraph.commit.publish import begin, publish
from omnigraph.errors import LibraryMissingError, ParameterError, QueryError, QueryNotFoundError, ResourceLimitError
from omnigraph.graph import Graph
from tests.query.scene import edge, node
from tests.support.graphs import append, plan
from tests.support.mutations import store_of

ALL = "query all() { match { $p: Person } return { $p.name, $p.age as years } order { $p.name } }"


def test_a_result_is_rows_columns_and_a_table(shared: Callable[[str], Graph]) -> None:
    graph = shared("people")

    found = graph.query(ALL)

    assert found.columns == ["p.name", "years"]
    assert len(found) == 4
    assert [*found] == found.rows
    assert found.rows[0] == {"p.name": "Alice", "years": 30}
    assert (found.query_name, found.branch, found.commit) == ("all", "main", graph.commits()[0])
    assert found.to_arrow().schema == pa.schema([("p.name", pa.string()), ("years", pa.int32())])
    assert pa.table(found) == found.to_arrow()
    assert pa.RecordBatchReader.from_stream(found).read_all() == found.to_arrow()


def test_a_result_becomes_a_data_frame(shared: Callable[[str], Graph]) -> None:
    frame = shared("people").query(ALL).to_pandas()

    assert list(frame.columns) == ["p.name", "years"]
    assert frame["years"].tolist() == [30, 25, 35, 28]


def test_integers_beside_nulls_keep_every_digit_in_a_data_frame(copy_of: Callable[[str], Graph]) -> None:
    graph = copy_of("random")
    graph.load(
        [node("A", name="a", l=2**53 + 1, w=2**64 - 1, i=None), node("A", name="b", i=-1, nums=[])], mode="append"
    )

    found = graph.query("query q() { match { $a: A } return { $a.l, $a.w, $a.i as n, $a.i as n } order { $a.name } }")
    frame = found.to_pandas()

    assert [str(kind) for kind in frame.dtypes] == ["Int64", "UInt64", "Int32", "Int32"]
    assert (frame["a.l"][0], frame["a.w"][0]) == (2**53 + 1, 2**64 - 1)
    assert frame.isna().to_numpy().tolist() == [[False, False, True, True], [True, True, False, False]]
    assert str(graph.query("query q() { match { $a: A } return { count($a) as n } }").to_pandas()["n"].dtype) == "int64"


KNOWS = "query q() { match { $a: Person  $a $k:knows $b } return { $a.name, $b.name, $k.since as key, $a.age as age } }"


def test_a_result_becomes_a_graph_with_an_edge_for_each_row(shared: Callable[[str], Graph]) -> None:
    found = shared("people").query(KNOWS).to_networkx()

    assert sorted(found.edges()) == [("Alice", "Bob"), ("Alice", "Charlie"), ("Bob", "Diana")]
    assert found.get_edge_data("Bob", "Diana")[0] == {"key": None, "age": 25}


def test_the_ends_of_edges_can_be_named_and_equal_rows_stay_apart(shared: Callable[[str], Graph]) -> None:
    found = shared("people").query(KNOWS).to_networkx("age", "a.name")

    assert sorted(found.edges()) == [(25, "Bob"), (30, "Alice"), (30, "Alice")]
    assert found.get_edge_data(25, "Bob")[0] == {"b.name": "Diana", "key": None}


def test_nodes_of_two_types_with_one_id_stay_apart(copy_of: Callable[[str], Graph]) -> None:
    graph = copy_of("people")
    graph.load([node("Company", name="Alice"), edge("WorksAt", "Alice", "Alice")], mode="append")

    at = graph.query('query q() { match { $p: Person { name: "Alice" }  $p worksAt $c } return { $p, $c } }')
    known = graph.query("query q() { match { $p: Person  $p knows $f } return { $p, $f } }")

    assert set(at.to_networkx().edges()) == {
        (("Person", "Alice"), ("Company", "Acme")),
        (("Person", "Alice"), ("Company", "Alice")),
    }
    assert set(result_of(stream_of(at, None)).to_networkx()) == set(at.to_networkx())
    assert set(known.to_networkx()) == {"Alice", "Bob", "Charlie", "Diana"}


def test_a_row_without_an_end_is_a_node(shared: Callable[[str], Graph]) -> None:
    found = shared("people").query(KNOWS).to_networkx("a.name", "key")

    assert sorted(found.nodes()) == ["Alice", "Bob"]
    assert found.number_of_edges() == 0


@pytest.mark.parametrize(
    "source, ends, message",
    [
        ("return { $m.name }", (), "no column 2"),
        ("return { $m.name, $m.count }", ("m.name", "m.nam"), "no column 'm.nam'"),
        ("return { $m.name, $m.marks }", (), "'m.marks' holds lists"),
    ],
)
def test_what_cannot_be_an_edge_is_told(
    shared: Callable[[str], Graph], source: str, ends: tuple[str, ...], message: str
) -> None:
    found = shared("metrics").query(f"query q() {{ match {{ $m: Metric }} {source} }}")

    with pytest.raises(ParameterError, match=message):
        found.to_networkx(*ends)


@pytest.mark.parametrize("library", ["networkx", "polars"])
def test_a_library_that_is_not_there_is_named(
    shared: Callable[[str], Graph], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(LibraryMissingError, match=f"{library} is not installed") as caught:
        getattr(shared("people").query(KNOWS), f"to_{library}")()

    assert caught.value.library == library


def test_an_empty_result_keeps_its_types(shared: Callable[[str], Graph]) -> None:
    graph = shared("metrics")
    names = ("name", "score", "ratio", "count", "large", "active", "born", "seen", "kind", "marks", "days", "place")
    items = ", ".join(f"$m.{name}" for name in names)
    full = graph.query(f"query q() {{ match {{ $m: Metric }} return {{ {items} }} }}")
    empty = graph.query(f'query q() {{ match {{ $m: Metric {{ name: "none" }} }} return {{ {items} }} }}')
    folded = graph.query(
        'query q() { match { $m: Metric { name: "none" } } return { min($m.count), sum($m.count) as s } }'
    )

    assert (len(empty), empty.rows) == (0, [])
    assert empty.to_arrow().schema == full.to_arrow().schema
    assert folded.rows == [{"m.count": None, "s": None}]
    assert folded.to_arrow().schema == pa.schema([("m.count", pa.int32()), ("s", pa.float64())])
    assert len(empty.to_pandas()) == 0


def test_html_shows_every_column_and_harms_nobody(people: Graph) -> None:
    people.mutate("query q($n: String) { insert Person { name: $n } }", {"n": "<script>&"})

    page = people.query("query q() { match { $p: Person } return { $p.name as x, $p.age as x } }")._repr_html_()

    assert "<script>" not in page
    assert page.count("<th>") == 2
    assert page.count("<td>") == 2 * 5


def test_html_escapes_texts(people: Graph) -> None:
    people.mutate("query q($n: String) { insert Person { name: $n } }", {"n": "<script>&"})

    assert "<td>&lt;script&gt;&amp;</td>" in people.query(ALL)._repr_html_()


@pytest.mark.parametrize("rows, note", [(100, ""), (1_105, "<caption>1,005 more rows are not shown</caption>")])
def test_html_says_how_many_rows_it_leaves_out(rows: int, note: str) -> None:
    page = Result("q", "main", pa.table({"n": list(range(rows))}), None)._repr_html_()

    assert page.startswith(f"<table>{note}<thead>")
    assert page.count("<td>") == 100


def test_every_row_can_be_written_as_json(shared: Callable[[str], Graph]) -> None:
    names = ("marks", "values", "floats", "days", "times", "place", "old", "large")
    items = ", ".join(f"$m.{name}" for name in names)

    found = shared("metrics").query(f"query q() {{ match {{ $m: Metric }} return {{ {items} }} }}")

    assert json.loads(json.dumps(found.rows, allow_nan=False)) == found.rows


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Numbers that JSON does not have, and that another tool has written."""
    graph = omnigraph.init(tmp_path_factory.mktemp("odd") / "g", "node N { name: String @key  d: F64?  l: [F64]? }")
    numbers = {"nan": math.nan, "inf": math.inf, "minus": -math.inf, "one": 1.5, "null": None}
    rows = [{"id": name, "name": name, "d": one, "l": None if one is None else [one]} for name, one in numbers.items()]
    store = store_of(graph.uri)
    txn = begin(store)
    publish(store, plan(txn, append(store, txn, "node:N", rows)))
    return graph


def test_numbers_that_json_does_not_have_are_texts(odd: Graph) -> None:
    found = odd.query("query q() { match { $n: N } return { $n.name, $n.d, $n.l } }").rows

    assert {row["n.name"]: row["n.d"] for row in found} == {
        "nan": "NaN", "inf": "Infinity", "minus": "-Infinity", "one": 1.5, "null": None,
    }  # fmt: skip
    assert {row["n.name"]: row["n.l"] for row in found} == {
        "nan": ["NaN"], "inf": ["Infinity"], "minus": ["-Infinity"], "one": [1.5], "null": None,
    }  # fmt: skip


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize(
    "test, expected",
    [
        ("$n.d > 1.0", ["inf", "one"]),
        ("$n.d != 1.5", ["inf", "minus"]),
        ("$n.d = $n.d", ["inf", "minus", "one"]),
        ("$n.d != $n.d", []),
        ("$n.d < 2", ["minus", "one"]),
    ],
)
def test_what_is_no_number_satisfies_nothing(odd: Graph, test: str, expected: list[str]) -> None:
    found = odd.query(f"query q() {{ match {{ $n: N  {test} }} return {{ $n.name }} }}")

    assert sorted(row["n.name"] for row in found) == expected


def test_the_clock_is_read_once(shared: Callable[[str], Graph]) -> None:
    before = dt.datetime.now(dt.UTC)
    source = "query q() { match { $p: Person  $q: Person } return { now() as at, now() } }"

    found = shared("people").query(source)

    cells = {cell for row in found for cell in row.values()}
    assert len(found) == 16
    (cell,) = cells
    assert before - dt.timedelta(seconds=1) <= dt.datetime.fromisoformat(cell) <= dt.datetime.now(dt.UTC)


def test_one_of_several_queries_is_chosen_by_name(shared: Callable[[str], Graph]) -> None:
    graph, source = (
        shared("people"),
        f"{ALL} query other() {{ match {{ $c: Company }} return {{ $c }} order {{ $c.name }} }}",
    )

    assert graph.query(source, name="other").columns == ["c"]
    with pytest.raises(QueryNotFoundError):
        graph.query(source, name="third")
    with pytest.raises(QueryNotFoundError):
        graph.query(source)
    with pytest.raises(QueryError):
        graph.query("query q() { match { $p: Nobody } return { $p } }")


@contextmanager
def little_memory(gibibytes: int) -> Iterator[None]:
    """Let this process have only so much more memory for a while."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + gibibytes * 2**30, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process this way")
def test_a_result_that_is_too_large_is_an_error_that_says_so(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", "node N { name: String @key }")
    graph.load([node("N", name=str(at)) for at in range(3_000)], mode="append")

    with little_memory(4), pytest.raises(ResourceLimitError):
        graph.query("query q() { match { $a: N  $b: N  $c: N } return { $a } }")


def test_a_walk_asks_for_memory_before_it_takes_it(
    copy_of: Callable[[str], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = copy_of("people")
    ring = [f"r{at}" for at in range(300)]
    graph.load([node("Person", name=name) for name in ring], mode="append")
    steps = [(at, (at + step) % len(ring)) for at in range(len(ring)) for step in (1, 7, 31, 97)]
    graph.load([edge("Knows", ring[start], ring[end]) for start, end in steps], mode="append")
    source = "query q() { match { $p: Person  $p knows{1,6} $f } return { count($f) as n } }"
    answer = graph.query(source).rows

    monkeypatch.setenv("OMNIGRAPH_QUERY_MEMORY", "1000000")
    with pytest.raises(ResourceLimitError) as caught:
        graph.query(source)

    # One row is returned, but the pairs of origin and node that a step reaches are more than the limit allows.
    assert caught.value.limit == 1_000_000 < caught.value.actual
    monkeypatch.setenv("OMNIGRAPH_QUERY_MEMORY", "100000000")
    assert graph.query(source).rows == answer


def test_objects_are_whole_entities(shared: Callable[[str], Graph]) -> None:
    graph = shared("language")
    (found,) = graph.query('query q() { match { $p: Person { slug: "b" } } return { object($p) } }').rows
    stored = {"age": 20, "born": "2000-01-01", "email": None, "name": "Bob", "retired": True, "slug": "b", "tags": None}
    assert found == {"p": {"@id": "b", "@type": "Person", **stored}}
    text = "query q() { match { $p: Person optional { $p $e:knows $f $e.since = 2001 } } return { object($e) as e } }"
    edges = [row["e"] for row in graph.query(text).rows]
    assert edges.count(None) == 2
    assert {"@id": "ab0", "@type": "Knows", "@src": "a", "@dst": "b", "since": 2001} in edges
