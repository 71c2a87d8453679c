"""A load of any size: executors convert, check and write; keys are compared in shares; the driver stages one plan."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from omnigraph.api.options import LoadMode
from omnigraph.api.results import TableVersion
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind, WriteTxn
from omnigraph.commit.store import Store
from omnigraph.core.executor import Executor
from omnigraph.errors import Violation
from omnigraph.formats.hashing import U64
from omnigraph.formats.splits import Split
from omnigraph.ingest import steps
from omnigraph.ingest.keys import Section, row_of, task_of
from omnigraph.ingest.steps import LOST, OLD, CompareTask, Exchange, Excluded, StageResult, Wanted
from omnigraph.lang.catalog import Cardinality, EdgeType, NodeType
from omnigraph.manifest.publisher import Lineage
from omnigraph.storage.columns import declared_of, table_key
from omnigraph.storage.predicates import OneOf
from omnigraph.storage.read import DST, ID, SRC
from omnigraph.storage.stage import Staged
from omnigraph.write.load import existing
from omnigraph.write.pending import RECORD
from omnigraph.write.validate import TAKEN, TWICE, dangling, miscounted, not_unique

_ROWS_PER_TASK = 1_000_000
_RECORD_BYTES = 8
TASK_BITS = 32
_KEYS_PER_TASK = 100_000  # as many are compared about as quickly as a task is scheduled
_NONE: U64 = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the input holds for one table."""

    declared: NodeType | EdgeType
    written: list[str]
    rows: int
    fresh: bool


class BigLoad:
    """One load. Its input is staged once; what depends on the graph is done anew for every state it is tried on."""

    def __init__(self, store: Store, executor: Executor, splits: Sequence[Split], mode: LoadMode, shares: int) -> None:
        self.store = store
        self.executor = executor
        self.splits = splits
        self.mode = mode
        directory = f"__tmp/load-{secrets.token_hex(8)}"
        self.exchange = Exchange(store.location, directory, secrets.randbits(64), shares)
        self.results: list[StageResult] = []
        self.made_to_look: list[str] = []
        self.bases: dict[str, TableVersion] = {}
        self.inherited: dict[str, TableVersion] = {}

    def stage(self, txn: WriteTxn) -> None:
        """Write the input to files of the tables. No head moves, and nothing refers to the files yet."""
        self.bases = {key: txn.writable_table(self.store.tables, key) for key in txn.entries}
        self.inherited = {key: txn.entries[key].table for key in txn.forks}
        paths = {key: (table.path, table.branch) for key, table in self.bases.items()}
        tasks = [
            steps.StageTask(number, split, txn.catalog, paths, self.exchange)
            for number, split in enumerate(self.splits)
        ]
        self.results = self.executor.run("read", steps.stage, tasks)
        for key in txn.forks.keys() - {key for result in self.results for key in result.tables}:
            self._delete_fork(txn.forks.pop(key))

    def suits(self, txn: WriteTxn) -> bool:
        """Tell whether what is staged can be committed on a later state; a fork serves only what it was forked from."""
        if not self.results:
            return False
        for key in {key for result in self.results for key in result.tables}:
            table, base = txn.entries[key].table, self.bases[key]
            if table.branch != base.branch:
                if table != self.inherited[key]:
                    return False
                txn.forks[key] = base
        return True

    def _delete_fork(self, fork: TableVersion) -> None:
        assert fork.branch
        self.store.tables.delete_fork(fork.path, fork.branch)

    def discard(self) -> None:
        """Remove what only the checks needed."""
        self.store.objects.delete_below(self.exchange.directory)
        for name in self.made_to_look:
            self.store.objects.delete(name)

    def take_back(self) -> None:
        """Remove the files of a load that will not be published; what failed tasks left is for `cleanup`."""
        written = {key for result in self.results for key in result.tables}
        for key in written & self.inherited.keys():
            self._delete_fork(self.bases[key])
        for result in self.results:
            for key in result.tables.keys() - self.inherited.keys():
                for name in self.store.tables.files_of(self.bases[key], result.tables[key].written):
                    self.store.objects.delete(name)

    def loaded(self, txn: WriteTxn) -> dict[str, Loaded]:
        """What was staged for each table, in the order of the input."""
        found: dict[str, Loaded] = {}
        for key in sorted({key for result in self.results for key in result.tables}):
            parts = [result.tables[key] for result in self.results if key in result.tables]
            written = [text for part in parts for text in part.written]
            declared = declared_of(txn.catalog, key)
            found[key] = Loaded(declared, written, sum(p.rows for p in parts), all(p.fresh for p in parts))
        return found

    def value_problems(self) -> Iterator[Violation]:
        for number, result in enumerate(self.results):
            for problem in result.problems:
                yield placed(problem, number)


