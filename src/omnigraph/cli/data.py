"""Commands that create a graph and move data in and out of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import omnigraph
from omnigraph.api.documents import INGEST
from omnigraph.api.progress import finishing
from omnigraph.api.protocol import StateView
from omnigraph.api.results import LoadResult
from omnigraph.api.rows import Blob
from omnigraph.cli import output
from omnigraph.cli.address import Scope, Target
from omnigraph.cli.command import (
    Branch,
    EngineOptions,
    Format,
    Message,
    Snapshot,
    argument,
    command,
    one_of,
    option,
    refuse_both,
    switch,
)
from omnigraph.cli.output import Document, Lines
from omnigraph.errors import BlobRangeError, FileAccessError, LoadRejectedError

_FORMATS = ("jsonl", "csv", "parquet")


@command("init", json=False)
def init(
    scope: Scope,  # noqa: ARG001 - a new graph has no settings yet
    uri: Annotated[str, argument("The graph: a directory, file:// or s3:// address.", "URI")],
    *,
    schema: Annotated[str, option("The .pg file that declares its types.", "FILE")],
    force: Annotated[bool, switch("Replace the schema files that an interrupted init left behind.")] = False,
) -> None:
    """Create an empty graph."""
    made = omnigraph.init(uri, Path(schema), force=force)
    output.data(f"initialized {made.uri}")


Data = Annotated[list[str], option("A file, directory, pattern or s3:// address; may be repeated.", "PATH")]
Mode = Annotated[str, option("append, merge or overwrite.", "MODE")]
Onto = Annotated[str | None, option("The branch to load into. Default: main.", "NAME")]


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """How CSV files are written."""

    delimiter: Annotated[str | None, option("CSV: what separates values. Default: a comma.", "CHAR")] = None
    quote: Annotated[str | None, option('CSV: the quote. Default: ".', "CHAR")] = None
    null: Annotated[list[str] | None, option("CSV: a text that means null; may be repeated.", "TEXT")] = None
    trim: Annotated[bool, switch("CSV: remove blanks around values.")] = False
    names: Annotated[str | None, option("CSV: the columns, if no header names them.", "A,B,C")] = None
    decimal: Annotated[str | None, option("CSV: the decimal mark, a point or a comma.", "CHAR")] = None
    date_format: Annotated[str | None, option("CSV: dates, such as %d.%m.%Y.", "FORMAT")] = None
    datetime_format: Annotated[str | None, option("CSV: date-times, such as %d.%m.%Y %H:%M.", "FORMAT")] = None

    def given(self) -> dict[str, Any] | None:
        """Return the options that were given, as the methods of a graph take them."""
        names = None if self.names is None else self.names.split(",")
        found = {
            "delimiter": self.delimiter,
            "quote": self.quote,
            "nulls": self.null,
            "trim": self.trim or None,
            "names": names,
            "decimal": self.decimal,
            "date_format": self.date_format,
            "datetime_format": self.datetime_format,
        }
        return {name: value for name, value in found.items() if value is not None} or None


@command("load")
def load(
    target: Target,
    *,
    data: Data,
    mode: Mode,
    branch: Onto = None,
    base: Annotated[str | None, option("Create the branch from this one.", "NAME", "--from")] = None,
    message: Message = None,
    engine: EngineOptions,
    format_: Format = None,
    mapping: Annotated[str | None, option("Maps files to types.", "FILE", "--map")] = None,
    csv: CsvOptions,
    rejects: Annotated[
        str | None, option("Write every problem to it, as JSONL.", "FILE", "--rejects", "--errors")
    ] = None,
    max_bad: Annotated[int | None, option("Leave out up to so many bad records.", "N", min=0)] = None,
    dedupe: Annotated[str | None, option("ends: merge edges without ids by their ends.", "HOW")] = None,
    dry_run: Annotated[bool, switch("Check the data and change nothing.")] = False,
) -> None:
    """Load JSONL, CSV or Parquet, checked against the schema, in one commit."""
    options = _load_options(target, mode, branch, base)
    options |= {
        "message": message,
        "format": format_,
        "mapping": mapping,
        "csv": csv.given(),
        "dry_run": dry_run,
        "rejects": rejects,
        "max_bad": max_bad,
        "dedupe": None if dedupe is None else one_of("--dedupe", dedupe, ("ends",)),
        **engine.checked(target.scope),
    }
    # Asked before the data is read: a person should not wait for minutes to be asked.
    if mode == "overwrite" and not dry_run:
        target.ask_before_removing(f"Replace the data of {target.uri}?")
    # A check changes nothing, so there is nothing to announce.
    graph = target.write() if dry_run else target.write_aloud()
    # A small load leaves its bar on the terminal, so it is finished here before anything is printed.
    with _problems_in(rejects), finishing(options["progress"]):
        done = graph.load(data, **options)
    target.emit(_load_document(target.uri, done), _loaded(target.uri, done, "checked" if dry_run else "loaded"))
    is_silent = dry_run or target.scope.flags.quiet or target.scope.as_json
    for name, count in () if is_silent else sorted(done.may_double.items()):
        output.note(
            f"{count:,} edges of {name} have no id and may be stored twice: give them ids, or use --dedupe ends"
        )


def _load_options(target: Target, mode: str, branch: str | None, base: str | None) -> dict[str, Any]:
    one_of("--mode", mode, ("append", "merge", "overwrite"))
    return {"mode": mode, "branch": target.scope.branch(branch), "base": base, "actor": target.actor}


def _load_document(uri: str, done: LoadResult) -> Document:
    # The counts are beside it for programs written against earlier versions.
    return {
        **INGEST.write(done, {"uri": uri}),
        "nodes_loaded": sum(done.nodes.values()),
        "edges_loaded": sum(done.edges.values()),
        "node_types_loaded": len(done.nodes),
        "edge_types_loaded": len(done.edges),
    }


def _loaded(uri: str, done: LoadResult, verb: str) -> Lines:
    counts = f"{done.total} entities across {len(done.nodes)} node types and {len(done.edges)} edge types"
    yield f"{verb} {uri} on branch {done.branch} with {done.mode}: {counts}"
    if done.rejected:
        yield f"left out {done.rejected:,} bad records: {', '.join(map(str, done.counts))}"
    if done.branch_created:
        yield f"branch {done.branch} created from {done.base_branch}"


@command("ingest", hidden=True)
def ingest(
    target: Target,
    *,
    data: Data,
    mode: Mode = "merge",
    branch: Onto = None,
    base: Annotated[str, option("Create the branch from this one.", "NAME", "--from")] = "main",
) -> None:
    """Load JSONL onto a branch, created if missing. An old name: use load."""
    output.deprecated("ingest", "load")
    options = _load_options(target, mode, branch, base)
    if mode == "overwrite":
        target.ask_before_removing(f"Replace the data of {target.uri}?")
    done = target.write_aloud().load(data, **options)
    target.emit(INGEST.write(done, {"uri": target.uri}), _ingested(done, data))


def _ingested(done: LoadResult, data: list[str]) -> Lines:
    yield f"ingested {done.total} entities from {', '.join(data)} into branch {done.branch}"
    for kind, counts in (("node", done.nodes), ("edge", done.edges)):
        yield from (f"{kind} {name}: {count}" for name, count in sorted(counts.items()))
    if done.actor_id:
        yield f"actor_id: {done.actor_id}"


@contextmanager
def _problems_in(path: str | None) -> Iterator[None]:
    """Name the file with the problems of a refused load, if there is one."""
    try:
        yield
    except LoadRejectedError as error:
        if path is not None:
            output.note(f"{error.count} problems are in {path}")
        raise


@command("export", json=False)
def export(
    target: Target,
    *,
    branch: Annotated[str | None, option("The branch to export.", "NAME")] = None,
    snapshot: Snapshot = None,
    types: Annotated[list[str] | None, option("Only this type; may be repeated.", "NAME", "--type")] = None,
    tables: Annotated[
        list[str] | None, option("The same by its key: node:NAME or edge:NAME.", "KEY", "--table")
    ] = None,
    path: Annotated[str | None, option("A file, or a new directory; also s3://.", "PATH", "--output", "-o")] = None,
    format_: Format = None,
    engine: EngineOptions,
    jsonl: Annotated[bool, switch("", "--jsonl", hidden=True)] = False,
) -> None:
    """Write all entities, or those of some types, in a form that can be loaded again."""
    if jsonl:
        output.deprecated("export --jsonl", "export")
    refuse_both(branch, snapshot)
    wanted: dict[str, Any] = {
        "branch": target.scope.branch(branch),
        "snapshot": snapshot,
        "types": [*(types or ()), *(tables or ())] or None,
        "format": one_of("--format", format_ or _format_of(path), _FORMATS),
    }
    options = engine.checked(target.scope)
    graph = target.read()
    if path is None:
        # Line by line as they are read, so that a graph may be larger than memory.
        sys.stdout.writelines(graph.export(**wanted, engine=options["engine"]))
        return
    done = graph.export(path, **wanted, **options)
    counts = f"{done.total} entities across {len(done.nodes)} node types and {len(done.edges)} edge types"
    output.data(f"exported {target.uri} to {done.path}: {counts}")


def _format_of(path: str | None) -> str:
    ending = (path or "").lower().rpartition(".")[2]
    return ending if ending in _FORMATS else "jsonl"


_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class BlobOptions:
    """A Blob property of an entity, and the state of the graph to read it in."""

    entity: Annotated[str, argument("node or edge.", "ENTITY")]
    type_name: Annotated[str, argument("The type.", "TYPE")]
    id_: Annotated[str, argument("The id of the entity.", "ID")]
    property_: Annotated[str, argument("The property.", "PROPERTY")]
    branch: Branch = None
    snapshot: Snapshot = None

    def find(self, scope: Scope) -> tuple[StateView, Blob]:
        refuse_both(self.branch, self.snapshot)
        # One view for both: size and bytes must be of the same commit.
        state = scope.at().read().at(self.snapshot or scope.branch(self.branch))
        kind = one_of("ENTITY", self.entity, ("node", "edge"))
        return state, state.blob(self.type_name, self.id_, self.property_, kind=kind)


@command("blob get", json=False)
def get_blob(
    scope: Scope,
    blob: BlobOptions,
    *,
    offset: Annotated[int, option("The first byte to read.", "N", min=0)] = 0,
    length: Annotated[int | None, option("How many bytes. Default: all.", "N", min=1)] = None,
    out: Annotated[str | None, option("The file to write. Default: stdout.", "PATH")] = None,
) -> None:
    """Write the bytes of a Blob property."""
    _, found = blob.find(scope)
    end = found.size if length is None else min(offset + length, found.size)
    # An empty value has no first byte, and still it can be read from there.
    if offset >= found.size > 0:
        message = f"offset {offset} is beyond the end: the value has {found.size} bytes"
        raise BlobRangeError(message, start=offset, end=end, length=found.size)
    with _writing(out) as file:
        # In chunks: a value may be larger than memory.
        for start in range(offset, end, _CHUNK):
            file.write(found.read(start, min(start + _CHUNK, end)))


@command("blob stat")
def stat_blob(scope: Scope, blob: BlobOptions) -> None:
    """Show the size of a Blob property and the commit it was read at."""
    state, found = blob.find(scope)
    place = {"branch": scope.branch(blob.branch)} if blob.snapshot is None else {"snapshot": blob.snapshot}
    described = {
        "entity": blob.entity,
        "type": blob.type_name,
        "id": blob.id_,
        "property": blob.property_,
        "kind": "managed",
        "size": found.size,
        "etag": found.etag,
        **place,
        "resolved_snapshot": state.commit.commit_id if state.commit else None,
    }
    scope.emit(described, output.pairs(described))


@contextmanager
def _writing(path: str | None) -> Iterator[IO[bytes]]:
    """Open a file that appears, or replaces the one before, when all is written; without a path stdout."""
    if path is None:
        yield sys.stdout.buffer
        return
    target = Path(path)
    # A pipe or a device is written as it is. So is what a link leads to: `/dev/stdout` is one, open elsewhere.
    is_plain = not target.is_symlink() and (target.is_file() or not target.exists())
    draft = target.with_name(f"{target.name}.{os.getpid()}.part") if is_plain else target
    try:
        with draft.open("wb") as file:
            yield file
        draft.replace(target)
    except OSError as error:
        raise FileAccessError(f"cannot write {path}: {error.strerror}", path=path) from None
    finally:
        if is_plain:
            draft.unlink(missing_ok=True)
