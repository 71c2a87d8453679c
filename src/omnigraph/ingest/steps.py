"""The steps of a load that run on executors: each a plain function from a small task to a small result."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import TableVersion
from omnigraph.core.location import Location
from omnigraph.errors import Violation
from omnigraph.formats.hashing import U64
from omnigraph.formats.sources import split_batches
from omnigraph.formats.splits import Split
from omnigraph.ingest.credentials import Credentials, credentials
from omnigraph.ingest.keys import KeyFile, Keys, Numbered, Section, places, read_shares
from omnigraph.lang.catalog import Cardinality, Catalog, EdgeType, NodeType
from omnigraph.storage.columns import declared_of, table_key
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.read import ADDRESS, DST, ID, SRC
from omnigraph.storage.stage import TableStorage
from omnigraph.write.pending import RECORD, to_store
from omnigraph.write.validate import are_complete, value_violations, with_required

NEW, OLD, LOST = "new", "old", "lost"
_PLACE = 8  # bytes
_ROWS, _BYTES = 2**18, 2**26  # of a table at most, before they are written


@dataclass(frozen=True, slots=True)
class Exchange:
    """Where tasks leave keys for each other, how they number them, and into how many shares they cut them."""

    location: Location
    directory: str
    seed: int
    shares: int

    def file(self) -> KeyFile:
        """Start a file under a name of its own, for a task may run twice."""
        return KeyFile(f"{self.directory}/{uuid.uuid4().hex}", self.shares)

    @property
    def objects(self) -> ObjectStore:
        return _objects(self.location, credentials())


# Who opens a store with other credentials gets another one.


@lru_cache(maxsize=4)
def _objects(location: Location, _: Credentials) -> ObjectStore:
    return ObjectStore(location)


@lru_cache(maxsize=4)
def _tables(location: Location, _: Credentials) -> TableStorage:
    return TableStorage(location)


# Spaces: keys that must be told apart from each other -----------------------------------------------


def id_space(declared: NodeType | EdgeType) -> str:
    return f"id {table_key(declared)}"


def unique_space(declared: NodeType | EdgeType, columns: Sequence[str]) -> str:
    return f"unique {table_key(declared)} {','.join(columns)}"


def source_space(edge: EdgeType) -> str:
    return f"source {table_key(edge)}"


def reference(edge: EdgeType, column: str, kind: str) -> str:
    """The role of an edge's end among the ids of nodes."""
    return f"{kind} {table_key(edge)} {column}"


def is_bounded(bounds: Cardinality) -> bool:
    return bool(bounds.lower) or bounds.upper is not None


# Staging: from a piece of input to files of the tables ---------------------------------------------


@dataclass(frozen=True, slots=True)
class StageTask:
    number: int
    split: Split
    catalog: Catalog
    paths: dict[str, tuple[str, str | None]]
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class StagedTable:
    """The rows of one table that one task wrote: where, their files, how many they are, and where their records are."""

    path: str
    written: tuple[str, ...]
    rows: int
    fresh: bool
    records: tuple[str, int]


@dataclass(frozen=True, slots=True)
class StageResult:
    tables: dict[str, StagedTable]
    problems: tuple[Violation, ...]
    lines: int
    sections: tuple[Section, ...]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables.values())


def stage(task: StageTask) -> StageResult:
    """Convert a piece of input, check its values, write its rows and hand on its keys; a part at a time."""
    file = task.exchange.file()
    tables: dict[str, _Table] = {}
    problems: list[Violation] = []
    lines = 0
    for part in split_batches(task.split, task.catalog):
        problems += part.problems
        lines += part.lines
        for key, rows in sorted(part.tables.items()):
            table = tables.setdefault(key, _Table(task, declared_of(task.catalog, key)))
            problems += value_violations(table.declared, rows)
            table.add(with_required(table.declared, rows), file, fresh=key in part.fresh)
    staged = {key: table.staged(file) for key, table in sorted(tables.items())}
    file.write(task.exchange.objects)
    return StageResult(staged, tuple(problems), lines, tuple(file.sections))


