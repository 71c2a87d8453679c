"""The steps of upkeep that may run on any machine: rewriting fragments and building indices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import lance

from omnigraph.api.results import TableVersion
from omnigraph.core.location import Location
from omnigraph.storage import maintain
from omnigraph.storage.layout import IndexSpec
from omnigraph.storage.stage import TableStorage


@dataclass(frozen=True, slots=True)
class RewriteTask:
    location: Location
    table: TableVersion
    fragments: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What came of it, and how many rows that is."""

    done: maintain.Rewrite
    rows: int


@dataclass(frozen=True, slots=True)
class BuildTask:
    location: Location
    table: TableVersion
    index: IndexSpec
    fragments: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Built:
    segment: lance.Index
    rows: int


def rewrite(task: RewriteTask) -> Rewritten:
    return Rewritten(maintain.rewrite(_tables(task.location), task.table, task.fragments), task.rows)


def build(task: BuildTask) -> Built:
    return Built(maintain.build_index(_tables(task.location), task.table, task.index, task.fragments), task.rows)


@lru_cache(maxsize=4)
def _tables(location: Location) -> TableStorage:
    return TableStorage(location)
