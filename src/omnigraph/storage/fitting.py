"""Whether upkeep that was staged on an earlier version of a table still means the same on a later one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa

from omnigraph.api.results import TableVersion
from omnigraph.errors import StorageError
from omnigraph.storage.fragments import fragments
from omnigraph.storage.lance_errors import Kind, classify
from omnigraph.storage.reading import TableReader
from omnigraph.storage.tables import Staged
from omnigraph.storage.upkeep import make_up


def fits(tables: TableReader, staged: Staged, pin: TableVersion) -> bool:
    """Tell whether upkeep that was staged on an earlier version still means the same on a later one.

    What it replaces must be there unchanged, and the numbers it gives must be free.
    """
    try:
        before, now = _facts(tables, staged.base), _facts(tables, pin)
    except StorageError as error:
        if classify(error) is Kind.NOT_FOUND:  # a cleanup has removed what it was staged on
            return False
        raise
    same_columns = before.columns == now.columns
    return same_columns and all(_step_fits(step.operation, before, now) for step in staged.steps)


@dataclass(frozen=True, slots=True)
class _Facts:
    """The fragments of a version by number, each with its files and its deletions; and the segments of its indices.

    `columns` are those that lance knows, by their numbers: one that comes again has another.
    """

    fragments: Mapping[int, tuple[object, object]]
    segments: frozenset[str]
    columns: tuple[tuple[int, ...], pa.Schema]


def _facts(tables: TableReader, table: TableVersion) -> _Facts:
    found = {one.number: (one.files, one.deletions) for one in fragments(tables, table)}
    segments = (one.uuid for index in make_up(tables, table).indices.values() for one in index)
    # The text of a schema has its settings in any order, so it would differ from one reading to the next.
    dataset = tables.open(table)
    columns = tuple(field.id() for field in dataset.lance_schema.fields()), dataset.schema
    return _Facts(found, frozenset(segments), columns)


def _step_fits(operation: Any, before: _Facts, now: _Facts) -> bool:
    if isinstance(operation, lance.LanceOperation.UpdateConfig):
        return True
    if isinstance(operation, lance.LanceOperation.Rewrite):
        old = [one.id for group in operation.groups for one in group.old_fragments]
        new = [one.id for group in operation.groups for one in group.new_fragments]
        free = not new or min(new) > max(now.fragments, default=-1)
        return free and all(before.fragments[number] == now.fragments.get(number) for number in old)
    covered = {number for index in operation.new_indices for number in index.fragment_ids} & before.fragments.keys()
    same = all(
        number in now.fragments and before.fragments[number][0] == now.fragments[number][0] for number in covered
    )
    return same and before.segments == now.segments
