import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.errors import InputColumnsError, Violation
from omnigraph.formats.batch import ConvertedBatch
from omnigraph.formats.sources import convert_split, discover
from omnigraph.formats.tables import table_batches
from omnigraph.lang import Source, compile_schema
from omnigraph.write.pending import image_schema
from tests.support.converting import convert_table

CATALOG = compile_schema(
    Source("""
node Person { name: String @key  age: I32?  team: String? }
node Number { n: I64 @key }
node All {
    s: String?  b: Bool?  i: I32?  j: I64?  u: U32?  w: U64?  f: F32?  g: F64?  d: Date?  t: DateTime?
    x: Blob?  v: Vector(2)?  ls: [String]?  li: [I32]?  ld: [Date]?  lt: [DateTime]?
}
node Strict { s: String  i: I32 }
edge Knows: Person -> Person { since: Date? }
""")
)
ALL, PERSON, KNOWS = CATALOG.nodes["All"], CATALOG.nodes["Person"], CATALOG.edges["Knows"]
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
MIDNIGHT = NOON.replace(hour=0)
ULID_LENGTH = 26


def _stored(converted: ConvertedBatch, name: str) -> list[Any]:
    (table,) = converted.tables.values()
    column = table[name].combine_chunks()
    if column.type == pa.date64():
        column = column.view(pa.int64())
    return list(column.to_pylist())


def _only(array: pa.Array, name: str) -> tuple[list[Any], list[Violation]]:
    converted = convert_table(pa.table({name: array}), ALL)
    return _stored(converted, name), converted.problems


def _csv(tmp_path: Path, text: str | bytes, name: str = "All.csv") -> ConvertedBatch:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (split,) = discover(path, CATALOG)
    return convert_split(split, CATALOG)


