"""`omnigraph queries`: list and validate the stored queries of an omnigraph.yaml."""

from __future__ import annotations

import typer

from omnigraph.cli.address import Scope
from omnigraph.cli.command import command
from omnigraph.cli.output import Document, Line, Lines
from omnigraph.errors import AddressError, GraphNotFoundError
from omnigraph.lang import Catalog, Source, compile_schema, lint_queries
from omnigraph.lang.compiler import parse_queries, select_query
from omnigraph.lang.query_tree import QueryDecl
from omnigraph.server.config import query_files
from omnigraph.server.open_graphs import StoredQueries, StoredQuery
from omnigraph.settings import ServerSection


@command("queries list")
def list_queries(scope: Scope) -> None:
    """List the stored queries with their parameters."""
    stored = [one for _, one in sorted(_stored(scope).known.items())]
    found = [(one, select_query(parse_queries(one.source), one.name)) for one in stored]
    scope.emit({"queries": [_document(query, declared) for query, declared in found]}, _listed(found))


def _document(query: StoredQuery, declared: QueryDecl) -> Document:
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


def _listed(found: list[tuple[StoredQuery, QueryDecl]]) -> Lines:
    for query, declared in found:
        given = ", ".join(f"${one.name}: {one.type}" for one in declared.parameters)
        yield f"{query.name}({given}) {'mutation' if query.is_mutation else 'read'}"
        yield from (f"    {text}" for text in (declared.description, declared.instruction) if text)


@command("queries validate")
def validate(scope: Scope) -> None:
    """Check the stored queries against the schema of their graph. Exits with 1 if one does not match it."""
    stored, catalog = _stored(scope), _catalog(scope)
    broken, warnings = [], []
    for one in stored.known.values():
        report = lint_queries(one.source, catalog, {})
        # The file may have other queries; only the stored one counts.
        result = next(result for result in report.results if result.name == one.name)
        if result.error:
            broken.append({"query": one.name, "message": str(result.error)})
        warnings += [{"query": one.name, "message": text} for text in result.warnings]
    scope.emit({"ok": not broken, "breakages": broken, "warnings": warnings}, _validated(broken, warnings))
    if broken:
        raise typer.Exit(1)


def _validated(broken: list[Document], warnings: list[Document]) -> Lines:
    for style, label, found in (("red", "ERROR", broken), ("yellow", "WARN ", warnings)):
        yield from (Line(f"{label} query `{one['query']}`: {one['message']}", style) for one in found)
    yield f"{len(broken)} broken, {len(warnings)} warnings"


def _chosen(scope: Scope) -> str | None:
    """The graph of the project whose queries to use: the given one, or the only one."""
    if scope.flags.cluster is not None or scope.flags.profile is not None:
        raise AddressError("clusters are not supported by this version", hint="give an omnigraph.yaml with --config")
    project = scope.project
    served = project.file.part(ServerSection, "server").graph
    name = scope.flags.target or scope.flags.graph or project.cli.graph or served
    known = project.file.names("graphs")
    return name or (known[0] if len(known) == 1 else None)


def _stored(scope: Scope) -> StoredQueries:
    project, name = scope.project, _chosen(scope)
    own = query_files(project.file, project.graph(name).queries, "graphs", name) if name else ()
    # As the server does it: the queries of a graph win over those of the file.
    files = own or query_files(project.file, project.file.values.get("queries"))
    if not files:
        message = f"{project.file.path} names no stored queries"
        raise AddressError(message, hint="name them below `queries:`, or pick a graph with --target")
    return StoredQueries.read(files)


def _catalog(scope: Scope) -> Catalog:
    """The schema to check against: of the graph, or of the file that the graph will be created from."""
    name = _chosen(scope)
    if name is None:
        raise AddressError("the project has several graphs", hint="pick one with --target")
    try:
        return scope.at(graph=name).read().catalog
    # A new project is checked before its graph is created.
    except GraphNotFoundError:
        schema = scope.project.graph(name).schema_file
        if schema is None:
            raise
        return compile_schema(Source.read(scope.project.file.folder / schema))
