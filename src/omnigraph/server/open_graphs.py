"""The graphs of a server with their stored queries, opened several at a time.

A graph that cannot be served is skipped, with a log entry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnigraph import graph as graphs
from omnigraph.errors import (
    GraphNotFoundError,
    OmnigraphError,
    QueryError,
    ServerStartError,
    StoredQueryBrokenError,
    StoredQueryNotFoundError,
)
from omnigraph.graph import Graph
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.compiler import CompiledQuery, compile_query, parse_queries, select_query
from omnigraph.lang.query_tree import WriteBody
from omnigraph.lang.source import Source
from omnigraph.server.settings import QueryFile, ServedGraph, Serving


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """One query of a file. `exposed` says whether the catalog lists it."""

    name: str
    source: Source
    tool_name: str
    is_mutation: bool
    exposed: bool = True


@dataclass(frozen=True, slots=True)
class StoredQueries:
    """The stored queries of a graph, by name."""

    known: Mapping[str, StoredQuery]

    @classmethod
    def read(cls, files: Iterable[QueryFile]) -> StoredQueries:
        """Read the files that the settings name. No two queries have one name."""
        known: dict[str, StoredQuery] = {}
        for query in (query for file in files for query in _queries(file)):
            if query.name in known:
                message = f"two stored queries are named '{query.name}'"
                raise StoredQueryBrokenError(message, queries=[query.name], hint="rename one of them")
            known[query.name] = query
        return cls(known)

    def find(self, name: str) -> StoredQuery:
        query = self.known.get(name)
        if query is None:
            raise not_found(name)
        return query

    def check(self, catalog: Catalog) -> None:
        """See that every query suits a schema; raise StoredQueryBrokenError with all that do not."""
        broken: dict[str, QueryError] = {}
        for query in self.known.values():
            try:
                compile_query(query.source, catalog, query.name)
            except QueryError as error:
                broken[query.name] = error
        if broken:
            problems = "\n".join(str(error) for error in broken.values())
            message = f"stored queries that do not suit the schema: {', '.join(broken)}\n{problems}"
            hint = "change the queries first, and start the server with them"
            raise StoredQueryBrokenError(message, queries=list(broken), hint=hint)

    def checks(self, given: Iterable[str]) -> dict[str, str]:
        """Return checks by name: a word names a stored query, any other text is a source of queries."""
        found: dict[str, str] = {}
        for text in given:
            if text.isidentifier():
                found[text] = self.find(text).source.text
            else:
                parsed = parse_queries(Source(text, "<check>"))
                found |= {str(query.name): text for query in parsed.queries}
        return found

    def catalog(self, catalog: Catalog) -> dict[str, Any]:
        """List what can be run, as documents."""
        exposed = [query for _, query in sorted(self.known.items()) if query.exposed]
        return {"queries": [_described(query, compile_query(query.source, catalog, query.name)) for query in exposed]}


def not_found(name: str) -> StoredQueryNotFoundError:
    """A query that is not there, and one that may not be run, look alike."""
    return StoredQueryNotFoundError("stored query not found", query=name, hint="see the list of stored queries")


def _queries(file: QueryFile) -> list[StoredQuery]:
    source = Source.read(file.path)
    parsed = parse_queries(source)
    chosen = parsed.queries if file.name is None else (select_query(parsed, file.name),)
    return [
        StoredQuery(
            str(one.name), source, file.tool_name or str(one.name), isinstance(one.body, WriteBody), file.exposed
        )
        for one in chosen
    ]


def _described(query: StoredQuery, compiled: CompiledQuery) -> dict[str, Any]:
    about = {"description": compiled.description, "instruction": compiled.instruction}
    return {
        "name": query.name,
        "tool_name": query.tool_name,
        "mutation": query.is_mutation,
        **{name: text for name, text in about.items() if text is not None},
        "params": [{"name": name, **type_.describe()} for name, type_ in compiled.parameters.items()],
    }


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
    # Opening waits for storage most of the time, and may have to recover; one graph must not delay all others.
    with ThreadPoolExecutor(_THREADS, "omnigraph-open") as pool:
        found = dict(zip(serving.graphs, pool.map(_try_open, serving.graphs.items()), strict=True))
    healthy = {name: one for name, one in found.items() if isinstance(one, OpenGraph)}
    skipped = {name: one for name, one in found.items() if isinstance(one, OmnigraphError)}
    for name, error in skipped.items():
        _LOG.error("graph '%s' is not served: %s", name, error)
    # One broken graph must not take the healthy ones down, unless the operator prefers no server to an incomplete one.
    if skipped and (serving.require_all_graphs or not healthy):
        name, error = next(iter(skipped.items()))
        raise ServerStartError(f"graph '{name}' cannot be served: {error}", hint="fix it, or remove it")
    return OpenGraphs(healthy, skipped)


def _try_open(item: tuple[str, ServedGraph]) -> OpenGraph | OmnigraphError:
    name, served = item
    try:
        # The files first: a graph with unreadable queries is not created.
        stored = StoredQueries.read(served.queries)
        graph = _open_or_init(served)
        stored.check(graph.catalog)
    except OmnigraphError as error:
        return error
    return OpenGraph(name, graph, stored)


def _open_or_init(served: ServedGraph) -> Graph:
    try:
        return graphs.open(served.uri, durability=served.durability, upkeep=served.upkeep.optimize)
    except GraphNotFoundError:
        if served.schema is None:
            raise
        schema, upkeep = Path(served.schema), served.upkeep.optimize
        return graphs.init(served.uri, schema, durability=served.durability, upkeep=upkeep)
