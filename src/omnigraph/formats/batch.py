"""Converted batches: rows for the tables of the graph with their ids, and the problems of the other records."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.values import FLOATS, INTEGER_BOUNDS, Scalar
from omnigraph.errors import Violation
from omnigraph.formats.writers import escaped, without_dates
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.lang.identity import canonical_text
from omnigraph.lang.types import Type
from omnigraph.storage.read import DST, ID, SRC
from omnigraph.write.pending import RECORD, image_schema

Declared = NodeType | EdgeType
Numbers = np.ndarray[Any, Any]

ENDS = {"from": SRC, "to": DST}
"""The columns that hold the ends of an edge, by their names in every format."""

_ALPHABET = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)  # Crockford's
_PAIRS = np.stack([np.repeat(_ALPHABET, 32), np.tile(_ALPHABET, 32)], axis=1).reshape(-1).view(np.uint16)
_LENGTH = 26
_COUNTED = 8  # the last characters of a fresh id count up; those before are the same in one batch
_SHOWN = 80
_STORED_AS = {
    Scalar.STRING: "Utf8",
    Scalar.BOOL: "Boolean",
    Scalar.I32: "Int32",
    Scalar.I64: "Int64",
    Scalar.U32: "UInt32",
    Scalar.U64: "UInt64",
    Scalar.F32: "Float32",
    Scalar.F64: "Float64",
    Scalar.DATE: "Date32",
    Scalar.DATETIME: "Date64",
}


@dataclass(frozen=True, slots=True)
class ConvertedBatch:
    """Rows by table key in the order of the input, problems, and the number of lines or rows that were read.

    A record is in the tables or has a problem, never both. Rows satisfy all rules but those of `value_violations`: a
    required property may still be null. In the tables of `fresh`, every id was generated here, so none exists yet.
    """

    tables: dict[str, pa.Table]
    problems: list[Violation]
    lines: int
    fresh: frozenset[str] = frozenset()


def joined(parts: Iterable[ConvertedBatch]) -> ConvertedBatch:
    """Join the batches of one input; their records are already numbered across batches."""
    tables: dict[str, list[pa.Table]] = {}
    problems: list[Violation] = []
    lines = 0
    known: set[str] = set()
    for part in parts:
        for key, table in part.tables.items():
            tables.setdefault(key, []).append(table)
        # A table is fresh only if it is so in every batch that has rows of it.
        known |= part.tables.keys() - part.fresh
        problems += part.problems
        lines += part.lines
    whole = {key: pa.concat_tables(pieces) for key, pieces in tables.items()}
    return ConvertedBatch(whole, problems, lines, frozenset(whole.keys() - known))


def image(declared: Declared, columns: Mapping[str, pa.Array], records: Numbers | Sequence[int]) -> pa.Table:
    """Build rows from their columns and record numbers; missing columns are null."""
    schema = image_schema(declared)
    found = {**columns, RECORD: pa.array(records, pa.int64())}
    none = {field.name: pa.nulls(len(records), field.type) for field in schema if field.name not in found}
    return pa.table([{**found, **none}[name] for name in schema.names], schema=schema)


def in_order(pieces: list[pa.Table]) -> pa.Table:
    """Join parts of one table in the order of their records."""
    rows = pa.concat_tables(pieces)
    return rows if len(pieces) == 1 else rows.sort_by(RECORD)


def sorted_problems(problems: list[Violation]) -> list[Violation]:
    return sorted(problems, key=lambda problem: -1 if problem.record is None else problem.record)


# Ids ---------------------------------------------------------------------------------------------


def with_ids(declared: Declared, rows: pa.Table) -> tuple[pa.Table, list[Violation]]:
    """Fill the `id` column; rows that cannot have an id are reported and left out.

    A node with a key has the id that `omnigraph.lang.identity.node_id` derives; an id in the input must be that
    one. Other rows keep the id of the input, or get a fresh one.
    """
    if isinstance(declared, NodeType) and declared.key:
        return _with_key_ids(declared, rows)
    given = rows[ID].combine_chunks()
    if given.null_count:
        fresh = new_ids(given.null_count)
        given = fresh if given.null_count == len(given) else pc.replace_with_mask(given, given.is_null(), fresh)
    return _with_column(rows, given), []


def are_fresh(declared: Declared, rows: pa.Table) -> bool:
    """Return whether `with_ids` generates all ids of the rows, so that none of them exists yet."""
    return not (isinstance(declared, NodeType) and declared.key) and rows[ID].null_count == rows.num_rows


def new_ids(count: int) -> pa.Array:
    """Generate ULIDs that sort in the order in which they are assigned.

    They share the time and 40 random bits, and count up from 39 random ones: two batches of the same millisecond
    have an id in common less than once in 10^18 times.
    """
    spread = int.from_bytes(os.urandom(10), "big") & ~(1 << 39)
    head = _base32((time.time_ns() // 1_000_000) << 40 | spread >> 40, _LENGTH - _COUNTED)
    # The top bit of the 40 is cleared above, so that counting up never carries into the shared part.
    counters = np.arange(count, dtype=np.int64) + (spread & (1 << 39) - 1)
    texts = np.empty((count, _LENGTH // 2), np.uint16)  # two characters at a time: half the work
    texts[:, : len(head) // 2] = head.view(np.uint16)
    for place in range(_COUNTED // 2):
        texts[:, -1 - place] = _PAIRS[(counters >> 10 * place) & 1023]
    offsets = np.arange(0, (count + 1) * _LENGTH, _LENGTH, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(texts)])


def _base32(number: int, length: int) -> np.ndarray[Any, Any]:
    digits = [number >> 5 * place & 31 for place in reversed(range(length))]
    return _ALPHABET[digits]


# Ids of keyed nodes ----------------------------------------------------------------------------------------------


def _with_key_ids(node: NodeType, rows: pa.Table) -> tuple[pa.Table, list[Violation]]:
    problems: list[Violation] = []
    for name in node.key:
        label = f"{node.name}.{name}"
        if rows[name].null_count:
            bad = rows.filter(rows[name].is_null())
            messages = [f"{label} is required, and there is no value"] * bad.num_rows
            problems += _violations(node, ("required", name), bad, messages)
            # Left out at once: a record with two bad parts of its key is reported once.
            rows = rows.filter(rows[name].is_valid())
        # An id is a text, and a load of an export must derive the same one: NaN is not equal to itself.
        if pa.types.is_floating(rows[name].type) and not pc.all(pc.is_finite(rows[name]), min_count=0).as_py():
            bad = rows.filter(pc.invert(pc.is_finite(rows[name])))
            messages = [f"{label} must be a finite number, not {value}" for value in bad[name].to_pylist()]
            problems += _violations(node, ("finite", name), bad, messages)
            rows = rows.filter(pc.is_finite(rows[name]))
    ids = key_ids(node, rows)
    given = rows[ID].combine_chunks()
    if given.null_count < len(given):
        wrong = pc.fill_null(pc.not_equal(given, ids), fill_value=False)
        if pc.any(wrong).as_py():
            bad = rows.filter(wrong)
            pairs = zip(bad[ID].to_pylist(), ids.filter(wrong).to_pylist(), strict=True)
            messages = [f"id {shown(id_)} does not match its canonical @key id {shown(key)}" for id_, key in pairs]
            hint = "leave the id out: it follows from the key"
            problems += _violations(node, ("key", *node.key), bad, messages, hint)
            rows, ids = rows.filter(pc.invert(wrong)), ids.filter(pc.invert(wrong))
    return _with_column(rows, ids), problems


def key_ids(node: NodeType, rows: pa.Table) -> pa.Array:
    """Derive the ids of keyed nodes: the text of the key, or a JSON array of texts for a key of several properties."""
    texts = [_texts(node.properties[name].type.scalar, rows[name].combine_chunks()) for name in node.key]
    if len(texts) == 1:
        return texts[0]
    parts: list[Any] = []
    for text in texts:
        parts += ['","' if parts else '["', escaped(text)]
    return pc.binary_join_element_wise(*parts, '"]', "")


def _texts(scalar: Scalar, column: pa.Array) -> pa.Array:
    """Write key values as `canonical_text` does."""
    if scalar is Scalar.STRING:
        return column
    text = pc.cast(without_dates(column), pa.string())
    return _float_texts(scalar, column, text) if scalar in FLOATS else text


def _float_texts(scalar: Scalar, column: pa.Array, text: pa.Array) -> pa.Array:
    """Rewrite the texts that Arrow writes with an exponent, or with the sign of a zero."""
    other = pc.or_(pc.match_substring(text, "e"), pc.equal(text, "-0"))
    if not pc.any(other).as_py():
        return text
    respelled = [canonical_text(scalar, value) for value in column.filter(other).to_pylist()]
    return pc.replace_with_mask(text, other, pa.array(respelled, pa.string()))


def _with_column(rows: pa.Table, ids: pa.Array) -> pa.Table:
    at = rows.column_names.index(ID)
    return rows.set_column(at, rows.schema.field(at), ids)


def _violations(
    node: NodeType, broken: tuple[str, ...], rows: pa.Table, messages: Sequence[str], hint: str | None = None
) -> list[Violation]:
    rule, *names = broken
    found = zip(rows[ID].to_pylist(), rows[RECORD].to_pylist(), messages, strict=True)
    return [Violation(rule, node.name, id_, tuple(names), message, record, hint) for id_, record, message in found]


# Messages ----------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """Format a value for a message: texts in quotes, long ones clipped."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def mismatch(type_: Type, label: str, value: object) -> str:
    """Describe why a value cannot be stored in a property of the type."""
    if type_.is_vector:
        return _vector_mismatch(type_, label, value)
    if type_.is_list:
        return _list_mismatch(type_, label, value)
    return _scalar_mismatch(type_.scalar, label, value)


