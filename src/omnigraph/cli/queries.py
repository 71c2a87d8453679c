"""`omnigraph queries`: look at the stored queries of an omnigraph.yaml, and check them against the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json
from omnigraph.cli.command import command, group
from omnigraph.errors import AddressError

if TYPE_CHECKING:
    from omnigraph.lang import Catalog
    from omnigraph.lang.query_tree import QueryDecl
    from omnigraph.server.stored import StoredQueries, StoredQuery
    from omnigraph.settings_file import Section

app = group("Look at the stored queries of an omnigraph.yaml.")


@command(app, "queries list")
def list_queries(scope: Scope, *, as_json: Json = False) -> None:
    """List the stored queries with their parameters."""
    stored = _stored(scope)
    found = [(query, _declared(query)) for _, query in sorted(stored.known.items())]
    if as_json:
        output.document({"queries": [_document(query, declared) for query, declared in found]})
        return
    for query, declared in found:
        given = ", ".join(f"${one.name}: {one.type}" for one in declared.parameters)
        output.data(f"{query.name}({given}) {'mutation' if query.is_mutation else 'read'}")
        for text in filter(None, (declared.description, declared.instruction)):
            output.data(f"    {text}")


@command(app, "queries validate")
def validate(scope: Scope, *, as_json: Json = False) -> None:
    """Check the stored queries against the schema of their graph. Exits with 1 if one does not suit it."""
    broken, warnings = _checked(_stored(scope), _catalog(scope))
    if as_json:
        output.document({"ok": not broken, "breakages": broken, "warnings": warnings})
    else:
        for style, label, items in (("red", "ERROR", broken), ("yellow", "WARN ", warnings)):
            for one in items:
                output.data(f"{label} query `{one['query']}`: {one['message']}", style)
        output.data(f"{len(broken)} broken, {len(warnings)} warnings")
    if broken:
        raise typer.Exit(1)


def _chosen(scope: Scope) -> Section | None:
    """The graph of the project whose queries are meant: the one that is named, or the only one."""
    if scope.flags.cluster is not None or scope.flags.profile is not None:
        raise AddressError("clusters are not supported by this version", hint="name an omnigraph.yaml with --config")
    project = scope.project
    graphs = project.root.sections("graphs")
    name = scope.flags.target or scope.flags.graph or project.cli.text("graph") or project.server_graph()
    if name is not None:
        project.target(name)
        return graphs[name]
    return next(iter(graphs.values())) if len(graphs) == 1 else None


def _stored(scope: Scope) -> StoredQueries:
    from omnigraph.server.config import query_files  # noqa: PLC0415 - loads the engine
    from omnigraph.server.stored import StoredQueries  # noqa: PLC0415

    project, graph = scope.project, _chosen(scope)
    own = query_files(graph, project.folder) if graph else ()
    files = own or query_files(project.root, project.folder)
    if not files:
        message = f"{project.root.path} names no stored queries"
        raise AddressError(message, hint="name them below `queries:`, or pick a graph with --target")
    return StoredQueries.read(files)


def _catalog(scope: Scope) -> Catalog:
    """The schema that counts: of the graph, or of the file that it will be made with."""
    from omnigraph.errors import GraphNotFoundError  # noqa: PLC0415 - `--help` must stay quick
    from omnigraph.lang import Source, compile_schema  # noqa: PLC0415

    graph = _chosen(scope)
    if graph is None:
        raise AddressError("it is not said for which graph the queries are", hint="pick one with --target")
    name = graph.place.removeprefix("graphs.")
    try:
        return scope.at(graph=name).read().catalog
    except GraphNotFoundError:
        schema = graph.text("schema")
        if schema is None:
            raise
        return compile_schema(Source.read(scope.project.folder / schema))


def _checked(stored: StoredQueries, catalog: Catalog) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    from omnigraph.lang import lint_queries  # noqa: PLC0415 - `--help` must stay quick

    broken, warnings = [], []
    for query in stored.known.values():
        report = lint_queries(query.source, catalog, {})
        result = next(one for one in report.results if one.name == query.name)
        if result.error:
            broken.append({"query": query.name, "message": str(result.error)})
        warnings += [{"query": query.name, "message": text} for text in result.warnings]
    return broken, warnings


def _declared(query: StoredQuery) -> QueryDecl:
    from omnigraph.lang.compiler import parse_queries, select_query  # noqa: PLC0415 - `--help` must stay quick

    return select_query(parse_queries(query.source), query.name)


def _document(query: StoredQuery, declared: QueryDecl) -> dict[str, Any]:
    about = {"description": declared.description, "instruction": declared.instruction}
    return {
        "name": query.name,
        "mcp_expose": query.exposed,
        "tool_name": query.tool_name,
        "mutation": query.is_mutation,
        **{name: text for name, text in about.items() if text is not None},
        "params": [
            {"name": str(one.name), "type": str(one.type), "nullable": one.type.nullable} for one in declared.parameters
        ],
    }
