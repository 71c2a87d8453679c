"""Commands that create a graph and move data in and out of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

import omnigraph
from omnigraph.api.documents import ingest_output
from omnigraph.api.progress import finishing
from omnigraph.api.protocol import StateView
from omnigraph.api.results import LoadResult
from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.command import Branch, Snapshot, Uri, command, group, one_of, refuse_both
from omnigraph.cli.emit import Document, Lines, renders
from omnigraph.cli.engine import Conf, Engine, Master, engine_options
from omnigraph.errors import BlobRangeError, FileAccessError, LoadRejectedError

_MODES = ("append", "merge", "overwrite")
_FORMATS = ("jsonl", "csv", "parquet")

app = typer.Typer()
blob_group = group("Read the content of Blob properties.")
app.add_typer(blob_group, name="blob")


@command(app, "init", json=False)
def init(
    scope: Scope,  # noqa: ARG001 - a new graph has no settings yet
    uri: Annotated[str, typer.Argument(help="The graph: a directory, file:// or s3:// address.", metavar="URI")],
    *,
    schema: Annotated[str, typer.Option(help="The .pg file that declares its types.", metavar="FILE")],
    force: Annotated[bool, typer.Option(help="Replace the schema files that an interrupted init left behind.")] = False,
) -> None:
    """Create an empty graph."""
    made = omnigraph.init(uri, Path(schema), force=force)
    output.data(f"initialized {made.uri}")


# load ----------------------------------------------------------------------------------------------

Data = Annotated[
    list[str], typer.Option(help="A file, directory, pattern or s3:// address; may be repeated.", metavar="PATH")
]
Onto = Annotated[str | None, typer.Option(help="The branch to load into. Default: main.", metavar="NAME")]


@command(app, "load")
def load(
    scope: Scope,
    uri: Uri = None,
    *,
    data: Data,
    mode: Annotated[str, typer.Option(help="append, merge or overwrite.", metavar="MODE")],
    branch: Onto = None,
    base: Annotated[str | None, typer.Option("--from", help="Create the branch from this one.", metavar="NAME")] = None,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="jsonl, csv or parquet. Default: by file name.", metavar="FORMAT")
    ] = None,
    mapping: Annotated[str | None, typer.Option("--map", help="Maps files to types.", metavar="FILE")] = None,
    errors: Annotated[str | None, typer.Option(help="Write every problem to it, as JSONL.", metavar="FILE")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check the data and change nothing.")] = False,
) -> None:
    """Load JSONL, CSV or Parquet, checked against the schema, in one commit."""
    target = scope.at(uri)
    options: dict[str, Any] = {
        "mode": one_of("--mode", mode, _MODES),
        "branch": scope.branch(branch),
        "base": base,
        "actor": target.actor,
        "format": format_,
        "mapping": mapping,
        "dry_run": dry_run,
        **engine_options(scope, engine, master, conf),
    }
    if mode == "overwrite" and not dry_run:
        target.ask_before_removing(f"Replace the data of {target.uri}?")
    graph = target.write() if dry_run else target.write_aloud()
    # A small load leaves its bar on the terminal, so it is finished here before anything is printed.
    with _problems_in(errors), finishing(options["progress"]):
        done = graph.load(data, **options)
    scope.emit(done, uri=target.uri, dry_run=dry_run)


@command(app, "ingest", hidden=True)
def ingest(
    scope: Scope,
    uri: Uri = None,
    *,
    data: Data,
    mode: Annotated[str, typer.Option(help="append, merge or overwrite.", metavar="MODE")] = "merge",
    branch: Onto = None,
    base: Annotated[str, typer.Option("--from", help="Create the branch from this one.", metavar="NAME")] = "main",
) -> None:
    """Load JSONL onto a branch, created if missing. An old name: use load."""
    output.deprecated("ingest", "load")
    target = scope.at(uri)
    if one_of("--mode", mode, _MODES) == "overwrite":
        target.ask_before_removing(f"Replace the data of {target.uri}?")
    options: dict[str, Any] = {"mode": mode, "branch": scope.branch(branch), "base": base, "actor": target.actor}
    scope.emit(target.write_aloud().load(data, **options), uri=target.uri, data=data)


@contextmanager
def _problems_in(path: str | None) -> Iterator[None]:
    """Write the problems of a refused load into a file, if one is given."""
    try:
        yield
    except LoadRejectedError as error:
        if path is not None:
            _write_problems(path, error)
        raise


def _write_problems(path: str, error: LoadRejectedError) -> None:
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(one.to_dict(), ensure_ascii=False) + "\n" for one in error.violations)
    except OSError as problem:
        raise FileAccessError(f"cannot write {path}: {problem.strerror}", path=path) from error
    output.note(f"{len(error.violations)} problems are in {path}")


# export --------------------------------------------------------------------------------------------


@command(app, "export", json=False)
def export(
    scope: Scope,
    uri: Uri = None,
    *,
    branch: Annotated[str | None, typer.Option(help="The branch to export.", metavar="NAME")] = None,
    snapshot: Snapshot = None,
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
        str | None, typer.Option("--format", help="jsonl, csv or parquet. Default: by file name.", metavar="FORMAT")
    ] = None,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", hidden=True)] = False,
) -> None:
    """Write all entities, or those of some types, in a form that can be loaded again."""
    if jsonl:
        output.deprecated("export --jsonl", "export")
    target = scope.at(uri)
    refuse_both(branch, snapshot)
    wanted: dict[str, Any] = {
        "branch": scope.branch(branch),
        "snapshot": snapshot,
        "types": [*(types or ()), *(tables or ())] or None,
        "format": one_of("--format", format_ or _format_of(path), _FORMATS),
    }
    options = engine_options(scope, engine, master, conf)
    graph = target.read()
    if path is None:
        sys.stdout.writelines(graph.export(**wanted, engine=options["engine"]))
        return
    done = graph.export(path, **wanted, **options)
    counts = f"{done.total} entities across {len(done.nodes)} node types and {len(done.edges)} edge types"
    output.data(f"exported {target.uri} to {done.path}: {counts}")


def _format_of(path: str | None) -> str:
    ending = (path or "").lower().rpartition(".")[2]
    return ending if ending in _FORMATS else "jsonl"


# blob ----------------------------------------------------------------------------------------------

Entity = Annotated[str, typer.Argument(help="node or edge.", metavar="ENTITY")]
TypeName = Annotated[str, typer.Argument(help="The type.", metavar="TYPE")]
EntityId = Annotated[str, typer.Argument(help="The id of the entity.", metavar="ID")]
Property = Annotated[str, typer.Argument(help="The property.", metavar="PROPERTY")]
_CHUNK = 2**20


@command(blob_group, "blob get", json=False)
def get_blob(
    scope: Scope,
    entity: Entity,
    type_name: TypeName,
    id_: EntityId,
    property_: Property,
    *,
    branch: Branch = None,
    snapshot: Snapshot = None,
    offset: Annotated[int, typer.Option(help="The first byte to read.", min=0, metavar="N")] = 0,
    length: Annotated[int | None, typer.Option(help="How many bytes. Default: all.", min=1, metavar="N")] = None,
    out: Annotated[str | None, typer.Option(help="The file to write. Default: stdout.", metavar="PATH")] = None,
) -> None:
    """Write the bytes of a Blob property."""
    state = _state(scope, branch, snapshot)
    found = state.blob(type_name, id_, property_, kind=one_of("ENTITY", entity, ("node", "edge")))
    end = found.size if length is None else min(offset + length, found.size)
    if offset >= found.size > 0:
        message = f"offset {offset} is beyond the end: the value has {found.size} bytes"
        raise BlobRangeError(message, start=offset, end=end, length=found.size)
    with _opened(out) as file:
        for start in range(offset, end, _CHUNK):
            file.write(found.read(start, min(start + _CHUNK, end)))


@command(blob_group, "blob stat")
def stat_blob(
    scope: Scope,
    entity: Entity,
    type_name: TypeName,
    id_: EntityId,
    property_: Property,
    *,
    branch: Branch = None,
    snapshot: Snapshot = None,
) -> None:
    """Show the size of a Blob property and the commit it was read at."""
    state = _state(scope, branch, snapshot)
    found = state.blob(type_name, id_, property_, kind=one_of("ENTITY", entity, ("node", "edge")))
    place = {"branch": scope.branch(branch)} if snapshot is None else {"snapshot": snapshot}
    described = {
        "entity": entity,
        "type": type_name,
        "id": id_,
        "property": property_,
        "kind": "managed",
        "size": found.size,
        "etag": found.etag,
        **place,
        "resolved_snapshot": state.commit.commit_id if state.commit else None,
    }
    scope.emit(described)


def _state(scope: Scope, branch: str | None, snapshot: str | None) -> StateView:
    refuse_both(branch, snapshot)
    return scope.at().read().at(snapshot or scope.branch(branch))


@contextmanager
def _opened(out: str | None) -> Iterator[IO[bytes]]:
    if out is None:
        yield sys.stdout.buffer
        return
    try:
        with Path(out).open("wb") as file:
            yield file
    except OSError as error:
        raise FileAccessError(f"cannot write {out}: {error.strerror}", path=out) from None


# How results are printed ---------------------------------------------------------------------------


def _load_document(done: LoadResult, *, uri: str, dry_run: bool) -> Document:  # noqa: ARG001
    # The counts are beside it for programs written against earlier versions.
    return {
        **ingest_output(uri, done),
        "nodes_loaded": sum(done.nodes.values()),
        "edges_loaded": sum(done.edges.values()),
        "node_types_loaded": len(done.nodes),
        "edge_types_loaded": len(done.edges),
    }


@renders("load", document=_load_document)
def _loaded(done: LoadResult, *, uri: str, dry_run: bool) -> Lines:
    counts = f"{done.total} entities across {len(done.nodes)} node types and {len(done.edges)} edge types"
    yield f"{'checked' if dry_run else 'loaded'} {uri} on branch {done.branch} with {done.mode}: {counts}"
    if done.branch_created:
        yield f"branch {done.branch} created from {done.base_branch}"


@renders("ingest", document=lambda done, *, uri, data: ingest_output(uri, done))  # noqa: ARG005
def _ingested(done: LoadResult, *, uri: str, data: list[str]) -> Lines:  # noqa: ARG001
    yield f"ingested {done.total} entities from {', '.join(data)} into branch {done.branch}"
    for kind, counts in (("node", done.nodes), ("edge", done.edges)):
        yield from (f"{kind} {name}: {count}" for name, count in sorted(counts.items()))
    if done.actor_id:
        yield f"actor_id: {done.actor_id}"
