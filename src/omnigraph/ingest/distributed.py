"""A load of any size: tasks convert, check and write; keys are compared in shares; the driver publishes one plan."""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import lance
import numpy as np
import pyarrow as pa

from omnigraph.api.options import LoadMode
from omnigraph.api.results import TableVersion
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.store import Store
from omnigraph.core.executor import Executor, FrameExecutor, ParcelRoute, Scattered
from omnigraph.errors import OmnigraphError, Violation
from omnigraph.formats.batch import ConvertedBatch, Declared, Numbers
from omnigraph.formats.files import Split, grouped
from omnigraph.ingest import steps
from omnigraph.ingest.keys import U64, EdgeEnd, KeyKind, KeySpace, key_sections, row_of, task_of
from omnigraph.ingest.steps import (
    LOST,
    NEW,
    OLD,
    CompareTask,
    Excluded,
    KeyExchange,
    KeyExtract,
    ShareCheck,
    StageResult,
)
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.manifest.publisher import Lineage
from omnigraph.storage.columns import declared_of, table_key
from omnigraph.storage.files import directory_of
from omnigraph.storage.predicates import OneOf
from omnigraph.storage.read import DST, ID, SRC
from omnigraph.storage.stage import Staged, data_files
from omnigraph.storage.unpublished import note
from omnigraph.write.load import existing
from omnigraph.write.pending import RECORD
from omnigraph.write.validate import TAKEN, TWICE, dangling, miscounted, not_unique

_ROWS_PER_TASK = 1_000_000
TASK_BITS = 32
_KEYS_PER_TASK = 100_000  # comparing so many takes about as long as scheduling a task
_PROBED_KEYS, _ROWS_PER_PROBED_KEY = 40_000, 8  # at most, and at least: beyond, reading all ids is quicker
_NONE: U64 = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class FrameInput:
    """A DataFrame with rows of one type, its name for messages, its columns in Arrow, and their names in the type."""

    type_key: str
    source: str
    rows: Any
    schema: pa.Schema
    columns: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class LoadInput:
    """What a load reads: parts of files, and DataFrames."""

    splits: Sequence[Split]
    frames: Sequence[FrameInput] = ()


@dataclass(frozen=True, slots=True)
class StagedInput:
    """The staged rows of the input for one table."""

    declared: Declared
    written: list[str]
    rows: int
    fresh: bool


