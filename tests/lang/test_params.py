import datetime as dt
import json
import math
from typing import Any

import pytest

from omnigraph.core.values import Scalar
from omnigraph.errors import ParameterError
from omnigraph.lang import IntegerMode, Source, compile_query, compile_schema, decode_parameters
from omnigraph.lang.types import STRING, Type

_VECTOR = Type(Scalar.VECTOR, dimension=3)
_NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


def _list(scalar: str) -> Type:
    return Type(Scalar(scalar), is_list=True)


def _decode(type_: Type, item: object, mode: IntegerMode = IntegerMode.STANDARD) -> Any:
    return decode_parameters({"p": type_}, {"p": item}, mode)["p"]


def _refused(type_: Type, item: object, mode: IntegerMode = IntegerMode.STANDARD) -> ParameterError:
    with pytest.raises(ParameterError) as caught:
        _decode(type_, item, mode)
    assert caught.value.parameter == "p"
    assert "'p'" in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    "scalar, item, value",
    [
        ("String", "", ""),
        ("String", "Zoë \x00 😀", "Zoë \x00 😀"),
        ("String", "42", "42"),
        ("I32", 2**31 - 1, 2**31 - 1),
        ("I32", -(2**31), -(2**31)),
        ("I32", "-2147483648", -(2**31)),
        ("I32", "007", 7),
        ("I64", 2**63 - 1, 2**63 - 1),
        ("I64", "-9223372036854775808", -(2**63)),
        ("U32", 2**32 - 1, 2**32 - 1),
        ("U32", "4294967295", 2**32 - 1),
        ("U64", 2**63 - 1, 2**63 - 1),
        ("U64", "9223372036854775807", 2**63 - 1),
        ("Blob", "base64:AQID", "base64:AQID"),
        ("Date", "2024-01-01", dt.date(2024, 1, 1)),
        ("DateTime", "2024-01-01T12:00:00Z", _NOON),
    ],
)
def test_a_value_of_the_declared_type_is_decoded(scalar: str, item: object, value: object) -> None:
    decoded = _decode(Type(Scalar(scalar)), item)

    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize("scalar", ["F32", "F64"])
@pytest.mark.parametrize("item", [0.5, 3, -(2**70), 1e300, 5e-324])
def test_a_float_parameter_takes_any_json_number(scalar: str, item: float) -> None:
    decoded = _decode(Type(Scalar(scalar)), item)

    assert decoded == item
    assert type(decoded) is float


@pytest.mark.parametrize("item", [True, False])
def test_a_bool_parameter_takes_a_boolean(item: bool) -> None:  # noqa: FBT001
    assert _decode(Type(Scalar.BOOL), item) is item


@pytest.mark.parametrize(
    "scalar, item",
    [
        ("String", 5),
        ("String", True),
        ("String", ["x"]),
        ("String", {"x": 1}),
        ("I32", 1.0),
        ("I32", 1.5),
        ("I32", True),
        ("I32", []),
        ("I64", False),
        ("U32", True),
        ("U64", 2.0),
        ("F32", "1.5"),
        ("F64", "1.5"),
        ("F64", True),
        ("F64", []),
        ("Bool", 0),
        ("Bool", 1),
        ("Bool", "true"),
        ("Date", 19723),
        ("DateTime", 1704067200000),
        ("Blob", 1),
        ("Blob", [1, 2, 3]),
    ],
)
def test_a_value_of_another_json_type_is_refused(scalar: str, item: object) -> None:
    assert "expected" in _refused(Type(Scalar(scalar)), item).message


@pytest.mark.parametrize("text", ["", " 7", "7 ", "+7", "-", "--7", "7_0", "0x7", "1.0", "1e3", "٣", "²", "7\n"])
def test_only_decimal_digits_are_an_integer_text(text: str) -> None:
    assert "I64" in _refused(Type(Scalar.I64), text).message


@pytest.mark.parametrize(
    "scalar, value",
    [
        ("I32", 2**31),
        ("I32", -(2**31) - 1),
        ("I64", 2**63),
        ("I64", -(2**63) - 1),
        ("U32", 2**32),
        ("U32", -1),
        ("U64", 2**64),
        ("U64", -1),
    ],
)
@pytest.mark.parametrize("spell", [int, str])
def test_an_integer_outside_its_range_is_refused_as_number_and_as_text(scalar: str, value: int, spell: Any) -> None:
    assert f"exceeds the {scalar} range" in _refused(Type(Scalar(scalar)), spell(value)).message


