"""Problems of a load in bounded memory: how many there are by rule and type, the first of them, and a file of all."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO

from omnigraph.core.location import Location
from omnigraph.errors import FileAccessError, KeyConflictError, LoadRejectedError, ProblemCount, Violation
from omnigraph.formats.files import Split, written
from omnigraph.formats.packs import part_of
from omnigraph.storage.objects import ObjectStore

FIRST = 1_000
"""How many problems are described, unless all of them are asked for. The others are counted."""

TASK_BITS = 32
_SPOOLED = 2**23
_FIELDS = ("rule", "type_name", "entity_id", "properties", "message", "record", "hint", "kind")

Counts = Counter[tuple[str, str | None]]


def numbered_across_input(problem: Violation, task: int) -> Violation:
    """Number the record of a problem across the whole input."""
    return problem if problem.record is None else replace(problem, record=(task << TASK_BITS) | problem.record)


def in_input_order(problem: Violation) -> tuple[bool, int, str]:
    return problem.record is None, problem.record or 0, problem.message


class RecordLocations:
    """Finds the file and line of a record by its number."""

    def __init__(self, splits: Sequence[Split], lines: Sequence[int]) -> None:
        self._splits = splits
        self._before: list[int] = []
        so_far: dict[tuple[str, str | None], int] = {}
        for split, count in zip(splits, lines, strict=True):
            # Splits of one file follow each other; a file of several types is read once for each of them.
            read = split.file, split.type_key
            self._before.append(so_far.get(read, split.lines_before))
            so_far[read] = self._before[-1] + count

    def located(self, problem: Violation) -> Violation:
        if problem.record is None:
            return problem
        task, record = problem.record >> TASK_BITS, problem.record & (2**TASK_BITS - 1)
        part, within = part_of(self._splits[task], record)
        before = part.lines_before if self._splits[task].parts else self._before[task]
        return replace(problem, file=_named(part.file), line=before + within + 1)


def _named(file: str) -> str:
    """Return the name of a file for messages: for a temporary one, the name of its data."""
    return re.sub(r".*/__tmp/input-[0-9a-f]{16}/(?:\d+/)?([^/]*)\.(?:jsonl|parquet)\Z", r"<\1>", file)


class ProblemLog:
    """The problems of one load: all are counted, the first of the input kept; all are written, if a file is given."""

    def __init__(self, places: RecordLocations, rejects: IO[bytes] | None = None, max_bad: int | None = None) -> None:
        self.counts: Counts = Counter()
        self.bad: set[int | None] = set()
        self._max_bad = max_bad
        self._places = places
        self._rejects = rejects
        self._kept: list[Violation] = []

    def add(self, problems: Iterable[Violation]) -> None:
        """Count problems, and keep the first."""
        for problem in problems:
            self.counts[problem.rule, problem.type_name] += 1
            self._keep(problem)

    def add_counted(self, counts: Counts, problems: Iterable[Violation]) -> None:
        """Add counts of problems, and descriptions of the first of them, or of all."""
        self.counts.update(counts)
        for problem in problems:
            self._keep(problem)

    def _keep(self, problem: Violation) -> None:
        if self._rejects is not None:
            located = self._places.located(problem)
            self._rejects.write(json.dumps(located.to_dict(), ensure_ascii=False).encode() + b"\n")
        if self._max_bad is not None and len(self.bad) <= self._max_bad:
            # The edges of a source are too many or too few together: none of their records is bad by itself.
            self.bad.add(None if problem.rule == "cardinality" else problem.record)
        self._kept.append(problem)
        if len(self._kept) >= 2 * FIRST:
            self._kept = sorted(self._kept, key=in_input_order)[:FIRST]

    @property
    def tolerated(self) -> bool:
        """Whether the load goes on: without problems, or without the records that have them."""
        if self._max_bad is None:
            return not self.total
        return len(self.bad) <= self._max_bad and None not in self.bad

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def first(self) -> tuple[Violation, ...]:
        """The first problems in the order of the input, with file and line."""
        return tuple(map(self._places.located, sorted(self._kept, key=in_input_order)[:FIRST]))

    @property
    def by_rule(self) -> tuple[ProblemCount, ...]:
        """The counts, the largest first."""
        found = [ProblemCount(rule, type_name, count) for (rule, type_name), count in self.counts.items()]
        return tuple(sorted(found, key=lambda one: (-one.count, one.rule, one.type_name or "")))

    def raise_any(self) -> None:
        """Raise an error with the counts and the first problems, if there are any that are not tolerated."""
        if self.tolerated:
            return
        count = f"{self.total:,} problems" if self.total > 1 else "1 problem"
        if self._max_bad is not None:
            more = f"more than {self._max_bad:,} records are bad"
            count += f"; {'one is not of a single record' if None in self.bad else more}"
        message = f"the load was refused, nothing was changed: {count}"
        first = self.first
        hint = (first[0].hint if first else None) or "fix the records and load again"
        if all(rule == "key" for rule, _ in self.counts):
            raise KeyConflictError(message, violations=first, counts=self.by_rule, hint=hint)
        raise LoadRejectedError(message, violations=first, counts=self.by_rule, hint=hint)


@contextmanager
def rejects_file(path: str | os.PathLike[str] | None) -> Iterator[IO[bytes] | None]:
    """Take all problems, and write them to a file at the end, if there are any."""
    if path is None:
        yield None
        return
    # Before the load, which may take long.
    if not (_is_remote(path) or Path(path).parent.is_dir()):
        raise _unwritable(path, "no such directory")
    with SpooledTemporaryFile(max_size=_SPOOLED) as held:
        try:
            yield held
        finally:
            # Not at once: a load that is tried again finds its problems again.
            if held.tell() or (not _is_remote(path) and Path(path).exists()):
                held.seek(0)
                _copy(held, path)


def _is_remote(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().startswith("s3://")


def _copy(held: IO[bytes], path: str | os.PathLike[str]) -> None:
    if _is_remote(path):
        with written(Location.parse(path)) as stream:
            shutil.copyfileobj(held, stream)
        return
    try:
        with Path(path).open("wb") as target:
            shutil.copyfileobj(held, target)
    except OSError as error:
        raise _unwritable(path, error.strerror) from None


def _unwritable(path: str | os.PathLike[str], why: str | None) -> FileAccessError:
    return FileAccessError(f"cannot write {os.fspath(path)}: {why}", path=os.fspath(path))


# Problems that tasks find --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedProblems:
    """The problems of one task: their counts, how many records have any, and the file with the first or all of them."""

    counts: tuple[tuple[str, str | None, int], ...] = ()
    records: int = 0
    file: str = ""

    def read(self, objects: ObjectStore) -> Iterator[Violation]:
        for line in objects.read(self.file).splitlines() if self.file else ():
            found = dict(zip(_FIELDS, json.loads(line), strict=True))
            yield Violation(**{**found, "properties": tuple(found["properties"])})


class ProblemFile:
    """Takes the problems of a task, batch by batch, and writes them to a file: a result of a task must stay small."""

    def __init__(self, *, keep_all: bool) -> None:
        self._counts: Counts = Counter()
        self._records = 0
        self._left = None if keep_all else FIRST
        self._file = SpooledTemporaryFile(max_size=_SPOOLED)  # noqa: SIM115 - closed by `close`

    def add(self, problems: Sequence[Violation]) -> None:
        """Add the problems of one batch. No record is in two of them."""
        self._counts.update((one.rule, one.type_name) for one in problems)
        self._records += len({one.record for one in problems})
        for one in sorted(problems, key=in_input_order)[: self._left]:
            self._file.write(json.dumps([getattr(one, name) for name in _FIELDS]).encode() + b"\n")
            self._left = None if self._left is None else self._left - 1

    def close(self) -> None:
        self._file.close()

    def write(self, objects: ObjectStore, name: str) -> StagedProblems:
        if not self._counts:
            return StagedProblems()
        self._file.seek(0)
        objects.write_chunks(name, iter(lambda: self._file.read(_SPOOLED), b""))
        counts = tuple((rule, type_name, count) for (rule, type_name), count in sorted(self._counts.items(), key=str))
        return StagedProblems(counts, self._records, name)


def log_staged(log: ProblemLog, parts: Sequence[StagedProblems], objects: ObjectStore, *, keep_all: bool) -> None:
    """Log the problems of all tasks. They come in the order of the input, so that only the first files are read."""
    counts: Counts = Counter()
    for part in parts:
        counts.update({(rule, type_name): count for rule, type_name, count in part.counts})
    found = (numbered_across_input(one, task) for task, part in enumerate(parts) for one in part.read(objects))
    log.add_counted(counts, islice(found, None if keep_all else FIRST))
