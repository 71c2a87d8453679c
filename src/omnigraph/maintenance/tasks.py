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
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.lang.types import Type
from omnigraph.storage import maintain
from omnigraph.storage.layout import INDEX_KINDS, FragmentSize, IndexBuild, IndexSpec, TableLayout, has_value
from omnigraph.storage.read import DST, ID, SRC, TableReader
from omnigraph.storage.stage import MAX_ROWS_PER_FILE, TableStorage

VARIABLE = "OMNIGRAPH_MAINTENANCE_CONCURRENCY"
_DEFAULT = 8


def concurrency() -> int:
    """Return how many tables to work on at once. Most of the time is spent waiting for the storage."""
    wish = os.environ.get(VARIABLE)
    if wish is None:
        return _DEFAULT
    if not wish.isascii() or not wish.isdigit() or int(wish) < 1:
        raise ParameterError(f"{VARIABLE} is '{wish}'", parameter=VARIABLE, hint="set it to a positive integer")
    return int(wish)


def map_tables(function: Callable[[T], R], tables: Iterable[T]) -> list[R]:
    """Apply a function to several tables at once; return the results in order."""
    return list(map_in_threads(function, list(tables), concurrency()))


_MOST_DELETED = 0.1

FragmentGroup = tuple[int, ...]


def compaction_groups(made_of: TableLayout) -> list[FragmentGroup]:
    """Group neighbouring fragments that are small or have many deleted rows. A single small fragment stays as it is.

    What comes of it has nothing more to group: to ask again right afterwards gives nothing.
    """
    found: list[FragmentGroup] = []
    for is_due, run in groupby(made_of.parts, _is_due):
        if is_due:
            tasks = (task for chunk in _chunks(run) for task in _mergeable(made_of, chunk))
            found += [tuple(part.number for part in task) for task in tasks if len(task) > 1 or _has_lost_many(task[0])]
    return found


def no_compaction(_: TableLayout) -> list[FragmentGroup]:
    return []


def _is_due(part: FragmentSize) -> bool:
    return part.rows < MAX_ROWS_PER_FILE or _has_lost_many(part)


def _has_lost_many(part: FragmentSize) -> bool:
    return part.deleted > _MOST_DELETED * (part.rows + part.deleted)


def _filled(run: Iterable[FragmentSize], size: int) -> list[list[FragmentSize]]:
    """Cut a run into groups that have at least so many rows each, except perhaps the last."""
    groups: list[list[FragmentSize]] = []
    rows = size
    for part in run:
        if rows >= size:
            groups.append([])
            rows = 0
        groups[-1].append(part)
        rows += part.rows
    return groups


def _chunks(run: Iterable[FragmentSize]) -> list[list[FragmentSize]]:
    """Cut a run into groups that fill a fragment or more; the rest joins the last group, so that none stays small."""
    chunks = _filled(run, MAX_ROWS_PER_FILE)
    if len(chunks) > 1 and sum(part.rows for part in chunks[-1]) < MAX_ROWS_PER_FILE:
        # A small group of its own would be due again at once.
        last = chunks.pop()
        chunks[-1] += last
    return chunks


def _mergeable(made_of: TableLayout, chunk: Sequence[FragmentSize]) -> Iterator[list[FragmentSize]]:
    """Cut a group where the sets of covering indices differ."""
    # The new fragment is covered by an index only if all of the old ones were, so mixing them would lose coverage.
    covers = {part.number: made_of.covering(part.number) for part in chunk}
    least = min(covers.values(), key=len)
    if all(least <= cover for cover in covers.values()):
        yield list(chunk)
        return
    for _, same in groupby(chunk, lambda part: covers[part.number]):
        yield list(same)


BTREE, INVERTED, VECTOR = INDEX_KINDS
NO_VECTORS = "no row has a vector yet"
# A few new rows get a segment of their own; with many rows or many segments the index is rebuilt.
_MOST_SEGMENTS = 8
_TAIL_SHARE = 4
_OF_LANCE = "__"  # prefix of the names of Lance's own system indices
_ROWS_PER_SEGMENT = 64 * MAX_ROWS_PER_FILE  # a larger index is built in parts, side by side


def wanted_indices(declared: NodeType | EdgeType) -> list[IndexSpec]:
    """Return the indices of a type: on id, ends, key, and properties marked `@index`."""
    if isinstance(declared, EdgeType):
        return [IndexSpec(column, BTREE) for column in (ID, SRC, DST)]
    found = [IndexSpec(ID, BTREE)]
    if len(declared.key) == 1:
        found.append(IndexSpec(declared.key[0], BTREE))
    # Lance has no index on several columns: a key or a mark of more than one has none.
    for name in (columns[0] for columns in declared.indexes if len(columns) == 1):
        found += [IndexSpec(name, kind) for kind in _kinds(declared.properties[name].type)]
    return list(dict.fromkeys(found))


