"""Limits that hold: memory asked for before it is taken, time, and queries that nobody wants any more."""

from __future__ import annotations

import cProfile
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.core import running
from omnigraph.core.running import Budget, Running, Unwanted, bounded
from omnigraph.errors import (
    MemoryBusyError,
    OptionError,
    ParameterError,
    QueryTimeoutError,
    ResourceLimitError,
)
from omnigraph.graph import Graph
from omnigraph.query import adjacency, match, memory
from tests.query.scene import edge, node

WALKS = "query q() { match { $a: Person  $a knows $b  $b knows $c  $a.age < $c.age } return { $a.name, $c.name } }"
PAIRS = "query q() { match { $a: Person  $b: Person  $a.age < $b.age } return { count($a.age) as n } }"
ENDLESS = "query q() { match { $a: Person  $b: Person  $c: Person  $a.age = $b.age  $b.age < $c.age } return { $a } }"


@pytest.fixture
def crowd(copy_of: Callable[[str], Graph]) -> Graph:
    """Some 120 people, each of whom knows five others."""
    graph = copy_of("people")
    graph.load([node("Person", name=f"r{at}", age=at % 50) for at in range(120)], mode="append")
    ends = [(at, (at + step) % 120) for at in range(120) for step in (1, 7, 31, 50, 97)]
    graph.load([edge("Knows", f"r{one}", f"r{other}") for one, other in ends], mode="append")
    return graph


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "_PART", 500)
    monkeypatch.setattr(adjacency, "_MOST_REACHED", 500)
    monkeypatch.setattr(memory, "_ALWAYS", 0)


def rows(graph: Graph, source: str) -> list[Any]:
    return sorted(map(repr, graph.query(source).rows))


def test_work_in_parts_finds_the_same(crowd: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        WALKS,
        PAIRS,
        "query q() { match { $a: Person  $a knows{1,3} $b } return { $a, count($b) as n } }",
        "query q() { match { $a: Person  $a knows{2,3} $b  $b knows $a } return { $a.name, $b.name } }",
        "query q() { match { $a: Person  not { $a knows $b  $b knows $c  $c.age > 45 } } return { $a.name } }",
        "query q() { match { $a knows $b  $b knows $c  $c knows $a } return { count($a) as n } }",
        "query q() { match { $a: Person  $b: Person  $a.age = $b.age } return { count($a) as n } }",
    ]
    whole = [rows(crowd, one) for one in asked]
    for part in (3, 200):
        monkeypatch.setattr(match, "_PART", part)
        monkeypatch.setattr(adjacency, "_MOST_REACHED", part)
        assert [rows(crowd, one) for one in asked] == whole


