"""Print rows: as a table, as pairs, as CSV, as lines of JSON or as one document."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, chop_cells, set_cell_size

from omnigraph.api.rows import Result
from omnigraph.cli.output import Line

FORMATS = ("table", "kv", "csv", "jsonl", "json")
LAYOUTS = ("truncate", "wrap")
WIDEST = 80
MOST_ON_TERMINAL = 200  # rows of a table
_NARROWEST = 8
_BETWEEN = " | "
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True, slots=True)
class Look:
    """The format that rows are printed in, and for a table how wide a column may be and what becomes of wider cells."""

    format: str = FORMATS[0]
    widest: int = WIDEST
    layout: str = LAYOUTS[0]


_PLAIN = Look()


def rows_text(found: Result, head: dict[str, Any], look: Look) -> Iterator[Line | str]:
    """Print the rows of a query in every format but one JSON document; `head` describes the answer."""
    match look.format:
        case "jsonl":
            yield from (json.dumps(line, ensure_ascii=False) for line in ({"kind": "metadata", **head}, *found.rows))
        case "csv":
            yield from _csv(found)
        case "kv":
            yield from _pairs(found, head)
        case _:
            yield _headline(head)
            yield from _capped_table(found, look)


def _csv(found: Result) -> Iterator[str]:
    for row in (found.columns, *found.cells()):
        line = io.StringIO()
        # With the default end of a line, because the writer quotes a cell only for the characters of that end.
        csv.writer(line).writerow(map(plain, row))
        yield line.getvalue().removesuffix("\r\n")


def _headline(head: dict[str, Any]) -> str:
    branch, snapshot = head["target"]["branch"], head["target"]["snapshot"]
    place = f"branch {branch}" if snapshot is None else f"snapshot {snapshot}"
    return f"{head['row_count']} rows from {place} via {head['query_name']}"


def _pairs(found: Result, head: dict[str, Any]) -> Iterator[str]:
    yield _headline(head)
    if not len(found):
        yield "(no rows)"
    for number, row in enumerate(found.cells(), 1):
        if number > 1:
            yield ""
        yield f"row {number}"
        yield from (f"{name}: {one_line(value)}" for name, value in zip(found.columns, row, strict=True))


def _capped_table(found: Result, look: Look) -> Iterator[Line | str]:
    """Show the first rows on a terminal and say so. A pipe gets all of them: a program would miss the note."""
    most = None if terminal_size() is None else MOST_ON_TERMINAL
    rows = [[one_line(value) for value in row] for row in itertools.islice(found.cells(), most)]
    yield from table(found.columns, rows, look)
    if len(rows) < len(found):
        text = f"… {len(found) - len(rows):,} more rows; use --format csv or a pipe to print all of them"
        yield Line(text, "dim", is_note=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], look: Look = _PLAIN) -> Iterator[str]:
    """Lay out rows below the names of their columns."""
    limit = max(look.widest, _NARROWEST)
    # In cells of the terminal: a CJK letter takes two.
    natural = [min(max(map(cell_len, cells)), limit) for cells in zip(columns, *rows, strict=True)]
    widths = _fitted_to_terminal(natural)
    yield from _row(columns, widths, look)
    yield "-+-".join("-" * width for width in widths)
    for row in rows:
        yield from _row(row, widths, look)


def terminal_size() -> os.terminal_size | None:
    """Return the size of the terminal that stdout is, or None if stdout is a pipe or a file."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size()


def _fitted_to_terminal(widths: list[int]) -> list[int]:
    """Cap the widths so that a row fits. A pipe has no width: programs get whole cells."""
    size = terminal_size()
    if size is None:
        return widths
    # A pipe character and two blanks stand between columns, and count as well.
    room = size.columns - len(_BETWEEN) * (len(widths) - 1)
    # The widest columns give way first; narrow ones keep their width.
    caps = range(max(widths, default=0), _NARROWEST, -1)
    cap = next((cap for cap in caps if sum(min(width, cap) for width in widths) <= room), _NARROWEST)
    return [min(width, cap) for width in widths]


def _row(cells: Sequence[str], widths: Sequence[int], look: Look) -> Iterator[str]:
    parts = [_fitted(cell, width, look) for cell, width in zip(cells, widths, strict=True)]
    for at in range(max(map(len, parts), default=0)):
        texts = (part[at] if at < len(part) else "" for part in parts)
        yield _BETWEEN.join(text + " " * (width - cell_len(text)) for text, width in zip(texts, widths, strict=True))


def _fitted(text: str, width: int, look: Look) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    return chop_cells(text, width) if look.layout == "wrap" else [set_cell_size(text, width - 1) + "…"]


def one_line(value: Any) -> str:
    """Show a value on one line. Control characters are spelled out, so that data cannot move the cursor."""
    return _CONTROL.sub(lambda found: _ESCAPES.get(found[0], f"\\x{ord(found[0]):02x}"), plain(value))


def plain(value: Any) -> str:
    """Show a value: a string as it is, everything else as compact JSON."""
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
