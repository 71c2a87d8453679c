import datetime as dt
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.core.values import parse_date, parse_datetime
from omnigraph.errors import LiteralError


def _utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "text, iso",
    [
        ("2024-01-05", "2024-01-05"),
        ("2024-1-5", "2024-01-05"),
        ("2024-12-5", "2024-12-05"),
        ("20240105", "2024-01-05"),
        ("2024-02-29", "2024-02-29"),
        ("0001-01-01", "0001-01-01"),
        ("9999-12-31", "9999-12-31"),
        ("1969-12-31", "1969-12-31"),
        ("2024-01-05T23:59:59Z", "2024-01-05"),
        ("2024-01-05 00:00", "2024-01-05"),
        ("2024-01-05T00:30:00+01:00", "2024-01-04"),
        ("2024-01-05T23:30:00-01:00", "2024-01-06"),
    ],
)
def test_a_date_is_read_and_a_longer_text_is_cut_to_its_day_in_utc(text: str, iso: str) -> None:
    date = parse_date(text)

    assert date == dt.date.fromisoformat(iso)
    assert type(date) is dt.date


@pytest.mark.parametrize(
    "text, iso",
    [
        ("2024-01-05T10:20:30Z", "2024-01-05T10:20:30"),
        ("2024-01-05T10:20:30z", "2024-01-05T10:20:30"),
        ("2024-01-05 10:20:30", "2024-01-05T10:20:30"),
        ("2024-01-05T10:20", "2024-01-05T10:20:00"),
        ("2024-01-05T10:20:30+02:00", "2024-01-05T08:20:30"),
        ("2024-01-05T10:20:30-0130", "2024-01-05T11:50:30"),
        ("2024-01-05 10:20:30 +05", "2024-01-05T05:20:30"),
        ("2024-01-05T10:20:30-00:00", "2024-01-05T10:20:30"),
        ("2024-01-01T00:00:00+23:59", "2023-12-31T00:01:00"),
        ("2024-12-31T23:59:59-00:01", "2025-01-01T00:00:59"),
        ("2024-01-05T10:20:30.5Z", "2024-01-05T10:20:30.500"),
        ("2024-01-05T10:20:30.123456789Z", "2024-01-05T10:20:30.123"),
        ("2024-01-05T23:59:59.999999+00:00", "2024-01-05T23:59:59.999"),
        ("2024-01-05T10:20:30.0009", "2024-01-05T10:20:30.000"),
        ("2024-01-05", "2024-01-05T00:00:00"),
        ("2024-1-5", "2024-01-05T00:00:00"),
        ("20240105", "2024-01-05T00:00:00"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00"),
        ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999"),
    ],
)
def test_a_date_time_is_read_to_the_millisecond_in_utc(text: str, iso: str) -> None:
    moment = parse_datetime(text)

    assert moment == _utc(iso)
    assert moment.tzinfo is dt.UTC


_NO_DAY = [
    "",
    " ",
    "2024",
    "2024-01",
    "2024-13-01",
    "2024-00-01",
    "2024-01-00",
    "2024-02-30",
    "2023-02-29",
    "1900-02-29",
    "20241301",
    "2024-001",
    "2024/01/05",
    "05-01-2024",
    "24-01-05",
    "2024-01-05 ",
    " 2024-01-05",
    "2024-01-05\n",
    "2024-01-05\x00",
    "\u0662\u0660\u0662\u0664-\u0660\u0661-\u0660\u0665",  # Arabic-Indic digits
    "\uff12\uff10\uff12\uff14\uff10\uff11\uff10\uff15",  # full-width digits
    "2024\u221201\u221205",  # minus signs
    "0000-01-01",
    "10000-01-01",
    "-2024-01-05",
    "+2024-01-05",
    "today",
]
_NO_TIME = [
    "2024-01-05T",
    "2024-01-05T10",
    "2024-01-05T10:2",
    "2024-01-05T24:00:00Z",
    "2024-01-05T10:60:00Z",
    "2024-01-05T10:20:60Z",
    "2024-01-05T10:20:30.Z",
    "2024-01-05T10:20:30,5Z",
    "2024-01-05T10:20:30+2",
    "2024-01-05T10:20:30+24:00",
    "2024-01-05T10:20:30+01:60",
    "2024-01-05T10:20:30 UTC",
    "2024-01-05T10:20:30Z\n",
    "2024-01-05T\u0661\u0660:20:30Z",
    "2024-02-30T10:20:30Z",
    "10000-01-01T00:00:00Z",
]


@pytest.mark.parametrize("text", [*_NO_DAY, *_NO_TIME])
def test_a_text_that_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(LiteralError, match="invalid Date literal") as caught:
        parse_date(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", [*_NO_DAY, *_NO_TIME])
def test_a_text_that_is_no_date_time_is_refused(text: str) -> None:
    with pytest.raises(LiteralError, match="invalid DateTime literal") as caught:
        parse_datetime(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"])
def test_an_offset_cannot_leave_the_calendar(text: str) -> None:
    with pytest.raises(LiteralError):
        parse_datetime(text)
    with pytest.raises(LiteralError):
        parse_date(text)


def test_a_long_text_is_clipped_in_the_error() -> None:
    with pytest.raises(LiteralError) as caught:
        parse_datetime("2024-01-05T" * 10_000)
    assert len(str(caught.value)) < 200


@given(st.text(alphabet="0123456789-:+.TZz \u0663", max_size=32))
def test_any_text_is_a_value_or_a_literal_error(text: str) -> None:
    for parse, kind in ((parse_date, dt.date), (parse_datetime, dt.datetime)):
        with suppress(LiteralError):
            assert type(parse(text)) is kind


@given(
    st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 12, 31)),  # noqa: DTZ001 - the zone is drawn below
    st.integers(-1439, 1439),
)
def test_what_python_writes_is_read_back_to_the_millisecond(moment: dt.datetime, offset: int) -> None:
    written = moment.replace(tzinfo=dt.timezone(dt.timedelta(minutes=offset)))

    cut = written.replace(microsecond=written.microsecond // 1000 * 1000)
    assert parse_datetime(written.isoformat()) == cut
    assert parse_date(written.isoformat(" ")) == cut.astimezone(dt.UTC).date()