# Columns of Arrow ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, array, stored",
    [
        ("s", pa.array(["a", None, ""], pa.large_string()), ["a", None, ""]),
        ("s", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        ("s", pa.array(["a", None], pa.string_view()), ["a", None]),
        ("s", pa.nulls(2), [None, None]),
        ("b", pa.array([True, None]), [True, None]),
        ("i", pa.array([1, 2**31 - 1], pa.int64()), [1, 2**31 - 1]),
        ("i", pa.array([1, None], pa.uint8()), [1, None]),
        ("i", pa.array([1.0, -2.0]), [1, -2]),
        ("i", pa.array([Decimal("3.00")]), [3]),
        ("j", pa.array([2**63 - 1], pa.uint64()), [2**63 - 1]),
        ("w", pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        ("f", pa.array([1, 2**40], pa.int64()), [1.0, float(2**40)]),
        ("f", pa.array([0.1], pa.float64()), [0.10000000149011612]),
        ("g", pa.array([0.5], pa.float16()), [0.5]),
        ("g", pa.array([2**53 + 1], pa.int64()), [float(2**53)]),
        ("g", pa.array([Decimal("1.25")]), [1.25]),
        ("d", pa.array([dt.date(2024, 1, 1)], pa.date64()), [dt.date(2024, 1, 1)]),
        ("d", pa.array([MIDNIGHT.replace(year=1969, month=12, day=31)], pa.timestamp("ns")), [dt.date(1969, 12, 31)]),
        ("d", pa.array([19723], pa.int16()), [dt.date(2024, 1, 1)]),
        ("d", pa.array(["2024-01-01", "20240102"]), [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
        ("t", pa.array([NOON], pa.timestamp("s")), [1704110400000]),
        ("t", pa.array([NOON], pa.timestamp("ns")), [1704110400000]),
        ("t", pa.array([1704110400000000], pa.timestamp("us", "Europe/Berlin")), [1704110400000]),
        ("t", pa.array([dt.date(2024, 1, 1)]), [1704067200000]),
        ("t", pa.array([-1], pa.int64()), [-1]),
        ("t", pa.array(["2024-01-01T12:00Z"]), [1704110400000]),
        ("x", pa.array([b"", b"\xff", None], pa.binary()), [b"", b"\xff", None]),
        ("x", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ("x", pa.array(["base64:QQ=="]), [b"A"]),
        ("v", pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2)), [[1.0, 2.0], None]),
        ("v", pa.array([[1, 2], None], pa.large_list(pa.int8())), [[1.0, 2.0], None]),
        ("ls", pa.array([["a"], [], None], pa.large_list(pa.large_string())), [["a"], [], None]),
        ("ls", pa.array([["a"], ["b"]], pa.list_view(pa.string())), [["a"], ["b"]]),
        ("li", pa.array([[1], [2]], pa.list_(pa.int64(), 1)), [[1], [2]]),
        ("li", pa.array([None, [1, 2], [3]], pa.list_(pa.int64())).slice(1), [[1, 2], [3]]),
        ("ld", pa.array([[MIDNIGHT]], pa.list_(pa.timestamp("s"))), [[dt.date(2024, 1, 1)]]),
    ],
)
def test_a_column_of_another_arrow_type_is_converted_without_loss(
    name: str, array: pa.Array, stored: list[Any]
) -> None:
    assert _only(array, name) == (stored, [])


@pytest.mark.parametrize(
    "name, array, message",
    [
        ("i", pa.array([7, 2**31]), "2147483648 exceeds Int32 range"),
        ("u", pa.array([7, -1]), "-1 exceeds UInt32 range"),
        ("i", pa.array([7.0, 1.5]), "strict property All.i expects Int32, not 1.5"),
        ("i", pa.array([7.0, float("nan")]), "expects Int32, not nan"),
        ("j", pa.array([7.0, 2.0**63]), "expects Int64"),
        ("i", pa.array([Decimal("7.0"), Decimal("1.5")]), "expects Int32, not 1.5"),
        ("f", pa.array([7.0, 1e39]), "1e+39 exceeds Float32 range"),
        ("d", pa.array([MIDNIGHT, NOON]), "expects Date32, not 2024-01-01 12:00:00"),
        ("d", pa.array(["2024-01-01", "2024-02-30"]), "invalid Date literal '2024-02-30'"),
        ("d", pa.array([7, 2**64 - 5], pa.uint64()), "exceeds Date32 range"),
        ("t", pa.array([0, 1], pa.timestamp("us")), "expects Date64"),
        ("t", pa.array([0, 2**62]), "exceeds Date64 range"),
        ("x", pa.array(["base64:", "s3://bucket/key"]), "must be a URI string"),
        ("v", pa.array([[1, 2], [1]]), "expects 2 dimensions, got 1"),
        ("v", pa.array([[1, 2], [1, None]]), "elements must be numeric"),
        ("v", pa.array([[1.0, 2.0], [1.0, float("inf")]]), "not finite"),
        ("li", pa.array([[1], [None]]), "null or invalid item"),
        ("li", pa.array([[1], [2**31]]), "null or invalid item"),
    ],
)
def test_a_value_that_would_lose_something_is_a_problem(name: str, array: pa.Array, message: str) -> None:
    stored, (problem,) = _only(array, name)

    assert message in problem.message
    assert (problem.rule, problem.properties, problem.record) == ("type", (name,), 1)
    assert len(stored) == 1


@pytest.mark.parametrize(
    "name, array",
    [
        ("s", pa.array([1])),
        ("b", pa.array([1])),
        ("b", pa.array(["true"])),
        ("i", pa.array(["1"])),
        ("i", pa.array([True])),
        ("g", pa.array(["1.5"])),
        ("d", pa.array([1.5])),
        ("t", pa.array([True])),
        ("x", pa.array([1])),
        ("v", pa.array(["[1, 2]"])),
        ("v", pa.array([["1", "2"]])),
        ("ls", pa.array(["a"])),
        ("ls", pa.array([{"a": 1}])),
    ],
)
def test_a_column_of_a_type_that_never_fits_is_an_error_of_the_file(name: str, array: pa.Array) -> None:
    with pytest.raises(InputColumnsError, match=f"people.parquet: All.{name} is .*, but its column is") as caught:
        convert_table(pa.table({name: array}), ALL, source="people.parquet")

    assert (caught.value.path, caught.value.columns) == ("people.parquet", [name])


def test_rows_come_in_the_columns_of_their_table_with_ids_and_records() -> None:
    converted = convert_table(pa.table({"age": [36, None], "name": ["Ada", "Bob"]}), PERSON)

    assert converted.tables["node:Person"].schema == image_schema(PERSON)
    assert converted.tables["node:Person"].to_pylist() == [
        {"id": "Ada", "age": 36, "name": "Ada", "team": None, "@record": 0},
        {"id": "Bob", "age": None, "name": "Bob", "team": None, "@record": 1},
    ]
    assert (converted.lines, converted.problems, converted.fresh) == (2, [], frozenset())


def test_a_value_that_is_not_finite_is_left_to_the_rules_of_values() -> None:
    stored, problems = _only(pa.array([float("inf")]), "g")

    assert (stored, problems) == ([float("inf")], [])


def test_a_null_in_a_key_is_a_problem_and_one_in_another_required_property_is_left() -> None:
    people = convert_table(pa.table({"name": ["Ada", None]}), PERSON)
    strict = convert_table(pa.table({"s": [None, "a"], "i": [1, None]}), CATALOG.nodes["Strict"])

    assert [(problem.rule, problem.record) for problem in people.problems] == [("required", 1)]
    assert strict.problems == []
    assert strict.tables["node:Strict"].num_rows == 2


# Ends and ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source, target", [("from", "to"), ("src", "dst"), ("from", "dst")])
def test_the_ends_of_an_edge_go_by_two_names_each(source: str, target: str) -> None:
    converted = convert_table(pa.table({source: ["a"], target: ["b"]}), KNOWS)

    (row,) = converted.tables["edge:Knows"].to_pylist()
    assert (row["src"], row["dst"], len(row["id"])) == ("a", "b", ULID_LENGTH)
    assert converted.fresh == {"edge:Knows"}


def test_ids_and_ends_may_be_integers() -> None:
    table = pa.table({"from": [1], "to": pa.array([2**64 - 1], pa.uint64()), "id": [7]})

    (row,) = convert_table(table, KNOWS).tables["edge:Knows"].to_pylist()

    assert (row["src"], row["dst"], row["id"]) == ("1", "18446744073709551615", "7")


def test_an_edge_without_an_end_is_a_problem() -> None:
    converted = convert_table(
        pa.table({"from": ["a", None, "c"], "to": ["b", "b", None], "id": ["x", "y", "z"]}), KNOWS
    )

    assert [(p.rule, p.properties, p.entity_id, p.record) for p in converted.problems] == [
        ("required", ("src",), "y", 1),
        ("required", ("dst",), "z", 2),
    ]
    assert converted.tables["edge:Knows"]["id"].to_pylist() == ["x"]


def test_an_id_that_contradicts_the_key_is_a_problem() -> None:
    converted = convert_table(pa.table({"id": ["7", "eight"], "n": [7, 8]}), CATALOG.nodes["Number"])

    (problem,) = converted.problems
    assert (problem.rule, problem.record) == ("key", 1)
    assert converted.tables["node:Number"]["id"].to_pylist() == ["7"]


# Names of columns ----------------------------------------------------------------------------------


def test_columns_are_renamed_and_left_out_as_the_mapping_says() -> None:
    table = pa.table({"full_name": ["Ada"], "years": [36], "junk": [[1]]})

    converted = convert_table(table, PERSON, {"full_name": "name", "years": "age", "junk": None})

    assert _stored(converted, "name") == ["Ada"]
    assert _stored(converted, "age") == [36]


@pytest.mark.parametrize(
    "names, mapping, message",
    [
        (["name", "agee"], None, "column 'agee' is not a property of Person"),
        (["age"], None, "Person needs 'name'; its columns are: age"),
        (["full"], {"full": "nam"}, "nor is 'nam'"),
        (["name"], {"full": "name"}, "there is no column 'full' to map"),
        (["name", "full"], {"full": "name"}, "columns 'name' and 'full' are the same"),
        ([], None, "its columns are: none"),
    ],
)
def test_columns_that_are_not_those_of_the_type_are_an_error(
    names: list[str], mapping: dict[str, str | None] | None, message: str
) -> None:
    table = pa.table([["x"]] * len(names), names=names)

    with pytest.raises(InputColumnsError, match=message) as caught:
        convert_table(table, PERSON, mapping)

    assert caught.value.columns == names


def test_an_edge_needs_both_ends() -> None:
    with pytest.raises(InputColumnsError, match="Knows needs 'to'"):
        convert_table(pa.table({"from": ["a"]}), KNOWS)


def test_a_column_that_is_there_twice_is_an_error() -> None:
    with pytest.raises(InputColumnsError, match="'name' appears twice"):
        convert_table(pa.table([["a"], ["b"]], names=["name", "name"]), PERSON)


# Batches -------------------------------------------------------------------------------------------


def test_no_rows_are_fine() -> None:
    rows = pa.table({"name": pa.array([], pa.string())})

    assert (convert_table(rows, PERSON).lines, convert_table(rows, PERSON).problems) == (0, [])


def test_rows_are_numbered_through_all_pieces() -> None:
    batches = pa.table({"name": [f"p{at}" for at in range(10)], "age": [2**40 if at == 7 else at for at in range(10)]})

    pieces = list(table_batches(batches.to_reader(max_chunksize=3), PERSON, {}, source="the table"))

    assert [problem.record for piece in pieces for problem in piece.problems] == [7]
    assert len(pieces) > 3


# CSV -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, text, stored",
    [
        ("s", "a b", "a b"),
        ("s", '""', ""),
        ("s", '"a,""b""\nc"', 'a,"b"\nc'),
        ("b", "TRUE", True),
        ("b", "0", False),
        ("i", "007", 7),
        ("i", "-5", -5),
        ("i", "+5", 5),
        ("w", "18446744073709551615", 2**64 - 1),
        ("f", "1e3", 1000.0),
        ("g", ".5", 0.5),
        ("g", "-1.25E-2", -0.0125),
        ("d", "2024-1-31", dt.date(2024, 1, 31)),
        ("t", "2024-01-01T12:00:00+01:00", 1704106800000),
        ("x", "base64:QQ==", b"A"),
        ("v", '"[1, 2.5]"', [1.0, 2.5]),
        ("ls", '"[""a"", """"]"', ["a", ""]),
        ("ld", '"[""2024-01-01"", 19724]"', [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
    ],
)
def test_texts_of_a_csv_file_become_values(tmp_path: Path, name: str, text: str, stored: object) -> None:
    converted = _csv(tmp_path, f"id,{name}\none,{text}\ntwo,\n")

    assert converted.problems == []
    assert _stored(converted, name) == [stored, None]


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("b", "yes", "strict property All.b expects Boolean, not 'yes'"),
        ("i", "1.0", "strict property All.i expects Int32"),
        ("i", "0x10", "strict property All.i expects Int32, not '0x10'"),
        ("i", " 1", "strict property All.i expects Int32, not ' 1'"),
        ("i", "2147483648", "2147483648 exceeds Int32 range"),
        ("u", "-1", "exceeds UInt32 range"),
        ("f", "1e39", "exceeds Float32 range"),
        ("g", "1e999", "exceeds Float64 range"),
        ("g", "nan", "strict property All.g expects Float64, not 'nan'"),
        ("d", "31.1.2024", "invalid Date literal"),
        ("t", "now", "invalid DateTime literal"),
        ("x", "AAAA", "must be a URI string"),
        ("v", '"[1]"', "expects 2 dimensions, got 1"),
        ("v", '"[1,2"', "expects an array of 2 numbers"),
        ("li", '"[1,null]"', "null or invalid item"),
        ("li", '"[1]}{""v"":[2]"', "expects a JSON array"),
        ("li", "7", "expects a JSON array"),
    ],
)
def test_a_text_that_says_no_such_value_is_a_problem(tmp_path: Path, name: str, text: str, message: str) -> None:
    converted = _csv(tmp_path, f"id,{name}\none,\ntwo,{text}\n")

    (problem,) = converted.problems
    assert message in problem.message
    assert (problem.rule, problem.properties, problem.entity_id, problem.record) == ("type", (name,), "two", 1)
    assert _stored(converted, "id") == ["one"]


def test_rows_of_the_wrong_length_are_problems_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    converted = _csv(tmp_path, "name,age\na,1\nb\n\nc,3,4\r\nd,x\ne,5\n", "Person.csv")

    assert [(problem.rule, problem.record) for problem in converted.problems] == [
        ("shape", 1),
        ("shape", 3),
        ("type", 4),
    ]
    assert converted.tables["node:Person"].select(["id", "@record"]).to_pylist() == [
        {"id": "a", "@record": 0},
        {"id": "e", "@record": 5},
    ]
    assert converted.lines == 6


@pytest.mark.parametrize(
    "text, lines",
    [
        ("a,x\nb,x\n", [0, 1]),
        ('"a\n1",x\nb,x\n', [0, 2]),
        ('"a\r\n\r\n1",x\r\nb,x\r\n', [0, 3]),
        ('"a""\n""1",x\n\n\nb,x', [0, 4]),
        ('\n\r\n"a",x\n"b\n\n",x\n"c",x\n', [2, 3, 6]),
        ('a,x\rb,x\n"c\n",x\nd,x\n', [0, 1, 2, 4]),
        ('a 5" disk,x\n\nb 3" disk,x\n', [0, 2]),
        ('a,x\n"b,x\nc,x\n', [0, 1]),
    ],
)
def test_the_number_of_a_csv_record_is_that_of_its_first_line(tmp_path: Path, text: str, lines: list[int]) -> None:
    converted = _csv(tmp_path, f"name,age\n{text}", "Person.csv")

    assert sorted({problem.record or 0 for problem in converted.problems}) == lines


def test_a_text_that_is_not_utf8_is_a_problem(tmp_path: Path) -> None:
    converted = _csv(tmp_path, b"name,age\na,1\nM\xfcller,2\nZo\xc3\xab,3\n", "Person.csv")

    (problem,) = converted.problems
    assert (problem.record, problem.rule) == (1, "shape")
    assert "not UTF-8" in problem.message
    assert _stored(converted, "name") == ["a", "Zoë"]


def test_quotes_that_are_never_closed_are_a_problem(tmp_path: Path) -> None:
    converted = _csv(tmp_path, 'name,age\na,1\n"b,2\nc,3\n', "Person.csv")

    (problem,) = converted.problems
    assert problem.record == 1
    assert "row of 1 values" in problem.message or "not closed" in problem.message
    assert _stored(converted, "name") == ["a"]


def test_a_header_with_a_name_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputColumnsError, match="'name' appears twice"):
        _csv(tmp_path, "name,name\na,b\n", "Person.csv")


