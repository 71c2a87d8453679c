"""How a CSV file is written: its separators, its header, and the texts of its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from omnigraph.errors import OptionError
from omnigraph.lang.source import did_you_mean

_SPELLINGS = {"\\t": "\t", "tab": "\t"}  # what can be typed in a shell


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How a CSV file is written.

    `nulls` are texts that mean null, besides the empty one; in quotes they are texts. `trim` removes blanks around
    values. `names` are those of the columns; then the first line is a record, unless `header` says otherwise.
    `date_format` and `datetime_format` are those of `strptime`; a moment without a zone is in UTC.
    """

    delimiter: str = ","
    quote: str = '"'
    nulls: tuple[str, ...] = ()
    trim: bool = False
    names: tuple[str, ...] = ()
    header: bool = True
    decimal: str = "."
    date_format: str | None = None
    datetime_format: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Self:
        """Read the options of a call or a mapping, or raise OptionError."""
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise _wrong("", f"must be a mapping of options, not {given!r:.80}", 'write {"delimiter": ";"}')
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise _wrong(str(name), "is unknown", did_you_mean(str(name), known) or f"use {', '.join(known)}")
        options: dict[str, Any] = {
            name: _READERS[name](name, value) for name, value in given.items() if value is not None
        }
        return cls(**{"header": not options.get("names"), **options}).checked()

    def checked(self) -> Self:
        """Return the dialect, or raise OptionError if its options contradict each other."""
        if self.quote == self.delimiter:
            raise _wrong("quote", f"is the delimiter, too: {self.quote!r}", "choose another character for one of them")
        if self.decimal in (self.delimiter, self.quote):
            raise _wrong("decimal", f"is the delimiter or the quote, too: {self.decimal!r}", "choose another delimiter")
        if not self.header and not self.names:
            raise _wrong("header", "is false, and there are no names", "pass the names of the columns, too")
        return self

    @property
    def quote_byte(self) -> bytes:
        return self.quote.encode()


def _character(name: str, value: object) -> str:
    text = _SPELLINGS.get(value, value) if isinstance(value, str) else ""
    if len(text) != 1 or not text.isascii() or text in "\r\n":
        raise _wrong(name, f"must be one ASCII character, not {value!r:.40}", "for a tab, write \\t or tab")
    return text


def _decimal(name: str, value: object) -> str:
    if value not in (".", ","):
        raise _wrong(name, f"must be a point or a comma, not {value!r:.40}", 'write "." or ","')
    return str(value)


def _texts(name: str, value: object) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(text, str) for text in found):
        raise _wrong(name, f"must be a list of texts, not {value!r:.80}", 'write ["NA", "NULL"]')
    return tuple(found)


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, f"must be true or false, not {value!r:.40}", "leave it out, or write true")
    return value


def _format(name: str, value: object) -> str:
    if not isinstance(value, str) or "%" not in value:
        raise _wrong(name, f"must be a format of strptime, not {value!r:.80}", 'write "%d.%m.%Y"')
    return value


_READERS = {
    "delimiter": _character,
    "quote": _character,
    "nulls": _texts,
    "trim": _switch,
    "names": _texts,
    "header": _switch,
    "decimal": _decimal,
    "date_format": _format,
    "datetime_format": _format,
}


def _wrong(name: str, why: str, hint: str) -> OptionError:
    option = f"csv.{name}" if name else "csv"
    return OptionError(f"the CSV option {name!r} {why}" if name else f"csv {why}", option=option, hint=hint)
