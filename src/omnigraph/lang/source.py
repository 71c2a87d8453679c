"""Source text: decoding, positions in it, and problems found in it."""

from __future__ import annotations

import codecs
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

from omnigraph.errors import Diagnostic, FileAccessError, Place, SourceError

# Generous: a query with 8,192 inserts, the maximum, takes about half a megabyte.
MAX_SOURCE_BYTES = 4 * 1024 * 1024
_SHOWN = 200
_LONGEST_MESSAGE = 500
_MANY = 100


class Span(NamedTuple):
    """A half-open range of character offsets."""

    start: int
    end: int


NOWHERE = Span(0, 0)


class Name(str):
    """A word of the source with its span. Compares and hashes as its text."""

    __slots__ = ("span",)
    span: Span

    def __new__(cls, text: str, span: Span = NOWHERE) -> Self:
        name = super().__new__(cls, text)
        name.span = span
        return name


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class TreeNode:
    """A part of a syntax tree, of a catalog or of a plan: each subclass is a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        # The methods below stand here once. The decorator would compile them for each of a hundred classes, at every
        # start of every command; slots would make each class twice.
        dataclass(frozen=True, eq=False, repr=False)(cls)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _compared(self) -> tuple[object, ...]:
        return tuple(getattr(self, one.name) for one in fields(self) if one.compare)


class Rejection(Exception):  # noqa: N818 - never leaves lang/: it becomes a Diagnostic at the edge
    """A problem found at a span; the entry points, which know the source, turn it into a Diagnostic."""

    def __init__(
        self, code: str, message: str, span: Span, *, hint: str | None = None, expected: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.span = span
        self.hint = hint
        self.expected = expected


@dataclass(frozen=True)
class Source:
    """A text and the name of the file it came from."""

    text: str
    file: str = "<text>"

    def __post_init__(self) -> None:
        """Reject text that cannot be written back as UTF-8."""
        nul = self.text.find("\0")
        if nul >= 0:
            raise self._unusable(
                nul, "a NUL character is not allowed in source text", "remove it, or check that this is a text file"
            )
        # Most sources are ASCII, where the number of bytes is known without encoding.
        if self.text.isascii():
            size = len(self.text)
        else:
            try:
                size = len(self.text.encode())
            except UnicodeEncodeError as error:
                problem = f"lone surrogate U+{ord(self.text[error.start]):04X}"
                raise self._unusable(error.start, problem, "source text must be valid Unicode") from None
        if size > MAX_SOURCE_BYTES:
            raise _too_large(self.file)

    @classmethod
    def decode(cls, data: bytes, file: str = "<bytes>") -> Source:
        """Decode UTF-8, with or without a byte order mark."""
        if len(data) > MAX_SOURCE_BYTES:
            raise _too_large(file)
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise _undecodable(file, "the file is UTF-16", b"")
        body = data.removeprefix(codecs.BOM_UTF8)
        try:
            return cls(body.decode(), file)
        except UnicodeDecodeError as error:
            # Report the offset in the file, with the byte order mark counted.
            offset = len(data) - len(body) + error.start
            bad = f"byte 0x{data[offset]:02x} at offset {offset} is not UTF-8"
            raise _undecodable(file, bad, body[: error.start]) from None

    @classmethod
    def read(cls, path: str | Path) -> Source:
        """Read a source file; never more than the maximum size."""
        file = str(path)
        try:
            with Path(path).open("rb") as stream:
                # One byte more than allowed is enough to know that it is too large.
                data = stream.read(MAX_SOURCE_BYTES + 1)
        except OSError as error:
            reason = error.strerror or str(error)
            raise FileAccessError(f"cannot read {file}: {reason}", path=file, hint="check the path") from error
        except ValueError as error:
            raise FileAccessError(f"cannot read {file!r}: {error}", path=file, hint="check the path") from error
        return cls.decode(data, file)

    @cached_property
    def _line_starts(self) -> array[int]:
        # An array, not a list: a source of 4 MiB can have four million lines.
        starts, at = array("I", [0]), self.text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = self.text.find("\n", at + 1)
        return starts

    def place(self, span: Span) -> Place:
        line = bisect_right(self._line_starts, span.start)
        start = self._line_starts[line - 1]
        newline = self.text.find("\n", span.start)
        end = newline if newline >= 0 else len(self.text)
        column = span.start - start
        # A schema on one line may have megabytes; keep only what a message can show.
        first, last = max(start, span.start - _SHOWN), min(end, span.start + _SHOWN)
        text = self.text[first:last].rstrip("\r")
        end = first + len(text) if last == end else end
        length = max(1, min(span.end - span.start, end - span.start))
        return Place(self.file, line, column + 1, length, text, first - start)

    def diagnostic(self, problem: Rejection) -> Diagnostic:
        return Diagnostic(
            problem.code, _clipped(problem.message), self.place(problem.span), problem.hint, problem.expected
        )

    def _unusable(self, offset: int, message: str, hint: str) -> SourceError:
        return SourceError.of([self.diagnostic(Rejection("S1", message, Span(offset, offset + 1), hint=hint))])


def _too_large(file: str) -> SourceError:
    message = f"the text is too large: a source may have at most {MAX_SOURCE_BYTES:,} bytes"
    hint = "split it into several files; load bulk data with `load`"
    return SourceError.of([Diagnostic("S1", message, Place(file, 1, 1, 1, ""), hint)])


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def _undecodable(file: str, message: str, before: bytes) -> SourceError:
    line = before.count(b"\n") + 1
    column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
    return SourceError.of([Diagnostic("S1", message, Place(file, line, column, 1, ""), "save the file as UTF-8")])


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """Return a hint with the candidate closest to `word`, or None if none is close."""
    by_fold = {candidate.lower(): candidate for candidate in sorted(candidates)}
    folded = word.lower()[:64]
    if len(by_fold) > _MANY:  # difflib is slow: compare only candidates with the same first letters
        alike = [name for name in by_fold if name[:2] == folded[:2] and abs(len(name) - len(folded)) <= 2]  # noqa: PLR2004
        by_fold = {name: by_fold[name] for name in alike[:_MANY]}
    close = get_close_matches(folded, by_fold, n=1, cutoff=0.6)
    return f"did you mean `{by_fold[close[0]]}`?" if close else None


def source_given(source: str | os.PathLike[str], suffix: str, name: str) -> Source:
    """Read the file if `source` is a path: a path object, or one line with the suffix; otherwise use the text."""
    is_path = not isinstance(source, str) or (source.endswith(suffix) and "\n" not in source)
    return Source.read(os.fspath(source)) if is_path else Source(str(source), name)
