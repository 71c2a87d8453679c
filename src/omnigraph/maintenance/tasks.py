"""Which fragments to rewrite and which indices to build, and the tasks that do it on any machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import lance

from omnigraph.api.maintenance import PendingIndex
from omnigraph.api.results import TableVersion
from omnigraph.core.executor import R, T, map_in_threads
from omnigraph.core.location import Location
from omnigraph.errors import ParameterError
from omnigraph.lang.catalog import Columns, EdgeType, NodeType
from omnigraph.lang.types import Type
from omnigraph.storage import maintain
from omnigraph.storage.layout import INDEX_KINDS, FragmentSize, IndexBuild, IndexSpec, TableLayout, has_value
from omnigraph.storage.read import DST, ID, SRC, TableReader
from omnigraph.storage.stage import MAX_ROWS_PER_FILE, TableStorage

VARIABLE = "OMNIGRAPH_MAINTENANCE_CONCURRENCY"
_DEFAULT = 8


def concurrency() -> int:
    """What the environment says, or a few: most of the time is spent waiting for the storage."""
    wish = os.environ.get(VARIABLE)
    if wish is None:
        return _DEFAULT
    if not wish.isascii() or not wish.isdigit() or int(wish) < 1:
        raise ParameterError(f"{VARIABLE} is '{wish}'", parameter=VARIABLE, hint="set it to a number from 1 on")
    return int(wish)


def map_tables(function: Callable[[T], R], tables: Iterable[T]) -> list[R]:
    """Do the same to several tables at once; the results are in their order."""
    return list(map_in_threads(function, list(tables), concurrency()))


_MOST_DELETED = 0.1

FragmentGroup = tuple[int, ...]


def compaction_groups(made_of: TableLayout) -> list[FragmentGroup]:
    """Group neighbours that are too small, or have lost many rows; a fragment that is only small stays if alone.

    What comes of it has nothing more to group: to ask again right afterwards gives nothing.
    """
    found: list[FragmentGroup] = []
    for is_due, run in groupby(made_of.parts, _is_due):
        if is_due:
            tasks = (task for chunk in _chunks(list(run)) for task in _mergeable(made_of, chunk))
            found += [tuple(part.number for part in task) for task in tasks if len(task) > 1 or _has_lost_many(task[0])]
    return found


def no_compaction(_: TableLayout) -> list[FragmentGroup]:
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


BTREE, INVERTED, VECTOR = INDEX_KINDS
NO_VECTORS = "no row has a vector yet"
# A few rows more get a segment of their own; when they are many, or segments are, the index is built anew.
_MOST_SEGMENTS = 8
_TAIL_SHARE = 4
_OF_LANCE = "__"  # how the names of what lance keeps as indices for itself begin
_ROWS_PER_SEGMENT = 64 * MAX_ROWS_PER_FILE  # a larger index is built in parts, side by side


def wanted_indices(declared: NodeType | EdgeType) -> list[IndexSpec]:
    """Name the indices of a type: on its identity, its ends, its key and what is marked `@index`."""
    if isinstance(declared, EdgeType):
        return [IndexSpec(column, BTREE) for column in (ID, SRC, DST)]
    found = [IndexSpec(ID, BTREE), *_of_key(declared.key), *_of_marks(declared)]
    return list(dict.fromkeys(found))


def _of_key(key: Columns) -> list[IndexSpec]:
    """A key is looked up whole, whatever its type."""
    return [IndexSpec(key[0], BTREE)] if len(key) == 1 else []


def _of_marks(declared: NodeType) -> Iterator[IndexSpec]:
    for columns in declared.indexes:
        if len(columns) == 1:
            kinds = _kinds(declared.properties[columns[0]].type)
            yield from (IndexSpec(columns[0], kind) for kind in kinds)


def _kinds(declared: Type) -> tuple[str, ...]:
    if declared.is_vector:
        return (VECTOR,)
    if declared.is_list or declared.is_blob:
        return ()
    # A free text is searched by its words, and looked up whole.
    return (BTREE, INVERTED) if declared.is_string and not declared.enum else (BTREE,)


def plan_builds(
    tables: TableReader, table: TableVersion, made_of: TableLayout, specs: Sequence[IndexSpec]
) -> tuple[list[IndexBuild], list[PendingIndex]]:
    """Say what must be built so that every index covers the whole table, and what cannot be built yet."""
    if not made_of.rows:
        return [], []
    builds = [build for spec in specs if (build := _build(made_of, spec))]
    untrainable = [build for build in builds if _is_untrainable(tables, table, build)]
    pending = [
        PendingIndex(build.spec.column, NO_VECTORS) for build in untrainable if build.spec.name not in made_of.indices
    ]
    return [build for build in builds if build not in untrainable], pending


def unwanted_segments(made_of: TableLayout, specs: Sequence[IndexSpec]) -> tuple[str, ...]:
    """The segments of indices that no type asks for: their property has another name by now, or others built them."""
    known = {spec.name for spec in specs}
    names = (name for name in made_of.indices if name not in known and not name.startswith(_OF_LANCE))
    return tuple(segment.uuid for name in names for segment in made_of.indices[name])


def _build(made_of: TableLayout, spec: IndexSpec) -> IndexBuild | None:
    covered = made_of.covered(spec.name)
    missing = [part for part in made_of.parts if part.number not in covered]
    if not missing:
        return None
    segments = made_of.indices.get(spec.name, ())
    live = [segment for segment in segments if segment.covers & made_of.numbers]
    rows = sum(part.rows for part in missing)
    most = _MOST_SEGMENTS + made_of.rows // _ROWS_PER_SEGMENT
    if rows * _TAIL_SHARE <= made_of.rows - rows and len(live) < most:
        dead = tuple(segment.uuid for segment in segments if segment not in live)
        return IndexBuild(spec, tuple(part.number for part in missing), dead)
    everything = tuple(part.number for part in made_of.parts)
    return IndexBuild(spec, everything, tuple(segment.uuid for segment in segments))


def _is_untrainable(tables: TableReader, table: TableVersion, build: IndexBuild) -> bool:
    """An index on vectors learns from them; where there are none, there is nothing to search either."""
    return build.spec.kind == VECTOR and not has_value(tables, table, build.spec.column, build.fragments)


def build_parts(made_of: TableLayout, build: IndexBuild) -> list[tuple[int, ...]]:
    """Cut the fragments of an index into parts to build apart. Only one on the order of values may consist of some."""
    if build.spec.kind != BTREE:
        return [build.fragments]
    chosen = set(build.fragments)
    found: list[list[int]] = []
    rows = _ROWS_PER_SEGMENT
    for part in made_of.parts:
        if part.number not in chosen:
            continue
        if rows >= _ROWS_PER_SEGMENT:
            found.append([])
            rows = 0
        found[-1].append(part.number)
        rows += part.rows
    return [tuple(share) for share in found]


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


def run_rewrite(task: RewriteTask) -> Rewritten:
    return Rewritten(maintain.rewrite(_tables(task.location), task.table, task.fragments), task.rows)


def run_build(task: BuildTask) -> Built:
    return Built(maintain.build_index(_tables(task.location), task.table, task.index, task.fragments), task.rows)


@lru_cache(maxsize=4)
def _tables(location: Location) -> TableStorage:
    return TableStorage(location)
