"""Open the graphs of a server, several at a time. A graph that cannot be served is skipped, with a log entry."""

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

_THREADS = 4
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenGraph:
    """A graph that is served, and its stored queries."""

    graph_id: str
    graph: Graph
    stored: StoredQueries


@dataclass(frozen=True, slots=True)
class OpenGraphs:
    """The graphs to serve, and the error of each graph that was skipped."""

    graphs: Mapping[str, OpenGraph]
    skipped: Mapping[str, OmnigraphError]


def open_graphs(serving: Serving) -> OpenGraphs:
    """Open all graphs and check their stored queries. Raise ServerStartError if none can be served."""
    with ThreadPoolExecutor(_THREADS, "omnigraph-open") as pool:
        found = dict(zip(serving.graphs, pool.map(_try_open, serving.graphs.items()), strict=True))
    healthy = {name: one for name, one in found.items() if isinstance(one, OpenGraph)}
    skipped = {name: one for name, one in found.items() if isinstance(one, OmnigraphError)}
    for name, error in skipped.items():
        _LOG.error("graph '%s' is not served: %s", name, error)
    if skipped and (serving.require_all_graphs or not healthy):
        name, error = next(iter(skipped.items()))
        raise ServerStartError(f"graph '{name}' cannot be served: {error}", hint="fix it, or remove it")
    return OpenGraphs(healthy, skipped)


def _try_open(item: tuple[str, ServedGraph]) -> OpenGraph | OmnigraphError:
    name, served = item
    try:
        stored = StoredQueries.read(served.queries)
        graph = _open_or_init(served)
        stored.check(graph.catalog)
    except OmnigraphError as error:
        return error
    return OpenGraph(name, graph, stored)


def _open_or_init(served: ServedGraph) -> Graph:
    try:
        return graphs.open(served.uri)
    except GraphNotFoundError:
        if served.schema is None:
            raise
        return graphs.init(served.uri, Path(served.schema))
