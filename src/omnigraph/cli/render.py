"""How the rows of a query are printed: as a table, as pairs, as CSV, as lines of JSON or as one document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, chop_cells, set_cell_size

from omnigraph.cli import output

if TYPE_CHECKING:
    from omnigraph.api.rows import Result

FORMATS = ("table", "kv", "csv", "jsonl", "json")
LAYOUTS = ("truncate", "wrap")
WIDEST = 80
_NARROWEST = 8
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_QUOTED = re.compile(r'[,"\r\n]')
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True, slots=True)
class Look:
    """In which format rows are printed, and how wide the columns of a table may be."""

    format: str
    widest: int
    layout: str


def show(found: Result, snapshot: str | None, look: Look) -> None:
    match look.format:
        case "json":
            from omnigraph.api.documents import read_output  # noqa: PLC0415 - loads the engine

            output.document(read_output(found, snapshot))
        case "jsonl":
            output.raw("".join(_json_lines(found, snapshot)))
        case "csv":
            output.raw("".join(_csv_lines(found)))
        case "kv":
            output.raw("".join(f"{line}\n" for line in _pairs(found, snapshot)))
        case _:
            output.raw("".join(f"{line}\n" for line in _table(found, snapshot, look)))


def _json_lines(found: Result, snapshot: str | None) -> Iterator[str]:
    from omnigraph.api.documents import read_head  # noqa: PLC0415 - loads the engine

    for line in ({"kind": "metadata", **read_head(found, snapshot)}, *found.rows):
        yield json.dumps(line, ensure_ascii=False) + "\n"


def _csv_lines(found: Result) -> Iterator[str]:
    for row in (found.columns, *found.cells()):
        yield ",".join(map(_csv_field, row)) + "\n"


def _csv_field(value: Any) -> str:
    text = _text(value)
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def _headline(found: Result, snapshot: str | None) -> str:
    place = f"branch {found.branch}" if snapshot is None else f"snapshot {snapshot}"
    return f"{len(found)} rows from {place} via {found.query_name}"


def _pairs(found: Result, snapshot: str | None) -> Iterator[str]:
    yield _headline(found, snapshot)
    if not len(found):
        yield "(no rows)"
    for number, row in enumerate(found.cells(), 1):
        if number > 1:
            yield ""
        yield f"row {number}"
        yield from (f"{name}: {_line(value)}" for name, value in zip(found.columns, row, strict=True))


def _table(found: Result, snapshot: str | None, look: Look) -> Iterator[str]:
    yield _headline(found, snapshot)
    yield from table_lines(found.columns, [[_line(value) for value in row] for row in found.cells()], look)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], look: Look) -> Iterator[str]:
    """Lay out rows below the names of their columns; a cell that is too wide is cut or broken."""
    limit = max(look.widest, _NARROWEST)
    widths = [min(max(map(cell_len, cells)), limit) for cells in zip(columns, *rows, strict=True)]
    yield from _row(columns, widths, look)
    yield "-+-".join("-" * width for width in widths)
    for row in rows:
        yield from _row(row, widths, look)


def _row(cells: Sequence[str], widths: Sequence[int], look: Look) -> Iterator[str]:
    parts = [_fitted(cell, width, look) for cell, width in zip(cells, widths, strict=True)]
    for line in range(max(map(len, parts), default=0)):
        texts = (part[line] if line < len(part) else "" for part in parts)
        yield " | ".join(text + " " * (width - cell_len(text)) for text, width in zip(texts, widths, strict=True))


def _fitted(text: str, width: int, look: Look) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    return chop_cells(text, width) if look.layout == "wrap" else [set_cell_size(text, width - 1) + "…"]


def _line(value: Any) -> str:
    """A value on one line; what would move the cursor of a terminal is spelled out."""
    return _CONTROL.sub(lambda found: _ESCAPES.get(found[0], f"\\x{ord(found[0]):02x}"), _text(value))


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