@pytest.mark.parametrize("item", [2**63, str(2**63), 2**64 - 1])
def test_a_u64_parameter_must_fit_a_signed_integer(item: object) -> None:
    assert "signed 64-bit" in _refused(Type(Scalar.U64), item).message


@pytest.mark.parametrize("text", ["9" * 10_000, "-" + "9" * 10_000])
@pytest.mark.parametrize("scalar", ["I32", "I64", "U32", "U64"])
def test_ten_thousand_digits_are_out_of_range_and_not_echoed(scalar: str, text: str) -> None:
    problem = _refused(Type(Scalar(scalar)), text)

    assert f"exceeds the {scalar} range" in problem.message
    assert len(str(problem)) < 200


def test_leading_zeros_do_not_put_an_integer_out_of_range() -> None:
    assert _decode(Type(Scalar.I64), "0" * 30 + "1") == 1


@pytest.mark.parametrize("type_", [Type(Scalar.STRING), Type(Scalar.I64), Type(Scalar.DATE)])
def test_a_long_text_is_clipped_in_the_error(type_: Type) -> None:
    item: object = "x" * 100_000 if type_ != STRING else 10**4000
    assert len(str(_refused(type_, item))) < 200


@pytest.mark.parametrize("item", [math.nan, math.inf, -math.inf, 10**400])
@pytest.mark.parametrize("type_", [Type(Scalar.F32), Type(Scalar.F64), _list("F64")])
def test_only_finite_numbers_are_floats(type_: Type, item: float) -> None:
    assert "finite" in _refused(type_, [item] if type_.is_list else item).message


def test_a_vector_takes_what_a_stored_one_can_hold() -> None:
    problem = _refused(Type(Scalar.VECTOR, dimension=2), [0.0, 1e39])

    assert "element 1" in problem.message
    assert "exceeds the F32 range" in problem.message
    assert _decode(Type(Scalar.VECTOR, dimension=2), [3e38, -3e38]) == (3e38, -3e38)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_what_a_lenient_json_parser_reads_as_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="finite"):
        decode_parameters({"p": Type(Scalar.F64)}, json.loads(f'{{"p": {text}}}'))


@pytest.mark.parametrize("scalar, text", [("Date", "2024-02-30"), ("DateTime", "yesterday")])
def test_an_invalid_date_is_refused_with_the_spelling_to_use(scalar: str, text: str) -> None:
    problem = _refused(Type(Scalar(scalar)), text)

    assert f"invalid {scalar} literal '{text}'" in problem.message
    assert "YYYY-MM-DD" in str(problem.hint)


# Lists and vectors


@pytest.mark.parametrize(
    "type_, item, value",
    [
        (_list("String"), [], ()),
        (_list("I32"), [1, "2"], (1, 2)),
        (_list("Bool"), [True, False], (True, False)),
        (_list("Date"), ["2024-01-01"], (dt.date(2024, 1, 1),)),
        (_VECTOR, [1, 0.5, -2], (1.0, 0.5, -2.0)),
    ],
)
def test_an_array_is_decoded_element_by_element(type_: Type, item: object, value: object) -> None:
    assert _decode(type_, item) == value


@pytest.mark.parametrize("type_", [_list("String"), _VECTOR])
@pytest.mark.parametrize("item", ["abc", 3, True, {"0": 1}])
def test_a_list_or_vector_takes_nothing_but_an_array(type_: Type, item: object) -> None:
    assert "array" in _refused(type_, item).message


@pytest.mark.parametrize(
    "type_, item, at",
    [
        (_list("String"), ["a", None], 1),
        (_list("I32"), [1, 2, "x"], 2),
        (_list("I32"), [True], 0),
        (_list("I32"), [1, 2**31], 1),
        (_list("String"), [["a"]], 0),
        (_list("DateTime"), ["2024-01-01T00:00:00Z", "never"], 1),
        (_VECTOR, [1, 2, "x"], 2),
        (_VECTOR, [None, 2, 3], 0),
        (_VECTOR, [1, True, 3], 1),
    ],
)
def test_a_bad_element_is_named_by_its_position(type_: Type, item: object, at: int) -> None:
    assert f"element {at}" in _refused(type_, item).message


@pytest.mark.parametrize("item", [[], [1, 2], [1, 2, 3, 4]])
def test_a_vector_needs_exactly_its_dimension(item: list[int]) -> None:
    assert f"expected 3 values for Vector(3), got {len(item)}" in _refused(_VECTOR, item).message


