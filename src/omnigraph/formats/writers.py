"""The formats of an export: how batches of rows of one type become a file that can be loaded again."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from omnigraph.formats.csv_writer import ENDS, csv_header, csv_lines
from omnigraph.formats.json_writer import contents, json_lines, with_items

Write = Callable[[io.RawIOBase, str, pa.Schema, Iterable[pa.Table]], None]
"""Writes the rows of a table, by its key and the columns that they have, to a stream."""

_MOMENT = pa.timestamp("ms", "UTC")
_GROUP_ROWS, _GROUP_BYTES = 2**16, 2**26


def write_jsonl(stream: io.RawIOBase, key: str, _: pa.Schema, batches: Iterable[pa.Table]) -> None:
    stream.writelines(contents(json_lines(key, rows)) for rows in batches)


def write_csv(stream: io.RawIOBase, _: str, schema: pa.Schema, batches: Iterable[pa.Table]) -> None:
    stream.write(csv_header(schema.names).encode())
    stream.writelines(contents(csv_lines(rows)) for rows in batches)


def write_parquet(stream: io.RawIOBase, _: str, schema: pa.Schema, batches: Iterable[pa.Table]) -> None:
    """Write what Parquet has a type for as it is; it has none for a Date64, which would be cut down to its day."""
    fields = [pa.field(ENDS.get(field.name, field.name), _kept_type(field.type)) for field in schema]
    stored = pa.schema(fields)
    with pq.ParquetWriter(stream, stored, compression="zstd") as writer:
        for rows in _gathered(batches):
            writer.write_table(pa.table([_kept(rows[name].combine_chunks()) for name in schema.names], schema=stored))


WRITERS: dict[str, Write] = {"jsonl": write_jsonl, "csv": write_csv, "parquet": write_parquet}


def _kept_type(type_: pa.DataType) -> pa.DataType:
    if pt.is_list(type_):
        return pa.list_(pa.field("item", _kept_type(type_.value_type)))
    return _MOMENT if pt.is_date64(type_) else type_


def _kept(column: pa.Array) -> pa.Array:
    if pt.is_list(column.type):
        return with_items(column, _kept(column.flatten())).cast(_kept_type(column.type))
    return column.view(pa.int64()).view(_MOMENT) if pt.is_date64(column.type) else column


def _gathered(batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Put batches together until they make a row group."""
    held: list[pa.Table] = []
    for batch in batches:
        held.append(batch)
        if sum(rows.num_rows for rows in held) >= _GROUP_ROWS or sum(rows.nbytes for rows in held) >= _GROUP_BYTES:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)
