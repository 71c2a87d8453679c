"""Upkeep of a table, staged: its fragments are rewritten into fewer, its indices are built and extended.

Rows keep their numbers and their content. Lance would do this in several commits of its own; here it is one staged
change of at most two steps, the rewrite and then the indices, and what is not moved by `commit_staged` is only files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import DataFile
from lance.optimize import Compaction, CompactionTask

from omnigraph.api.results import TableVersion
from omnigraph.errors import StorageError
from omnigraph.storage.lance_errors import Failure, classify, lance_call
from omnigraph.storage.layout import IndexSpec, TableLayout, fragments, index_segments, layout_of, path_of, write_index
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.observe import durable_write
from omnigraph.storage.read import TableReader, transaction_id
from omnigraph.storage.stage import MAX_ROWS_PER_FILE, STORAGE_VERSION, Staged, TableStorage, auto_cleanup_settings

# The fragments that a rewrite makes are numbered past those that others may append before it is committed, for the
# indices that are built on them name them by number.
_NUMBERS_LEFT = 1000
_ALL_ROWS = 2**32
_OPTIONS: dict[str, Any] = {
    "target_rows_per_fragment": MAX_ROWS_PER_FILE,
    "max_rows_per_group": 1024,
    "max_bytes_per_file": None,
    "materialize_deletions": True,
    "materialize_deletions_threshold": 0.0,
    "num_threads": None,
    "batch_size": None,
    "io_buffer_size": None,
    "defer_index_remap": False,
    "index_remap_mode": "Direct",
    "compaction_mode": None,
    "enable_binary_copy": False,
    "enable_binary_copy_force": False,
    "binary_copy_read_batch_bytes": 16 * 1024 * 1024,
    "max_source_fragments": None,
    "max_source_rows": None,
    "max_source_bytes": None,
    "excluded_fragment_ids": [],
    "max_overlays_per_fragment": 10,
    "data_storage_version": STORAGE_VERSION,
    "has_eager_remappable_index": False,  # indices on the places of rows are built anew by us
}


# Rewriting -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Fragments, and what describes those that hold their rows now."""

    old: tuple[int, ...]
    new: tuple[str, ...]


def rewrite(tables: TableStorage, table: TableVersion, numbers: Sequence[int]) -> Rewrite:
    """Write the rows of some fragments into new ones; the result can be sent to whoever stages it."""
    dataset = tables.own_handle(table)
    durable_write("rewrite fragments", dataset.uri)
    with lance_call(dataset.uri, "rewrite fragments of"):
        document = {"task": {"fragments": _described(dataset, set(numbers))}, "options": _OPTIONS}
        text = json.dumps({**document, "read_version": table.version})
        task = CompactionTask.from_json(text)  # type: ignore[attr-defined]  # the stub lacks it
        written = task.execute(dataset).new_fragments
    return Rewrite(tuple(numbers), tuple(json.dumps(one.to_json()) for one in written))


def _described(dataset: lance.LanceDataset, numbers: set[int]) -> list[dict[str, Any]]:
    """Describe fragments, in order. Lance is quick at that in a plan, which holds all that have a neighbour."""
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": _ALL_ROWS})
    texts = (task.json() for task in plan.tasks)  # type: ignore[attr-defined]  # the stub lacks it
    known = {one["id"]: one for text in texts for one in json.loads(text)["task"]["fragments"]}
    chosen = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in numbers]
    return [known.get(one.fragment_id) or one.metadata.to_json() for one in chosen]


def stage_rewrite(
    tables: TableStorage, base: TableVersion, made_of: TableLayout, rewrites: Sequence[Rewrite]
) -> Staged:
    """Put rewritten fragments in the place of the old ones. Indices keep what they cover only where all of it moved."""
    dataset = tables.own_handle(base)
    with lance_call(dataset.uri, "read"):
        old = {fragment.fragment_id: _plain(fragment.metadata) for fragment in dataset.get_fragments()}
    new = [[lance.FragmentMetadata.from_json(text) for text in one.new] for one in rewrites]
    written = [fragment for fragments in new for fragment in fragments]
    free = iter(range(_next_number(tables, base, written) + _NUMBERS_LEFT, _ALL_ROWS)) if written else iter(())
    groups = [
        group
        for one, fragments in zip(rewrites, new, strict=True)
        for group in _groups(
            [old[number] for number in one.old], [replace(f, id=next(free)) for f in fragments], made_of.covering
        )
    ]
    operation = lance.LanceOperation.Rewrite(groups, [])
    return Staged(base, lance.Transaction(base.version, operation, uuid=transaction_id()))


def _next_number(tables: TableStorage, base: TableVersion, written: Sequence[Any]) -> int:
    """Ask lance which number it would give to the next fragment: it keeps those of fragments that are gone."""
    bare = replace(written[0], row_id_meta=None, created_at_version_meta=None, last_updated_at_version_meta=None)
    seen = preview(tables, Staged(base, lance.Transaction(base.version, lance.LanceOperation.Append([bare]))))
    try:
        return min(_numbers(tables, seen) - _numbers(tables, base))
    finally:
        forget(tables, seen)


