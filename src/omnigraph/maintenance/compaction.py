"""Which fragments of a table to rewrite together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from omnigraph.storage.layout import FragmentSize, TableLayout
from omnigraph.storage.stage import MAX_ROWS_PER_FILE

_MOST_DELETED = 0.1

Bin = tuple[int, ...]


def bins(made_of: TableLayout) -> list[Bin]:
    """Group neighbours that are too small, or have lost many rows; a fragment that is only small stays if alone.

    What comes of it has nothing more to group: to ask again right afterwards gives nothing.
    """
    found: list[Bin] = []
    for is_due, run in groupby(made_of.parts, _is_due):
        if is_due:
            tasks = (task for chunk in _chunks(list(run)) for task in _mergeable(made_of, chunk))
            found += [tuple(part.number for part in task) for task in tasks if len(task) > 1 or _has_lost_many(task[0])]
    return found


def nothing(_: TableLayout) -> list[Bin]:
    return []


def _is_due(part: FragmentSize) -> bool:
    return part.rows < MAX_ROWS_PER_FILE or _has_lost_many(part)


def _has_lost_many(part: FragmentSize) -> bool:
    return part.deleted > _MOST_DELETED * (part.rows + part.deleted)


def _chunks(run: Sequence[FragmentSize]) -> list[list[FragmentSize]]:
    """Cut a run into tasks that fill a fragment or more; the rest joins the last, so that nothing small is left."""
    chunks: list[list[FragmentSize]] = []
    rows = MAX_ROWS_PER_FILE
    for part in run:
        if rows >= MAX_ROWS_PER_FILE:
            chunks.append([])
            rows = 0
        chunks[-1].append(part)
        rows += part.rows
    if rows < MAX_ROWS_PER_FILE and len(chunks) > 1:
        last = chunks.pop()
        chunks[-1] += last
    return chunks


def _mergeable(made_of: TableLayout, chunk: Sequence[FragmentSize]) -> Iterator[list[FragmentSize]]:
    """Cut a chunk where indices cover it so differently that nothing true could be said about what comes of it."""
    covers = {part.number: made_of.covering(part.number) for part in chunk}
    least = min(covers.values(), key=len)
    if all(least <= cover for cover in covers.values()):
        yield list(chunk)
        return
    for _, same in groupby(chunk, lambda part: covers[part.number]):
        yield list(same)
