"""Progress as bars on a terminal."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from omnigraph.api.progress import SILENT, Progress


class BarProgress:
    """Draws one bar for each phase, with rows per second and the remaining time."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RowsColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            # stdout is for data: it must not pass through the display of the bars.
            redirect_stdout=False,
        )
        self._phases: dict[str, TaskID] = {}
        self._current: TaskID | None = None

    def phase(self, name: str, total_tasks: int) -> None:
        # Not before the first phase: a load that is refused at once leaves no empty bar.
        self._bars.start()
        self._current = self._phases.get(name)
        if self._current is None:
            self._current = self._phases[name] = self._bars.add_task(name, total=total_tasks, rows=0)
            return
        task = self._bars.tasks[self._bars.task_ids.index(self._current)]
        self._bars.update(self._current, total=(task.total or 0) + total_tasks)

    def advance(self, tasks: int, rows: int) -> None:
        assert self._current is not None, "a phase begins before it advances"
        task = self._bars.tasks[self._bars.task_ids.index(self._current)]
        self._bars.update(self._current, advance=tasks, rows=task.fields["rows"] + rows)

    def finish(self) -> None:
        self._bars.stop()


class _RowsColumn(ProgressColumn):
    """Rows per second, once there are some."""

    def render(self, task: Task) -> Text:
        rows, seconds = task.fields["rows"], task.finished_time or task.elapsed
        return Text(f"{rows / seconds:>11,.0f} rows/s" if rows and seconds else "", style="cyan")


def progress_on(stream: TextIO | None = None) -> Progress:
    """Return bars if the stream, stderr by default, is a terminal; else silent progress."""
    console = Console(file=stream or sys.stderr)
    return BarProgress(console) if console.is_terminal and not console.is_dumb_terminal else SILENT