# Whole columns and single values -------------------------------------------------------------------

_SOURCES = [
    pa.int8(),
    pa.uint64(),
    pa.int64(),
    pa.float64(),
    pa.float32(),
    pa.timestamp("us"),
    pa.date32(),
    pa.string(),
]


@pytest.mark.slow
@given(data=st.data())
def test_a_whole_column_is_converted_as_its_single_values_are(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["i", "j", "u", "w", "f", "g", "d", "t", "s"]))
    source = data.draw(st.sampled_from(_SOURCES))
    values = data.draw(st.lists(st.none() | _value(source), max_size=6))
    try:
        whole = convert_table(pa.table({name: pa.array(values, source)}), ALL)
    except InputColumnsError:
        return

    single = [convert_table(pa.table({name: pa.array([value], source)}), ALL) for value in values]

    assert [bool(one.problems) for one in single] == [
        at in {p.record for p in whole.problems} for at in range(len(values))
    ]
    assert repr(_stored(whole, name)) == repr([value for one in single for value in _stored(one, name)])


def _value(source: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_floating(source):
        return st.floats(width=32) | st.integers(-(2**20), 2**20).map(float)
    if pa.types.is_timestamp(source):
        return st.datetimes() | st.datetimes().map(lambda time: time.replace(hour=0, minute=0, second=0, microsecond=0))
    if pa.types.is_date(source):
        return st.dates()
    if pa.types.is_string(source):
        return st.dates().map(str) | st.datetimes().map(str) | st.text(max_size=3)
    bits = source.bit_width
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pa.types.is_signed_integer(source) else (0, 2**bits - 1)
    return st.integers(low, high) | st.integers(max(low, -3), 3)
