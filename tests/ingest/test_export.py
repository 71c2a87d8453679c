"""Exports: what is written, in which order, where it goes, and that a load of it gives the same graph again."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import omnigraph
from omnigraph.commit.publish import begin, publish
from omnigraph.core.location import Location
from omnigraph.errors import (
    CommitNotFoundError,
    ExportTargetError,
    ExportTypeError,
    ExportValueError,
    StorageError,
)
from omnigraph.formats.writers import json_text
from omnigraph.graph import Graph
from omnigraph.ingest.export import ExportTask, export_part
from omnigraph.ingest.scan import groups, merge
from tests.support.graphs import PERSON, SCHEMA, append, plan
from tests.support.inbox import Inbox

FORMATS = ("jsonl", "csv", "parquet")
EVERYTHING = """
node Thing {
    name: String @key
    blob: Blob?  bool: Bool?  date: Date?  datetime: DateTime?  f32: F32?  f64: F64?  i32: I32?  i64: I64?
    u32: U32?  u64: U64?  text: String?  vector: Vector(2)?
    blobs: Blob  dates: [Date]?  datetimes: [DateTime]?  f32s: [F32]?  texts: [String]?  u64s: [U64]?  bools: [Bool]?
}
node Number { value: U64 @key }
node Keyless { text: String? }
node Shared { name: String @key }
edge Shared: Thing -> Number { weight: F64?  since: DateTime? }
edge Likes: Thing -> Keyless
"""


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", SCHEMA)


def add(graph: Graph, *names: str) -> None:
    """Load people, who come into a fragment of their own."""
    graph.load([{"type": "Person", "data": {"name": name}} for name in names], mode="append")


def ids(lines: Iterator[str]) -> list[str]:
    return [json.loads(line)["data"]["id"] for line in lines]


def content(graph: Graph) -> str:
    """All that is stored, in full: also the sign of a zero counts."""
    tables = graph._store.tables
    found = {
        key: tables.scan(entry.table, tables.open(entry.table).schema.names).to_pylist()
        for key, entry in graph.snapshot().entries.items()
    }
    return repr({key: sorted(rows, key=lambda row: str(row["id"])) for key, rows in found.items()})


def files(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


# The lines


def test_an_entity_is_a_line_with_its_id_first_its_nulls_and_its_dates_as_numbers(graph: Graph) -> None:
    knows = {"edge": "Knows", "from": "ann", "to": "bob", "data": {"id": "k1", "since": "2024-01-01"}}
    graph.load([*({"type": "Person", "data": {"name": name}} for name in ("bob", "ann")), knows], mode="append")

    assert list(graph.export()) == [
        '{"edge":"Knows","from":"ann","to":"bob","data":{"id":"k1","since":"2024-01-01"}}\n',
        '{"type":"Person","data":{"id":"ann","age":null,"name":"ann"}}\n',
        '{"type":"Person","data":{"id":"bob","age":null,"name":"bob"}}\n',
    ]


def test_ids_ascend_by_their_bytes_through_all_fragments(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["b", "é", "a", "Z", "😀", "\uffff", "aa", ""]
    for at in range(0, len(names), 2):
        add(graph, *names[at : at + 2])
    graph.mutate('query q() { delete Person where name = "b" }')
    expected = sorted(set(names) - {"b"}, key=str.encode)

    assert ids(graph.export()) == expected
    monkeypatch.setattr("omnigraph.ingest.scan._ROWS_PER_RUN", 2)  # so that runs are merged
    monkeypatch.setattr("omnigraph.ingest.scan._ROWS_TO_MERGE", 2)
    assert len(groups(graph._store.tables, graph.snapshot().entries[PERSON].table)) > 2
    assert ids(graph.export()) == expected


@settings(max_examples=25)
@given(st.lists(st.lists(st.text(max_size=3), max_size=12), min_size=1, max_size=5), st.integers(1, 5))
def test_merging_runs_is_sorting_them_all(runs: list[list[str]], size: int) -> None:
    def batches(run: list[str]) -> Iterator[pa.Table]:
        ordered = sorted(run, key=str.encode)
        return iter([pa.table({"id": pa.array(ordered[at : at + size])}) for at in range(0, len(run), size)])

    merged = [id_ for rows in merge([batches(run) for run in runs]) for id_ in rows["id"].to_pylist()]

    assert merged == sorted((id_ for run in runs for id_ in run), key=str.encode)


@given(st.lists(st.one_of(st.none(), st.text(), st.characters(max_codepoint=0x7F))))
def test_texts_are_json_whatever_is_in_them(texts: list[str | None]) -> None:
    found = json_text(pa.array(texts, pa.string())).to_pylist()

    assert [None if text is None else json.loads(text) for text in found] == texts


@given(st.lists(st.one_of(st.none(), st.binary(max_size=9))), st.integers(0, 3))
def test_bytes_are_base64_also_in_a_part_of_a_column(values: list[bytes | None], skipped: int) -> None:
    found = json_text(pa.array(values, pa.large_binary()).slice(skipped)).to_pylist()

    expected = [None if value is None else f'"base64:{base64.b64encode(value).decode()}"' for value in values[skipped:]]
    assert found == expected


@example([-0.0, 1e22, 5e-324])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_are_read_as_what_they_were(numbers: list[float]) -> None:
    found = json_text(pa.array(numbers, pa.float64())).to_pylist()

    assert [repr(float(json.loads(text))) for text in found] == [repr(number) for number in numbers]


# There and back


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def ints(low: int, high: int) -> st.SearchStrategy[int]:
    return st.sampled_from([low, high, 0, 1]) | st.integers(low, high)


TEXT = st.text(max_size=8) | st.sampled_from(
    ["", " ", '"', "\\", ",", "\r\n", "\n", "\0", "\x1f", "null", "[]", "\u2028"]
)
F32 = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_subnormal), -0.0]
)
F64 = st.floats(allow_nan=False, allow_infinity=False) | st.just(-0.0)
DAYS = ints(-719_162, 2_932_896)
MOMENTS = ints(-719_162 * 86_400_000, 2_932_897 * 86_400_000 - 1) | st.integers(-2000, 2000)
BLOB = st.binary(max_size=7).map(lambda data: "base64:" + base64.b64encode(data).decode())
THING = st.fixed_dictionaries(
    {
        "name": TEXT,
        "blob": maybe(BLOB),
        "bool": maybe(st.booleans()),
        "date": maybe(DAYS),
        "datetime": maybe(MOMENTS),
        "f32": maybe(F32),
        "f64": maybe(F64),
        "i32": maybe(ints(-(2**31), 2**31 - 1)),
        "i64": maybe(ints(-(2**63), 2**63 - 1)),
        "u32": maybe(ints(0, 2**32 - 1)),
        "u64": maybe(ints(0, 2**64 - 1)),
        "text": maybe(TEXT),
        "vector": maybe(st.lists(F32, min_size=2, max_size=2)),
        "blobs": BLOB,
        "dates": maybe(st.lists(DAYS, max_size=3)),
        "datetimes": maybe(st.lists(MOMENTS, max_size=3)),
        "f32s": maybe(st.lists(F32, max_size=3)),
        "texts": maybe(st.lists(TEXT, max_size=3)),
        "u64s": maybe(st.lists(ints(0, 2**64 - 1), max_size=3)),
        "bools": maybe(st.lists(st.booleans(), max_size=3)),
    }
)


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    things = draw(st.lists(THING, min_size=1, max_size=12, unique_by=lambda thing: str(thing["name"])))
    numbers = draw(st.lists(ints(0, 2**64 - 1), min_size=1, max_size=3, unique=True))
    loose = draw(st.lists(maybe(TEXT), min_size=1, max_size=3))
    edge = st.tuples(st.sampled_from(things), st.sampled_from(numbers), maybe(F64), maybe(MOMENTS))
    edges = draw(st.lists(edge, min_size=1, max_size=5))
    return [
        *({"type": "Thing", "data": thing} for thing in things),
        *({"type": "Number", "data": {"value": number}} for number in numbers),
        *({"type": "Keyless", "data": {"id": f"keyless {at}", "text": text}} for at, text in enumerate(loose)),
        *(
            {"edge": "Shared", "from": thing["name"], "to": str(number), "data": {"weight": weight, "since": since}}
            for thing, number, weight, since in edges
        ),
        *({"edge": "Likes", "from": things[0]["name"], "to": f"keyless {at}"} for at in range(len(loose))),
        {"type": "Shared", "data": {"name": "a node of an edge's name"}},
    ]


@pytest.mark.slow
@pytest.mark.parametrize("format_", FORMATS)
def test_an_export_loads_as_the_same_graph(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    monkeypatch.setattr("omnigraph.ingest.scan._BYTES", 3000)  # so that there is more than one batch

    root = tmp_path_factory.mktemp("round")
    graph, copy = (omnigraph.init(root / name, EVERYTHING) for name in ("graph", "copy"))

    @settings(max_examples=max(4, settings().max_examples // 10))
    @given(records())
    def check(rows: list[dict[str, Any]]) -> None:
        place = tmp_path_factory.mktemp("one")
        graph.load(rows, mode="overwrite")
        expected = content(graph)
        graph.export(place / "out", format=format_)
        empty = omnigraph.init(place / "empty", EVERYTHING)

        empty.load(place / "out", mode="append")
        assert content(empty) == expected
        copy.load(place / "out", mode="overwrite")
        assert content(copy) == expected
        assert list(copy.export()) == list(graph.export())

    check()


def test_a_type_without_entities_is_exported_too_and_empties_the_one_that_it_is_loaded_over(
    graph: Graph, tmp_path: Path
) -> None:
    graph.export(tmp_path / "out", format="csv")
    add(graph, "ann")

    graph.load(tmp_path / "out", mode="overwrite")

    assert list(graph.export()) == []


@pytest.mark.parametrize("most", [1, 2000, 2**22])
def test_every_blob_stays_with_its_entity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("omnigraph.ingest.scan._BYTES", most)
    graph = omnigraph.init(tmp_path / "graph", "node Photo { name: String @key  data: Blob? }")
    blobs = {f"{number:02}": base64.b64encode(bytes([number]) * 100).decode() for number in range(40)}
    for names in (sorted(blobs)[::-2], sorted(blobs)[::2]):
        rows = [{"type": "Photo", "data": {"name": name, "data": f"base64:{blobs[name]}"}} for name in names]
        graph.load(rows, mode="append")

    found = [json.loads(line)["data"] for line in graph.export()]

    assert [(one["id"], one["data"]) for one in found] == [(name, f"base64:{blobs[name]}") for name in sorted(blobs)]


# What and when


def test_only_the_types_that_are_named_are_exported(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", EVERYTHING)
    graph.load([{"type": "Shared", "data": {"name": "a"}}, {"type": "Keyless", "data": {}}], mode="append")

    assert ids(graph.export(types=["Shared"])) == ["a"]
    assert graph.export(tmp_path / "out", types=["Shared"]).files == (
        str(tmp_path / "out/edge/shared.jsonl"),
        str(tmp_path / "out/Shared.jsonl"),
    )


def test_a_type_that_is_not_there_is_told_before_anything_is_exported(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(ExportTypeError, match="unknown export type 'person'") as caught:
        graph.export(types=["Company", "person"])
    with pytest.raises(ExportTypeError):
        graph.export(tmp_path / "out", types=["person"])

    assert caught.value.hint == "did you mean `Person`?"
    assert not (tmp_path / "out").exists()


def test_the_graph_can_be_exported_as_it_was_at_a_commit(graph: Graph, tmp_path: Path) -> None:
    add(graph, "ann")
    [before, *_] = graph.commits()
    add(graph, "bob")

    assert ids(graph.export(snapshot=before.commit_id)) == ["ann"]
    assert ids(graph.export()) == ["ann", "bob"]
    done = graph.export(tmp_path / "out", snapshot=before.commit_id)
    assert (done.nodes["Person"], done.commit) == (1, before)
    with pytest.raises(CommitNotFoundError):
        graph.export(snapshot="01J00000000000000000000000")


def test_a_stream_shows_one_state_however_long_it_takes(graph: Graph) -> None:
    add(graph, "ann", "bob")
    lines = graph.export()
    first = next(lines)
    add(graph, "aaron")

    assert ids(iter([first, *lines])) == ["ann", "bob"]


@pytest.mark.parametrize("where", ["score", "scores", "place"])
def test_a_number_that_no_format_can_hold_is_told_with_its_entity(tmp_path: Path, where: str) -> None:
    graph = omnigraph.init(
        tmp_path / "graph", "node Point { name: String @key  score: F64?  scores: [F64]?  place: Vector(2)? }"
    )
    store = graph._store
    txn = begin(store)
    unfit = {"score": float("inf"), "scores": [1.0, float("nan")], "place": [1.0, float("-inf")]}
    rows: list[dict[str, Any]] = [{"id": "p", "name": "p"}, {"id": "q", "name": "q", where: unfit[where]}]
    publish(store, plan(txn, append(store, txn, "node:Point", rows)))
    (tmp_path / "old.jsonl").write_text("what was there\n")

    with pytest.raises(ExportValueError, match=f"Point.{where} of 'q' is") as caught:
        graph.export(tmp_path / "out", format="parquet")
    with pytest.raises(ExportValueError):
        graph.export(tmp_path / "old.jsonl")

    assert (caught.value.entity_id, caught.value.property) == ("q", where)
    assert files(tmp_path / "out") == {}
    assert (tmp_path / "old.jsonl").read_text() == "what was there\n"
    assert not list(tmp_path.glob("old.jsonl?*"))


# Where to


def test_a_path_that_ends_like_its_format_is_one_file_and_is_replaced(graph: Graph, tmp_path: Path) -> None:
    add(graph, "ann")
    (tmp_path / "all.jsonl").write_text("an older export")

    done = graph.export(tmp_path / "all.jsonl")
    graph.export(tmp_path / "people.csv", types=["Person"], format="csv")

    assert (tmp_path / "all.jsonl").read_text() == "".join(graph.export())
    assert (done.total, done.nodes, done.edges) == (1, {"Company": 0, "Person": 1}, {"Knows": 0, "WorksAt": 0})
    assert (tmp_path / "people.csv").read_text() == 'id,age,name\n"ann",,"ann"\n'


@pytest.mark.parametrize(
    "path, options, reason",
    [
        ("out.parquet", {}, "ends like parquet, but the format is jsonl"),
        ("out.csv", {"format": "csv"}, "holds one type, not 4"),
        ("out.jsonl", {"engine": "spark"}, "Spark cannot write one file"),
        ("out", {"format": "xml"}, "unknown format 'xml'"),
        ("graph", {}, "already exists"),
        (None, {"format": "csv"}, "can be streamed"),
        (None, {"engine": "spark"}, "can be streamed"),
    ],
)
def test_a_place_that_does_not_do_is_refused(
    graph: Graph, tmp_path: Path, path: str | None, options: dict[str, str], reason: str
) -> None:
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ExportTargetError, match=reason):
        graph.export(path and tmp_path / path, **options)  # type: ignore[arg-type]

    assert sorted(tmp_path.rglob("*")) == before


def test_a_place_that_cannot_be_written_to_is_named(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match=str(tmp_path / "file")):
        graph.export(tmp_path / "file" / "out.jsonl")


@pytest.mark.parametrize("format_", FORMATS)
def test_an_export_can_go_where_a_load_can_come_from(graph: Graph, tmp_path: Path, inbox: Inbox, format_: str) -> None:
    add(graph, "ann", "bob")
    graph.export(f"{inbox.uri}/out", format=format_)
    graph.export(f"{inbox.uri}/people.{format_}", format=format_, types=["Person"])
    copy = omnigraph.init(tmp_path / "copy", SCHEMA)

    copy.load(f"{inbox.uri}/out", mode="append")
    assert content(copy) == content(graph)
    with pytest.raises(ExportTargetError):
        graph.export(f"{inbox.uri}/out", format=format_)
    mapping = {"files": {"people.*": {"type": "Person"}}}
    assert copy.load(f"{inbox.uri}/people.{format_}", mode="merge", mapping=mapping).total == 2


# In parts


@pytest.fixture
def parted(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A graph whose people are in three fragments, each a part of its own."""
    monkeypatch.setattr("omnigraph.ingest.scan._ROWS_PER_RUN", 2)
    for names in ("db", "ca", "ef"):
        add(graph, *names)
    return graph


