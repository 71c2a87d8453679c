"""`omnigraph log`: the history of a graph, drawn."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json, Uri

if TYPE_CHECKING:
    from omnigraph.api.results import LogEntry

_SHOWN = 50


def log(
    scope: Scope,
    uri: Uri = None,
    *,
    branches: Annotated[
        list[str] | None, typer.Option("--branch", help="A branch; all of them if none is named.", metavar="NAME")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Draw where branches part and meet.")] = False,
    limit: Annotated[int, typer.Option(help="How many commits to print.", min=1, metavar="N")] = _SHOWN,
    as_json: Json = False,
) -> None:
    """Show the history of branches, newest first."""
    from omnigraph.api.documents import log_output  # noqa: PLC0415
    from omnigraph.history.log import drawn  # noqa: PLC0415 - loads the engine

    found = scope.at(uri).read().log(branches)
    if as_json:
        output.document(log_output(found[:limit]))
        return
    known = {one.commit.commit_id: one for one in found}
    shown = 0
    for lanes, commit in drawn(one.commit for one in found):
        if commit is not None and shown == limit:
            output.note(f"… {len(found) - shown:,} more; --limit prints them")
            break
        shown += commit is not None
        text = _line(known[commit.commit_id]) if commit else ""
        if draw or commit:
            output.data(f"{lanes} {text}".rstrip() if draw else text)


def _line(entry: LogEntry) -> str:
    commit = entry.commit
    moment = dt.datetime.fromtimestamp(commit.created_at / 1_000_000, dt.UTC)
    names = ", ".join((*entry.branches, *(f"tag: {name}" for name in entry.tags)))
    parts = [
        commit.commit_id,
        f"({names})" if names else "",
        f"{moment:%Y-%m-%d %H:%M:%S}",
        commit.actor_id or "",
        f"merges {commit.merged_parent_id}" if commit.merged_parent_id else "",
    ]
    return " ".join(filter(None, parts))
