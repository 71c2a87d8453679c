"""`omnigraph blob`: the content of Blob properties."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json
from omnigraph.cli.command import command, group
from omnigraph.cli.engine import one_of
from omnigraph.errors import BlobRangeError, FileAccessError

if TYPE_CHECKING:
    from omnigraph.api.rows import Blob
    from omnigraph.pinned import Pinned

app = group("Read the content of Blob properties.")

Entity = Annotated[str, typer.Argument(help="node or edge.", metavar="ENTITY")]
TypeName = Annotated[str, typer.Argument(help="The type.", metavar="TYPE")]
Id = Annotated[str, typer.Argument(help="The id of the entity.", metavar="ID")]
Property = Annotated[str, typer.Argument(help="The property.", metavar="PROPERTY")]
Branch = Annotated[str | None, typer.Option(help="The branch to read; else main.", metavar="NAME")]
Snapshot = Annotated[str | None, typer.Option(help="The state to read: a branch, tag, commit or REF~N.", metavar="REF")]
_CHUNK = 2**20


@command(app, "blob get")
def get(
    scope: Scope,
    entity: Entity,
    type_name: TypeName,
    id_: Id,
    property_: Property,
    *,
    branch: Branch = None,
    snapshot: Snapshot = None,
    offset: Annotated[int, typer.Option(help="Where to begin.", min=0, metavar="N")] = 0,
    length: Annotated[int | None, typer.Option(help="How many bytes; else all.", min=1, metavar="N")] = None,
    out: Annotated[str | None, typer.Option(help="A file; else stdout.", metavar="PATH")] = None,
) -> None:
    """Write the bytes of a Blob property."""
    state = _state(scope, branch, snapshot)
    found = state.blob(type_name, id_, property_, kind=one_of("ENTITY", entity, ("node", "edge")))
    end = found.size if length is None else min(offset + length, found.size)
    if offset >= found.size > 0:
        message = f"it has {found.size} bytes, so nothing begins at {offset}"
        raise BlobRangeError(message, start=offset, end=end, length=found.size)
    with _opened(out) as file:
        for start in range(offset, end, _CHUNK):
            file.write(found.read(start, min(start + _CHUNK, end)))


@command(app, "blob stat")
def stat(
    scope: Scope,
    entity: Entity,
    type_name: TypeName,
    id_: Id,
    property_: Property,
    *,
    branch: Branch = None,
    snapshot: Snapshot = None,
    as_json: Json = False,
) -> None:
    """Tell how long a Blob property is, and of which state."""
    state = _state(scope, branch, snapshot)
    found: Blob = state.blob(type_name, id_, property_, kind=one_of("ENTITY", entity, ("node", "edge")))
    place = {"branch": scope.branch(branch)} if snapshot is None else {"snapshot": snapshot}
    told = {
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
    if as_json:
        output.document(told)
        return
    for name, value in told.items():
        output.data(f"{name}: {value}")


def _state(scope: Scope, branch: str | None, snapshot: str | None) -> Pinned:
    if branch is not None and snapshot is not None:
        raise typer.BadParameter("give either --branch or --snapshot", param_hint="--snapshot")
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
