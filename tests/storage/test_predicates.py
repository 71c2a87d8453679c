"""One predicate, three readings that must agree: lance's on a table, Arrow's on rows, and plain Python's."""

from __future__ import annotations

import datetime as dt
import math
import operator
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.core.values import FLOATS, INTEGER_BOUNDS, NUMERIC, Scalar
from omnigraph.lang.ir import Operator
from omnigraph.lang.types import STRING, Type
from omnigraph.storage.columns import to_array
from omnigraph.storage.predicates import AllOf, Never, OneOf, Predicate, arrow_expression, comparison, lance_filter

EXAMPLES = settings().max_examples // 3  # each makes a table and two indices
COLUMN, OTHER = "camelCase", "camelcase"
PYTHON: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQ: operator.eq,
    Operator.NE: operator.ne,
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
    Operator.GT: operator.gt,
    Operator.GE: operator.ge,
}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
BEFORE_1970 = EPOCH - dt.timedelta(milliseconds=1)
SCALARS = [Scalar.STRING, Scalar.BOOL, *INTEGER_BOUNDS, *sorted(FLOATS), Scalar.DATE, Scalar.DATETIME]


# What a test asks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparing:
    """`column operator value`."""

    operator: Operator
    value: Any

    def predicate(self, scalar: Scalar) -> Predicate:
        return comparison(COLUMN, Type(scalar), self.operator, self.value)

    def holds(self, scalar: Scalar, stored: Any, _: str | None) -> bool:
        """Null and NaN satisfy nothing; a value that F32 can hold is rounded to it; all else is exact."""
        if stored is None or self.value is None or stored != stored:  # noqa: PLR0124 - how NaN is told
            return False
        return PYTHON[self.operator](stored, _rounded(self.value) if scalar is Scalar.F32 else self.value)


@dataclass(frozen=True, slots=True)
class Among:
    """`column in (values)`, and the other column holds one of `words`."""

    values: tuple[Any, ...]
    words: tuple[str, ...] | None

    def predicate(self, scalar: Scalar) -> Predicate:
        one = OneOf(COLUMN, to_array(Type(scalar), self.values))
        return one if self.words is None else AllOf((one, OneOf(OTHER, pa.array(self.words, pa.string()))))

    def holds(self, _: Scalar, stored: Any, word: str | None) -> bool:
        return stored is not None and stored in self.values and (self.words is None or word in self.words)


@dataclass(frozen=True, slots=True)
class Both:
    """Two comparisons at once."""

    one: Comparing
    other: Comparing

    def predicate(self, scalar: Scalar) -> Predicate:
        return AllOf((self.one.predicate(scalar), self.other.predicate(scalar)))

    def holds(self, scalar: Scalar, stored: Any, word: str | None) -> bool:
        return self.one.holds(scalar, stored, word) and self.other.holds(scalar, stored, word)


Asked = Comparing | Among | Both


def _rounded(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return value


# Values --------------------------------------------------------------------------------------------


ODD_TEXTS = [
    "",
    "'",
    "''",
    '"',
    "\\",
    "\\'",
    "a\nb",
    "\r\n",
    "\t",
    "\0",
    "%",
    "_",
    "`",
    "--",
    "ä",
    "\uffff",
    "\U0001f9c0",
]
TEXTS = st.one_of(st.sampled_from(ODD_TEXTS), st.text(st.characters(exclude_categories=["Cs"]), max_size=4))
MOMENTS = st.one_of(
    st.sampled_from([dt.datetime(1, 1, 1), dt.datetime(1970, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_000)]),  # noqa: DTZ001 - the zone comes below
    st.datetimes(dt.datetime(1969, 12, 31, 23, 59, 59), dt.datetime(1970, 1, 1, 0, 0, 1)),  # noqa: DTZ001
    st.datetimes(),
).map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=dt.UTC))
DAYS = st.one_of(st.sampled_from([dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]), st.dates())
NUMBERS_OF_ANY_TYPE = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([end + near for ends in INTEGER_BOUNDS.values() for end in ends for near in (-1, 0, 1)]),
    st.sampled_from(
        [0.0, -0.0, 0.5, -0.5, 2.0, 0.1, 16777217, 2**53 + 1, 1e39, -1e39, 1e300, 5e-324, 2.0**63, 2.0**64]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
)


