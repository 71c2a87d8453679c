"""Case files of mutations: queries on a small graph, and what the last one of them must do.

    === M5 a sentence that says what is expected
    query q($n: String) { insert Person { name: $n, age: 22 } }
    //? {"n": "Eve"}
    //! 1/0
    //! + Person age=22 name=Eve

Queries before the last one prepare the graph. `//?` gives parameters to all of them. The `//!` lines end a case: either
the counts of nodes and edges and every row that goes (-) or comes (+), or the error with its class, what kind it is of
its class, its place (`-` if it has none) and a fragment of its message:

    //! ConstraintError range 1:38 @range violation on User.age

`M5` and `E17` are the numbers of the behaviour that a case shows, of the language's and of the engine's list.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnigraph.errors import CompileError, ConstraintError, OmnigraphError, PlacedError

_COUNTS = re.compile(r"(\d+)/(\d+)")
_ERROR = re.compile(r"(\w+Error) (\S+) (\S+) (.+)")


@dataclass(frozen=True, slots=True)
class MutationCase:
    """Queries, their parameters, and the lines that say what must come of the last one."""

    name: str
    source: str
    parameters: dict[str, Any]
    expected: tuple[str, ...]
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"

    @property
    def counts(self) -> tuple[int, int] | None:
        """How many nodes and edges it must affect; None if it must fail."""
        found = _COUNTS.fullmatch(self.expected[0])
        return (int(found[1]), int(found[2])) if found else None

    @property
    def queries(self) -> list[str]:
        return re.findall(r"^query (\w+)", self.source, re.MULTILINE)

    def check(self, error: OmnigraphError) -> None:
        """Fail unless the error is the one that the case expects."""
        (line,) = self.expected
        wanted = _ERROR.fullmatch(line)
        assert wanted, f"{self}: cannot read `{line}`"
        found = spelled(error)
        assert (found[:3], wanted[4] in found[3]) == (wanted.groups()[:3], True), f"expected {line}, found {found}"


def spelled(error: OmnigraphError) -> tuple[str, str, str, str]:
    """The class of an error, what kind it is of its class, its place, and its message."""
    kind, place = error.code, None
    if isinstance(error, CompileError):
        (diagnostic,) = error.diagnostics
        kind, place = diagnostic.code, diagnostic.place
    elif isinstance(error, PlacedError):
        place = error.place
    if isinstance(error, ConstraintError):
        (violation,) = error.violations
        kind = violation.rule
    return type(error).__name__, kind, f"{place.line}:{place.column}" if place else "-", error.message


def load_mutation_cases(path: Path) -> list[MutationCase]:
    blocks = re.split(r"^=== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    starts = [number for number, line in enumerate(path.read_text().splitlines(), 1) if line.startswith("=== ")]
    return [_case(path.name, line, block) for line, block in zip(starts, blocks[1:], strict=True)]


def _case(file: str, line: int, block: str) -> MutationCase:
    name, *lines = block.strip().split("\n")
    marks = [text[4:] for text in lines if text.startswith("//! ")]
    assert marks, f"{file}:{line}: the case does not say what it expects"
    parameters = json.loads(next((text[4:] for text in lines if text.startswith("//? ")), "{}"))
    source = "\n".join(text for text in lines if not text.startswith(("//! ", "//? ")))
    return MutationCase(name, source, parameters, tuple(marks), file, line)
