"""Pack small files into one split, so that ten records are not a task and a file of their table.

Only neighbours are packed, so the order of the input stays. Files of one kind are joined before they are converted:
converting ten records takes about as long as converting a thousand. Each part of a packed split has as many record
numbers as it can have lines, so the number of a record gives its file without a look at the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.errors import InputUnreadableError
from omnigraph.formats.batch import ConvertedBatch, Numbers
from omnigraph.formats.csv import convert_block
from omnigraph.formats.files import BOM, Split, csv_blocks, grouped, line_blocks, parquet
from omnigraph.formats.jsonl import jsonl_batches
from omnigraph.formats.records import MAX_LINE
from omnigraph.formats.tables import refuse_repeated, table_batches
from omnigraph.lang.catalog import Catalog
from omnigraph.write.pending import RECORD

_MOST_PARTS = 1024
_MOST_NUMBERS = 2**31  # a load has 32 bits for the records of a split
_EXPANSION = 8  # how much larger the content of a compressed file usually is
_LINES_PER_BYTE, _LINES = 1040, 2**20  # of a compressed file; gzip cannot have more
_RUN_BYTES, _RUN_ROWS = 2**22, 2**16


def pack(splits: Sequence[Split], size: int) -> list[Split]:
    """Pack neighbours that are whole files into splits of about `size` bytes."""
    cuts = Counter(split.file for split in splits)
    # A part of a larger file is as large as a split already.
    groups = grouped(splits, lambda split: _weight(split, size, cuts[split.file]), (size, _MOST_PARTS, _MOST_NUMBERS))
    return [_joined(group) for group in groups]


def _weight(split: Split, size: int, cuts: int) -> tuple[int, int, int]:
    whole = split.size * (_EXPANSION if split.compression else 1)
    return whole if cuts == 1 else size + 1, 1, _numbers(split)


def _joined(group: list[Split]) -> Split:
    if len(group) == 1:
        return group[0]
    first = group[0]
    size = sum(part.size for part in group)
    return Split(first.file, first.file_size, first.version, first.format, size=size, parts=tuple(group))


def _numbers(part: Split) -> int:
    """Return how many lines or rows a file has at most."""
    if part.format == "parquet":
        return part.rows
    return _LINES + part.file_size * _LINES_PER_BYTE if part.compression else part.file_size + 1


def part_of(split: Split, record: int) -> tuple[Split, int]:
    """Return the part of a split that a record is in, and the number of the record in it."""
    if not split.parts:
        return split, record
    firsts = _first_numbers(split)
    at = int(np.searchsorted(firsts, record, "right")) - 1
    return split.parts[at], record - firsts[at]


def _first_numbers(split: Split) -> list[int]:
    return list(accumulate(map(_numbers, split.parts[:-1]), initial=0))


# Conversion ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """A block of lines, or a batch of rows, of one part. Pieces of the same kind are converted together."""

    part: Split
    first: int
    count: int
    content: Any
    kind: Any


def packed_batches(split: Split, catalog: Catalog) -> Iterator[ConvertedBatch]:
    """Read and convert the parts of a packed split."""
    for run in _runs(_pieces(split)):
        numbers = np.concatenate([np.arange(piece.first, piece.first + piece.count) for piece in run])
        for batch in _converted(run, catalog):
            yield _renumbered(batch, numbers)


def _runs(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Join neighbours of one kind."""
    run: list[_Piece] = []
    size = 0
    for piece in pieces:
        more = len(piece.content) if isinstance(piece.content, bytes) else piece.count * (_RUN_BYTES // _RUN_ROWS)
        if run and (piece.kind != run[0].kind or size + more > _RUN_BYTES):
            yield run
            run, size = [], 0
        run.append(piece)
        size += more
    if run:
        yield run


def _converted(run: list[_Piece], catalog: Catalog) -> Iterator[ConvertedBatch]:
    part = run[0].part
    contents = [piece.content for piece in run]
    if part.format == "jsonl":
        return jsonl_batches(b"".join(contents), catalog)
    if part.format == "csv":
        refuse_repeated(part.header, part.file)
        return iter([convert_block(part, catalog, b"".join(contents), 0)])
    # One batch of many: each is converted by itself.
    rows = pa.Table.from_batches(contents).combine_chunks()
    columns = dict(part.columns)
    return table_batches(rows.to_reader(), part.declared(catalog), columns, source=part.file, when=part.when)


def _renumbered(batch: ConvertedBatch, numbers: Numbers) -> ConvertedBatch:
    tables = {}
    for key, rows in batch.tables.items():
        at = rows.schema.get_field_index(RECORD)
        tables[key] = rows.set_column(at, RECORD, pa.array(numbers[rows[RECORD].to_numpy()], pa.int64()))
    problems = [
        problem if problem.record is None else replace(problem, record=int(numbers[problem.record]))
        for problem in batch.problems
    ]
    return replace(batch, tables=tables, problems=problems)


# Pieces --------------------------------------------------------------------------------------------


def _pieces(split: Split) -> Iterator[_Piece]:
    for part, first in zip(split.parts, _first_numbers(split), strict=True):
        end = first + _numbers(part)
        for piece in _PIECES[part.format](part, first):
            if piece.first + piece.count > end:
                raise _too_many_lines(part)
            yield piece


def _json_pieces(part: Split, first: int) -> Iterator[_Piece]:
    starts_file = True
    for block in line_blocks(part, MAX_LINE):
        lines = block.removeprefix(BOM) if starts_file else block
        starts_file = False
        # The next file starts a line of its own.
        lines = lines if lines.endswith(b"\n") or not lines else lines + b"\n"
        count = lines.count(b"\n")
        yield _Piece(part, first, count, lines, "jsonl")
        first += count


def _csv_pieces(part: Split, first: int) -> Iterator[_Piece]:
    kind: Any = (part.type_key, part.columns, part.when, part.header, part.dialect)
    empty = True
    for block in csv_blocks(part):
        empty = False
        count = block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")
        # A quote that is not closed must not take in the next file.
        is_open = block.count(part.dialect.quote_byte) % 2
        yield _Piece(part, first, count, block, object() if is_open else kind)
        first += count
    if empty:  # so that the columns of a file without rows are checked, too
        yield _Piece(part, first, 0, b"", kind)


def _row_pieces(part: Split, first: int) -> Iterator[_Piece]:
    with parquet(part) as file:
        schema = file.schema_arrow
        kind = (part.type_key, part.columns, part.when, schema)
        # So that the columns of a file without rows are checked, too.
        yield _Piece(part, first, 0, _no_rows(schema), kind)
        for batch in file.iter_batches(row_groups=list(part.row_groups), use_threads=False):
            yield _Piece(part, first, batch.num_rows, batch, kind)
            first += batch.num_rows


_PIECES = {"jsonl": _json_pieces, "csv": _csv_pieces, "parquet": _row_pieces}


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)


def _too_many_lines(part: Split) -> InputUnreadableError:
    message = f"{part.file} holds more than {_numbers(part):,} lines in {part.file_size:,} bytes"
    return InputUnreadableError(message, path=part.file, hint="decompress it")
