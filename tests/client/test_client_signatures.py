"""A graph behind a server has the methods of a graph in storage, with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from omnigraph import AsyncGraph, Graph, RemoteGraph
from omnigraph.client.asynchronous import AsyncSnapshotView
from omnigraph.client.differences import AsyncDiff, RemoteDiff
from omnigraph.client.remote import RemoteSnapshotView
from omnigraph.graph import SnapshotView
from omnigraph.history.diff import Diff

HERE_ONLY = {
    # A server knows who asks by the token, and a client gives ids by itself; a server looks after its graphs. A stream
    # is written where the storage is.
    Graph: {"acting_as", "as_operation", "upkeep_due", "as_batch", "stream"},
    Diff: {"tables", "filter", "pairs", "check_readable", "explaining_reclaimed", "schemas"},  # of the storage
    SnapshotView: set(),
}
# A server stores queries and knows callers, a graph does neither.
SERVED_ONLY = {"stored_queries", "invoke_query", "invoke_mutation", "whoami"}
PAIRS = [
    (Graph, RemoteGraph),
    (Graph, AsyncGraph),
    (SnapshotView, RemoteSnapshotView),
    (SnapshotView, AsyncSnapshotView),
    (Diff, RemoteDiff),
    (Diff, AsyncDiff),
]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("there, here", PAIRS, ids=lambda kind: kind.__name__)
def test_nothing_is_missing_and_nothing_is_more(there: type, here: type) -> None:
    attributes = {"uri", "read_only", "schema", "before", "after"}  # set when it is made

    assert (public(there) - HERE_ONLY[there]) - attributes == public(here) - SERVED_ONLY - attributes


@pytest.mark.parametrize("there, here", PAIRS[:4], ids=lambda kind: kind.__name__)
def test_every_method_takes_the_same_parameters(there: type, here: type) -> None:
    methods = {name for name in public(there) - HERE_ONLY[there] if inspect.isroutine(getattr(there, name))}

    for name in methods:
        expected = inspect.signature(getattr(there, name)).parameters
        assert inspect.signature(getattr(here, name)).parameters == expected, name


def test_a_method_is_documented_with_what_it_returns() -> None:
    assert inspect.signature(RemoteGraph.query).return_annotation == "Result"
    assert RemoteGraph.query.__doc__ == Graph.query.__doc__
    assert RemoteGraph.query.__name__ == "query"
    assert inspect.iscoroutinefunction(AsyncGraph.query)
    shared = public(Graph) - HERE_ONLY[Graph] - {"uri", "read_only", "catalog"}
    assert all(getattr(RemoteGraph, name).__doc__ for name in shared)
