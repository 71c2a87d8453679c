"""CSV files that are written in another way, and options that cannot be meant."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import OptionError
from omnigraph.formats import sources
from omnigraph.formats.batch import ConvertedBatch, joined
from omnigraph.formats.cuts import QuoteScan, scan_quotes
from omnigraph.formats.files import Split
from omnigraph.formats.sources import convert_split, discover, divided, packed
from omnigraph.lang import Source, compile_schema

CATALOG = compile_schema(Source("node Thing { name: String @key  size: F64?  count: I32?  day: Date?  at: DateTime? }"))


def _scan(ranges: Sequence[Split]) -> list[QuoteScan]:
    return [scan_quotes(one) for one in ranges]


def _csv(folder: Path, text: str, **given: Any) -> ConvertedBatch:
    (folder / "Thing.csv").write_bytes(text.encode())
    return joined(convert_split(split, CATALOG) for split in divided(discover(folder, CATALOG, **given), _scan))


def _rows(found: ConvertedBatch, *names: str) -> list[tuple[Any, ...]]:
    assert found.problems == []
    return [tuple(row.values()) for row in found.tables["node:Thing"].select(names).to_pylist()]


@pytest.mark.parametrize(
    "options, text, rows",
    [
        ({"delimiter": ";"}, "name;size\na,b;1.5\n", [("a,b", 1.5)]),
        ({"delimiter": "tab"}, "name\tsize\na\t\n", [("a", None)]),
        ({"delimiter": "\\t"}, "name\tsize\na\t2\n", [("a", 2.0)]),
        ({"quote": "'"}, "name,size\n'a\n,''\"',1\n", [("a\n,'\"", 1.0)]),
        ({"nulls": ["NA", "-"]}, 'name,size\n"NA",NA\nb,-\nc,\n', [("NA", None), ("b", None), ("c", None)]),
        ({"nulls": "NA"}, "name,size\na,NA\n", [("a", None)]),
        ({"trim": True}, " name , size\n a b ,\t1 \nc,  \n", [("a b", 1.0), ("c", None)]),
        ({"trim": True, "nulls": ["NA"]}, "name,size\na, NA\n", [("a", None)]),
        ({"names": ["name", "size"]}, "\ufeffa,1\nb,2\n", [("a", 1.0), ("b", 2.0)]),
        ({"names": ["name", "size"], "header": True}, "x,y\na,1\n", [("a", 1.0)]),
        ({"decimal": ",", "delimiter": ";"}, "name;size\na;-1,5e3\nb;2\n", [("a", -1500.0), ("b", 2.0)]),
    ],
)
def test_a_dialect_is_read(tmp_path: Path, options: dict[str, Any], text: str, rows: list[tuple[Any, ...]]) -> None:
    assert _rows(_csv(tmp_path, text, csv=options), "name", "size") == rows


def test_dates_have_the_format_of_the_dialect(tmp_path: Path) -> None:
    options = {"date_format": "%d.%m.%Y", "datetime_format": "%d.%m.%Y %H:%M"}
    found = _csv(tmp_path, "name,day,at\na,1.2.2024,01.02.2024 13:30\nb,,\n", csv=options)

    day, other = _rows(found, "day")
    assert (day, other) == ((dt.date(2024, 2, 1),), (None,))
    assert found.tables["node:Thing"]["at"].combine_chunks().view("int64").to_pylist() == [1706794200000, None]


@pytest.mark.parametrize(
    "options, value",
    [
        ({"decimal": ",", "delimiter": ";"}, "1.5;;"),
        ({"decimal": ",", "delimiter": ";"}, "1.000,5;;"),
        ({"date_format": "%d.%m.%Y", "delimiter": ";"}, ";31.02.2024;"),
        ({"datetime_format": "%d.%m.%Y", "delimiter": ";"}, ";;2024-02-01"),
    ],
)
def test_a_value_that_the_dialect_does_not_know_is_a_problem_on_its_line(
    tmp_path: Path, options: dict[str, Any], value: str
) -> None:
    found = _csv(tmp_path, f"name;size;day;at\na;;;\nb;{value}\n", csv=options)

    assert [(problem.rule, problem.record) for problem in found.problems] == [("type", 1)]


@pytest.mark.parametrize("size", [30, 100, 10_000])
def test_a_large_file_is_cut_by_its_own_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(sources, "SPLIT", size)
    text = "name|size\n" + "".join(f"'p{at}\n|\"'|{at}\n" for at in range(40))

    found = _csv(tmp_path, text, csv={"delimiter": "|", "quote": "'"})

    assert _rows(found, "name", "size") == [(f'p{at}\n|"', float(at)) for at in range(40)]


def test_a_mapping_has_options_for_all_files_and_for_those_of_a_pattern(tmp_path: Path) -> None:
    texts = {"a.csv": "name;size\nx;-\n", "b.csv": "name|size\ny|1\n", "Thing.csv": "name;size\nz;-\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = {"a.csv": {"type": "Thing"}, "b.csv": {"type": "Thing", "csv": {"delimiter": "|"}}}
    mapping = {"files": files, "csv": {"delimiter": ";", "nulls": ["-"]}}

    (split,) = packed(discover(tmp_path, CATALOG, mapping=mapping))

    assert _rows(convert_split(split, CATALOG), "name", "size") == [("z", None), ("x", None), ("y", 1.0)]


@pytest.mark.parametrize(
    "options, named, message",
    [
        ({"delimiter": ",,"}, "csv.delimiter", "one ASCII character"),
        ({"delimiter": ""}, "csv.delimiter", "one ASCII character"),
        ({"delimiter": "§"}, "csv.delimiter", "one ASCII character"),
        ({"delimiter": "\n"}, "csv.delimiter", "one ASCII character"),
        ({"delimiter": 1}, "csv.delimiter", "one ASCII character"),
        ({"quote": ","}, "csv.quote", "is the delimiter, too"),
        ({"decimal": ","}, "csv.decimal", "is the delimiter or the quote"),
        ({"decimal": "x"}, "csv.decimal", "a point or a comma"),
        ({"nulls": 1}, "csv.nulls", "a list of texts"),
        ({"names": [1]}, "csv.names", "a list of texts"),
        ({"trim": "yes"}, "csv.trim", "true or false"),
        ({"header": False}, "csv.header", "there are no names"),
        ({"date_format": "dd.mm"}, "csv.date_format", "strptime"),
        ({"delimeter": ";"}, "csv.delimeter", "unknown"),
        ([], "csv", "a mapping of options"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_with_a_hint(
    tmp_path: Path, options: Any, named: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        _csv(tmp_path, "name\na\n", csv=options)

    assert caught.value.option == named
    assert caught.value.hint