def _numbers(tables: TableStorage, table: TableVersion) -> set[int]:
    dataset = tables.own_handle(table)
    with lance_call(dataset.uri, "read"):
        return set(dataset.fragment_ids())


class _PlainFile(DataFile):
    """A file as lance asks for it once more for each that it replaces."""

    @property
    def path(self) -> str:
        return path_of(self)


def _plain(fragment: lance.FragmentMetadata) -> lance.FragmentMetadata:
    files: list[DataFile] = [
        _PlainFile(
            path_of(one),
            one.fields,
            one.column_indices,
            one.file_major_version,
            one.file_minor_version,
            one.file_size_bytes,
            one.base_id,
        )
        for one in fragment.files
    ]
    return replace(fragment, files=files)


def _groups(old: Sequence[Any], new: list[Any], covering: Callable[[int], frozenset[str]]) -> list[Any]:
    """Group what was rewritten by the index segments that cover it, for lance wants each group covered whole or not.

    The new fragments belong to the group that the fewest segments cover, and all of those cover the others too.
    """
    by_cover: dict[frozenset[str], list[Any]] = {}
    for fragment in old:
        by_cover.setdefault(covering(fragment.id), []).append(fragment)
    least = min(by_cover, key=len)
    assert all(least <= cover for cover in by_cover), "these fragments cannot be merged"
    group = lance.LanceOperation.RewriteGroup
    return [group(found, new if cover == least else []) for cover, found in by_cover.items()]


def preview(tables: TableStorage, staged: Staged) -> TableVersion:
    """Make the state that a staged change would make readable, under a number that is no version of the table."""
    return replace(staged.base, version=int(tables.read_staged(staged).version))


def forget(tables: TableStorage, seen: TableVersion) -> None:
    """Remove a preview; what it refers to stays."""
    branch = ("tree", seen.branch) if seen.branch else ()
    ObjectStore(tables.location).delete("/".join((seen.path, *branch, "_versions", f"d{seen.version}.manifest")))


# Indices -------------------------------------------------------------------------------------------


def build_index(tables: TableStorage, table: TableVersion, spec: IndexSpec, fragments: Sequence[int]) -> lance.Index:
    """Build an index over some fragments; the result can be sent to whoever stages it."""
    dataset = tables.own_handle(table)
    durable_write("build index", dataset.uri)
    with lance_call(dataset.uri, "build index on"):
        return write_index(dataset, spec, fragments)


def stage_indices(
    tables: TableStorage, base: TableVersion, built: Sequence[lance.Index], replaced: Sequence[str]
) -> Staged:
    """Add segments of indices to a table in the place of others."""
    dataset = tables.own_handle(base)
    with lance_call(dataset.uri, "read"):
        removed = index_segments(dataset, lambda _, uuid: uuid in replaced)
    new = [replace(one, dataset_version=base.version) for one in built]
    operation = lance.LanceOperation.CreateIndex(new, removed)
    return Staged(base, lance.Transaction(base.version, operation, uuid=transaction_id()))


def chained(first: Staged, then: Staged) -> Staged:
    """Let a change follow another, on the state that it makes."""
    return replace(first, then=then.transaction)


def following(staged: Staged, version: int) -> Staged:
    """What is left of a change whose first step has made a version."""
    assert staged.then is not None
    operation = staged.then.operation
    assert isinstance(operation, lance.LanceOperation.CreateIndex)
    new = [replace(one, dataset_version=version) for one in operation.new_indices]
    then = replace(staged.then, read_version=version, operation=replace(operation, new_indices=new))
    return Staged(replace(staged.base, version=version), then)


# Settings ------------------------------------------------------------------------------------------


def stage_auto_cleanup_off(tables: TableStorage, base: TableVersion) -> Staged | None:
    """Have lance remove no versions by itself; None if the table never asked for that."""
    dataset = tables.open(base)
    with lance_call(dataset.uri, "read"):
        settings = auto_cleanup_settings(dataset)
    if not settings:
        return None
    gone = lance.LanceOperation.UpdateMap(dict.fromkeys(settings))
    operation = lance.LanceOperation.UpdateConfig(config_updates=gone)
    return Staged(base, lance.Transaction(base.version, operation, uuid=transaction_id()))


# Rebase --------------------------------------------------------------------------------------------


def fits(tables: TableReader, staged: Staged, pin: TableVersion) -> bool:
    """Tell whether upkeep that was staged on an earlier version still means the same on a later one.

    What it replaces must be there unchanged, and the numbers it gives must be free.
    """
    try:
        before, now = _facts(tables, staged.base), _facts(tables, pin)
    except StorageError as error:
        if classify(error) is Failure.NOT_FOUND:  # a cleanup has removed what it was staged on
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
    segments = (one.uuid for index in layout_of(tables, table).indices.values() for one in index)
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
