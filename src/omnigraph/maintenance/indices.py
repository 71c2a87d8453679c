"""Which indices a type should have, and what is left to build of them; one decision for all who ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omnigraph.api.maintenance import PendingIndex
from omnigraph.api.results import TableVersion
from omnigraph.lang.catalog import Columns, EdgeType, NodeType
from omnigraph.lang.types import Type
from omnigraph.storage.layout import INDEX_KINDS, IndexBuild, IndexSpec, TableLayout, has_value
from omnigraph.storage.read import DST, ID, SRC, TableReader
from omnigraph.storage.stage import MAX_ROWS_PER_FILE

BTREE, INVERTED, VECTOR = INDEX_KINDS
NO_VECTORS = "no row has a vector yet"
# A few rows more get a segment of their own; when they are many, or segments are, the index is built anew.
_MOST_SEGMENTS = 8
_TAIL_SHARE = 4
_OF_LANCE = "__"  # how the names of what lance keeps as indices for itself begin
_ROWS_PER_SEGMENT = 64 * MAX_ROWS_PER_FILE  # a larger index is built in parts, side by side


def wanted(declared: NodeType | EdgeType) -> list[IndexSpec]:
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


def work(
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


def unwanted(made_of: TableLayout, specs: Sequence[IndexSpec]) -> tuple[str, ...]:
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


def shares(made_of: TableLayout, build: IndexBuild) -> list[tuple[int, ...]]:
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