def _vector_mismatch(type_: Type, label: str, value: object) -> str:
    if not isinstance(value, list):
        return f"vector property {label} expects an array of {type_.dimension} numbers, not {shown(value)}"
    if len(value) != type_.dimension:
        return f"vector property {label} expects {type_.dimension} dimensions, got {len(value)}"
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int | float):
            return f"elements must be numeric in vector property {label}, not {shown(item)}"
    return f"an element is not finite, or exceeds Float32 range, in vector property {label}"


def _list_mismatch(type_: Type, label: str, value: object) -> str:
    if not isinstance(value, list):
        return f"list property {label} expects a JSON array, not {shown(value)}"
    return f"null or invalid item in list property {label}, which holds {_STORED_AS[type_.scalar]}: {shown(value)}"


def _scalar_mismatch(scalar: Scalar, label: str, value: object) -> str:
    if scalar is Scalar.BLOB:
        return f"Blob property {label} must be a URI string, not {shown(value)}"
    if scalar in (Scalar.DATE, Scalar.DATETIME) and isinstance(value, str):
        return f"invalid {scalar} literal {shown(value)} for {label}"
    stored = _STORED_AS[scalar]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and (scalar in FLOATS or (scalar not in (Scalar.STRING, Scalar.BOOL) and isinstance(value, int))):
        bounds = INTEGER_BOUNDS.get(scalar)
        holds = f" ({bounds[0]} to {bounds[1]})" if bounds else ""
        return f"{shown(value)} exceeds {stored} range{holds} of {label}"
    return f"strict property {label} expects {stored}, not {shown(value)}"