class _Table:
    """What one task stages for one table. Rows are gathered first: a few large files take half as long as many."""

    def __init__(self, task: StageTask, declared: NodeType | EdgeType) -> None:
        self.task = task
        self.declared = declared
        self.path, self.branch = task.paths[table_key(declared)]
        self.rows = 0
        self.written: list[str] = []
        self.records: list[Any] = []
        self.fresh = True
        self._gathered: list[pa.Table] = []

    def add(self, rows: pa.Table, file: KeyFile, *, fresh: bool) -> None:
        self._gathered.append(rows)
        self.fresh &= fresh
        if sum(len(part) for part in self._gathered) >= _ROWS or sum(part.nbytes for part in self._gathered) >= _BYTES:
            self._write(file)

    def _write(self, file: KeyFile) -> None:
        """Hand on the keys of what was gathered, and write it."""
        rows, self._gathered = pa.concat_tables(self._gathered), []
        at = places(self.task.number, rows.num_rows) + np.uint64(self.rows)
        for key in _new_keys(self.declared, fresh=self.fresh):
            file.add(key.space, key.role, _complete_keys(rows, key.columns, at, self.task.exchange.seed))
        self.rows += rows.num_rows
        self.records.append(rows[RECORD].to_numpy())
        if rows.num_rows:
            store = _tables(self.task.exchange.location, credentials())
            self.written += store.write_rows(self.path, self.branch, to_store(self.declared, rows))

    def staged(self, file: KeyFile) -> StagedTable:
        if self._gathered:
            self._write(file)
        records = file.add_plain(np.concatenate(self.records))
        return StagedTable(self.path, tuple(self.written), self.rows, self.fresh, (file.name, records))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Keys to be handed on: for which space, in which role, from which columns."""

    space: str
    role: str
    columns: tuple[str, ...]


def _new_keys(declared: NodeType | EdgeType, *, fresh: bool) -> Iterator[Wanted]:
    """What new rows are compared by. Fresh ids are not: none of them can be there already."""
    if not fresh:
        yield Wanted(id_space(declared), NEW, (ID,))
    for columns in declared.unique:
        yield Wanted(unique_space(declared, columns), NEW, tuple(columns))
    if isinstance(declared, EdgeType):
        for column, end in ((SRC, declared.source), (DST, declared.target)):
            yield Wanted(f"id node:{end}", reference(declared, column, "ref"), (column,))
        if is_bounded(declared.cardinality):
            yield Wanted(source_space(declared), NEW, (SRC,))


def _complete_keys(rows: pa.Table, columns: Sequence[str], at: U64, seed: int) -> Numbered:
    """Number the rows that have a value in every column."""
    complete = are_complete(rows, columns)
    if pc.all(complete, min_count=0).as_py():
        return Numbered.of([rows[name] for name in columns], at, seed)
    kept = rows.filter(complete)
    return Numbered.of([kept[name] for name in columns], at[complete.to_numpy(zero_copy_only=False)], seed)


# Committed keys ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommittedTask:
    table: TableVersion
    fragments: tuple[int, ...]
    wanted: tuple[Wanted, ...]
    exchange: Exchange


def committed_keys(task: CommittedTask) -> tuple[Section, ...]:
    """Hand on the keys of some fragments of a committed table."""
    columns = sorted({name for one in task.wanted for name in one.columns})
    rows = _tables(task.exchange.location, credentials()).scan_fragments(task.table, task.fragments, columns)
    at = rows[ADDRESS].to_numpy()
    file = task.exchange.file()
    for key in task.wanted:
        file.add(key.space, key.role, _complete_keys(rows, key.columns, at, task.exchange.seed))
    file.write(task.exchange.objects)
    return tuple(file.sections)


# Comparing keys ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Excluded:
    """Rows that do not count: those of the input that later ones replace, and committed ones that it replaces.

    They may be many, so a file has them: where it begins with the first, the others follow.
    """

    file: str = ""
    new: int = 0
    old: int = 0

    @classmethod
    def of(cls, new: U64, old: U64, exchange: Exchange) -> Self:
        if not len(new) and not len(old):
            return cls()
        name = f"{exchange.directory}/{uuid.uuid4().hex}"
        exchange.objects.write(name, new.tobytes() + old.tobytes())
        return cls(name, len(new), len(old))

    def new_rows(self, objects: ObjectStore) -> U64:
        return self._read(objects, 0, self.new)

    def old_rows(self, objects: ObjectStore) -> U64:
        return self._read(objects, self.new, self.old)

    def _read(self, objects: ObjectStore, start: int, count: int) -> U64:
        if not count:
            return np.empty(0, np.uint64)
        return np.frombuffer(objects.read_range(self.file, start * _PLACE, count * _PLACE), np.uint64)


@dataclass(frozen=True, slots=True)
class CompareTask:
    """A question about some shares of one space."""

    question: Callable[[CompareTask], Any]
    shares: tuple[int, ...]
    sections: tuple[Section, ...]
    exchange: Exchange
    excluded: Excluded = field(default_factory=Excluded)
    bounds: Cardinality = field(default_factory=Cardinality)

    def numbered(self, role: str) -> Numbered:
        rows = self.excluded.new_rows if role == NEW else self.excluded.old_rows
        return self._read(role).without(rows(self.exchange.objects))

    def keys(self, role: str) -> Keys:
        return self.numbered(role).in_order()

    def lost(self) -> Keys:
        """The keys of committed rows that the load takes away."""
        old = self._read(OLD)
        taken = old.where(np.isin(old.at, self.excluded.old_rows(self.exchange.objects)))
        return Numbered.joined([self.numbered(LOST), taken]).in_order()

    def _read(self, role: str) -> Numbered:
        chosen = [section for section in self.sections if section.role == role]
        return read_shares(self.exchange.objects, chosen, self.shares)

    @property
    def roles(self) -> list[str]:
        return sorted({section.role for section in self.sections})


def compare(task: CompareTask) -> Any:
    """Answer the question of a task: one of those below."""
    return task.question(task)


@dataclass(frozen=True, slots=True)
class Identities:
    """Rows of the input that repeat an id, that a later one repeats, that are there; committed rows that come again."""

    again: U64
    superseded: U64
    existing: U64
    replaced: U64


def compare_ids(task: CompareTask) -> Identities:
    new, old = task.keys(NEW), task.keys(OLD)
    return Identities(new.later, new.earlier, new.at[new.within(old)], old.at[old.within(new)])


def compare_unique(task: CompareTask) -> tuple[U64, U64]:
    """Find input rows that have what an earlier one has, and what a committed one has."""
    new, old = task.keys(NEW), task.keys(OLD)
    return new.later, new.at[new.within(old)]


def find_dangling(task: CompareTask) -> dict[str, U64]:
    """Find ends of edges, by their role, that are no node."""
    nodes = Numbered.joined([task.numbered(OLD), task.numbered(NEW)]).in_order()
    found: dict[str, U64] = {}
    for role in task.roles:
        if role not in (NEW, OLD):
            ends = task.numbered(role)
            found[role] = ends.at[~ends.within(nodes)]
    return found


@dataclass(frozen=True, slots=True)
class Miscounted:
    """Sources with too many edges or too few: an edge of each, whether it is of the input, and how many there are."""

    at: U64
    is_new: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]


def count_sources(task: CompareTask) -> Miscounted:
    """Count the edges of every source that the load touches: those of its rows, and of those that it takes away."""
    new, old = task.keys(NEW), task.keys(OLD)
    gone = task.lost()
    touched = Numbered.joined([gone, old, new]).in_order()
    keys = touched.where(touched.starts)
    of_new, of_old, lost = (_occurrences(keys, part) for part in (new, old, gone))
    counts = of_new + of_old
    most = np.inf if task.bounds.upper is None else task.bounds.upper
    wrong = ((of_new > 0) | (lost > 0)) & ((counts < task.bounds.lower) | (counts > most))
    last = _last_places(keys, new)
    return Miscounted(np.where(of_new > 0, last, keys.at)[wrong], (of_new > 0)[wrong], counts[wrong])


def _occurrences(keys: Keys, part: Keys) -> np.ndarray[Any, Any]:
    """Count how often each key occurs in a part."""
    distinct = part.where(part.starts)
    counts = np.zeros(len(keys), np.int64)
    counts[np.searchsorted(keys.high, distinct.high)] = part.counts
    return counts


def _last_places(keys: Keys, part: Keys) -> U64:
    """Where each key comes from last in a part; anything where it does not occur."""
    at = np.zeros(len(keys), np.uint64)
    at[np.searchsorted(keys.high, part.high[part.starts])] = part.at[part.starts + part.counts - 1]
    return at
