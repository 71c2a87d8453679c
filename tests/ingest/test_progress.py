import io

import pytest
from rich.console import Console

from omnigraph.api.progress import SILENT
from omnigraph.ingest.executor import LocalExecutor
from omnigraph.ingest.progress_bars import BarProgress, progress_on
from tests.support import steps

_SHOW_CURSOR, _HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def bars(screen: io.StringIO) -> BarProgress:
    return BarProgress(Console(file=screen, force_terminal=True, width=120))


def test_each_phase_has_a_bar_with_tasks_and_rows(bars: BarProgress, screen: io.StringIO) -> None:
    executor = LocalExecutor(bars)
    executor.run("read", steps.counted, range(5))
    executor.run("check", steps.squared, range(3))
    bars.finish()

    last = screen.getvalue().rpartition("read")[2]
    assert "5/5" in last
    assert "rows/s" in last
    assert "check" in last
    assert "3/3" in last


def test_a_phase_that_goes_on_has_so_many_tasks_more(bars: BarProgress, screen: io.StringIO) -> None:
    executor = LocalExecutor(bars)
    for count in (2, 3):
        executor.run("write", steps.squared, range(count))
    bars.finish()

    assert "5/5" in screen.getvalue().rpartition("write")[2]


def test_the_cursor_is_back_when_it_is_finished_however_often(bars: BarProgress, screen: io.StringIO) -> None:
    bars.phase("read", 3)
    assert _HIDE_CURSOR in screen.getvalue()
    bars.finish()
    bars.finish()

    assert screen.getvalue().rindex(_SHOW_CURSOR) > screen.getvalue().rindex(_HIDE_CURSOR)


def test_what_is_no_terminal_gets_no_bars(screen: io.StringIO) -> None:
    progress = progress_on(screen)
    progress.phase("read", 1)
    progress.advance(1, 1)
    progress.finish()

    assert progress is SILENT
    assert screen.getvalue() == ""
