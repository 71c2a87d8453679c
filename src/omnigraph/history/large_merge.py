"""Three-way merge of one large table: ranges of ids are its shares, each merged by one task, here or on Spark.

Tasks send the keys of rows that the versions do not share to the task of their share. That one reads the rows, merges
them and writes the result. The addresses of rows that are replaced go through files, and other tasks delete the rows.
What returns are counts, descriptions of fragments, and the first conflicts: it does not grow with the rows.
"""

from __future__ import annotations

import secrets
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.options import Resolution
from omnigraph.api.results import ChangeCounts, TableVersion
from omnigraph.core.executor import Executor, Parcel, ParcelRoute, Scattered, exchanged
from omnigraph.core.location import Location
from omnigraph.errors import MergeConflict, Violation
from omnigraph.history.delta import TablePart, Touched, VersionPair, key_rows, matched, unshared
from omnigraph.history.three_way import TableMerge
from omnigraph.storage.columns import image_schema
from omnigraph.storage.layout import Addresses, fragments
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.read import ADDRESS, ID, OFFSET_BITS
from omnigraph.storage.shares import ranged_parcels, received
from omnigraph.storage.stage import Removed, Staged, TableStorage, data_files
from omnigraph.storage.unpublished import note
from omnigraph.write.pending import to_store
from omnigraph.write.validate import value_violations

MOST_ROWS = 500_000  # merged at once
MOST_REPORTED = 1_000  # conflicts of a share, and problems
_ROWS_PER_SLICE = 1_000_000
_SAMPLES_PER_SHARE = 16
_MOST_SAMPLED = 256  # slices
_FRAGMENTS_PER_TASK = 256
_PLACE = 8  # bytes


@dataclass(frozen=True, slots=True)
class LargeMergedTable:
    """The changes that a merge makes to a large table, as far as they concern the driver."""

    counts: ChangeCounts
    conflicts: tuple[MergeConflict, ...]
    problems: tuple[Violation, ...]
    unreported: int
    adopts: bool
    compared: bool
    written: tuple[str, ...] = ()
    removed: tuple[Removed, ...] = ()
    stale: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.counts.inserted or self.counts.updated or self.counts.deleted)

    def stage(self, tables: TableStorage, base: TableVersion) -> Staged:
        return tables.stage_removed(base, self.written, self.removed)


