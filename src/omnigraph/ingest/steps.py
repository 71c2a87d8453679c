"""The steps of a load that run on executors: plain functions from a small task to a small result."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, groupby
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import TableVersion
from omnigraph.core.executor import Parcel
from omnigraph.core.location import Location
from omnigraph.formats.batch import ConvertedBatch, Numbers
from omnigraph.formats.files import Split
from omnigraph.formats.sources import split_batches
from omnigraph.formats.tables import table_batches
from omnigraph.ingest.executor import objects_at, tables_at
from omnigraph.ingest.keys import (
    U64,
    EdgeEnd,
    HashedKeys,
    KeyKind,
    KeyOrigin,
    KeyParcels,
    KeyRole,
    KeySection,
    KeySpace,
    SortedKeys,
    ends_of,
    places,
    row_of,
    task_of,
    unpacked,
    within_share,
)
from omnigraph.ingest.problems import FIRST, ProblemFile, StagedProblems
from omnigraph.lang.catalog import Cardinality, Catalog, EdgeType, NodeType
from omnigraph.storage.columns import declared_of, table_key
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.read import ADDRESS, DST, ID, OFFSET_BITS, SRC
from omnigraph.storage.stage import MAX_ROWS_PER_FILE, Removed
from omnigraph.storage.unpublished import leave_to_caller, noted, taking_back
from omnigraph.write.pending import RECORD, to_store
from omnigraph.write.validate import are_complete, value_violations, with_required

NEW, OLD, LOST, NAMED = KeyOrigin.NEW, KeyOrigin.OLD, KeyOrigin.LOST, KeyOrigin.NAMED
_PLACE = 8  # bytes
_LIST = ".json"
_ROWS, _BYTES = 2**18, 2**26  # of a table at most, before they are written
_LARGEST_FILE, _BYTES_PER_FILE = 16, 2**33


@dataclass(frozen=True, slots=True)
class StageOptions:
    """What tasks do in a way of their own, for one load.

    `keep_all`: every problem is needed, and not only the first ones. `leave_out`: records with a problem are not
    staged. `by_ends`: edges are compared by their ends, because they have no ids of their own. `distinct` are tables of
    which the input may have an identity several times: the last one counts.
    """

    keep_all: bool = False
    leave_out: bool = False
    by_ends: bool = False
    distinct: frozenset[str] = frozenset()


DEFAULT_OPTIONS = StageOptions()


@dataclass(frozen=True, slots=True)
class KeyExchange:
    """How the tasks of a load exchange keys: the seed of the hash, the fewest shares, the sections by number.

    Its directory has the lists of staged files, and what is too much for a result: problems and excluded rows.
    """

    location: Location
    directory: str
    seed: int
    shares: int
    sections: tuple[KeySection, ...] = ()
    options: StageOptions = DEFAULT_OPTIONS
    rows_per_file: int = MAX_ROWS_PER_FILE

    def number(self, space: KeySpace, role: KeyRole) -> int:
        return _numbers(self.sections)[space, role]

    def list_staged(self, files: Sequence[str]) -> None:
        """List the files that a task has staged, for a load of which another task fails."""
        self.objects.write(f"{self.directory}/{uuid.uuid4().hex}{_LIST}", json.dumps(files).encode())

    def staged(self) -> list[str]:
        """Return the files that tasks have listed."""
        listed = [name for name in self.objects.list(self.directory) if name.endswith(_LIST)]
        return [file for name in listed for file in json.loads(self.objects.read(f"{self.directory}/{name}"))]

    @property
    def objects(self) -> ObjectStore:
        return objects_at(self.location)


@lru_cache(maxsize=4)
def _numbers(sections: tuple[KeySection, ...]) -> dict[tuple[KeySpace, KeyRole], int]:
    return {(section.space, section.role): number for number, section in enumerate(sections)}


def rows_per_file(size: int) -> int:
    """Return how many rows a file gets, by the bytes of the input: a commit writes the list of all files of a table."""
    return MAX_ROWS_PER_FILE * min(_LARGEST_FILE, max(1, size // _BYTES_PER_FILE))


# Staging -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageTask:
    number: int
    split: Split
    catalog: Catalog
    tables: dict[str, TableVersion]
    exchange: KeyExchange


@dataclass(frozen=True, slots=True)
class FrameTask:
    """What all partitions of a DataFrame share: the type of its rows, its name for messages, and its columns.

    `columns` are the names that its columns have in the type, as in a mapping of files, and `when` is the column that a
    row must have a value in.
    """

    type_key: str
    source: str
    schema: pa.Schema
    columns: tuple[tuple[str, str | None], ...]
    when: str
    catalog: Catalog
    tables: dict[str, TableVersion]
    exchange: KeyExchange


@dataclass(frozen=True, slots=True)
class StagedTable:
    """The rows of one table that one task wrote.

    Their record numbers ascend from `first_record` without a gap, or, if that is None, are in a parcel.
    """

    written: tuple[str, ...]
    rows: int
    fresh: bool
    first_record: int | None


@dataclass(frozen=True, slots=True)
class StageResult:
    tables: dict[str, StagedTable]
    problems: StagedProblems
    lines: int
    keys: dict[int, int]  # how many of each section

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables.values())


def stage(task: StageTask) -> tuple[StageResult, list[Parcel]]:
    """Convert a split, check its values, write its rows and extract its keys, batch by batch."""
    return _stage_kept(task, task.number, split_batches(task.split, task.catalog))


def stage_rows(task: FrameTask, number: int, batches: Iterator[pa.RecordBatch]) -> tuple[StageResult, list[Parcel]]:
    """Do the same with the rows of one partition of a DataFrame."""
    return _stage_kept(task, number, _converted_rows(task, batches))


def _converted_rows(task: FrameTask, batches: Iterator[pa.RecordBatch]) -> Iterator[ConvertedBatch]:
    first = next(batches, None)
    # Without rows too: to overwrite a type by nothing empties it.
    reader = (
        pa.RecordBatchReader.from_batches(task.schema, [])
        if first is None
        else pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
    )
    declared, columns = declared_of(task.catalog, task.type_key), dict(task.columns)
    yield from table_batches(reader, declared, columns, source=task.source, when=task.when)


def _stage_kept(
    task: StageTask | FrameTask, number: int, parts: Iterator[ConvertedBatch]
) -> tuple[StageResult, list[Parcel]]:
    """Stage rows. A task that fails deletes its files. One that succeeds lists them, because another one may fail."""
    problems = ProblemFile(keep_all=task.exchange.options.keep_all)
    with closing(problems), taking_back(tables_at(task.exchange.location)):
        done = _stage(task, number, parts, problems)
        task.exchange.list_staged(noted())
        leave_to_caller()
        return done


def _stage(
    task: StageTask | FrameTask, number: int, parts: Iterator[ConvertedBatch], found: ProblemFile
) -> tuple[StageResult, list[Parcel]]:
    keys = KeyParcels()
    tables: dict[str, _Table] = {}
    lines = 0
    for part in parts:
        problems = list(part.problems)
        lines += part.lines
        for key, rows in sorted(part.tables.items()):
            problems += value_violations(declared_of(task.catalog, key), rows)
        found.add(problems)
        bad = {one.record for one in problems} if task.exchange.options.leave_out else set()
        for key, rows in sorted(part.tables.items()):
            table = tables.setdefault(key, _Table(task, number, declared_of(task.catalog, key), keys))
            table.add(_without_records(with_required(table.declared, rows), bad), fresh=key in part.fresh)
    staged = {key: table.staged() for key, table in sorted(tables.items())}
    records = [table.record_parcel() for key, table in tables.items() if staged[key].first_record is None]
    problem_file = found.write(task.exchange.objects, f"{task.exchange.directory}/{uuid.uuid4().hex}")
    result = StageResult(staged, problem_file, lines, keys.counts())
    return result, [*keys.packed(task.exchange.shares), *records]


def _without_records(rows: pa.Table, bad: set[int | None]) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows[RECORD], pa.array(bad, pa.int64())))) if bad else rows


class _Table:
    """The rows that one task stages for one table. They are buffered: few large files take half as long as many."""

    def __init__(
        self, task: StageTask | FrameTask, number: int, declared: NodeType | EdgeType, keys: KeyParcels
    ) -> None:
        self.task = task
        self.number = number
        self.keys = keys
        self.declared = declared
        self.base = task.tables[table_key(declared)]
        self.rows = 0
        self.written: list[str] = []
        self.records: list[Any] = []
        self.fresh = True
        self._buffered: list[pa.Table] = []

    def add(self, rows: pa.Table, *, fresh: bool) -> None:
        self._buffered.append(rows)
        # One batch with ids of the input makes the whole task compare its ids. Batches before it were fresh and need
        # none.
        self.fresh &= fresh
        most = max(_ROWS, self.task.exchange.rows_per_file)
        if sum(len(part) for part in self._buffered) >= most or sum(part.nbytes for part in self._buffered) >= _BYTES:
            self._write()

    def _write(self) -> None:
        """Extract the keys of the buffered rows, and write the rows."""
        rows, self._buffered = pa.concat_tables(self._buffered), []
        at = places(self.number, rows.num_rows) + np.uint64(self.rows)
        for key in _new_keys(self.declared, self.task.exchange.options, fresh=self.fresh):
            number = self.task.exchange.number(key.space, key.role)
            add = self.keys.add_names if key.role == NAMED else self.keys.add
            add(number, _complete_keys(rows, key.columns, at, self.task.exchange.seed))
        self.rows += rows.num_rows
        self.records.append(rows[RECORD].to_numpy())
        if rows.num_rows:
            store = tables_at(self.task.exchange.location)
            self.written += store.write_rows(self.base, to_store(self.declared, rows), self.task.exchange.rows_per_file)

    def staged(self) -> StagedTable:
        if self._buffered:
            self._write()
        records = np.concatenate(self.records)
        without_gap = len(records) > 0 and records[-1] - records[0] == len(records) - 1
        first = int(records[0]) if without_gap else None
        return StagedTable(tuple(self.written), self.rows, self.fresh, first)

    def record_parcel(self) -> Parcel:
        number = self.task.exchange.number(KeySpace(KeyKind.RECORD, table_key(self.declared)), NEW)
        return Parcel(number, 0, np.concatenate(self.records).astype(np.int64).tobytes())


@dataclass(frozen=True, slots=True)
class KeyExtract:
    """Keys to extract from some columns, for a space and in a role."""

    space: KeySpace
    role: KeyRole
    columns: tuple[str, ...]


def _new_keys(declared: NodeType | EdgeType, options: StageOptions, *, fresh: bool) -> Iterator[KeyExtract]:
    """Yield the keys of new rows. Fresh ids are left out: none of them can exist already."""
    key = table_key(declared)
    if not fresh:
        yield KeyExtract(KeySpace(KeyKind.ID, key), NEW, (ID,))
    for columns in declared.unique:
        yield KeyExtract(KeySpace(KeyKind.UNIQUE, key, columns), NEW, columns)
    if isinstance(declared, EdgeType):
        if options.by_ends or (fresh and key in options.distinct):
            yield KeyExtract(ends_of(key), NEW, (SRC, DST))
        for column, end in ((SRC, declared.source), (DST, declared.target)):
            yield KeyExtract(KeySpace(KeyKind.ID, f"node:{end}"), NAMED, (column,))
        if is_bounded(declared.cardinality):
            yield KeyExtract(KeySpace(KeyKind.SOURCE, key), NEW, (SRC,))


def is_bounded(bounds: Cardinality) -> bool:
    return bool(bounds.lower) or bounds.upper is not None


def _complete_keys(rows: pa.Table, columns: Sequence[str], at: U64, seed: int) -> HashedKeys:
    """Hash the rows that have a value in every column: a null is equal to nothing."""
    complete = are_complete(rows, columns)
    if pc.all(complete, min_count=0).as_py():
        return HashedKeys.of([rows[name] for name in columns], at, seed)
    kept = rows.filter(complete)
    return HashedKeys.of([kept[name] for name in columns], at[complete.to_numpy(zero_copy_only=False)], seed)


# Committed keys ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommittedTask:
    """Some fragments of a committed table; or, with `ids`, those of its rows that have one of them.

    The ids are all different. `replaces`: it matters which rows have them, and not only whether there are any.
    Or, if `staged` is the number of a task, the fragments that this task has staged.
    """

    table: TableVersion
    fragments: tuple[int, ...]
    wanted: tuple[KeyExtract, ...]
    exchange: KeyExchange
    ids: pa.Array | None = None
    replaces: bool = True
    staged: int | None = None

    def rows(self) -> pa.Table:
        columns = sorted({name for one in self.wanted for name in one.columns})
        tables = tables_at(self.exchange.location)
        if self.ids is None:
            return tables.scan_fragments(self.table, self.fragments, columns)
        if not self.replaces and tables.count(self.table, ID, self.ids) == len(self.ids):
            # All of them exist, which is usual. Their rows are spread over the whole table, and need not be read.
            return pa.table({ID: self.ids, ADDRESS: np.zeros(len(self.ids), np.uint64)})
        return tables.lookup(self.table, ID, self.ids, columns, addresses=True).sort_by(ADDRESS)


def committed_keys(task: CommittedTask) -> tuple[dict[int, int], list[Parcel]]:
    """Extract the keys of some rows of a committed table."""
    rows = task.rows()
    at = rows[ADDRESS].to_numpy() if task.staged is None else places(task.staged, rows.num_rows)
    keys = KeyParcels()
    for key in task.wanted:
        number = task.exchange.number(key.space, key.role)
        keys.add(number, _complete_keys(rows, key.columns, at, task.exchange.seed))
    return keys.counts(), keys.packed(task.exchange.shares)


# Comparing keys -----------------------------------------------------------------------------------


_WORD = 8  # bytes
_CHUNK = 2**16  # rows
_NONE: U64 = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows that a comparison found: how many, the first of them, and the file with all, if these are not all.

    A row is its place, and behind it what was counted there. They are sorted by place.
    """

    count: int
    first: U64
    file: str = ""

    @classmethod
    def of(cls, columns: Sequence[U64], exchange: KeyExchange, *, keep_all: bool) -> Self:
        rows = np.stack(columns, axis=1)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        if len(rows) <= FIRST or not keep_all:
            return cls(len(rows), rows[:FIRST])
        name = f"{exchange.directory}/{uuid.uuid4().hex}"
        exchange.objects.write(name, rows.tobytes())
        return cls(len(rows), rows[:0], name)

    def chunks(self, objects: ObjectStore) -> Iterator[U64]:
        """Yield all rows, some at a time."""
        if not self.file:
            yield self.first
            return
        size = self.first.shape[1] * _WORD
        for start in range(0, self.count, _CHUNK):
            data = objects.read_range(self.file, start * size, min(_CHUNK, self.count - start) * size)
            yield np.frombuffer(data, np.uint64).reshape(-1, self.first.shape[1])


