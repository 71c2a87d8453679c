"""Progress reporting for long-running operations."""

# Not in `options`: that module loads the languages, and `omnigraph --help` must start without them.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Receives the progress of an executor. All calls come from one thread."""

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


@contextmanager
def finishing(progress: Progress) -> Iterator[None]:
    """Finish the progress at the end of a block, whatever happens in it."""
    try:
        yield
    finally:
        progress.finish()