@dataclass(frozen=True, slots=True)
class LargeMerge:
    """The merge of one large table. Its rows are written to `base`, or only compared if that is None."""

    tables: TableStorage
    combination: TableMerge
    resolution: Resolution
    base: TableVersion | None
    directory: str = field(default_factory=lambda: f"__tmp/merge-{secrets.token_hex(8)}")

    def run(self, executor: Executor) -> LargeMergedTable:
        found = [unshared(self.tables, *pair) for pair in self.combination.pairs]
        slices = [
            KeyTask(self.tables.location, 2 * number + side, part, tuple(self.combination.keys))
            for number, parts in enumerate(found)
            for side, whole in enumerate(parts[:2])
            for part in whole.slices(_ROWS_PER_SLICE)
        ]
        rows = sum(max(one.most_rows, other.most_rows) for one, other, _ in found)
        first = first_ids(executor, slices, -(-rows // MOST_ROWS))
        try:
            results = exchanged(
                lambda: executor.scatter("keys", send_keys, [replace(one, first=first) for one in slices]),
                lambda sent: self._merge(executor, sent, len(first) + 1, 2 * len(found)),
            )
            return self._together(executor, results, compared=any(parts[2] for parts in found))
        finally:
            ObjectStore(self.tables.location).discard_below(self.directory)

    def _merge(self, executor: Executor, sent: Scattered[SentKeys], shares: int, sections: int) -> list[ShareResult]:
        task = ShareTask(
            self.tables.location, self.combination, self.resolution, self.base, self.directory, self._groups()
        )
        routes = {section: ParcelRoute(0, spread=True) for section in range(sections)}
        return executor.gather("merge", merge_share, [task] * shares, [sent], routes)

    def _groups(self) -> tuple[int, ...]:
        """Return the first fragment number of each group of fragments whose rows one task deletes."""
        numbers = sorted(one.number for one in fragments(self.tables, self.base)) if self.base else []
        return tuple(numbers[::_FRAGMENTS_PER_TASK])

    def _together(self, executor: Executor, results: Sequence[ShareResult], *, compared: bool) -> LargeMergedTable:
        counts = [sum(column) for column in zip(*(one.counts for one in results), strict=True)]
        conflicts = [conflict for one in results for conflict in one.conflicts][:MOST_REPORTED]
        problems = [problem for one in results for problem in one.problems][:MOST_REPORTED]
        unreported = sum(one.found for one in results) - len(conflicts) - len(problems)
        merged = LargeMergedTable(
            ChangeCounts(*counts), tuple(conflicts), tuple(problems), unreported, self.combination.adopts, compared
        )
        written = tuple(text for one in results for text in one.written)
        if self.base is None:
            return merged
        note(self.base, data_files(written))  # tasks on other machines have written them
        if conflicts or problems:
            return merged
        stale = sum((Counter(one.stale) for one in results), Counter[str]())
        return replace(merged, written=written, removed=self._removed(executor, results), stale=stale)

    def _removed(self, executor: Executor, results: Sequence[ShareResult]) -> tuple[Removed, ...]:
        """Delete the rows that are replaced, some fragments in each task."""
        assert self.base
        files = [one.places for one in results if one.places]
        tasks = [
            RemoveTask(self.tables.location, self.base, ranges)
            for group in range(len(self._groups()))
            if (ranges := tuple((one.file, *one.ranges[group]) for one in files if one.ranges[group][1]))
        ]
        removed = executor.run("delete", remove_places, tasks)
        for one in removed:
            note(self.base, one.files)
        return tuple(removed)


# Keys ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyTask:
    """Some rows whose keys are sent; `first` are the ids with which all shares but the first begin."""

    location: Location
    section: int
    part: TablePart
    names: tuple[str, ...]
    first: tuple[str, ...] = ()
    step: int = 1

    def rows(self, names: Sequence[str]) -> pa.Table:
        tables = TableStorage(self.location)  # this may run on another machine
        return key_rows(tables, self.part.listed(tables), names)


@dataclass(frozen=True, slots=True)
class SentKeys:
    rows: int


def send_keys(task: KeyTask) -> tuple[SentKeys, list[Parcel]]:
    """Send the keys of some rows to the shares that their ids belong to."""
    rows = task.rows(task.names)
    return SentKeys(rows.num_rows), list(ranged_parcels(task.section, rows, task.first))


def first_ids(executor: Executor, slices: Sequence[KeyTask], shares: int) -> tuple[str, ...]:
    """Return the ids that divide rows into shares of about the same size, as a sample of them shows."""
    if shares <= 1:
        return ()
    step = max(MOST_ROWS // _SAMPLES_PER_SHARE, 1)
    chosen = slices[:: -(-len(slices) // _MOST_SAMPLED)]
    samples = executor.run("sample", sample_ids, [replace(one, step=step) for one in chosen])
    ids = sorted(name for sample in samples for name in sample)
    # Equal bounds would make an empty share.
    return tuple(dict.fromkeys(ids[len(ids) * number // shares] for number in range(1, shares))) if ids else ()


def sample_ids(task: KeyTask) -> tuple[str, ...]:
    """Return one of every so many ids, in their order."""
    ids = task.rows([ID])[ID]
    return tuple(ids.take(pc.sort_indices(ids)[task.step // 2 :: task.step]).to_pylist())


# Shares --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShareTask:
    """The entities of one table with ids in a range; `groups` divide the fragments whose rows may be replaced."""

    location: Location
    combination: TableMerge
    resolution: Resolution
    base: TableVersion | None
    directory: str
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """A file of addresses, and where those of each group of fragments are in it: the first, and how many."""

    file: str
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ShareResult:
    """What a merge does to one share: inserted, updated and deleted rows; how many conflicts and problems it found."""

    counts: tuple[int, int, int] = (0, 0, 0)
    conflicts: tuple[MergeConflict, ...] = ()
    problems: tuple[Violation, ...] = ()
    found: int = 0
    written: tuple[str, ...] = ()
    places: Places | None = None
    stale: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(self.counts)


def merge_share(task: ShareTask, parcels: list[Parcel]) -> ShareResult:
    """Merge one share. Its rows are written unless there is something wrong with them."""
    tables = TableStorage(task.location)
    combined = task.combination.run(tables, task.resolution, _Received(tables, task.combination, parcels).touched)
    if combined is None:
        return ShareResult()
    problems = list(value_violations(combined.declared, combined.change.rows))
    found = len(problems) + len(combined.conflicts)
    result = ShareResult(
        (combined.inserted.num_rows, combined.updated.num_rows, combined.deleted.num_rows),
        combined.conflicts[:MOST_REPORTED],
        tuple(problems[:MOST_REPORTED]),
        found,
        stale=combined.stale,
    )
    if found or task.base is None:
        return result
    rows = combined.rows
    written = tables.write_rows(task.base, to_store(combined.declared, rows)) if rows.num_rows else []
    places = _places(task, combined.replaced) if len(combined.replaced) else None
    return replace(result, written=tuple(written), places=places)


def _places(task: ShareTask, replaced: Addresses) -> Places:
    group = np.searchsorted(task.groups, replaced >> OFFSET_BITS, side="right") - 1
    counts = np.bincount(group, minlength=len(task.groups)).tolist()
    file = f"{task.directory}/{uuid.uuid4().hex}"
    ordered = replaced[np.argsort(group, kind="stable")]
    ObjectStore(task.location).write(file, ordered.astype(np.int64).tobytes())
    return Places(file, tuple(zip([0, *accumulate(counts[:-1])], counts, strict=True)))


@dataclass(frozen=True, slots=True)
class _Received:
    """The keys of one share."""

    tables: TableStorage
    combination: TableMerge
    parcels: Sequence[Parcel]

    def touched(self, before: TableVersion | None, after: TableVersion | None) -> Touched:
        pair: VersionPair = (before, after)
        names = [*((name, pa.string()) for name in self.combination.keys), (ADDRESS, pa.int64())]
        schema = pa.schema(names)
        old = new = schema.empty_table()
        if before != after:
            section = 2 * self.combination.pairs.index(pair)
            old, new = (received(self.parcels, section + side, schema) for side in (0, 1))
        return matched(self.tables, pair, image_schema(self.combination.declared), old, new)


# Deletions -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoveTask:
    """Rows to delete: files of addresses, and the part of each that counts."""

    location: Location
    base: TableVersion
    ranges: tuple[tuple[str, int, int], ...]


def remove_places(task: RemoveTask) -> Removed:
    """Delete rows by address. Nothing refers to what is written until a commit does."""
    objects = ObjectStore(task.location)
    parts = [
        np.frombuffer(objects.read_range(file, start * _PLACE, count * _PLACE), np.int64)
        for file, start, count in task.ranges
    ]
    return TableStorage(task.location).remove_rows(task.base, np.sort(np.concatenate(parts)))