def first_rows(parts: Sequence[FoundRows]) -> U64:
    """Return the first rows of all shares."""
    rows = np.concatenate([part.first for part in parts])
    return rows[np.argsort(rows[:, 0], kind="stable")][:FIRST]


@dataclass(frozen=True, slots=True)
class Excluded:
    """Rows to ignore: input rows that later ones replace, and committed rows that the input replaces.

    They may be many, so they are in a file: first the input rows, then the committed ones.
    """

    file: str = ""
    new: int = 0
    old: int = 0

    @classmethod
    def of(cls, new: Sequence[FoundRows], old: Sequence[FoundRows], exchange: KeyExchange) -> Self:
        counts = [sum(part.count for part in parts) for parts in (new, old)]
        if not any(counts):
            return cls()
        name = f"{exchange.directory}/{uuid.uuid4().hex}"
        places = (chunk[:, 0].tobytes() for part in (*new, *old) for chunk in part.chunks(exchange.objects))
        exchange.objects.write_chunks(name, places)
        return cls(name, *counts)

    def chunks(self, origin: KeyRole, objects: ObjectStore) -> Iterator[U64]:
        begin, count = (0, self.new) if origin == NEW else (self.new, self.old)
        for start in range(begin, begin + count, _CHUNK):
            length = min(_CHUNK, begin + count - start)
            yield np.frombuffer(objects.read_range(self.file, start * _WORD, length * _WORD), np.uint64)

    def rows(self, origin: KeyRole, objects: ObjectStore) -> U64:
        return np.concatenate([_NONE, *self.chunks(origin, objects)])


