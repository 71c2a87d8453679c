"""A split: the part of an input file that one task reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from omnigraph.errors import InputUnreadableError
from omnigraph.formats.files import File, decompressed, opened, read_range
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.storage.columns import declared_of

CHUNK = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Split:
    """A part of one file, with the rows or lines that start in it.

    `start` and `end` are bytes; of a compressed file they count its content, and `end` is unknown. A CSV split does not
    contain the header: `header` is that of the file. `type_key` is None for JSONL. `size` is about how much there is
    to read, `version` and `file_size` are those of the file when it was found.
    """

    file: str
    file_size: int
    version: str
    format: str
    compression: str | None = None
    start: int = 0
    end: int = 0
    size: int = 0
    row_groups: tuple[int, ...] = ()
    type_key: str | None = None
    columns: tuple[tuple[str, str | None], ...] = ()
    header: tuple[str, ...] = ()

    @property
    def found(self) -> File:
        return File(self.file, self.file_size, self.version)

    def declared(self, catalog: Catalog) -> NodeType | EdgeType:
        """The type of the rows of a CSV or Parquet file."""
        assert self.type_key, "a JSONL file has rows of many types"
        return declared_of(catalog, self.type_key)


# Lines ---------------------------------------------------------------------------------------------


def line_blocks(split: Split, most: int) -> Iterator[bytes]:
    """Read the lines of a split in blocks of whole lines; a line of more than `most` bytes is truncated."""
    if split.compression:
        yield from _blocks(decompressed(split.found, split.compression, CHUNK), most)
        return
    # A line that starts before the split belongs to the previous one.
    # One byte more is read, because a line end just before the split means that a line starts with it.
    data = read_range(split.found, max(split.start - 1, 0), split.end)
    start = data.find(b"\n") + 1 if split.start else 0
    if (split.start and not start) or start >= len(data):
        return
    data = data[start:]
    yield data if data.endswith(b"\n") else data + _rest_of_line(split, most)


def _rest_of_line(split: Split, most: int) -> bytes:
    at, rest, step = split.end, b"", 2**16
    while at < split.file_size and len(rest) <= most:
        piece = read_range(split.found, at, at + step)
        line, end, _ = piece.partition(b"\n")
        rest += line + end
        if end:
            break
        at, step = at + len(piece), step * 4
    return rest


def _blocks(chunks: Iterator[bytes], most: int) -> Iterator[bytes]:
    partial = b""
    for chunk in chunks:
        data = partial + chunk
        end = data.rfind(b"\n") + 1
        if end:
            yield data[:end]
        partial = data[end:][: most + 1 + CHUNK]  # enough to report that it is too long, and bounded however long it is
    if partial:
        yield partial


# CSV -----------------------------------------------------------------------------------------------


def csv_blocks(split: Split) -> Iterator[bytes]:
    """Read the records of a CSV split in blocks of whole records; each block ends with a line end."""
    for block in _csv_blocks(split):
        yield block if block.endswith(b"\n") else block + b"\n"


def _csv_blocks(split: Split) -> Iterator[bytes]:
    if not split.compression:
        data = read_range(split.found, split.start, split.end)
        if data:
            yield data
        return
    partial, skip = b"", split.start
    for chunk in decompressed(split.found, split.compression, CHUNK):
        data, skip = partial + chunk[skip:], max(skip - len(chunk), 0)
        end = last_record_end(data)
        if end:
            yield data[:end]
        partial = data[end:]
    if partial:
        yield partial


def last_record_end(data: bytes) -> int:
    """Find the end of the last whole record; 0 if there is none. The data starts with a record."""
    end = data.rfind(b"\n") + 1
    while end and data.count(b'"', 0, end) & 1:  # inside of quotes: go back to before they were opened
        end = data.rfind(b"\n", 0, data.rfind(b'"', 0, end)) + 1
    return end


def record_start(data: bytes, parity: int) -> int:
    """Find the start of the first record after the current one; 0 if there is none.

    `parity` is 1 inside of quotes, where an end of line does not end the record.
    """
    start = 0
    while True:
        if parity:
            start = data.find(b'"', start) + 1
            if not start:
                return 0
        end = data.find(b"\n", start)
        if end < 0:
            return 0
        parity = data.count(b'"', start, end) & 1
        if not parity:
            return end + 1
        start = end


# Parquet -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def parquet(split: Split) -> Iterator[Any]:
    """Open a Parquet file."""
    with opened(split.found) as stream:
        try:
            yield pq.ParquetFile(pa.PythonFile(stream, mode="r"))
        except (pa.ArrowException, OSError) as error:
            message = f"{split.file} is not a readable Parquet file: {error}"
            raise InputUnreadableError(message, path=split.file, hint="write it again") from error
