"""Turning CSV files into rows: comma separated, quoted with `"`, the names of the columns in the first line.

An empty value is null; `""` is the empty text. Blank lines count for nothing. A row with too few or too many values is
a problem, and so is a text that is not UTF-8. `omnigraph.formats.csv_values` defines how a text
becomes a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from omnigraph.errors import InputColumnsError, Violation
from omnigraph.formats.batch import Converted, shown, sorted_problems
from omnigraph.formats.splits import Split, csv_blocks
from omnigraph.formats.tables import convert_texts
from omnigraph.lang.catalog import Catalog


def csv_pieces(split: Split, catalog: Catalog) -> Iterator[Converted]:
    """Convert a split of a CSV file block by block, in bounded memory; rows are numbered through from 0."""
    _check(split)
    first, block = 0, b""
    for block in csv_blocks(split):
        piece = _converted(split, catalog, block, first)
        first += piece.lines
        yield piece
    if not block:
        yield _converted(split, catalog, b"", 0)


def _check(split: Split) -> None:
    repeated = [name for name in split.header if split.header.count(name) > 1]
    if repeated:
        message = f"{split.file}: column {repeated[0]!r} is there twice"
        raise InputColumnsError(message, path=split.file, columns=list(split.header), hint="rename one of them")


def _converted(split: Split, catalog: Catalog, block: bytes, first: int) -> Converted:
    declared = split.declared(catalog)
    table, bad = _table(block, split.header)
    records = np.delete(np.arange(table.num_rows + len(bad)), [row.number - 1 for row in bad]) + first
    problems = [
        Violation(
            "shape",
            declared.name,
            None,
            (),
            f"a row of {row.actual_columns} values where there are {row.expected_columns} columns: {shown(row.text)}",
            first + row.number - 1,
        )
        for row in bad
    ]
    if table.num_rows and _is_open(block, table):
        message = "a quoted value is not closed before the end of the file"
        problems.append(Violation("shape", declared.name, None, (), message, int(records[-1])))
        table, records = table.slice(0, table.num_rows - 1), records[:-1]
    found = convert_texts(table, declared, dict(split.columns), records, source=split.file)
    lines = found.lines + len(problems)
    return Converted(found.tables, sorted_problems(problems + found.problems), lines, found.fresh)


def _table(block: bytes, header: tuple[str, ...]) -> tuple[pa.Table, list[Any]]:
    """Parse a block: its values as bytes, and the rows that do not have as many as there are columns."""
    schema = pa.schema([(name, pa.binary()) for name in header])
    if not block.strip(b"\r\n"):
        return schema.empty_table(), []
    bad: list[Any] = []
    table = pcsv.read_csv(
        pa.BufferReader(block),
        read_options=pcsv.ReadOptions(use_threads=False, column_names=header, block_size=len(block) + 1),
        parse_options=pcsv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda row: _skip(row, bad)),
        convert_options=pcsv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,
        ),
    )
    return table, bad


def _skip(row: Any, bad: list[Any]) -> str:
    bad.append(row)
    return "skip"


def _is_open(block: bytes, table: pa.Table) -> bool:
    """Tell whether the last value swallowed the rest of the file."""
    last = table.slice(table.num_rows - 1).to_pylist()[0].values()
    return block.count(b'"') % 2 == 1 and any(b"\n" in value for value in last if value)
