import datetime as dt
import json
import math
import re
import time
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.core.values import Scalar
from omnigraph.errors import IdentityError
from omnigraph.lang import Source, compile_schema
from omnigraph.lang.catalog import NodeType
from omnigraph.lang.identity import canonical_text, new_id, node_id
from omnigraph.lang.ir import PlainValue

_LATE = dt.datetime(1969, 12, 31, 23, 59, 59, 999_900, tzinfo=dt.UTC)
_CET = dt.timezone(dt.timedelta(hours=1))


def _node(text: str) -> NodeType:
    (node,) = compile_schema(Source(text)).nodes.values()
    return node


@pytest.mark.parametrize(
    "scalar, value, text",
    [
        ("String", "Ada", "Ada"),
        ("String", "", ""),
        ("String", "  Zoë\n", "  Zoë\n"),
        ("I32", -7, "-7"),
        ("I64", -(2**63), "-9223372036854775808"),
        ("U32", 0, "0"),
        ("U64", 2**64 - 1, "18446744073709551615"),
        ("Bool", True, "true"),
        ("Bool", False, "false"),
        ("Date", dt.date(2024, 1, 1), "19723"),
        ("Date", dt.date(1969, 12, 31), "-1"),
        ("DateTime", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "1704067200000"),
        ("DateTime", dt.datetime(2024, 1, 1, 1, tzinfo=_CET), "1704067200000"),
        ("DateTime", dt.datetime(1970, 1, 1, 0, 0, 0, 1_999, tzinfo=dt.UTC), "1"),
        ("DateTime", _LATE, "-1"),
        ("F64", 1.0, "1"),
        ("F64", 3, "3"),
        ("F64", 0.1, "0.1"),
        ("F64", -2.5, "-2.5"),
        ("F64", 1e21, "1" + "0" * 21),
        ("F64", 1e-7, "0.0000001"),
        ("F64", 5e-324, "0." + "0" * 323 + "5"),
        ("F64", 1.7976931348623157e308, "17976931348623157" + "0" * 292),
        ("F64", 2**53 + 1, "9007199254740992"),
        ("F32", 16777217, "16777216"),
        ("F32", 0.1, "0.1"),
        ("F32", 1 / 3, "0.33333334"),
        ("F32", 3.4028235e38, "34028235" + "0" * 31),
        ("F32", 1e-50, "0"),
    ],
)
def test_a_key_value_has_one_text(scalar: str, value: PlainValue, text: str) -> None:
    assert canonical_text(Scalar(scalar), value) == text


@pytest.mark.parametrize("scalar", ["F32", "F64"])
@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_both_zeros_are_one_key(scalar: str, zero: float) -> None:
    assert canonical_text(Scalar(scalar), zero) == "0"


@pytest.mark.parametrize(
    "scalar, value",
    [
        ("F64", math.nan),
        ("F64", math.inf),
        ("F32", -math.inf),
        ("F32", 1e39),
        ("F32", -3.4028236e38),
        pytest.param("F64", 10**400, id="too-large"),
        ("String", None),
        ("String", 7),
        ("I32", True),
        ("I32", 7.0),
        ("I32", "7"),
        ("Bool", 1),
        ("F64", True),
        ("Date", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("DateTime", dt.date(2024, 1, 1)),
        ("DateTime", dt.datetime(2024, 1, 1)),  # noqa: DTZ001 - what has no zone has no epoch milliseconds
        ("Blob", "base64:AQID"),
    ],
)
def test_what_the_column_cannot_store_is_no_key(scalar: str, value: PlainValue) -> None:
    with pytest.raises(IdentityError):
        canonical_text(Scalar(scalar), value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_reads_back_from_its_text(value: float) -> None:
    text = canonical_text(Scalar.F64, value)

    assert float(text) == value
    assert re.fullmatch(r"-?(0|[1-9]\d*)(\.\d*[1-9])?", text)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_text_of_a_single_float_is_the_shortest_that_reads_back(value: float) -> None:
    text = canonical_text(Scalar.F32, value)

    assert np.float32(text) == np.float32(value)
    assert len(Decimal(text).normalize().as_tuple().digits) <= len(Decimal(repr(value)).normalize().as_tuple().digits)


# Ids of nodes


def test_a_key_of_one_property_is_the_id() -> None:
    assert node_id(_node("node N { slug: String @key age: I32 }"), {"slug": '["a"]', "age": 3}) == '["a"]'
    assert node_id(_node("node N { state: enum(open, closed) @key }"), {"state": "open"}) == "open"


def test_a_composite_id_is_a_compact_array_of_texts_in_the_order_of_the_names() -> None:
    node = _node("node N { tenant: String slot: U32 @key(tenant, slot) }")

    assert node_id(node, {"tenant": "acme", "slot": 7}) == '["7","acme"]'


def test_every_part_of_a_composite_id_is_text() -> None:
    node = _node("node N { d: Date c: Bool b: F32 a: String @key(a, b, c, d) }")
    values: dict[str, PlainValue] = {"a": "", "b": -0.0, "c": False, "d": dt.date(2024, 1, 1)}

    assert node_id(node, values) == '["","0","false","19723"]'


@pytest.mark.parametrize(
    "text, spelled",
    [
        ("Zoë 東京 😀", "Zoë 東京 😀"),
        ('"\\', r"\"\\"),
        ("\n\r\t", r"\n\r\t"),
        ("\x00\x1f", r"\u0000\u001f"),
        ("/\x7f\u2028", "/\x7f\u2028"),
    ],
)
def test_a_composite_id_escapes_only_what_json_must(text: str, spelled: str) -> None:
    made = node_id(_node("node N { a: String b: String @key(a, b) }"), {"a": text, "b": "x"})

    assert made == f'["{spelled}","x"]'
    assert json.loads(made) == [text, "x"]


def test_composite_keys_do_not_run_together() -> None:
    node = _node("node N { a: String b: String @key(a, b) }")
    keys = [("a", 'b","c'), ('a","b', "c"), ("", ""), ("[]", ""), ("a,b", "")]

    assert len({node_id(node, {"a": a, "b": b}) for a, b in keys}) == len(keys)


def test_a_key_component_without_a_value_is_refused() -> None:
    with pytest.raises(IdentityError):
        node_id(_node("node N { a: String b: String @key(a, b) }"), {"a": "x"})


# Generated ids


def test_a_generated_id_is_a_ulid_in_upper_case() -> None:
    assert re.fullmatch(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", new_id())


def test_generated_ids_are_unique() -> None:
    assert len({new_id() for _ in range(10_000)}) == 10_000


def test_generated_ids_sort_by_the_millisecond_they_were_made_in() -> None:
    ids = [new_id() for _ in range(2_000)]

    times = [made[:10] for made in ids]
    assert times == sorted(times)
    first, last = new_id(), new_id()
    while last[:10] == first[:10]:
        last = new_id()
    assert first < last


def test_the_time_in_a_generated_id_is_now() -> None:
    before, made, after = time.time_ns() // 1_000_000, new_id(), time.time_ns() // 1_000_000

    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    millisecond = sum(alphabet.index(char) * 32**power for power, char in enumerate(reversed(made[:10])))
    assert before <= millisecond <= after
