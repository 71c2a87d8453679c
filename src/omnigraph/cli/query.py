"""`omnigraph query`: read a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json
from omnigraph.cli.render import FORMATS, LAYOUTS, WIDEST, Look, show
from omnigraph.cli.sources import AliasName, Asked, File, Given, Name, Params, ParamsFile, Text, Words, asked

if TYPE_CHECKING:
    from omnigraph.api.rows import Explanation, Result

Format = Annotated[str | None, typer.Option("--format", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")]


def query(
    scope: Scope,
    words: Words = None,
    *,
    query: File = None,
    text: Text = None,
    params: Params = None,
    params_file: ParamsFile = None,
    name: Name = None,
    alias: AliasName = None,
    branch: Annotated[str | None, typer.Option(help="The branch to read.", metavar="NAME")] = None,
    snapshot: Annotated[
        str | None, typer.Option(help="The state to read: a branch, tag, commit or REF~N.", metavar="REF")
    ] = None,
    format_: Format = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print how it was done instead of its rows.")] = False,
    as_json: Json = False,
) -> None:
    """Run a query and print its rows."""
    if branch is not None and snapshot is not None:
        raise typer.BadParameter("give either --branch or --snapshot", param_hint="--snapshot")
    chosen = format_asked(format_, as_json=as_json)
    wanted = asked(scope, Given(words or (), query, text, params, params_file, name, alias))
    look = look_of(scope, chosen or wanted.format)
    place: dict[str, Any] = {"branch": branch or wanted.branch or scope.branch(), "snapshot": snapshot}
    if explain:
        graph = scope.at(wanted.uri, graph=wanted.graph).read()
        _explain(graph.explain(_source(wanted), wanted.params, name=wanted.name, **place), chosen == "json")
        return
    show(_answer(scope, wanted, place), snapshot, look)


def _answer(scope: Scope, wanted: Asked, place: dict[str, Any]) -> Result:
    target = scope.at(wanted.uri, graph=wanted.graph)
    if wanted.source is None:
        return target.stored().invoke_read(wanted.stored_name, wanted.params, **place)
    return target.read().query(wanted.source, wanted.params, name=wanted.name, **place)


def _source(wanted: Asked) -> Any:
    if wanted.source is None:
        raise typer.BadParameter("only a query that is given can be explained", param_hint="--explain")
    return wanted.source


def format_asked(format_: str | None, *, as_json: bool) -> str | None:
    """The format that the command line asks for."""
    if format_ is not None and (as_json or format_ not in FORMATS):
        raise typer.BadParameter(f"give one of {', '.join(FORMATS)}, or --json", param_hint="--format")
    return "json" if as_json else format_


def look_of(scope: Scope, format_: str | None) -> Look:
    """How rows are printed: as asked, else as the project says, else as the person has set it for all."""
    ours, theirs = scope.project.cli, scope.operator.defaults
    return Look(
        format_ or ours.one_of("output_format", FORMATS) or theirs.one_of("output", FORMATS) or "table",
        ours.number("table_max_column_width") or theirs.number("table_max_column_width") or WIDEST,
        ours.one_of("table_cell_layout", LAYOUTS) or theirs.one_of("table_cell_layout", LAYOUTS) or LAYOUTS[0],
    )


def _explain(found: Explanation, as_json: bool) -> None:  # noqa: FBT001 - what the flag of the command says
    if as_json:
        output.document(found.to_dict())
        return
    for line in str(found).splitlines():
        output.data(line)
