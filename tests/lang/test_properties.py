"""What holds for every text and every value, not only for those somebody thought of."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from omnigraph.core.values import INTEGER_BOUNDS, Scalar, parse_date, parse_datetime
from omnigraph.errors import LiteralError, ParameterError
from omnigraph.lang import IntegerMode, Source, compile_query, decode_parameters, parse_queries
from omnigraph.lang.identity import canonical_text
from omnigraph.lang.query_parser import parse_query_file
from omnigraph.lang.schema_parser import parse_schema_tree
from omnigraph.lang.types import Type
from tests.lang import oracle
from tests.lang.strategies import damaged, queries, schemas, typed_queries

# Texts ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(schemas)
def test_every_schema_that_follows_the_grammar_parses_and_formatting_keeps_it(text: str) -> None:
    assert parse_schema_tree(Source(text))[1] == []
    oracle.check_schema(text)


@pytest.mark.slow
@given(queries)
def test_every_query_file_that_follows_the_grammar_parses_and_formatting_keeps_it(text: str) -> None:
    assert parse_query_file(Source(text))[1] == []
    oracle.check_queries(text)


@pytest.mark.parametrize(
    "check, text",
    [
        (oracle.check_schema, "node{0}A {{{0}a:{0}String{0}@key{0}@unique({0}a) }} edge E: A{0}->{0}A{0}@card(0{0}..)"),
        (oracle.check_queries, "query q() {{ match {{ $p: Person $p <{0}knows{0}> $f }} return {{ $p }} }}"),
    ],
    ids=["schema", "queries"],
)
def test_a_comment_may_stand_wherever_a_space_may(check: Callable[[str], None], text: str) -> None:
    parse = parse_schema_tree if check is oracle.check_schema else parse_query_file
    plain, problems = parse(Source(text.format(" ")))
    assert not problems
    assert parse(Source(text.format("/* a */ // b\n"))) == (plain, [])
    check(text.format("/* a */ // b\n"))


@pytest.mark.slow
@given(typed_queries)
def test_a_query_that_type_checks_means_the_same_when_formatted(text: str) -> None:
    source = Source(text)
    assert compile_query(source, oracle.CATALOG).name == parse_queries(source).queries[0].name
    oracle.check_queries(text)


@pytest.mark.slow
@given(damaged(schemas))
def test_a_damaged_schema_gives_a_result_or_a_typed_error(text: str) -> None:
    oracle.check_schema(text)


@pytest.mark.slow
@given(damaged(queries | typed_queries))
def test_a_damaged_query_file_gives_a_result_or_a_typed_error(text: str) -> None:
    oracle.check_queries(text)


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_gives_a_result_or_a_typed_error(text: str) -> None:
    oracle.check_schema(text)
    oracle.check_queries(text)


@given(st.binary())
def test_any_bytes_give_a_result_or_a_typed_error(data: bytes) -> None:
    oracle.check_bytes(b"p" + data)
    oracle.check_bytes(b"g" + data)


# Parameters ----------------------------------------------------------------------------------------

_SCALARS = tuple(scalar for scalar in Scalar if scalar is not Scalar.VECTOR)
_types = st.one_of(
    st.builds(Type, st.sampled_from(_SCALARS), nullable=st.booleans()),
    st.sampled_from(_SCALARS).filter(lambda scalar: scalar is not Scalar.BLOB).map(lambda of: Type(of, is_list=True)),
    st.builds(Type, st.just(Scalar.VECTOR), dimension=st.integers(1, 3)),
)
_texts = st.text(st.characters(exclude_categories=()), max_size=12) | st.sampled_from(
    ("1", "-1", "9223372036854775808", "2020-01-31", "2020-01-31T12:00:00Z", "0" * 30, "9" * 30, "1e3")
)
_numbers = st.integers() | st.floats() | st.sampled_from((2**31, 2**53, 2**63 - 1, 2**64, 10**400))
_json: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=5,
)
_names = st.sampled_from("abc")
_FITS: dict[Scalar, type] = {
    **dict.fromkeys(INTEGER_BOUNDS, int),
    **dict.fromkeys((Scalar.F32, Scalar.F64, Scalar.VECTOR), float),
    **dict.fromkeys((Scalar.STRING, Scalar.BLOB), str),
    Scalar.BOOL: bool,
    Scalar.DATE: dt.date,
    Scalar.DATETIME: dt.datetime,
}


@given(
    st.dictionaries(_names, _types, max_size=3),
    _json | st.dictionaries(_names, _json, max_size=3),
    st.sampled_from(IntegerMode),
)
def test_any_json_decodes_to_values_of_the_declared_types_or_gives_a_parameter_error(
    declared: dict[str, Type], given_: Any, mode: IntegerMode
) -> None:
    try:
        values = decode_parameters(declared, given_, mode)
    except ParameterError:
        return
    assert values.keys() == declared.keys() | (given_ or {}).keys()
    for name, type_ in declared.items():
        _assert_fits(type_, values[name])


def _assert_fits(type_: Type, value: Any) -> None:
    if value is None:
        assert type_.nullable
        return
    if type_.is_list or type_.is_vector:
        assert not type_.is_vector or len(value) == type_.dimension
    else:
        value = (value,)
    for item in value:
        kind = type(item)
        assert kind is _FITS[type_.scalar]
        assert not isinstance(item, float) or math.isfinite(item)
        if type_.scalar in INTEGER_BOUNDS:
            low, high = INTEGER_BOUNDS[type_.scalar]
            assert low <= item <= high


# Values --------------------------------------------------------------------------------------------

_near_dates = st.from_regex(
    r"\d{1,4}-?\d{1,2}-?\d{1,2}([T ]\d\d:\d\d(:\d\d(\.\d{1,10})?)?( ?(Z|[+-]\d\d:?\d?\d?))?)?", fullmatch=True
)


@given(_near_dates | st.text())
@pytest.mark.parametrize("parse", [parse_date, parse_datetime])
def test_any_text_is_read_as_a_date_or_gives_a_literal_error(parse: Callable[[str], dt.date], text: str) -> None:
    try:
        value = parse(text)
    except LiteralError:
        return
    if isinstance(value, dt.datetime):
        assert value.utcoffset() == dt.timedelta(0)
        assert value.microsecond % 1000 == 0


@pytest.mark.slow
@given(st.datetimes(timezones=st.timezones()))
def test_a_date_time_is_read_back_as_it_is_written(moment: dt.datetime) -> None:
    try:
        utc = moment.astimezone(dt.UTC)
    except OverflowError:
        return
    text = utc.isoformat(timespec="milliseconds")
    assert parse_datetime(text) == dt.datetime.fromisoformat(text)
    assert parse_date(text) == utc.date()


_utc_milliseconds = st.integers(-(10**13), 10**13).map(
    lambda count: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=count)
)
_STORED: dict[Scalar, SearchStrategy[Any]] = {
    Scalar.STRING: st.text(),
    Scalar.BOOL: st.booleans(),
    **{scalar: st.integers(*bounds) for scalar, bounds in INTEGER_BOUNDS.items()},
    Scalar.F32: st.floats(width=32, allow_nan=False, allow_infinity=False),
    Scalar.F64: st.floats(allow_nan=False, allow_infinity=False),
    Scalar.DATE: st.dates(),
    Scalar.DATETIME: _utc_milliseconds,
}


@pytest.mark.parametrize("scalar", _STORED)
@given(data=st.data())
def test_two_key_values_have_one_text_exactly_if_they_are_equal(scalar: Scalar, data: st.DataObject) -> None:
    left = data.draw(_STORED[scalar])
    right = data.draw(_STORED[scalar] | st.just(left))
    texts = canonical_text(scalar, left), canonical_text(scalar, right)
    assert (texts[0] == texts[1]) == (left == right)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_text_of_a_float_key_has_no_exponent_and_reads_back(value: float) -> None:
    text = canonical_text(Scalar.F64, value)
    assert "e" not in text
    assert float(text) == value
