import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.formats.batch import new_ids, with_ids
from omnigraph.formats.records import to_rows
from omnigraph.lang import Source, compile_schema
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.lang.identity import new_id, node_id

_ULID = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{25}")
_KEY_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "String": st.text() | st.sampled_from(['"', "\\", '\\"', "\x00", "\x1f\x7f", "\n\r\t\b\f", "\u2028", "\U0001f600"]),
    "Bool": st.booleans(),
    "I32": st.integers(-(2**31), 2**31 - 1),
    "I64": st.integers(-(2**63), 2**63 - 1),
    "U32": st.integers(0, 2**32 - 1),
    "U64": st.integers(0, 2**64 - 1),
    "F32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "F64": st.floats(allow_nan=False, allow_infinity=False),
    "Date": st.dates(),
    "DateTime": st.datetimes(timezones=st.just(dt.UTC)).map(
        lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)
    ),
}


def _node(properties: Mapping[str, str], key: str = "") -> NodeType:
    text = "\n".join(f"{name}: {type_}" for name, type_ in properties.items())
    (node,) = compile_schema(Source(f"node Thing {{ {text}\n{key} }}")).nodes.values()
    return node


def _edge() -> EdgeType:
    (edge,) = compile_schema(Source("node Thing { n: I32 }\nedge Follows: Thing -> Thing")).edges.values()
    return edge


def _rows(declared: NodeType | EdgeType, *rows: Mapping[str, object]) -> pa.Table:
    return to_rows(declared, [{**row, "@record": at} for at, row in enumerate(rows)])


@pytest.mark.slow
@pytest.mark.parametrize("type_", _KEY_VALUES)
@given(data=st.data())
def test_the_ids_of_whole_columns_are_those_of_single_keys(type_: str, data: st.DataObject) -> None:
    node = _node({"k": f"{type_} @key"})
    values = data.draw(st.lists(_KEY_VALUES[type_], max_size=8))

    rows, problems = with_ids(node, _rows(node, *({"k": value} for value in values)))

    assert problems == []
    assert rows["id"].to_pylist() == [node_id(node, {"k": value}) for value in values]


@given(data=st.data())
def test_the_ids_of_composite_keys_are_those_of_single_ones(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(_KEY_VALUES)), min_size=2, max_size=4))
    names = {f"k{at}": type_ for at, type_ in enumerate(types)}
    node = _node(names, f"@key({', '.join(names)})")
    keys = data.draw(st.lists(st.fixed_dictionaries({name: _KEY_VALUES[type_] for name, type_ in names.items()})))

    rows, problems = with_ids(node, _rows(node, *keys))

    assert problems == []
    assert rows["id"].to_pylist() == [node_id(node, key) for key in keys]


def test_an_explicit_id_of_a_keyed_node_must_be_the_one_of_its_key() -> None:
    node = _node({"day": "Date @key"})
    day = dt.date(2024, 1, 1)
    brought = _rows(node, {"id": "19723", "day": day}, {"id": "2024-01-01", "day": day}, {"day": day})

    rows, (problem,) = with_ids(node, brought)

    assert rows["@record"].to_pylist() == [0, 2]
    assert rows["id"].to_pylist() == ["19723", "19723"]
    assert problem.rule == "key"
    assert problem.message == "id '2024-01-01' does not match its canonical @key id '19723'"
    assert (problem.type_name, problem.entity_id, problem.properties, problem.record) == (
        "Thing",
        "2024-01-01",
        ("day",),
        1,
    )


def test_a_row_without_its_key_has_no_id_and_is_left_out() -> None:
    node = _node({"a": "String", "b": "F64"}, "@key(a, b)")
    brought = _rows(node, {"a": "x", "b": 1.0}, {"a": None, "b": 1.0}, {"a": "x"}, {"a": "x", "b": float("nan")})

    rows, problems = with_ids(node, brought)

    assert rows["id"].to_pylist() == ['["x","1"]']
    assert [(problem.rule, problem.properties, problem.record) for problem in problems] == [
        ("required", ("a",), 1),
        ("required", ("b",), 2),
        ("finite", ("b",), 3),
    ]


@pytest.mark.parametrize("declared", [_node({"n": "I32?"}), _edge()], ids=["node", "edge"])
def test_what_has_no_key_keeps_its_id_or_gets_a_fresh_one(declared: NodeType | EdgeType) -> None:
    brought = _rows(declared, {"id": "mine"}, {}, {"id": ""}, {})

    rows, problems = with_ids(declared, brought)

    first, second, third, fourth = rows["id"].to_pylist()
    assert problems == []
    assert (first, third) == ("mine", "")
    assert _ULID.fullmatch(second)
    assert second < fourth
    assert rows.schema == brought.schema


def test_fresh_ids_are_ulids_of_now_and_never_twice_the_same() -> None:
    before = new_id()
    batches = [new_ids(10_000).to_pylist() for _ in range(20)]
    after = new_id()

    ids = [id_ for batch in batches for id_ in batch]
    assert len(set(ids)) == len(ids)
    assert all(_ULID.fullmatch(id_) for id_ in ids)
    assert all(batch == sorted(batch) for batch in batches)
    assert before[:10] <= ids[0][:10] <= ids[-1][:10] <= after[:10]


@pytest.mark.parametrize("count", [0, 1])
def test_few_ids_are_made_as_well(count: int) -> None:
    assert len(new_ids(count)) == count
    assert len(with_ids(_edge(), _rows(_edge()))[0]) == 0
