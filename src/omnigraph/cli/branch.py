"""`omnigraph branch`: make, list, merge and delete branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.engine import ENGINES, Conf, Engine, Master, one_of, progress, settings
from omnigraph.cli.graph import Json, commit_document, graph_address
from omnigraph.cli.resolving import Ours, Resolve, Theirs, refused, resolution
from omnigraph.cli.target import Actor, Quiet, Store, Uri, Yes, ask_before_removing, opened
from omnigraph.errors import MergeConflictError, OmnigraphError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnigraph.graph import Graph
    from omnigraph.history.merge import MergeResult

app = typer.Typer(help="Work on branches of a graph.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the branch.", metavar="NAME")]


@app.command()
def create(
    name: Name,
    uri: Uri = None,
    *,
    store: Store = None,
    base: Annotated[str, typer.Option("--from", help="A branch, tag or commit to begin as.", metavar="REF")] = "main",
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a branch. No data is copied."""
    address = graph_address(uri, store)
    opened("branch create", address, quiet=quiet).create_branch(name, base)
    if as_json:
        output.document({"uri": address, "from": base, "name": name.strip(), "actor_id": actor})
        return
    output.data(f"created branch {name.strip()} from {base}")


@app.command("list")
def list_branches(uri: Uri = None, *, store: Store = None, as_json: Json = False) -> None:
    """List the branches by name."""
    import omnigraph  # noqa: PLC0415 - loads the engine

    names = sorted(omnigraph.open(graph_address(uri, store), read_only=True).branches())
    if as_json:
        output.document({"branches": names})
        return
    for name in names:
        output.data(name)


@app.command()
def delete(
    name: Name,
    uri: Uri = None,
    *,
    store: Store = None,
    actor: Actor = None,
    yes: Yes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Delete a branch and what only it has."""
    address = graph_address(uri, store)
    ask_before_removing(f"Delete branch {name} of {address}?", address, yes=yes, as_json=as_json)
    opened("branch delete", address, quiet=quiet).delete_branch(name)
    if as_json:
        output.document({"uri": address, "name": name.strip(), "actor_id": actor})
        return
    output.data(f"deleted branch {name.strip()}")


@app.command()
def merge(
    source: Annotated[str, typer.Argument(help="The branch that has the changes.", metavar="SOURCE")],
    uri: Uri = None,
    *,
    store: Store = None,
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
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Bring onto a branch what another one has, in one commit or not at all."""
    address = graph_address(uri, store)
    options: dict[str, Any] = {
        "resolve": resolution(resolve, ours=ours, theirs=theirs),
        "engine": one_of("--engine", engine, ENGINES),
        "master": master,
        "conf": settings(conf),
        "progress": progress(quiet=quiet),
    }
    if dry_run:
        import omnigraph  # noqa: PLC0415 - loads the engine

        found = omnigraph.open(address, read_only=True).merge(source, into, dry_run=True, **options)
        _show_preview(found, as_json=as_json)
        return
    graph = opened("branch merge", address, quiet=quiet)
    try:
        done = graph.merge(source, into, actor=actor, **options)
    except MergeConflictError as error:
        refused(error, as_json=as_json)
        raise
    problem = _deletion_problem(graph, done.source) if delete_branch else None
    if as_json:
        deleted = {"branch_deleted": problem is None, "branch_delete_error": problem} if delete_branch else {}
        output.document({**merge_document(done, actor), **deleted})
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
        output.document({**merge_document(found, None), "dry_run": True})
    else:
        output.data(f"would merge {found.source} into {found.target}: {found.outcome}")
        for line in _change_lines(found):
            output.data(line)
        for conflict in found.conflicts:
            output.data(f"conflict {conflict}", style="red")
    if found.conflicts:
        raise typer.Exit(1)


def merge_document(done: MergeResult, actor: str | None) -> dict[str, Any]:
    return {
        "source": done.source,
        "target": done.target,
        "outcome": done.outcome,
        "actor_id": actor,
        "changes": {
            key: {"inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted}
            for key, counts in done.changes.items()
        },
        "conflicts": [conflict.to_dict() for conflict in done.conflicts],
        "compared": list(done.compared),
        "commit": commit_document(done.commit) if done.commit else None,
    }


def _change_lines(done: MergeResult) -> Iterator[str]:
    for key, counts in done.changes.items():
        yield f"{key}: {counts.inserted} inserted, {counts.updated} updated, {counts.deleted} deleted"
