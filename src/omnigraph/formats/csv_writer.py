"""Writing columns as CSV that the loader reads as the same values, by kernels over whole columns.

An empty value is null, `""` is the empty text. Texts are quoted, dates are ISO 8601, lists and vectors are JSON arrays,
a Blob is `base64:...`. The ends of an edge are the columns `from` and `to`.
"""

from __future__ import annotations

import itertools

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from omnigraph.formats.json_writer import TEXT, base64_text, concatenated, json_text, with_items
from omnigraph.storage.read import DST, SRC

ENDS = {SRC: "from", DST: "to"}
"""What the ends of an edge are called outside of its table."""


def csv_header(names: list[str]) -> str:
    return ",".join(ENDS.get(name, name) for name in names) + "\n"


def csv_lines(rows: pa.Table) -> pa.Array:
    """Write each row of a table as one record with its end."""
    texts = [pc.fill_null(csv_text(rows[name].combine_chunks()), pa.scalar("", TEXT)) for name in rows.column_names]
    pieces = itertools.chain.from_iterable((text, ",") for text in texts)
    return concatenated(*list(pieces)[:-1], "\n")


def csv_text(column: pa.Array) -> pa.Array:
    """Write the values of a column; null stays null."""
    type_ = column.type
    if pt.is_string(type_):
        return _quoted(column.cast(TEXT))
    if pt.is_list(type_) or pt.is_fixed_size_list(type_):
        items = column.flatten()
        return _quoted(json_text(with_items(column, _iso(items)) if _is_temporal(items.type) else column))
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
