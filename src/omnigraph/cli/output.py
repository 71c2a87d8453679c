"""What commands print: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from omnigraph.errors import OmnigraphError


def _console(stream: TextIO) -> Console:
    # Not wrapped and not highlighted: what is printed is what was meant. Rich itself honours NO_COLOR.
    return Console(file=stream, highlight=False, soft_wrap=True, markup=False, emoji=False)


def data(text: str, style: str = "") -> None:
    """Print a line of data."""
    _console(sys.stdout).print(Text(text, style=style), soft_wrap=True)


def document(value: dict[str, Any] | list[Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def raw(text: str) -> None:
    """Print text byte for byte."""
    sys.stdout.write(text)


def table(columns: list[str], rows: list[list[str]]) -> None:
    """Print rows below the names of their columns, as wide as they are."""
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for line in (columns, ["-" * width for width in widths], *rows):
        data("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def note(text: str, style: str = "") -> None:
    """Tell the person something that is not data."""
    _console(sys.stderr).print(Text(text, style=style), soft_wrap=True)


def deprecated(typed: str, now: str) -> None:
    """Tell that a spelling is an old one. It works all the same."""
    note(f"warning: `{typed}` is deprecated; use `{now}`", style="yellow")


def error(problem: OmnigraphError) -> None:
    """Tell what went wrong and what to do next."""
    console = _console(sys.stderr)
    console.print(Text("Error: ", style="bold red"), Text(str(problem)), sep="", soft_wrap=True)
