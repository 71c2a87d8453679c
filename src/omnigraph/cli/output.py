"""Print data on stdout and everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

import typer

from omnigraph.api.problems import body
from omnigraph.errors import OmnigraphError

CLOSED_PIPE = 141  # what a shell reports for a program that SIGPIPE ended
_STYLES: dict[str, dict[str, Any]] = {
    "bold": {"bold": True},
    "dim": {"dim": True},
    "red": {"fg": "red"},
    "green": {"fg": "green"},
    "yellow": {"fg": "yellow"},
    "bold red": {"fg": "red", "bold": True},
}


class Line(NamedTuple):
    """A line of text for people. A note goes to stderr, because it is not data."""

    text: str
    style: str = ""
    is_note: bool = False


Document = dict[str, Any]
Lines = Iterator[Line | str]
TextOutput = str | Iterable[Line | str]
# A costly document is made when it is printed, and a large one piece by piece.
JsonOutput = Document | list[Any] | Callable[[], Document] | Iterator[str]


def _is_colored(stream: TextIO) -> bool:
    # https://no-color.org: set and not empty. It wins over FORCE_COLOR.
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _write(stream: TextIO, text: str, style: str) -> None:
    # Not through rich: importing it costs a cold command more than all of its output.
    shown = typer.style(text, **_STYLES[style]) if style and _is_colored(stream) else text
    if stream is sys.stderr:
        sys.stdout.flush()  # so that data and notes keep their order where both are shown
    stream.write(f"{shown}\n")


def data(text: str, style: str = "") -> None:
    """Print a line of data."""
    _write(sys.stdout, text, style)


def note(text: str, style: str = "") -> None:
    """Print a line for people that is not data."""
    _write(sys.stderr, text, style)


def lines(found: TextOutput) -> None:
    """Print lines of text, each to its stream."""
    for one in [found] if isinstance(found, str) else found:
        text, style, is_note = one if isinstance(one, Line) else Line(one)
        _write(sys.stderr if is_note else sys.stdout, text, style)


def document(value: JsonOutput) -> None:
    """Print one JSON document."""
    if isinstance(value, Iterator):
        # The pieces bring their own spaces and ends of lines.
        sys.stdout.writelines(value)
        return
    found = value() if callable(value) else value
    sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def pairs(found: Document) -> Lines:
    """Show a document as lines of `name: value`."""
    yield from (f"{name}: {value}" for name, value in found.items())


def raw(text: str) -> None:
    """Print text byte for byte."""
    sys.stdout.write(text)


@contextmanager
def closed_pipe_ends_quietly() -> Iterator[None]:
    """End the program, without a message, if the reader of its output is gone."""
    try:
        yield
        # A short output is still in the buffer: only a flush shows whether it is read.
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        raise SystemExit(CLOSED_PIPE) from None


def discard_stdout() -> None:
    """Drop buffered output, which the interpreter would try to write at its end."""
    # On the descriptor: the interpreter flushes the stream itself when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def deprecated(typed: str, now: str) -> None:
    """Warn about an old spelling. It still works."""
    note(f"warning: `{typed}` is deprecated; use `{now}`", style="yellow")


def error_document(problem: OmnigraphError) -> None:
    """Print an error as a JSON document."""
    document(body(problem, full=False))


def error(problem: OmnigraphError) -> None:
    """Print an error with its hint."""
    prefix = "Error: "
    if _is_colored(sys.stderr):
        prefix = typer.style(prefix, **_STYLES["bold red"])
    sys.stderr.write(f"{prefix}{problem}\n")


def quoted(message: str | None) -> str:
    """Return the first line of a message as a list of commits shows it."""
    return f'"{message.splitlines()[0]}"' if message else ""