@dataclass(frozen=True, slots=True)
class ShareCheck:
    """A check of the keys of a share: the function that compares them, and its parameters.

    `excluded` are rows to ignore, by table; `table` is the one that the keys are of. `repeats` and `exists` say whether
    an id may be in the input twice, and in the graph.
    """

    step: Callable[[ComparedKeys], Any]
    table: str
    excluded: Mapping[str, Excluded] = field(default_factory=dict)
    bounds: Cardinality = field(default_factory=Cardinality)
    repeats: bool = False
    exists: bool = False


@dataclass(frozen=True, slots=True)
class CompareTask:
    """Compares all keys of one space, or one share of them."""

    checks: tuple[ShareCheck, ...]
    exchange: KeyExchange
    share: int = 0
    shares: int = 1


@dataclass(frozen=True, slots=True)
class ComparedKeys:
    """The keys that a comparison sees, by their roles."""

    by_role: dict[KeyRole, HashedKeys]
    check: ShareCheck
    exchange: KeyExchange

    def numbered(self, role: KeyRole) -> HashedKeys:
        return self._all(role).without(self._excluded(role))

    def keys(self, role: KeyRole) -> SortedKeys:
        return self.numbered(role).in_order()

    def lost(self) -> SortedKeys:
        """Return the keys of committed rows that the load removes."""
        old = self._all(OLD)
        taken = old.where(np.isin(old.at, self._excluded(OLD)))
        return HashedKeys.joined([self.numbered(LOST), taken]).in_order()

    def problems(self, *columns: U64) -> FoundRows:
        """Return rows that break a rule."""
        return FoundRows.of(columns, self.exchange, keep_all=self.exchange.options.keep_all)

    def rows(self, *columns: U64) -> FoundRows:
        """Return rows that have to be known all."""
        return FoundRows.of(columns, self.exchange, keep_all=True)

    def _all(self, role: KeyRole) -> HashedKeys:
        return self.by_role.get(role) or HashedKeys.joined(())

    def _excluded(self, role: KeyRole) -> U64:
        table, origin = (role.table, role.origin) if isinstance(role, EdgeEnd) else (self.check.table, role)
        return self.check.excluded.get(table, Excluded()).rows(origin, self.exchange.objects)

    @property
    def names(self) -> HashedKeys:
        """The nodes that edges of the input name; also those of edges that are left out."""
        return self._all(NAMED)

    @property
    def nodes(self) -> SortedKeys:
        """The ids of all nodes. Those of the input count, so that nodes and their edges can be loaded together."""
        return HashedKeys.joined([self.numbered(OLD), self.numbered(NEW)]).in_order()

    @property
    def edge_ends(self) -> list[EdgeEnd]:
        return sorted(role for role in self.by_role if isinstance(role, EdgeEnd))


