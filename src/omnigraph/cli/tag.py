"""`omnigraph tag`: give commits names that stay."""

from __future__ import annotations

from typing import Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json, Uri
from omnigraph.cli.command import command, group

app = group("Give commits names that stay.")

Name = Annotated[str, typer.Argument(help="The name of the tag.", metavar="NAME")]


@command(app, "tag create")
def create(
    scope: Scope,
    name: Name,
    uri: Uri = None,
    *,
    ref: Annotated[str, typer.Option("--at", help="A branch, tag or commit.", metavar="REF")] = "main",
    as_json: Json = False,
) -> None:
    """Name the commit that a branch is at, or any other. Cleanup keeps it."""
    target = scope.at(uri)
    made = target.write_aloud().create_tag(name, ref)
    if as_json:
        from omnigraph.api.documents import tag_output  # noqa: PLC0415 - loads the engine

        output.document({"uri": target.uri, **tag_output(made)})
        return
    output.data(f"created tag {made.name} at {made.commit.commit_id}")


@command(app, "tag list")
def list_tags(scope: Scope, uri: Uri = None, *, as_json: Json = False) -> None:
    """List the tags by name, each with its commit."""
    found = scope.at(uri).read().tags()
    if as_json:
        from omnigraph.api.documents import tags_output  # noqa: PLC0415 - loads the engine

        output.document(tags_output(found))
        return
    for tag in found:
        output.data(f"{tag.name} {tag.commit.commit_id}")


@command(app, "tag delete")
def delete(scope: Scope, name: Name, uri: Uri = None, *, as_json: Json = False) -> None:
    """Take a name away; the commit stays."""
    target = scope.at(uri)
    target.write_aloud().delete_tag(name)
    if as_json:
        from omnigraph.api.documents import tag_deleted_output  # noqa: PLC0415 - loads the engine

        output.document(tag_deleted_output(target.uri, name))
        return
    output.data(f"deleted tag {name.strip()}")
