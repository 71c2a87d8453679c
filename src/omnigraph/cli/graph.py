"""`omnigraph init`, `snapshot` and `commit`: make a graph and look at its state and history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output

if TYPE_CHECKING:
    from omnigraph.manifest.rows import Commit

Uri = Annotated[str, typer.Argument(help="The graph: a directory, file:// or s3:// address.", metavar="URI")]
Branch = Annotated[str, typer.Option(help="The branch to look at.", metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

commit = typer.Typer(help="Look at the history of a graph.", no_args_is_help=True)


def init(
    uri: Uri,
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


def snapshot(uri: Uri, *, branch: Branch = "main", as_json: Json = False) -> None:
    """Show which version of each table a branch consists of."""
    import omnigraph  # noqa: PLC0415 - loads the engine
    from omnigraph.version import INTERNAL_SCHEMA_VERSION  # noqa: PLC0415

    found = omnigraph.open(uri, read_only=True).snapshot(branch)
    if as_json:
        tables = [
            {
                "table_key": entry.key,
                "table_path": entry.table.path,
                "table_version": entry.table.version,
                "table_branch": entry.table.branch,
                "row_count": entry.row_count,
            }
            for entry in found.entries.values()
        ]
        head = {"branch": branch, "manifest_version": found.manifest_version}
        output.document({**head, "internal_schema_version": INTERNAL_SCHEMA_VERSION, "tables": tables})
        return
    output.data(f"branch: {branch}")
    output.data(f"manifest_version: {found.manifest_version}")
    for entry in found.entries.values():
        where = f"branch={entry.table.branch or 'main'}"
        output.data(f"{entry.key} v{entry.table.version} {where} rows={entry.row_count}")


@commit.command("list")
def list_commits(
    uri: Uri,
    *,
    branch: Branch = "main",
    filters: Annotated[
        list[str] | None, typer.Option("--filter", help="Keep commits of one actor: actor=NAME.", metavar="KEY=VALUE")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the commits of a branch, newest first."""
    import omnigraph  # noqa: PLC0415 - loads the engine

    wanted = [_actor(text) for text in filters or ()]
    found = omnigraph.open(uri, read_only=True).commits(branch)
    kept = [item for item in found if all(item.actor_id == actor for actor in wanted)]
    if as_json:
        output.document({"commits": [commit_document(item) for item in kept]})
        return
    for item in kept:
        actor = f" actor={item.actor_id}" if item.actor_id else ""
        output.data(f"{item.commit_id} branch={item.branch or 'main'} version={item.manifest_version}{actor}")


@commit.command("show")
def show_commit(
    commit_id: Annotated[str, typer.Argument(help="The id of the commit.", metavar="COMMIT")],
    *,
    uri: Annotated[str, typer.Option(help="The graph.", metavar="URI")],
    as_json: Json = False,
) -> None:
    """Show one commit, on whichever branch it is."""
    import omnigraph  # noqa: PLC0415 - loads the engine

    document = commit_document(omnigraph.open(uri, read_only=True).commit(commit_id))
    if as_json:
        output.document(document)
        return
    shown = {"branch" if name == "manifest_branch" else name: value for name, value in document.items()}
    for name, value in {**shown, "branch": shown["branch"] or "main"}.items():
        if value is not None:
            output.data(f"{name}: {value}")


def graph_address(uri: str | None, store: str | None) -> str:
    """The graph of a command, given as its argument or as an option."""
    if (uri is None) == (store is None):
        raise typer.BadParameter("name the graph, either as URI or with --store", param_hint="URI")
    return str(uri or store)


def _actor(text: str) -> str:
    key, _, value = text.partition("=")
    if key != "actor" or not value:
        raise typer.BadParameter(f"unknown filter '{text}'; write actor=NAME", param_hint="--filter")
    return value


def commit_document(item: Commit) -> dict[str, Any]:
    return {
        "graph_commit_id": item.commit_id,
        "manifest_branch": item.branch,
        "manifest_version": item.manifest_version,
        "parent_commit_id": item.parent_id,
        "merged_parent_commit_id": item.merged_parent_id,
        "actor_id": item.actor_id,
        "created_at": item.created_at,
    }
