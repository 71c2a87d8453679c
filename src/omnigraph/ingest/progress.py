"""How far a pipeline is, for a person who waits."""

from __future__ import annotations

import sys
from typing import Protocol, TextIO


class Progress(Protocol):
    """What an executor tells while it works. All calls come from one thread."""

    def phase(self, name: str, total_tasks: int) -> None:
        """Begin a phase. If it has begun before, it has so many tasks more."""

    def advance(self, tasks: int, rows: int) -> None:
        """So many tasks and rows more of the phase are done."""

    def finish(self) -> None:
        """Nothing more comes. Call it whatever has happened, so that the terminal is left as it was."""


class SilentProgress:
    """Says nothing."""

    def phase(self, name: str, total_tasks: int) -> None:
        pass

    def advance(self, tasks: int, rows: int) -> None:
        pass

    def finish(self) -> None:
        pass


SILENT = SilentProgress()


def progress_on(stream: TextIO | None = None) -> Progress:
    """Bars if the stream, which is stderr by default, is a terminal; nothing otherwise."""
    from rich.console import Console  # noqa: PLC0415 - executors import this module, and draw nothing

    from omnigraph.ingest.progress_bars import BarProgress  # noqa: PLC0415

    console = Console(file=stream or sys.stderr)
    return BarProgress(console) if console.is_terminal and not console.is_dumb_terminal else SILENT