class DistributedLoad:
    """One load. Its input is staged once; the checks against the graph run again for each state that it is tried on."""

    def __init__(self, store: Store, executor: Executor, data: LoadInput, mode: LoadMode, shares: int) -> None:
        self.store = store
        self.executor = executor
        self.input = data
        self.mode = mode
        directory = f"__tmp/load-{secrets.token_hex(8)}"
        # A random seed: no one can prepare an input whose keys collide, and a retry has another one.
        self.exchange = KeyExchange(store.location, directory, secrets.randbits(64), shares)
        self.staged: list[Scattered[StageResult]] = []
        self._catalog: Catalog | None = None
        self.bases: dict[str, TableVersion] = {}
        self.inherited: dict[str, TableVersion] = {}

    def stage(self, txn: WriteTxn) -> None:
        """Write the input to files of the tables. No head moves, and nothing refers to the files yet."""
        # All tables, because a task learns only from its rows which of them it needs; forks that stay unused are
        # deleted below.
        self.bases = {key: txn.writable_table(self.store.tables, key) for key in txn.entries}
        self.inherited = {key: txn.entries[key].table for key in txn.forks}
        self._catalog = txn.catalog
        self.exchange = replace(self.exchange, sections=key_sections(txn.catalog))
        self._free_keys()
        try:
            self._scatter(txn.catalog)
        except BaseException:
            with suppress(OmnigraphError):  # why the task failed is reported
                self._note(self.exchange.staged())
            raise
        for key, loaded in self.loaded(txn).items():
            note(self.bases[key], data_files(loaded.written))
        for key in txn.forks.keys() - {key for result in self.results for key in result.tables}:
            # No row was written to these: a table is forked only if the load changes it.
            self._delete_fork(txn.forks.pop(key))

    def _scatter(self, catalog: Catalog) -> None:
        shared = (catalog, self.bases, self.exchange)
        tasks = [steps.StageTask(number, split, *shared) for number, split in enumerate(self.input.splits)]
        if tasks or not self.input.frames:
            self.staged.append(self.executor.scatter("read", steps.stage, tasks))
        for frame in self.input.frames:
            executor, first = cast("FrameExecutor", self.executor), len(self.results)
            task = steps.FrameTask(frame.type_key, frame.source, frame.schema, frame.columns, *shared)
            self.staged.append(executor.scatter_frame("read", steps.stage_rows, task, frame.rows, first))

    @property
    def results(self) -> list[StageResult]:
        return [result for part in self.staged for result in part.results]

    @property
    def sources(self) -> list[Split]:
        """The part of the input that each task has read; a DataFrame counts as a file."""
        found = list(self.input.splits)
        for frame, part in zip(self.input.frames, self.staged[-len(self.input.frames) :], strict=False):
            found += [Split(frame.source, 0, "", "rows")] * len(part.results)
        return found

    def can_commit_on(self, txn: WriteTxn) -> bool:
        """Return whether the staged files fit this state; a fork fits only the version it was forked from."""
        if not self.results or txn.catalog != self._catalog:
            return False
        for key in {key for result in self.results for key in result.tables}:
            table, base = txn.entries[key].table, self.bases[key]
            if table.branch != base.branch:
                # Another writer changed the table on the parent branch since: the files were staged on a version that
                # is not the base any more.
                if table != self.inherited[key]:
                    return False
                txn.forks[key] = base
        return True

    def _delete_fork(self, fork: TableVersion) -> None:
        assert fork.branch
        self.store.tables.delete_fork(fork.path, fork.branch)

    def delete_exchange(self) -> None:
        """Delete the keys and files that only the checks needed."""
        self._free_keys()
        self.store.objects.discard_below(self.exchange.directory)

    def _free_keys(self) -> None:
        for part in self.staged:
            part.close()
        self.staged = []

    def _note(self, staged: Sequence[str]) -> None:
        """Note files of tasks, to be deleted unless they are published."""
        for base in self.bases.values():
            inside = f"{directory_of(base.path, base.branch)}/"
            note(base, [name.removeprefix(inside) for name in staged if name.startswith(f"{inside}data/")])

    def loaded(self, txn: WriteTxn) -> dict[str, StagedInput]:
        """Return the staged rows of each table, in the order of the input."""
        found: dict[str, StagedInput] = {}
        for key in sorted({key for result in self.results for key in result.tables}):
            parts = [result.tables[key] for result in self.results if key in result.tables]
            written = [text for part in parts for text in part.written]
            declared = declared_of(txn.catalog, key)
            found[key] = StagedInput(declared, written, sum(p.rows for p in parts), all(p.fresh for p in parts))
        return found


def input_problems(parts: Iterable[StageResult | ConvertedBatch]) -> Iterator[Violation]:
    """Yield the problems of all parts of an input."""
    for task, part in enumerate(parts):
        for problem in part.problems:
            yield numbered_across_input(problem, task)


def numbered_across_input(problem: Violation, task: int) -> Violation:
    """Number the record of a problem across the whole input."""
    return problem if problem.record is None else replace(problem, record=(task << TASK_BITS) | problem.record)


@dataclass(frozen=True, slots=True)
class _KeyCheck:
    """A comparison of one key space, and the function that turns the results of its tasks into violations."""

    space: KeySpace
    comparison: ShareCheck
    violations: Callable[[list[Any]], Iterator[Violation]]


