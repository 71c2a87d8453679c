"""The base class of all errors, and places in source text."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, dataclass_transform

SHOWN = 20  # of a list of problems in a message
# Generated sources have lines of megabytes; an error must still fit a terminal and a log.
_CLIP = 100
_ZERO_WIDTH = frozenset({"Mn", "Me", "Cf"})


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a source text: 1-based line and column (in characters), and the line itself.

    For a long line, `text` is the part around the position and `skipped` the number of characters before that part.
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
        """Return the source line with carets under the position; a long line is clipped around it."""
        offset = self.column - 1 - self.skipped
        start = max(0, offset - _CLIP // 2) if len(self.text) > _CLIP else 0
        # Control characters of a source could move the cursor, or colour the terminal that prints the error.
        shown = "".join(char if char.isprintable() else " " for char in self.text[start : start + _CLIP])
        # A span may go on in the next line: the carets end with the text that is shown.
        carets = min(self.length, len(shown) - (offset - start))
        pad = _width(shown[: offset - start])
        under = _width(shown[offset - start : offset - start + carets])
        gutter = str(self.line)
        return f"{gutter} | {shown}\n{' ' * len(gutter)} | {' ' * pad}{'^' * max(1, under)}"


def _width(text: str) -> int:
    """Count the terminal columns that `text` takes."""
    return sum(
        0 if unicodedata.category(char) in _ZERO_WIDTH else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem in a source text."""

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


def _positional(*, kw_only: Literal[False]) -> Any:  # noqa: ARG001 - read by type checkers only
    """Mark a field as positional for type checkers; all others are keyword-only."""
    return ""


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(_positional,))
class _Declared:
    """Makes type checkers derive the signature of a subclass from its annotations.

    The dataclass decorator would do the same at run time, but it compiles an `__init__` per class: some 50 ms for all
    errors, at every start of every command.
    """


class OmnigraphError(Exception, _Declared):
    """Base class of all errors. `code` is stable and meant for programs, `str()` is meant for people.

    A subclass declares its fields as annotations, optional ones with a default. They are passed by keyword, become
    attributes, and make up `details()`. A missing or misspelt field is a type error for mypy and a TypeError at run
    time.
    """

    # The defaults of an error that no subclass classifies: the fault is ours, not the caller's.
    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    field_names: ClassVar[tuple[str, ...]] = ()

    message: str = _positional(kw_only=False)
    hint: str | None = None

    def __init_subclass__(cls, *, code: str, status: int | None = None) -> None:
        cls.code = code
        cls.http_status = cls.http_status if status is None else status
        # Inherited fields come first. Only own annotations are added: resolving types here would cost every start.
        cls.field_names = tuple(dict.fromkeys((*cls.field_names, *inspect.get_annotations(cls))))
        cls.__module__ = "omnigraph.errors"  # where users import it from, and what a traceback shows

    def __init__(self, message: str, *, hint: str | None = None, **fields: Any) -> None:
        # mypy checks calls in this code base; this checks fields that come from an answer, see `api.problems`.
        optional = {name for name in self.field_names if hasattr(type(self), name)}
        if fields.keys() | optional != set(self.field_names):
            raise TypeError(f"{type(self).__name__} takes the fields {self.field_names}, not {tuple(fields)}")
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.__dict__.update(fields)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own way calls the class with `args` alone, which lack the fields.
        return _rebuild, (type(self), self.message, self.hint, self._fields())

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.field_names}

    def details(self) -> dict[str, Any]:
        """Return the fields a program needs to act on this error, beyond its code and message."""
        return self._fields()


OmnigraphError.__module__ = "omnigraph.errors"


def _rebuild(cls: type[OmnigraphError], message: str, hint: str | None, fields: dict[str, Any]) -> OmnigraphError:
    return cls(message, hint=hint, **fields)


def shown_lines(problems: Sequence[object], count: int | None = None) -> str:
    """List the first problems, one per indented line, and count the rest; `count` is the number of all."""
    shown = "\n".join(f"  {problem}" for problem in problems[:SHOWN])
    rest = (len(problems) if count is None else count) - SHOWN
    return f"{shown}\n  and {rest:,} more" if rest > 0 else shown
