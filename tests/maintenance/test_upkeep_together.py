"""How many tables upkeep works on at once: as many as the setting says, and one commit whatever it says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.core.executor import map_in_threads
from omnigraph.errors import ParameterError, StorageError
from omnigraph.graph import Graph
from omnigraph.maintenance.tasks import VARIABLE, map_tables
from tests.support.faults import assert_settled, refuse
from tests.support.graphs import contents
from tests.support.mutations import at_write, store_of

TYPES = 4


@pytest.fixture
def wide(tmp_path: Path) -> Graph:
    """A graph of several types, each with two fragments."""
    graph = omnigraph.init(tmp_path / "g", "\n".join(f"node T{at} {{ name: String @key }}" for at in range(TYPES)))
    for name in "ab":
        inserts = " ".join(f'insert T{at} {{ name: "{name}" }}' for at in range(TYPES))
        graph.mutate(f"query add() {{ {inserts} }}")
    return graph


class Crowd:
    """Notes how many are inside at the same time; each waits until as many have come as are expected."""

    def __init__(self, expected: int) -> None:
        self._meeting = threading.Barrier(expected)
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0

    def __call__(self, item: int) -> int:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        self._meeting.wait(300)
        with self._lock:
            self._inside -= 1
        return item * 2


@pytest.mark.parametrize("number", [1, 3])
def test_as_many_as_the_setting_says_are_worked_on_at_once(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv(VARIABLE, str(number))
    crowd = Crowd(number)
    assert map_tables(crowd, range(6)) == [0, 2, 4, 6, 8, 10]
    assert crowd.most == number


@pytest.mark.slow
def test_when_one_fails_those_that_have_not_begun_do_not() -> None:
    begun: list[int] = []

    def step(item: int) -> None:
        begun.append(item)
        if not item:
            raise StorageError("full", path="", operation="write")

    with pytest.raises(StorageError, match="full"):
        list(map_in_threads(step, range(10_000), 2))
    assert len(begun) < 10_000


@pytest.mark.parametrize("wish", ["0", "-1", "many", "", "1.5", "²"])
@pytest.mark.parametrize("call", [Graph.optimize, Graph.ensure_indices, lambda graph: graph.cleanup(keep=1)])
def test_a_setting_that_is_no_number_is_refused_before_anything_is_done(
    wide: Graph, monkeypatch: pytest.MonkeyPatch, call: Callable[[Graph], object], wish: str
) -> None:
    monkeypatch.setenv(VARIABLE, wish)
    with pytest.raises(ParameterError, match=f"{VARIABLE} is '{wish}'"):
        call(wide)
    assert len(wide.commits()) == 3


@pytest.mark.parametrize("number", ["1", "8"])
def test_all_tables_are_one_commit_however_many_are_worked_on_at_once(
    wide: Graph, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setenv(VARIABLE, number)
    rows = contents(store_of(wide.uri))
    done = wide.optimize()
    assert [row.fragments_removed for row in done.tables if row.table_key.startswith("node:")] == [2] * TYPES
    assert len(wide.commits()) == 4
    wide.cleanup(keep=1, confirm=True)
    store = store_of(wide.uri)
    assert contents(store) == rows
    assert_settled(store)


def test_a_table_that_fails_among_others_leaves_all_as_they_were(wide: Graph) -> None:
    rows = contents(store_of(wide.uri))
    with at_write(2, refuse), pytest.raises(StorageError):
        wide.optimize()
    store = store_of(wide.uri)
    assert contents(store) == rows
    assert_settled(store)
    assert wide.optimize().commit