# Null and missing


@pytest.mark.parametrize("base", ["String", "I32", "F64", "Bool", "Date", "DateTime", "Blob"])
@pytest.mark.parametrize("given", [{}, {"p": None}])
def test_an_optional_parameter_omitted_or_null_is_null(base: str, given: dict[str, object]) -> None:
    assert decode_parameters({"p": Type(Scalar(base), nullable=True)}, given) == {"p": None}


@pytest.mark.parametrize("type_", [STRING, _list("String"), _VECTOR])
def test_null_is_refused_for_a_required_parameter(type_: Type) -> None:
    problem = _refused(type_, None)

    assert "null is not accepted for non-nullable parameter" in problem.message
    assert f"{type_}?" in str(problem.hint)


@pytest.mark.parametrize("given", [None, {}])
def test_a_missing_required_parameter_is_always_an_error(given: object) -> None:
    with pytest.raises(ParameterError, match="'name' not provided") as caught:
        decode_parameters({"name": STRING}, given)
    assert caught.value.parameter == "name"
    assert "did you mean" not in str(caught.value.hint)


def test_a_parameter_used_only_inside_a_binding_is_just_as_required() -> None:
    catalog = compile_schema(Source("node Person { name: String @key }"))
    text = "query who($name: String) { match { $p: Person { name: $name } } return { $p.name } }"

    with pytest.raises(ParameterError, match="'name' not provided"):
        decode_parameters(compile_query(Source(text), catalog).parameters, {})


def test_a_misspelt_key_gets_the_declared_name_it_is_close_to() -> None:
    with pytest.raises(ParameterError, match="unknown parameter 'nmae'") as caught:
        decode_parameters({"name": STRING}, {"nmae": "Ada", "limit": 3})
    assert "did you mean `name`?" in str(caught.value.hint)


def test_a_close_key_that_is_a_parameter_of_its_own_is_no_suggestion() -> None:
    with pytest.raises(ParameterError, match="'name1' not provided") as caught:
        decode_parameters({"name1": STRING, "name2": STRING}, {"name2": "Ada"})
    assert "did you mean" not in str(caught.value.hint)


@pytest.mark.parametrize("given", [[], "{}", 3, True, [["name", "Ada"]]])
def test_parameters_must_be_an_object(given: object) -> None:
    with pytest.raises(ParameterError, match="must be a JSON object"):
        decode_parameters({}, given)


# Undeclared keys


@pytest.mark.parametrize("item", ["x", 3, None, {}, [{"a": 1}]])
def test_an_undeclared_key_is_refused_whatever_its_value(item: object) -> None:
    with pytest.raises(ParameterError, match="unknown parameter 'p'") as caught:
        decode_parameters({}, {"p": item})
    assert caught.value.parameter == "p"
    assert caught.value.hint == "the query declares no parameters"


def test_an_undeclared_key_gets_the_declared_names() -> None:
    with pytest.raises(ParameterError, match="unknown parameter 'p'") as caught:
        decode_parameters({"name": STRING, "age": STRING}, {"name": "a", "age": "b", "p": 1})
    assert caught.value.hint == "the query declares $name, $age"


# Integers from JavaScript


@pytest.mark.parametrize("scalar", ["I64", "U64"])
def test_javascript_integers_are_exact_up_to_their_safe_limit(scalar: str) -> None:
    safe, type_ = 2**53 - 1, Type(Scalar(scalar))

    assert _decode(type_, safe, IntegerMode.JAVASCRIPT) == safe
    assert "text" in str(_refused(type_, safe + 1, IntegerMode.JAVASCRIPT).hint)
    assert _decode(type_, str(safe + 1), IntegerMode.JAVASCRIPT) == safe + 1
    assert _decode(type_, safe + 1) == safe + 1


def test_the_safe_limit_of_javascript_holds_for_negative_integers_and_elements() -> None:
    _refused(Type(Scalar.I64), -(2**53), IntegerMode.JAVASCRIPT)
    assert "element 1" in _refused(_list("I64"), [1, 2**53], IntegerMode.JAVASCRIPT).message
    assert _decode(Type(Scalar.I64), -(2**53) + 1, IntegerMode.JAVASCRIPT) == -(2**53) + 1


def test_the_range_is_checked_in_javascript_mode_too() -> None:
    assert "exceeds the I32 range" in _refused(Type(Scalar.I32), 2**31, IntegerMode.JAVASCRIPT).message
