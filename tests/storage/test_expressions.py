"""One expression, four readings that must agree: over rows, as an Arrow predicate, as a Lance filter, and DuckDB's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from omnigraph.core.values import Scalar
from omnigraph.lang import ir
from omnigraph.lang.ir import Comparison, Constant, IsNull, Junction, Not, Operator, PropertyRef
from omnigraph.lang.types import BOOL, F64, I64, STRING, Type
from omnigraph.storage.expressions import TableRows, evaluate, holds, pushed
from omnigraph.storage.predicates import lance_filter, satisfying

ROWS = pa.table(
    {
        "n": pa.array([1, 2, None, 3, 2, None, 0, -1], pa.int32()),
        "m": pa.array([2, 2, 1, None, 0, None, 3, -1], pa.int32()),
        "x": pa.array([0.5, None, 2.0, -1.0, 2.5, None, 0.0, 3.0], pa.float64()),
        "s": pa.array(["a", "b", None, "ab", "", "a", "z", None], pa.string()),
        "b": pa.array([True, False, None, True, None, False, True, False], pa.bool_()),
    }
)
PROPERTIES = {
    name: PropertyRef(ir.ROW, name, Type(scalar, nullable=True))
    for name, scalar in (
        *(("n", Scalar.I32), ("m", Scalar.I32), ("x", Scalar.F64)),
        *(("s", Scalar.STRING), ("b", Scalar.BOOL)),
    )
}
NULL = Constant(None, Type(Scalar.I64, nullable=True))
_numbers = st.sampled_from([PROPERTIES[name] for name in "nmx"])
_number: SearchStrategy[Any] = st.one_of(
    st.integers(-2, 4).map(lambda value: Constant(value, I64)),
    st.sampled_from((-1.5, 0.0, 2.5)).map(lambda value: Constant(value, F64)),
    st.just(NULL),
)
_text = st.sampled_from(("a", "b", "", "it's")).map(lambda value: Constant(value, STRING))
_compare = st.sampled_from([Operator.EQ, Operator.NE, Operator.LT, Operator.LE, Operator.GT, Operator.GE])
_sum = st.builds(
    lambda left, sign, right: ir.Computed(sign, (left, right), Type(Scalar.F64, nullable=True)),
    st.just(PROPERTIES["x"]),
    st.sampled_from("+-*"),
    _numbers | _number.filter(lambda one: one is not NULL),
)
_lists = st.lists(st.integers(-1, 3), max_size=3).map(
    lambda items: Constant(tuple(items), Type(Scalar.I64, is_list=True))
)
_texts = st.lists(st.sampled_from(("a", "b", "it's")), max_size=2).map(
    lambda items: Constant(tuple(items), Type(Scalar.STRING, is_list=True))
)
_test = st.one_of(
    st.builds(Comparison, _numbers, _compare, _number),
    st.builds(Comparison, _number, _compare, _numbers),
    st.builds(Comparison, _numbers, _compare, _numbers),
    st.builds(Comparison, _sum, _compare, _number),
    st.builds(Comparison, st.just(PROPERTIES["s"]), _compare | st.just(Operator.CONTAINS), _text),
    st.builds(Comparison, _lists, st.just(Operator.CONTAINS), st.sampled_from([PROPERTIES["n"], PROPERTIES["m"]])),
    st.builds(Comparison, _texts, st.just(Operator.CONTAINS), st.just(PROPERTIES["s"])),
    st.sampled_from([*PROPERTIES.values()]).map(IsNull),
    st.just(PROPERTIES["b"]),
    st.builds(Constant, st.booleans(), st.just(BOOL)),
)
EXPRESSIONS = st.recursive(
    _test,
    lambda inner: st.one_of(
        inner.map(Not),
        st.builds(Junction, st.booleans(), st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


def _values(value: ir.Expr) -> ir.PlainValue:
    assert isinstance(value, Constant)
    return value.value


def _sql(one: ir.Expr) -> str:  # noqa: C901 - one case an expression
    match one:
        case Constant(None):
            return "NULL::BIGINT"
        case Constant(value) if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        case Constant(value):
            return str(value)
        case PropertyRef(_, name):
            return name
        case Comparison(Constant(items, type_), Operator.CONTAINS, item) if type_.is_list:
            assert isinstance(items, tuple)
            among = ", ".join(_sql(Constant(each, type_.element)) for each in items)
            return (
                f"({_sql(item)} IN ({among}))"
                if items
                else f"(CASE WHEN {_sql(item)} IS NULL THEN NULL ELSE FALSE END)"
            )
        case Comparison(left, Operator.CONTAINS, right):
            return f"contains({_sql(left)}, {_sql(right)})"
        case Comparison(left, operator, right):
            return f"({_sql(left)} {operator} {_sql(right)})"
        case Junction(conjunctive, operands):
            return "(" + (" AND " if conjunctive else " OR ").join(map(_sql, operands)) + ")"
        case Not(operand):
            return f"(NOT {_sql(operand)})"
        case IsNull(operand):
            return f"({_sql(operand)} IS NULL)"
        case ir.Computed(sign, (left, right)):
            return f"({_sql(left)} {sign} {_sql(right)})"
        case _:
            raise AssertionError(one)


@pytest.fixture(scope="module")
def stored() -> Iterator[lance.LanceDataset]:
    """The rows with an index on each column that filters use most."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = lance.write_dataset(ROWS.append_column("place", pa.array(range(len(ROWS)))), Path(folder) / "rows")
        for name in ("n", "s"):
            dataset.create_scalar_index(name, "BTREE")
        yield dataset


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.register("rows", ROWS.append_column("place", pa.array(range(len(ROWS)))))
        yield connection