def compare(task: CompareTask, parcels: list[Parcel]) -> tuple[Any, ...]:
    """Run the checks of a task, each of them one of those below."""
    # By share first: the shares are ranges of hashes, so that what is joined is nearly in order.
    by_section = sorted(parcels, key=lambda one: (one.section, one.share))
    by_role = {}
    for number, some in groupby(by_section, key=lambda one: one.section):
        role = task.exchange.sections[number].role
        own = (within_share(one, task.share, task.shares, named=role == NAMED) for one in some)
        by_role[role] = unpacked(own, named=role == NAMED)
    return tuple(one.step(ComparedKeys(by_role, one, task.exchange)) for one in task.checks)


class IdMatches(NamedTuple):
    """Input rows whose id repeats an earlier one, repeats later, or exists; committed rows with an id of the input."""

    again: FoundRows
    superseded: FoundRows
    existing: FoundRows
    replaced: FoundRows


def compare_ids(found: ComparedKeys) -> IdMatches:
    """Find ids that the input has twice, or that exist: as problems, or as rows that others replace."""
    new, old = found.keys(NEW), found.keys(OLD)
    may_repeat, may_exist = found.check.repeats, found.check.exists
    once = new.where(new.starts)  # a record that repeats an id is reported for that alone
    return IdMatches(
        found.problems(_NONE if may_repeat else new.later),
        found.rows(new.earlier if may_repeat else _NONE),
        found.problems(_NONE if may_exist else once.at[once.within(old)]),
        found.rows(old.at[old.within(new)] if may_exist else _NONE),
    )


