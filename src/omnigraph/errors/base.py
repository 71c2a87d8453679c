"""What every error has: a code, what happened, where, what to do next, and an HTTP status."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any, ClassVar, Self

_CLIP = 100
_ZERO_WIDTH = frozenset({"Mn", "Me", "Cf"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a source text: 1-based line and column (in characters), and the line itself.

    Of a long line `text` is the part around the place; `skipped` is how many characters stand before it.
    """

    file: str
    line: int
    column: int
    length: int
    text: str
    skipped: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def underlined(self) -> str:
        """Return the source line with carets under the place; a long line is clipped around it."""
        offset = self.column - 1 - self.skipped
        start = max(0, offset - _CLIP // 2) if len(self.text) > _CLIP else 0
        shown = "".join(char if char.isprintable() else " " for char in self.text[start : start + _CLIP])
        carets = min(self.length, len(shown) - (offset - start))
        pad = _width(shown[: offset - start])
        under = _width(shown[offset - start : offset - start + carets])
        gutter = str(self.line)
        return f"{gutter} | {shown}\n{' ' * len(gutter)} | {' ' * pad}{'^' * max(1, under)}"


def _width(text: str) -> int:
    """Terminal columns that `text` takes."""
    return sum(
        0 if unicodedata.category(char) in _ZERO_WIDTH else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


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
    """Root of the tree. `code` is stable and meant for programs, `str()` is meant for people.

    A subclass declares the fields a program needs as annotations; they are given by keyword, become attributes,
    and make up `details()`.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500

    def __init_subclass__(cls) -> None:
        cls.__module__ = "omnigraph.errors"  # where people import it from, and what a traceback shows

    def __init__(self, message: str, *, hint: str | None = None, **fields: Any) -> None:
        assert fields.keys() == set(fields_of(type(self))), f"{type(self).__name__} takes {fields_of(type(self))}"
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.__dict__.update(fields)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in fields_of(type(self))}
        return type(self).rebuilt, (self.message, self.hint, fields)

    @classmethod
    def rebuilt(cls, message: str, hint: str | None, fields: dict[str, Any]) -> Self:
        """Make the error again of what it consists of, as it comes from another process."""
        return cls(message, hint=hint, **fields)

    def details(self) -> dict[str, Any]:
        """Fields a program needs to act on this error, beyond its code and message."""
        return {name: getattr(self, name) for name in fields_of(type(self))}


OmnigraphError.__module__ = "omnigraph.errors"


def fields_of(cls: type[OmnigraphError]) -> tuple[str, ...]:
    """Name the declared fields, those of the base first."""
    declared = (name for owner in reversed(cls.__mro__) for name in vars(owner).get("__annotations__", ()))
    return tuple(name for name in dict.fromkeys(declared) if name not in ("code", "http_status"))
