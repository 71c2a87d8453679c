"""`omnigraph mutate`: change a graph by a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json
from omnigraph.cli.sources import AliasName, Asked, File, Given, Name, Params, ParamsFile, Text, Words, asked
from omnigraph.errors import PreconditionFailedError

if TYPE_CHECKING:
    from omnigraph.api.results import MutationResult

LOST_PRECONDITION = 4  # the exit code of `--if-commit` on a branch that has moved


def mutate(
    scope: Scope,
    words: Words = None,
    *,
    query: File = None,
    text: Text = None,
    params: Params = None,
    params_file: ParamsFile = None,
    name: Name = None,
    alias: AliasName = None,
    branch: Annotated[str | None, typer.Option(help="The branch to change.", metavar="NAME")] = None,
    if_commit: Annotated[
        str | None, typer.Option(help="Change it only if the branch is at this commit.", metavar="COMMIT")
    ] = None,
    as_json: Json = False,
) -> None:
    """Insert, update or delete by a query, in one commit."""
    wanted = asked(scope, Given(words or (), query, text, params, params_file, name, alias))
    place = {"branch": branch or wanted.branch or scope.branch(), "if_commit": if_commit}
    try:
        done = _done(scope, wanted, place)
    except PreconditionFailedError as error:
        _precondition_failed(error, as_json=as_json)
        raise typer.Exit(LOST_PRECONDITION) from None
    if as_json:
        from omnigraph.api.documents import change_output  # noqa: PLC0415 - loads the engine

        output.document(change_output(done))
        return
    counts = f"{done.affected_nodes} nodes, {done.affected_edges} edges"
    output.data(f"changed {done.branch} via {done.query_name}: {counts}")
    if done.actor_id:
        output.data(f"actor_id: {done.actor_id}")


def _done(scope: Scope, wanted: Asked, place: dict[str, Any]) -> MutationResult:
    target = scope.at(wanted.uri, graph=wanted.graph)
    actor = target.actor
    if wanted.source is None:
        return target.stored().invoke_change(wanted.stored_name, wanted.params, **place)
    return target.write().mutate(wanted.source, wanted.params, name=wanted.name, actor=actor, **place)


def _precondition_failed(error: PreconditionFailedError, *, as_json: bool) -> None:
    if as_json:
        from omnigraph.api.problems import body  # noqa: PLC0415 - loads the engine

        output.document(body(error, full=False))
    else:
        output.error(error)