def compare_unique(found: ComparedKeys) -> tuple[FoundRows, FoundRows]:
    """Find input rows with the key of an earlier input row, and with that of a committed row."""
    new, old = found.keys(NEW), found.keys(OLD)
    return found.problems(new.later), found.problems(new.at[new.within(old)])


class UnknownEnds(NamedTuple):
    """Whether edges of the input name a node that there is not; the committed edges that would lose an end."""

    named: bool
    ends: dict[EdgeEnd, FoundRows]


def find_unknown(found: ComparedKeys) -> UnknownEnds:
    """Look for a node that edges name and that there is not, each node once; and for edges that would lose an end."""
    return UnknownEnds(not found.names.within(found.nodes).all(), find_dangling(found))


def find_dangling(found: ComparedKeys) -> dict[EdgeEnd, FoundRows]:
    """Find the ends of edges that are not the id of any node."""
    nodes = found.nodes
    missing: dict[EdgeEnd, FoundRows] = {}
    for end in found.edge_ends:
        keys = found.numbered(end)
        missing[end] = found.problems(keys.at[~keys.within(nodes)])
    return missing


class EdgeCounts(NamedTuple):
    """Sources with too many or too few edges: the last edge of the input, or else a committed one, and the count."""

    new: FoundRows
    old: FoundRows


