"""`omnigraph revert`: undo what one commit changed, by a new commit."""

from __future__ import annotations

from typing import Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json, Uri
from omnigraph.cli.resolving import Ours, Resolve, Theirs, refused, resolution
from omnigraph.errors import MergeConflictError


def revert(
    scope: Scope,
    commit: Annotated[str, typer.Argument(help="The commit to undo.", metavar="COMMIT")],
    uri: Uri = None,
    *,
    branch: Annotated[str, typer.Option(help="The branch to undo it on.", metavar="NAME")] = "main",
    ours: Ours = False,
    theirs: Theirs = False,
    resolve: Resolve = None,
    as_json: Json = False,
) -> None:
    """Undo what one commit changed, and leave what came later, by a new commit."""
    target = scope.at(uri)
    actor = target.actor
    chosen = resolution(resolve, ours=ours, theirs=theirs)
    try:
        done = target.write_aloud().revert(commit, branch, actor=actor, resolve=chosen)
    except MergeConflictError as error:
        refused(error, as_json=as_json)
        raise
    if as_json:
        from omnigraph.api.documents import revert_output  # noqa: PLC0415 - loads the engine

        output.document(revert_output(done, actor))
        return
    by = f"by {done.commit.commit_id}" if done.commit else "there was nothing left to undo"
    output.data(f"reverted {done.source} on {done.target}: {by}")
