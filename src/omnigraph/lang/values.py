"""Reading dates and date-times from text: one set of rules for literals, parameters and data."""

from __future__ import annotations

import datetime as dt
import re

from omnigraph.errors import LiteralError

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
        return _date(text) if len(text) <= _MAX_BARE_DATE else _datetime(text).date()
    except (ValueError, OverflowError):
        raise LiteralError(f"invalid Date literal '{_clip(text)}'", hint="write YYYY-MM-DD") from None


def parse_datetime(text: str) -> dt.datetime:
    """Read RFC 3339, with `T` or a space, to the millisecond in UTC; no zone means UTC, a bare date midnight."""
    try:
        if len(text) <= _MAX_BARE_DATE:
            return dt.datetime.combine(_date(text), dt.time(), dt.UTC)
        return _datetime(text)
    except (ValueError, OverflowError):
        hint = "write YYYY-MM-DDTHH:MM:SSZ"
        raise LiteralError(f"invalid DateTime literal '{_clip(text)}'", hint=hint) from None


def _date(text: str) -> dt.date:
    match = _DATE.fullmatch(text)
    if not match or not text.isascii():
        raise ValueError(text)
    year, month, day = (int(part) for part in match.groups() if part)
    return dt.date(year, month, day)


def _datetime(text: str) -> dt.datetime:
    match = _DATETIME.fullmatch(text)
    if not match or not text.isascii():
        raise ValueError(text)
    milliseconds = int((match["fraction"] or "").ljust(3, "0")[:3])
    time = dt.time(int(match["hour"]), int(match["minute"]), int(match["second"] or 0), milliseconds * 1000)
    return dt.datetime.combine(_date(match["date"]), time, _zone(match["zone"])).astimezone(dt.UTC)


def _zone(text: str | None) -> dt.timezone:
    if text is None or text in "Zz":
        return dt.UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    if int(digits[2:]) > _LAST_MINUTE:
        raise ValueError(text)
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return dt.timezone(dt.timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _clip(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"  # noqa: PLR2004 - what fits a line of an error
