"""Batches of streams: each is committed once, its position moves in the same swap, and none can be missing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.results import LoadResult, StreamBatch
from omnigraph.commit import failpoints
from omnigraph.errors import StreamBatchDoneError, StreamGapError, StreamTakenError
from omnigraph.graph import Graph
from tests.support.faults import CrashError, crash

SCHEMA = "node Order { number: I64 @key  amount: F64? }"
STREAM, QUERY = "orders", "query-1"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "shop", SCHEMA)


def commit(
    graph: Graph, batch: int, *numbers: int, stream: str = STREAM, query: str = QUERY, replaces: str | None = None
) -> LoadResult:
    return commit_on(graph, "main", StreamBatch(stream, query, batch, replaces), *numbers)


def commit_on(graph: Graph, branch: str, batch: StreamBatch, *numbers: int) -> LoadResult:
    records = [{"type": "Order", "data": {"number": number}} for number in numbers]
    return graph.as_batch(batch).load(records, mode="append", branch=branch)


def orders(graph: Graph, branch: str = "main") -> list[int]:
    found = graph.query("query q() { match { $o: Order } return { $o.number as n } }", branch=branch)
    return sorted(row["n"] for row in found.rows)


def last(graph: Graph, branch: str = "main", stream: str = STREAM) -> int | None:
    position = graph.stream(stream, branch=branch)
    return position.last.batch if position else None


def test_the_commit_of_a_batch_names_it_and_moves_the_position_of_its_stream(graph: Graph) -> None:
    done = commit(graph, 0, 1, 2)

    assert done.commit
    assert done.commit.details == {"stream": {"name": STREAM, "query": QUERY, "batch": 0}}
    position = graph.stream(STREAM)
    assert position
    assert (position.last, position.commit_id) == (StreamBatch(STREAM, QUERY, 0), done.commit.commit_id)
    assert graph.stream("other") is None


def test_a_batch_is_never_committed_again_however_long_ago_it_was(graph: Graph) -> None:
    commits = [commit(graph, batch, batch).commit for batch in range(40)]  # more than the window of the manifest

    for batch in (39, 20, 0):
        with pytest.raises(StreamBatchDoneError) as caught:
            commit(graph, batch, 1000 + batch)
        assert caught.value.batch == batch
        assert caught.value.commit_id == (commits[39].commit_id if batch == 39 and commits[39] else None)
    assert orders(graph) == list(range(40))
    assert sum(not one.is_maintenance for one in graph.commits()) == 41


def test_a_batch_without_rows_moves_the_position_too(graph: Graph) -> None:
    commit(graph, 0, 1)

    assert commit(graph, 1).commit is not None
    commit(graph, 2, 2)

    assert (last(graph), orders(graph)) == (2, [1, 2])
    blocks = [graph.commit_changes(one.commit_id).blocks for one in graph.commits()[:3]]
    assert [sum(len(block.changes) for block in found) for found in blocks] == [1, 0, 1]


def test_a_checkpoint_of_another_graph_is_refused(graph: Graph) -> None:
    with pytest.raises(StreamGapError) as caught:
        commit(graph, 7, 1)
    assert (caught.value.batch, caught.value.expected) == (7, 0)
    commit(graph, 0, 1)
    with pytest.raises(StreamGapError, match="is at batch 0, and its query continues with batch 2") as caught:
        commit(graph, 2, 2)

    assert caught.value.expected == 1
    assert (orders(graph), last(graph), len(graph.commits())) == ([1], 0, 2)
    commit(graph, 2, 2, replaces=QUERY)  # accepted
    assert last(graph) == 2


def test_a_name_that_another_query_uses_is_refused(graph: Graph) -> None:
    commit(graph, 0, 1)

    with pytest.raises(StreamTakenError) as caught:
        commit(graph, 1, 2, query="query-2")
    assert caught.value.query == QUERY
    commit(graph, 0, 2, query="query-2", replaces=QUERY)
    with pytest.raises(StreamTakenError):
        commit(graph, 1, 3)

    assert orders(graph) == [1, 2]


def test_two_streams_of_one_branch_have_a_position_each(graph: Graph) -> None:
    for batch in range(3):
        commit(graph, batch, batch)
        commit(graph, batch, 10 + batch, stream="returns", query="query-2")

    assert (last(graph), last(graph, stream="returns")) == (2, 2)
    assert orders(graph) == [0, 1, 2, 10, 11, 12]


@pytest.mark.parametrize(
    "place, again",
    [
        (failpoints.PUBLISH_AFTER_GATES, True),
        (failpoints.PUBLISH_AFTER_SIDECAR, True),
        (failpoints.PUBLISH_AFTER_TABLE_COMMIT, False),
        (failpoints.PUBLISH_BEFORE_MANIFEST, False),
        (failpoints.PUBLISH_AFTER_MANIFEST, False),
    ],
)
def test_a_recovered_batch_moves_its_position_with_it(graph: Graph, place: str, *, again: bool) -> None:
    commit(graph, 0, 1)
    with failpoints.armed(place, crash), pytest.raises(CrashError):
        commit(graph, 1, 2)

    reopened = omnigraph.open(graph.uri)

    assert orders(reopened) == ([1] if again else [1, 2])
    assert last(reopened) == (0 if again else 1)
    if again:
        commit(reopened, 1, 2)
    else:
        with pytest.raises(StreamBatchDoneError):
            commit(reopened, 1, 2)
    assert orders(reopened) == [1, 2]


def test_of_two_drivers_that_commit_one_batch_one_wins(graph: Graph) -> None:
    rendezvous = failpoints.Rendezvous()

    def other() -> None:
        commit(omnigraph.open(graph.uri), 0, 2)

    with ThreadPoolExecutor(1) as pool, failpoints.armed(failpoints.PUBLISH_AFTER_GATES, rendezvous):
        first = pool.submit(other)
        rendezvous.wait_until_reached()
        second = ThreadPoolExecutor(1).submit(commit, graph, 0, 1)
        rendezvous.release()
        first.result()
        with pytest.raises(StreamBatchDoneError):
            second.result()
    assert (orders(graph), last(graph)) == ([2], 0)


def test_a_merge_brings_the_position_along(graph: Graph) -> None:
    commit(graph, 0, 1)
    graph.create_branch("staging")
    for batch in (1, 2):
        commit_on(graph, "staging", StreamBatch(STREAM, QUERY, batch), batch + 1)
    assert (last(graph), last(graph, "staging")) == (0, 2)

    graph.merge("staging")
    graph.delete_branch("staging")

    assert last(graph) == 2
    with pytest.raises(StreamBatchDoneError):
        commit(graph, 2, 99)
    commit(graph, 3, 4)
    assert orders(graph) == [1, 2, 3, 4]


def test_a_merge_of_an_older_branch_leaves_the_position_where_it_is(graph: Graph) -> None:
    commit(graph, 0, 1)
    graph.create_branch("old")
    graph.load([{"type": "Order", "data": {"number": 100}}], mode="append", branch="old")
    commit(graph, 1, 2)

    graph.merge("old")

    assert last(graph) == 1
    assert orders(graph) == [1, 2, 100]


def _reverted(graph: Graph, _: Path) -> Graph:
    done = commit(graph, 1, 2).commit
    assert done
    graph.revert(done.commit_id)
    return graph


def _backed_up(graph: Graph, tmp_path: Path) -> Graph:
    commit(graph, 1, 2)
    graph.backup(tmp_path / "backup")
    omnigraph.restore(tmp_path / "backup", tmp_path / "restored")
    return omnigraph.open(tmp_path / "restored")


def _cleaned_up(graph: Graph, _: Path) -> Graph:
    commit(graph, 1, 2)
    graph.optimize()
    graph.apply_schema("node Order { number: I64 @key  amount: F64?  note: String? }")
    graph.cleanup(keep=1, confirm=True)
    return graph


@pytest.mark.parametrize("through", [_reverted, _backed_up, _cleaned_up])
def test_a_position_survives(graph: Graph, tmp_path: Path, through: Callable[[Graph, Path], Graph]) -> None:
    commit(graph, 0, 1)
    found = through(graph, tmp_path)

    assert last(found) == 1
    with pytest.raises(StreamBatchDoneError):
        commit(found, 1, 2)


def test_a_past_state_has_the_position_of_its_time(graph: Graph) -> None:
    commit(graph, 0, 1)
    graph.create_tag("then")
    commit(graph, 1, 2)

    graph.create_branch("again", base="then")

    assert last(graph, "again") == 0
    commit_on(graph, "again", StreamBatch(STREAM, QUERY, 1), 3)
    assert orders(graph, "again") == [1, 3]
