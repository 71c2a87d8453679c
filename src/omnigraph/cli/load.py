"""`omnigraph load`: put data into a graph, in one commit or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope, Target
from omnigraph.cli.arguments import Json, Uri
from omnigraph.cli.engine import ENGINES, Conf, Engine, Master, one_of, progress, settings
from omnigraph.errors import FileAccessError, LoadRejectedError

if TYPE_CHECKING:
    from omnigraph.api.results import LoadResult

_MODES = ("append", "merge", "overwrite")


Data = Annotated[list[str], typer.Option(help="A file, directory, pattern or s3:// address; may be repeated.")]
Onto = Annotated[str | None, typer.Option(help="The branch to load into; else main.", metavar="NAME")]


def load(
    scope: Scope,
    uri: Uri = None,
    *,
    data: Data,
    mode: Annotated[str, typer.Option(help="append, merge or overwrite.")],
    branch: Onto = None,
    base: Annotated[str | None, typer.Option("--from", help="Make the branch of this one.", metavar="NAME")] = None,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    format_: Annotated[str | None, typer.Option("--format", help="jsonl, csv or parquet; else by name.")] = None,
    mapping: Annotated[str | None, typer.Option("--map", help="Which file holds which type.", metavar="FILE")] = None,
    errors: Annotated[str | None, typer.Option(help="Write every problem there, as JSONL.", metavar="FILE")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check everything and change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Load JSONL, CSV or Parquet, checked against the schema, in one commit."""
    target = scope.at(uri)
    options: dict[str, Any] = {
        "mode": one_of("--mode", mode, _MODES),
        "branch": scope.branch(branch),
        "base": base,
        "actor": target.actor,
        "engine": one_of("--engine", engine, ENGINES),
        "format": format_,
        "mapping": mapping,
        "dry_run": dry_run,
        "master": master,
        "conf": settings(conf),
    }
    if mode == "overwrite" and not dry_run:
        target.ask_before_removing(f"Replace what is in {target.uri}?", as_json=as_json)
    graph = target.write() if dry_run else target.write_aloud()
    with _problems_in(errors):
        done = graph.load(data, **options, progress=progress(quiet=scope.flags.quiet))
    if as_json:
        from omnigraph.api.documents import ingest_output  # noqa: PLC0415 - loads the engine

        output.document({**ingest_output(target.uri, done), **_counts(done)})
    else:
        _tell(target, done, "checked" if dry_run else "loaded")


def _counts(done: LoadResult) -> dict[str, int]:
    """What programs of an earlier time look for."""
    return {
        "nodes_loaded": sum(done.nodes.values()),
        "edges_loaded": sum(done.edges.values()),
        "node_types_loaded": len(done.nodes),
        "edge_types_loaded": len(done.edges),
    }


def ingest(
    scope: Scope,
    uri: Uri = None,
    *,
    data: Data,
    mode: Annotated[str, typer.Option(help="append, merge or overwrite.")] = "merge",
    branch: Onto = None,
    base: Annotated[str, typer.Option("--from", help="Make the branch of this one.", metavar="NAME")] = "main",
    as_json: Json = False,
) -> None:
    """Load JSONL onto a branch, which is made if it is not there. An old name: use load."""
    output.deprecated("ingest", "load")
    target = scope.at(uri)
    if one_of("--mode", mode, _MODES) == "overwrite":
        target.ask_before_removing(f"Replace what is in {target.uri}?", as_json=as_json)
    options: dict[str, Any] = {"mode": mode, "branch": scope.branch(branch), "base": base, "actor": target.actor}
    done = target.write_aloud().load(data, **options)
    if as_json:
        from omnigraph.api.documents import ingest_output  # noqa: PLC0415 - loads the engine

        output.document(ingest_output(target.uri, done))
        return
    output.data(f"ingested {done.total} entities from {', '.join(data)} into branch {done.branch}")
    for kind, counts in (("node", done.nodes), ("edge", done.edges)):
        for name, count in sorted(counts.items()):
            output.data(f"{kind} {name}: {count}")
    if done.actor_id:
        output.data(f"actor_id: {done.actor_id}")


def _tell(target: Target, done: LoadResult, checked: str) -> None:
    counts = f"{done.total} entities across {len(done.nodes)} node types and {len(done.edges)} edge types"
    output.data(f"{checked} {target.uri} on branch {done.branch} with {done.mode}: {counts}")
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
