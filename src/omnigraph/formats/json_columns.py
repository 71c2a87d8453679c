"""Parsing lines of JSON into columns by Arrow, with everything refused that Arrow takes and JSON does not."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from omnigraph.formats.columns import coerced
from omnigraph.lang.types import FLOATS, Type
from omnigraph.storage.columns import arrow_type

Lines: TypeAlias = pa.BinaryArray
"""Lines with their line ends, so that any selection of them is a text of lines again."""


class UncleanError(ValueError):
    """Among the lines is one that Arrow cannot be trusted with."""


def parsed(lines: Lines, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Parse lines of which each holds one object, or raise; `unexpected` fields are "error" or "ignore"."""
    text = lines.buffers()[2].slice(0, lines.total_values_length)
    table = pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )
    if table.num_rows != len(lines):
        raise UncleanError
    return table


def parse_type(type_: Type, temporal: pa.DataType | None) -> pa.DataType:
    """Return what to parse a property as: what is closest to JSON. Dates are parsed as `temporal` says."""
    if type_.is_vector:
        return pa.list_(pa.float64())
    if type_.is_blob:
        return pa.string()
    # Rounding a number to 32 bits goes by way of 64, here as everywhere.
    scalar = temporal or (pa.float64() if type_.scalar in FLOATS else arrow_type(Type(type_.scalar)))
    return pa.list_(scalar) if type_.is_list else scalar


def clean(column: pa.Array, type_: Type) -> pa.Array:
    """Convert a parsed column to what the property stores, or raise."""
    found = coerced(column, type_)
    if found.wrong is not None:
        raise UncleanError
    if type_.scalar in FLOATS and not pc.all(pc.is_finite(_flat(found.values)), min_count=0).as_py():
        raise UncleanError  # Arrow takes NaN for JSON
    return found.values


def _flat(values: pa.Array) -> pa.Array:
    return values.flatten() if pa.types.is_list(values.type) else values
