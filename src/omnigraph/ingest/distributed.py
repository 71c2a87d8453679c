"""A load of any size: tasks convert, check and write; keys are compared in shares; the driver publishes one plan."""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, cast

import lance
import numpy as np
import pyarrow as pa

from omnigraph.api.options import LoadMode
from omnigraph.api.results import TableVersion
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.store import Store
from omnigraph.core.executor import Executor, FrameExecutor, ParcelRoute, Scattered
from omnigraph.errors import OmnigraphError, OptionError, Violation
from omnigraph.formats.batch import Declared, Numbers
from omnigraph.formats.files import Split, grouped
from omnigraph.ingest import steps
from omnigraph.ingest.executor import LocalExecutor
from omnigraph.ingest.keys import (
    U64,
    EdgeEnd,
    KeyKind,
    KeySpace,
    ends_of,
    key_sections,
    places,
    row_of,
    shares_of,
    task_of,
)
from omnigraph.ingest.problems import TASK_BITS, Counts, ProblemLog
from omnigraph.ingest.steps import (
    DEFAULT_OPTIONS,
    LOST,
    NEW,
    OLD,
    CompareTask,
    Excluded,
    FoundRows,
    KeyExchange,
    KeyExtract,
    RowRemoval,
    ShareCheck,
    StagedLayout,
    StageResult,
    first_rows,
)
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.manifest.publisher import Lineage
from omnigraph.storage.columns import declared_of, table_key
from omnigraph.storage.files import directory_of
from omnigraph.storage.predicates import OneOf
from omnigraph.storage.read import DST, ID, SRC
from omnigraph.storage.stage import Removed, Staged, data_files
from omnigraph.storage.unpublished import note
from omnigraph.write.load import doubles, existing
from omnigraph.write.pending import RECORD
from omnigraph.write.validate import TAKEN, TWICE, dangling, miscounted, not_unique


@dataclass(frozen=True, slots=True)
class FrameInput:
    """A DataFrame with rows of one type, its name for messages, its columns in Arrow, and what its mapping says."""

    type_key: str
    source: str
    rows: Any
    schema: pa.Schema
    columns: tuple[tuple[str, str | None], ...] = ()
    when: str = ""
    distinct: bool = False


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

    def __init__(
        self,
        store: Store,
        executor: Executor,
        data: LoadInput,
        mode: LoadMode,
        shares: int,
        *,
        options: steps.StageOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.store = store
        self.executor = executor
        self.input = data
        self.mode = mode
        directory = f"__tmp/load-{secrets.token_hex(8)}"
        # A random seed: no one can prepare an input whose keys collide, and a retry has another one.
        self.exchange = KeyExchange(store.location, directory, secrets.randbits(64), shares)
        size = sum(split.size for split in data.splits)
        self.exchange = replace(self.exchange, options=options, rows_per_file=steps.rows_per_file(size))
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
            task = steps.FrameTask(frame.type_key, frame.source, frame.schema, frame.columns, frame.when, *shared)
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


# Checks against the graph -------------------------------------------------------------------------


_ROWS_PER_TASK = 1_000_000
_KEYS_PER_TASK = 100_000  # comparing so many takes about as long as scheduling a task
_PROBED_KEYS, _ROWS_PER_PROBED_KEY = 40_000, 8  # at most, and at least: beyond, reading all ids is quicker
_BYTES_PER_SHARE = 2**26  # of keys; a task holds them three times
_REMOVED_PER_TASK = 4_000_000
_NONE: U64 = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """Rows that break one rule, as the shares found them, and the function that describes some of them.

    `uncounted`: some of the rows may be no problem, which only describing them shows.
    """

    rule: str
    type_name: str
    parts: Sequence[FoundRows]
    described: Callable[[U64], Iterator[Violation]]
    uncounted: bool = False

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)


