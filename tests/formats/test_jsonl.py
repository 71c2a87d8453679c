import base64
import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.errors import Violation
from omnigraph.formats import jsonl as module
from omnigraph.formats.batch import ConvertedBatch, joined
from omnigraph.formats.jsonl import jsonl_batches
from omnigraph.lang import Source, compile_schema
from omnigraph.write.pending import image_schema
from tests.support.converting import convert_exactly, convert_jsonl

CATALOG = compile_schema(
    Source("""
node Person { name: String @key  age: I32?  color: enum(red, green)? }
node Note { text: String? }
node Slot { tenant: String  number: U32  @key(tenant, number) }
node All {
    s: String?  b: Bool?  i: I32?  j: I64?  u: U32?  w: U64?  f: F32?  g: F64?  d: Date?  t: DateTime?
    x: Blob?  v: Vector(3)?  ls: [String]?  li: [I32]?  lf: [F64]?  ld: [Date]?  lt: [DateTime]?  lb: [Bool]?
}
edge Knows: Person -> Person { since: Date? }
edge Tagged: Note -> Person
""")
)
ULID_LENGTH = 26


def _lines(*documents: object) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def _all(**data: object) -> bytes:
    return _lines({"type": "All", "data": data})


def _only(converted: ConvertedBatch, key: str, column: str) -> Any:
    assert converted.problems == []
    (value,) = converted.tables[key][column].combine_chunks().view(_raw(converted.tables[key][column].type)).to_pylist()
    return value


def _raw(type_: pa.DataType) -> pa.DataType:
    return pa.int64() if type_ == pa.date64() else type_


def _problem(data: bytes) -> Violation:
    converted = convert_jsonl(data, CATALOG)
    (problem,) = converted.problems
    assert converted.tables == {}
    return problem


# What a record may be ------------------------------------------------------------------------------


def test_nodes_and_edges_are_sorted_into_the_rows_of_their_tables() -> None:
    data = _lines(
        {"edge": "Knows", "from": "Ada", "to": "Bob", "data": {"since": "2020-01-01"}},
        {"type": "Person", "data": {"name": "Ada", "age": 36}},
        {"edge": "Tagged", "from": "n", "to": "Ada"},
        {"type": "Person", "data": {"name": "Bob", "id": "Bob"}},
    )

    converted = convert_jsonl(data, CATALOG)

    assert converted.problems == []
    assert converted.lines == 4
    people = converted.tables["node:Person"]
    assert people.schema == image_schema(CATALOG.nodes["Person"])
    assert people.to_pylist() == [
        {"id": "Ada", "age": 36, "color": None, "name": "Ada", "@record": 1},
        {"id": "Bob", "age": None, "color": None, "name": "Bob", "@record": 3},
    ]
    (knows,) = converted.tables["edge:Knows"].to_pylist()
    assert (knows["src"], knows["dst"], knows["since"], knows["@record"]) == ("Ada", "Bob", dt.date(2020, 1, 1), 0)
    assert len(knows["id"]) == ULID_LENGTH
    assert converted.tables["edge:Tagged"].num_rows == 1


def test_the_members_of_a_record_come_in_any_order() -> None:
    data = (
        _lines({"data": {"name": "Ada"}, "type": "Person"}, {"to": "b", "data": {}, "from": "a", "edge": "Knows"}) * 9
    )

    converted = convert_jsonl(data, CATALOG)

    assert converted.problems == []
    assert {key: table.num_rows for key, table in converted.tables.items()} == {"node:Person": 9, "edge:Knows": 9}


@pytest.mark.parametrize("name", ["Knows", "knows", "KNOWS"])
def test_the_case_of_an_edge_name_does_not_matter(name: str) -> None:
    assert convert_jsonl(_lines({"edge": name, "from": "a", "to": "b"}), CATALOG).tables["edge:Knows"].num_rows == 1


def test_line_ends_of_both_kinds_blank_lines_and_a_byte_order_mark_are_accepted() -> None:
    record = b'{"type":"Person","data":{"name":"%d"}}'
    data = b"\xef\xbb\xbf" + record % 1 + b"\r\n\r\n\n" + record % 2 + b"\n \t\n" + b"  " + record % 3 + b" "

    converted = convert_jsonl(data, CATALOG)

    assert converted.problems == []
    assert converted.lines == 6
    assert converted.tables["node:Person"].select(["id", "@record"]).to_pylist() == [
        {"id": "1", "@record": 0},
        {"id": "2", "@record": 3},
        {"id": "3", "@record": 5},
    ]


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n\n  \n", b"\xef\xbb\xbf"])
def test_input_without_records_gives_nothing(data: bytes) -> None:
    converted = convert_jsonl(data, CATALOG)

    assert (converted.tables, converted.problems) == ({}, [])
    assert converted.lines == data.count(b"\n")


