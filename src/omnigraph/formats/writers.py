"""Write rows as JSONL, CSV and Parquet that a load reads back as the same values, by kernels over whole columns.

JSONL: one record for each row, `id` first among its data, nulls written out, dates as days and date-times as
milliseconds since 1970, numbers of 32 bits as the same number of 64 bits, a Blob as `base64:...`.
CSV: an empty value is null, `""` is the empty text. Texts are quoted, dates are ISO 8601, lists and vectors are JSON
arrays. In CSV and Parquet the ends of an edge are the columns `from` and `to`.
"""

from __future__ import annotations

import binascii
import io
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from omnigraph.core.values import BASE64
from omnigraph.formats.files import grouped
from omnigraph.storage.read import DST, ID, SRC

RowWriter = Callable[[io.RawIOBase, str, pa.Schema, Iterable[pa.Table]], None]
"""Writes the rows of a table, given its key and columns, to a stream."""

TEXT = pa.large_string()
_ENDS = {SRC: "from", DST: "to"}
_BYTES = pa.large_binary()
_MOMENT = pa.timestamp("ms", "UTC")
_GROUP_ROWS, _GROUP_BYTES = 2**16, 2**26
_NEEDS_ESCAPE = r'["\\\x00-\x1f]'
_NEEDS_NUMBER = r"[\x00-\x1f]"
_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NUMBERED = {chr(code): f"\\u{code:04x}" for code in range(32)} | _SHORT
_GROUP, _DIGITS = 3, 4  # base64 writes every 3 bytes as 4 characters


def write_jsonl(stream: io.RawIOBase, key: str, _: pa.Schema, batches: Iterable[pa.Table]) -> None:
    stream.writelines(contents(json_lines(key, rows)) for rows in batches)


def write_csv(stream: io.RawIOBase, _: str, schema: pa.Schema, batches: Iterable[pa.Table]) -> None:
    stream.write(",".join(_ENDS.get(name, name) for name in schema.names).encode() + b"\n")
    stream.writelines(contents(csv_lines(rows)) for rows in batches)


def write_parquet(stream: io.RawIOBase, _: str, schema: pa.Schema, batches: Iterable[pa.Table]) -> None:
    """Write rows as Parquet. It has no Date64 and would truncate one to its day, so those become timestamps."""
    fields = [pa.field(_ENDS.get(field.name, field.name), _kept_type(field.type)) for field in schema]
    stored = pa.schema(fields)
    # Batches are small, to bound memory; row groups are large, because each is read and compressed by itself.
    with pq.ParquetWriter(stream, stored, compression="zstd") as writer:
        for group in grouped(batches, lambda batch: (batch.num_rows, batch.nbytes), (_GROUP_ROWS, _GROUP_BYTES)):
            rows = pa.concat_tables(group)
            writer.write_table(pa.table([_kept(rows[name].combine_chunks()) for name in schema.names], schema=stored))


WRITERS: dict[str, RowWriter] = {"jsonl": write_jsonl, "csv": write_csv, "parquet": write_parquet}


# JSON ----------------------------------------------------------------------------------------------


def json_lines(key: str, rows: pa.Table) -> pa.Array:
    """Write each row of a table, given its key such as `node:Person`, as one line."""
    kind, _, name = key.partition(":")
    names = dict.fromkeys((ID, *rows.column_names))
    texts = {column: _or_null(json_text(rows[column].combine_chunks())) for column in names}
    head = [f'{{"{"type" if kind == "node" else "edge"}":{json.dumps(name)}']
    if kind == "edge":
        head += [',"from":', texts.pop(SRC), ',"to":', texts.pop(DST)]
    data = [piece for column, text in texts.items() for piece in (f",{json.dumps(column)}:", text)]
    data[0] = data[0].removeprefix(",")
    return concatenated(*head, ',"data":{', *data, "}}\n")


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, pa.scalar("null", TEXT)) if texts.null_count else texts


def json_text(column: pa.Array) -> pa.Array:
    """Write the values of a column; null stays null. Its numbers must be finite."""
    type_ = column.type
    if pt.is_string(type_) or pt.is_large_string(type_):
        return concatenated('"', escaped(column.cast(TEXT)), '"')
    if pt.is_floating(type_):
        return _floats(column)
    if pt.is_large_binary(type_):
        return concatenated('"', base64_text(column), '"')
    if pt.is_list(type_) or pt.is_fixed_size_list(type_):
        items = with_items(column, json_text(column.flatten()))
        return concatenated("[", pc.binary_join(items, pa.scalar(",", TEXT)), "]")
    return concatenated('"', _iso(column), '"') if _is_temporal(type_) else column.cast(TEXT)


