"""`omnigraph revert`: undo what one commit changed, by a new commit."""

from __future__ import annotations

from typing import Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.branch import merge_document
from omnigraph.cli.graph import Json, graph_address
from omnigraph.cli.resolving import Ours, Resolve, Theirs, refused, resolution
from omnigraph.cli.target import Actor, Quiet, Store, Uri, opened
from omnigraph.errors import MergeConflictError


def revert(
    commit: Annotated[str, typer.Argument(help="The commit to undo.", metavar="COMMIT")],
    uri: Uri = None,
    *,
    store: Store = None,
    branch: Annotated[str, typer.Option(help="The branch to undo it on.", metavar="NAME")] = "main",
    ours: Ours = False,
    theirs: Theirs = False,
    resolve: Resolve = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Undo what one commit changed, and leave what came later, by a new commit."""
    address = graph_address(uri, store)
    chosen = resolution(resolve, ours=ours, theirs=theirs)
    graph = opened("revert", address, quiet=quiet)
    try:
        done = graph.revert(commit, branch, actor=actor, resolve=chosen)
    except MergeConflictError as error:
        refused(error, as_json=as_json)
        raise
    if as_json:
        document = merge_document(done, actor)
        output.document({"reverted": document.pop("source"), "branch": document.pop("target"), **document})
        return
    by = f"by {done.commit.commit_id}" if done.commit else "there was nothing left to undo"
    output.data(f"reverted {done.source} on {done.target}: {by}")
