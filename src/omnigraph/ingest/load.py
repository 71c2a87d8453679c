"""Load data in one commit or not at all: in memory if it is small, else by an executor."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import IO, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from omnigraph.api.options import Dedupe, Engine, LoadMode
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import STREAM, LoadResult, StreamBatch
from omnigraph.commit.checks import check_batch
from omnigraph.commit.plan import PublishPlan, WriterKind, WriteTxn
from omnigraph.commit.publish import write
from omnigraph.commit.store import Store
from omnigraph.core.executor import Executor, ParcelsLostError
from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN, branch_of
from omnigraph.errors import (
    InputError,
    InputTypeError,
    OmnigraphError,
    OutcomeUnknownError,
    RefExistsError,
    SparkError,
)
from omnigraph.formats.batch import ConvertedBatch, joined
from omnigraph.formats.cuts import QuoteScan, scan_quotes
from omnigraph.formats.files import Split
from omnigraph.formats.sources import convert_split, declared_named, divided, packed, split_batches
from omnigraph.history.branches import create_branch, delete_branch
from omnigraph.ingest.distributed import DistributedLoad, FrameInput, KeyComparison, LoadInput
from omnigraph.ingest.executor import StartSpark, executor_for
from omnigraph.ingest.problems import (
    TASK_BITS,
    ProblemLog,
    RecordLocations,
    in_input_order,
    log_staged,
    numbered_across_input,
    rejects_file,
)
from omnigraph.ingest.steps import StageOptions
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.source import did_you_mean
from omnigraph.manifest.publisher import Lineage, Published
from omnigraph.storage import reclaim
from omnigraph.storage.columns import declared_of, table_key
from omnigraph.storage.objects import ObjectStore
from omnigraph.write.load import Batch, SmallLoad, doubles
from omnigraph.write.pending import RECORD, newest

MOST_RECORDS = 8192
_ABANDONED = dt.timedelta(days=1)
MOST_BYTES = 32 * 1024 * 1024
_ATTEMPTS = 3
_ROWS_PER_GROUP = 65_536
_BLOCK = 8 * 2**20  # bytes of records that are held before they are written
_ENDS = (("from", "from"), ("to", "to"), ("from", "src"), ("to", "dst"))
_FEWEST_SHARES = 4


@dataclass(frozen=True, slots=True)
class LoadSpec:
    splits: Sequence[Split]
    mode: LoadMode
    branch: str | None = None
    actor: str | None = None
    engine: Engine = Engine.AUTO
    dry_run: bool = False
    progress: Progress = SILENT
    spark: StartSpark | None = None
    base: str | None = None
    operation_id: str | None = None
    frames: Sequence[FrameInput] = ()
    rejects: str | os.PathLike[str] | None = None
    max_bad: int | None = None
    dedupe: Dedupe | None = None
    message: str | None = None
    batch: StreamBatch | None = None  # of a stream: it is made once, also if it has no rows
    rejects_file: IO[bytes] | None = None  # while the load runs

    @property
    def options(self) -> StageOptions:
        leave_out = self.max_bad is not None
        keep_all = leave_out or self.rejects is not None
        return StageOptions(keep_all, leave_out, self.dedupe is Dedupe.ENDS, self.distinct)

    @property
    def distinct(self) -> frozenset[str]:
        """The tables of which a mapping says that the input may have an identity several times."""
        splits = [part for split in self.splits for part in split.parts or (split,)]
        return frozenset(
            {one.type_key for one in splits if one.distinct and one.type_key}
            | {one.type_key for one in self.frames if one.distinct}
        )

    def log(self, places: RecordLocations) -> ProblemLog:
        """Begin to log problems: those of an earlier attempt are forgotten."""
        if self.rejects_file is not None:
            self.rejects_file.seek(0)
            self.rejects_file.truncate()
        return ProblemLog(places, self.rejects_file, self.max_bad)


def load(store: Store, request: LoadSpec) -> LoadResult:
    """Load data in one commit, or raise an error that counts every problem and lists the first.

    A branch that does not exist is created from the base first, if one is given, and deleted if the load fails.
    """
    with rejects_file(request.rejects) as file:
        return _load_onto(store, replace(request, splits=packed(request.splits), rejects_file=file))


def _load_onto(store: Store, request: LoadSpec) -> LoadResult:
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
        raise  # the commit may be there: deleting the branch could delete the data
    except BaseException:
        assert begins.head, "a branch has commits"
        with suppress(OmnigraphError):  # report why the load failed; another writer may be using the branch
            delete_branch(store, branch, begins.head.commit_id)
        raise
    return replace(done, base_branch=base, branch_created=True)


def _load(store: Store, request: LoadSpec) -> LoadResult:
    # Before anything is read: a retry is the same commit, with the same id and operation.
    details = {STREAM: request.batch.to_document()} if request.batch else None
    lineage = Lineage.new(request.actor, details=details, operation_id=request.operation_id, message=request.message)
    if (
        request.engine is not Engine.SPARK
        and not request.frames
        and sum(split.size for split in request.splits) <= MOST_BYTES
    ):
        if request.max_bad is not None or request.dedupe is not None or request.distinct:
            # By the plan of large loads, which leaves records out and compares ends, and in this process.
            return _load_by_executor(store, replace(request, engine=Engine.LOCAL), lineage)
        contract = store.schema_of(store.manifest.load(request.branch))
        assert contract, "the graph was opened"
        request.progress.phase("read", len(request.splits))
        converted = _convert(request.splits, contract.catalog, MOST_RECORDS)
        if converted is not None:
            return _load_in_memory(store, request, lineage, contract.catalog, converted)
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


def _load_in_memory(
    store: Store, request: LoadSpec, lineage: Lineage, catalog: Catalog, converted: Sequence[ConvertedBatch]
) -> LoadResult:
    def prepare(txn: WriteTxn) -> tuple[PublishPlan | None, LoadResult]:
        nonlocal catalog, converted
        _check_batch(txn, request)
        if txn.catalog != catalog:  # the schema changed after the input was converted
            catalog = txn.catalog
            converted = [convert_split(split, catalog) for split in request.splits]
        batches = _batches(catalog, converted)
        load = SmallLoad(store.tables, txn, request.mode)
        log = request.log(RecordLocations(request.splits, [part.lines for part in converted]))
        found = [numbered_across_input(one, task) for task, part in enumerate(converted) for one in part.problems]
        log.add(sorted([*found, *load.problems(batches)], key=in_input_order))
        log.raise_any()
        result = _result(request, {key: newest(batch.rows).num_rows for key, batch in batches.items()})
        if request.mode is LoadMode.MERGE:
            result = replace(result, may_double=_named(_doubled(txn, batches)))
        if request.dry_run or not batches:
            return _without_rows(txn, request, lineage), result
        return load.plan(batches, lineage), result

    return _committed(*write(store, request.branch, prepare))


def _check_batch(txn: WriteTxn, request: LoadSpec) -> None:
    """Raise if the load is a batch that was committed before: its keys are there, which would be another error."""
    if request.batch:
        check_batch(request.batch, txn.base.stream(request.batch.stream), txn.branch or MAIN)


def _without_rows(txn: WriteTxn, request: LoadSpec, lineage: Lineage) -> PublishPlan | None:
    """Return what a load without rows changes: how far its stream is, if it is a batch of one."""
    is_batch = request.batch is not None and not request.dry_run
    return PublishPlan(txn, WriterKind.LOAD, (), lineage=lineage) if is_batch else None


def _doubled(txn: WriteTxn, batches: Mapping[str, Batch]) -> dict[str, int]:
    """Return how many edges have no ids, by table, where there are edges already."""
    found = {key: one for key, one in batches.items() if one.fresh and doubles(one.declared)}
    return {key: one.rows.num_rows for key, one in found.items() if one.rows.num_rows and txn.entries[key].row_count}


def _batches(catalog: Catalog, converted: Sequence[ConvertedBatch]) -> dict[str, Batch]:
    """Join the rows of all splits, their records numbered across the whole input."""
    found = {}
    for key in sorted({key for part in converted for key in part.tables}):
        parts = [(task, part) for task, part in enumerate(converted) if key in part.tables]
        rows = pa.concat_tables([_numbered(part.tables[key], task) for task, part in parts])
        found[key] = Batch(declared_of(catalog, key), rows, fresh=all(key in part.fresh for _, part in parts))
    return found


def _numbered(rows: pa.Table, task: int) -> pa.Table:
    at = rows.schema.get_field_index(RECORD)
    return rows.set_column(at, RECORD, pa.array(rows[RECORD].to_numpy() | (task << TASK_BITS), pa.int64()))


def _load_by_executor(store: Store, request: LoadSpec, lineage: Lineage) -> LoadResult:
    _reclaim_abandoned(store)
    executor = executor_for(request.engine, request.spark, request.progress)
    request = replace(request, splits=_divided(request.splits, executor))
    for attempt in range(_ATTEMPTS):
        # All over again: other files, and other keys for them.
        data = LoadInput(request.splits, request.frames)
        big = DistributedLoad(store, executor, data, request.mode, _FEWEST_SHARES, options=request.options)
        try:
            return publish_staged(store, request, lineage, big)
        except ParcelsLostError as error:
            if attempt == _ATTEMPTS - 1:
                message = f"Spark lost the keys of the load {_ATTEMPTS} times, nothing was changed: {error}"
                raise SparkError(message, hint="look for executors that die, and load again", detail="") from error
        finally:
            big.delete_exchange()
            request.progress.finish()
    raise AssertionError("unreachable")


def _divided(splits: Sequence[Split], executor: Executor) -> list[Split]:
    """Have tasks divide large CSV files: the driver would have to read them before any task starts."""

    def scan(ranges: Sequence[Split]) -> Sequence[QuoteScan]:
        return executor.run("divide", scan_quotes, ranges) if ranges else ()

    return divided(splits, scan)


def _reclaim_abandoned(store: Store) -> None:
    """Remove the files of loads that died, on any machine."""
    # By age, because a process on another machine cannot be asked whether it is alive. A load that takes longer fails
    # when it misses its files; it cannot publish half of its data.
    reclaim.remove(store.objects, reclaim.orphans(store.objects, "__tmp", dt.datetime.now(dt.UTC) - _ABANDONED))


def publish_staged(store: Store, request: LoadSpec, lineage: Lineage, big: DistributedLoad) -> LoadResult:
    """Stage the input, compare its keys, and publish it in one commit."""

    def prepare(txn: WriteTxn) -> tuple[PublishPlan | None, LoadResult]:
        _check_batch(txn, request)
        if not big.can_commit_on(txn):
            big.stage(txn)
        comparison = KeyComparison(big, txn)
        log = request.log(RecordLocations(big.sources, [result.lines for result in big.results]))
        # All problems of an input at once, so that a file of a million lines needs one round of corrections.
        with closing(comparison):
            keep_all = request.options.keep_all
            log_staged(log, [result.problems for result in big.results], store.objects, keep_all=keep_all)
            (comparison.log_problems if request.max_bad is None else comparison.leave_out_bad)(log)
        log.raise_any()
        result = _result(request, {key: count for key, count in comparison.counts.items() if key in comparison.changed})
        result = replace(result, rejected=len(log.bad), counts=log.by_rule, violations=log.first)
        result = replace(result, may_double=_named(comparison.may_double))
        if request.dry_run or not comparison.changed:
            return _without_rows(txn, request, lineage), result
        request.progress.phase("publish", 1)
        return comparison.plan(lineage), result

    return _committed(*write(store, request.branch, prepare))


def _result(request: LoadSpec, counts: Mapping[str, int]) -> LoadResult:
    nodes, edges = (
        _named({key: count for key, count in counts.items() if key.startswith(kind)}) for kind in ("node", "edge")
    )
    return LoadResult(request.branch or MAIN, request.mode, nodes, edges, request.actor, None)


def _named(counts: Mapping[str, int]) -> dict[str, int]:
    return {key.partition(":")[2]: count for key, count in sorted(counts.items())}


def _committed(published: Published | None, result: LoadResult) -> LoadResult:
    return replace(result, commit=published.commit if published else None)


# Data of a program ---------------------------------------------------------------------------------


@contextmanager
def as_files(data: Any, location: Location, catalog: Catalog) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    """Yield the addresses of files with the data, and a mapping for temporary ones, which are deleted afterwards.

    Temporary files are below the root of the graph, where every executor can read them.
    """
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "toArrow"):
        # A DataFrame iterates over the names of its columns, which would be read as paths.
        message = f"cannot tell which type the rows of a {type(data).__name__} have"
        raise InputTypeError(message, path="<data>", hint='pass a mapping from types to tables: {"Person": table}')
    if not isinstance(data, Mapping) and not _is_records(data):
        yield data, None
        return
    objects = ObjectStore(location)
    directory = f"__tmp/input-{secrets.token_hex(8)}"
    try:
        if isinstance(data, Mapping):
            mapping = {"files": dict(_write_tables(data, objects, directory, catalog))}
        else:
            # An open file holds JSON lines already.
            blocks = _blocks_of_file(data) if hasattr(data, "read") else _blocks(map(_line, data))
            _write(objects, f"{directory}/records.jsonl", blocks)
            mapping = {"files": {}}
        yield ([location.child(directory)] if data else []), mapping
    finally:
        objects.discard_below(directory)


def _is_records(data: Any) -> bool:
    """Return whether data is an iterable of records, and not of addresses."""
    is_other = any(hasattr(data, name) for name in ("__fspath__", "__arrow_c_stream__", "toArrow"))
    if isinstance(data, str) or is_other or not isinstance(data, Iterable):
        return False
    return not isinstance(data, list | tuple) or not data or isinstance(data[0], Mapping)


def _line(record: Any) -> bytes:
    try:
        return _JSON.encode(record).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        message = f"a record cannot be written as JSON: {error}"
        hint = "pass texts, numbers, booleans, dates, lists and dicts; the content of a Blob as `base64:...`"
        raise InputError(message, path="<data>", hint=hint) from None


def _plain(value: object) -> object:
    """Return a value that JSON has no form for in one that a load takes."""
    if isinstance(value, dt.date | Decimal | UUID):  # a datetime is a date, too
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    # Not `str` for the rest: b"x" would be stored as the text "b'x'", and an object as its address.
    raise TypeError(f"{value!r:.80} is of the Python type {type(value).__name__}")


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=_plain)


def _blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Put lines together: to write each on its own would cost more than to make it."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _BLOCK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _blocks_of_file(file: Any) -> Iterator[bytes]:
    # A file that was opened as text returns texts, which the store would take for the path of another file.
    try:
        while block := file.read(_BLOCK):
            yield block.encode() if isinstance(block, str) else bytes(block)
    except UnicodeError as error:
        raise InputError(f"the file is not UTF-8: {error}", path="<data>", hint="open it as bytes") from None


def _write(objects: ObjectStore, name: str, blocks: Iterator[bytes]) -> None:
    """Write a file in bounded memory: a generator may yield more records than fit; a small file is one request."""
    first, second = next(blocks, b""), next(blocks, None)
    if second is None:
        objects.write(name, first)
    else:
        objects.write_chunks(name, chain((first, second), blocks))


def _write_tables(
    tables: Mapping[str, Any], objects: ObjectStore, directory: str, catalog: Catalog
) -> Iterator[tuple[str, dict[str, str]]]:
    for at, (name, rows) in enumerate(tables.items()):
        declared = type_named(name, catalog)
        if _is_records(rows):  # as JSONL, so that each bad record is reported by its number
            envelope = partial(_enveloped, declared)
            _write(objects, f"{directory}/{at}/{declared.name}.jsonl", _blocks(map(_line, map(envelope, rows))))
            continue
        file = f"{at}/{declared.name}.parquet"
        objects.write(f"{directory}/{file}", _parquet(rows))
        yield file, {"type": table_key(declared)}


def type_named(name: str, catalog: Catalog) -> NodeType | EdgeType:
    """Return the type that the data of a program is for."""
    declared = declared_named(name, catalog)
    if declared is None:
        hint = did_you_mean(name, [*catalog.nodes, *catalog.edges])
        raise InputTypeError(f"unknown type '{name}'", path=name, hint=hint)
    return declared


def without_frames(data: Any) -> tuple[Any, dict[str, Any]]:
    """Divide data by type into Spark DataFrames, which stay where they are, and everything else."""
    if not isinstance(data, Mapping):
        return data, {}
    frames = {name: rows for name, rows in data.items() if hasattr(rows, "toArrow")}
    return ({name: rows for name, rows in data.items() if name not in frames} if frames else data), frames


def _enveloped(declared: NodeType | EdgeType, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of one type as a record of JSONL."""
    if isinstance(declared, NodeType):
        return {"type": declared.name, "data": row}
    ends = {name: row[alias] for name, alias in _ENDS if alias in row}
    data = {name: value for name, value in row.items() if name not in {alias for _, alias in _ENDS}}
    return {"edge": declared.name, **ends, "data": data}


def _parquet(rows: Any) -> bytes:
    """Write anything that Arrow takes for a table."""
    buffer = io.BytesIO()
    pq.write_table(pa.table(rows), buffer, row_group_size=_ROWS_PER_GROUP)
    return buffer.getvalue()
