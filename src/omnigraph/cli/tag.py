"""`omnigraph tag`: give commits names that stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.graph import Json, commit_document, graph_address
from omnigraph.cli.target import Quiet, Store, Uri, opened

if TYPE_CHECKING:
    from omnigraph.history.branches import Tag

app = typer.Typer(help="Give commits names that stay.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the tag.", metavar="NAME")]


@app.command()
def create(
    name: Name,
    uri: Uri = None,
    *,
    store: Store = None,
    ref: Annotated[str, typer.Option("--at", help="A branch, tag or commit.", metavar="REF")] = "main",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Name the commit that a branch is at, or any other. Cleanup keeps it."""
    address = graph_address(uri, store)
    made = opened("tag create", address, quiet=quiet).create_tag(name, ref)
    if as_json:
        output.document({"uri": address, **_document(made)})
        return
    output.data(f"created tag {made.name} at {made.commit.commit_id}")


@app.command("list")
def list_tags(uri: Uri = None, *, store: Store = None, as_json: Json = False) -> None:
    """List the tags by name, each with its commit."""
    import omnigraph  # noqa: PLC0415 - loads the engine

    found = omnigraph.open(graph_address(uri, store), read_only=True).tags()
    if as_json:
        output.document({"tags": [_document(tag) for tag in found]})
        return
    for tag in found:
        output.data(f"{tag.name} {tag.commit.commit_id}")


@app.command()
def delete(name: Name, uri: Uri = None, *, store: Store = None, quiet: Quiet = False, as_json: Json = False) -> None:
    """Take a name away; the commit stays."""
    address = graph_address(uri, store)
    opened("tag delete", address, quiet=quiet).delete_tag(name)
    if as_json:
        output.document({"uri": address, "name": name.strip()})
        return
    output.data(f"deleted tag {name.strip()}")


def _document(tag: Tag) -> dict[str, Any]:
    return {"name": tag.name, "commit": commit_document(tag.commit)}