def without_dates(column: pa.Array) -> pa.Array:
    """Return dates as days and date-times as milliseconds since 1970, other columns as they are."""
    # A view, because a cast of Date64 would write the day and lose the time.
    if pt.is_date64(column.type):
        return column.view(pa.int64())
    return column.view(pa.int32()) if pt.is_date32(column.type) else column


def concatenated(*pieces: str | pa.Array) -> pa.Array:
    """Concatenate constants and columns row by row; a null makes the row null."""
    parts = [pa.scalar(piece, TEXT) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*parts, pa.scalar("", TEXT))


def with_items(lists: pa.Array, items: pa.Array) -> pa.ListArray:
    """Replace the items of the lists of a column, one for one."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    # From lengths and not from the offsets of the column: those of a slice do not begin at 0.
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, items, mask=lists.is_null() if lists.null_count else None)


def escaped(texts: pa.Array) -> pa.Array:
    """Escape what must be escaped inside a JSON string, as `json.dumps` does."""
    if _any_match(texts, _NEEDS_ESCAPE):
        # The backslash first, or it would escape the other escapes.
        texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
        if _any_match(texts, _NEEDS_NUMBER):
            for char, escape in _NUMBERED.items():
                texts = pc.replace_substring(texts, char, escape)
    return texts


def _any_match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _floats(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.float64()).cast(TEXT)
    # A reader would take "-0" for an integer, and the zero would lose its sign.
    return pc.if_else(pc.equal(texts, pa.scalar("-0", TEXT)), pa.scalar("-0.0", TEXT), texts)


def base64_text(column: pa.Array) -> pa.Array:
    """Write bytes as `base64:...`: pad each value to whole groups, encode all at once, then mark the padding."""
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    missing = -lengths % _GROUP
    filling = pa.array([b"", b"\0", b"\0\0"], _BYTES).take(pa.array(missing))
    filled = pc.binary_join_element_wise(pc.fill_null(column, b""), filling, pa.scalar(b"", _BYTES))
    ends = np.cumsum((lengths + missing) // _GROUP * _DIGITS)
    digits = np.frombuffer(binascii.b2a_base64(contents(filled), newline=False), np.uint8).copy()
    digits[ends[missing > 0] - 1] = ord("=")
    digits[ends[missing > 1] - 2] = ord("=")
    offsets = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int64))
    texts = pa.Array.from_buffers(TEXT, len(column), [None, offsets, pa.py_buffer(digits)])
    return pc.if_else(column.is_valid(), concatenated(BASE64, texts), pa.scalar(None, TEXT))


def contents(texts: pa.Array) -> memoryview[Any]:
    """Return the content of all texts, or bytes, of an array, without a copy."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return memoryview(b"")
    # Large arrays only: `string` has offsets of 32 bits.
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data).cast("B")[ends[0] : ends[-1]]


# CSV -----------------------------------------------------------------------------------------------


def csv_lines(rows: pa.Table) -> pa.Array:
    """Write each row of a table as one record."""
    texts = [pc.fill_null(csv_text(rows[name].combine_chunks()), pa.scalar("", TEXT)) for name in rows.column_names]
    pieces = itertools.chain.from_iterable((text, ",") for text in texts)
    return concatenated(*list(pieces)[:-1], "\n")


def csv_text(column: pa.Array) -> pa.Array:
    """Write the values of a column; null stays null."""
    type_ = column.type
    if pt.is_string(type_):
        return _quoted(column.cast(TEXT))
    if pt.is_list(type_) or pt.is_fixed_size_list(type_):
        return _quoted(json_text(column))
    if pt.is_large_binary(type_):
        return base64_text(column)
    return _iso(column) if _is_temporal(type_) else json_text(column)


def _quoted(texts: pa.Array) -> pa.Array:
    return concatenated('"', pc.replace_substring(texts, '"', '""'), '"')


def _is_temporal(type_: pa.DataType) -> bool:
    return bool(pt.is_date32(type_) or pt.is_date64(type_))


def _iso(column: pa.Array) -> pa.Array:
    if pt.is_date32(column.type):
        return column.cast(TEXT)
    moments = column.view(pa.int64()).view(pa.timestamp("ms", "UTC")).cast(TEXT)
    return pc.replace_substring(moments, " ", "T")


# Parquet -------------------------------------------------------------------------------------------


def _kept_type(type_: pa.DataType) -> pa.DataType:
    if pt.is_list(type_):
        return pa.list_(pa.field("item", _kept_type(type_.value_type)))
    return _MOMENT if pt.is_date64(type_) else type_


def _kept(column: pa.Array) -> pa.Array:
    if pt.is_list(column.type):
        return with_items(column, _kept(column.flatten())).cast(_kept_type(column.type))
    return column.view(pa.int64()).view(_MOMENT) if pt.is_date64(column.type) else column
