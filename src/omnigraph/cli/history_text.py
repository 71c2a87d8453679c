"""How versions of a graph are printed: branches, tags, commits, and the changes between them."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from omnigraph.api.change_documents import cause_output, commit_changes_output, diff_head_output, entity_change_output
from omnigraph.api.changes import Change, ChangePage, Difference, TableChanges
from omnigraph.api.documents import (
    branch_created_output,
    branch_deleted_output,
    commit_output,
    commits_output,
    log_output,
    merge_output,
    revert_output,
    snapshot_output,
    tag_deleted_output,
    tag_output,
    tags_output,
)
from omnigraph.api.results import Commit, LogEntry, MergeResult, Snapshot, Tag
from omnigraph.cli.emit import Document, Lines, renders
from omnigraph.cli.output import Line

_STYLES = {"insert": "green", "update": "yellow", "delete": "red"}
_SIGNS = {"insert": "+", "update": "~", "delete": "-"}
_WIDEST = 60


def _branch_created_document(_: None, *, uri: str, name: str, base: str, actor: str | None) -> Document:
    return branch_created_output(uri, name, base, actor)


@renders("branch create", document=_branch_created_document)
def _branch_created(_: None, *, name: str, base: str, **_facts: Any) -> Lines:
    yield f"created branch {name.strip()} from {base}"


@renders("branch list", document=lambda names: {"branches": names})
def _branches(names: list[str]) -> Lines:
    yield from names


@renders("branch delete", document=lambda _, *, uri, name, actor: branch_deleted_output(uri, name, actor))
def _branch_deleted(_: None, *, name: str, **_facts: Any) -> Lines:
    yield f"deleted branch {name.strip()}"


def _merge_document(
    done: MergeResult, *, actor: str | None = None, dry_run: bool = False, deletion: Document | None = None
) -> Document:
    if dry_run:
        return {**merge_output(done, None), "dry_run": True}
    problem = (deletion or {}).get("problem")
    deleted = {} if deletion is None else {"branch_deleted": problem is None, "branch_delete_error": problem}
    return {**merge_output(done, actor), **deleted}


@renders("branch merge", document=_merge_document)
def _merged(done: MergeResult, *, dry_run: bool = False, deletion: Document | None = None, **_facts: Any) -> Lines:
    yield f"{'would merge' if dry_run else 'merged'} {done.source} into {done.target}: {done.outcome}"
    if dry_run:
        for key, counts in done.changes.items():
            yield f"{key}: {counts.inserted} inserted, {counts.updated} updated, {counts.deleted} deleted"
        yield from (Line(f"conflict {conflict}", "red") for conflict in done.conflicts)
    if deletion is not None and deletion["problem"] is None:
        yield f"deleted branch {done.source}"


@renders("revert", document=lambda done, *, actor: revert_output(done, actor))
def _reverted(done: MergeResult, *, actor: str | None) -> Lines:  # noqa: ARG001
    outcome = f"by {done.commit.commit_id}" if done.commit else "there was nothing left to undo"
    yield f"reverted {done.source} on {done.target}: {outcome}"


@renders("tag create", document=lambda made, *, uri: {"uri": uri, **tag_output(made)})
def _tag_created(made: Tag, *, uri: str) -> Lines:  # noqa: ARG001
    yield f"created tag {made.name} at {made.commit.commit_id}"


@renders("tag list", document=tags_output)
def _tags(found: list[Tag]) -> Lines:
    yield from (f"{tag.name} {tag.commit.commit_id}" for tag in found)


@renders("tag delete", document=lambda _, *, uri, name: tag_deleted_output(uri, name))
def _tag_deleted(_: None, *, uri: str, name: str) -> Lines:  # noqa: ARG001
    yield f"deleted tag {name.strip()}"


@renders("snapshot", document=snapshot_output)
def _snapshot(found: Snapshot) -> Lines:
    yield f"branch: {found.branch or 'main'}"
    yield f"manifest_version: {found.manifest_version}"
    for entry in found.entries.values():
        where = f"branch={entry.table.branch or 'main'}"
        yield f"{entry.key} v{entry.table.version} {where} rows={entry.row_count}"


@renders("commit list", document=commits_output)
def _commits(found: list[Commit]) -> Lines:
    for item in found:
        actor = f" actor={item.actor_id}" if item.actor_id else ""
        yield f"{item.commit_id} branch={item.branch or 'main'} version={item.manifest_version}{actor}"


@renders("commit show", document=commit_output)
def _commit(found: Commit) -> Lines:
    shown = {
        "graph_commit_id": found.commit_id,
        "branch": found.branch or "main",
        "manifest_version": found.manifest_version,
        "parent_commit_id": found.parent_id,
        "merged_parent_commit_id": found.merged_parent_id,
        "actor_id": found.actor_id,
        "created_at": found.created_at,
    }
    yield from (f"{name}: {value}" for name, value in shown.items() if value is not None)


@renders("log", document=lambda found, *, draw, limit: log_output(found[:limit]))  # noqa: ARG005
def _log(found: list[LogEntry], *, draw: bool, limit: int) -> Lines:
    from omnigraph.history.log import drawn  # noqa: PLC0415 - loads the engine

    known = {one.commit.commit_id: one for one in found}
    shown = 0
    for lanes, commit in drawn(one.commit for one in found):
        if commit is not None and shown == limit:
            yield Line(f"… {len(found) - shown:,} more; --limit prints them", is_note=True)
            break
        shown += commit is not None
        text = _log_line(known[commit.commit_id]) if commit else ""
        if draw or commit:
            yield f"{lanes} {text}".rstrip() if draw else text


def _log_line(entry: LogEntry) -> str:
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


# diff ----------------------------------------------------------------------------------------------


def _diff_document(found: Difference, *, limit: int | None, with_changes: bool) -> Iterator[str]:  # noqa: ARG001
    """Write the document piece by piece: a difference may be larger than memory."""
    yield json.dumps(diff_head_output(found), ensure_ascii=False)[:-1]
    counts: dict[str, Counter[str]] = {}
    compared: dict[str, bool] = {}
    separator = ', "changes": ['
    for rows in found.rows():
        counts.setdefault(rows.key, Counter()).update(rows.counts)
        compared[rows.key] = rows.compared
        for change in rows.changes() if with_changes else ():
            yield separator + json.dumps(entity_change_output(change), ensure_ascii=False)
            separator = ", "
    if with_changes:
        yield f"{separator}]" if separator != ", " else "]"
    tail = {"stats": counts, "compared": [key for key, full in compared.items() if full]}
    yield f", {json.dumps(tail, ensure_ascii=False)[1:]}\n"


@renders("diff", document=_diff_document)
def _diff(found: Difference, *, limit: int | None, with_changes: bool) -> Lines:  # noqa: ARG001
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
            shown.extend(rows.changes()[: None if limit is None else limit - len(shown)])
    summary = "  ".join(f"{_SIGNS[name]}{counts[name]:,}" for name in _SIGNS if counts[name])
    yield Line(f"{key.replace(':', ' ', 1)}  {summary}", "bold")
    for change in shown:
        details = ", ".join(_property_lines(change))
        text = f"  {_SIGNS[change.operation]} {change.id}{f'  {details}' if details else ''}"
        yield Line(text, _STYLES[change.operation])
    hidden = sum(counts.values()) - len(shown)
    if hidden and limit:
        yield Line(f"  … {hidden:,} more; --all prints them", "dim")
    if compared:
        yield Line(f"the two versions of {key} share no known history, so all rows were compared", is_note=True)


# changes -------------------------------------------------------------------------------------------


def _pages_document(pages: Iterator[ChangePage]) -> Iterator[str]:
    """Write the document piece by piece. A commit that spans several pages is one block."""
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


@renders("changes poll", document=_pages_document)
def _pages(pages: Iterator[ChangePage]) -> Lines:
    cursor = None
    for page in pages:
        yield from _blocks(page)
        cursor = page.cursor
    yield f"cursor: {cursor}"


@renders("commit changes", document=commit_changes_output)
def _page(page: ChangePage) -> Lines:
    yield from _blocks(page)
    if page.next_page_token:
        yield Line(f"more with --page-token {page.next_page_token}", is_note=True)


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