def test_an_id_that_is_given_is_kept_and_one_that_is_null_is_made() -> None:
    data = _lines({"type": "Note", "data": {"id": "n1"}}, {"type": "Note", "data": {"id": None}}, {"type": "Note"})

    one, two, three = convert_jsonl(data, CATALOG).tables["node:Note"]["id"].to_pylist()

    assert one == "n1"
    assert len(two) == len(three) == ULID_LENGTH
    assert two < three


# Values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, value, stored",
    [
        ("s", "", ""),
        ("s", "Zoë \U0001f600 \u0000", "Zoë \U0001f600 \u0000"),
        ("b", False, False),
        ("i", -(2**31), -(2**31)),
        ("j", 2**63 - 1, 2**63 - 1),
        ("u", 2**32 - 1, 2**32 - 1),
        ("w", 2**64 - 1, 2**64 - 1),
        ("f", 1, 1.0),
        ("f", 3.4028235e38, 3.4028234663852886e38),
        ("g", 0.1, 0.1),
        ("g", 10**300, 1e300),
        ("d", "2024-01-01", dt.date(2024, 1, 1)),
        ("d", "20240101", dt.date(2024, 1, 1)),
        ("d", "2024-01-01T23:30:00-01:00", dt.date(2024, 1, 2)),
        ("d", 19723, dt.date(2024, 1, 1)),
        ("d", -1, dt.date(1969, 12, 31)),
        ("t", "2024-01-01T00:00:00.5Z", 1704067200500),
        ("t", "2024-01-01 01:00:00.1239+01:00", 1704067200123),
        ("t", "2024-01-01", 1704067200000),
        ("t", -1, -1),
        ("x", "base64:", b""),
        ("x", "base64:" + base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
        ("v", [1, 2.5, -0.0], [1.0, 2.5, -0.0]),
        ("ls", [], []),
        ("ls", ["a", ""], ["a", ""]),
        ("li", [1, 2], [1, 2]),
        ("ld", ["2024-01-01", "2024-1-2"], [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
        ("ld", [19723], [dt.date(2024, 1, 1)]),
        ("lb", [True], [True]),
        ("li", None, None),
        ("v", None, None),
        ("x", None, None),
    ],
)
def test_a_value_is_stored_as_its_property_says(name: str, value: object, stored: object) -> None:
    assert _only(convert_jsonl(_all(**{name: value}), CATALOG), "node:All", name) == stored


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("s", 1, "strict property All.s expects Utf8"),
        ("s", {}, "strict property All.s expects Utf8"),
        ("b", 1, "strict property All.b expects Boolean"),
        ("i", 1.0, "strict property All.i expects Int32"),
        ("i", "1", "strict property All.i expects Int32"),
        ("i", True, "strict property All.i expects Int32"),
        ("i", 2**31, "exceeds Int32 range"),
        ("j", 2**63, "exceeds Int64 range"),
        ("u", -1, "exceeds UInt32 range"),
        ("w", 2**64, "exceeds UInt64 range"),
        ("f", 1e39, "exceeds Float32 range"),
        ("f", "1", "strict property All.f expects Float32"),
        ("g", 10**400, "exceeds Float64 range"),
        ("g", False, "strict property All.g expects Float64"),
        ("d", "2024-02-30", "invalid Date literal"),
        ("d", 2**31, "exceeds Date32 range"),
        ("d", 1.5, "strict property All.d expects Date32"),
        ("t", "noon", "invalid DateTime literal"),
        ("t", "2024-01-01T00Z", "invalid DateTime literal"),
        ("t", 2**62, "exceeds Date64 range"),
        ("x", 1, "must be a URI string"),
        ("x", "base64:Q", "invalid base64 blob data"),
        ("x", "s3://bucket/key", "an external blob is not allowed"),
        ("v", [1, 2], "expects 3 dimensions, got 2"),
        ("v", [1, 2, None], "elements must be numeric"),
        ("v", [1, 2, "3"], "elements must be numeric"),
        ("v", [1, 2, True], "elements must be numeric"),
        ("v", [1, 2, 1e39], "exceeds Float32 range"),
        ("v", "1,2,3", "expects an array of 3 numbers"),
        ("ls", "a", "list property All.ls expects a JSON array"),
        ("ls", [1], "null or invalid item"),
        ("li", [1, None], "null or invalid item"),
        ("li", [2**31], "null or invalid item"),
        ("lf", [True], "null or invalid item"),
        ("ld", ["2024-02-30"], "null or invalid item"),
        ("lt", [None], "null or invalid item"),
    ],
)
def test_a_value_that_does_not_fit_is_a_problem_of_its_property(name: str, value: object, message: str) -> None:
    problem = _problem(_all(**{name: value, "id": "a1"}))

    assert message in problem.message
    assert (problem.rule, problem.type_name, problem.entity_id) == ("type", "All", "a1")
    assert (problem.properties, problem.record) == ((name,), 0)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "01", "+1", "1.", ".5", "0x1"])
