"""Choose the tests against a mutant: those that execute its statement, one of each function and the cheap first."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Map:
    """Which tests execute each line, and the seconds of the processor that each test takes."""

    lines: Mapping[str, Mapping[int, Sequence[str]]]
    seconds: Mapping[str, float]

    @classmethod
    def read(cls, file: Path) -> Map:
        found = json.loads(file.read_text())
        lines = {
            name: {int(line): tests for line, tests in by_line.items()} for name, by_line in found["lines"].items()
        }
        return cls(lines, found["seconds"])

    def tests(self, file: str, source: str, line: int) -> list[str]:
        """Return the tests of a statement; of one that runs when its module is imported, those of the whole module."""
        by_line = self.lines.get(file, {})
        first, last = statement(source, line)
        found = {test for number in range(first, last + 1) for test in by_line.get(number, ())}
        if _runs_at_import(source, line):
            found |= {test for tests in by_line.values() for test in tests}
        return self._cheapest_first(found)

    def _cheapest_first(self, tests: set[str]) -> list[str]:
        """Sort. A second case of a function comes behind the first case of every other one."""
        seen: Counter[str] = Counter()
        place: dict[str, tuple[int, float]] = {}
        for test in sorted(tests, key=lambda name: (self.seconds.get(name, 0.0), name)):
            seen[function := test.partition("[")[0]] += 1
            place[test] = seen[function], self.seconds.get(test, 0.0)
        return sorted(tests, key=lambda name: (place[name], name))


def statement(source: str, line: int) -> tuple[int, int]:
    """Return the lines of the innermost statement around a line; of a compound one, the lines of its head."""
    heads = (_head(node) for node in ast.walk(_tree(source)) if isinstance(node, ast.stmt))
    around = [(first, last) for first, last in heads if first <= line <= last]
    return min(around, key=lambda one: one[1] - one[0], default=(line, line))


def _head(node: ast.stmt) -> tuple[int, int]:
    body = getattr(node, "body", None)
    return node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno


def _runs_at_import(source: str, line: int) -> bool:
    """Whether a line is outside of all functions, or in the head of one, where its defaults are."""
    return not any(first <= line <= last for first, last in _bodies(_tree(source)))


def _bodies(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.body[0].lineno, node.end_lineno or node.lineno


@cache
def _tree(source: str) -> ast.Module:
    return ast.parse(source)
