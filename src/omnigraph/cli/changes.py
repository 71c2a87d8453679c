"""`omnigraph changes` and `commit changes`: what commits did to the entities of a graph."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Branch, CommitId, Json, Uri
from omnigraph.cli.command import command, group

if TYPE_CHECKING:
    from omnigraph.api.changes import Change, ChangeOptions, ChangePage
    from omnigraph.graph import Graph

Kinds = Annotated[list[str] | None, typer.Option("--kind", help="Only node or edge.", metavar="KIND")]
Types = Annotated[list[str] | None, typer.Option("--type", help="Only entities of this type.", metavar="NAME")]
Operations = Annotated[list[str] | None, typer.Option("--op", help="Only insert, update or delete.", metavar="OP")]
Limit = Annotated[int, typer.Option(help="How many changes to read at a time.", metavar="N")]

STYLES = {"insert": "green", "update": "yellow", "delete": "red"}
SIGNS = {"insert": "+", "update": "~", "delete": "-"}
_WIDEST = 60
_AT_ONCE = 1000  # lines that are written together

app = group("Follow what changes in a graph.")


@command(app, "changes poll")
def poll(
    scope: Scope,
    uri: Uri = None,
    *,
    branch: Branch = None,
    cursor: Annotated[str | None, typer.Option(help="Where the last poll ended.", metavar="CURSOR")] = None,
    start: Annotated[
        str | None, typer.Option(help="Where to start: now, beginning or after:COMMIT.", metavar="PLACE")
    ] = None,
    limit: Limit = 1000,
    kinds: Kinds = None,
    types: Types = None,
    operations: Operations = None,
    as_json: Json = False,
) -> None:
    """Print the changes since a cursor, commit by commit, and the cursor for the next time."""
    graph, branch = scope.at(uri).read(), scope.branch(branch)
    wanted: ChangeOptions = {"kinds": kinds, "types": types, "operations": operations, "limit": limit}
    first: ChangeOptions = {**wanted, "cursor": cursor, "start": start}
    _print_pages(_pages(graph, branch, graph.changes(branch, **first), wanted), as_json=as_json)


def _pages(graph: Graph, branch: str, page: ChangePage, wanted: ChangeOptions) -> Iterator[ChangePage]:
    yield page
    while page.next_page_token:
        following: ChangeOptions = {**wanted, "page_token": page.next_page_token}
        page = graph.changes(branch, **following)
        yield page


@command(app, "changes baseline")
def baseline(
    scope: Scope,
    uri: Uri = None,
    *,
    out: Annotated[str, typer.Option(help="The file to write, as JSONL.", metavar="PATH")],
    branch: Branch = None,
    kinds: Kinds = None,
    types: Types = None,
    operations: Operations = None,
) -> None:
    """Export a branch, and print the cursor that goes on right behind the exported state."""
    graph, branch = scope.at(uri).read(), scope.branch(branch)
    begins = graph.baseline(branch, kinds=kinds, types=types, operations=operations)
    _write(out, graph.export(branch=branch, snapshot=begins.commit_id, types=begins.tables))
    output.document({"snapshot_commit_id": begins.commit_id, "resume_cursor": begins.cursor})


def _write(path: str, lines: Iterator[str]) -> None:
    """Write one file, whatever its name is: it is there as a whole, or not at all."""
    from omnigraph.core.location import Location  # noqa: PLC0415
    from omnigraph.formats.outputs import written  # noqa: PLC0415 - loads the engine

    with written(Location.parse(path)) as stream:
        while chunk := "".join(itertools.islice(lines, _AT_ONCE)):
            stream.write(chunk.encode())


def commit_changes(
    scope: Scope,
    commit_id: CommitId,
    uri: Uri = None,
    *,
    limit: Limit = 1000,
    page_token: Annotated[str | None, typer.Option(help="Go on where a page ended.", metavar="TOKEN")] = None,
    kinds: Kinds = None,
    types: Types = None,
    operations: Operations = None,
    as_json: Json = False,
) -> None:
    """Show what one commit changed with respect to its first parent."""
    graph = scope.at(uri).read()
    page = graph.commit_changes(
        commit_id, page_token=page_token, limit=limit, kinds=kinds, types=types, operations=operations
    )
    if as_json:
        from omnigraph.api.change_documents import commit_changes_output  # noqa: PLC0415 - loads the engine

        output.document(commit_changes_output(page))
        return
    _print_block(page)
    if page.next_page_token:
        output.note(f"more with --page-token {page.next_page_token}")


def _print_pages(pages: Iterator[ChangePage], *, as_json: bool) -> None:
    if as_json:
        for text in _document(pages):
            output.raw(text)
        return
    cursor = None
    for page in pages:
        _print_block(page)
        cursor = page.cursor
    output.data(f"cursor: {cursor}")


def _document(pages: Iterator[ChangePage]) -> Iterator[str]:
    """One JSON document, piece by piece: a commit that was told in several pages is one block."""
    from omnigraph.api.change_documents import cause_output, entity_change_output  # noqa: PLC0415 - loads the engine

    yield '{"blocks": ['
    open_block, page = None, None
    for page in pages:
        for block in page.blocks:
            if block.cause.commit_id != open_block:
                yield "]}, " if open_block else ""
                yield f'{{"cause": {json.dumps(cause_output(block.cause))}, "changes": ['
                separator = ""
            for change in block.changes:
                yield separator + json.dumps(entity_change_output(change), ensure_ascii=False)
                separator = ", "
            open_block = block.cause.commit_id
    assert page is not None
    yield "]}" if open_block else ""
    yield f'], "cursor": {json.dumps(page.cursor)}, "caught_up": {json.dumps(page.caught_up)}}}\n'


def _print_block(page: ChangePage) -> None:
    for block in page.blocks:
        actor = f" by {block.cause.actor_id}" if block.cause.actor_id else ""
        output.data(f"commit {block.cause.commit_id}{actor}", "bold")
        for change in block.changes:
            output.data(f"{change.operation} {change.kind} {change.type_name} {change.id}", STYLES[change.operation])
            for line in property_lines(change):
                output.data(f"    {line}")


def property_lines(change: Change) -> Iterator[str]:
    """What a person wants to see of a change: of an update only what it changed."""
    if change.endpoints is not None:
        yield f"{change.endpoints[0]} -> {change.endpoints[1]}"
    shown = change.after if change.after is not None else change.before
    for name, value in (shown or {}).items():
        if change.operation != "update":
            if value is not None:
                yield f"{name}: {_brief(value)}"
        elif name in change.changed and change.before is not None:
            yield f"{name}: {_brief(change.before[name])} -> {_brief(value)}"


def _brief(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