def stored_values(scalar: Scalar) -> st.SearchStrategy[Any]:
    """Values that a column can hold, odd ones often; nulls come besides."""
    if scalar in INTEGER_BOUNDS:
        low, high = INTEGER_BOUNDS[scalar]
        near = [number for number in (*range(-2, 3), low, low + 1, high - 1, high, 2**53 + 1) if low <= number <= high]
        return st.one_of(st.sampled_from(near), st.integers(low, high))
    if scalar in FLOATS:
        odd = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, 2.0, _rounded(0.1), 16777216.0])
        return st.one_of(odd, st.floats(width=32) if scalar is Scalar.F32 else st.floats())
    others = {Scalar.STRING: TEXTS, Scalar.BOOL: st.booleans(), Scalar.DATE: DAYS, Scalar.DATETIME: MOMENTS}
    return others[scalar]


def wanted_values(scalar: Scalar) -> st.SearchStrategy[Any]:
    """Values that a query can compare a column with: finite, and numbers of any type for a number."""
    return NUMBERS_OF_ANY_TYPE if scalar in NUMERIC else stored_values(scalar)


@st.composite
def questions(draw: st.DrawFn, scalar: Scalar) -> tuple[list[Any], list[str | None], list[Asked]]:
    """Rows of two columns and what to ask of them, mostly about values that are there."""
    rows = draw(st.lists(st.none() | stored_values(scalar), min_size=1, max_size=10))
    words = draw(st.lists(st.none() | TEXTS, min_size=len(rows), max_size=len(rows)))
    there = [value for value in rows if value is not None and math.isfinite(value if scalar in FLOATS else 0)]
    values = wanted_values(scalar) | st.sampled_from(there) if there else wanted_values(scalar)
    exact = st.sampled_from(there) if there else stored_values(scalar).filter(_is_finite)
    comparing = st.builds(Comparing, st.sampled_from(list(PYTHON)), st.none() | values)
    among = st.builds(
        Among,
        st.lists(exact, max_size=3).map(tuple),
        st.none() | st.lists(st.sampled_from([word or "" for word in words]), max_size=2).map(tuple),
    )
    asked = draw(st.lists(st.one_of(comparing, comparing, among, st.builds(Both, comparing, comparing)), max_size=8))
    return rows, words, asked


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


# The property --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scalar", SCALARS)
def test_lance_and_arrow_and_python_find_the_same_rows_with_an_index_and_without(scalar: Scalar) -> None:
    @settings(max_examples=EXAMPLES)
    @given(questions(scalar))
    def check(question: tuple[list[Any], list[str | None], list[Asked]]) -> None:
        rows, words, asked = question
        table = made(scalar, rows, words)
        wanted = [expected(one, scalar, rows, words) for one in asked]
        predicates = [one.predicate(scalar) for one in asked]
        assert [by_arrow(table, one) for one in predicates] == wanted
        with tempfile.TemporaryDirectory() as folder:
            dataset = written(table, folder)
            assert [by_lance(dataset, one) for one in predicates] == wanted
            dataset.create_scalar_index(COLUMN, "BTREE")
            dataset.create_scalar_index(OTHER, "BTREE")
            assert [by_lance(lance.dataset(folder), one) for one in predicates] == wanted

    check()


def made(scalar: Scalar, rows: Sequence[Any], words: Sequence[str | None]) -> pa.Table:
    ids = pa.array(range(len(rows)), pa.int64())
    return pa.table({"id": ids, COLUMN: to_array(Type(scalar), rows), OTHER: pa.array(words, pa.string())})


def written(table: pa.Table, folder: str | Path) -> lance.LanceDataset:
    # Two fragments, so that an index and what it does not cover meet in other examples as well.
    lance.write_dataset(table.slice(0, 0), folder, data_storage_version="2.2", enable_stable_row_ids=True)
    return lance.write_dataset(table, folder, mode="append", max_rows_per_file=5, max_rows_per_group=5)


