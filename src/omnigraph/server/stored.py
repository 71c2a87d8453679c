"""Stored queries: named in the settings, checked against the schema, run by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from omnigraph.core.values import Scalar
from omnigraph.errors import QueryError, StoredQueryBrokenError, StoredQueryNotFoundError
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.compiler import CompiledQuery, compile_query, parse_queries, select_query
from omnigraph.lang.query_tree import WriteBody
from omnigraph.lang.source import Source
from omnigraph.lang.types import Type
from omnigraph.server.settings import QueryFile

_KINDS = {
    Scalar.STRING: "string",
    Scalar.BOOL: "bool",
    Scalar.I32: "int",
    Scalar.U32: "int",
    Scalar.I64: "bigint",
    Scalar.U64: "bigint",
    Scalar.F32: "float",
    Scalar.F64: "float",
    Scalar.DATE: "date",
    Scalar.DATETIME: "datetime",
    Scalar.BLOB: "blob",
    Scalar.VECTOR: "vector",
}


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
                message = f"there are two stored queries '{query.name}'"
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
        "params": [_parameter(name, type_) for name, type_ in compiled.parameters.items()],
    }


def _parameter(name: str, type_: Type) -> dict[str, Any]:
    kind = _KINDS[type_.scalar]
    document: dict[str, Any] = {"name": name, "kind": "list" if type_.is_list else kind}
    if type_.is_list:
        document["item_kind"] = kind
    if type_.dimension:
        document["vector_dim"] = type_.dimension
    return {**document, "nullable": type_.nullable}
