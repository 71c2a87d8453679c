import bz2
import gzip
import io
import itertools
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.errors import (
    InputChangedError,
    InputFormatError,
    InputMappingError,
    InputNotFoundError,
    InputTypeError,
    InputUnreadableError,
    StorageError,
)
from omnigraph.formats import cuts, files, sources
from omnigraph.formats.batch import ConvertedBatch, joined
from omnigraph.formats.files import Split
from omnigraph.formats.sources import convert_split, discover, divided
from omnigraph.lang import Source, compile_schema
from tests.support.inbox import Inbox

CATALOG = compile_schema(
    Source("node Person { name: String @key  age: I32? }\nedge Knows: Person -> Person\nedge PERSON: Person -> Person")
)


def _people(count: int) -> bytes:
    return b"".join(b'{"type":"Person","data":{"name":"p%d"}}\n' % at for at in range(count))


def _parquet(count: int, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"name": [f"p{at}" for at in range(count)]}), sink, **options)
    return sink.getvalue()


def _zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data).to_pybytes())


def _names(parts: list[ConvertedBatch]) -> list[str]:
    assert [problem for part in parts for problem in part.problems] == []
    return [name for part in parts for table in part.tables.values() for name in table["name"].to_pylist()]


def _divided(splits: list[Split]) -> list[Split]:
    return divided(splits, lambda ranges: [cuts.scan_quotes(one) for one in ranges])


def _loaded(found: list[Split]) -> list[str]:
    return _names([convert_split(split, CATALOG) for split in found])


def _expected(count: int) -> list[str]:
    return [f"p{at}" for at in range(count)]


# Finding files -------------------------------------------------------------------------------------


def test_a_directory_is_searched_through_and_what_is_hidden_is_left_out(inbox: Inbox) -> None:
    for name in ("b.jsonl", "a/deep/c.jsonl", "_SUCCESS", ".b.jsonl.crc", "_temporary/0/d.jsonl"):
        inbox.put(name, _people(1))

    found = discover(inbox.uri, CATALOG)

    assert [split.file for split in found] == [f"{inbox.uri}/a/deep/c.jsonl", f"{inbox.uri}/b.jsonl"]
    assert _loaded(found) == ["p0", "p0"]


@pytest.mark.parametrize(
    "pattern, names",
    [
        ("*.jsonl", ["x.jsonl"]),
        ("part-?.jsonl.gz", ["part-1.jsonl.gz"]),
        ("day[12]/*.jsonl", ["day1/x.jsonl", "day2/y.jsonl"]),
        ("**/x.jsonl", ["day1/x.jsonl", "x.jsonl"]),
        ("day*", []),
    ],
)
def test_a_pattern_finds_what_it_matches(inbox: Inbox, pattern: str, names: list[str]) -> None:
    for name in ("x.jsonl", "day1/x.jsonl", "day2/y.jsonl", "day3/z.jsonl"):
        inbox.put(name, _people(1))
    inbox.put("part-1.jsonl.gz", gzip.compress(_people(1)))

    if not names:
        with pytest.raises(InputNotFoundError, match="nothing matches"):
            discover(f"{inbox.uri}/{pattern}", CATALOG)
        return
    assert [split.file.removeprefix(inbox.uri + "/") for split in discover(f"{inbox.uri}/{pattern}", CATALOG)] == names


def test_a_list_is_read_in_its_order_and_no_file_twice(inbox: Inbox) -> None:
    first, second = inbox.put("1.jsonl", _people(1)), inbox.put("2.jsonl", _people(2))

    found = discover([second, first, inbox.uri], CATALOG)

    assert [split.file for split in found] == [second, first]


def test_a_file_uri_and_a_path_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "some people.jsonl"
    path.write_bytes(_people(2))

    assert discover(path.as_uri(), CATALOG) == discover(path, CATALOG) == discover(str(path), CATALOG)


