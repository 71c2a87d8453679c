"""Lines that are written alike are read as single lines are, whatever their values, and whatever befalls them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.formats.jsonl import cut_out
from omnigraph.lang import Source, compile_schema
from tests.support.converting import convert_exactly, convert_jsonl

CATALOG = compile_schema(
    Source("""
node Person {
    name: String @key  age: I32?  size: I64?  score: F64?  part: F32?  good: Bool?  born: Date?  seen: DateTime?
}
edge Knows: Person -> Person { since: Date? }
""")
)
PERSON, KNOWS = CATALOG.nodes["Person"], CATALOG.edges["Knows"]


def lines(*texts: str) -> pa.Array:
    return pa.array([f"{text}\n".encode() for text in texts], pa.binary())


def person(name: str, more: str = "") -> str:
    return f'{{"type":"Person","data":{{"name":"{name}"{more}}}}}'


def test_the_values_of_lines_that_are_written_alike_are_cut_out() -> None:
    found = cut_out(PERSON, lines(person("Ada", ',"age":36'), person("Böb", ',"age":-7'), person("", ',"age":null')))

    assert found is not None
    alike, values = found
    assert alike.all()
    assert {name: column.to_pylist() for name, column in values.items()} == {
        "data.name": ["Ada", "Böb", ""],
        "data.age": [36, -7, None],
    }


def test_lines_that_are_written_otherwise_are_left() -> None:
    others = [
        person("x", ' ,"age":1'),
        person("x", ',"Age":1'),
        person("x", ',"age":"1"'),
        person("x", ',"age":1,"good":true'),
        person("x"),
        person("a\\nb", ',"age":1'),
        person("a\tb", ',"age":1'),
        person("x", ',"age":1') + " ",
    ]

    found = cut_out(PERSON, lines(person("Ada", ',"age":36'), *others, person("Bob", ',"age":1')))

    assert found is not None
    assert found[0].tolist() == [True, *([False] * len(others)), True]
    assert found[1]["data.name"].to_pylist() == ["Ada", "Bob"]


@pytest.mark.parametrize("number", ["01", "1.0", "+1", "0x1", "1e2", "--1", "", "1 ", "nul", "1}", "Infinity", "[1]"])
def test_what_is_no_integer_is_not_read_as_one(number: str) -> None:
    found = cut_out(PERSON, lines(person("Ada", ',"age":36'), person("Bob", f',"age":{number}')))

    assert found is not None
    assert found[0].tolist() == [True, False]
    assert found[1]["data.age"].to_pylist() == [36]


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"Person"}',
        '{"type":"Person","data":{}}',
        '{"type":"Person","data":null}',
        '{"type":"Person","data.name":"x"}',
        '{"type":"Person","data":{"name":"x","name":"y"}}',
        '{"type":"Person","data":{"name":"x","other":"y"}}',
        '{"type":"Person","data":{"name":"x"},"edge":"Knows"}',
        '{"type":"Person","data":{"name":"x","id":null}}',
        '{"type":"Person","data":{"name":["x"]}}',
        '{"type":"Person","data":{"name":"x"}}}',
        '{"type":"Person","data":{"name":"x"}',
        '{"type":"Person","data":{"name":"x",}}',
    ],
)
def test_a_first_line_that_is_out_of_the_ordinary_shows_no_layout(line: str) -> None:
    assert cut_out(PERSON, lines(line, line)) is None


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters='"\\', exclude_categories=["Cc"]), max_size=9)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": _TEXT,
    "age": st.integers(-(2**31), 2**31 - 1),
    "size": st.integers(-(2**63), 2**63 - 1),
    "score": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
    "part": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "good": st.booleans(),
    "born": st.dates().map(str),
    "seen": st.datetimes().map(lambda moment: moment.isoformat() + "Z") | st.integers(-(2**40), 2**40),
    "id": _TEXT,
}


@st.composite
def _inputs(draw: st.DrawFn) -> bytes:
    """Lines of one layout, some of them with a null or of one letter more or less."""
    names = draw(st.permutations(list(_VALUES)).map(lambda order: order[:4]))
    spelling = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    found = []
    for _ in range(draw(st.integers(1, 12))):
        data = {name: draw(_VALUES[name]) for name in names}
        if draw(st.integers(0, 9)) == 0:
            data[draw(st.sampled_from(names))] = None
        document = (
            {"edge": "Knows", "from": draw(_TEXT), "to": draw(_TEXT), "data": {"since": draw(_VALUES["born"])}}
            if "age" in names[:1]
            else {"type": "Person", "data": data}
        )
        line = json.dumps(document, separators=spelling, ensure_ascii=False).encode()
        if draw(st.integers(0, 5)) == 0:
            at = draw(st.integers(0, len(line)))
            inserted = draw(st.binary(max_size=2) | st.sampled_from([b'"', b"\\", b"{", b"}", b",", b":", b"0", b"-"]))
            line = line[:at] + inserted + line[at + draw(st.integers(0, 2)) :]
        found.append(line + b"\n")
    return b"".join(found)


@pytest.mark.slow
@given(_inputs())
def test_lines_of_one_layout_are_read_as_single_lines_are(data: bytes) -> None:
    fast, exact = convert_jsonl(data, CATALOG), convert_exactly(data, CATALOG)

    assert fast.problems == exact.problems
    assert fast.lines == exact.lines
    assert fast.tables.keys() == exact.tables.keys()
    for key, table in fast.tables.items():
        made = ["id"] if key == "edge:Knows" else []
        assert _texts(table.drop_columns(made)) == _texts(exact.tables[key].drop_columns(made))
        assert table.schema == exact.tables[key].schema


def _texts(table: pa.Table) -> list[list[str]]:
    """Spell all values, so that the signs of zeros count too, and date-times to the millisecond."""
    columns = [column.combine_chunks() for column in table.columns]
    plain = [column.view(pa.int64()) if column.type == pa.date64() else column for column in columns]
    return [[repr(value) for value in column.to_pylist()] for column in plain]
