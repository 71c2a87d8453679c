"""`omnigraph diff`: what turns one state of a graph into another."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json, Uri
from omnigraph.cli.changes import SIGNS, STYLES, Kinds, Operations, Types, property_lines

if TYPE_CHECKING:
    from omnigraph.api.changes import Change
    from omnigraph.history.diff import ChangedRows, Diff

_SHOWN = 10


def diff(
    scope: Scope,
    before: Annotated[str, typer.Argument(help="A branch, tag, commit, REF~N or REF@VERSION.", metavar="A")],
    after: Annotated[str, typer.Argument(help="The state to compare it with.", metavar="B")],
    uri: Uri = None,
    *,
    kinds: Kinds = None,
    types: Types = None,
    operations: Operations = None,
    limit: Annotated[int, typer.Option(help="How many changes of each type to print.", min=0, metavar="N")] = _SHOWN,
    everything: Annotated[bool, typer.Option("--all", help="Print all changes.")] = False,
    stat: Annotated[bool, typer.Option("--stat", help="Only count them.")] = False,
    as_json: Json = False,
) -> None:
    """Show what turns A into B: entities inserted (+), updated (~) and deleted (-), by type."""
    graph = scope.at(uri).read()
    found = graph.diff(before, after, kinds=kinds, types=types, operations=operations)
    if as_json:
        for text in _document(found, with_changes=not stat):
            output.raw(text)
        return
    _print(found, None if everything else 0 if stat else limit)


def _print(found: Diff, limit: int | None) -> None:
    _print_schema(found)
    empty = True
    for key, parts in itertools.groupby(found.rows(), key=lambda rows: rows.key):
        empty = False
        _print_type(key, parts, limit)
    if empty and not found.schema:
        output.note("no differences")


def _print_schema(found: Diff) -> None:
    schema = found.schema
    for sign, style, what, names in (
        ("+", "green", "type", schema.types_added),
        ("-", "red", "type", schema.types_removed),
        ("+", "green", "property", schema.properties_added),
        ("-", "red", "property", schema.properties_removed),
    ):
        for name in names:
            output.data(f"{sign} {what} {name.replace(':', ' ', 1)}", style)


def _print_type(key: str, parts: Iterator[ChangedRows], limit: int | None) -> None:
    """Print the changes of one type below their counts; what is not shown is counted all the same."""
    counts: Counter[str] = Counter()
    shown: list[Change] = []
    compared = False
    for rows in parts:
        counts.update(rows.counts)
        compared |= rows.compared
        if limit is None or len(shown) < limit:
            shown.extend(rows.changes()[: None if limit is None else limit - len(shown)])
    told = "  ".join(f"{SIGNS[name]}{counts[name]:,}" for name in SIGNS if counts[name])
    output.data(f"{key.replace(':', ' ', 1)}  {told}", "bold")
    for change in shown:
        _print_change(change)
    hidden = sum(counts.values()) - len(shown)
    if hidden and limit:
        output.data(f"  … {hidden:,} more; --all prints them", "dim")
    if compared:
        output.note(f"nothing tells what the two versions of {key} have in common, so all of it was compared")


def _print_change(change: Change) -> None:
    details = ", ".join(property_lines(change))
    output.data(f"  {SIGNS[change.operation]} {change.id}{f'  {details}' if details else ''}", STYLES[change.operation])


def _document(found: Diff, *, with_changes: bool) -> Iterator[str]:
    """One JSON document, piece by piece."""
    from omnigraph.api.change_documents import diff_head_output, entity_change_output  # noqa: PLC0415 - loads the engine

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