class KeyComparison:
    """Compares the keys of a staged load with one state of the graph."""

    def __init__(self, load: DistributedLoad, txn: WriteTxn) -> None:
        self.load = load
        self.txn = txn
        self.tables = load.store.tables
        self.loaded = load.loaded(txn)
        self.exchange = load.exchange
        self.overwrites = load.mode is LoadMode.OVERWRITE
        self.read_set: set[str] = set()
        self.superseded: dict[str, U64] = defaultdict(lambda: _NONE)
        self.replaced: dict[str, U64] = defaultdict(lambda: _NONE)
        # Opened once: building the dataset of all staged fragments costs as much as a commit.
        self._appends: dict[str, lance.LanceDataset] = {}

    def problems(self) -> Iterator[Violation]:
        """Yield all violations of keys, endpoints, uniqueness and cardinality; find the rows that are replaced."""
        # Two rounds: the rows that a later record or the load itself replaces are known only from the ids.
        yield from self._violations([*self._id_checks(), *self._end_checks()])
        yield from self._violations([*self._unique_checks(), *self._cardinality_checks()])

    def plan(self, lineage: Lineage) -> PublishPlan:
        actions = tuple(TableAction(self._staged(key)) for key in self.loaded)
        # An overwrite has not compared the rows that it replaces: those that others add meanwhile would be lost.
        must_be_unchanged = frozenset(self.loaded) if self.overwrites else frozenset[str]()
        return PublishPlan(
            self.txn,
            WriterKind.LOAD,
            actions,
            lineage=lineage,
            read_set=frozenset(self.read_set),
            must_be_unchanged=must_be_unchanged,
        )

    # Checks

    def _id_checks(self) -> Iterator[_KeyCheck]:
        for key, loaded in self.loaded.items():
            if not loaded.fresh:
                space = KeySpace(KeyKind.ID, key)
                answer = partial(self._identities, key, loaded.declared)
                yield _KeyCheck(space, ShareCheck(steps.compare_ids), answer)

    def _identities(self, key: str, declared: Declared, parts: Sequence[steps.IdMatches]) -> Iterator[Violation]:
        again, superseded, there, replaced = _joined(parts)
        if isinstance(declared, NodeType) and declared.key:
            yield from not_unique(declared, self._rows(key, again, declared.key), declared.key, TWICE)
        elif self.load.mode is not LoadMode.MERGE:
            yield from existing(declared, self._rows(key, again, ()))
        else:
            self.superseded[key] = superseded
        if self.load.mode is LoadMode.APPEND:
            yield from existing(declared, self._rows(key, there, ()))
        elif not self.overwrites:
            self.replaced[key] = replaced

    def _end_checks(self) -> Iterator[_KeyCheck]:
        for node in self.txn.catalog.nodes.values():
            space = KeySpace(KeyKind.ID, table_key(node))
            yield _KeyCheck(space, ShareCheck(steps.find_dangling), partial(self._endpoints, node))

    def _endpoints(self, node: NodeType, parts: Sequence[dict[EdgeEnd, U64]]) -> Iterator[Violation]:
        for end in sorted({end for part in parts for end in part}):
            at = np.concatenate([part[end] for part in parts if end in part])
            edge = declared_of(self.txn.catalog, end.table)
            assert isinstance(edge, EdgeType)
            if end.origin is NEW:
                # An edge that a later record replaces is never stored, so its ends may be missing.
                at = at[~np.isin(at, self.superseded[end.table])]
                rows = self._rows(end.table, at, (end.column,))
            else:
                rows = self._committed_rows(end.table, at, (end.column,))
            yield from dangling(edge, end.column, node.name, rows)

    def _unique_checks(self) -> Iterator[_KeyCheck]:
        for key, loaded in self.loaded.items():
            for columns in loaded.declared.unique:
                space = KeySpace(KeyKind.UNIQUE, key, columns)
                comparison = ShareCheck(steps.compare_unique, self._excluded(key))
                yield _KeyCheck(space, comparison, partial(self._unique, loaded.declared, space))

    def _unique(self, declared: Declared, space: KeySpace, parts: Sequence[tuple[U64, U64]]) -> Iterator[Violation]:
        for at, why in zip(_joined(parts), (TWICE, TAKEN), strict=True):
            yield from not_unique(declared, self._rows(space.table, at, space.columns), space.columns, why)

    def _cardinality_checks(self) -> Iterator[_KeyCheck]:
        for key, loaded in self.loaded.items():
            edge = loaded.declared
            if isinstance(edge, EdgeType) and steps.is_bounded(edge.cardinality):
                comparison = ShareCheck(steps.count_sources, self._excluded(key), edge.cardinality)
                yield _KeyCheck(KeySpace(KeyKind.SOURCE, key), comparison, partial(self._cardinality, edge))

    def _cardinality(self, edge: EdgeType, parts: Sequence[steps.EdgeCounts]) -> Iterator[Violation]:
        key = table_key(edge)
        at, is_new, counts = _joined(parts)
        # Shares come in the order of hashes; rows are read in the order of their places.
        order = np.argsort(at)
        at, fresh, counts = at[order], is_new[order], counts[order]
        new = self._rows(key, at[fresh], (SRC,))
        for row, count in zip(new.to_pylist(), counts[fresh].tolist(), strict=True):
            yield miscounted(edge, row[SRC], count, row[RECORD])
        old = self._committed_rows(key, at[~fresh], (SRC,))
        stay = self._nodes_among(edge.source, old[SRC].combine_chunks()) if old.num_rows else set()
        for row, count in zip(old.to_pylist(), counts[~fresh].tolist(), strict=True):
            if row[SRC] in stay:
                yield miscounted(edge, row[SRC], count, None)

    def _excluded(self, key: str) -> Excluded:
        return Excluded.of(self.superseded[key], self.replaced[key], self.exchange)

    def _nodes_among(self, type_name: str, ids: pa.Array) -> set[str]:
        """Return which of the ids are nodes after the load: a node that is removed may have too few edges."""
        key = f"node:{type_name}"
        if key in self.loaded and self.overwrites:
            found = self.tables.scan_staged(self.tables.read_staged(self._staged(key)), [ID], OneOf(ID, ids))
        else:
            found = self.tables.scan(self.txn.entries[key].table, [ID], OneOf(ID, ids))
        return set(found[ID].to_pylist())

    # Keys

    def _violations(self, checks: Sequence[_KeyCheck]) -> Iterator[Violation]:
        """Run checks, all of them in one job, and yield their violations."""
        by_space: dict[KeySpace, list[_KeyCheck]] = defaultdict(list)
        for check in checks:
            by_space[check.space].append(check)
        tasks: list[CompareTask] = []
        routes: dict[int, ParcelRoute] = {}
        of_space: dict[KeySpace, slice] = {}
        for space, some in by_space.items():
            sections = self._sections(space)
            width = self._width(sections)
            of_space[space] = slice(len(tasks), len(tasks) + width)
            routes |= {number: ParcelRoute(len(tasks), spread=width > 1) for number in sections if width}
            tasks += [CompareTask(tuple(check.comparison for check in some), self.exchange)] * width
        results = self._compare(tasks, routes)
        for check in checks:
            at = by_space[check.space].index(check)
            if found := results[of_space[check.space]]:
                yield from check.violations([result[at] for result in found])

    def _compare(self, tasks: Sequence[CompareTask], routes: Mapping[int, ParcelRoute]) -> list[tuple[Any, ...]]:
        sent: list[Scattered[Any]] = [*self.load.staged, self._committed]
        return self.load.executor.gather("check", steps.compare, tasks, sent, routes)

    def _sections(self, space: KeySpace) -> dict[int, int]:
        """Return the sections of a space that have keys, and how many."""
        counted: Counter[int] = Counter()
        for keys in (*(result.keys for result in self.load.results), *self._committed.results):
            counted.update(keys)
        return {number: count for number, count in counted.items() if self.exchange.sections[number].space == space}

    def _width(self, sections: Mapping[int, int]) -> int:
        """Return how many tasks compare the keys of these sections."""
        # Committed keys alone were compared when they were written.
        if all(self.exchange.sections[number].role == OLD for number in sections):
            return 0
        # All shares in one task if there are few keys: to schedule a task takes longer than to compare them.
        return 1 if sum(sections.values()) < _KEYS_PER_TASK else self.exchange.shares

    @cached_property
    def _committed(self) -> Scattered[dict[int, int]]:
        """The committed keys that the input must be compared with."""
        tasks = []
        for key, wanted in sorted(self._wanted().items()):
            entry = self.txn.entries[key]
            # Even if it is empty: another writer may add the key or the node before the publish.
            self.read_set.add(key)
            probed = self._probed(key, wanted)
            if probed:
                tasks.append(probed)
                wanted = [one for one in wanted if one not in probed.wanted]  # noqa: PLW2901 - the rest is extracted
            rows = self.tables.fragment_rows(entry.table) if entry.row_count and wanted else {}
            for group in grouped(rows.items(), lambda fragment: (fragment[1],), (_ROWS_PER_TASK,)):
                fragments = tuple(number for number, _ in group)
                tasks.append(steps.CommittedTask(entry.table, fragments, tuple(wanted), self.exchange))
        return self.load.executor.scatter("keys", steps.committed_keys, tasks)

    def _probed(self, key: str, wanted: Sequence[KeyExtract]) -> steps.CommittedTask | None:
        """Look up the ids of a small input by the index, instead of extracting all ids of a large table."""
        space = KeySpace(KeyKind.ID, key)
        ids = KeyExtract(space, OLD, (ID,))
        count = sum(
            count
            for result in self.load.results
            for number, count in result.keys.items()
            if self.exchange.sections[number].space == space
        )
        rows = self.txn.entries[key].row_count
        if self.overwrites or ids not in wanted or count > _PROBED_KEYS or rows < count * _ROWS_PER_PROBED_KEY:
            return None
        return steps.CommittedTask(self.txn.entries[key].table, (), (ids,), self.exchange, self._named_ids(key))

    def _named_ids(self, key: str) -> pa.Array:
        """Return the ids of one table that the input brings or refers to."""
        found = [self._column(key, ID)] if key in self.loaded and not self.loaded[key].fresh else []
        for table, loaded in self.loaded.items():
            edge = loaded.declared
            if isinstance(edge, EdgeType):
                ends = ((SRC, edge.source), (DST, edge.target))
                found += [self._column(table, column) for column, end in ends if f"node:{end}" == key]
        return pa.chunked_array([chunk for column in found for chunk in column.chunks], pa.string()).unique()

    def _column(self, key: str, name: str) -> pa.ChunkedArray:
        base = self.txn.writable_table(self.tables, key)
        positions = np.arange(self.loaded[key].rows)
        return self.tables.take_staged(base, self._appended(key), positions, [name])[name]

    def close(self) -> None:
        """Free the committed keys."""
        if "_committed" in self.__dict__:
            self._committed.close()

    def _wanted(self) -> dict[str, list[KeyExtract]]:
        wanted: dict[str, list[KeyExtract]] = defaultdict(list)
        for key, loaded in self.loaded.items():
            wanted[key] += self._wanted_of(key, loaded)
            if isinstance(loaded.declared, EdgeType):
                for node in {f"node:{loaded.declared.source}": None, f"node:{loaded.declared.target}": None}:
                    ids = KeyExtract(KeySpace(KeyKind.ID, node), OLD, (ID,))
                    if not (node in self.loaded and self.overwrites) and ids not in wanted[node]:
                        wanted[node].append(ids)
            elif self.overwrites:
                for edge in self.txn.catalog.incident_edges(loaded.declared.name):
                    if (table := table_key(edge)) not in self.loaded:
                        wanted[table] += [
                            KeyExtract(KeySpace(KeyKind.ID, key), EdgeEnd(table, column, OLD), (column,))
                            for column, end in ((SRC, edge.source), (DST, edge.target))
                            if end == loaded.declared.name
                        ]
        return {key: ones for key, ones in wanted.items() if ones}

    def _wanted_of(self, key: str, loaded: StagedInput) -> Iterator[KeyExtract]:
        """Yield the committed keys of the table itself; an overwrite removes those rows."""
        declared = loaded.declared
        if isinstance(declared, EdgeType) and steps.is_bounded(declared.cardinality):
            yield KeyExtract(KeySpace(KeyKind.SOURCE, key), LOST if self.overwrites else OLD, (SRC,))
        if self.overwrites:
            return
        if not loaded.fresh:
            yield KeyExtract(KeySpace(KeyKind.ID, key), OLD, (ID,))
        for columns in declared.unique:
            yield KeyExtract(KeySpace(KeyKind.UNIQUE, key, columns), OLD, columns)

    # Rows

    def _rows(self, key: str, at: U64, columns: Sequence[str]) -> pa.Table:
        """Read staged rows by their places, each with the number of its record."""
        # Lance reads rows in the order of their positions; sorted, each fragment is opened once.
        at = np.sort(at)
        names = list(dict.fromkeys((ID, *columns)))
        if not len(at):
            return _no_rows([*names, RECORD])
        base = self.txn.writable_table(self.tables, key)
        rows = self.tables.take_staged(base, self._appended(key), self._positions(key, at), names)
        return rows.append_column(RECORD, pa.array(self._records(key, at), pa.int64()))

    def _committed_rows(self, key: str, addresses: U64, columns: Sequence[str]) -> pa.Table:
        names = list(dict.fromkeys((ID, *columns)))
        rows = self.tables.take_addresses(self.txn.entries[key].table, addresses, names)
        return rows.append_column(RECORD, pa.nulls(rows.num_rows, pa.int64()))

    def _positions(self, key: str, at: U64) -> Numbers:
        """Return the positions of rows among all staged rows of a table."""
        sizes = [result.tables[key].rows if key in result.tables else 0 for result in self.load.results]
        before = np.concatenate([[0], np.cumsum(sizes)])
        positions: Numbers = before[task_of(at)] + row_of(at)
        return positions

    def _records(self, key: str, at: U64) -> list[int]:
        """Return the record numbers of rows: `task << 32 | record`."""
        found: list[int] = []
        tasks = np.unique(task_of(at)).tolist()
        parcels = self._record_parcels(key, tasks)
        for task in tasks:
            rows = row_of(at[task_of(at) == task])
            first = self.load.results[task].tables[key].first_record
            records = first + rows if first is not None else parcels[task][rows]
            found += [(task << TASK_BITS) | record for record in records.tolist()]
        return found

    def _record_parcels(self, key: str, tasks: Sequence[int]) -> dict[int, Numbers]:
        """Fetch the record numbers of those tasks that had to send them."""
        sent = [task for task in tasks if self.load.results[task].tables[key].first_record is None]
        if not sent:
            return {}
        number = self.exchange.number(KeySpace(KeyKind.RECORD, key), NEW)
        parcels = [parcel for part in self.load.staged for parcel in part.read(number, sent)]
        return {one.sender: np.frombuffer(one.data, np.int64) for one in parcels}

    # Staging

    def _appended(self, key: str) -> lance.LanceDataset:
        """Open the table as it would be with all staged rows appended."""
        if key not in self._appends:
            base = self.txn.writable_table(self.tables, key)
            self._appends[key] = self.tables.read_staged(
                self.tables.stage_written(base, self.loaded[key].written, _NONE)
            )
        return self._appends[key]

    def _staged(self, key: str) -> Staged:
        base = self.txn.writable_table(self.tables, key)
        written = self.loaded[key].written
        if len(self.superseded[key]):
            positions = self._positions(key, np.sort(self.superseded[key]))
            written = self.tables.without_rows(base, self._appended(key), written, positions)
        if self.overwrites:
            return self.tables.stage_overwrite_written(base, written)
        return self.tables.stage_written(base, written, np.sort(self.replaced[key]))


def _joined(parts: Sequence[tuple[Numbers, ...]]) -> tuple[Numbers, ...]:
    """Join the results of tasks, column by column."""
    return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))


def _no_rows(names: Sequence[str]) -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in names})