def count_sources(found: ComparedKeys) -> EdgeCounts:
    """Count the edges of every source that the load adds edges to or removes edges from."""
    new, old = found.keys(NEW), found.keys(OLD)
    gone = found.lost()  # an edge that moves to another source leaves its old one with one less
    touched = HashedKeys.joined([gone, old, new]).in_order()
    keys = touched.where(touched.starts)
    of_new, of_old, lost = (_occurrences(keys, part) for part in (new, old, gone))
    counts = of_new + of_old
    most = np.inf if found.check.bounds.upper is None else found.check.bounds.upper
    wrong = ((of_new > 0) | (lost > 0)) & ((counts < found.check.bounds.lower) | (counts > most))
    is_new, is_old = wrong & (of_new > 0), wrong & (of_new == 0)
    counted = counts.astype(np.uint64)
    return EdgeCounts(
        found.problems(_last_places(keys, new)[is_new], counted[is_new]),
        # All of them: a source that the load removes may have too few edges, and that is not known here.
        found.rows(keys.at[is_old], counted[is_old]),
    )


def _occurrences(keys: SortedKeys, part: SortedKeys) -> Numbers:
    """Return how often each key occurs in a part."""
    distinct = part.where(part.starts)
    counts = np.zeros(len(keys), np.int64)
    counts[keys.index_of(distinct)] = part.counts
    return counts


def _last_places(keys: SortedKeys, part: SortedKeys) -> U64:
    """Return the last place of each key in a part; undefined for keys that do not occur."""
    at = np.zeros(len(keys), np.uint64)
    at[keys.index_of(part.where(part.starts))] = part.at[part.starts + part.counts - 1]
    return at


# Removing rows -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedLayout:
    """Where the staged rows of a table are: the rows before each task, the end and the number of each fragment."""

    before: Numbers
    ends: Numbers
    fragments: Numbers

    def addresses(self, at: U64) -> U64:
        positions = self.before[task_of(at)] + row_of(at)
        within = np.searchsorted(self.ends, positions, side="right")
        starts = np.concatenate([[0], self.ends])[within]
        found: U64 = (self.fragments[within] << OFFSET_BITS | (positions - starts)).astype(np.uint64)
        return found


@dataclass(frozen=True, slots=True)
class RowRemoval:
    """Removes rows from a range of the fragments of a table; with a layout, rows that are staged there."""

    base: TableVersion
    version: int
    fragments: tuple[int, int]
    excluded: Excluded
    origin: KeyOrigin
    layout: StagedLayout | None
    exchange: KeyExchange

    def addresses(self) -> U64:
        """Return the addresses of the rows; those of other fragments are never held."""
        first, last = (np.uint64(number << OFFSET_BITS) for number in self.fragments)
        found = []
        for chunk in self.excluded.chunks(self.origin, self.exchange.objects):
            at = self.layout.addresses(chunk) if self.layout else chunk
            found.append(at[(at >= first) & (at < last)])
        return np.sort(np.concatenate(found))


def remove_rows(task: RowRemoval) -> Removed:
    """Write deletion files. A task that fails deletes its own; the driver knows those of one that succeeds."""
    tables = tables_at(task.exchange.location)
    with taking_back(tables):
        removed = tables.remove_rows(task.base, task.addresses(), task.version)
        leave_to_caller()
        return removed
