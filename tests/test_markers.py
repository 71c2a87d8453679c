"""A test is marked by what it can reach, so that a new one needs no thought."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support import cli, forks, server_process, spark
from tests.support.markers import reached


def _start() -> None:
    subprocess.run(["true"], check=True)


def _import_late() -> None:
    import subprocess as late  # noqa: PLC0415 - the case

    late.run(["true"], check=True)


@contextmanager
def _within() -> Iterator[None]:
    _start()
    yield


class _Starter:
    @property
    def started(self) -> bool:
        _start()
        return True


WAYS: dict[str, Callable[[], object]] = {
    "itself": _start,
    "a helper": lambda: map(str, [_start]),
    "an import inside": _import_late,
    "a context manager": _within,
    "a class": lambda: _Starter().started,
    "the command line": lambda: cli.quick_program("--version"),
    "a fork": lambda: forks.forked(_start),
    "a server": lambda: server_process.dying("here"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_test_that_can_start_a_process_is_found(way: str) -> None:
    assert reached(WAYS[way]) == {"process"}


def test_a_test_that_runs_spark_is_found() -> None:
    assert "spark" in reached(lambda: spark.said("1"))


def test_a_test_that_starts_nothing_has_no_marker(request: pytest.FixtureRequest) -> None:
    assert reached(lambda: cli.command("--version")) == frozenset()
    assert {mark.name for mark in request.node.iter_markers()} == {"xdist_group"}


@pytest.mark.once_on_s3
@pytest.mark.parametrize("case", ["first", "second"])
@pytest.mark.parametrize("place", ["local", "s3"])
def test_of_the_cases_that_are_once_on_s3_only_the_first_runs_there(
    request: pytest.FixtureRequest, place: str, case: str
) -> None:
    name = request.function.__name__
    there = [item.name for item in request.session.items if item.name.startswith(f"{name}[s3")]
    assert (place, case) != ("s3", "second")
    assert len(there) <= 1


@pytest.mark.parametrize("number", range(4))
def test_the_tests_of_a_file_run_in_one_process(tmp_path_factory: pytest.TempPathFactory, number: int) -> None:
    process = os.environ.get("PYTEST_XDIST_WORKER", "")
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if process else own) / "processes"  # of this run
    folder.mkdir(exist_ok=True)
    (folder / str(number)).write_text(process)
    assert {file.read_text() for file in folder.iterdir()} == {process}