def test_a_file_whose_name_looks_like_a_pattern_is_found_by_it(tmp_path: Path) -> None:
    path = tmp_path / "a[1].jsonl"
    path.write_bytes(_people(1))

    assert [split.file for split in discover(path, CATALOG)] == [str(path)]


def test_what_is_not_there_cannot_be_loaded(inbox: Inbox) -> None:
    inbox.put("other/x.jsonl", b"")

    with pytest.raises(InputNotFoundError, match=r"nothing to load from .*missing") as caught:
        discover(f"{inbox.uri}/missing", CATALOG)

    assert caught.value.path == f"{inbox.uri}/missing"


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()

    with pytest.raises(InputNotFoundError, match="the directory is empty"):
        discover(tmp_path, CATALOG)


@pytest.mark.usefixtures("s3_uri")
def test_a_bucket_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(StorageError, match=r"cannot read s3://no-such-bucket/x\.jsonl") as caught:
        discover("s3://no-such-bucket/x.jsonl", CATALOG)

    assert caught.value.hint == "check that the bucket exists"


@pytest.mark.parametrize("address", ["ftp://host/x.jsonl", "gs://bucket/x.jsonl"])
def test_other_kinds_of_addresses_are_refused(address: str) -> None:
    with pytest.raises(InputFormatError, match="cannot read from"):
        discover(address, CATALOG)


# Formats and types ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.txt", "x", "x.json", "x.gz", "x.parquet.gz", ".jsonl2"])
def test_a_file_of_unknown_format_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")

    with pytest.raises(InputFormatError, match="cannot tell the format of"):
        discover(tmp_path / name, CATALOG)


def test_the_format_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "people.txt.gz"
    path.write_bytes(gzip.compress(_people(3)))

    assert _loaded(discover(path, CATALOG, format="jsonl")) == _expected(3)
    with pytest.raises(InputFormatError, match="unknown format 'xml'"):
        discover(path, CATALOG, format="xml")


@pytest.mark.once_on_s3
@pytest.mark.parametrize(
    "name, key",
    [
        ("Person.csv", "node:Person"),
        ("Person.2024.csv", "node:Person"),
        ("person.csv", "edge:PERSON"),
        ("KNOWS.csv", "edge:Knows"),
        ("Person/part-1.csv", "node:Person"),
        ("Person/year=2024/part-1.csv", "node:Person"),
        ("Person/Knows.csv", "edge:Knows"),
    ],
)
def test_rows_are_of_the_type_that_their_file_or_directory_is_named_after(inbox: Inbox, name: str, key: str) -> None:
    inbox.put(name, b"name\n")

    (split,) = discover(inbox.uri, CATALOG)

    assert split.type_key == key


def test_the_directory_that_is_loaded_can_be_named_after_the_type(tmp_path: Path) -> None:
    (tmp_path / "Person").mkdir()
    (tmp_path / "Person" / "part-0.parquet").write_bytes(_parquet(2))

    assert _loaded(discover(tmp_path / "Person", CATALOG)) == _expected(2)
    assert _loaded(discover(tmp_path / "Person" / "part-0.parquet", CATALOG)) == _expected(2)
    assert _loaded(discover(tmp_path / "*" / "*.parquet", CATALOG)) == _expected(2)


def test_rows_of_which_the_type_is_not_known_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(b"name\n")

    with pytest.raises(InputTypeError, match=r"people\.csv") as caught:
        discover(path, CATALOG)

    assert caught.value.path == str(path)


# The mapping ---------------------------------------------------------------------------------------


