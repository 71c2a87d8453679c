"""`Graph.load`: what it takes, what it tells, what it refuses."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import omnigraph
from omnigraph.errors import (
    BranchNotFoundError,
    InputColumnsError,
    InputError,
    InputFormatError,
    InputNotFoundError,
    InputTypeError,
    InputUnreadableError,
    LoadRejectedError,
    OmnigraphError,
    ReadOnlyError,
)
from omnigraph.formats.batch import ConvertedBatch
from omnigraph.formats.files import Split
from omnigraph.formats.sources import split_batches
from omnigraph.graph import Graph
from omnigraph.lang.catalog import Catalog
from omnigraph.storage.objects import ObjectStore
from tests.support.loads import (
    PIPELINE,
    SMALL,
    difference,
    edge,
    lines,
    load_by,
    look,
    make_graph,
    node,
    nothing_changes,
    store_of,
)
from tests.support.mutations import at_write

BOTH = pytest.mark.parametrize("way", [SMALL, PIPELINE])
EVE = lines(node("Person", name="Eve", age=22), edge("Knows", "Eve", "Alice"))
NEW = ["+ Knows Eve -> Alice", "+ Person#Eve age=22 name=Eve"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    uri = tmp_path_factory.mktemp("graphs") / "people"
    make_graph("people", uri)
    return uri


@pytest.fixture
def people(template: Path, tmp_path: Path) -> Graph:
    return omnigraph.open(shutil.copytree(template, tmp_path / "people"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


# What it tells


@BOTH
def test_a_load_tells_what_it_brought_and_its_commit(people: Graph, way: str) -> None:
    head = people.commits()[0]
    done = load_by(way, people, [node("Person", name="Eve"), edge("knows", "Eve", "Bob")], "append", actor="ann")

    assert (done.branch, done.base_branch, done.branch_created, done.mode) == ("main", None, False, "append")
    assert (done.nodes, done.edges, done.total) == ({"Person": 1}, {"Knows": 1}, 2)
    assert done.commit == people.commits()[0]
    assert (done.commit.parent_id, done.commit.actor_id, done.actor_id) == (head.commit_id, "ann", "ann")


@BOTH
def test_records_that_replace_each_other_are_counted_once(people: Graph, way: str) -> None:
    done = load_by(way, people, [edge("Knows", "Bob", name, id="k9") for name in ("Alice", "Diana")], "merge")

    assert done.edges == {"Knows": 1}
    assert people.snapshot().entries["edge:Knows"].row_count == 4


@BOTH
@pytest.mark.parametrize("mode", ["append", "merge", "overwrite"])
def test_a_load_of_nothing_is_no_commit(people: Graph, folder: Path, way: str, mode: str) -> None:
    (folder / "empty.jsonl").write_text("\n\r\n")
    before = look(people)

    done = load_by(way, people, folder, mode)

    assert (done.nodes, done.edges, done.commit) == ({}, {}, None)
    assert look(people) == before


@BOTH
def test_a_dry_run_checks_and_changes_nothing(people: Graph, way: str) -> None:
    before = look(people)

    done = load_by(way, people, [node("Person", name="Eve")], "merge", dry_run=True)
    with pytest.raises(LoadRejectedError) as caught:
        load_by(way, people, [edge("Knows", "Eve", "Alice")], "merge", dry_run=True)

    assert (done.nodes, done.commit) == ({"Person": 1}, None)
    assert [problem.rule for problem in caught.value.violations] == ["endpoint"]
    assert look(people) == before


@BOTH
def test_a_refused_load_leaves_no_rows_behind(people: Graph, way: str) -> None:
    before = _files(people)
    with pytest.raises(LoadRejectedError):
        load_by(way, people, [node("Person", name="Eve"), edge("Knows", "Eve", "Nobody")], "merge")
    assert _files(people) - before == set()


def _files(graph: Graph) -> set[Path]:
    """The files of rows: those of the tables, and those that only the load needed."""
    return {*Path(graph.uri).rglob("*.lance"), *Path(graph.uri, "__tmp").rglob("*.*")}


# What it takes


@BOTH
@pytest.mark.parametrize(
    "name, data",
    [
        ("windows.jsonl", EVE.replace("\n", "\r\n").encode()),
        ("blank lines.jsonl", EVE.replace("\n", "\n\n \t\r\n").encode()),
        ("no last end.jsonl", EVE.strip().encode()),
        ("mark.jsonl", b"\xef\xbb\xbf" + EVE.encode()),
        ("packed.jsonl.gz", gzip.compress(EVE.encode(), mtime=0)),
        ("packed.ndjson.zst", pa.Codec("zstd").compress(EVE.encode()).to_pybytes()),
    ],
)
def test_lines_come_in_many_ways(people: Graph, folder: Path, way: str, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    before = look(people)

    load_by(way, people, folder / name, "append")

    assert difference(before, look(people)) == NEW


@BOTH
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_an_empty_value_at_the_end_of_a_csv_file_is_null(people: Graph, folder: Path, way: str, end: str) -> None:
    (folder / "Person.csv").write_text(f'name,age\n"Eve",{end}', newline="")
    before = look(people)

    load_by(way, people, folder, "append")

    assert difference(before, look(people)) == ["+ Person#Eve name=Eve"]


@BOTH
@pytest.mark.parametrize("name", ["Person.csv", "Person.csv.gz"])
def test_a_problem_of_a_csv_file_names_the_line_of_its_record(people: Graph, folder: Path, way: str, name: str) -> None:
    # The header has two lines, and so have the values of every third record.
    rows = [f'"p{at}\n",1' if at % 3 else f"p{at}," for at in range(60)]
    rows[20] = rows[40] = "p,x"
    text = 'name,"ag\ne"\n' + "\n".join(rows) + "\n"
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    mapping = {"files": {"*": {"type": "Person", "columns": {"ag\ne": "age"}}}}

    with nothing_changes(people, way), pytest.raises(LoadRejectedError) as caught:
        load_by(way, people, folder / name, "append", mapping=mapping)

    wrong = [at for at, line in enumerate(text.split("\n"), 1) if line == "p,x"]
    assert [(one.file, one.line) for one in caught.value.violations] == [(str(folder / name), at) for at in wrong]


@BOTH
def test_problems_in_small_files_name_the_file_and_line(people: Graph, folder: Path, way: str) -> None:
    for at in range(30):
        (folder / f"{at:02}.jsonl").write_text(lines(node("Company", name=f"c{at}"), node("Company", name=f"d{at}")))
    (folder / "07.jsonl").write_text(lines(node("Company", name="x")) + "\nwrong\n")
    (folder / "23.jsonl").write_text(lines(node("Company", name="y"), node("Company", name="c3")))

    with nothing_changes(people, way), pytest.raises(LoadRejectedError) as caught:
        load_by(way, people, folder, "append")

    found = [(one.file, one.line, one.rule) for one in caught.value.violations]
    assert found == [(str(folder / "07.jsonl"), 3, "json"), (str(folder / "23.jsonl"), 2, "unique")]


def test_many_small_files_become_one_file_of_a_table(people: Graph, folder: Path) -> None:
    for at in range(200):
        (folder / f"{at:03}.jsonl").write_text(lines(*(node("Company", name=f"c{at}-{n}") for n in range(50))))

    people.load(folder, mode="append", engine="local")

    table = store_of(people.uri).tables.open(people.snapshot().entries["node:Company"].table)
    assert len(table.get_fragments()) == 2
    assert table.to_table(["name"])["name"].to_pylist()[2:] == [f"c{at}-{n}" for at in range(200) for n in range(50)]


PEOPLE = pa.table({"name": ["Eve"], "age": pa.array([22], pa.int64())})
KNOWS = pa.table({"src": ["Eve"], "dst": ["Alice"], "since": pa.array([None], pa.date32())})


@BOTH
@pytest.mark.parametrize(
    "make",
    [
        lambda: [json.loads(line) for line in EVE.splitlines()],
        lambda: map(json.loads, EVE.splitlines()),
        lambda: {"Person": [{"name": "Eve", "age": 22}], "Knows": [{"from": "Eve", "to": "Alice"}]},
        lambda: {"Person": PEOPLE, "knows": KNOWS},
        lambda: {"Person": PEOPLE.to_batches()[0], "Knows": KNOWS.to_reader()},
        lambda: {"Person": PEOPLE, "Knows": [{"src": "Eve", "dst": "Alice"}]},
    ],
    ids=["records", "iterator", "records by type", "tables", "batches", "mixture"],
)
def test_a_program_brings_records_and_tables(people: Graph, way: str, make: Callable[[], Any]) -> None:
    before = look(people)

    load_by(way, people, make(), "append")

    assert difference(before, look(people)) == NEW


@BOTH
def test_problems_of_what_a_program_brings_are_named_after_it(people: Graph, way: str) -> None:
    with nothing_changes(people, way), pytest.raises(LoadRejectedError) as caught:
        load_by(way, people, {"Person": PEOPLE, "Knows": [{"from": "Eve", "to": "Zoe"}]}, "append")
    assert [(one.file, one.line) for one in caught.value.violations] == [("<Knows>", 1)]

    with pytest.raises(LoadRejectedError) as caught:
        load_by(way, people, [node("Company", name="New"), edge("Knows", "Eve", "Zoe")], "append")
    assert {(one.file, one.line) for one in caught.value.violations} == {("<records>", 2)}


@pytest.mark.parametrize("make", [lambda: PEOPLE, PEOPLE.to_pandas], ids=["arrow", "pandas"])
def test_a_table_without_its_type_is_refused_with_the_way_to_name_it(people: Graph, make: Callable[[], Any]) -> None:
    with pytest.raises(InputTypeError, match="cannot tell which type") as caught:
        people.load(make(), mode="append")
    assert "mapping from types to tables" in str(caught.value.hint)


def test_spark_dataframes_are_loaded(people: Graph, spark: SparkSession) -> None:
    before = look(people)

    done = people.load(
        {
            "Person": spark.createDataFrame([("Eve", 22)], "name string, age int"),
            "Knows": spark.createDataFrame([("Eve", "Alice")], "src string, dst string"),
        },
        mode="merge",
    )

    assert (done.nodes, done.edges) == ({"Person": 1}, {"Knows": 1})
    assert difference(before, look(people)) == NEW


@BOTH
def test_files_of_every_kind_are_one_commit(people: Graph, folder: Path, way: str) -> None:
    (folder / "Person").mkdir()
    (folder / "Person" / "1.csv").write_text("name,age\nEve,22\n")
    pq.write_table(pa.table({"name": ["Frank"]}), folder / "Person" / "2.parquet")
    (folder / "more.jsonl").write_text(lines(edge("Knows", "Eve", "Frank"), node("Person", name="Greta")))
    (folder / "works.csv").write_text("who,where,remark\nGreta,Acme,x\n")
    mapping = {"files": {"works.csv": {"type": "WorksAt", "columns": {"who": "from", "where": "to", "remark": None}}}}
    before = look(people)

    done = load_by(way, people, folder, "append", mapping=mapping)

    after = look(people)
    assert (done.nodes, done.edges) == ({"Person": 3}, {"Knows": 1, "WorksAt": 1})
    assert len(after.commits) == len(before.commits) + 1
    assert [line.split(" ", 1)[1] for line in difference(before, after)] == [
        "Knows Eve -> Frank",
        "Person#Eve age=22 name=Eve",
        "Person#Frank name=Frank",
        "Person#Greta name=Greta",
        "WorksAt Greta -> Acme",
    ]


@BOTH
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_files_of_a_type_may_differ_in_columns_that_suit_it(people: Graph, folder: Path, way: str, suffix: str) -> None:
    drifting: list[dict[str, list[Any]]] = [
        {"name": ["Eve"], "age": [22]},
        {"age": [23.0], "name": ["Frank"]},
        {"name": ["Greta"]},
    ]
    (folder / "Person").mkdir()
    for at, columns in enumerate(drifting):
        _write(folder / "Person" / f"{at}.{suffix}", columns)
    before = look(people)

    load_by(way, people, folder, "append")

    rows = ["+ Person#Eve age=22 name=Eve", "+ Person#Frank age=23 name=Frank", "+ Person#Greta name=Greta"]
    assert difference(before, look(people)) == rows


@BOTH
@pytest.mark.parametrize("drift", [{"name": ["Eve"], "old": [1]}, {"age": [1]}], ids=["surplus", "missing"])
def test_a_file_whose_columns_do_not_suit_its_type_is_named(
    people: Graph, folder: Path, way: str, drift: dict[str, list[Any]]
) -> None:
    (folder / "Person").mkdir()
    for at, columns in enumerate([{"name": ["Frank"]}, drift, {"name": ["Greta"]}]):
        _write(folder / "Person" / f"{at}.parquet", columns)

    with nothing_changes(people, way), pytest.raises(InputColumnsError) as caught:
        load_by(way, people, folder, "append")

    assert caught.value.path == str(folder / "Person/1.parquet")


def _write(path: Path, columns: dict[str, list[Any]]) -> None:
    if path.suffix == ".parquet":
        path.write_bytes(_parquet(**columns))
        return
    # CSV knows no types: 23.0 is the text 23.
    rows = zip(*(map("{:g}".format, one) if name == "age" else one for name, one in columns.items()), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(row) for row in rows)]) + "\n")


# What it refuses


def _put(name: str, data: bytes) -> Callable[[Path], Path]:
    def put(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return put


def _parquet(**columns: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


BAD_INPUT: dict[str, tuple[Callable[[Path], Any], type[OmnigraphError], str, str]] = {
    "no file": (lambda folder: folder / "none.jsonl", InputNotFoundError, "input_not_found", "none.jsonl"),
    "empty directory": (lambda folder: folder, InputNotFoundError, "input_not_found", "data"),
    "unknown format": (_put("a.xml", b"<a/>"), InputFormatError, "input_format", "a.xml"),
    "unknown type": (_put("a.csv", b"x\n1\n"), InputTypeError, "input_type", "a.csv"),
    "missing column": (_put("Person.parquet", _parquet(age=[1])), InputColumnsError, "input_columns", "Person.parquet"),
    "unknown column": (_put("Person.csv", b"name,agee\nEve,1\n"), InputColumnsError, "input_columns", "Person.csv"),
    "no parquet": (_put("Person.parquet", b"PAR1"), InputUnreadableError, "input_unreadable", "Person.parquet"),
    "no gzip": (_put("a.jsonl.gz", EVE.encode()), InputUnreadableError, "input_unreadable", "a.jsonl.gz"),
    "half a gzip": (
        _put("a.jsonl.gz", gzip.compress(EVE.encode() * 9)[:-20]),
        InputUnreadableError,
        "input_unreadable",
        "a.jsonl.gz",
    ),
    "another address": (lambda _: "gs://bucket/a.jsonl", InputFormatError, "input_format", "gs://bucket/a.jsonl"),
    "unknown name": (lambda _: {"Persn": PEOPLE}, InputTypeError, "input_type", "Persn"),
}


@BOTH
@pytest.mark.parametrize("case", BAD_INPUT)
def test_input_that_cannot_be_read_is_named_and_changes_nothing(
    people: Graph, folder: Path, way: str, case: str
) -> None:
    make, kind, code, name = BAD_INPUT[case]
    data = make(folder)

    with nothing_changes(people, way), pytest.raises(kind) as caught:
        load_by(way, people, data, "append")

    assert isinstance(caught.value, InputError)
    assert caught.value.code == code
    assert str(caught.value.path).endswith(name)
    assert name in caught.value.message


@BOTH
@pytest.mark.parametrize(
    "line, rule, fragment",
    [
        (b'{"type": "Person", "data": {"name": "Fr', "json", "the line ends too early"),
        ('{"type": "Person", "data": {"name": "Käse"}}'.encode("latin-1"), "json", "not UTF-8"),
        ('{"type": "Person", "data": {"name": "Eva"}}'.encode("utf-16"), "json", "not UTF-8"),
        (b"\xef\xbb\xbf" + b'{"type": "Person", "data": {"name": "Eva"}}', "json", "not JSON"),
        (b"\x00", "json", "not JSON"),
        (b"[" * 100_000, "json", "nested too deeply"),
    ],
    ids=["truncated", "latin", "utf-16", "mark", "nul", "nested"],
)
def test_bytes_that_are_no_record_are_named_with_their_line(  # noqa: PLR0917
    people: Graph, folder: Path, way: str, line: bytes, rule: str, fragment: str
) -> None:
    (folder / "input.jsonl").write_bytes(EVE.encode() + line)

    with nothing_changes(people, way), pytest.raises(LoadRejectedError) as caught:
        load_by(way, people, folder / "input.jsonl", "append")

    problem, *_ = caught.value.violations
    assert (problem.rule, problem.line) == (rule, 3)
    assert str(problem.file).endswith("/input.jsonl")
    assert fragment in problem.message


@BOTH
def test_a_branch_that_is_not_there_is_not_loaded_into(people: Graph, way: str) -> None:
    with nothing_changes(people, way), pytest.raises(BranchNotFoundError):
        load_by(way, people, [node("Person", name="Eve")], "append", branch="nowhere")
    assert people.branches() == ["main"]


def test_a_graph_that_is_open_for_reading_is_not_loaded_into(people: Graph) -> None:
    with nothing_changes(people), pytest.raises(ReadOnlyError):
        omnigraph.open(people.uri, read_only=True).load([node("Person", name="Eve")], mode="append")


# Data of a program


@pytest.mark.parametrize("opened", [io.StringIO(EVE), io.BytesIO(EVE.encode())], ids=["text", "bytes"])
def test_an_open_file_is_loaded_whether_it_was_opened_as_text_or_as_bytes(people: Graph, opened: IO[Any]) -> None:
    assert people.load(opened, mode="append").total == EVE.count("\n")


@pytest.mark.parametrize(
    "data",
    [
        [node("Person", name=b"Eve")],
        [node("Person", name=object())],
        [node("Person", name="\udc80")],
        [{("type",): "Person"}],
        {"Person": [{"name": b"Eve"}]},
        io.StringIO("\udc80"),
        [5],
        5,
    ],
    ids=["bytes", "object", "surrogate", "key", "table", "file", "number in a list", "number"],
)
def test_data_that_json_cannot_hold_is_refused(people: Graph, data: Any) -> None:
    with nothing_changes(people), pytest.raises(InputError):
        people.load(data, mode="append")


def test_numbers_and_arrays_of_numpy_are_plain_values(people: Graph) -> None:
    people.load([node("Person", name="Eve", age=np.int32(30))], mode="append")
    query = 'query q() { match { $p: Person { name: "Eve" } } return { $p.age } }'
    assert people.query(query).rows == [{"p.age": 30}]


def test_records_of_a_generator_are_written_in_blocks(people: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnigraph.ingest.load._BLOCK", 100)
    sizes: list[int] = []
    write = ObjectStore.write_chunks

    def counted(self: ObjectStore, name: str, chunks: Iterable[bytes]) -> None:
        found = list(chunks)
        sizes.extend(map(len, found))
        write(self, name, found)

    monkeypatch.setattr(ObjectStore, "write_chunks", counted)

    done = people.load((node("Person", name=f"p{at}") for at in range(50)), mode="append")

    assert done.total == 50
    assert max(sizes) < 200
    assert not list(Path(people.uri).glob("__tmp/*/*"))


@pytest.mark.parametrize("option", [{"mode": "upsert"}, {"mode": "merge", "engine": "flink"}])
def test_words_that_are_none_of_its_own_are_refused(people: Graph, option: dict[str, Any]) -> None:
    with nothing_changes(people), pytest.raises((OmnigraphError, ValueError)):
        people.load([node("Person", name="Eve")], **option)


def test_of_many_problems_the_first_twenty_are_shown_and_all_are_there(people: Graph) -> None:
    with pytest.raises(LoadRejectedError) as caught:
        people.load([edge("Knows", "Alice", f"x{at}") for at in range(30)], mode="append")

    text, told = str(caught.value), caught.value.details()
    assert "30 problems" in text
    assert "<records>:20: dst 'x19' not found in Person" in text
    assert "x20" not in text
    assert "and 10 more" in text
    assert [problem.line for problem in caught.value.violations] == list(range(1, 31))
    assert (told["count"], len(told["violations"])) == (30, 20)


# Sizes


def test_a_load_of_8192_records_stays_in_memory_and_one_more_goes_through_the_pipeline(people: Graph) -> None:
    seen = {}
    for count in (8192, 8193):
        with at_write(0, lambda: None) as writes:
            people.load([node("Company", name=f"c{count}-{at}") for at in range(count)], mode="append", engine="local")
        seen[count] = "write rows" in writes
    assert seen == {8192: False, 8193: True}
    assert people.snapshot().entries["node:Company"].row_count == 2 + 8192 + 8193


def test_converting_in_memory_stops_with_the_record_that_is_too_many(
    people: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[int] = []

    def counting(split: Split, catalog: Catalog) -> Iterator[ConvertedBatch]:
        for batch in split_batches(split, catalog):
            converted.append(batch.lines)
            yield batch

    monkeypatch.setattr("omnigraph.ingest.load.split_batches", counting)
    monkeypatch.setattr("omnigraph.formats.jsonl.BLOCK", 2**14)
    file = tmp_path / "companies.jsonl.gz"  # by its size it is small
    lines = (b'{"type":"Company","data":{"name":"c%d"}}\n' % at for at in range(50_000))
    file.write_bytes(gzip.compress(b"".join(lines)))

    people.load(file, mode="append", engine="local")

    assert 8192 < sum(converted) < 8192 + 2 * max(converted)
    assert people.snapshot().entries["node:Company"].row_count == 2 + 50_000