@pytest.mark.parametrize("name", ["g", "f", "i"])
def test_a_number_that_is_none_of_json_is_refused(name: str, number: str) -> None:
    assert _problem(b'{"type":"All","data":{"%s":%s}}' % (name.encode(), number.encode())).rule == "json"


# Problems ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, rule, message",
    [
        ("nonsense", "json", "not JSON"),
        ('{"type":"Person","data":{"name":"a"}', "json", "ends too early"),
        ('{"type":"Person","data":{"name":"a', "json", "ends too early"),
        ('{"type":"Note"}{"type":"Note"}', "json", "more than one JSON value"),
        ('{"type":"Note"} {"type":"Note"}', "json", "more than one JSON value"),
        ('{"type":"Note","type":"Note"}', "json", "duplicate JSON member 'type'"),
        ('{"type":"Note","data":{"text":"a","text":null}}', "json", "duplicate JSON member 'text'"),
        ('{"type":"Note","data":{"text":{"a":1,"a":1}}}', "json", "duplicate JSON member 'a'"),
        ('{"type":"Note","data":{"text":"\\ud800"}}', "json", "surrogate"),
        ('{"type":"Note","data":{"text":"\t"}}', "json", "not JSON"),
        ('\ufeff{"type":"Note"}', "json", "not JSON"),
        ('{"type":"Note","data":' + "[" * 100_000 + "]" * 100_000 + "}", "json", "nested too deeply"),
        ("// a comment", "json", "not JSON"),
        ("[]", "shape", "a JSON object"),
        ("{}", "shape", "exactly one of"),
        ('{"type":"Note","edge":"Knows"}', "shape", "exactly one of"),
        ('{"type":"Note","edge":null}', "shape", "exactly one of"),
        ('{"type":1}', "shape", "'type' must be a string"),
        ('{"edge":null,"from":"a","to":"b"}', "shape", "'edge' must be a string"),
        ('{"edge":"Knows","from":1,"to":"b"}', "shape", "'from' must be a string"),
        ('{"edge":"Knows","from":"a"}', "shape", "'to' must be a string: missing"),
        ('{"edge":"Knows","from":"a","to":null}', "shape", "'to' must be a string"),
        ('{"type":"Note","extra":1}', "shape", "unknown top-level graph batch field"),
        ('{"type":"Note","from":"a"}', "shape", "unknown top-level graph batch field"),
        ('{"type":"Note","_rowid":1}', "shape", "reserved physical state"),
        ('{"type":"Note","_tombstone":true}', "shape", "reserved physical state"),
        ('{"type":"Note","data":[]}', "shape", "'data' must be an object"),
        ('{"type":"Note","data":null}', "shape", "'data' must be an object"),
        ('{"edge":"Knows","from":"a","to":"b","data":null}', "shape", "'data' must be an object"),
        ('{"type":"Note","data":{"txet":null}}', "shape", "unknown input field 'txet'"),
        ('{"edge":"Knows","from":"a","to":"b","data":{"src":"a"}}', "shape", "reserved structural state"),
        ('{"edge":"Knows","from":"a","to":"b","data":{"dst":null}}', "shape", "reserved structural state"),
        ('{"type":"note"}', "shape", "unknown node type 'note'"),
        ('{"type":"Knows"}', "shape", "unknown node type"),
        ('{"edge":"Person","from":"a","to":"b"}', "shape", "unknown edge type"),
        ('{"type":"Note","data":{"id":7}}', "shape", "'id' must be a string"),
        ('{"type":"Person","data":{"name":"a","id":"b"}}', "key", "does not match its canonical @key id"),
        ('{"type":"Person","data":{"age":1}}', "required", "Person.name is required"),
        ('{"type":"Person","data":{"name":null}}', "required", "Person.name is required"),
    ],
)
def test_a_bad_line_among_good_ones_is_one_problem_at_its_place(line: str, rule: str, message: str) -> None:
    good = _lines(*({"type": "Person", "data": {"name": f"p{at}"}} for at in range(40)))
    data = good + line.encode() + b"\n" + _lines({"edge": "Knows", "from": "a", "to": "b"})

    converted = convert_jsonl(data, CATALOG)

    (problem,) = converted.problems
    assert (problem.rule, problem.record) == (rule, 40)
    assert message in problem.message
    assert len(problem.message) < 250
    assert {key: table.num_rows for key, table in converted.tables.items()} == {"node:Person": 40, "edge:Knows": 1}