def test_a_mapping_says_what_files_and_columns_are(tmp_path: Path) -> None:
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "all.csv").write_bytes(b"full_name,remark\nAda,first\n")
    entry = {"type": "node:Person", "columns": {"full_name": "name", "remark": None}}
    document = {"files": {"people/*.csv": entry, "**/*.csv": {"type": "Knows"}}}
    (tmp_path / "map.json").write_text(json.dumps(document))

    for mapping in (document, tmp_path / "map.json", str(tmp_path / "map.json")):
        assert _loaded(discover(tmp_path / "people", CATALOG, mapping=mapping)) == ["Ada"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "cannot be used"),
        ("[]", "'files'"),
        ("{}", "'files'"),
        ('{"files": [], "more": 1}', "'files'"),
        ('{"files": {"*": "Person"}}', "must have 'type'"),
        ('{"files": {"*": {"type": "Person", "other": 1}}}', "may have 'columns'"),
        ('{"files": {"*": {"type": "Persn"}}}', "unknown type 'Persn'"),
        ('{"files": {"*": {"type": "edge:Person2"}}}', "unknown type"),
        ('{"files": {"*": {"type": "Person", "columns": {"a": 1}}}}', "an object of names"),
        ('{"files": {"[z-a].csv": {"type": "Person"}}}', "is not a pattern"),
    ],
)
def test_a_mapping_that_makes_no_sense_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "map.json").write_text(text)

    with pytest.raises(InputMappingError, match=message) as caught:
        discover(tmp_path, CATALOG, mapping=tmp_path / "map.json")

    assert caught.value.path == str(tmp_path / "map.json")


def test_a_mapping_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputMappingError, match="No such file"):
        discover(tmp_path, CATALOG, mapping=tmp_path / "map.json")


# Splits --------------------------------------------------------------------------------------------


def test_a_split_survives_being_sent_to_another_process(inbox: Inbox) -> None:
    inbox.put("Person.parquet", _parquet(3))

    found = pickle.loads(pickle.dumps(discover(inbox.uri, CATALOG)))  # noqa: S301 - our own bytes

    assert _loaded(found) == _expected(3)


@pytest.mark.once_on_s3
@pytest.mark.parametrize("size", [41, 42, 43, 44, 100, 1000])
def test_a_big_file_of_lines_is_cut_and_nothing_is_lost_or_doubled(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(sources, "SPLIT", size)
    data = _people(60)
    inbox.put("people.jsonl", data)

    found = discover(inbox.uri, CATALOG)

    parts = [convert_split(split, CATALOG) for split in found]
    assert len(found) == -(-len(data) // size)
    assert sum(split.size for split in found) == len(data)
    assert _names(parts) == _expected(60)
    assert sum(part.lines for part in parts) == 60


_LINES = st.lists(st.sampled_from([b"", b" ", b'{"type":"Person","data":{"name":"p"}}', b"x" * 30, b"\r"]), max_size=12)


@pytest.mark.slow
@given(lines=_LINES, ended=st.booleans(), bom=st.booleans(), size=st.integers(1, 60))
def test_splits_give_the_same_lines_as_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int, *, ended: bool, bom: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" * bom + b"\n".join(lines) + b"\n" * ended)
    (whole,) = (convert_split(split, CATALOG) for split in discover(path, CATALOG))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "SPLIT", size)
        parts = [convert_split(split, CATALOG) for split in discover(path, CATALOG)]

    before = [0, *itertools.accumulate(part.lines for part in parts)]
    problems = [
        (at + (p.record or 0), p.message) for at, part in zip(before, parts, strict=False) for p in part.problems
    ]
    assert before[-1] == whole.lines
    assert problems == [(problem.record, problem.message) for problem in whole.problems]


@pytest.mark.once_on_s3
@pytest.mark.parametrize("chunk", [10, 1000, 2**20])
@pytest.mark.parametrize(
    "ending, compress",
    [("gz", gzip.compress), ("bz2", bz2.compress), ("zst", _zstd)],
)
def test_a_compressed_file_is_read_as_one_split(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, ending: str, compress: Any, chunk: int
) -> None:
    monkeypatch.setattr(sources, "SPLIT", 10)
    monkeypatch.setattr(files, "CHUNK", chunk)
    inbox.put(f"people.jsonl.{ending}", compress(_people(50)))
    inbox.put(f"Person.csv.{ending}", compress(b'name,age\n"p\n0",1\np1,\n'))

    csv_split, lines = discover(inbox.uri, CATALOG)

    assert _loaded([lines]) == _expected(50)
    assert _loaded([csv_split]) == ["p\n0", "p1"]


def test_a_gzip_file_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(_people(50)[:1000]) + gzip.compress(_people(50)[1000:]))

    assert _loaded(discover(path, CATALOG)) == _expected(50)


