"""`omnigraph mutate`: change a graph by a query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.graph import Json, commit_document
from omnigraph.errors import FileAccessError, ParameterError, PreconditionFailedError

if TYPE_CHECKING:
    from pathlib import Path

    from omnigraph.write.mutation import MutationResult

LOST_PRECONDITION = 4  # the exit code of `--if-commit` on a branch that has moved


def mutate(
    name: Annotated[str | None, typer.Argument(help="Which query, if the source holds several.")] = None,
    *,
    store: Annotated[str, typer.Option("--store", "--uri", help="The graph.", metavar="URI")],
    query: Annotated[str | None, typer.Option(help="A .gq file.", metavar="FILE")] = None,
    text: Annotated[str | None, typer.Option("--query-string", "-e", help="The query itself.", metavar="GQ")] = None,
    params: Annotated[str | None, typer.Option(help="Its parameters, a JSON object.", metavar="JSON")] = None,
    params_file: Annotated[str | None, typer.Option(help="A file that holds them.", metavar="FILE")] = None,
    branch: Annotated[str, typer.Option(help="The branch to change.", metavar="NAME")] = "main",
    actor: Annotated[str | None, typer.Option("--as", help="Who makes the change.", metavar="ACTOR")] = None,
    if_commit: Annotated[
        str | None, typer.Option(help="Change it only if the branch is at this commit.", metavar="COMMIT")
    ] = None,
    as_json: Json = False,
) -> None:
    """Insert, update or delete by a query, in one commit."""
    import omnigraph  # noqa: PLC0415 - loads the engine

    given = query_source(query, text)
    values = parameters(params, params_file)
    try:
        done = omnigraph.open(store).mutate(given, values, name=name, branch=branch, actor=actor, if_commit=if_commit)
    except PreconditionFailedError as error:
        _precondition_failed(error, as_json=as_json)
        raise typer.Exit(LOST_PRECONDITION) from None
    if as_json:
        output.document(_document(done))
        return
    output.data(f"changed {branch} via {done.query_name}: {done.affected_nodes} nodes, {done.affected_edges} edges")
    if done.actor_id:
        output.data(f"actor_id: {done.actor_id}")


def query_source(file: str | None, text: str | None) -> str | Path:
    """The query of a command: a file, or the text itself."""
    from pathlib import Path  # noqa: PLC0415 - `--help` must stay quick

    if (file is None) == (text is None):
        raise typer.BadParameter("give either --query or --query-string", param_hint="--query")
    if text is not None and not text.strip():
        raise typer.BadParameter("--query-string must not be empty", param_hint="--query-string")
    return Path(file) if file is not None else str(text)


def parameters(text: str | None, file: str | None) -> dict[str, Any] | None:
    """Read the parameters. What is wrong with a single one is told by whoever knows its type."""
    if text is not None and file is not None:
        raise typer.BadParameter("give either --params or --params-file", param_hint="--params")
    if file is not None:
        text = _read(file)
    if text is None:
        return None
    try:
        values: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"the parameters are not JSON: {error}", parameter=None, hint="pass {...}") from None
    return values


def _read(file: str) -> str:
    from pathlib import Path  # noqa: PLC0415 - `--help` must stay quick

    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileAccessError(f"cannot read {file}: {error}", path=file) from None


def _precondition_failed(error: PreconditionFailedError, *, as_json: bool) -> None:
    if as_json:
        failure = {"expected": error.expected, "actual": error.actual}
        output.document({"error": error.message, "code": error.code, "precondition_failure": failure})
    else:
        output.error(error)


def _document(done: MutationResult) -> dict[str, Any]:
    return {
        "branch": done.branch,
        "query_name": done.query_name,
        "affected_nodes": done.affected_nodes,
        "affected_edges": done.affected_edges,
        "actor_id": done.actor_id,
        "commit": commit_document(done.commit) if done.commit else None,
    }
