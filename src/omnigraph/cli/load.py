"""`omnigraph load`: put data into a graph, in one commit or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.engine import ENGINES, Conf, Engine, Master, one_of, progress, settings
from omnigraph.cli.graph import Json, commit_document, graph_address
from omnigraph.cli.target import Actor, Store, Uri, Yes, ask_before_removing, opened
from omnigraph.errors import FileAccessError, LoadRejectedError

if TYPE_CHECKING:
    from omnigraph.pipeline.load import LoadResult

_MODES = ("append", "merge", "overwrite")


def load(
    uri: Uri = None,
    *,
    data: Annotated[list[str], typer.Option(help="A file, directory, pattern or s3:// address; may be repeated.")],
    mode: Annotated[str, typer.Option(help="append, merge or overwrite.")],
    store: Store = None,
    branch: Annotated[str, typer.Option(help="The branch to load into.", metavar="NAME")] = "main",
    base: Annotated[str | None, typer.Option("--from", help="Make the branch of this one.", metavar="NAME")] = None,
    actor: Actor = None,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    format_: Annotated[str | None, typer.Option("--format", help="jsonl, csv or parquet; else by name.")] = None,
    mapping: Annotated[str | None, typer.Option("--map", help="Which file holds which type.", metavar="FILE")] = None,
    errors: Annotated[str | None, typer.Option(help="Write every problem there, as JSONL.", metavar="FILE")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check everything and change nothing.")] = False,
    yes: Yes = False,
    quiet: Annotated[bool, typer.Option(help="Show no progress, and do not say which graph is changed.")] = False,
    as_json: Json = False,
) -> None:
    """Load JSONL, CSV or Parquet, checked against the schema, in one commit."""
    address = graph_address(uri, store)
    options: dict[str, Any] = {
        "mode": one_of("--mode", mode, _MODES),
        "branch": branch,
        "base": base,
        "actor": actor,
        "engine": one_of("--engine", engine, ENGINES),
        "format": format_,
        "mapping": mapping,
        "dry_run": dry_run,
        "master": master,
        "conf": settings(conf),
    }
    if mode == "overwrite" and not dry_run:
        ask_before_removing(f"Replace what is in {address}?", address, yes=yes, as_json=as_json)
    graph = opened("load", address, quiet=quiet or dry_run)
    with _problems_in(errors):
        done = graph.load(data, **options, progress=progress(quiet=quiet))
    if as_json:
        output.document(_document(address, done))
    else:
        _tell(address, done, "checked" if dry_run else "loaded")


def _tell(address: str, done: LoadResult, checked: str) -> None:
    counts = f"{done.total} entities across {len(done.nodes)} node types and {len(done.edges)} edge types"
    output.data(f"{checked} {address} on branch {done.branch} with {done.mode}: {counts}")
    if done.branch_created:
        output.data(f"branch {done.branch} created from {done.base_branch}")


@contextmanager
def _problems_in(path: str | None) -> Iterator[None]:
    """Write what is wrong with a load into a file, if one is named."""
    try:
        yield
    except LoadRejectedError as error:
        if path is not None:
            _write_problems(path, error)
        raise


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
