"""Staged maintenance of a table: compact fragments, build and extend indices.

Rows keep their ids and their content. Lance would use several commits of its own; here it is one staged change of at
most two steps, the rewrite and then the indices. Until `commit_staged` it is only files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import DataFile
from lance.optimize import Compaction, CompactionTask

from omnigraph.api.results import TableVersion
from omnigraph.errors import StorageError
from omnigraph.storage.bases import proto_field, proto_varint
from omnigraph.storage.lance_errors import Failure, classify, lance_call
from omnigraph.storage.layout import (
    WRITTEN,
    IndexSpec,
    TableLayout,
    fragments,
    index_segments,
    layout_of,
    path_of,
    write_index,
)
from omnigraph.storage.observe import durable_write
from omnigraph.storage.read import TableReader, transaction_id
from omnigraph.storage.stage import (
    MAX_ROWS_PER_FILE,
    STORAGE_VERSION,
    Staged,
    TableStorage,
    auto_cleanup_settings,
    check_staged_files,
)
from omnigraph.storage.unpublished import new_in, note, note_at

# New fragments are numbered past those that others may append before the commit: the indices built on
# them refer to them by number.
_NUMBERS_LEFT = 1000
_ALL_ROWS = 2**32
# Where a fragment keeps which versions created and last changed its rows, and the columns that show it.
_RUNS = {"created_at_version_meta": "_row_created_at_version", "last_updated_at_version_meta": WRITTEN}
_MOST_RUN_BYTES = 2048  # about 160 runs
_EXACT = 64  # of the newest versions, each is known exactly
Versions = np.ndarray[Any, np.dtype[np.int64]]
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
    "has_eager_remappable_index": False,  # we rebuild the indices on row addresses ourselves
}


# Rewriting -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Numbers of old fragments, and JSON descriptions of the new ones that hold their rows."""

    old: tuple[int, ...]
    new: tuple[str, ...]


def rewrite(tables: TableStorage, table: TableVersion, numbers: Sequence[int]) -> Rewrite:
    """Write the rows of some fragments into new ones. The result can be sent to another process, which stages it."""
    dataset = tables.own_copy(table)
    durable_write("rewrite fragments", dataset.uri)
    with lance_call(dataset.uri, "rewrite fragments of"):
        document = {"task": {"fragments": _described(dataset, set(numbers))}, "options": _OPTIONS}
        text = json.dumps({**document, "read_version": table.version})
        # A task of our own making: `Compaction.plan` chooses fragments itself, and its commit moves the head (lance.md
        # 13).
        task = CompactionTask.from_json(text)  # type: ignore[attr-defined]  # the stub lacks it
        written = task.execute(dataset).new_fragments
    note(table, (f"data/{path_of(file)}" for fragment in written for file in fragment.files))
    new = [one.to_json() for one in written]
    if any(len(one[name]["inline"]) > _MOST_RUN_BYTES for one in new for name in _RUNS if one[name]):
        _shorten_runs(tables, table, numbers, new)
    return Rewrite(tuple(numbers), tuple(map(json.dumps, new)))


def _shorten_runs(
    tables: TableStorage, table: TableVersion, numbers: Sequence[int], new: Sequence[dict[str, Any]]
) -> None:
    """Let new fragments say less precisely which version wrote each of their rows.

    Lance keeps a run for each version that wrote some of the rows, in every later version of the table: without this,
    a commit would cost what the history is long.
    """
    origins = tables.scan_fragments(table, numbers, [*_RUNS.values()])
    ends = np.cumsum([one["physical_rows"] for one in new])
    for name, column in _RUNS.items():
        versions = coarse_versions(origins[column].to_numpy().astype(np.int64), table.version)
        for one, part in zip(new, np.split(versions, ends[:-1]), strict=True):
            one[name] = {"inline": list(encoded_runs(part))}


