"""Answers that fit into the context of a model: bounded rows and texts, each with a way to go on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

from omnigraph.api import problems
from omnigraph.api.changes import Change
from omnigraph.api.documents import to_document
from omnigraph.api.rows import Result
from omnigraph.errors import CompileError, OmnigraphError, OutcomeUnknownError

Answer = dict[str, Any]

ROWS, MOST_ROWS = 50, 1_000
CHARACTERS = 20_000
_CELL, _ELEMENTS = 500, 8
_RETRY = frozenset({408, 429, 503})


def rows_answer(found: Result, start: int, most: int) -> Answer:
    """Return some rows of a result, as many as fit, and where the next call continues."""
    rows: list[list[Any]] = []
    used = 0
    for row in itertools.islice(found.cells(), start, start + most):
        values = [_cut(value) for value in row]
        used += len(json.dumps(values, ensure_ascii=False, default=str))
        # At least one row, or a call that continues would never get past it.
        if rows and used > CHARACTERS:
            break
        rows.append(values)
    left = len(found) - start - len(rows)
    answer: Answer = {"columns": found.columns, "rows": rows, "row_count": len(found), "truncated": left > 0}
    commit = found.commit.commit_id if found.commit else None
    if left > 0:
        end = start + len(rows)
        answer["next_start"] = end
        answer["hint"] = (
            f"{left:,} more rows: call again with start={end} and snapshot={commit!r}, or ask for less with a filter, "
            "an aggregate or `limit`"
        )
    return {**answer, "graph_commit_id": commit}


def _cut(value: Any) -> Any:
    """Shorten a long text or list. The mark says how much is missing, so that it is not taken for the value."""
    if isinstance(value, str) and len(value) > _CELL:
        return f"{value[:_CELL]}... ({len(value) - _CELL:,} more characters)"
    if isinstance(value, list) and len(json.dumps(value, default=str)) > _CELL:
        left = len(value) - _ELEMENTS
        return [*value[:_ELEMENTS], f"... ({left:,} more values)"] if left > 0 else [_cut(one) for one in value]
    return value


def changes_answer(changes: Iterable[Change], most: int) -> Answer:
    """Return the first changes of a difference."""
    found: list[Answer] = []
    used = 0
    for change in changes:
        document = {name: _cut_members(value) for name, value in to_document(change).items()}
        used += len(json.dumps(document, ensure_ascii=False, default=str))
        if len(found) == most or (found and used > CHARACTERS):
            hint = "more changes follow: name `types`, or raise `limit`"
            return {"changes": found, "truncated": True, "hint": hint}
        found.append(document)
    return {"changes": found, "truncated": False}


def _cut_members(value: Any) -> Any:
    return {name: _cut(one) for name, one in value.items()} if isinstance(value, dict) else value


def error_answer(error: OmnigraphError) -> tuple[str, Answer]:
    """Return the text and the members of an error: what is wrong, where, and what to do next."""
    members: Answer = {**problems.body(error, full=False), "code": error.code, "hint": error.hint}
    members["retryable"] = problems.status(error) in _RETRY
    if isinstance(error, CompileError | OutcomeUnknownError):  # where it is wrong; what to ask `outcome` for
        members |= error.details()
    return str(error), members
