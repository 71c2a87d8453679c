"""`omnigraph export`: write what is in a graph to stdout, to a file or into a directory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Uri
from omnigraph.cli.engine import ENGINES, Conf, Engine, Master, one_of, progress, settings

if TYPE_CHECKING:
    from omnigraph.api.results import ExportResult

_FORMATS = ("jsonl", "csv", "parquet")


def export(
    scope: Scope,
    uri: Uri = None,
    *,
    branch: Annotated[str | None, typer.Option(help="The branch to export.", metavar="NAME")] = None,
    snapshot: Annotated[
        str | None, typer.Option(help="The state to export: branch, tag, commit or REF~N.", metavar="REF")
    ] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Only this type; may be repeated.", metavar="NAME")
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="The same by its key: node:NAME or edge:NAME.", metavar="KEY")
    ] = None,
    path: Annotated[
        str | None, typer.Option("--output", "-o", help="A file, or a new directory; also s3://.", metavar="PATH")
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="jsonl, csv or parquet; else by the name of the output.")
    ] = None,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", hidden=True)] = False,
) -> None:
    """Write every entity, or those of some types, in a form that can be loaded again."""
    if jsonl:
        output.deprecated("export --jsonl", "export")
    target = scope.at(uri)
    types = [*(types or ()), *(tables or ())] or None
    if branch is not None and snapshot is not None:
        raise typer.BadParameter("give either --branch or --snapshot", param_hint="--snapshot")
    format_ = one_of("--format", format_ or _format_of(path), _FORMATS)
    engine = one_of("--engine", engine, ENGINES)
    graph, branch = target.read(), scope.branch(branch)
    if path is None:
        lines = graph.export(branch=branch, snapshot=snapshot, types=types, format=format_, engine=engine)
        sys.stdout.writelines(lines)
        return
    done = graph.export(
        path,
        branch=branch,
        snapshot=snapshot,
        types=types,
        format=format_,
        engine=engine,
        master=master,
        conf=settings(conf),
        progress=progress(quiet=scope.flags.quiet),
    )
    output.data(_summary(target.uri, done))


def _format_of(path: str | None) -> str:
    ending = (path or "").lower().rpartition(".")[2]
    return ending if ending in _FORMATS else "jsonl"


def _summary(address: str, done: ExportResult) -> str:
    counts = f"{done.total} entities across {len(done.nodes)} node types and {len(done.edges)} edge types"
    return f"exported {address} to {done.path}: {counts}"