@pytest.mark.parametrize("format_", FORMATS)
def test_a_large_type_becomes_a_directory_of_parts_the_same_by_spark_as_here(
    parted: Graph, tmp_path: Path, spark: SparkSession, format_: str
) -> None:
    assert spark.sparkContext.master
    done = parted.export(tmp_path / "here", format=format_, engine="local")
    parted.export(tmp_path / "spark", format=format_, engine="spark")
    copy = omnigraph.init(tmp_path / "copy", SCHEMA)
    copy.load(tmp_path / "spark", mode="append")

    assert [file for file in done.files if "Person" in file] == [
        str(tmp_path / f"here/Person/part-0000{number}.{format_}") for number in range(3)
    ]
    assert files(tmp_path / "here") == files(tmp_path / "spark")
    assert content(copy) == content(parted)


def test_a_directory_says_when_it_is_complete_and_what_it_is_of(parted: Graph, tmp_path: Path) -> None:
    parted.export(tmp_path / "out", types=["Person", "Knows"])

    assert json.loads((tmp_path / "out/_export.json").read_bytes()) == {
        "format": "jsonl",
        "branch": "main",
        "graph_commit_id": parted.commits()[0].commit_id,
        "nodes": {"Person": 6},
        "edges": {"Knows": 0},
    }


def test_a_task_that_runs_twice_leaves_one_file(parted: Graph, tmp_path: Path) -> None:
    table = parted.snapshot().entries[PERSON].table
    fragments = groups(parted._store.tables, table)[:1]
    target = Location.parse(tmp_path / "out")
    task = ExportTask(parted._store.location, table, tuple(fragments), "parquet", target, "Person/part-00000.parquet")

    assert export_part(task) == export_part(task)

    assert list(files(tmp_path / "out")) == ["Person/part-00000.parquet"]
    assert pq.read_table(tmp_path / "out/Person/part-00000.parquet")["id"].to_pylist() == ["b", "d"]


def test_what_a_failed_export_has_written_is_taken_back(parted: Graph, tmp_path: Path) -> None:
    people = parted.snapshot().entries[PERSON].table
    *_, last = sorted(Path(parted.uri, people.path, "data").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    last.unlink()

    with pytest.raises(StorageError):
        parted.export(tmp_path / "out")

    assert files(tmp_path / "out") == {}