@dataclass(frozen=True, slots=True)
class _KeyCheck:
    """A comparison of one key space, and the function that turns the results of its tasks into findings."""

    space: KeySpace
    comparison: ShareCheck
    findings: Callable[[list[Any]], Iterator[BrokenRule]]


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
        self.superseded: dict[str, Sequence[FoundRows]] = {}
        self.replaced: dict[str, Sequence[FoundRows]] = {}
        self.left_out: dict[str, U64] = {}
        self._excluded_rows: dict[str, Excluded] = {}
        self._ignored: dict[str, Excluded] = {}
        # Opened once: building the dataset of all staged fragments costs as much as a commit.
        self._appends: dict[str, lance.LanceDataset] = {}
        self._ends: Scattered[dict[int, int]] | None = None

    def log_problems(self, log: ProblemLog) -> None:
        """Log all violations of keys, endpoints, uniqueness and cardinality; find the rows that are replaced."""
        for finding in self._all_findings():
            self._log(log, finding)

    def leave_out_bad(self, log: ProblemLog) -> None:
        """Leave out the records that break a rule, and those that now do, until none does or they are too many."""
        while log.tolerated:
            broken = [finding for finding in self._all_findings() if finding.count]
            # Too many or too few edges of a source may be so because of records that are left out.
            of_records = [finding for finding in broken if finding.rule != "cardinality"]
            known = set(log.bad)
            for finding in of_records or broken:
                self._log(log, finding)
            if not of_records:
                return
            assert log.bad - known or not log.tolerated, "a record that is left out breaks no rule"
            self._leave_out({record for record in log.bad - known if record is not None})

    def _leave_out(self, records: set[int]) -> None:
        for key in self.loaded:
            self.left_out[key] = np.concatenate([self.left_out.get(key, _NONE), self._places_of(key, records)])
        for found in (self.superseded, self.replaced, self._excluded_rows, self._ignored):
            found.clear()

    def _places_of(self, key: str, records: set[int]) -> U64:
        """Return the places of the rows of a table that come from some records."""
        by_task: dict[int, list[int]] = defaultdict(list)
        for record in sorted(records):
            by_task[record >> TASK_BITS].append(record & (2**TASK_BITS - 1))
        results = self.load.results
        tasks = [task for task in sorted(by_task) if key in results[task].tables]
        parcels = self._record_parcels(key, tasks)
        found = [_NONE]
        for task in tasks:
            table = results[task].tables[key]
            numbers = parcels[task] if table.first_record is None else table.first_record + np.arange(table.rows)
            found.append(places(task, table.rows)[np.isin(numbers, by_task[task])])
        return np.concatenate(found)

    def _all_findings(self) -> Iterator[BrokenRule]:
        # Two rounds: the rows that a later record or the load itself replaces are known only from the ids.
        ids = list(self._id_checks())
        late = any(check.comparison.repeats and check.space.table.startswith("edge:") for check in ids)
        yield from self._findings(ids if late else [*ids, *self._end_checks(self._left_out_of)])
        # An edge that a later record replaces is never stored, so its ends may be missing.
        ends = self._end_checks(self._excluded) if late else ()
        yield from self._findings([*ends, *self._unique_checks(), *self._cardinality_checks()])

    @property
    def may_double(self) -> dict[str, int]:
        """The number of edges by type that have no identity, in a merge into a table that has some already."""
        if self.load.mode is not LoadMode.MERGE or self.exchange.options.by_ends:
            return {}
        found = {}
        for key, loaded in self.loaded.items():
            fresh = sum(
                one.tables[key].rows for one in self.load.results if key in one.tables and one.tables[key].fresh
            )
            if fresh and self.txn.entries[key].row_count and doubles(loaded.declared):
                found[key] = fresh
        return found

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows that the load brings to each table."""
        return {key: loaded.rows - self._excluded(key).new for key, loaded in self.loaded.items()}

    @property
    def changed(self) -> list[str]:
        """The tables that the load changes: not those whose records are all left out."""
        leaves_out = self.exchange.options.leave_out
        return [key for key, count in self.counts.items() if count or not leaves_out]

    def plan(self, lineage: Lineage) -> PublishPlan:
        actions = tuple(TableAction(self._staged(key)) for key in self.changed)
        # An overwrite has not compared the rows that it replaces: those that others add meanwhile would be lost.
        must_be_unchanged = frozenset(self.changed) if self.overwrites else frozenset[str]()
        return PublishPlan(
            self.txn,
            WriterKind.LOAD,
            actions,
            lineage=lineage,
            read_set=frozenset(self.read_set),
            must_be_unchanged=must_be_unchanged,
        )

    def _log(self, log: ProblemLog, finding: BrokenRule) -> None:
        if self.exchange.options.keep_all or finding.uncounted:
            for part in finding.parts:
                for rows in part.chunks(self.exchange.objects):
                    log.add(finding.described(rows))
        elif finding.count:
            counts: Counts = Counter({(finding.rule, finding.type_name): finding.count})
            log.add_counted(counts, finding.described(first_rows(finding.parts)))

    # Checks

    def _id_checks(self) -> Iterator[_KeyCheck]:
        options = self.exchange.options
        for key, loaded in self.loaded.items():
            keyed = isinstance(loaded.declared, NodeType) and bool(loaded.declared.key)
            comparison = ShareCheck(
                steps.compare_ids,
                key,
                {key: self._left_out_of(key)},
                repeats=(self.load.mode is LoadMode.MERGE and not keyed) or key in options.distinct,
                exists=self.load.mode is not LoadMode.APPEND,
            )
            findings = partial(self._identities, key, loaded.declared)
            is_edge = isinstance(loaded.declared, EdgeType)
            if is_edge and options.by_ends and not loaded.fresh:
                raise _has_ids(loaded.declared)
            by_ends = is_edge and (options.by_ends or (loaded.fresh and key in options.distinct))
            if by_ends or not loaded.fresh:
                yield _KeyCheck(ends_of(key) if by_ends else KeySpace(KeyKind.ID, key), comparison, findings)

    def _identities(self, key: str, declared: Declared, parts: Sequence[steps.IdMatches]) -> Iterator[BrokenRule]:
        again, self.superseded[key], there, self.replaced[key] = map(list, zip(*parts, strict=True))
        if isinstance(declared, NodeType) and declared.key:
            yield self._not_unique(declared, declared.key, TWICE, again)
        else:
            yield self._existing(declared, again)
        yield self._existing(declared, there)

    def _existing(self, declared: Declared, parts: Sequence[FoundRows]) -> BrokenRule:
        def described(rows: U64) -> Iterator[Violation]:
            return existing(declared, self._rows(table_key(declared), rows[:, 0], ()))

        return BrokenRule("key", declared.name, parts, described)

    def _not_unique(
        self, declared: Declared, columns: Sequence[str], why: str, parts: Sequence[FoundRows]
    ) -> BrokenRule:
        def described(rows: U64) -> Iterator[Violation]:
            return not_unique(declared, self._rows(table_key(declared), rows[:, 0], columns), columns, why)

        return BrokenRule("unique", declared.name, parts, described)

    def _end_checks(self, excluded_of: Callable[[str], Excluded]) -> Iterator[_KeyCheck]:
        edges = {key: excluded_of(key) for key in self.loaded if key.startswith("edge:")}
        for node in self.txn.catalog.nodes.values():
            key = table_key(node)
            # Nodes count whether others replace them or not: an id stays.
            excluded = {**edges, key: self._left_out_of(key)}
            if self._ends is None:
                findings = partial(self._unknown_ends, node, excluded)
                yield _KeyCheck(KeySpace(KeyKind.ID, key), ShareCheck(steps.find_unknown, key, excluded), findings)
            else:
                yield self._end_check(node, excluded)

    def _end_check(self, node: NodeType, excluded: Mapping[str, Excluded]) -> _KeyCheck:
        comparison = ShareCheck(steps.find_dangling, table_key(node), excluded)
        return _KeyCheck(KeySpace(KeyKind.ID, table_key(node)), comparison, partial(self._endpoints, node))

    def _unknown_ends(
        self, node: NodeType, excluded: Mapping[str, Excluded], parts: Sequence[steps.UnknownEnds]
    ) -> Iterator[BrokenRule]:
        """Yield the committed edges that would lose an end, and those of the input whose ends there are not."""
        if not any(part.named for part in parts):
            yield from self._endpoints(node, [part.ends for part in parts])
            return
        # Which edges name such a node is not known: each task has sent a node once, whatever the number of its edges.
        if self._ends is None:
            self._ends = self.load.executor.scatter("keys", steps.committed_keys, list(self._end_tasks()))
        yield from self._findings([self._end_check(node, excluded)])

    def _end_tasks(self) -> Iterator[steps.CommittedTask]:
        """Yield tasks that extract the ends of all staged edges."""
        for key, loaded in self.loaded.items():
            edge = loaded.declared
            if not isinstance(edge, EdgeType) or not loaded.written:
                continue
            wanted = tuple(
                KeyExtract(KeySpace(KeyKind.ID, f"node:{end}"), EdgeEnd(key, column, NEW), (column,))
                for column, end in ((SRC, edge.source), (DST, edge.target))
            )
            opened = self._appended(key)
            table = replace(self.txn.writable_table(self.tables, key), version=int(opened.version))
            numbers = iter([fragment.fragment_id for fragment in opened.get_fragments()][-len(loaded.written) :])
            for task, result in enumerate(self.load.results):
                files = len(result.tables[key].written) if key in result.tables else 0
                if files:
                    yield steps.CommittedTask(table, tuple(islice(numbers, files)), wanted, self.exchange, staged=task)

    def _endpoints(self, node: NodeType, parts: Sequence[dict[EdgeEnd, FoundRows]]) -> Iterator[BrokenRule]:
        for end in sorted({end for part in parts for end in part}):
            edge = declared_of(self.txn.catalog, end.table)
            assert isinstance(edge, EdgeType)
            described = partial(self._dangling, edge, end, node.name)
            yield BrokenRule("endpoint", edge.name, [part[end] for part in parts if end in part], described)

    def _dangling(self, edge: EdgeType, end: EdgeEnd, type_name: str, rows: U64) -> Iterator[Violation]:
        read = self._rows if end.origin is NEW else self._committed_rows
        return dangling(edge, end.column, type_name, read(end.table, rows[:, 0], (end.column,)))

    def _unique_checks(self) -> Iterator[_KeyCheck]:
        for key, loaded in self.loaded.items():
            for columns in loaded.declared.unique:
                space = KeySpace(KeyKind.UNIQUE, key, columns)
                comparison = ShareCheck(steps.compare_unique, key, {key: self._excluded(key)})
                yield _KeyCheck(space, comparison, partial(self._unique, loaded.declared, columns))

    def _unique(
        self, declared: Declared, columns: Sequence[str], parts: Sequence[tuple[FoundRows, FoundRows]]
    ) -> Iterator[BrokenRule]:
        for found, why in zip(zip(*parts, strict=True), (TWICE, TAKEN), strict=True):
            yield self._not_unique(declared, columns, why, found)

    def _cardinality_checks(self) -> Iterator[_KeyCheck]:
        for key, loaded in self.loaded.items():
            edge = loaded.declared
            if isinstance(edge, EdgeType) and steps.is_bounded(edge.cardinality):
                comparison = ShareCheck(steps.count_sources, key, {key: self._excluded(key)}, edge.cardinality)
                yield _KeyCheck(KeySpace(KeyKind.SOURCE, key), comparison, partial(self._cardinality, edge))

    def _cardinality(self, edge: EdgeType, parts: Sequence[steps.EdgeCounts]) -> Iterator[BrokenRule]:
        new, old = zip(*parts, strict=True)
        yield BrokenRule("cardinality", edge.name, new, partial(self._miscounted, edge))
        yield BrokenRule("cardinality", edge.name, old, partial(self._miscounted_of_committed, edge), uncounted=True)

    def _miscounted(self, edge: EdgeType, rows: U64) -> Iterator[Violation]:
        found = self._rows(table_key(edge), rows[:, 0], (SRC,))
        for row, count in zip(found.to_pylist(), rows[:, 1].tolist(), strict=True):
            yield miscounted(edge, row[SRC], count, row[RECORD])

    def _miscounted_of_committed(self, edge: EdgeType, rows: U64) -> Iterator[Violation]:
        old = self._committed_rows(table_key(edge), rows[:, 0], (SRC,))
        stay = self._nodes_among(edge.source, old[SRC].combine_chunks()) if old.num_rows else set()
        for row, count in zip(old.to_pylist(), rows[:, 1].tolist(), strict=True):
            if row[SRC] in stay:
                yield miscounted(edge, row[SRC], count, None)

    def _excluded(self, key: str) -> Excluded:
        """Return the rows of a table that are ignored, once the ids have been compared."""
        if key not in self._excluded_rows:
            old, new = self.replaced.get(key, ()), [*self.superseded.get(key, ()), *self._left_out_rows(key)]
            self._excluded_rows[key] = Excluded.of(new, old, self.exchange)
        return self._excluded_rows[key]

    def _left_out_of(self, key: str) -> Excluded:
        """Return the rows of a table whose records are left out."""
        if key not in self._ignored:
            self._ignored[key] = Excluded.of(self._left_out_rows(key), (), self.exchange)
        return self._ignored[key]

    def _left_out_rows(self, key: str) -> list[FoundRows]:
        at = self.left_out.get(key, _NONE)
        return [FoundRows(len(at), at.reshape(-1, 1))]

    def _nodes_among(self, type_name: str, ids: pa.Array) -> set[str]:
        """Return which of the ids are nodes after the load: a node that is removed may have too few edges."""
        key = f"node:{type_name}"
        if key in self.loaded and self.overwrites:
            found = self.tables.scan_staged(self.tables.read_staged(self._staged(key)), [ID], OneOf(ID, ids))
        else:
            found = self.tables.scan(self.txn.entries[key].table, [ID], OneOf(ID, ids))
        return set(found[ID].to_pylist())

    # Keys

    def _findings(self, checks: Sequence[_KeyCheck]) -> Iterator[BrokenRule]:
        """Run checks, all of them in one job, and yield what they find."""
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
            routes |= {number: ParcelRoute(len(tasks), spread=width > 1, width=width) for number in sections if width}
            comparisons = tuple(check.comparison for check in some)
            tasks += [CompareTask(comparisons, self.exchange, share, width) for share in range(width)]
        results = self._compare(tasks, routes)
        for check in checks:
            at = by_space[check.space].index(check)
            if found := results[of_space[check.space]]:
                yield from check.findings([result[at] for result in found])

    def _compare(self, tasks: Sequence[CompareTask], routes: Mapping[int, ParcelRoute]) -> list[tuple[Any, ...]]:
        sent: list[Scattered[Any]] = [*self.load.staged, *self._scattered]
        return self.load.executor.gather("check", steps.compare, tasks, sent, routes)

    def _sections(self, space: KeySpace) -> dict[int, int]:
        """Return the sections of a space that have keys, and how many."""
        counted: Counter[int] = Counter()
        for keys in (result.keys for result in self.load.results):
            counted.update(keys)
        for keys in (keys for part in self._scattered for keys in part.results):
            counted.update(keys)
        return {number: count for number, count in counted.items() if self.exchange.sections[number].space == space}

    @property
    def _scattered(self) -> list[Scattered[dict[int, int]]]:
        return [self._committed, *([self._ends] if self._ends else [])]

    def _width(self, sections: Mapping[int, int]) -> int:
        """Return how many tasks compare the keys of these sections."""
        # Committed keys alone were compared when they were written.
        if all(self.exchange.sections[number].role == OLD for number in sections):
            return 0
        # All shares in one task if there are few keys: to schedule a task takes longer than to compare them.
        count = sum(sections.values())
        return 1 if count < _KEYS_PER_TASK else shares_of(count, _BYTES_PER_SHARE, self.exchange.shares)

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
        # By rows, because all of these are read: a node that is named twice counts twice.
        count = sum(self.loaded[table].rows for table, _ in self._naming(key))
        rows = self.txn.entries[key].row_count
        if self.overwrites or ids not in wanted or count > _PROBED_KEYS or rows < count * _ROWS_PER_PROBED_KEY:
            return None
        named = self._named_ids(key)
        return steps.CommittedTask(self.txn.entries[key].table, (), (ids,), self.exchange, named, key in self.loaded)

    def _named_ids(self, key: str) -> pa.Array:
        """Return the ids of one table that the input brings or refers to."""
        found = [self._column(table, column) for table, column in self._naming(key)]
        return pa.chunked_array([chunk for column in found for chunk in column.chunks], pa.string()).unique()

    def _naming(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield the staged tables and columns that have ids of one table."""
        if key in self.loaded and not self.loaded[key].fresh:
            yield key, ID
        for table, loaded in self.loaded.items():
            edge = loaded.declared
            if isinstance(edge, EdgeType):
                ends = ((SRC, edge.source), (DST, edge.target))
                yield from ((table, column) for column, end in ends if f"node:{end}" == key)

    def _column(self, key: str, name: str) -> pa.ChunkedArray:
        base = self.txn.writable_table(self.tables, key)
        positions = np.arange(self.loaded[key].rows)
        return self.tables.take_staged(base, self._appended(key), positions, [name])[name]

    def close(self) -> None:
        """Free the committed keys, and the ends of edges."""
        if "_committed" in self.__dict__:
            self._committed.close()
        if self._ends:
            self._ends.close()

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
        elif self.exchange.options.by_ends and isinstance(declared, EdgeType):
            yield KeyExtract(ends_of(key), OLD, (SRC, DST))
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
        positions: Numbers = self._rows_before(key)[task_of(at)] + row_of(at)
        return positions

    def _rows_before(self, key: str) -> Numbers:
        """Return how many staged rows of a table come before those of each task."""
        sizes = [result.tables[key].rows if key in result.tables else 0 for result in self.load.results]
        return np.concatenate([[0], np.cumsum(sizes)])

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
        base, excluded = self.txn.writable_table(self.tables, key), self._excluded(key)
        written = self._without_superseded(key) if excluded.new else self.loaded[key].written
        if self.overwrites:
            return self.tables.stage_overwrite_written(base, written)
        if not excluded.old:
            return self.tables.stage_written(base, written, _NONE)
        fragments = sorted(self.tables.fragment_rows(base))
        whole = RowRemoval(base, base.version, (0, 0), excluded, OLD, None, self.exchange)
        return self.tables.stage_removed(base, written, self._removed(whole, fragments, excluded.old))

    def _without_superseded(self, key: str) -> list[str]:
        """Return the staged files of a table without the rows that others of the input replace."""
        base, excluded, opened = self.txn.writable_table(self.tables, key), self._excluded(key), self._appended(key)
        numbered = self.tables.numbered_written(opened, self.loaded[key].written)
        described = [lance.FragmentMetadata.from_json(text) for text in numbered]
        fragments = [one.id for one in described]
        ends = np.cumsum([one.physical_rows for one in described])
        layout = StagedLayout(self._rows_before(key), ends, np.array(fragments))
        whole = RowRemoval(base, int(opened.version), (0, 0), excluded, NEW, layout, self.exchange)
        return self.tables.without_removed(numbered, self._removed(whole, fragments, excluded.new))

    def _removed(self, whole: RowRemoval, fragments: Sequence[int], count: int) -> list[Removed]:
        """Remove rows from fragments: many of them by tasks, so that the driver never holds them."""
        parts = np.array_split(np.array(fragments), min(len(fragments), 1 + count // _REMOVED_PER_TASK))
        tasks = [replace(whole, fragments=(int(part[0]), int(part[-1]) + 1)) for part in parts]
        executor = self.load.executor if len(tasks) > 1 else LocalExecutor()
        done = executor.run("publish", steps.remove_rows, tasks)
        for part in done:
            note(whole.base, part.files)
        return done


def _has_ids(declared: Declared) -> OptionError:
    message = f"records of {declared.name} have ids, so that they cannot be merged by their ends"
    return OptionError(message, option="dedupe", hint="leave out dedupe, or the ids")


def _no_rows(names: Sequence[str]) -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in names})
