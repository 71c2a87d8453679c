"""Data on this side as lines of JSON for a server, and where each line came from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np

from omnigraph.core.location import Location
from omnigraph.errors import LoadRejectedError, Violation
from omnigraph.formats.files import BOM, Split, decompressed
from omnigraph.formats.sources import discover, split_batches
from omnigraph.formats.writers import contents, json_lines
from omnigraph.ingest.load import as_files
from omnigraph.ingest.problems import TASK_BITS, ProblemLog, RecordLocations, in_input_order, numbered_across_input
from omnigraph.lang.catalog import Catalog
from omnigraph.write.pending import RECORD

_CHUNK = 2**20
_Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Upload:
    """Lines of JSON in a file, the record that each was made of, and where the records are."""

    file: IO[bytes]
    records: _Numbers
    places: RecordLocations

    def located(self, error: LoadRejectedError) -> LoadRejectedError:
        """Tell problems by the files of this side, as if they had been loaded here."""
        found = tuple(sorted(map(self._located, error.violations), key=in_input_order))
        return type(error)(error.message, hint=error.hint, violations=found, counts=error.counts)

    def _located(self, problem: Violation) -> Violation:
        if problem.line is None or not 0 < problem.line <= len(self.records):
            return problem
        return self.places.located(replace(problem, record=int(self.records[problem.line - 1])))


@contextmanager
def uploaded(data: Any, catalog: Catalog, format_: str | None, mapping: Any, csv: Any) -> Iterator[Upload]:
    """Make lines of JSON of whatever `load` takes, for as long as they are needed."""
    with (
        tempfile.TemporaryDirectory(prefix="omnigraph-") as directory,
        as_files(data, Location.parse(directory), catalog) as (addresses, own),
        # On disk and not in memory: what is uploaded may be larger than either. It has no name, so no crash leaves it
        # behind.
        tempfile.TemporaryFile() as file,
    ):
        splits = discover(addresses, catalog, format=format_, mapping=mapping if own is None else own, csv=csv)
        yield _written(file, splits, catalog)


def _written(file: IO[bytes], splits: Sequence[Split], catalog: Catalog) -> Upload:
    """Write the lines of all splits, and report rows that cannot become lines."""
    # Splits of JSON lines cut a file in parts for parallel tasks; an upload is one stream and copies the file whole.
    writing = _Writing(file, [0] * len(splits))
    begun: set[str] = set()
    for task, split in enumerate(splits):
        if split.format != "jsonl":
            writing.convert(task, split, catalog)
        elif split.file not in begun:  # its first split stands for the whole file
            begun.add(split.file)
            writing.copy(task, split)
    places = RecordLocations(splits, writing.counts)
    log = ProblemLog(places)
    log.add(writing.problems)
    log.raise_any()
    return Upload(file, np.concatenate([np.empty(0, np.int64), *writing.records]), places)


@dataclass(slots=True)
class _Writing:
    file: IO[bytes]
    counts: list[int]
    records: list[_Numbers] = field(default_factory=list)
    problems: list[Violation] = field(default_factory=list)

    def copy(self, task: int, split: Split) -> None:
        """Copy a file that holds lines of JSON already."""
        lines, last = 0, b"\n"
        for chunk in decompressed(split.found, split.compression, _CHUNK):
            text = chunk.removeprefix(BOM) if not lines and last == b"\n" else chunk
            lines, last = lines + text.count(b"\n"), text[-1:] or last
            self.file.write(text)
        # The next file begins a line of its own.
        if last != b"\n":
            self.file.write(b"\n")
            lines += 1
        self._number(task, np.arange(lines))

    def convert(self, task: int, split: Split, catalog: Catalog) -> None:
        """Make lines of rows, type by type."""
        for piece in split_batches(split, catalog):
            self.counts[task] += piece.lines
            self.problems += [numbered_across_input(problem, task) for problem in piece.problems]
            for key, rows in piece.tables.items():
                self.file.write(contents(json_lines(key, rows.drop_columns([RECORD]))))
                self._number(task, rows[RECORD].to_numpy())

    def _number(self, task: int, records: _Numbers) -> None:
        self.records.append(records.astype(np.int64) | (task << TASK_BITS))