def coarse_versions(versions: Versions, now: int) -> Versions:
    """Round version numbers up: those of the newest 64 versions not at all, older ones to a multiple of 64 or 4,096.

    A row is never said to be older than it is, and never younger than `now`. So two versions of a table in which a row
    has equal numbers, up to a version that both descend from, still have the same row.
    """
    age = now - versions
    block = np.where(age < _EXACT, 1, np.where(age < _EXACT**2, _EXACT, _EXACT**2))
    return -(-versions // block) * block


def encoded_runs(versions: Versions) -> bytes:
    """Encode the version of each row as Lance stores it, a `RowDatasetVersionSequence` of its `rowids.proto`."""
    starts = np.flatnonzero(np.diff(versions, prepend=-1))
    lengths = np.diff(starts, append=len(versions))
    runs = zip(lengths.tolist(), versions[starts].tolist(), strict=True)
    return b"".join(_run(rows, version) for rows, version in runs)


def _run(rows: int, version: int) -> bytes:
    span = proto_field(1, proto_field(1, _number(rows)))
    return proto_field(1, span + _number(version))


def _number(value: int) -> bytes:
    return proto_varint(2 << 3) + proto_varint(value)  # field 2 of either message


def _described(dataset: lance.LanceDataset, numbers: set[int]) -> list[dict[str, Any]]:
    """Describe fragments as JSON, in order. A compaction plan is the fast source: it has all with a neighbour."""
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": _ALL_ROWS})
    texts = (task.json() for task in plan.tasks)  # type: ignore[attr-defined]  # the stub lacks it
    known = {one["id"]: one for text in texts for one in json.loads(text)["task"]["fragments"]}
    chosen = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in numbers]
    return [known.get(one.fragment_id) or one.metadata.to_json() for one in chosen]


def stage_rewrite(
    tables: TableStorage, base: TableVersion, made_of: TableLayout, rewrites: Sequence[Rewrite]
) -> Staged:
    """Stage the replacement of old fragments by rewritten ones. An index keeps its coverage where all of it moved."""
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
    return _staged(base, lance.LanceOperation.Rewrite(groups, []))


def stage_fold(tables: TableStorage, base: TableVersion, done: Rewrite) -> Staged:
    """Stage the replacement of neighbouring fragments that no index covers. Lance numbers the new ones."""
    dataset = tables.open(base)
    with lance_call(dataset.uri, "read"):
        old = [_plain(one.metadata) for one in dataset.get_fragments() if one.fragment_id in done.old]
    new = [lance.FragmentMetadata.from_json(text) for text in done.new]
    operation = lance.LanceOperation.Rewrite([lance.LanceOperation.RewriteGroup(old, new)], [])
    staged = Staged(base, lance.Transaction(base.version, operation, uuid=transaction_id()))
    if tables.location.is_local:  # now and not at the commit, where a fold that cannot be made would fail the write
        check_staged_files(dataset, staged.transaction)
    return staged


def _next_number(tables: TableStorage, base: TableVersion, written: Sequence[Any]) -> int:
    """Return the number that Lance would give to the next fragment; it never reuses those of removed ones."""
    # Only a detached commit reveals the number: the manifest's counter is not exposed.
    bare = replace(written[0], row_id_meta=None, created_at_version_meta=None, last_updated_at_version_meta=None)
    seen = preview(tables, Staged(base, lance.Transaction(base.version, lance.LanceOperation.Append([bare]))))
    return min(_numbers(tables, seen) - _numbers(tables, base))


def _numbers(tables: TableStorage, table: TableVersion) -> set[int]:
    dataset = tables.own_handle(table)
    with lance_call(dataset.uri, "read"):
        return set(dataset.fragment_ids())


class _PlainFile(DataFile):
    """A data file with a fast `path`: Lance reads it once for each file that it replaces."""

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
    """Group rewritten fragments by the index segments that cover them: Lance requires each group covered fully or not.

    The new fragments belong to the group with the fewest segments, all of which cover the other groups too.
    """
    by_cover: dict[frozenset[str], list[Any]] = {}
    for fragment in old:
        by_cover.setdefault(covering(fragment.id), []).append(fragment)
    least = min(by_cover, key=len)
    assert all(least <= cover for cover in by_cover), "these fragments cannot be merged"
    group = lance.LanceOperation.RewriteGroup
    return [group(found, new if cover == least else []) for cover, found in by_cover.items()]


def preview(tables: TableStorage, staged: Staged) -> TableVersion:
    """Make a staged state readable, under a number that is no version of the table."""
    return replace(staged.base, version=int(tables.read_staged(staged).version))


# Indices -------------------------------------------------------------------------------------------


def build_index(tables: TableStorage, table: TableVersion, spec: IndexSpec, fragments: Sequence[int]) -> lance.Index:
    """Build an index over some fragments. The result can be sent to another process, which stages it."""
    dataset = tables.own_handle(table)
    durable_write("build index", dataset.uri)
    with lance_call(dataset.uri, "build index on"):
        built = write_index(dataset, spec, fragments)
    note_at((table.path, table.branch), [f"_indices/{built.uuid}"])  # the version may be that of a preview
    return built


