"""Turning the texts of a CSV file into what properties store.

| property     | text                                                                               |
|--------------|------------------------------------------------------------------------------------|
| String, enum | as it is                                                                           |
| Bool         | `true` or `false` in any case, `1` or `0`                                          |
| I32 ... U64  | decimal digits with an optional sign                                               |
| F32, F64     | a decimal number with an optional sign and exponent; no NaN, no infinity           |
| Date         | as in the query language: `2024-01-31`, `20240131`; a date-time is cut to its date |
| DateTime     | as in the query language: `2024-01-31T12:00:00Z`; no zone means UTC                |
| Blob         | `base64:...`                                                                       |
| [T], Vector  | a JSON array: `[1, 2.5]`                                                           |
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.formats.columns import Column, checked, coerced, either, one_by_one, stored_type
from omnigraph.formats.json_columns import clean, parse_type, parsed
from omnigraph.formats.records import json_value
from omnigraph.lang.types import FLOATS, INTEGER_BOUNDS, Scalar, Type

_INTEGER = r"^[+-]?[0-9]+$"
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_LIST = "value"
_MOST_DIGITS = 400


def from_text(column: pa.Array, type_: Type) -> Column:
    """Convert a column of texts, as bytes, to what a property of the type stores."""
    texts = _decoded(column)
    found = _converted(texts.values, type_)
    return Column(found.values, either(texts.wrong, found.wrong))


def _decoded(column: pa.Array) -> Column:
    try:
        return Column(column.cast(pa.string()))
    except pa.ArrowInvalid:
        return one_by_one(column, pa.string(), lambda text: text.decode())


def _converted(column: pa.Array, type_: Type) -> Column:
    if type_.is_list or type_.is_vector:
        return _arrays(column, type_)
    if type_.scalar in INTEGER_BOUNDS:
        return _integers(column, type_)
    if type_.scalar in FLOATS:
        return _floats(column, type_)
    if type_.scalar is Scalar.BOOL:
        return _booleans(column)
    return coerced(column, type_)


def meant(text: str, type_: Type) -> Any:
    """Read a text as the value that was probably meant, so that a message can be about that."""
    if type_.is_list or type_.is_vector:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    if type_.scalar in INTEGER_BOUNDS or type_.scalar in FLOATS:
        return _number(text)
    return text


def _number(text: str) -> Any:
    if re.match(_INTEGER, text) and len(text) < _MOST_DIGITS:
        return int(text)
    return float(text) if re.match(_DECIMAL, text) else text


def _integers(column: pa.Array, type_: Type) -> Column:
    if _all_match(column, _INTEGER):  # Arrow would take hexadecimal digits, too
        try:
            return Column(column.cast(stored_type(type_)))
        except pa.ArrowInvalid:
            pass
    return one_by_one(column, stored_type(type_), lambda text: json_value(type_, _number(text)))


def _floats(column: pa.Array, type_: Type) -> Column:
    matching = pc.match_substring_regex(column, _DECIMAL)
    numbers = pc.if_else(matching, column, pa.scalar(None, pa.string())).cast(pa.float64())
    finite = pc.fill_null(pc.is_finite(numbers), fill_value=False)
    kept = coerced(pc.if_else(finite, numbers, pa.scalar(None, pa.float64())), type_)
    return checked(kept.values, pc.and_(column.is_valid(), kept.values.is_null()))


def _booleans(column: pa.Array) -> Column:
    words = pc.utf8_lower(column)
    true = pc.is_in(words, pa.array(["true", "1"]))
    known = pc.or_(true, pc.is_in(words, pa.array(["false", "0"])))
    return checked(
        pc.if_else(column.is_valid(), true, pa.scalar(None, pa.bool_())), pc.and_(column.is_valid(), pc.invert(known))
    )


def _arrays(column: pa.Array, type_: Type) -> Column:
    try:
        return Column(_parsed_arrays(column, type_))
    except (pa.ArrowException, ValueError):
        return one_by_one(column, stored_type(type_), lambda text: json_value(type_, json.loads(text)))


def _parsed_arrays(column: pa.Array, type_: Type) -> pa.Array:
    """Parse JSON arrays by making a record of each."""
    texts = pc.fill_null(column, "null")
    lines = pc.binary_join_element_wise('{"value":', texts, "}\n", "").cast(pa.binary())
    temporal = pa.string() if type_.scalar in (Scalar.DATE, Scalar.DATETIME) else None
    table = parsed(lines, pa.schema([(_LIST, parse_type(type_, temporal))]), "error")
    return clean(table[_LIST].combine_chunks(), type_)


def _all_match(column: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py())
