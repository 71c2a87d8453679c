"""`omnigraph export`: write what is in a graph to stdout, to a file or into a directory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.graph import graph_address

if TYPE_CHECKING:
    from omnigraph.pipeline.export import ExportResult

_FORMATS = ("jsonl", "csv", "parquet")
_ENGINES = ("auto", "local", "spark")


def export(
    uri: Annotated[str | None, typer.Argument(help="The graph, or give --store.", metavar="URI")] = None,
    *,
    store: Annotated[str | None, typer.Option("--store", "--uri", help="The graph.", metavar="URI")] = None,
    branch: Annotated[str | None, typer.Option(help="The branch to export.", metavar="NAME")] = None,
    snapshot: Annotated[str | None, typer.Option(help="A commit: export it as it was then.", metavar="COMMIT")] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Only this type; may be repeated.", metavar="NAME")
    ] = None,
    path: Annotated[
        str | None, typer.Option("--output", "-o", help="A file, or a new directory; also s3://.", metavar="PATH")
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="jsonl, csv or parquet; else by the name of the output.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, spark, or auto: a large graph on Spark.")] = "auto",
    master: Annotated[str | None, typer.Option(help="The Spark master; local[*,4] if none.", metavar="URL")] = None,
    conf: Annotated[list[str] | None, typer.Option(help="A Spark setting.", metavar="KEY=VALUE")] = None,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Write every entity, or those of some types, in a form that can be loaded again."""
    import omnigraph  # noqa: PLC0415 - loads the engine
    from omnigraph.pipeline.progress import SILENT, progress_on  # noqa: PLC0415

    address = graph_address(uri, store)
    if branch is not None and snapshot is not None:
        raise typer.BadParameter("give either --branch or --snapshot", param_hint="--snapshot")
    format_ = _one_of("--format", format_ or _format_of(path), _FORMATS)
    engine = _one_of("--engine", engine, _ENGINES)
    graph, branch = omnigraph.open(address, read_only=True), branch or "main"
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
        conf=dict(_setting(text) for text in conf or ()),
        progress=SILENT if quiet else progress_on(),
    )
    output.data(_summary(address, done))


def _format_of(path: str | None) -> str:
    ending = (path or "").lower().rpartition(".")[2]
    return ending if ending in _FORMATS else "jsonl"


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise typer.BadParameter(f"'{value}' is not one of {', '.join(allowed)}", param_hint=name)
    return value


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise typer.BadParameter(f"'{text}' is no KEY=VALUE", param_hint="--conf")
    return key, value


def _summary(address: str, done: ExportResult) -> str:
    counts = f"{done.total} entities across {len(done.nodes)} node types and {len(done.edges)} edge types"
    return f"exported {address} to {done.path}: {counts}"
