"""Commands for what has changed: commits, the difference of two states, and the feed of changes."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from omnigraph.api.changes import Change, ChangePage, Difference, DiffTally, EntityVersion, TableChanges
from omnigraph.api.documents import CAUSE, COMMIT_CHANGES, DiffHead, to_document
from omnigraph.api.protocol import GraphAPI
from omnigraph.api.results import Commit
from omnigraph.cli import output
from omnigraph.cli.address import Target
from omnigraph.cli.command import Branch, argument, command, option, switch
from omnigraph.cli.output import Line, Lines, quoted
from omnigraph.errors import OptionError

_STYLES = {"insert": "green", "update": "yellow", "delete": "red"}
_SIGNS = {"insert": "+", "update": "~", "delete": "-"}
_WIDEST = 60

CommitId = Annotated[str, argument("The commit: its id, a branch, a tag or REF~N.", "COMMIT")]
Limit = Annotated[int, option("How many changes to read at a time.", "N")]


@dataclass(frozen=True, slots=True)
class ChangeFilters:
    """Which changes to show."""

    kinds: Annotated[list[str] | None, option("Only node or edge.", "KIND", "--kind")] = None
    types: Annotated[list[str] | None, option("Only entities of this type.", "NAME", "--type")] = None
    operations: Annotated[list[str] | None, option("Only insert, update or delete.", "OP", "--op")] = None

    def given(self) -> dict[str, Any]:
        return asdict(self)


@command("commit list")
def list_commits(
    target: Target,
    *,
    branch: Branch = None,
    filters: Annotated[
        list[str] | None, option("Only commits of one actor: actor=NAME.", "KEY=VALUE", "--filter")
    ] = None,
) -> None:
    """List the commits of a branch, newest first."""
    # Before the graph is opened: a wrong filter is found without it.
    wanted = [_actor(text) for text in filters or ()]
    found = target.read().commits(target.scope.branch(branch), wanted[0] if wanted else None)
    found = [item for item in found if all(item.actor_id == actor for actor in wanted)]
    target.emit(lambda: {"commits": to_document(found)}, map(_commit_line, found))


def _actor(text: str) -> str:
    key, _, value = text.partition("=")
    if key != "actor" or not value:
        raise OptionError(f"unknown filter {text!r}", option="filter", hint="write actor=NAME")
    return value


def _commit_line(item: Commit) -> str:
    actor = f" actor={item.actor_id}" if item.actor_id else ""
    said = f" {quoted(item.message)}" if item.message else ""
    return f"{item.commit_id} branch={item.branch or 'main'} version={item.manifest_version}{actor}{said}"


@command("commit show")
def show_commit(target: Target, commit_id: CommitId) -> None:
    """Show one commit of any branch."""
    found = target.read().commit(commit_id)
    shown = {
        "graph_commit_id": found.commit_id,
        "branch": found.branch or "main",
        "manifest_version": found.manifest_version,
        "parent_commit_id": found.parent_id,
        "merged_parent_commit_id": found.merged_parent_id,
        "actor_id": found.actor_id,
        "created_at": found.created_at,
        "message": found.message,
    }
    target.emit(to_document(found), output.pairs({name: value for name, value in shown.items() if value is not None}))


@command("commit changes")
def commit_changes(
    target: Target,
    commit_id: CommitId,
    *,
    limit: Limit = 1000,
    page_token: Annotated[str | None, option("Continue after a page.", "TOKEN")] = None,
    filters: ChangeFilters,
) -> None:
    """Show the changes of one commit since its first parent."""
    page = target.read().commit_changes(commit_id, page_token=page_token, limit=limit, **filters.given())
    target.emit(lambda: COMMIT_CHANGES.write(page), _page(page))


def _page(page: ChangePage) -> Lines:
    yield from _blocks(page)
    if page.next_page_token:
        yield Line(f"more with --page-token {page.next_page_token}", is_note=True)


@command("diff")
def diff(
    target: Target,
    before: Annotated[str, argument("A branch, tag, commit, REF~N or REF@VERSION; or A...B.", "A")],
    after: Annotated[str | None, argument("The state to compare it with. Not with A...B.", "B")] = None,
    *,
    filters: ChangeFilters,
    limit: Annotated[int, option("How many changes of each type to print.", "N", min=0)] = 10,
    everything: Annotated[bool, switch("Print all changes.", "--all")] = False,
    stat: Annotated[bool, switch("Print only the counts.", "--stat")] = False,
) -> None:
    """Show the changes from A to B: inserted (+), updated (~) and deleted (-), by type.

    A...B shows what B did since it parted from A.
    """
    # No rows are compared yet: that happens while they are printed.
    found = target.read().diff(before, after, **filters.given())
    text = _diff(found, None if everything else 0 if stat else limit)
    target.emit(_diff_document(found, with_changes=not stat), text)


def _diff_document(found: Difference, *, with_changes: bool) -> Iterator[str]:
    """Write the document piece by piece: a difference may be larger than memory."""
    # Without its closing brace: the members that follow belong to the same object.
    yield json.dumps(to_document(DiffHead.of(found)), ensure_ascii=False)[:-1]
    tally = DiffTally()
    separator = ', "changes": ['
    for rows in found.rows():
        tally.add(rows)
        for change in rows.changes() if with_changes else ():
            yield separator + json.dumps(to_document(change), ensure_ascii=False)
            separator = ", "
    if with_changes:
        yield f"{separator}]" if separator != ", " else "]"
    yield f", {json.dumps(to_document(tally.stats), ensure_ascii=False)[1:]}\n"


def _diff(found: Difference, limit: int | None) -> Lines:
    schema = list(_schema_changes(found))
    yield from schema
    is_empty = not schema
    for key, parts in itertools.groupby(found.rows(), key=lambda rows: rows.key):
        is_empty = False
        yield from _type_changes(key, parts, limit)
    if is_empty:
        yield Line("no differences", is_note=True)


def _schema_changes(found: Difference) -> Lines:
    schema = found.schema
    for sign, style, what, names in (
        ("+", "green", "type", schema.types_added),
        ("-", "red", "type", schema.types_removed),
        ("+", "green", "property", schema.properties_added),
        ("-", "red", "property", schema.properties_removed),
    ):
        for name in names:
            yield Line(f"{sign} {what} {name.replace(':', ' ', 1)}", style)


def _type_changes(key: str, parts: Iterator[TableChanges], limit: int | None) -> Lines:
    """Print the changes of one type below their counts. Changes that are not shown are counted all the same."""
    counts: Counter[str] = Counter()
    shown: list[Change] = []
    compared = False
    for rows in parts:
        counts.update(rows.counts)
        compared |= rows.compared
        if limit is None or len(shown) < limit:
            # Past the limit no part is decoded any more: its counts do not need its changes.
            shown.extend(rows.changes()[: None if limit is None else limit - len(shown)])
    summary = "  ".join(f"{_SIGNS[name]}{counts[name]:,}" for name in _SIGNS if counts[name])
    yield Line(f"{key.replace(':', ' ', 1)}  {summary}", "bold")
    for change in shown:
        details = ", ".join(_property_lines(change))
        text = f"  {_SIGNS[change.operation]} {change.id}{f'  {details}' if details else ''}"
        yield Line(text, _STYLES[change.operation])
    # By the counts: parts beyond the limit were never decoded.
    hidden = sum(counts.values()) - len(shown)
    if hidden and limit:
        yield Line(f"  … {hidden:,} more; --all prints them", "dim")
    if compared:
        yield Line(f"the two versions of {key} share no known history, so all rows were compared", is_note=True)


@command("history")
def history(
    target: Target,
    type_name: Annotated[str, argument("The type of the entity.", "TYPE")],
    entity: Annotated[str, argument("The id of the entity.", "ID")],
    *,
    branch: Branch = None,
    kind: Annotated[str | None, option("node or edge, if both have the name.", "KIND", "--kind")] = None,
    limit: Annotated[int, option("How many changes to print.", "N", min=1, max=1000)] = 100,
) -> None:
    """Show what happened to one entity: by which commits, and which properties changed."""
    found = target.read().history_of(type_name, entity, target.scope.branch(branch), kind=kind, limit=limit)
    target.emit({"versions": to_document(found)}, (line for one in found for line in _entity_version(one)))


def _entity_version(one: EntityVersion) -> Lines:
    moment = dt.datetime.fromtimestamp(one.commit.created_at / 1_000_000, dt.UTC)
    merged = f"merged by {one.merge.commit_id}" if one.merge else ""
    parts = [one.commit.commit_id, f"{moment:%Y-%m-%d %H:%M:%S}", one.commit.actor_id or "", merged]
    yield " ".join(filter(None, [*parts, quoted(one.commit.message)]))
    change = one.change
    details = ", ".join(_property_lines(change))
    yield Line(f"  {_SIGNS[change.operation]} {details}".rstrip(), _STYLES[change.operation])


@command("changes poll")
def poll_changes(
    target: Target,
    *,
    branch: Branch = None,
    cursor: Annotated[str | None, option("The cursor that the last poll printed.", "CURSOR")] = None,
    start: Annotated[str | None, option("Where to start: now, beginning or after:COMMIT.", "PLACE")] = None,
    limit: Limit = 1000,
    filters: ChangeFilters,
) -> None:
    """Print the changes since a cursor, commit by commit, and the cursor for the next poll."""
    graph, branch = target.read(), target.scope.branch(branch)
    wanted = {**filters.given(), "limit": limit}
    # The first page now and the others while they are printed: a wrong cursor is an error before any output.
    pages = _pages(graph, branch, graph.changes(branch, cursor=cursor, start=start, **wanted), wanted)
    target.emit(_pages_document(pages), _pages_text(pages))


def _pages(graph: GraphAPI, branch: str, page: ChangePage, wanted: dict[str, Any]) -> Iterator[ChangePage]:
    yield page
    while page.next_page_token:
        page = graph.changes(branch, page_token=page.next_page_token, **wanted)
        yield page


@command("changes baseline", json=False)
def baseline(
    target: Target,
    *,
    out: Annotated[str, option("The file to write, as JSONL.", "PATH")],
    branch: Branch = None,
    filters: ChangeFilters,
) -> None:
    """Export a branch, and print the cursor that continues right after the exported state."""
    graph, branch = target.read(), target.scope.branch(branch)
    begins = graph.baseline(branch, **filters.given())
    # At the commit, not at the branch: the cursor must continue exactly where the file ends.
    _write_lines(out, graph.export(branch=branch, snapshot=begins.commit_id, types=begins.tables))
    output.document({"snapshot_commit_id": begins.commit_id, "resume_cursor": begins.cursor})


def _write_lines(path: str, lines: Iterator[str]) -> None:
    """Write one file, whatever its suffix: the file exists as a whole, or not at all."""
    from omnigraph.core.location import Location  # noqa: PLC0415
    from omnigraph.formats.files import written  # noqa: PLC0415 - loads the engine

    # In chunks, because a write of each line is slow and a text of all of them may not fit in memory.
    with written(Location.parse(path)) as stream:
        while chunk := "".join(itertools.islice(lines, 1000)):
            stream.write(chunk.encode())


def _pages_document(pages: Iterator[ChangePage]) -> Iterator[str]:
    """Write the document piece by piece. A commit that spans several pages is one block."""
    yield '{"blocks": ['
    open_block, page = None, None
    for page in pages:
        for block in page.blocks:
            if block.cause.commit_id != open_block:
                # A commit that did not fit a page goes on in the next, and must not be written as two blocks.
                yield "]}, " if open_block else ""
                yield f'{{"cause": {json.dumps(CAUSE.write(block.cause))}, "changes": ['
                separator = ""
            for change in block.changes:
                yield separator + json.dumps(to_document(change), ensure_ascii=False)
                separator = ", "
            open_block = block.cause.commit_id
    assert page is not None
    yield "]}" if open_block else ""
    yield f'], "cursor": {json.dumps(page.cursor)}, "caught_up": {json.dumps(page.caught_up)}}}\n'


def _pages_text(pages: Iterator[ChangePage]) -> Lines:
    cursor = None
    for page in pages:
        yield from _blocks(page)
        cursor = page.cursor
    yield f"cursor: {cursor}"


def _blocks(page: ChangePage) -> Lines:
    for block in page.blocks:
        actor = f" by {block.cause.actor_id}" if block.cause.actor_id else ""
        yield Line(f"commit {block.cause.commit_id}{actor}", "bold")
        for change in block.changes:
            text = f"{change.operation} {change.kind} {change.type_name} {change.id}"
            yield Line(text, _STYLES[change.operation])
            yield from (f"    {line}" for line in _property_lines(change))


def _property_lines(change: Change) -> Iterator[str]:
    """Show the properties of a change; of an update only the changed ones."""
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
