"""Loading data: where it comes from, how large it is and who does the work; then one commit, or nothing."""

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
from omnigraph.formats.batch import ConvertedBatch
from omnigraph.formats.sources import convert_split
from omnigraph.formats.splits import Split
from omnigraph.history.branches import create_branch, delete_branch
from omnigraph.ingest.distributed import TASK_BITS, BigLoad, Comparison, placed
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
class LoadRequest:
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


def load(store: Store, request: LoadRequest) -> LoadResult:
    """Load data: all of it becomes visible in one commit, or, with every problem named, none of it does.

    If the branch is not there and a base is named, the branch is made of it first, and goes again if nothing is loaded.
    """
    base, branch, refs = request.base, request.branch, store.manifest.table
    if base is None or branch is None or refs.has_branch(branch):
        return replace(_load(store, request), base_branch=base)
    if request.dry_run:
        # A dry run checks against a branch as it is now, so its base cannot be a state of the past.
        checked = _load(store, replace(request, branch=branch_of(base)))
        return replace(checked, branch=branch, base_branch=base)
    return _load_forked(store, request, branch, base)


def _load_forked(store: Store, request: LoadRequest, branch: str, base: str) -> LoadResult:
    try:
        begins = create_branch(store, branch, base)
    except RefExistsError:
        if not store.manifest.table.has_branch(branch):
            raise
        # Somebody else has just made it.
        return replace(_load(store, request), base_branch=base)
    try:
        done = _load(store, request)
    except OutcomeUnknownError:
        raise
    except BaseException:
        assert begins.head, "a branch has commits"
        with suppress(OmnigraphError):  # why nothing was loaded is what to tell; somebody may be using the branch
            delete_branch(store, branch, begins.head.commit_id)
        raise
    return replace(done, base_branch=base, branch_created=True)


def _load(store: Store, request: LoadRequest) -> LoadResult:
    lineage = Lineage.new(request.actor, operation_id=request.operation_id)
    if request.engine is not Engine.SPARK and sum(split.size for split in request.splits) <= MOST_BYTES:
        small = _Small(store, request, lineage)
        if small.records <= MOST_RECORDS:
            return small.run()
    return _big(store, request, lineage)


class _Small:
    """A load in this process, in memory."""

    def __init__(self, store: Store, request: LoadRequest, lineage: Lineage) -> None:
        self.store = store
        self.request = request
        self.lineage = lineage
        contract = store.schema_of(store.manifest.load())
        assert contract, "the graph was opened"
        self._convert(contract.catalog)

    def _convert(self, catalog: Catalog) -> None:
        self.request.progress.phase("read", len(self.request.splits))
        self.catalog = catalog
        self.converted = [convert_split(split, catalog) for split in self.request.splits]
        self.batches = _batches(catalog, self.converted)

    @property
    def records(self) -> int:
        return sum(part.lines for part in self.converted)

    def run(self) -> LoadResult:
        published, counts = write(self.store, self.request.branch, self._prepare)
        return _result(self.request, counts, published)

    def _prepare(self, txn: WriteTxn) -> tuple[PublishPlan | None, dict[str, int]]:
        if txn.catalog != self.catalog:  # the schema was changed since the input was converted
            self._convert(txn.catalog)
        load = SmallLoad(self.store.tables, txn, self.request.mode)
        problems = [placed(problem, task) for task, part in enumerate(self.converted) for problem in part.problems]
        problems += load.problems(self.batches)
        refuse(problems, Places(self.request.splits, [part.lines for part in self.converted]))
        counts = {key: batch.rows.num_rows for key, batch in self.batches.items()}
        if self.request.dry_run or not self.batches:
            return None, counts
        return load.plan(self.batches, self.lineage), counts


def _batches(catalog: Catalog, converted: Sequence[ConvertedBatch]) -> dict[str, Batch]:
    found = {}
    for key in sorted({key for part in converted for key in part.tables}):
        parts = [(task, part) for task, part in enumerate(converted) if key in part.tables]
        rows = pa.concat_tables([_numbered(part, key, task) for task, part in parts])
        fresh = all(key in part.fresh for _, part in parts)
        found[key] = Batch(declared_of(catalog, key), rows, fresh)
    return found