@pytest.mark.once_on_s3
@pytest.mark.parametrize("size", [24, 25, 40, 100, 10_000])
def test_a_big_csv_file_is_cut_between_records_also_if_these_have_line_ends_in_them(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(sources, "SPLIT", size)
    rows = "".join(f'"p{at}\n, ""x""",{at}\r\n' if at % 3 else f"plain {at},\n" for at in range(40))
    inbox.put("Person.csv", b"\xef\xbb\xbf" + f"name,age\n{rows}".encode())

    found = _divided(discover(inbox.uri, CATALOG))

    assert (len(found) > 1) == (size < 1000)
    assert _loaded(found) == [f'p{at}\n, "x"' if at % 3 else f"plain {at}" for at in range(40)]


_RECORDS = st.lists(st.sampled_from(["a,1", '"b\n,",2', '"""\n\n""",', "\n", "c", '"d",x', "e\r"]), max_size=12)


@given(records=_RECORDS, ended=st.booleans(), size=st.integers(1, 40), block=st.integers(1, 40))
def test_a_divided_csv_file_has_the_same_rows_and_lines_as_the_whole(
    tmp_path_factory: pytest.TempPathFactory, records: list[str], size: int, block: int, *, ended: bool
) -> None:
    path = tmp_path_factory.mktemp("csv") / "Person.csv"
    path.write_bytes(("name,age\n" + "\n".join(records) + "\n" * ended).encode())
    splits = discover(path, CATALOG)
    (whole,) = (convert_split(split, CATALOG) for split in splits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "SPLIT", size)
        patch.setattr(files, "CHUNK", block)
        found = _divided(splits)
        parts = [convert_split(split, CATALOG) for split in found]

    before = [0, *itertools.accumulate(part.lines for part in parts)]
    problems = [
        replace(problem, record=problem.record + lines)
        for part, lines in zip(parts, before, strict=False)
        for problem in part.problems
        if problem.record is not None
    ]
    assert [part.tables["node:Person"]["name"].to_pylist() for part in [joined(parts)]] == [
        whole.tables["node:Person"]["name"].to_pylist()
    ]
    assert problems == whole.problems
    assert [split.start for split in found[1:]] == [split.end for split in found[:-1]]


def test_a_large_csv_file_is_not_read_before_tasks_divide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "Person.csv"
    path.write_text("name,age\n" + "".join(f'"p{at}",{at}\n' for at in range(5_000)))
    monkeypatch.setattr(sources, "SPLIT", 2**12)
    monkeypatch.setattr(sources, "_MOST_HEADER", 100)
    read: list[int] = []

    def reading(file: files.File, start: int, end: int) -> bytes:
        read.append(min(end, file.size) - start)
        return files.read_range(file, start, end)

    for module in (sources, cuts):
        monkeypatch.setattr(module, "read_range", reading)

    splits = discover(path, CATALOG)

    assert sum(read) <= 100
    found = _divided(splits)
    assert len(found) == -(-(path.stat().st_size - 9) // 2**12)
    assert sum(read) <= 100 + path.stat().st_size, "each byte is read once to divide the file"


def test_a_parquet_file_is_cut_at_its_row_groups(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SPLIT", 300)
    inbox.put("Person.parquet", _parquet(100, row_group_size=10))

    found = discover(inbox.uri, CATALOG)

    assert 1 < len(found) < 10
    assert [group for split in found for group in split.row_groups] == list(range(10))
    assert _loaded(found) == _expected(100)


def test_files_without_rows_bring_none(inbox: Inbox) -> None:
    inbox.put("Person.csv", b"name,age\n")
    inbox.put("Person.parquet", _parquet(0))
    inbox.put("empty.jsonl", b"")

    parts = [convert_split(split, CATALOG) for split in discover(inbox.uri, CATALOG)]

    assert [part.lines for part in parts] == [0, 0, 0]
    assert [list(part.tables) for part in parts] == [["node:Person"], ["node:Person"], []]


# Files that are not what they were, or should be ---------------------------------------------------


@pytest.mark.parametrize("name", ["x.jsonl", "Person.csv", "Person.parquet", "x.jsonl.gz"])
def test_a_file_that_changes_after_it_was_found_is_noticed(inbox: Inbox, name: str) -> None:
    data = {"x.jsonl": _people(2), "Person.csv": b"name\nAda\n", "Person.parquet": _parquet(2)}
    address = inbox.put(name, data.get(name, gzip.compress(_people(2))))
    (split,) = discover(address, CATALOG)
    inbox.put(name, data.get(name, gzip.compress(_people(3))) + b"\n")

    with pytest.raises(InputChangedError, match="changed while it was read") as caught:
        convert_split(split, CATALOG)

    assert caught.value.path == address


def test_a_file_that_is_only_touched_is_noticed_too(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(_people(1))
    (split,) = discover(path, CATALOG)
    os.utime(path, (1, 1))

    with pytest.raises(InputChangedError):
        convert_split(split, CATALOG)


def test_a_file_that_goes_away_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(_people(1))
    (split,) = discover(path, CATALOG)
    path.unlink()

    with pytest.raises(InputUnreadableError, match="No such file"):
        convert_split(split, CATALOG)


@pytest.mark.once_on_s3
@pytest.mark.parametrize(
    "name, data",
    [
        ("x.jsonl.gz", b"not gzip at all"),
        ("x.jsonl.gz", gzip.compress(_people(2000))[:-20]),
        ("x.jsonl.bz2", bz2.compress(_people(50))[:-20]),
        ("x.jsonl.zst", _zstd(_people(50))[:-5]),
        ("Person.parquet", b"PAR1"),
        ("Person.parquet", _parquet(5)[:-3]),
        ("Person.csv", b""),
        ("Person.csv", b"\n"),
        ("Person.csv", b"na\xffme\n"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(inbox: Inbox, name: str, data: bytes) -> None:
    address = inbox.put(name, data)

    with pytest.raises(InputUnreadableError) as caught:
        _loaded(discover(inbox.uri, CATALOG))

    assert caught.value.path == address
    assert address in caught.value.message


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")

    with pytest.raises(InputUnreadableError, match="not a regular file"):
        discover(tmp_path / "pipe.jsonl", CATALOG)


@pytest.mark.parametrize("name", ["Person.csv", "Person.csv.gz"])
@pytest.mark.parametrize("convert", [_divided, list], ids=["divided", "whole"])
def test_a_quote_that_is_never_closed_does_not_take_the_rest_of_a_large_file_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, convert: Callable[[list[Split]], list[Split]]
) -> None:
    for constant, size in {"CHUNK": 64, "MAX_RECORD": 256}.items():
        monkeypatch.setattr(files, constant, size)
    monkeypatch.setattr(cuts, "MAX_RECORD", 256)
    monkeypatch.setattr(sources, "SPLIT", 64)
    content = b'name\n"Ada\n' + b"Bob\n" * 1000
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)

    with pytest.raises(InputUnreadableError, match="a quote is not closed") as caught:
        _loaded(convert(discover(tmp_path / name, CATALOG)))

    assert caught.value.path == str(tmp_path / name)