def stage_indices(
    tables: TableStorage, base: TableVersion, built: Sequence[lance.Index], replaced: Sequence[str]
) -> Staged:
    """Stage the addition of index segments, in place of others."""
    dataset = tables.own_handle(base)
    with lance_call(dataset.uri, "read"):
        removed = index_segments(dataset, lambda _, uuid: uuid in replaced)
    new = [replace(one, dataset_version=base.version) for one in built]
    return _staged(base, lance.LanceOperation.CreateIndex(new, removed))


def _staged(base: TableVersion, operation: Any) -> Staged:
    transaction = lance.Transaction(base.version, operation, uuid=transaction_id())
    note(base, new_in(transaction))  # tasks on other machines have written them
    return Staged(base, transaction)


def chained(first: Staged, then: Staged) -> Staged:
    """Let one change follow another, on the state that the first makes."""
    return replace(first, then=(*first.then, *then.steps))


def next_step(staged: Staged, step: lance.Transaction, version: int) -> Staged:
    """Return a later step of a change whose earlier steps have made a version."""
    operation = step.operation
    if isinstance(operation, lance.LanceOperation.CreateIndex):
        new = [replace(one, dataset_version=version) for one in operation.new_indices]
        operation = replace(operation, new_indices=new)
    then = replace(step, read_version=version, operation=operation)
    appended = staged.appended if step is staged.steps[-1] else None
    return Staged(replace(staged.base, version=version), then, appended=appended)


# Settings ------------------------------------------------------------------------------------------


def stage_auto_cleanup_off(tables: TableStorage, base: TableVersion) -> Staged | None:
    """Stage turning off Lance's automatic cleanup; None if it is off."""
    dataset = tables.open(base)
    with lance_call(dataset.uri, "read"):
        settings = auto_cleanup_settings(dataset)
    if not settings:
        return None
    gone = lance.LanceOperation.UpdateMap(dict.fromkeys(settings))
    operation = lance.LanceOperation.UpdateConfig(config_updates=gone)
    return Staged(base, lance.Transaction(base.version, operation, uuid=transaction_id()))


# Rebase --------------------------------------------------------------------------------------------


def can_rebase(tables: TableReader, staged: Staged, pin: TableVersion) -> bool:
    """Return whether maintenance staged on an earlier version still means the same on a later one.

    What it replaces must be unchanged, and the fragment numbers it uses must be free. Lance's own conflict check would
    let some of these commits through.
    """
    try:
        before, now = _facts(tables, staged.base), _facts(tables, pin)
    except StorageError as error:
        if classify(error) is Failure.NOT_FOUND:  # a cleanup removed the version it was staged on
            return False
        raise
    same_columns = before.columns == now.columns
    return same_columns and all(_can_rebase_step(step.operation, before, now) for step in staged.steps)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a version consists of, as far as a rebase depends on it.

    `columns` holds Lance's field ids: a column that was dropped and added again has another id.
    """

    fragments: Mapping[int, tuple[object, object]]
    segments: frozenset[str]
    columns: tuple[tuple[int, ...], pa.Schema]


def _facts(tables: TableReader, table: TableVersion) -> _Facts:
    found = {one.number: (one.files, one.deletions) for one in fragments(tables, table)}
    segments = (one.uuid for index in layout_of(tables, table).indices.values() for one in index)
    # Not the schema's text: its settings come in random order, so it differs between two reads.
    dataset = tables.open(table)
    columns = tuple(field.id() for field in dataset.lance_schema.fields()), dataset.schema
    return _Facts(found, frozenset(segments), columns)


def _can_rebase_step(operation: Any, before: _Facts, now: _Facts) -> bool:
    if isinstance(operation, lance.LanceOperation.UpdateConfig):
        return True
    if isinstance(operation, lance.LanceOperation.Rewrite):
        old = [one.id for group in operation.groups for one in group.old_fragments]
        new = [one.id for group in operation.groups for one in group.new_fragments]
        # A number that an append took meanwhile would exist twice. At 0 Lance chooses a free one when it commits.
        free = not any(new) or min(new) > max(now.fragments, default=-1)
        return free and all(before.fragments[number] == now.fragments.get(number) for number in old)
    # Deletions after the build do no harm: an index is allowed to name deleted rows.
    covered = {number for index in operation.new_indices for number in index.fragment_ids} & before.fragments.keys()
    same = all(
        number in now.fragments and before.fragments[number][0] == now.fragments[number][0] for number in covered
    )
    return same and before.segments == now.segments
