"""Read CSV, JSONL and Parquet files as tables, whatever their columns are: for data that no type is known of yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from omnigraph.errors import InputFormatError, InputUnreadableError
from omnigraph.formats.dialect import CsvDialect
from omnigraph.formats.files import BOM, File, decompressed, opened

_FORMATS = {"csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl", "parquet": "parquet", "pq": "parquet"}
_COMPRESSIONS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}
_BLOCK = 2**24


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no record: its number in the file if it is known, and why."""

    file: str
    line: int | None
    message: str


@dataclass(frozen=True, slots=True)
class PlainTable:
    """The rows of a file, and the lines that are none. The columns of a CSV file are texts."""

    rows: pa.Table
    bad: tuple[BadLine, ...] = ()


def plain_format(uri: str) -> str | None:
    """Return the format of a file by its name; None if it is none of these."""
    words = uri.rpartition("/")[2].lower().split(".")
    return _FORMATS.get(words[-2 if words[-1] in _COMPRESSIONS and len(words) > 1 else -1])


def read_plain(file: File, format_: str | None = None, dialect: CsvDialect | None = None) -> PlainTable:
    """Read a whole file into memory."""
    chosen = format_ or plain_format(file.uri)
    try:
        if chosen == "parquet":
            with opened(file) as stream:
                return PlainTable(pq.read_table(pa.PythonFile(stream, mode="r")))
        data = _content(file)
        if chosen == "csv":
            return _csv(file.uri, data, dialect or CsvDialect())
        if chosen == "jsonl":
            return _jsonl(file.uri, data)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise InputUnreadableError(f"{file.uri} cannot be read: {error}", path=file.uri) from error
    hint = "name it .csv, .jsonl (also .gz, .zst, .bz2) or .parquet, or give its format"
    raise InputFormatError(f"cannot tell the format of {file.uri}", path=file.uri, hint=hint)


def _content(file: File) -> bytes:
    compression = _COMPRESSIONS.get(file.uri.lower().rpartition(".")[2])
    return b"".join(decompressed(file, compression, _BLOCK)).removeprefix(BOM)


def _csv(uri: str, data: bytes, dialect: CsvDialect) -> PlainTable:
    bad: list[BadLine] = []

    def leave_out(row: Any) -> str:
        message = f"a row of {row.actual_columns} values where there are {row.expected_columns} columns"
        bad.append(BadLine(uri, row.number, message))
        return "skip"

    if not data.strip():
        message = f"{uri} has no header"
        raise InputUnreadableError(message, path=uri, hint="the first line of a CSV file names its columns")
    parse = pa_csv.ParseOptions(
        delimiter=dialect.delimiter,
        quote_char=dialect.quote,
        newlines_in_values=True,
        invalid_row_handler=leave_out,
    )
    # One thread: with more, the numbers of bad rows are not known.
    names = list(dialect.names)
    skipped = 1 if names and dialect.header else 0
    read = pa_csv.ReadOptions(block_size=max(len(data), 1), use_threads=False, column_names=names, skip_rows=skipped)
    found = names or _header(data, parse)
    nulls = ["", *dialect.nulls]
    as_texts = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(found, pa.string()),
        null_values=nulls,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    rows = pa_csv.read_csv(pa.BufferReader(data), read_options=read, parse_options=parse, convert_options=as_texts)
    return PlainTable(_trimmed(rows, nulls) if dialect.trim else rows, tuple(bad))


def _header(data: bytes, parse: pa_csv.ParseOptions) -> list[str]:
    # Only the header is wanted: the kinds of the columns are not, and bad rows are reported later.
    quiet = pa_csv.ParseOptions(
        delimiter=parse.delimiter,
        quote_char=parse.quote_char,
        newlines_in_values=True,
        invalid_row_handler=lambda _: "skip",
    )
    options = pa_csv.ReadOptions(block_size=max(len(data), 1), use_threads=False)
    with pa_csv.open_csv(pa.BufferReader(data), read_options=options, parse_options=quiet) as reader:
        return list(reader.schema.names)


def _trimmed(rows: pa.Table, nulls: list[str]) -> pa.Table:
    import pyarrow.compute as pc  # noqa: PLC0415

    for at, name in enumerate(rows.column_names):
        texts = pc.utf8_trim(rows[name], " \t")
        texts = pc.if_else(pc.is_in(texts, pa.array(nulls)), pa.scalar(None, pa.string()), texts)
        rows = rows.set_column(at, name, texts)
    return rows


def _jsonl(uri: str, data: bytes) -> PlainTable:
    if not data.strip():
        return PlainTable(pa.table({}))
    bad: tuple[BadLine, ...] = ()
    try:
        found = _parsed_json(data)
    except pa.ArrowInvalid:
        # Line by line, but only where something is wrong.
        data, bad = _whole_lines(uri, data)
        found = _parsed_json(data) if data else pa.table({})
    return PlainTable(found, bad)


def _parsed_json(data: bytes) -> pa.Table:
    read = pa_json.ReadOptions(block_size=max(len(data), 1))
    found = pa_json.read_json(pa.BufferReader(data), read_options=read)
    # Arrow takes some texts for moments; which texts are dates is for the types of the graph to say.
    texts = [pa.field(field.name, pa.string()) for field in found.schema if pa.types.is_timestamp(field.type)]
    if not texts:
        return found
    parse = pa_json.ParseOptions(explicit_schema=pa.schema(texts))
    again = pa_json.read_json(pa.BufferReader(data), read_options=read, parse_options=parse)
    return again.select(found.column_names)  # the parser puts columns of a known type first


def _whole_lines(uri: str, data: bytes) -> tuple[bytes, tuple[BadLine, ...]]:
    good, bad = [], []
    for number, line, message in _judged(data):
        if message is None:
            good.append(line)
        else:
            bad.append(BadLine(uri, number, message))
    if not bad:
        message = f"{uri} cannot be read: a member has values of different kinds"
        raise InputUnreadableError(message, path=uri, hint="write a member in one way, as text or as number")
    return b"\n".join(good), tuple(bad)


def _judged(data: bytes) -> Iterator[tuple[int, bytes, str | None]]:
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, line, f"not JSON: {error}"
        else:
            yield number, line, None if isinstance(found, dict) else "not an object"
