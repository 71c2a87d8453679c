"""Opening the graphs of a server: some at a time; one that cannot be served is left out, and the log says why."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from omnigraph import graph as graphs
from omnigraph.errors import GraphNotFoundError, OmnigraphError, ServerStartError
from omnigraph.graph import Graph
from omnigraph.server.settings import ServedGraph, Serving
from omnigraph.server.stored import StoredQueries

_AT_ONCE = 4
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenGraph:
    """A graph that is served, and its stored queries."""

    graph_id: str
    graph: Graph
    stored: StoredQueries


@dataclass(frozen=True, slots=True)
class Opened:
    """What came of opening: graphs to serve, and why others are not."""

    graphs: Mapping[str, OpenGraph]
    left_out: Mapping[str, OmnigraphError]


def open_graphs(serving: Serving) -> Opened:
    """Open all graphs, and check their stored queries."""
    with ThreadPoolExecutor(_AT_ONCE, "omnigraph-open") as pool:
        found = dict(zip(serving.graphs, pool.map(_tried, serving.graphs.items()), strict=True))
    healthy = {name: one for name, one in found.items() if isinstance(one, OpenGraph)}
    left_out = {name: one for name, one in found.items() if isinstance(one, OmnigraphError)}
    for name, error in left_out.items():
        _LOG.error("graph '%s' is not served: %s", name, error)
    if left_out and (serving.require_all_graphs or not healthy):
        name, error = next(iter(left_out.items()))
        raise ServerStartError(f"graph '{name}' cannot be served: {error}", hint="mend it, or leave it out")
    return Opened(healthy, left_out)


def _tried(item: tuple[str, ServedGraph]) -> OpenGraph | OmnigraphError:
    name, served = item
    try:
        stored = StoredQueries.read(served.queries)
        graph = _opened(served)
        stored.check(graph.catalog)
    except OmnigraphError as error:
        return error
    return OpenGraph(name, graph, stored)


def _opened(served: ServedGraph) -> Graph:
    try:
        return graphs.open(served.uri)
    except GraphNotFoundError:
        if served.schema is None:
            raise
        return graphs.init(served.uri, Path(served.schema))
