"""`omnigraph lint`: check a file of queries against a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json, Uri
from omnigraph.errors import FileAccessError

if TYPE_CHECKING:
    from omnigraph.lang import Catalog, LintReport


def lint(
    scope: Scope,
    uri: Uri = None,
    *,
    query: Annotated[str, typer.Option(help="The .gq file to check.", metavar="FILE")],
    schema: Annotated[str | None, typer.Option(help="The .pg schema to check against.", metavar="FILE")] = None,
    as_json: Json = False,
) -> None:
    """Check every query of a file: syntax, types, and what is legal but likely wrong.

    Exits with 1 if a query has an error; warnings do not count.
    """
    from omnigraph.lang import Source, lint_queries  # noqa: PLC0415 - `--help` must stay quick

    catalog, origin = _catalog(scope, uri, schema)
    report = lint_queries(Source.read(scope.project.query_file(query)), catalog, origin)
    if as_json:
        output.document(report.to_dict())
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(1)


def _catalog(scope: Scope, uri: str | None, schema: str | None) -> tuple[Catalog, dict[str, str]]:
    """The catalog to check against, and where it comes from; a file wins over a graph."""
    from omnigraph.lang import Source, compile_schema  # noqa: PLC0415 - `--help` must stay quick

    if schema is not None:
        return compile_schema(Source.read(schema)), {"kind": "file", "path": schema}
    target = scope.find(uri)
    if target is None:
        hint = "pass --schema FILE, or the address of a graph"
        raise FileAccessError("there is no schema to check against", path="", hint=hint)
    graph = target.read()
    return graph.catalog, {"kind": "graph", "uri": graph.uri}


def _print(report: LintReport) -> None:
    for result in report.results:
        if result.error:
            output.data(f"ERROR query `{result.name}`: {result.error}", "red")
        else:
            output.data(f"OK    query `{result.name}` ({result.kind})", "green")
        for warning in result.warnings:
            output.data(f"WARN  query `{result.name}`: {warning}", "yellow")
    for finding in report.findings:
        label, style = {"error": ("ERROR", "red"), "warning": ("WARN ", "yellow")}[finding.severity]
        output.data(f"{label} {finding.diagnostic or f'{finding.code}: {finding.message}'}", style)
    counts = f"{report.errors} error(s), {report.warnings} warning(s), {report.infos} info item(s)"
    output.data(f"INFO  Lint complete: {len(report.results)} queries processed ({counts})")