@given(expression=EXPRESSIONS)
def test_an_expression_is_read_in_four_ways_alike(
    expression: ir.Expr, stored: lance.LanceDataset, duck: duckdb.DuckDBPyConnection
) -> None:
    rows = TableRows(ROWS)
    found = evaluate(expression, rows, _values).to_pylist()

    query = f"SELECT {_sql(expression)} FROM rows ORDER BY place"  # noqa: S608
    assert found == [row[0] for row in duck.sql(query).fetchall()]
    kept = [at for at, value in enumerate(found) if value]
    assert np.flatnonzero(holds(expression, rows, _values)).tolist() == kept
    down = pushed(expression, _values)
    if down is not None:
        columns: Mapping[str, pa.Array] = {name: rows.value(ir.ROW, name) for name in down.columns}
        assert satisfying(down, columns, rows.count).tolist() == kept
        assert sorted(stored.to_table(["place"], filter=lance_filter(down))["place"].to_pylist()) == kept


def test_conditions_with_or_and_in_are_pushed_down() -> None:
    """They would be read row by row otherwise, without an index."""
    some = Comparison(Constant((1, 2), Type(Scalar.I64, is_list=True)), Operator.CONTAINS, PROPERTIES["n"])
    none = Comparison(PROPERTIES["s"], Operator.EQ, Constant("a", STRING))
    down = pushed(Junction(conjunctive=False, operands=(some, Not(none))), _values)
    assert down is not None
    assert lance_filter(down) == "(`n` IN (1, 2)) OR (`s` != 'a')"


def test_what_may_have_no_value_is_computed_where_it_decides() -> None:
    n, zero = PROPERTIES["n"], Constant(0, I64)
    inverse = ir.Computed("/", (Constant(1.0, F64), n), Type(Scalar.F64, nullable=True))
    is_large = Comparison(inverse, Operator.GE, Constant(0.5, F64))
    both = Junction(conjunctive=True, operands=(Comparison(n, Operator.NE, zero), is_large))
    either = Junction(conjunctive=False, operands=(Comparison(n, Operator.EQ, zero), is_large))
    rows = TableRows(ROWS)
    assert evaluate(both, rows, _values).to_pylist() == [True, True, None, False, True, None, False, False]
    assert evaluate(either, rows, _values).to_pylist() == [True, True, None, False, True, None, True, False]