def _kinds(declared: Type) -> tuple[str, ...]:
    if declared.is_vector:
        return (VECTOR,)
    if declared.is_list or declared.is_blob:
        return ()
    # A text is searched by its words, and looked up as a whole.
    return (BTREE, INVERTED) if declared.is_string and not declared.enum else (BTREE,)


def plan_builds(
    tables: TableReader,
    table: TableVersion,
    made_of: TableLayout,
    specs: Sequence[IndexSpec],
    plan: Callable[[TableLayout, IndexSpec], IndexBuild | None] | None = None,
) -> tuple[list[IndexBuild], list[PendingIndex]]:
    """Return the builds that make every index cover the whole table, and the indices that cannot be built yet."""
    if not made_of.rows:
        return [], []
    builds = [build for spec in specs if (build := (plan or index_build)(made_of, spec))]
    untrainable = [build for build in builds if _is_untrainable(tables, table, build)]
    pending = [
        PendingIndex(build.spec.column, NO_VECTORS) for build in untrainable if build.spec.name not in made_of.indices
    ]
    return [build for build in builds if build not in untrainable], pending


def unwanted_segments(made_of: TableLayout, specs: Sequence[IndexSpec]) -> tuple[str, ...]:
    """Return the segments of undeclared indices: their property was renamed, or another program built them."""
    known = {spec.name for spec in specs}
    names = (name for name in made_of.indices if name not in known and not name.startswith(_OF_LANCE))
    return tuple(segment.uuid for name in names for segment in made_of.indices[name])


def index_build(made_of: TableLayout, spec: IndexSpec) -> IndexBuild | None:
    """Return how to make an index cover a whole table: by one more segment, or rebuilt."""
    added = segment_build(made_of, spec)
    if added is None:
        return None
    segments = made_of.indices.get(spec.name, ())
    rows = rows_of(made_of, added.fragments)
    most = _MOST_SEGMENTS + made_of.rows // _ROWS_PER_SEGMENT
    if rows * _TAIL_SHARE <= made_of.rows - rows and len(segments) - len(added.replaces) < most:
        return added
    everything = tuple(part.number for part in made_of.parts)
    return IndexBuild(spec, everything, tuple(segment.uuid for segment in segments))


def segment_build(made_of: TableLayout, spec: IndexSpec) -> IndexBuild | None:
    """Return the segment that an index lacks; None if it covers the whole table."""
    covered = made_of.covered(spec.name)
    missing = tuple(part.number for part in made_of.parts if part.number not in covered)
    if not missing:
        return None
    # Segments that cover no fragment of the table any more only take space: they go with the next build.
    dead = (one.uuid for one in made_of.indices.get(spec.name, ()) if not one.covers & made_of.numbers)
    return IndexBuild(spec, missing, tuple(dead))


def rows_of(made_of: TableLayout, numbers: Iterable[int]) -> int:
    """Return how many rows some fragments have."""
    chosen = set(numbers)
    return sum(part.rows for part in made_of.parts if part.number in chosen)


def _is_untrainable(tables: TableReader, table: TableVersion, build: IndexBuild) -> bool:
    """Whether an index on vectors has nothing to train on."""
    return build.spec.kind == VECTOR and not has_value(tables, table, build.spec.column, build.fragments)


def build_parts(made_of: TableLayout, build: IndexBuild) -> list[tuple[int, ...]]:
    """Cut the fragments of an index into parts that are built side by side, each a segment."""
    chosen = set(build.fragments)
    shares = _filled((part for part in made_of.parts if part.number in chosen), _ROWS_PER_SEGMENT)
    return [tuple(part.number for part in share) for share in shares]


def trainable_parts(
    tables: TableReader, table: TableVersion, build: IndexBuild, parts: Sequence[FragmentGroup]
) -> list[FragmentGroup]:
    """Join parts of an index on vectors that have none with their neighbours: there is nothing to train on in them."""
    if build.spec.kind != VECTOR or len(parts) == 1:
        return list(parts)
    found: list[FragmentGroup] = []
    waiting: FragmentGroup = ()
    for part in parts:
        waiting += part
        if has_value(tables, table, build.spec.column, part):
            found.append(waiting)
            waiting = ()
    assert found, "an index without any vector is not built"
    return [*found[:-1], found[-1] + waiting]


@dataclass(frozen=True, slots=True)
class RewriteTask:
    location: Location
    table: TableVersion
    fragments: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of a rewrite, and how many rows it covers."""

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


# A Spark worker runs many tasks of one graph: they share the open connection and its caches.
@lru_cache(maxsize=4)
def _tables(location: Location) -> TableStorage:
    return TableStorage(location)