def _big(store: Store, request: LoadRequest, lineage: Lineage) -> LoadResult:
    _reclaim_abandoned(store)
    executor = _executor(request)
    for attempt in range(_SEEDS):
        big = BigLoad(store, executor, request.splits, request.mode, _shares(request.splits))
        try:
            result = _run_big(store, request, lineage, big)
        except (CollisionError, LoadRejectedError) as error:
            big.take_back()
            if attempt == _SEEDS - 1 or isinstance(error, LoadRejectedError):
                raise
        else:
            if request.dry_run:
                big.take_back()
            return result
        finally:
            big.discard()
            request.progress.finish()
    raise AssertionError("unreachable")


def _reclaim_abandoned(store: Store) -> None:
    """Remove what loads left behind that died, of whatever machine.

    Nobody can ask whether a load elsewhere is alive, so their age tells. Should one take longer than that, it fails for
    want of its files; it can neither load half of its data nor harm anything.
    """
    reclaim.remove(store.objects, reclaim.orphans(store.objects, "__tmp", dt.datetime.now(dt.UTC) - _ABANDONED))


def _shares(splits: Sequence[Split]) -> int:
    """Into how many shares the keys are cut, so that a task can hold one."""
    return min(_MOST_SHARES, max(_FEWEST_SHARES, sum(split.size for split in splits) // _BYTES_PER_SHARE))


def _executor(request: LoadRequest) -> Executor:
    if request.engine is Engine.LOCAL or request.spark is None:
        return LocalExecutor(request.progress)
    return request.spark(request.progress)


def _run_big(store: Store, request: LoadRequest, lineage: Lineage, big: BigLoad) -> LoadResult:
    def prepare(txn: WriteTxn) -> tuple[PublishPlan | None, dict[str, int]]:
        if not big.suits(txn):
            big.take_back()
            big.stage(txn)
        comparison = Comparison(big, txn)
        counts = {key: loaded.rows for key, loaded in comparison.loaded.items()}
        problems = [*big.value_problems(), *comparison.problems()]
        refuse(problems, Places(request.splits, [result.lines for result in big.results]))
        if request.dry_run or not comparison.loaded:
            return None, counts
        request.progress.phase("publish", 1)
        return comparison.plan(lineage), counts

    published, counts = write(store, request.branch, prepare)
    return _result(request, counts, published)


class Places:
    """Where records are: in which file, and in which line of it."""

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


def refuse(problems: Iterable[Violation], places: Places) -> None:
    """Raise if there are problems: all of them, in the order of the input."""
    found = sorted(problems, key=lambda problem: (problem.record is None, problem.record or 0, problem.message))
    if not found:
        return
    located = tuple(places.located(problem) for problem in found)
    count = f"{len(found):,} problems" if len(found) > 1 else "1 problem"
    message = f"the load was refused, nothing was changed: {count}"
    hint = located[0].hint or "mend the records and load again"
    if all(problem.rule == "key" for problem in found):
        raise KeyConflictError(message, violations=located, hint=hint)
    raise LoadRejectedError(message, violations=located, hint=hint)


def _numbered(part: ConvertedBatch, key: str, task: int) -> pa.Table:
    """Number the records of a part through the whole input."""
    rows = part.tables[key]
    at = rows.schema.get_field_index(RECORD)
    return rows.set_column(at, RECORD, pa.array(rows[RECORD].to_numpy() | (task << TASK_BITS), pa.int64()))


def _result(request: LoadRequest, counts: dict[str, int], published: Published | None) -> LoadResult:
    kinds = {
        kind: {key.partition(":")[2]: count for key, count in sorted(counts.items()) if key.startswith(kind)}
        for kind in ("node", "edge")
    }
    commit = published.commit if published else None
    return LoadResult(request.branch or MAIN, request.mode, kinds["node"], kinds["edge"], request.actor, commit)
