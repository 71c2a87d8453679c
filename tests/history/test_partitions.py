"""A merge in shares does what a merge at once does, in this process and on Spark."""

from __future__ import annotations

import tempfile
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph import Graph
from omnigraph.errors import MergeConflictError
from omnigraph.history import checks, large_merge
from omnigraph.storage.read import ID
from omnigraph.storage.shares import hashed_parcels, ranged_parcels, received

SCHEMA = """
node Person { name: String @key  age: I32?  nick: String? @unique }
edge Knows: Person -> Person @card(0..3)
"""
NAMES = [f"p{number:02}" for number in range(12)]
ROWS = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.integers(0, 3), st.sampled_from([None, "x", "y"])))
SIDE = st.tuples(ROWS, st.lists(st.sampled_from(NAMES), max_size=2))

Side = tuple[dict[str, tuple[int, str | None]], list[str]]


def changed_on_both_sides(uri: str, ours: Side, theirs: Side) -> Graph:
    """A graph with a branch `other`, and two branches `one` and `two` of what main has become meanwhile."""
    graph = omnigraph.init(uri, SCHEMA)
    graph.load([_person(name, (1, None)) for name in NAMES[:8]], mode="append")
    graph.create_branch("other")
    for branch, (rows, gone) in (("main", ours), ("other", theirs)):
        people = [_person(name, values) for name, values in rows.items()]
        try:
            graph.load(people, mode="merge", branch=branch)
        except omnigraph.errors.LoadRejectedError:  # two of one nick
            graph.load(people[:1], mode="merge", branch=branch)
        for name in gone:
            graph.mutate(f'query q() {{ delete Person where name = "{name}" }}', branch=branch)
    graph.create_branch("one")
    graph.create_branch("two")
    return graph


def _person(name: str, values: tuple[int, str | None]) -> dict[str, Any]:
    return {"type": "Person", "data": {"name": name, "age": values[0], "nick": values[1]}}


def merged(graph: Graph, into: str, engine: str, size: int) -> Any:
    """What a merge comes to: the counts and the entities, or the conflicts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_merge, "MOST_ROWS", size)
        patch.setattr(checks, "ROWS_PER_SHARE", 2 * size)
        try:
            changes = graph.merge("other", into, engine=engine).changes
        except MergeConflictError as error:
            return sorted(error.conflicts, key=str)
    return changes, sorted(graph.export(branch=into))


OURS: Side = {"p01": (2, None), "p02": (2, "x"), "p09": (3, None)}, ["p03", "p04"]
CLASH: Side = {"p01": (2, None), "p02": (3, "y"), "p03": (2, None), "p05": (2, None), "p10": (1, None)}, ["p06", "p04"]
CLEAN: Side = {"p01": (2, None), "p05": (2, None), "p07": (2, "y"), "p10": (1, None), "p11": (1, "z")}, ["p06", "p04"]
TAKEN: Side = {"p05": (2, "x"), "p07": (2, "y"), "p10": (1, None), "p11": (1, None)}, []


@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.parametrize(
    "theirs, kinds",
    [(CLASH, ["delete_vs_update", "divergent_update"]), (TAKEN, ["unique_violation"]), (CLEAN, None)],
)
def test_a_merge_in_shares_does_what_a_merge_at_once_does(
    tmp_path: Any, engine: str, theirs: Side, kinds: list[str] | None
) -> None:
    graph = changed_on_both_sides(str(tmp_path / "graph"), OURS, theirs)
    at_once = merged(graph, "one", "local", 1_000)
    assert merged(graph, "two", engine, 2) == at_once
    assert kinds is None or [conflict.kind for conflict in at_once] == kinds


@given(SIDE, SIDE, st.integers(1, 4))
@settings(max_examples=max(3, settings().max_examples // 10))
def test_random_changes_are_merged_alike(ours: Side, theirs: Side, size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        graph = changed_on_both_sides(f"{directory}/graph", ours, theirs)
        assert merged(graph, "two", "local", size) == merged(graph, "one", "local", 1_000)


IDS = st.lists(st.text(max_size=3), unique=True, min_size=1)


@given(IDS, IDS)
def test_every_id_is_in_one_range(ids: list[str], bounds: list[str]) -> None:
    rows = pa.table({ID: pa.array(ids, pa.string())})
    first = sorted(bounds)
    found = {one.share: received([one], 0, rows.schema)[ID].to_pylist() for one in ranged_parcels(0, rows, first)}
    assert sorted(name for names in found.values() for name in names) == sorted(ids)
    for share, names in found.items():
        assert all(share == 0 or first[share - 1] <= name for name in names)
        assert all(share == len(first) or name < first[share] for name in names)


@given(st.lists(st.tuples(st.text(max_size=3), st.floats(allow_nan=False)), min_size=1), st.integers(1, 5))
def test_equal_values_are_in_one_share(values: list[tuple[str, float]], shares: int) -> None:
    rows = pa.table({ID: [name for name, _ in values], "x": [number for _, number in values]})
    found = [
        (one.share, received([one], 0, rows.schema).to_pylist()) for one in hashed_parcels(0, rows, [ID, "x"], shares)
    ]
    assert sorted(map(str, (row for _, part in found for row in part))) == sorted(map(str, rows.to_pylist()))
    where: dict[tuple[str, float], int] = {}
    for share, part in found:
        assert all(where.setdefault((row[ID], row["x"]), share) == share for row in part)
