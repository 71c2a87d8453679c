"""Failpoints: named once, reached somewhere, able to stop anything, and free when nobody asks."""

from __future__ import annotations

import ast
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import repeat
from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit import failpoints
from tests.support.faults import CrashError, crash

SOURCES = sorted(Path(omnigraph.__file__).parent.rglob("*.py"))
HERE = Path(failpoints.__file__)
NAMES = {name: value for name, value in vars(failpoints).items() if name.isupper() and isinstance(value, str)}


def reached(tree: ast.AST) -> Iterator[ast.expr]:
    """What the calls of `reach` in a source are given, however they are written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "reach":
            yield from (*node.args, *(keyword.value for keyword in node.keywords))


@cache
def all_reached() -> list[str]:
    trees = [ast.parse(path.read_text()) for path in SOURCES if path != HERE]
    return [ast.unparse(argument) for tree in trees for argument in reached(tree)]


@pytest.mark.slow
def test_a_failpoint_is_reached_by_the_name_of_its_constant() -> None:
    known = {f"failpoints.{name}" for name in NAMES}
    assert all_reached()
    assert [argument for argument in all_reached() if argument not in known] == []


@pytest.mark.parametrize(
    "source", ['failpoints.reach("x")', 'reach(\n    "x"\n)', 'fp.reach(name="x")', 'failpoints.reach(f"x")']
)
def test_the_walk_over_the_sources_sees_a_literal_however_it_is_wrapped(source: str) -> None:
    (argument,) = reached(ast.parse(source))
    assert not isinstance(argument, ast.Attribute)


@pytest.mark.slow
def test_every_failpoint_has_a_name_of_its_own_and_is_reached() -> None:
    assert len(set(NAMES.values())) == len(NAMES)
    assert {f"failpoints.{name}" for name in NAMES} == set(all_reached())


def test_an_armed_failpoint_acts_and_only_while_it_is_armed() -> None:
    with failpoints.armed(failpoints.PUBLISH_AFTER_GATES, crash):
        failpoints.reach(failpoints.PUBLISH_AFTER_SIDECAR)
        with pytest.raises(CrashError):
            failpoints.reach(failpoints.PUBLISH_AFTER_GATES)
    failpoints.reach(failpoints.PUBLISH_AFTER_GATES)


def test_a_failpoint_is_disarmed_by_what_it_raised() -> None:
    with pytest.raises(CrashError), failpoints.armed(failpoints.PUBLISH_AFTER_GATES, crash):
        failpoints.reach(failpoints.PUBLISH_AFTER_GATES)
    failpoints.reach(failpoints.PUBLISH_AFTER_GATES)


def test_a_failpoint_is_armed_by_one_at_a_time() -> None:
    with (
        failpoints.armed(failpoints.PUBLISH_AFTER_GATES, crash),
        pytest.raises(AssertionError, match=r"publish\.after_gates is armed already"),
        failpoints.armed(failpoints.PUBLISH_AFTER_GATES, crash),
    ):
        pass


def test_dying_flushes_nothing_and_cleans_nothing_up() -> None:
    program = """
import atexit, sys
from omnigraph.commit import failpoints
atexit.register(lambda: print("cleaned up", flush=True))
sys.stdout.write("not flushed")
try:
    with failpoints.armed(failpoints.PUBLISH_AFTER_GATES, failpoints.die):
        failpoints.reach(failpoints.PUBLISH_AFTER_GATES)
finally:
    print("finally", flush=True)
"""
    ended = subprocess.run([sys.executable, "-E", "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (137, "", "")


def test_a_rendezvous_holds_the_first_and_lets_the_others_pass() -> None:
    meeting = failpoints.Rendezvous()
    with failpoints.armed(failpoints.PUBLISH_AFTER_GATES, meeting), ThreadPoolExecutor(1) as pool:
        held = pool.submit(failpoints.reach, failpoints.PUBLISH_AFTER_GATES)
        meeting.wait_until_reached()
        failpoints.reach(failpoints.PUBLISH_AFTER_GATES)
        assert not held.done()
        meeting.release()
        held.result(300)


def test_a_rendezvous_that_nobody_keeps_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="not reached in time"):
        failpoints.Rendezvous(timeout=0.01).wait_until_reached()
    with pytest.raises(AssertionError, match="not released in time"):
        failpoints.Rendezvous(timeout=0.01)()


def test_a_failpoint_that_nobody_armed_allocates_nothing() -> None:
    name = failpoints.PUBLISH_AFTER_GATES
    passes = repeat(None, 10_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in passes:
            failpoints.reach(name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - before < 1_000
