"""Case files of queries: what each must answer on the graph that its file is named after.

    === R1 a sentence that says what is expected
    query q($name: String) { match { $p: Person { name: $name } } return { $p.name, $p.age } }
    //? {"name": "Alice"}
    //! p.name:string p.age:int32
    //! ["Alice", 30]

`//?` gives parameters, `//@ NAME=value` a variable of the environment. `//+` is a record that is loaded first;
`//* a>b b>c` are people and who knows whom. The `//!` lines end a case: the columns with their types, and then every
row, in order if the query has an order, unless the columns end with `unordered`. A case that must fail has one line,
with the class of the error and a fragment of its message. `R1`, `F1` and `S1` are the numbers of the behaviour that a
case shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.query.scene import edge, node


@dataclass(frozen=True, slots=True)
class QueryCase:
    name: str
    source: str
    parameters: dict[str, Any]
    environment: dict[str, str]
    records: list[dict[str, Any]]
    expected: tuple[str, ...]
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"

    @property
    def graph(self) -> str:
        return Path(self.file).stem

    @property
    def error(self) -> tuple[str, str] | None:
        found = re.fullmatch(r"(\w+Error) (.+)", self.expected[0])
        return (found[1], found[2]) if found else None

    @property
    def is_ordered(self) -> bool:
        return bool(re.search(r"\border \{", self.source)) and not self.expected[0].endswith(" unordered")

    @property
    def columns(self) -> list[str]:
        """Names and types."""
        text = self.expected[0].removesuffix(" unordered")
        return re.findall(r"([\w.@]+:\w+(?:<[^>]*>(?:\[\d+\])?|\[\w+\])?)(?: |$)", text)

    @property
    def rows(self) -> list[dict[str, Any]]:
        names = [column.split(":")[0] for column in self.columns]
        found = [json.loads(line) for line in self.expected[1:]]
        return [row if isinstance(row, dict) else dict(zip(names, row, strict=True)) for row in found]


def load_query_cases(path: Path) -> Iterator[QueryCase]:
    text = path.read_text(encoding="utf-8")
    starts = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith("=== ")]
    for line, block in zip(starts, re.split(r"^=== ", text, flags=re.MULTILINE)[1:], strict=True):
        name, *lines = block.strip().split("\n")
        marks = {
            mark: [text[4:] for text in lines if text.startswith(mark)]
            for mark in ("//? ", "//@ ", "//+ ", "//* ", "//! ")
        }
        assert marks["//! "], f"{path.name}:{line}: the case does not say what it expects"
        parameters = json.loads("".join(marks["//? "]) or "{}")
        environment = dict(setting.split("=", 1) for setting in marks["//@ "])
        records = [*map(json.loads, marks["//+ "]), *_acquaintances(" ".join(marks["//* "]))]
        source = "\n".join(text for text in lines if text[:4] not in marks)
        yield QueryCase(name, source, parameters, environment, records, tuple(marks["//! "]), path.name, line)


def _acquaintances(text: str) -> Iterator[dict[str, Any]]:
    pairs = [pair.split(">") for pair in text.split()]
    yield from (node("Person", name=name) for name in sorted({name for pair in pairs for name in pair}))
    yield from (edge("Knows", *pair) for pair in pairs)