def expected(asked: Asked, scalar: Scalar, rows: Sequence[Any], words: Sequence[str | None]) -> list[int]:
    pairs = zip(rows, words, strict=True)
    return [at for at, (stored, word) in enumerate(pairs) if asked.holds(scalar, stored, word)]


def by_arrow(table: pa.Table, predicate: Predicate) -> list[int]:
    found: list[int] = table.filter(arrow_expression(predicate))["id"].to_pylist()
    return found


def by_lance(dataset: lance.LanceDataset, predicate: Predicate) -> list[int]:
    return sorted(dataset.to_table(columns=["id"], filter=lance_filter(predicate))["id"].to_pylist())


# Single cases that went wrong somewhere ------------------------------------------------------------


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(
    "scalar, rows, asked",
    [
        (Scalar.I64, [-(2**63), 0, None], Comparing(Operator.EQ, -(2**63))),
        (Scalar.I64, [-(2**63), 0, None], Comparing(Operator.GT, -(2**63))),
        (Scalar.I64, [-(2**63), 0, None], Among((-(2**63),), None)),
        (Scalar.I64, [2**53, 2**53 + 1], Comparing(Operator.EQ, 2.0**53)),
        (Scalar.U64, [2**64 - 1, 2**63, 0], Comparing(Operator.GE, 2.0**63)),
        (Scalar.U64, [2**64 - 1, 2**63, 0], Comparing(Operator.LT, 2.0**64)),
        (Scalar.U64, [2**64 - 1, 2**63, 0], Among((2**64 - 1,), None)),
        (Scalar.F64, [0.0, -0.0, None], Among((0.0,), None)),
        (Scalar.F64, [0.0, -0.0, None], Among((-0.0,), None)),
        (Scalar.F32, [0.0, -0.0, None], Among((0.0,), None)),
        (Scalar.F64, [2.0**53, 2.0**53 + 2], Comparing(Operator.GT, 2**53 + 1)),
        (Scalar.F64, [math.nan, 1.0, None], Comparing(Operator.NE, 2)),
        (Scalar.F32, [math.inf, -math.inf, 1.0, math.nan, None], Comparing(Operator.LT, 1e39)),
        (Scalar.F32, [math.inf, -math.inf, 1.0, math.nan, None], Comparing(Operator.GE, -1e39)),
        (Scalar.F32, [math.inf, -math.inf, 1.0, math.nan, None], Comparing(Operator.GE, 1e39)),
        (Scalar.F32, [_rounded(0.1)], Comparing(Operator.EQ, 0.1)),
        (Scalar.DATETIME, [BEFORE_1970, EPOCH], Comparing(Operator.LT, EPOCH)),
    ],
    ids=str,
)  # fmt: skip
def test_the_ends_of_a_type_are_compared_like_all_else(
    tmp_path: Path, scalar: Scalar, rows: list[Any], asked: Asked, *, indexed: bool
) -> None:
    words: list[str | None] = [None] * len(rows)
    table, predicate = made(scalar, rows, words), asked.predicate(scalar)
    dataset = written(table, tmp_path / "table")
    if indexed:
        dataset.create_scalar_index(COLUMN, "BTREE")
        dataset = lance.dataset(tmp_path / "table")

    assert by_arrow(table, predicate) == expected(asked, scalar, rows, words)
    assert by_lance(dataset, predicate) == expected(asked, scalar, rows, words)


@pytest.mark.parametrize("scalar", [Scalar.STRING, Scalar.I32, Scalar.F64, Scalar.DATE])
@pytest.mark.parametrize("sign", PYTHON)
def test_a_null_is_equal_to_nothing_and_differs_from_nothing(scalar: Scalar, sign: Operator) -> None:
    assert comparison(COLUMN, Type(scalar), sign, None) == Never()


def test_a_value_is_data_and_never_part_of_the_filter(tmp_path: Path) -> None:
    table = made(Scalar.STRING, ["a", "b"], ["a", "b"])
    dataset = written(table, tmp_path / "table")

    for attack in ("x' OR '1'='1", "x') OR ('1'='1", "`", "x' --", "\\' OR 1=1 --"):
        assert by_lance(dataset, comparison(COLUMN, STRING, Operator.EQ, attack)) == []
        assert by_lance(dataset, OneOf(COLUMN, pa.array([attack]))) == []
