"""The scalar types: which values each one accepts, and what it stores. Every converter goes by this table.

| scalar      | Python and JSON                  | CSV text                       | Arrow column                    |
|-------------|----------------------------------|--------------------------------|---------------------------------|
| String      | text                             | as it is                       | text                            |
| Bool        | true, false                      | true, false (any case), 1, 0   | boolean                         |
| I32 ... U64 | an integer in range              | decimal digits, maybe a sign   | whole numbers in range          |
| F32, F64    | a number that stays finite       | a decimal, maybe an exponent   | numbers, rounded; not too large |
| Date        | a date; text; days since 1970    | 2024-01-31, 20240131           | dates; midnights; days; text    |
| DateTime    | a date-time; text; ms since 1970 | 2024-01-31T12:00Z; UTC if bare | timestamps; dates; ms; text     |
| Blob        | base64:...                       | base64:...                     | binary; base64:...              |

`scalar_value` below is the first column. `formats/csv.py` and `formats/columns.py` convert whole columns with Arrow and
fall back to these functions value by value. This module imports neither Arrow nor numpy: the languages use it.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import TypeVar

from omnigraph.errors import LiteralError


class Scalar(StrEnum):
    """A base type, spelled as in the languages."""

    STRING = "String"
    BLOB = "Blob"
    BOOL = "Bool"
    I32 = "I32"
    I64 = "I64"
    U32 = "U32"
    U64 = "U64"
    F32 = "F32"
    F64 = "F64"
    DATE = "Date"
    DATETIME = "DateTime"
    VECTOR = "Vector"


INTEGER_BOUNDS = {
    Scalar.I32: (-(2**31), 2**31 - 1),
    Scalar.I64: (-(2**63), 2**63 - 1),
    Scalar.U32: (0, 2**32 - 1),
    Scalar.U64: (0, 2**64 - 1),
}
FLOATS = frozenset({Scalar.F32, Scalar.F64})
NUMERIC = FLOATS | INTEGER_BOUNDS.keys()
TEMPORAL = frozenset({Scalar.DATE, Scalar.DATETIME})

ScalarValue = str | bool | int | float | bytes | dt.date | dt.datetime
_Moment = TypeVar("_Moment", dt.date, dt.datetime)

_F32_LIMIT = 3.4028235677973366e38  # doubles from here on round to an infinite F32
_SHOWN = 40
_SHOWN_BITS = 1_000  # Python refuses to print integers of more than 4,300 digits


class ConversionError(ValueError):
    """A value does not fit. Becomes a public error where the property, parameter or column is known."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def scalar_value(scalar: Scalar, value: object) -> ScalarValue:
    """Convert a Python or JSON value to what the scalar stores, or raise ConversionError."""
    return _CONVERTERS[scalar](value)


# Numbers, texts and booleans -----------------------------------------------------------------------


def to_integer(scalar: Scalar, value: object) -> int:
    # True is an int to Python, but not a number in either language, nor in JSON.
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConversionError(f"expected an integer for {scalar}, got {kind_of(value)}")
    low, high = INTEGER_BOUNDS[scalar]
    if not low <= value <= high:
        raise exceeds(scalar, value, f"it holds {low} to {high}")
    return value


