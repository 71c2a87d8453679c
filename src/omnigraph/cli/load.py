"""`omnigraph load`: put data into a graph, in one commit or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.graph import Json, commit_document, graph_address
from omnigraph.errors import FileAccessError, LoadRejectedError

if TYPE_CHECKING:
    from omnigraph.pipeline.load import LoadResult

_MODES = ("append", "merge", "overwrite")
_ENGINES = ("auto", "local", "spark")


def _choice(name: str, allowed: tuple[str, ...]) -> Any:
    def check(value: str) -> str:
        if value not in allowed:
            raise typer.BadParameter(f"'{value}' is not one of {', '.join(allowed)}", param_hint=name)
        return value

    return check


def load(
    uri: Annotated[str | None, typer.Argument(help="The graph, or give --store.", metavar="URI")] = None,
    *,
    data: Annotated[list[str], typer.Option(help="A file, directory, pattern or s3:// address; may be repeated.")],
    mode: Annotated[str, typer.Option(help="append, merge or overwrite.", callback=_choice("--mode", _MODES))],
    store: Annotated[str | None, typer.Option("--store", "--uri", help="The graph.", metavar="URI")] = None,
    branch: Annotated[str, typer.Option(help="The branch to load into.", metavar="NAME")] = "main",
    base: Annotated[str | None, typer.Option("--from", help="Make the branch of this one.", metavar="NAME")] = None,
    actor: Annotated[str | None, typer.Option("--as", help="Who loads.", metavar="ACTOR")] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="local, spark, or auto: small data local, large on Spark.", callback=_choice("--engine", _ENGINES)
        ),
    ] = "auto",
    master: Annotated[str | None, typer.Option(help="The Spark master; local[*,4] if none.", metavar="URL")] = None,
    conf: Annotated[list[str] | None, typer.Option(help="A Spark setting.", metavar="KEY=VALUE")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="jsonl, csv or parquet; else by name.")] = None,
    mapping: Annotated[str | None, typer.Option("--map", help="Which file holds which type.", metavar="FILE")] = None,
    errors: Annotated[str | None, typer.Option(help="Write every problem there, as JSONL.", metavar="FILE")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check everything and change nothing.")] = False,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Load JSONL, CSV or Parquet, checked against the schema, in one commit."""
    import omnigraph  # noqa: PLC0415 - loads the engine
    from omnigraph.pipeline.progress import SILENT, progress_on  # noqa: PLC0415

    address = graph_address(uri, store)
    try:
        done = omnigraph.open(address).load(
            data,
            mode=mode,
            branch=branch,
            base=base,
            actor=actor,
            engine=engine,
            format=format_,
            mapping=mapping,
            dry_run=dry_run,
            master=master,
            conf=dict(_setting(text) for text in conf or ()),
            progress=SILENT if quiet else progress_on(),
        )
    except LoadRejectedError as error:
        if errors is not None:
            _write_problems(errors, error)
        raise
    if as_json:
        output.document(_document(address, done))
        return
    checked = "checked" if dry_run else "loaded"
    counts = f"{done.total} entities across {len(done.nodes)} node types and {len(done.edges)} edge types"
    output.data(f"{checked} {address} on branch {branch} with {mode}: {counts}")
    if done.branch_created:
        output.data(f"branch {done.branch} created from {done.base_branch}")


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise typer.BadParameter(f"'{text}' is no KEY=VALUE", param_hint="--conf")
    return key, value


def _write_problems(path: str, error: LoadRejectedError) -> None:
    from pathlib import Path  # noqa: PLC0415 - `--help` must stay quick

    try:
        with Path(path).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(one.to_dict(), ensure_ascii=False) + "\n" for one in error.violations)
    except OSError as problem:
        raise FileAccessError(f"cannot write {path}: {problem.strerror}", path=path) from error
    output.note(f"{len(error.violations)} problems are in {path}")


def _document(address: str, done: LoadResult) -> dict[str, Any]:
    return {
        "uri": address,
        "branch": done.branch,
        "base_branch": done.base_branch,
        "branch_created": done.branch_created,
        "mode": done.mode,
        "nodes": [{"name": name, "entities_loaded": count} for name, count in sorted(done.nodes.items())],
        "edges": [{"name": name, "entities_loaded": count} for name, count in sorted(done.edges.items())],
        "total_entities": done.total,
        "actor_id": done.actor_id,
        "commit": commit_document(done.commit) if done.commit else None,
    }
