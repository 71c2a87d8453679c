"""`omnigraph init`, `snapshot` and `commit`: make a graph and look at its state and history."""

from __future__ import annotations

from typing import Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Branch, CommitId, Json, Uri
from omnigraph.cli.command import command, group
from omnigraph.errors import OptionError

commit = group("Look at the history of a graph.")


def init(
    scope: Scope,  # noqa: ARG001 - a graph that is made has no surroundings yet
    uri: Annotated[str, typer.Argument(help="The graph: a directory, file:// or s3:// address.", metavar="URI")],
    *,
    schema: Annotated[str, typer.Option(help="The .pg file that declares its types.", metavar="FILE")],
    force: Annotated[
        bool, typer.Option(help="Replace the schema files of an init that died before it was done.")
    ] = False,
) -> None:
    """Make a new, empty graph."""
    from pathlib import Path  # noqa: PLC0415 - `--help` must stay quick

    import omnigraph  # noqa: PLC0415 - loads the engine

    made = omnigraph.init(uri, Path(schema), force=force)
    output.data(f"initialized {made.uri}")


def snapshot(scope: Scope, uri: Uri = None, *, branch: Branch = None, as_json: Json = False) -> None:
    """Show which version of each table a branch consists of."""
    found = scope.at(uri).read().snapshot(scope.branch(branch))
    if as_json:
        from omnigraph.api.documents import snapshot_output  # noqa: PLC0415 - loads the engine

        output.document(snapshot_output(found))
        return
    output.data(f"branch: {found.branch or 'main'}")
    output.data(f"manifest_version: {found.manifest_version}")
    for entry in found.entries.values():
        where = f"branch={entry.table.branch or 'main'}"
        output.data(f"{entry.key} v{entry.table.version} {where} rows={entry.row_count}")


@command(commit, "commit list")
def list_commits(
    scope: Scope,
    uri: Uri = None,
    *,
    branch: Branch = None,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", help="Keep commits of one actor: actor=NAME.", metavar="KEY=VALUE")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the commits of a branch, newest first."""
    wanted = [_actor(text) for text in filters or ()]
    found = scope.at(uri).read().commits(scope.branch(branch))
    kept = [item for item in found if all(item.actor_id == actor for actor in wanted)]
    if as_json:
        from omnigraph.api.documents import commits_output  # noqa: PLC0415 - loads the engine

        output.document(commits_output(kept))
        return
    for item in kept:
        actor = f" actor={item.actor_id}" if item.actor_id else ""
        output.data(f"{item.commit_id} branch={item.branch or 'main'} version={item.manifest_version}{actor}")


_SHOWN = {
    "graph_commit_id": "graph_commit_id",
    "manifest_branch": "branch",
    "manifest_version": "manifest_version",
    "parent_commit_id": "parent_commit_id",
    "merged_parent_commit_id": "merged_parent_commit_id",
    "actor_id": "actor_id",
    "created_at": "created_at",
}


@command(commit, "commit show")
def show_commit(scope: Scope, commit_id: CommitId, uri: Uri = None, *, as_json: Json = False) -> None:
    """Show one commit, on whichever branch it is."""
    from omnigraph.api.documents import commit_output  # noqa: PLC0415 - loads the engine

    document = commit_output(scope.at(uri).read().commit(commit_id))
    if as_json:
        output.document(document)
        return
    document["manifest_branch"] = document["manifest_branch"] or "main"
    for name, shown in _SHOWN.items():
        if document[name] is not None:
            output.data(f"{shown}: {document[name]}")


def _actor(text: str) -> str:
    key, _, value = text.partition("=")
    if key != "actor" or not value:
        raise OptionError(f"there is no filter {text!r}", option="filter", hint="write actor=NAME")
    return value