def placed(problem: Violation, task: int) -> Violation:
    """Number the record of a problem through the whole input."""
    return problem if problem.record is None else replace(problem, record=(task << TASK_BITS) | problem.record)


@dataclass(frozen=True, slots=True)
class _Question:
    """A step, the space that it is about, and what makes violations of its answers."""

    step: Callable[[CompareTask], Any]
    space: str
    answer: Callable[[list[Any]], Iterator[Violation]]
    excluded: Excluded = field(default_factory=Excluded)
    bounds: Cardinality = field(default_factory=Cardinality)


class Comparison:
    """A staged load against one state of the graph."""

    def __init__(self, load: BigLoad, txn: WriteTxn) -> None:
        self.load = load
        self.txn = txn
        self.tables = load.store.tables
        self.loaded = load.loaded(txn)
        self.exchange = load.exchange
        self.overwrites = load.mode is LoadMode.OVERWRITE
        self.read_set: set[str] = set()
        self.superseded: dict[str, U64] = defaultdict(lambda: _NONE)
        self.replaced: dict[str, U64] = defaultdict(lambda: _NONE)
        self._appends: dict[str, lance.LanceDataset] = {}

    def problems(self) -> Iterator[Violation]:
        """Yield what is wrong with the input as it stands beside the graph; find what it replaces.

        Which rows count is known only when the ids are compared, so there are two rounds of questions.
        """
        yield from self._answered([*self._id_questions(), *self._end_questions()])
        yield from self._answered([*self._unique_questions(), *self._cardinality_questions()])

    def plan(self, lineage: Lineage) -> PublishPlan:
        actions = tuple(TableAction(self._staged(key)) for key in self.loaded)
        must_be_unchanged = frozenset(self.loaded) if self.overwrites else frozenset[str]()
        return PublishPlan(
            self.txn,
            WriterKind.LOAD,
            actions,
            lineage=lineage,
            read_set=frozenset(self.read_set),
            must_be_unchanged=must_be_unchanged,
        )

    # What the keys say

    def _id_questions(self) -> Iterator[_Question]:
        for key, loaded in self.loaded.items():
            if not loaded.fresh:
                space = steps.id_space(loaded.declared)
                yield _Question(steps.compare_ids, space, partial(self._identities, key, loaded.declared))

    def _identities(
        self, key: str, declared: NodeType | EdgeType, parts: Sequence[steps.Identities]
    ) -> Iterator[Violation]:
        again, superseded, there, replaced = (
            _joined(getattr(part, name) for part in parts) for name in ("again", "superseded", "existing", "replaced")
        )
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

    def _end_questions(self) -> Iterator[_Question]:
        for node in self.txn.catalog.nodes.values():
            yield _Question(steps.find_dangling, steps.id_space(node), partial(self._endpoints, node))

    def _endpoints(self, node: NodeType, parts: Sequence[dict[str, U64]]) -> Iterator[Violation]:
        for role in sorted({role for part in parts for role in part}):
            kind, key, column = role.split(" ")
            at = _joined(part[role] for part in parts if role in part)
            edge = declared_of(self.txn.catalog, key)
            assert isinstance(edge, EdgeType)
            if kind == "ref":
                at = at[~np.isin(at, self.superseded[key])]
                yield from dangling(edge, column, node.name, self._rows(key, at, (column,)))
            else:
                yield from dangling(edge, column, node.name, self._committed_rows(key, at, (column,)))

    def _unique_questions(self) -> Iterator[_Question]:
        for key, loaded in self.loaded.items():
            for columns in loaded.declared.unique:
                space = steps.unique_space(loaded.declared, columns)
                answer = partial(self._unique, loaded.declared, columns)
                yield _Question(steps.compare_unique, space, answer, self._excluded(key))

    def _unique(
        self, declared: NodeType | EdgeType, columns: Sequence[str], parts: Sequence[tuple[U64, U64]]
    ) -> Iterator[Violation]:
        key = table_key(declared)
        again, taken = (_joined(part[at] for part in parts) for at in range(2))
        yield from not_unique(declared, self._rows(key, again, columns), columns, TWICE)
        yield from not_unique(declared, self._rows(key, taken, columns), columns, TAKEN)

    def _cardinality_questions(self) -> Iterator[_Question]:
        for key, loaded in self.loaded.items():
            edge = loaded.declared
            if isinstance(edge, EdgeType) and steps.is_bounded(edge.cardinality):
                answer = partial(self._cardinality, edge)
                space = steps.source_space(edge)
                yield _Question(steps.count_sources, space, answer, self._excluded(key), edge.cardinality)

    def _cardinality(self, edge: EdgeType, parts: Sequence[steps.Miscounted]) -> Iterator[Violation]:
        key = table_key(edge)
        at, is_new, counts = (
            np.concatenate([getattr(part, name) for part in parts]) if parts else _NONE
            for name in ("at", "is_new", "counts")
        )
        order = np.argsort(at)
        at, fresh, counts = at[order], is_new[order].astype(bool), counts[order]
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
        """Tell which nodes are there after the load; one that goes may have too few edges."""
        key = f"node:{type_name}"
        if key in self.loaded and self.overwrites:
            found = self.tables.scan_staged(self._opened(self._staged(key)), [ID], OneOf(ID, ids))
        else:
            found = self.tables.scan(self.txn.entries[key].table, [ID], OneOf(ID, ids))
        return set(found[ID].to_pylist())

    # Keys

    def _answered(self, questions: Sequence[_Question]) -> Iterator[Violation]:
        """Put questions, all of them at once, and yield what the answers show."""
        tasks = [list(self._tasks(question)) for question in questions]
        answers = iter(self.load.executor.run("check", steps.compare, [one for some in tasks for one in some]))
        for question, some in zip(questions, tasks, strict=True):
            yield from question.answer(list(islice(answers, len(some))))

    def _tasks(self, question: _Question) -> Iterator[CompareTask]:
        sections = tuple(self._by_space.get(question.space, ()))
        if all(section.role == OLD for section in sections):
            return
        shares = tuple(range(self.exchange.shares))
        few = sum(section.count for section in sections) < _KEYS_PER_TASK
        for some in [shares] if few else [(share,) for share in shares]:
            yield CompareTask(question.step, some, sections, self.exchange, question.excluded, question.bounds)

    @cached_property
    def _by_space(self) -> dict[str, list[Section]]:
        found: dict[str, list[Section]] = defaultdict(list)
        for section in (*(one for result in self.load.results for one in result.sections), *self._committed()):
            found[section.space].append(section)
        return found

    def _committed(self) -> list[Section]:
        """Have the keys of committed rows handed on, as far as the input must be compared with them."""
        tasks = []
        for key, wanted in sorted(self._wanted().items()):
            entry = self.txn.entries[key]
            self.read_set.add(key)
            if entry.row_count:
                tasks += [
                    steps.CommittedTask(entry.table, fragments, tuple(wanted), self.exchange)
                    for fragments in _groups(self.tables.fragment_rows(entry.table))
                ]
        return [section for found in self.load.executor.run("keys", steps.committed_keys, tasks) for section in found]

    def _wanted(self) -> dict[str, list[Wanted]]:
        wanted: dict[str, list[Wanted]] = defaultdict(list)
        for key, loaded in self.loaded.items():
            for one in self._wanted_of(loaded):
                wanted[key].append(one)
            if isinstance(loaded.declared, EdgeType):
                for end in {loaded.declared.source: None, loaded.declared.target: None}:
                    ids = Wanted(f"id node:{end}", OLD, (ID,))
                    if not (f"node:{end}" in self.loaded and self.overwrites) and ids not in wanted[f"node:{end}"]:
                        wanted[f"node:{end}"].append(ids)
            elif self.overwrites:
                for edge in self.txn.catalog.incident_edges(loaded.declared.name):
                    if table_key(edge) not in self.loaded:
                        wanted[table_key(edge)] += [
                            Wanted(steps.id_space(loaded.declared), steps.reference(edge, column, "kept"), (column,))
                            for column, end in ((SRC, edge.source), (DST, edge.target))
                            if end == loaded.declared.name
                        ]
        return {key: ones for key, ones in wanted.items() if ones}

    def _wanted_of(self, loaded: Loaded) -> Iterator[Wanted]:
        """The committed keys of a table's own rows; an overwrite takes those away."""
        declared = loaded.declared
        if isinstance(declared, EdgeType) and steps.is_bounded(declared.cardinality):
            yield Wanted(steps.source_space(declared), LOST if self.overwrites else OLD, (SRC,))
        if self.overwrites:
            return
        if not loaded.fresh:
            yield Wanted(steps.id_space(declared), OLD, (ID,))
        for columns in declared.unique:
            yield Wanted(steps.unique_space(declared, columns), OLD, tuple(columns))

    # Rows

    def _rows(self, key: str, at: U64, columns: Sequence[str]) -> pa.Table:
        """Read staged rows by their places, each with its record."""
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

    def _positions(self, key: str, at: U64) -> np.ndarray[Any, Any]:
        """The numbers of rows by their places, counted through all that was staged for a table."""
        sizes = [result.tables[key].rows if key in result.tables else 0 for result in self.load.results]
        before = np.concatenate([[0], np.cumsum(sizes)])
        positions: np.ndarray[Any, Any] = before[task_of(at)] + row_of(at)
        return positions

    def _records(self, key: str, at: U64) -> list[int]:
        """The records of rows by their places: the number of the task, and of the line in its piece of the input."""
        found: list[int] = []
        for task in np.unique(task_of(at)).tolist():
            part = self.load.results[task].tables[key]
            file, start = part.records
            data = self.exchange.objects.read_range(file, start, part.rows * _RECORD_BYTES)
            records = np.frombuffer(data, np.int64)[row_of(at[task_of(at) == task])]
            found += [(task << TASK_BITS) | record for record in records.tolist()]
        return found

    # Staging

    def _appended(self, key: str) -> lance.LanceDataset:
        """The table as it would be if all that was written were appended."""
        if key not in self._appends:
            base = self.txn.writable_table(self.tables, key)
            self._appends[key] = self._opened(self.tables.stage_written(base, self.loaded[key].written, _NONE))
        return self._appends[key]

    def _opened(self, staged: Staged) -> lance.LanceDataset:
        opened = self.tables.read_staged(staged)
        self.load.made_to_look += self.tables.files_of_staged(staged, opened)
        return opened

    def _staged(self, key: str) -> Staged:
        base = self.txn.writable_table(self.tables, key)
        written = self.loaded[key].written
        if len(self.superseded[key]):
            positions = self._positions(key, np.sort(self.superseded[key]))
            written = self.tables.without_rows(self._appended(key), written, positions)
        if self.overwrites:
            return self.tables.stage_overwrite_written(base, written)
        return self.tables.stage_written(base, written, np.sort(self.replaced[key]))


def _joined(parts: Any) -> U64:
    found = list(parts)
    return np.concatenate(found) if found else _NONE


def _groups(fragments: dict[int, int]) -> Iterator[tuple[int, ...]]:
    """Cut the fragments of a table into groups of about a million rows."""
    group: list[int] = []
    rows = 0
    for fragment, count in fragments.items():
        group.append(fragment)
        rows += count
        if rows >= _ROWS_PER_TASK:
            yield tuple(group)
            group, rows = [], 0
    if group:
        yield tuple(group)


def _no_rows(names: Sequence[str]) -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in names})
