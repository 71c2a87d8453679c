"""Find the markers of a test: in its fixtures, in the names of its parameters, and in the code that it can reach.

A new test needs no thought. `make quick` leaves out all that is marked.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

_TESTS = Path(__file__).parents[1]
_FIXTURES = {"s3_server": "s3", "spark": "spark", "connect_server": "spark", "spark_cluster": "spark"}
_PARAMETERS = {"s3", "spark"}  # fixtures with these parameters ask for the server or the session only then
# Files that search, enumerate or race, or whose tests take a third of a second on average, by how their names end.
# A slow test elsewhere has the marker written above it.
_SLOW = (
    "backup",
    "bounded_results",
    "concurrency",
    "costs",
    "crashes",
    "differential",
    "doctor_damage",
    "equal",
    "faults",
    "fuzz",
    "growth",
    "large_merge",
    "model",
    "moved_graphs",
    "old_merges",
    "oracles",
    "partitions",
    "paths",
    "races",
    "recovery",
    "retired_branches",
    "shares",
    "skew",
    "soak",
    "taken_back",
    "test_fold",
    "test_runs",
    "test_segments",
    "truth_table",
    "upkeep_of_forks",
)
# About how many seconds a test takes, by its markers: enough to tell long groups of tests from short ones.
_SECONDS = {"spark": 4.0, "docs": 2.0, "process": 1.0, "slow": 1.0, "s3": 0.4}
_STARTERS = {
    "multiprocessing": "process",
    "subprocess": "process",
    "tests.support.forks": "process",
    "tests.support.server_process": "process",
    "tests.support.spark": "spark",
}


def mark(item: pytest.Item) -> None:
    """Give a test the markers that it needs, and a group: tests of a group run in one process.

    A file is a group, for what its tests share. So are all that use Spark: one session serves them all, and one
    cluster those that run elsewhere.
    """
    needed = _needed(item)
    for name in needed:
        item.add_marker(name)
    own = "spark" if _shares_session(item) else "cluster"
    item.add_marker(pytest.mark.xdist_group(own if "spark" in needed else item.path.stem))


def _shares_session(item: pytest.Item) -> bool:
    """Return whether a test uses the session of this process, or the server of Spark Connect."""
    names = {*getattr(item, "fixturenames", ())}
    parameters = item.callspec.id.split("-") if hasattr(item, "callspec") else []
    return bool(names & {"spark", "connect_server"}) or "spark" in parameters


def once_on_s3(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests to leave out: of a function marked `once_on_s3`, all on S3 but the first of each way there.

    Its other parameters are cases that have nothing to do with where a graph is: each of them runs on a local disk.
    """
    seen: set[tuple[str, object]] = set()
    left_out = []
    for item in items:
        if item.get_closest_marker("once_on_s3") and item.get_closest_marker("s3"):
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            kind = (item.nodeid.partition("[")[0], parameters.get("way"))
            left_out += [item] if kind in seen else []
            seen.add(kind)
    return left_out


def longest_group_first(items: list[pytest.Item]) -> None:
    """Sort tests so that the groups that take longest come first.

    A group runs in one process: a long one that begins last leaves the other processes without work.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in items:
        seconds[group(item)] += sum(map(_seconds, item.iter_markers())) or 0.05
    items.sort(key=lambda item: -seconds[group(item)])  # stable, so the tests of a module stay together


def _seconds(marker: pytest.Mark) -> float:
    """What is usual for a marker; a test that takes many times as long says so: `@pytest.mark.slow(8)`."""
    return float(marker.args[0]) if marker.name == "slow" and marker.args else _SECONDS.get(marker.name, 0)


def group(item: pytest.Item) -> str:
    marker = item.get_closest_marker("xdist_group")
    return "" if marker is None else str(marker.args[0])


def _needed(item: pytest.Item) -> set[str]:
    names = set(getattr(item, "fixturenames", ()))
    needed = {marker for fixture, marker in _FIXTURES.items() if fixture in names}
    if isinstance(item, pytest.Function):
        needed |= _PARAMETERS.intersection(item.callspec.id.split("-") if hasattr(item, "callspec") else ())
        needed |= reached(item.function)
        # What a test does by its own fixtures counts as its own; what is shared says so by its name, see above.
        defined = item._fixtureinfo.name2fixturedefs
        for name in names.intersection(defined) - _FIXTURES.keys():
            needed |= reached(defined[name][-1].func)
    return needed | _of_file(item.path)


@cache
def _of_file(path: Path) -> frozenset[str]:
    found = {"docs": path.is_relative_to(_TESTS / "docs"), "slow": path.stem.endswith(_SLOW)}
    return frozenset(name for name, does in found.items() if does)


@cache  # the tests of a parametrization share a function, and most tests share their fixtures
def reached(function: Any) -> frozenset[str]:
    """Return the markers of the starters that a function of the tests can reach, through others of the tests."""
    found: set[str] = set()
    seen: set[int] = set()
    left = [function]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for value in _used(one):
            marker = _STARTERS.get(_home(value), "")
            if marker:
                found.add(marker)
            elif _is_ours(_home(value)):
                left.append(value)
    return frozenset(found)


def _home(value: Any) -> str:
    """The module that a value is from."""
    if isinstance(value, ModuleType):
        return value.__name__
    return str(getattr(value, "__module__", None) or "")


@cache
def _is_ours(module: str) -> bool:
    """Modules of tests are known by their files: those that pytest imports have no package in their names."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and Path(file).is_relative_to(_TESTS)


def _used(value: Any) -> Iterator[Any]:
    """The values that the code of a function, or of the methods of a class, names."""
    if isinstance(value, type):
        for one in vars(value).values():
            yield from _used(one)
        return
    function = _plain(value)
    if function is None:
        return
    names = set(_names(function.__code__))
    for name in names & function.__globals__.keys():
        known = function.__globals__[name]
        yield known
        if isinstance(known, ModuleType):  # `module.function` names both
            yield from (vars(known)[one] for one in names & vars(known).keys())
    yield from (sys.modules[name] for name in names & _STARTERS.keys() & sys.modules.keys())  # imported inside


def _plain(value: Any) -> FunctionType | None:
    """The function under decorators, properties and the like."""
    for attribute in ("fget", "__func__", "__wrapped__"):
        while (inner := getattr(value, attribute, None)) is not None:
            value = inner
    return value if isinstance(value, FunctionType) else None


@cache
def _names(code: CodeType) -> frozenset[str]:
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return frozenset(code.co_names).union(*inner)