def to_float(scalar: Scalar, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConversionError(f"expected a number, got {kind_of(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConversionError("expected a finite number")
    if scalar is Scalar.F32 and not abs(number) < _F32_LIMIT:
        raise exceeds(scalar, value)
    return number


def to_number(scalar: Scalar, value: object) -> int | float:
    return to_integer(scalar, value) if scalar in INTEGER_BOUNDS else to_float(scalar, value)


def exceeds(scalar: Scalar, value: float, hint: str | None = None) -> ConversionError:
    is_short = isinstance(value, float) or value.bit_length() <= _SHOWN_BITS
    return ConversionError(f"{clipped(str(value)) if is_short else 'the value'} exceeds the {scalar} range", hint)


def to_text(value: object) -> str:
    if not isinstance(value, str):
        raise ConversionError(f"expected a string, got {kind_of(value)}")
    return value


def to_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ConversionError(f"expected true or false, got {kind_of(value)}")
    return value


# Dates and date-times ------------------------------------------------------------------------------

EPOCH_DATE = dt.date(1970, 1, 1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
FIRST_DAY, LAST_DAY = ((day - EPOCH_DATE).days for day in (dt.date.min, dt.date.max))
DAY_MILLISECONDS = 86_400_000
FIRST_MILLISECOND, LAST_MILLISECOND = FIRST_DAY * DAY_MILLISECONDS, (LAST_DAY + 1) * DAY_MILLISECONDS - 1
_MILLISECOND = dt.timedelta(milliseconds=1)


def milliseconds_of(moment: dt.datetime) -> int:
    """Return the milliseconds since 1970, rounded down."""
    return (moment - EPOCH) // _MILLISECOND


def moment_at(milliseconds: int) -> dt.datetime:
    return EPOCH + milliseconds * _MILLISECOND


def to_date(value: object) -> dt.date:
    if isinstance(value, str):
        return _parsed(parse_date, value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    days = to_integer(Scalar.I64, value)
    if not FIRST_DAY <= days <= LAST_DAY:
        raise exceeds(Scalar.DATE, days)
    return EPOCH_DATE + dt.timedelta(days=days)


def to_datetime(value: object) -> dt.datetime:
    if isinstance(value, str):
        return _parsed(parse_datetime, value)
    if isinstance(value, dt.datetime):
        return value
    milliseconds = to_integer(Scalar.I64, value)
    if not FIRST_MILLISECOND <= milliseconds <= LAST_MILLISECOND:
        raise exceeds(Scalar.DATETIME, milliseconds)
    return moment_at(milliseconds)


def _parsed(parse: Callable[[str], _Moment], text: str) -> _Moment:
    try:
        return parse(text)
    except LiteralError as error:
        raise ConversionError(error.message, error.hint) from None


_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})|(\d{4})(\d{2})(\d{2})")
_DATETIME = re.compile(
    r"(?P<date>\d{4}-\d{1,2}-\d{1,2}|\d{8})[T ](?P<hour>\d{2}):(?P<minute>\d{2})"
    r"(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?"
    r" ?(?P<zone>[Zz]|[+-]\d{2}:?\d{2}|[+-]\d{2})?"
)
_MAX_BARE_DATE = 10
_LAST_MINUTE = 59


def parse_date(text: str) -> dt.date:
    """Read `YYYY-MM-DD` (one-digit month or day allowed) or `YYYYMMDD`; a date-time is cut to its UTC date."""
    try:
        return _date_of(text) if len(text) <= _MAX_BARE_DATE else _datetime_of(text).date()
    except (ValueError, OverflowError):
        raise LiteralError(f"invalid Date literal '{clipped(text)}'", hint="write YYYY-MM-DD") from None


def parse_datetime(text: str) -> dt.datetime:
    """Read RFC 3339, with `T` or a space, to the millisecond in UTC; no zone means UTC, a bare date midnight."""
    try:
        if len(text) <= _MAX_BARE_DATE:
            return dt.datetime.combine(_date_of(text), dt.time(), dt.UTC)
        return _datetime_of(text)
    except (ValueError, OverflowError):
        hint = "write YYYY-MM-DDTHH:MM:SSZ"
        raise LiteralError(f"invalid DateTime literal '{clipped(text)}'", hint=hint) from None


def _date_of(text: str) -> dt.date:
    match = _DATE.fullmatch(text)
    if not match or not text.isascii():  # \d matches the digits of every script
        raise ValueError(text)
    year, month, day = (int(part) for part in match.groups() if part)
    return dt.date(year, month, day)


def _datetime_of(text: str) -> dt.datetime:
    match = _DATETIME.fullmatch(text)
    if not match or not text.isascii():
        raise ValueError(text)
    milliseconds = int((match["fraction"] or "").ljust(3, "0")[:3])
    time = dt.time(int(match["hour"]), int(match["minute"]), int(match["second"] or 0), milliseconds * 1000)
    return dt.datetime.combine(_date_of(match["date"]), time, _zone(match["zone"])).astimezone(dt.UTC)


def _zone(text: str | None) -> dt.timezone:
    if text is None or text in "Zz":
        return dt.UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    if int(digits[2:]) > _LAST_MINUTE:
        raise ValueError(text)
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return dt.timezone(dt.timedelta(minutes=-minutes if text[0] == "-" else minutes))


# Blobs ---------------------------------------------------------------------------------------------

BASE64 = "base64:"
"""What the text of a Blob starts with, in every format."""


def blob_text(content: bytes) -> str:
    return BASE64 + base64.b64encode(content).decode()


def blob_content(value: object) -> bytes:
    """Read the text of a Blob."""
    text = to_text(value)
    if not text.startswith(BASE64):
        raise ConversionError("an external blob is not allowed", f"pass its content as `{BASE64}...`")
    try:
        return base64.b64decode(text.removeprefix(BASE64), validate=True)
    except (binascii.Error, ValueError):
        raise ConversionError("invalid base64 blob data", "use the standard alphabet, padded") from None


_CONVERTERS: Mapping[Scalar, Callable[[object], ScalarValue]] = {
    Scalar.STRING: to_text,
    Scalar.BOOL: to_bool,
    **{scalar: partial(to_integer, scalar) for scalar in INTEGER_BOUNDS},
    **{scalar: partial(to_float, scalar) for scalar in FLOATS},
    Scalar.DATE: to_date,
    Scalar.DATETIME: to_datetime,
    Scalar.BLOB: blob_content,
}


# Texts of CSV --------------------------------------------------------------------------------------

INTEGER_TEXT = r"^[+-]?[0-9]+$"
DECIMAL_TEXT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
MAX_DIGITS = 400  # more than any number that a float can hold


def number_in(text: str) -> int | float | str:
    """Read the number that a text spells; any other text is returned as it is."""
    if re.match(INTEGER_TEXT, text) and len(text) < MAX_DIGITS:
        return int(text)
    return float(text) if re.match(DECIMAL_TEXT, text) else text


# Words for messages --------------------------------------------------------------------------------


def kind_of(value: object) -> str:
    """Name the kind of a value as JSON has it, for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    for kind, name in (
        (int | float, "a number"),
        (str, "a string"),
        (list | tuple, "an array"),
        (Mapping, "an object"),
    ):
        if isinstance(value, kind):
            return name
    return f"a Python {type(value).__name__}"


def clipped(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
