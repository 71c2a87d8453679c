"""Load data in one commit or not at all: in memory if it is small, else by an executor."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from omnigraph.api.options import Engine, LoadMode
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import LoadResult
from omnigraph.commit.plan import PublishPlan, WriteTxn
from omnigraph.commit.publish import write
from omnigraph.commit.store import Store
from omnigraph.core.executor import Executor
from omnigraph.core.refs import MAIN, branch_of
from omnigraph.errors import (
    KeyConflictError,
    LoadRejectedError,
    OmnigraphError,
    OutcomeUnknownError,
    RefExistsError,
    Violation,
)
from omnigraph.formats.batch import ConvertedBatch, joined
from omnigraph.formats.files import Split
from omnigraph.formats.sources import convert_split, split_batches
from omnigraph.history.branches import create_branch, delete_branch
from omnigraph.ingest.distributed import TASK_BITS, DistributedLoad, KeyComparison, numbered_across_input
from omnigraph.ingest.executor import LocalExecutor
from omnigraph.ingest.inputs import named
from omnigraph.ingest.keys import CollisionError
from omnigraph.lang.catalog import Catalog
from omnigraph.manifest.publisher import Lineage, Published
from omnigraph.storage import reclaim
from omnigraph.storage.columns import declared_of
from omnigraph.write.load import Batch, SmallLoad
from omnigraph.write.pending import RECORD

MOST_RECORDS = 8192
_ABANDONED = dt.timedelta(days=1)
MOST_BYTES = 32 * 1024 * 1024
_SEEDS = 3
_FEWEST_SHARES, _MOST_SHARES, _BYTES_PER_SHARE = 4, 64, 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LoadSpec:
    splits: Sequence[Split]
    mode: LoadMode
    branch: str | None = None
    actor: str | None = None
    engine: Engine = Engine.AUTO
    dry_run: bool = False
    progress: Progress = SILENT
    spark: Callable[[Progress], Executor] | None = None
    base: str | None = None
    operation_id: str | None = None


def load(store: Store, request: LoadSpec) -> LoadResult:
    """Load data in one commit, or raise an error that lists every problem.

    A branch that does not exist is created from the base first, if one is given, and deleted if the load fails.
    """
    base, branch, refs = request.base, request.branch, store.manifest.table
    if base is None or branch is None or refs.has_branch(branch):
        return replace(_load(store, request), base_branch=base)
    if request.dry_run:
        # A dry run checks against a branch as it is now, so its base cannot be a state of the past.
        checked = _load(store, replace(request, branch=branch_of(base)))
        return replace(checked, branch=branch, base_branch=base)
    return _load_forked(store, request, branch, base)


def _load_forked(store: Store, request: LoadSpec, branch: str, base: str) -> LoadResult:
    try:
        begins = create_branch(store, branch, base)
    except RefExistsError:
        if not store.manifest.table.has_branch(branch):
            raise
        # Another writer has just created it: load into that one.
        return replace(_load(store, request), base_branch=base)
    try:
        done = _load(store, request)
    except OutcomeUnknownError:
        raise
    except BaseException:
        assert begins.head, "a branch has commits"
        with suppress(OmnigraphError):  # report why the load failed; another writer may be using the branch
            delete_branch(store, branch, begins.head.commit_id)
        raise
    return replace(done, base_branch=base, branch_created=True)


def _load(store: Store, request: LoadSpec) -> LoadResult:
    lineage = Lineage.new(request.actor, operation_id=request.operation_id)
    if request.engine is not Engine.SPARK and sum(split.size for split in request.splits) <= MOST_BYTES:
        contract = store.schema_of(store.manifest.load())
        assert contract, "the graph was opened"
        request.progress.phase("read", len(request.splits))
        converted = _convert(request.splits, contract.catalog, MOST_RECORDS)
        if converted is not None:
            return _LoadInMemory(store, request, lineage, contract.catalog, converted).run()
    return _load_by_executor(store, request, lineage)


def _convert(splits: Sequence[Split], catalog: Catalog, most: int) -> list[ConvertedBatch] | None:
    """Convert every split; return None as soon as there are more than `most` records."""
    # The sizes of the files do not bound the records: 1 MB compressed may hold a million of them.
    found, records = [], 0
    for split in splits:
        batches = []
        for batch in split_batches(split, catalog):
            records += batch.lines
            if records > most:
                return None
            batches.append(batch)
        found.append(joined(batches))
    return found if records <= most else None


class _LoadInMemory:
    """A load in this process, of records that fit its memory."""

    def __init__(
        self,
        store: Store,
        request: LoadSpec,
        lineage: Lineage,
        catalog: Catalog,
        converted: Sequence[ConvertedBatch],
    ) -> None:
        self._store = store
        self._request = request
        self._lineage = lineage
        self._catalog = catalog
        self._converted = converted

    def run(self) -> LoadResult:
        published, counts = write(self._store, self._request.branch, self._prepare)
        return _result(self._request, counts, published)

    def _prepare(self, txn: WriteTxn) -> tuple[PublishPlan | None, dict[str, int]]:
        if txn.catalog != self._catalog:  # the schema changed after the input was converted
            self._catalog = txn.catalog
            self._converted = [convert_split(split, txn.catalog) for split in self._request.splits]
        batches = _batches(self._catalog, self._converted)
        load = SmallLoad(self._store.tables, txn, self._request.mode)
        problems = [
            numbered_across_input(problem, task)
            for task, part in enumerate(self._converted)
            for problem in part.problems
        ]
        problems += load.problems(batches)
        raise_problems(problems, RecordLocations(self._request.splits, [part.lines for part in self._converted]))
        counts = {key: batch.rows.num_rows for key, batch in batches.items()}
        if self._request.dry_run or not batches:
            return None, counts
        return load.plan(batches, self._lineage), counts


def _batches(catalog: Catalog, converted: Sequence[ConvertedBatch]) -> dict[str, Batch]:
    found = {}
    for key in sorted({key for part in converted for key in part.tables}):
        parts = [(task, part) for task, part in enumerate(converted) if key in part.tables]
        rows = pa.concat_tables([_numbered(part, key, task) for task, part in parts])
        fresh = all(key in part.fresh for _, part in parts)
        found[key] = Batch(declared_of(catalog, key), rows, fresh)
    return found


def _load_by_executor(store: Store, request: LoadSpec, lineage: Lineage) -> LoadResult:
    _reclaim_abandoned(store)
    executor = _executor(request)
    for attempt in range(_SEEDS):
        big = DistributedLoad(store, executor, request.splits, request.mode, _shares(request.splits))
        try:
            result = _run_big(store, request, lineage, big)
        except (CollisionError, LoadRejectedError) as error:
            big.delete_staged()
            if attempt == _SEEDS - 1 or isinstance(error, LoadRejectedError):
                raise
        else:
            if request.dry_run:
                big.delete_staged()
            return result
        finally:
            big.delete_exchange()
            request.progress.finish()
    raise AssertionError("unreachable")


def _reclaim_abandoned(store: Store) -> None:
    """Remove the files of loads that died, on any machine."""
    # By age, because a process on another machine cannot be asked whether it is alive. A load that takes longer fails
    # when it misses its files; it cannot publish half of its data.
    reclaim.remove(store.objects, reclaim.orphans(store.objects, "__tmp", dt.datetime.now(dt.UTC) - _ABANDONED))


def _shares(splits: Sequence[Split]) -> int:
    """Return the number of shares to divide the keys into, so that a task can hold one in memory."""
    return min(_MOST_SHARES, max(_FEWEST_SHARES, sum(split.size for split in splits) // _BYTES_PER_SHARE))


def _executor(request: LoadSpec) -> Executor:
    if request.engine is Engine.LOCAL or request.spark is None:
        return LocalExecutor(request.progress)
    return request.spark(request.progress)


def _run_big(store: Store, request: LoadSpec, lineage: Lineage, big: DistributedLoad) -> LoadResult:
    def prepare(txn: WriteTxn) -> tuple[PublishPlan | None, dict[str, int]]:
        if not big.can_commit_on(txn):
            big.delete_staged()
            big.stage(txn)
        comparison = KeyComparison(big, txn)
        counts = {key: loaded.rows for key, loaded in comparison.loaded.items()}
        problems = [*big.value_problems(), *comparison.problems()]
        raise_problems(problems, RecordLocations(request.splits, [result.lines for result in big.results]))
        if request.dry_run or not comparison.loaded:
            return None, counts
        request.progress.phase("publish", 1)
        return comparison.plan(lineage), counts

    published, counts = write(store, request.branch, prepare)
    return _result(request, counts, published)


class RecordLocations:
    """Finds the file and line of a record by its number."""

    def __init__(self, splits: Sequence[Split], lines: Sequence[int]) -> None:
        self._splits = splits
        self._before: list[int] = []
        so_far: dict[str, int] = {}
        for split, count in zip(splits, lines, strict=True):
            self._before.append(so_far.get(split.file, 1 if split.header else 0))
            so_far[split.file] = self._before[-1] + count

    def located(self, problem: Violation) -> Violation:
        if problem.record is None:
            return problem
        task, record = problem.record >> TASK_BITS, problem.record & (2**TASK_BITS - 1)
        return replace(problem, file=named(self._splits[task].file), line=self._before[task] + record + 1)


def raise_problems(problems: Iterable[Violation], places: RecordLocations) -> None:
    """Raise an error with all problems, in the order of the input, if there are any."""
    found = sorted(problems, key=lambda problem: (problem.record is None, problem.record or 0, problem.message))
    if not found:
        return
    located = tuple(places.located(problem) for problem in found)
    count = f"{len(found):,} problems" if len(found) > 1 else "1 problem"
    message = f"the load was refused, nothing was changed: {count}"
    hint = located[0].hint or "fix the records and load again"
    if all(problem.rule == "key" for problem in found):
        raise KeyConflictError(message, violations=located, hint=hint)
    raise LoadRejectedError(message, violations=located, hint=hint)


def _numbered(part: ConvertedBatch, key: str, task: int) -> pa.Table:
    """Number the records of a split across the whole input."""
    rows = part.tables[key]
    at = rows.schema.get_field_index(RECORD)
    return rows.set_column(at, RECORD, pa.array(rows[RECORD].to_numpy() | (task << TASK_BITS), pa.int64()))


def _result(request: LoadSpec, counts: dict[str, int], published: Published | None) -> LoadResult:
    kinds = {
        kind: {key.partition(":")[2]: count for key, count in sorted(counts.items()) if key.startswith(kind)}
        for kind in ("node", "edge")
    }
    commit = published.commit if published else None
    return LoadResult(request.branch or MAIN, request.mode, kinds["node"], kinds["edge"], request.actor, commit)
