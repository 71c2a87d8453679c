"""Every error a user can meet: its code, what happened, what to do next, and its HTTP status.

OmnigraphError                       the root; catch this to catch everything of ours
├── CompileError                     text in one of the two languages that cannot be used; has diagnostics
│   ├── SourceError                  not usable as text at all: encoding, NUL byte, size
│   ├── SchemaError                  .pg: syntax (P1), static rules (P2-P36), catalog (C1-C5)
│   └── QueryError                   .gq: syntax (Q000), typing (T0-T24), mixed mutation (D2)
├── QueryNotFoundError               the file holds no query of that name, or no single one to default to
├── ParameterError                   a query parameter is missing or does not fit its declared type
├── LiteralError                     a text that is not a value of its type (dates, date-times)
├── IdentityError                    a value that cannot identify an entity
└── FileAccessError                  a file on the command line that cannot be read or written
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

_CLIP = 100


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a source text: 1-based line and column (in characters), and the line itself."""

    file: str
    line: int
    column: int
    length: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def underlined(self) -> str:
        """Return the source line with carets under the place; a long line is clipped around it."""
        offset = self.column - 1
        start = max(0, offset - _CLIP // 2) if len(self.text) > _CLIP else 0
        shown = self.text[start : start + _CLIP].replace("\t", " ")
        carets = min(self.length, len(shown) - (offset - start))
        pad = _width(shown[: offset - start])
        under = _width(shown[offset - start : offset - start + carets])
        gutter = str(self.line)
        return f"{gutter} | {shown}\n{' ' * len(gutter)} | {' ' * pad}{'^' * max(1, under)}"


def _width(text: str) -> int:
    """Terminal columns that `text` takes."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing wrong with a source text."""

    code: str
    message: str
    place: Place
    hint: str | None = None
    expected: tuple[str, ...] = ()

    def headline(self) -> str:
        return f"{self.place}: {self.code}: {self.message}"

    def __str__(self) -> str:
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{self.headline()}\n{self.place.underlined()}{hint}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "length": self.place.length,
            "hint": self.hint,
            "expected": list(self.expected),
        }


class OmnigraphError(Exception):
    """Root of the tree. `code` is stable and meant for programs, `str()` is meant for people."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def details(self) -> dict[str, Any]:
        """Fields a program needs to act on this error, beyond its code and message."""
        return {}


class CompileError(OmnigraphError):
    """Source text that cannot be used; `diagnostics` says why and where, first problem first."""

    code = "bad_source"
    http_status = 400

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        assert diagnostics, "a compile error without a diagnostic says nothing"
        self.diagnostics = tuple(diagnostics)
        first = self.diagnostics[0]
        super().__init__(first.message, hint=first.hint)

    def __str__(self) -> str:
        return "\n\n".join(str(diagnostic) for diagnostic in self.diagnostics)

    def __reduce__(self) -> tuple[type[CompileError], tuple[tuple[Diagnostic, ...]]]:
        return type(self), (self.diagnostics,)

    def details(self) -> dict[str, Any]:
        return {"diagnostics": [diagnostic.to_dict() for diagnostic in self.diagnostics]}


class SourceError(CompileError):
    """The bytes are not usable source text: wrong encoding, a NUL character, too large."""

    code = "source_unreadable"


class SchemaError(CompileError):
    """A `.pg` schema that does not parse or breaks a static rule."""

    code = "schema_invalid"


class QueryError(CompileError):
    """A `.gq` query that does not parse or does not type-check."""

    code = "query_invalid"


class QueryNotFoundError(OmnigraphError):
    """The requested query is not in the file."""

    code = "query_not_found"
    http_status = 400

    def __init__(self, message: str, *, available: Sequence[str], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.available = tuple(available)

    def details(self) -> dict[str, Any]:
        return {"available": list(self.available)}


class ParameterError(OmnigraphError):
    """A query parameter is missing, or its value does not fit the declared type."""

    code = "parameter_invalid"
    http_status = 400

    def __init__(self, message: str, *, parameter: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.parameter = parameter

    def details(self) -> dict[str, Any]:
        return {"parameter": self.parameter}


class LiteralError(OmnigraphError):
    """A text that is not a value of its type."""

    code = "literal_invalid"
    http_status = 400


class IdentityError(OmnigraphError):
    """A value that cannot identify an entity."""

    code = "identity_invalid"
    http_status = 400


class FileAccessError(OmnigraphError):
    """A file named on the command line that cannot be read or written."""

    code = "file_unreadable"
    http_status = 400

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path

    def details(self) -> dict[str, Any]:
        return {"path": self.path}
