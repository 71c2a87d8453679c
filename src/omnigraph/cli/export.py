"""`omnigraph export`: write what is in a graph to stdout, to a file or into a directory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.engine import ENGINES, Conf, Engine, Master, one_of, progress, settings
from omnigraph.cli.graph import graph_address
from omnigraph.cli.target import Store, Uri

if TYPE_CHECKING:
    from omnigraph.pipeline.export import ExportResult

_FORMATS = ("jsonl", "csv", "parquet")


def export(
    uri: Uri = None,
    *,
    store: Store = None,
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
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Write every entity, or those of some types, in a form that can be loaded again."""
    import omnigraph  # noqa: PLC0415 - loads the engine

    address = graph_address(uri, store)
    if branch is not None and snapshot is not None:
        raise typer.BadParameter("give either --branch or --snapshot", param_hint="--snapshot")
    format_ = one_of("--format", format_ or _format_of(path), _FORMATS)
    engine = one_of("--engine", engine, ENGINES)
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
        conf=settings(conf),
        progress=progress(quiet=quiet),
    )
    output.data(_summary(address, done))


def _format_of(path: str | None) -> str:
    ending = (path or "").lower().rpartition(".")[2]
    return ending if ending in _FORMATS else "jsonl"


def _summary(address: str, done: ExportResult) -> str:
    counts = f"{done.total} entities across {len(done.nodes)} node types and {len(done.edges)} edge types"
    return f"exported {address} to {done.path}: {counts}"
