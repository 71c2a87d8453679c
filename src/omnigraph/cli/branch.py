"""`omnigraph branch`: make, list, merge and delete branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json, Uri
from omnigraph.cli.command import command, group
from omnigraph.cli.engine import ENGINES, Conf, Engine, Master, one_of, progress, settings
from omnigraph.cli.resolving import Ours, Resolve, Theirs, refused, resolution
from omnigraph.errors import MergeConflictError, OmnigraphError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnigraph.api.results import MergeResult
    from omnigraph.graph import Graph

app = group("Work on branches of a graph.")

Name = Annotated[str, typer.Argument(help="The name of the branch.", metavar="NAME")]


@command(app, "branch create")
def create(
    scope: Scope,
    name: Name,
    uri: Uri = None,
    *,
    base: Annotated[str, typer.Option("--from", help="A branch, tag or commit to begin as.", metavar="REF")] = "main",
    as_json: Json = False,
) -> None:
    """Make a branch. No data is copied."""
    target = scope.at(uri)
    actor = target.actor
    target.write_aloud().create_branch(name, base)
    if as_json:
        from omnigraph.api.documents import branch_created_output  # noqa: PLC0415 - loads the engine

        output.document(branch_created_output(target.uri, name, base, actor))
        return
    output.data(f"created branch {name.strip()} from {base}")


@command(app, "branch list")
def list_branches(scope: Scope, uri: Uri = None, *, as_json: Json = False) -> None:
    """List the branches by name."""
    names = sorted(scope.at(uri).read().branches())
    if as_json:
        output.document({"branches": names})
        return
    for name in names:
        output.data(name)


@command(app, "branch delete")
def delete(
    scope: Scope,
    name: Name,
    uri: Uri = None,
    *,
    as_json: Json = False,
) -> None:
    """Delete a branch and what only it has."""
    target = scope.at(uri)
    actor = target.actor
    target.ask_before_removing(f"Delete branch {name} of {target.uri}?", as_json=as_json)
    target.write_aloud().delete_branch(name)
    if as_json:
        from omnigraph.api.documents import branch_deleted_output  # noqa: PLC0415 - loads the engine

        output.document(branch_deleted_output(target.uri, name, actor))
        return
    output.data(f"deleted branch {name.strip()}")


@command(app, "branch merge")
def merge(
    scope: Scope,
    source: Annotated[str, typer.Argument(help="The branch that has the changes.", metavar="SOURCE")],
    uri: Uri = None,
    *,
    into: Annotated[str, typer.Option(help="The branch that gets them.", metavar="NAME")] = "main",
    ours: Ours = False,
    theirs: Theirs = False,
    resolve: Resolve = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would happen.")] = False,
    delete_branch: Annotated[
        bool, typer.Option("--delete-branch", help="Delete the source when it is merged.")
    ] = False,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Bring onto a branch what another one has, in one commit or not at all."""
    target = scope.at(uri)
    actor = target.actor
    options: dict[str, Any] = {
        "resolve": resolution(resolve, ours=ours, theirs=theirs),
        "engine": one_of("--engine", engine, ENGINES),
        "master": master,
        "conf": settings(conf),
        "progress": progress(quiet=scope.flags.quiet),
    }
    if dry_run:
        _show_preview(target.read().merge(source, into, dry_run=True, **options), as_json=as_json)
        return
    graph = target.write_aloud()
    try:
        done = graph.merge(source, into, actor=actor, **options)
    except MergeConflictError as error:
        refused(error, as_json=as_json)
        raise
    problem = _deletion_problem(graph, done.source) if delete_branch else None
    if as_json:
        from omnigraph.api.documents import merge_output  # noqa: PLC0415 - loads the engine

        deleted = {"branch_deleted": problem is None, "branch_delete_error": problem} if delete_branch else {}
        output.document({**merge_output(done, actor), **deleted})
        return
    output.data(f"merged {done.source} into {done.target}: {done.outcome}")
    if delete_branch and problem is None:
        output.data(f"deleted branch {done.source}")


def _deletion_problem(graph: Graph, name: str) -> str | None:
    """Delete a branch that is merged. The merge stays whatever comes of it, so a refusal is only a warning."""
    try:
        graph.delete_branch(name)
    except OmnigraphError as error:
        output.note(f"warning: branch {name} was merged, but not deleted: {error.message}", style="yellow")
        return error.message
    return None


def _show_preview(found: MergeResult, *, as_json: bool) -> None:
    """A merge that would be refused ends with 1, so that a script can ask before it merges."""
    if as_json:
        from omnigraph.api.documents import merge_output  # noqa: PLC0415 - loads the engine

        output.document({**merge_output(found, None), "dry_run": True})
    else:
        output.data(f"would merge {found.source} into {found.target}: {found.outcome}")
        for line in _change_lines(found):
            output.data(line)
        for conflict in found.conflicts:
            output.data(f"conflict {conflict}", style="red")
    if found.conflicts:
        raise typer.Exit(1)


def _change_lines(done: MergeResult) -> Iterator[str]:
    for key, counts in done.changes.items():
        yield f"{key}: {counts.inserted} inserted, {counts.updated} updated, {counts.deleted} deleted"
