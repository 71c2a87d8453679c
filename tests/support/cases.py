"""Case files: many small sources in one file, each with the diagnostics it must produce.

    === a sentence that says what is expected
    node Person { name: Strin }
    //! P1 1:21 unexpected `Strin` | did you mean `String`?

The `//!` lines end a case and are complete: `//! ok`, or one line per diagnostic, in order, with its code, its place
(lines counted from the first line of the case's source), a fragment of its message and, behind ` | `, one of its hint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omnigraph.errors import Diagnostic

_HEADER, _MARK, _OK = "=== ", "//! ", "//! ok"
_EXPECTED = re.compile(r"//! ([A-Z]\d+) (\d+):(\d+) (.+?)(?: \| (.+))?")


@dataclass(frozen=True, slots=True)
class Expected:
    """One diagnostic as a case file writes it."""

    code: str
    line: int
    column: int
    fragment: str
    hint: str | None

    def matches(self, found: Diagnostic) -> bool:
        place = found.place.line, found.place.column
        texts = self.fragment in found.message and (self.hint or "") in (found.hint or "")
        return found.code == self.code and place == (self.line, self.column) and texts

    def __str__(self) -> str:
        return f"{self.code} {self.line}:{self.column} {self.fragment}" + (f" | {self.hint}" if self.hint else "")


@dataclass(frozen=True, slots=True)
class Case:
    """A source and what it must produce; `expected` is empty if it must be accepted."""

    name: str
    source: str
    expected: tuple[Expected, ...]
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"

    def check(self, found: Sequence[Diagnostic]) -> None:
        """Fail unless `found` is exactly what the case expects."""
        same = len(found) == len(self.expected) and all(map(Expected.matches, self.expected, found))
        written = [_written(diagnostic) for diagnostic in found] or ["ok"]
        wanted = [str(expected) for expected in self.expected] or ["ok"]
        assert same, "\n".join([str(self), self.source, "expected:", *wanted, "found:", *written])


def load_cases(path: Path) -> list[Case]:
    """Read a case file; `str(case)` makes a readable test id."""
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    starts = [at for at, line in enumerate(lines) if line.startswith(_HEADER)]
    assert starts, f"{path.name} holds no case"
    stops = [*starts[1:], len(lines)]
    return [_case(path.name, start + 1, lines[start:stop]) for start, stop in zip(starts, stops, strict=True)]


def _case(file: str, line: int, lines: list[str]) -> Case:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    end = len(lines)
    while lines[end - 1].startswith(_MARK):
        end -= 1
    marks, source = lines[end:], lines[1:end]
    assert not any(text.startswith((_MARK, "===")) for text in source), f"{file}:{line}: two cases run into each other"
    assert marks, f"{file}:{line}: the case does not end with what it expects"
    expected = () if marks == [_OK] else tuple(_expected(mark, f"{file}:{line}") for mark in marks)
    return Case(lines[0].removeprefix(_HEADER), "\n".join([*source, ""]), expected, file, line)


def _expected(mark: str, where: str) -> Expected:
    match = _EXPECTED.fullmatch(mark)
    assert match, f"{where}: cannot read `{mark}`"
    code, line, column, fragment, hint = match.groups()
    return Expected(code, int(line), int(column), fragment, hint)


def _written(found: Diagnostic) -> str:
    """Write a diagnostic the way a case file would."""
    hint = f" | {found.hint}" if found.hint else ""
    return f"{found.code} {found.place.line}:{found.place.column} {found.message}{hint}"
