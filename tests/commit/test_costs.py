"""What a commit, an open and a read cost in requests and bytes, at any length of the history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.graph import Graph
from omnigraph.manifest.publisher import Changes, Lineage, Manifest
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.manifest.segments import DIRECTORY, FAN_OUT, WINDOW
from omnigraph.storage.observe import RequestCounts, counted

SCHEMA = "node Person { name: String @key }\nedge Knows: Person -> Person\n"
INSERT = "query q($name: String) { insert Person { name: $name } }"
ONE_HOP = 'query q() { match { $p: Person { name: "p0" }  $p knows $q } return { $q.name } }'
PAST = "query q() { match { $p: Person } return { count($p) as n } }"


@pytest.fixture
def graph(s3_uri: str) -> Graph:
    made = omnigraph.init(s3_uri, SCHEMA)
    people = [{"type": "Person", "data": {"name": f"p{number}"}} for number in range(3)]
    made.load([*people, {"edge": "Knows", "from": "p0", "to": "p1"}], mode="merge", engine="local")
    return made


def requests_of(act: Callable[[], object]) -> RequestCounts:
    with counted() as requests:
        act()
    return requests.requests


def deepen(uri: str, commits: int) -> None:
    """Add commits that change no table: here only the history counts."""
    manifest = Manifest(Location.parse(uri))
    for _ in range(commits):
        manifest.publish(None, Changes(), {}, Lineage.new())


def test_a_warm_commit_of_one_row_makes_at_most_18_requests(graph: Graph) -> None:
    found = [requests_of(lambda: graph.mutate(INSERT, {"name": f"warm{at}"})).total for at in range(14)][4:]  # noqa: B023

    # One in five folds what the others left.
    assert sorted(found)[7] <= 18, found
    assert sum(found) / len(found) <= 20, found


def test_a_cold_commit_and_a_cold_read_cost_the_same_at_any_depth(graph: Graph) -> None:
    def costs(name: str) -> tuple[int, int]:
        commit = requests_of(lambda: omnigraph.open(graph.uri).mutate(INSERT, {"name": name}))
        read = requests_of(lambda: omnigraph.open(graph.uri, read_only=True).query(ONE_HOP))
        graph.optimize()
        return commit.total, read.total

    costs("first")
    shallow = costs("second")
    deepen(graph.uri, WINDOW * (FAN_OUT + 1))
    deep = costs("third")

    assert shallow[0] <= 60
    assert shallow[1] <= 20
    assert deep[0] <= shallow[0] * 1.15
    assert deep[1] <= shallow[1] * 1.15


def test_reads_of_branches_and_of_the_past_are_cached_like_those_of_main(graph: Graph) -> None:
    graph.create_branch("side")
    old = graph.commits()[0].commit_id
    graph.mutate(INSERT, {"name": "new"})
    ways: dict[str, Callable[[], object]] = {
        "main": lambda: graph.query(PAST),
        "branch": lambda: graph.query(PAST, branch="side"),
        "commit": lambda: graph.query(PAST, snapshot=old),
    }
    for read in ways.values():
        read()

    again = {name: requests_of(read) for name, read in ways.items()}

    assert {name: found.get for name, found in again.items()} == dict.fromkeys(ways, 0)
    assert max(found.total for found in again.values()) <= 5


def written(root: Path) -> int:
    paths = (path for name in (MANIFEST_PATH, DIRECTORY) for path in (root / name).rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in paths)


def test_the_bytes_of_a_commit_do_not_grow_with_the_history(tmp_path: Path) -> None:
    root = tmp_path / "graph"
    omnigraph.init(root, SCHEMA)
    store = Store.at(Location.parse(root))

    def bytes_of(commits: int) -> float:
        before = written(root)
        deepen(store.location.uri, commits)
        return (written(root) - before) / commits

    shallow = bytes_of(10)
    deepen(store.location.uri, WINDOW * FAN_OUT)
    deep = bytes_of(WINDOW * FAN_OUT)

    assert deep <= 2 * shallow
    assert deep < 12_000


def test_a_file_of_thousands_of_rows_takes_as_many_requests_as_one_of_a_few(tmp_path: Path) -> None:
    def costs(rows: int) -> tuple[int, int]:
        uri = tmp_path / str(rows)
        people = [{"type": "Person", "data": {"name": f"p{number}"}} for number in range(rows)]
        knows = [{"edge": "Knows", "from": f"p{number}", "to": "p1"} for number in range(rows)]
        omnigraph.init(uri, SCHEMA).load([*people, *knows], mode="merge", engine="local")
        read = requests_of(lambda: omnigraph.open(uri, read_only=True).query(ONE_HOP))
        commit = requests_of(lambda: omnigraph.open(uri).mutate(INSERT, {"name": "new"}))
        return read.total, commit.total

    assert costs(3000) == costs(3)