def test_bytes_that_are_no_utf8_are_named_with_their_line() -> None:
    data = _lines({"type": "Note"}) + b'{"type":"Note","data":{"text":"\xff"}}\n' + b'{"type":"N\xfe"}\n'

    first, second = convert_jsonl(data, CATALOG).problems

    assert (first.record, second.record) == (1, 2)
    assert "not UTF-8: byte 0xff" in first.message


def test_all_that_is_wrong_with_a_record_is_reported() -> None:
    data = _lines({"edge": "Knows", "from": 1, "extra": 1, "data": {"since": True, "sinse": 1, "id": "e"}})

    problems = convert_jsonl(data, CATALOG).problems

    assert {(problem.rule, problem.properties) for problem in problems} == {
        ("shape", ("extra",)),
        ("shape", ("from",)),
        ("shape", ("to",)),
        ("shape", ("sinse",)),
        ("type", ("since",)),
    }
    assert [problem.hint for problem in problems if problem.properties == ("sinse",)] == ["did you mean 'since'?"]


def test_every_bad_record_of_many_is_found() -> None:
    bad = set(range(7, 5_000, 97))
    records = ({"type": "Person", "data": {"name": f"p{at}", "age": "old" if at in bad else at}} for at in range(5_000))

    converted = convert_jsonl(_lines(*records), CATALOG)

    assert {problem.record for problem in converted.problems} == bad
    assert converted.tables["node:Person"].num_rows == 5_000 - len(bad)


@pytest.mark.slow
def test_a_line_that_is_too_long_is_refused_without_being_parsed() -> None:
    line = b'{"type":"Note","data":{"text":"' + b"a" * (32 * 2**20) + b'"}}'

    assert "33554432 bytes" in _problem(line).message


def test_a_required_property_that_is_no_key_is_left_to_the_rules_of_values() -> None:
    catalog = compile_schema(Source("node Page { url: String }"))

    converted = convert_jsonl(_lines({"type": "Page"}), catalog)

    assert converted.problems == []
    assert converted.tables["node:Page"]["url"].null_count == 1


def test_records_are_numbered_through_all_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 100)
    data = _lines(*({"type": "Person", "data": {"name": f"p{at}", "age": None if at % 9 else "x"}} for at in range(50)))

    pieces = list(jsonl_batches(data, CATALOG))

    converted = joined(pieces)
    assert len(pieces) > 5
    assert converted.lines == 50
    assert [problem.record for problem in converted.problems] == list(range(0, 50, 9))
    assert converted.tables["node:Person"]["@record"].to_pylist() == [at for at in range(50) if at % 9]


# The fast path and the exact one -------------------------------------------------------------------

_NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([2**31, -(2**31) - 1, 2**32, 2**63, 2**64, 2**64 - 1, 10**30, 719_163, 2_932_896, 2_932_897]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([3.5e38, 1e-50, 1e308, 16777217.0]),
)
_TEXTS = st.one_of(
    st.text(max_size=4),
    st.sampled_from(
        ["null", "a", "2020-01-01", "2020-1-1", "2020-02-30", "0000-01-01", "2020-01-01T10:00Z", "20200101"]
    ),
    st.sampled_from(
        ["2020-01-01T10:00:00+23:59", "9999-12-31T23:59:59-01:00", "2020-01-01T10Z", "2020-01-01 10:00:61"]
    ),
    st.sampled_from(["base64:", "base64:QQ==", "base64:QR==", "base64:Q=Q=", "base64:QQ", "base64:\u00e9", "base64"]),
    st.dates().map(str),
    st.datetimes().map(str),
)
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS)
_VALUES = st.one_of(_SCALARS, st.lists(_SCALARS, max_size=4), st.lists(_NUMBERS, max_size=4), st.just({}))
_CLEAN = {
    "s": st.text(max_size=5),
    "b": st.booleans(),
    "i": st.integers(-(2**31), 2**31 - 1),
    "j": st.integers(-(2**63), 2**63 - 1),
    "u": st.integers(0, 2**32 - 1),
    "w": st.integers(0, 2**64 - 1),
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "g": st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**20), 10**20)),
    "d": st.one_of(st.dates().map(str), st.integers(-719_162, 2_932_896)),
    "t": st.one_of(
        st.datetimes().map(lambda t: t.isoformat()[:23] + "Z"), st.datetimes().map(str), st.integers(0, 2**40)
    ),
    "x": st.binary(max_size=4).map(lambda data: "base64:" + base64.b64encode(data).decode()),
    "v": st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
    "ls": st.lists(st.text(max_size=3), max_size=3),
    "li": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
    "lf": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    "ld": st.lists(st.dates().map(str), max_size=3),
    "lt": st.lists(st.integers(-(2**40), 2**40), max_size=3),
    "lb": st.lists(st.booleans(), max_size=3),
}


def _nullable(values: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: st.none() | value for name, value in values.items()})


_RECORDS = st.one_of(
    st.fixed_dictionaries({"type": st.just("All"), "data": _nullable(_CLEAN)}),
    st.fixed_dictionaries({"type": st.just("All"), "data": _nullable(dict.fromkeys(_CLEAN, _VALUES))}),
    st.fixed_dictionaries(
        {"type": st.just("Person"), "data": _nullable({"name": _TEXTS, "age": _VALUES, "id": _TEXTS})}
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("Slot"),
            "data": st.fixed_dictionaries({"tenant": st.text(max_size=3), "number": st.integers(0, 9)}),
        }
    ),
    st.fixed_dictionaries(
        {"edge": st.sampled_from(["Knows", "knows", "Tagged", "Nothing"]), "from": _TEXTS | st.none(), "to": _TEXTS},
        optional={"data": st.none() | _nullable({"since": _VALUES, "id": _VALUES, "src": _TEXTS})},
    ),
    st.dictionaries(st.sampled_from(["type", "edge", "from", "to", "data", "_rowid", "zz"]), _VALUES, max_size=4),
    _VALUES,
)


@st.composite
def _inputs(draw: st.DrawFn) -> bytes:
    """Lines of records of which most are spelled as JSON is, and some are damaged."""
    lines = []
    for document in draw(st.lists(_RECORDS, max_size=24)):
        spell = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
        text = json.dumps(document, separators=spell, ensure_ascii=draw(st.booleans()))
        line = text.encode("utf-8", "surrogatepass")
        if draw(st.integers(0, 9)) == 0:
            at = draw(st.integers(0, len(line)))
            line = line[:at] + draw(st.binary(max_size=2)) + line[at + draw(st.integers(0, 2)) :]
        lines.append(line + draw(st.sampled_from([b"", b"", b"", b"\r", b" "])))
    end = draw(st.sampled_from([b"", b"\n"]))
    return b"\n".join(lines) + end


def _plain(converted: ConvertedBatch) -> dict[str, list[dict[str, Any]]]:
    """The rows as plain values, bit for bit, and an id that was made as a mark."""
    found = {}
    for key, table in converted.tables.items():
        columns = {}
        for name in table.column_names:
            column = table[name].combine_chunks()
            columns[name] = [None if value is None else repr(value) for value in _undated(column).to_pylist()]
        columns["id"] = ["a ulid" if len(text or "") == ULID_LENGTH + 2 else text for text in columns["id"]]
        found[key] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return found


def _undated(column: pa.Array) -> pa.Array:
    """Read date-times as integers: Arrow would round them to days."""
    if column.type == pa.date64():
        return column.view(pa.int64())
    if column.type == pa.list_(pa.field("item", pa.date64())):
        return pa.ListArray.from_arrays(column.offsets, column.values.view(pa.int64()), mask=column.is_null())
    return column


@pytest.mark.slow
@given(_inputs())
def test_whole_blocks_and_single_lines_are_read_alike(data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", 1)  # nothing is left to the exact path but single lines
        fast, exact = convert_jsonl(data, CATALOG), convert_exactly(data, CATALOG)

    assert fast.problems == exact.problems
    assert fast.lines == exact.lines
    assert _plain(fast) == _plain(exact)
    for key, table in fast.tables.items():
        assert table.schema == exact.tables[key].schema
        assert table["id"].null_count == 0
