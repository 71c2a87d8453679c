"""Convert Arrow columns of any type to the values that a property stores, and mark those that do not fit.

| property     | columns accepted                                                                                      |
|--------------|-------------------------------------------------------------------------------------------------------|
| String, enum | text                                                                                                  |
| Bool         | boolean                                                                                               |
| I32 ... U64  | integers of any width that are in range; floats and decimals that are whole numbers in range          |
| F32, F64     | integers, floats and decimals; rounded to what the property holds, too large is wrong                 |
| Date         | dates; timestamps of any unit and zone that are midnight in UTC; integers as days since 1970          |
| DateTime     | timestamps of any unit and zone, exact to milliseconds; dates as midnight; integers as milliseconds   |
| Blob         | binary as it is; text as `base64:...`                                                                 |
| [T]          | lists of all kinds, each element by the rule of T; a null among them is wrong                         |
| Vector(n)    | lists of all kinds with n numbers, none of them null                                                  |

A timestamp without a zone is in UTC. Dates and date-times range from year 1 to 9999. A text with a date is accepted in
all spellings of the query language. Dictionaries, run-end encoding, large and view types and extensions make no
difference. Null is null, and a column of nulls fits every property.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from omnigraph.core.values import (
    DAY_MILLISECONDS,
    FIRST_DAY,
    FIRST_MILLISECOND,
    FLOATS,
    LAST_DAY,
    LAST_MILLISECOND,
    NUMERIC,
    TEMPORAL,
    ConversionError,
    Scalar,
    blob_content,
    milliseconds_of,
    parse_date,
    parse_datetime,
)
from omnigraph.errors import LiteralError
from omnigraph.formats.writers import without_dates
from omnigraph.lang.types import Type
from omnigraph.storage.columns import arrow_type

# Arrow accepts more than the languages do, such as an hour without minutes, so it gets only texts of this form.
_TIMESTAMP = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,3})?)?)?"
_ZONED = _TIMESTAMP + r"(Z|[+-]\d{2}:\d{2})$"


@dataclass(frozen=True, slots=True)
class ConvertedColumn:
    """The values that fit; `wrong` marks the others, which are null, and is None if all fit."""

    values: pa.Array
    wrong: pa.Array | None = None


def coerced(column: pa.Array, type_: Type) -> ConvertedColumn:
    """Convert a column to what a property of the type stores. Raise ConversionError if no value of its type fits."""
    column = plain(column)
    if pt.is_null(column.type):
        return ConvertedColumn(pa.nulls(len(column), stored_type(type_)))
    if type_.is_vector:
        return _vectors(column, type_)
    if type_.is_list:
        return _lists(column, type_)
    return _scalars(column, type_.scalar)


def stored_type(type_: Type) -> pa.DataType:
    return pa.large_binary() if type_.is_blob else arrow_type(type_)


def plain(column: pa.Array) -> pa.Array:
    """Undo encodings that do not change the values."""
    type_ = column.type
    if isinstance(column, pa.ExtensionArray):
        return plain(column.storage)
    if pt.is_dictionary(type_):
        return plain(column.dictionary_decode())
    if pt.is_run_end_encoded(type_):
        return plain(pc.run_end_decode(column))
    if pt.is_large_string(type_) or pt.is_string_view(type_):
        return column.cast(pa.string())
    if pt.is_binary_view(type_) or pt.is_binary(type_) or pt.is_fixed_size_binary(type_):
        return column.cast(pa.large_binary())
    return column


def checked(values: pa.Array, wrong: pa.Array) -> ConvertedColumn:
    """Set wrong values to null. A mark is null where the value is, and counts as not wrong."""
    wrong = pc.fill_null(wrong, fill_value=False)
    if not pc.any(wrong).as_py():
        return ConvertedColumn(values)
    return ConvertedColumn(pc.if_else(wrong, pa.scalar(None, values.type), values), wrong)


# Scalars -------------------------------------------------------------------------------------------


def _scalars(column: pa.Array, scalar: Scalar) -> ConvertedColumn:
    source = column.type
    if scalar in NUMERIC and _is_number(source):
        target = arrow_type(Type(scalar))
        return _floats(column, target) if scalar in FLOATS else _cast(column, target)
    if scalar in TEMPORAL:
        return _dates(column) if scalar is Scalar.DATE else _datetimes(column)
    if scalar is Scalar.BLOB and pt.is_string(source):
        return _blobs(column)
    if scalar in _AS_STORED and _AS_STORED[scalar](source):
        return ConvertedColumn(column)
    raise ConversionError(str(source))


_AS_STORED = {Scalar.STRING: pt.is_string, Scalar.BOOL: pt.is_boolean, Scalar.BLOB: pt.is_large_binary}


def _is_number(type_: pa.DataType) -> bool:
    return bool(pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_))


def _cast(column: pa.Array, target: pa.DataType) -> ConvertedColumn:
    """Cast a column; if that fails, cast it value by value."""
    try:
        return ConvertedColumn(column.cast(target))
    except pa.ArrowInvalid:
        return one_by_one(column, target, lambda value: pa.scalar(value, column.type).cast(target).as_py())


def one_by_one(column: pa.Array, target: pa.DataType, convert: Callable[[Any], Any]) -> ConvertedColumn:
    """Convert each distinct value in Python: for the few columns that Arrow cannot convert as a whole."""
    # Bad columns tend to repeat few values, and Python sees each of them once.
    encoded = column.dictionary_encode()
    distinct = [_or_none(convert, value) for value in encoded.dictionary.to_pylist()]
    values = pa.array(distinct, target).take(encoded.indices)
    wrong = pc.and_(values.is_null(), column.is_valid()) if None in distinct else None
    return ConvertedColumn(values, wrong)


def _or_none(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except (pa.ArrowException, LiteralError, ValueError, OverflowError):
        return None


def _floats(column: pa.Array, target: pa.DataType) -> ConvertedColumn:
    # Not safe: rounding to what the property holds is wanted, and overflow is found below.
    values = column if column.type == target else column.cast(target, safe=False)
    # A number that overflows becomes infinite in the cast; one that was infinite before is not an overflow.
    if pt.is_float32(target) and not pt.is_float32(column.type):
        before = pc.is_finite(column) if pt.is_floating(column.type) else column.is_valid()
        return checked(values, pc.and_(before, pc.invert(pc.is_finite(values))))
    return ConvertedColumn(values)  # `value_violations` reports NaN and infinity with the other rules


def _blobs(column: pa.Array) -> ConvertedColumn:
    # Not `one_by_one`: Blobs are large and seldom repeat, so a dictionary of them would be a second copy.
    values = [None if text is None else _or_none(blob_content, text) for text in column.to_pylist()]
    found = pa.array(values, pa.large_binary())
    return checked(found, pc.and_(found.is_null(), column.is_valid()))


# Dates and date-times ------------------------------------------------------------------------------


def _dates(column: pa.Array) -> ConvertedColumn:
    if pt.is_string(column.type):
        return _dates_of_text(column)
    if pt.is_date32(column.type) or pt.is_integer(column.type):
        return _in_calendar(_clipped(without_dates(column)), pa.date32())
    moments = _datetimes(column)
    milliseconds = moments.values.view(pa.int64())
    days = _floor_divide(milliseconds, DAY_MILLISECONDS)
    midnight = pc.equal(pc.multiply(days, DAY_MILLISECONDS), milliseconds)
    dates = checked(days.cast(pa.int32()).view(pa.date32()), pc.invert(midnight))
    return ConvertedColumn(dates.values, either(moments.wrong, dates.wrong))


def _floor_divide(column: pa.Array, by: int) -> pa.Array:
    """Divide, rounding down; Arrow rounds towards zero."""
    return pc.divide(pc.subtract(column, pc.if_else(pc.less(column, 0), by - 1, 0)), by)


def _datetimes(column: pa.Array) -> ConvertedColumn:
    if pt.is_string(column.type):
        return _datetimes_of_text(column)
    if pt.is_timestamp(column.type):
        # Safe: microseconds that would be cut off are an error of the value, not a rounding.
        exact = _cast(column, pa.timestamp("ms", column.type.tz))
        kept = _in_calendar(exact.values.view(pa.int64()), pa.date64())
        return ConvertedColumn(kept.values, either(exact.wrong, kept.wrong))
    if not (pt.is_date(column.type) or pt.is_integer(column.type)):
        raise ConversionError(str(column.type))
    milliseconds = _clipped(without_dates(column))
    if pt.is_date32(column.type):
        milliseconds = pc.multiply(milliseconds, DAY_MILLISECONDS)
    return _in_calendar(milliseconds, pa.date64())


def _clipped(column: pa.Array) -> pa.Array:
    """Cast integers to I64; larger ones of U64 become the largest, which no calendar holds either."""
    if pt.is_uint64(column.type):
        column = pc.min_element_wise(column, pa.scalar(2**63 - 1, pa.uint64()), skip_nulls=False)
    return column.cast(pa.int64())


def _in_calendar(numbers: pa.Array, target: pa.DataType) -> ConvertedColumn:
    """Take numbers for days or milliseconds since 1970; those outside of the years 1 to 9999 are wrong."""
    in_days = pt.is_date32(target)
    first, last = (FIRST_DAY, LAST_DAY) if in_days else (FIRST_MILLISECOND, LAST_MILLISECOND)
    kept = checked(numbers, pc.or_(pc.less(numbers, first), pc.greater(numbers, last)))
    return ConvertedColumn(kept.values.cast(pa.int32() if in_days else pa.int64()).view(target), kept.wrong)


def _dates_of_text(column: pa.Array) -> ConvertedColumn:
    try:
        return _dates(column.cast(pa.date32()))
    except pa.ArrowInvalid:
        return one_by_one(column, pa.date32(), parse_date)


def _datetimes_of_text(column: pa.Array) -> ConvertedColumn:
    for pattern, target in ((_ZONED, pa.timestamp("ms", "UTC")), (_TIMESTAMP + "$", pa.timestamp("ms"))):
        if pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py():
            try:
                return _datetimes(column.cast(target))
            except pa.ArrowInvalid:
                break
    found = one_by_one(column, pa.int64(), lambda text: milliseconds_of(parse_datetime(text)))
    return ConvertedColumn(found.values.view(pa.date64()), found.wrong)


# Lists and vectors ---------------------------------------------------------------------------------


def _lists(column: pa.Array, type_: Type) -> ConvertedColumn:
    offsets, items = _items(column)
    found = coerced(items, type_.element)
    bad_items = either(items.is_null() if items.null_count else None, found.wrong)
    values = pa.ListArray.from_arrays(offsets, found.values, type=arrow_type(type_), mask=_nulls(column))
    return ConvertedColumn(values) if bad_items is None else checked(values, _having(offsets, bad_items))


def _vectors(column: pa.Array, type_: Type) -> ConvertedColumn:
    offsets, items = _items(column)
    if not (_is_number(items.type) or pt.is_null(items.type)):
        raise ConversionError(str(column.type))
    found = coerced(items, Type(Scalar.F32))
    finite = pc.fill_null(pc.is_finite(found.values), fill_value=False)
    wrong = pc.and_(column.is_valid(), pa.array(np.diff(offsets) != type_.dimension))
    if not pc.all(finite, min_count=0).as_py():
        wrong = pc.or_(wrong, _having(offsets, pc.invert(finite)))
    kept = checked(pa.ListArray.from_arrays(offsets, found.values, mask=_nulls(column)), wrong)
    return ConvertedColumn(kept.values.cast(arrow_type(type_)), kept.wrong)


def _items(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return where the elements of each list start, and the elements; a null has none."""
    if not _is_list(column.type):
        raise ConversionError(str(column.type))
    lengths = pc.if_else(column.is_valid(), pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.array(offsets, pa.int32()), plain(column.flatten())


def _is_list(type_: pa.DataType) -> bool:
    kinds = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
    return any(is_kind(type_) for is_kind in kinds)


def _nulls(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _having(offsets: pa.Array, marks: pa.Array) -> pa.Array:
    """Mark the lists that have a marked element."""
    counts = np.concatenate([[0], np.cumsum(marks.to_numpy(zero_copy_only=False))])
    places = offsets.to_numpy()
    return pa.array(counts[places[1:]] > counts[places[:-1]])


def either(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    if one is None or other is None:
        return other if one is None else one
    return pc.or_(one, other)


# Lines of JSON -------------------------------------------------------------------------------------

Lines: TypeAlias = pa.BinaryArray
"""Lines with their line ends, so that any selection of them is a text of lines again."""


def parsed(lines: Lines, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Parse lines that hold one object each, or raise; `unexpected` fields are "error" or "ignore"."""
    text = lines.buffers()[2].slice(0, lines.total_values_length)
    table = pj.read_json(
        pa.BufferReader(text),
        # One block and one thread: Arrow infers per block, and tasks are parallel already.
        read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )
    if table.num_rows != len(lines):
        raise ConversionError("a line holds more or less than one object")
    return table


def parse_type(type_: Type, temporal: pa.DataType | None) -> pa.DataType:
    """Return the Arrow type to parse a property as, the one closest to JSON; dates are parsed as `temporal`."""
    if type_.is_vector:
        return pa.list_(pa.float64())
    if type_.is_blob:
        return pa.string()
    # Numbers are rounded to 32 bits by way of 64, as everywhere, so that all paths give the same F32.
    scalar = temporal or (pa.float64() if type_.scalar in FLOATS else arrow_type(Type(type_.scalar)))
    return pa.list_(scalar) if type_.is_list else scalar


def clean(column: pa.Array, type_: Type) -> pa.Array:
    """Convert a parsed column to the values that the property stores, or raise."""
    found = coerced(column, type_)
    if found.wrong is not None:
        raise ConversionError("a value does not fit")
    if type_.scalar in FLOATS and not pc.all(pc.is_finite(_flat(found.values)), min_count=0).as_py():
        raise ConversionError("not JSON: Arrow accepts NaN and Infinity")
    return found.values


def _flat(values: pa.Array) -> pa.Array:
    return values.flatten() if pa.types.is_list(values.type) else values


# Words of bytes ------------------------------------------------------------------------------------

WORD = 8
BYTE_MASKS = np.array([(1 << (8 * count)) - 1 for count in range(WORD)] + [2**64 - 1], np.uint64)
"""Keeps so many bytes of a word: the last word of a text reads on into the next one."""


def overlapping_words(data: pa.Buffer | None) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the bytes as overlapping words: word i is made of the bytes i to i + 7."""
    raw = b"" if data is None else memoryview(data)
    padded = np.empty(len(raw) + WORD, np.uint8)
    padded[: len(raw)] = np.frombuffer(raw, np.uint8)
    padded[len(raw) :] = 0
    return np.ndarray((len(raw) + 1,), np.dtype("<u8"), padded.data, 0, (1,))
