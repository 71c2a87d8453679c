"""Convert CSV files: comma separated, quoted with `"`, the names in the first line, or as its dialect says.

An empty value is null; `""` is the empty text. Blank lines are ignored. A row with too few or too many values is a
problem, and so is a text that is not UTF-8. Lists and vectors are JSON arrays: `[1, 2.5]`. `core/values.py` defines the
texts of every scalar.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from omnigraph.core.values import (
    DECIMAL_TEXT,
    FLOATS,
    INTEGER_BOUNDS,
    INTEGER_TEXT,
    NUMERIC,
    TEMPORAL,
    Scalar,
    milliseconds_of,
    number_in,
)
from omnigraph.errors import Violation
from omnigraph.formats.batch import ConvertedBatch, Numbers, mismatch, shown, sorted_problems
from omnigraph.formats.columns import (
    ConvertedColumn,
    checked,
    clean,
    coerced,
    either,
    one_by_one,
    parse_type,
    parsed,
    stored_type,
)
from omnigraph.formats.dialect import CsvDialect
from omnigraph.formats.files import Split, csv_blocks
from omnigraph.formats.records import json_value
from omnigraph.formats.tables import TableConverter, refuse_repeated
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.types import Type

_LIST = "value"
_FEED, _RETURN = b"\n\r"
_BLANKS = r"^[ \t]+|[ \t]+$"


def csv_batches(split: Split, catalog: Catalog) -> Iterator[ConvertedBatch]:
    """Convert a split of a CSV file block by block, in bounded memory.

    The number of a record is that of its first line, from 0 across blocks: a value may have line ends in it.
    """
    refuse_repeated(split.header, split.file)
    first, block = 0, b""
    for block in csv_blocks(split):
        batch = convert_block(split, catalog, block, first)
        first += batch.lines
        yield batch
    if not block:
        yield convert_block(split, catalog, b"", 0)


def convert_block(split: Split, catalog: Catalog, block: bytes, first: int) -> ConvertedBatch:
    """Convert a block of whole records, with the header and the type of a split; `first` is its first line."""
    declared = split.declared(catalog)
    dialect = split.dialect
    table, bad = _parsed_block(block, split.header, dialect)
    lines, starts = _record_lines(block, table.num_rows + len(bad), dialect)
    starts = starts + first
    # Arrow leaves bad rows out but counts them.
    wrong = [row.number - 1 for row in bad]
    records = np.delete(starts, wrong)
    broken = {int(starts[at]): _miscounted(row) for at, row in zip(wrong, bad, strict=True)}
    if table.num_rows and _is_open(block, table, dialect.quote_byte):
        broken[int(records[-1])] = "a quoted value is not closed before the end of the file"
        # The row that swallowed the rest: its values are not what was meant.
        table, records = table.slice(0, table.num_rows - 1), records[:-1]
    problems = [Violation("shape", declared.name, None, (), message, record) for record, message in broken.items()]
    texts = {name: _plain_texts(table[name].combine_chunks(), dialect) for name in table.column_names}
    convert = partial(from_text, dialect=dialect)
    converter = TableConverter(declared, split.file, convert, _explain, split.when)
    found = converter.converted(texts, dict(split.columns), records)
    return ConvertedBatch(found.tables, sorted_problems(problems + found.problems), lines, found.fresh)


def _record_lines(block: bytes, count: int, dialect: CsvDialect) -> tuple[int, Numbers]:
    """Return how many lines a block of `count` records has, and the first line of each record, from 0."""
    if block.count(b"\n") == count and block.count(b"\r") == block.count(b"\r\n"):
        return count, np.arange(count)
    found = _lines_by_quotes(block, ord(dialect.quote))
    # A quote inside of a value without quotes is a character like any other, which counting them does not see.
    return found if len(found[1]) == count else _lines_one_by_one(block, count, dialect)


def _lines_by_quotes(block: bytes, quote: int) -> tuple[int, Numbers]:
    data = np.frombuffer(block, np.uint8)
    returns = np.flatnonzero(data == _RETURN)
    feeds = np.flatnonzero(data == _FEED)
    ends = np.union1d(feeds, np.setdiff1d(returns, feeds - 1))
    quotes = np.flatnonzero(data == quote)
    outside = np.flatnonzero(np.searchsorted(quotes, ends) % 2 == 0)
    starts = np.concatenate([[0], ends[outside] + 1])
    lines = np.concatenate([[0], outside + 1])
    # Blank lines are not records, nor is the end of the block.
    padded = np.append(data, _FEED)
    blank = (padded[starts] == _FEED) | (padded[starts] == _RETURN)
    return len(ends), lines[~blank]


def _lines_one_by_one(block: bytes, count: int, dialect: CsvDialect) -> tuple[int, Numbers]:
    reader = csv.reader(
        io.StringIO(block.decode("latin-1"), newline=""), delimiter=dialect.delimiter, quotechar=dialect.quote
    )
    starts, at = [], 0
    for row in reader:
        starts += [at] if row else []
        at = reader.line_num
    return (at, np.array(starts)) if len(starts) == count else (count, np.arange(count))


def _miscounted(row: Any) -> str:
    return f"a row of {row.actual_columns} values where there are {row.expected_columns} columns: {shown(row.text)}"


def _explain(type_: Type, label: str, value: bytes) -> tuple[str, str]:
    try:
        return "type", mismatch(type_, label, _intended(value.decode(), type_))
    except UnicodeDecodeError:
        return "shape", f"{label} is not UTF-8: {value[:40]!r}"


def _intended(text: str, type_: Type) -> Any:
    """Read a text as the value that was probably meant, so that the message is about that value."""
    if type_.is_list or type_.is_vector:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return number_in(text) if type_.scalar in NUMERIC else text


def _parsed_block(block: bytes, header: tuple[str, ...], dialect: CsvDialect) -> tuple[pa.Table, list[Any]]:
    """Parse a block; return its values as bytes, and the rows with too few or too many of them."""
    # As bytes: a text that is not UTF-8 must become a problem of its row, not of the file.
    schema = pa.schema([(name, pa.binary()) for name in header])
    if not block.strip(b"\r\n"):
        return schema.empty_table(), []
    bad: list[Any] = []

    def skip(row: Any) -> str:
        bad.append(row)
        return "skip"

    table = pcsv.read_csv(
        pa.BufferReader(block),
        read_options=pcsv.ReadOptions(use_threads=False, column_names=header, block_size=len(block) + 1),
        parse_options=pcsv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote,
            newlines_in_values=True,
            invalid_row_handler=skip,
        ),
        convert_options=pcsv.ConvertOptions(
            column_types=schema,
            null_values=["", *dialect.nulls],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,
        ),
    )
    return table, bad


def _is_open(block: bytes, table: pa.Table, quote: bytes) -> bool:
    """Return whether an unclosed quote swallowed the rest of the file."""
    last = table.slice(table.num_rows - 1).to_pylist()[0].values()
    return block.count(quote) % 2 == 1 and any(b"\n" in value for value in last if value)


# Values --------------------------------------------------------------------------------------------


def _plain_texts(column: pa.Array, dialect: CsvDialect) -> pa.Array:
    """Remove blanks around values if the dialect says so; a value that then means null becomes null."""
    if not dialect.trim:
        return column
    trimmed = pc.replace_substring_regex(column, _BLANKS, "")
    nulls = pa.array([text.encode() for text in ("", *dialect.nulls)], pa.binary())
    # Only where there were blanks: `""` is the empty text, and a quoted null text is a text.
    is_null = pc.and_(pc.not_equal(trimmed, column), pc.is_in(trimmed, nulls))
    return pc.if_else(is_null, pa.scalar(None, pa.binary()), trimmed)


def from_text(column: pa.Array, type_: Type, dialect: CsvDialect) -> ConvertedColumn:
    """Convert a column of texts, as bytes, to the values that a property of the type stores."""
    texts = _decoded(column)
    found = _in_dialect(texts.values, type_, dialect) or _converted_texts(texts.values, type_)
    return ConvertedColumn(found.values, either(texts.wrong, found.wrong))


def _in_dialect(column: pa.Array, type_: Type, dialect: CsvDialect) -> ConvertedColumn | None:
    """Convert the values that the dialect writes in its own way; None for others."""
    if type_.is_list or type_.is_vector:
        return None
    if type_.scalar in FLOATS and dialect.decimal != ".":
        # A point would be a thousands separator, which no number has.
        points = pc.match_substring(column, ".")
        found = _floats(pc.replace_substring(column, dialect.decimal, "."), type_)
        return checked(found.values, either(found.wrong, points))
    if type_.scalar is Scalar.DATE and dialect.date_format:
        return one_by_one(column, pa.date32(), partial(_date_in, dialect.date_format))
    if type_.scalar is Scalar.DATETIME and dialect.datetime_format:
        found = one_by_one(column, pa.int64(), partial(_moment_in, dialect.datetime_format))
        return ConvertedColumn(found.values.view(pa.date64()), found.wrong)
    return None


def _date_in(format_: str, text: str) -> dt.date:
    # By Python: Arrow would take the 31st of February for a day of March.
    return dt.datetime.strptime(text, format_).date()  # noqa: DTZ007 - a date has no zone


def _moment_in(format_: str, text: str) -> int:
    found = dt.datetime.strptime(text, format_)  # noqa: DTZ007 - the zone follows
    return milliseconds_of(found if found.tzinfo else found.replace(tzinfo=dt.UTC))


def _decoded(column: pa.Array) -> ConvertedColumn:
    try:
        return ConvertedColumn(column.cast(pa.string()))
    except pa.ArrowInvalid:
        return one_by_one(column, pa.string(), lambda text: text.decode())


def _converted_texts(column: pa.Array, type_: Type) -> ConvertedColumn:
    if type_.is_list or type_.is_vector:
        return _arrays(column, type_)
    if type_.scalar in INTEGER_BOUNDS:
        return _integers(column, type_)
    if type_.scalar in FLOATS:
        return _floats(column, type_)
    if type_.scalar is Scalar.BOOL:
        return _booleans(column)
    return coerced(column, type_)


def _integers(column: pa.Array, type_: Type) -> ConvertedColumn:
    if _all_match(column, INTEGER_TEXT):  # Arrow would accept hexadecimal digits, too
        try:
            return ConvertedColumn(column.cast(stored_type(type_)))
        except pa.ArrowInvalid:
            pass
    return one_by_one(column, stored_type(type_), lambda text: json_value(type_, number_in(text)))


def _floats(column: pa.Array, type_: Type) -> ConvertedColumn:
    matching = pc.match_substring_regex(column, DECIMAL_TEXT)
    numbers = pc.if_else(matching, column, pa.scalar(None, pa.string())).cast(pa.float64())
    finite = pc.fill_null(pc.is_finite(numbers), fill_value=False)
    kept = coerced(pc.if_else(finite, numbers, pa.scalar(None, pa.float64())), type_)
    return checked(kept.values, pc.and_(column.is_valid(), kept.values.is_null()))


def _booleans(column: pa.Array) -> ConvertedColumn:
    # The row that swallowed the rest: its values are not what was meant.
    words = pc.utf8_lower(column)
    true = pc.is_in(words, pa.array(["true", "1"]))
    known = pc.or_(true, pc.is_in(words, pa.array(["false", "0"])))
    return checked(pc.if_else(column.is_valid(), true, None), pc.and_(column.is_valid(), pc.invert(known)))


def _arrays(column: pa.Array, type_: Type) -> ConvertedColumn:
    try:
        return ConvertedColumn(_parsed_arrays(column, type_))
    except (pa.ArrowException, ValueError):
        return one_by_one(column, stored_type(type_), lambda text: json_value(type_, json.loads(text)))


def _parsed_arrays(column: pa.Array, type_: Type) -> pa.Array:
    """Parse JSON arrays by wrapping each in an object: the parser of Arrow reads only lines of objects."""
    texts = pc.fill_null(column, "null")
    lines = pc.binary_join_element_wise('{"value":', texts, "}\n", "").cast(pa.binary())
    temporal = pa.string() if type_.scalar in TEMPORAL else None
    table = parsed(lines, pa.schema([(_LIST, parse_type(type_, temporal))]), "error")
    return clean(table[_LIST].combine_chunks(), type_)


def _all_match(column: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py())