@pytest.mark.usefixtures("in_parts")
def test_rows_that_a_later_step_drops_are_not_all_made_at_once(crowd: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "query q() { match { $a: Person  $b: Person  $a.age = $b.age } return { $a, $b } }"
    found = rows(crowd, source)

    # All pairs take 370 KB, those of one part 12 KB, and those that are left 8 KB.
    monkeypatch.setenv(memory.VARIABLE, "200000")
    assert rows(crowd, source) == found
    monkeypatch.setattr(match, "_PART", 10**9)
    with pytest.raises(ResourceLimitError):
        crowd.query(source)


@pytest.mark.usefixtures("in_parts")
def test_explain_notes_a_step_that_runs_in_parts_once(crowd: Graph) -> None:
    source = "query q() { match { $a: Person  $a knows $b  $b knows $c  not { $c knows $a } } return { $a } }"
    crowd.query(source)

    told = crowd.explain(source)

    steps = [step.kind for step in told.steps]
    assert steps == ["Scan", "Expand", "Expand", "AntiJoin", "Project"]
    assert told.steps[2].rows > 120 * 5 > told.steps[0].rows > 120
    assert [step.kind for step in told.steps[3].inner] == ["Expand"]


@pytest.mark.usefixtures("in_parts")
def test_a_query_stops_at_its_time_limit(crowd: Graph) -> None:
    with pytest.raises(QueryTimeoutError, match=r"longer than 0\.05 s") as caught:
        crowd.query(ENDLESS, timeout=0.05)
    with pytest.raises(QueryTimeoutError):
        crowd.explain(ENDLESS, timeout=0.05)
    with pytest.raises(QueryTimeoutError):
        crowd.at("main").query(ENDLESS, timeout=0.05)

    assert caught.value.seconds == 0.05
    assert running.BUDGET.taken == 0


@pytest.mark.usefixtures("in_parts")
def test_the_environment_sets_a_time_limit(crowd: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.TIME_VARIABLE, "0.05")
    with pytest.raises(QueryTimeoutError):
        crowd.query(ENDLESS)
    monkeypatch.setenv(memory.TIME_VARIABLE, "soon")
    with pytest.raises(ParameterError, match="OMNIGRAPH_QUERY_TIMEOUT is 'soon'"):
        crowd.query(PAIRS)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_is_a_number_of_seconds(people: Graph, timeout: float) -> None:
    with pytest.raises(OptionError, match="timeout is"):
        people.query(PAIRS, timeout=timeout)


@pytest.mark.usefixtures("in_parts")
def test_a_query_whose_caller_has_gone_stops(crowd: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, begun = threading.Event(), threading.Event()
    crowd.query(PAIRS)  # all is in memory
    original = memory.settle

    def settle(count: int, columns: int) -> None:
        original(count, columns)
        begun.set()

    monkeypatch.setattr(match, "settle", settle)
    monkeypatch.setattr("omnigraph.query.read.settle", settle)

    def ask() -> None:
        with bounded(None, gone):
            crowd.query(ENDLESS)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        assert begun.wait(60)
        gone.set()
        with pytest.raises(Unwanted):
            asked.result(60)
    assert running.BUDGET.taken == 0


@pytest.mark.usefixtures("in_parts")
def test_a_bound_of_the_server_wins_over_a_longer_one(crowd: Graph) -> None:
    with bounded(0.05, None), pytest.raises(QueryTimeoutError, match=r"longer than 0\.05 s"):
        crowd.query(ENDLESS, timeout=600)


# One budget of a process


@pytest.mark.usefixtures("in_parts")
def test_many_clients_stay_within_one_budget(crowd: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    right = crowd.query(WALKS).to_arrow()
    monkeypatch.setattr(match, "_PART", 10**9)
    most = 400_000
    monkeypatch.setenv(memory.VARIABLE, str(most))
    taken: list[int] = []
    original = Budget.take

    def take(self: Budget, asking: Running, total: int, limit: int) -> None:
        original(self, asking, total, limit)
        taken.append(self.taken)

    monkeypatch.setattr(Budget, "take", take)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with ThreadPoolExecutor(64) as pool:
            found = [*pool.map(lambda _: rows_or_busy(crowd), range(64))]
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()

    assert max(taken) <= most
    assert any(one is not None for one in found)
    assert all(one is None or one.equals(right) for one in found)
    assert running.BUDGET.taken == 0
    assert peak < 5 * most, "64 of them take 20 times as much"


def rows_or_busy(graph: Graph) -> pa.Table | None:
    try:
        return graph.query(WALKS).to_arrow()
    except MemoryBusyError:
        return None


def test_a_query_waits_for_memory_until_another_one_ends() -> None:
    budget, first, second = Budget(), Running(None, None), Running(None, None)
    budget.take(first, 60, 100)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(budget.take, second, 60, 100)
        assert not waiting.done()
        budget.give_back(first, 0)
        waiting.result(60)

    assert (first.held, second.held, budget.taken) == (0, 60, 60)


def test_one_of_two_queries_that_wait_for_each_other_is_refused() -> None:
    budget, first, second = Budget(), Running(None, None), Running(None, None)
    budget.take(first, 50, 100)
    budget.take(second, 50, 100)

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(budget.take, one, 80, 100) for one in (first, second)]
        done = _first_refused(asked)
        budget.give_back((first, second)[done], 0)
        asked[1 - done].result(60)

    assert budget.taken == 80


def _first_refused(asked: list[Any]) -> int:
    (refused,) = wait(asked, return_when=FIRST_EXCEPTION).done
    with pytest.raises(MemoryBusyError, match="other queries hold too much"):
        refused.result()
    return asked.index(refused)


def test_a_query_that_waits_for_memory_still_has_a_time_limit() -> None:
    budget, first, second = Budget(), Running(None, None), Running(0.05, None)
    budget.take(first, 60, 100)
    with pytest.raises(QueryTimeoutError):
        budget.take(second, 60, 100)


# Time to compile


def filters(count: int) -> str:
    tests = "\n".join(f"$a.age != {at}" for at in range(count))
    return f"query q() {{ match {{ $a: Person  $a knows $b\n{tests} }} return {{ $a.name }} }}"


def hops(count: int) -> str:
    clauses = "\n".join(f"$a{at} knows $a{at + 1}" for at in range(count))
    return f'query q() {{ match {{ $a0: Person {{ name: "none" }}\n{clauses} }} return {{ $a0.name }} }}'


def bindings(count: int) -> str:
    clauses = "\n".join(f'$a{at}: Person {{ name: "none" }}' for at in range(count))
    return f"query q() {{ match {{ {clauses} }} return {{ $a0.name }} }}"


def calls(run: Callable[[], Any]) -> int:
    """How many functions are called: work, whatever else the machine does."""
    profile = cProfile.Profile()
    profile.runcall(run)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("spelled, few", [(filters, 200), (hops, 70), (bindings, 70)])
def test_a_query_of_many_clauses_is_done_in_linear_time(people: Graph, spelled: Callable[[int], str], few: int) -> None:
    people.query(spelled(few - 1))  # what is made once
    small, large = (calls(lambda: people.query(spelled(size))) for size in (few, 5 * few))  # noqa: B023
    assert large < 6 * small
