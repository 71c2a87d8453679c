"""Assign ids to rows, whole columns at a time: the text of the key, or fresh ULIDs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.values import FLOATS, Scalar
from omnigraph.errors import Violation
from omnigraph.formats.batch import shown
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.lang.identity import canonical_text
from omnigraph.storage.read import ID
from omnigraph.write.pending import RECORD

_ALPHABET = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)  # Crockford's
_PAIRS = np.stack([np.repeat(_ALPHABET, 32), np.tile(_ALPHABET, 32)], axis=1).reshape(-1).view(np.uint16)
_LENGTH = 26
_COUNTED = 8  # the last characters of a fresh id count up; those before are the same in one batch
_TO_ESCAPE = '[\\x00-\\x1f"\\\\]'
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_CONTROLS = {chr(code): _ESCAPES.get(chr(code), f"\\u{code:04x}") for code in range(32)}


def with_ids(declared: NodeType | EdgeType, rows: pa.Table) -> tuple[pa.Table, list[Violation]]:
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


def are_fresh(declared: NodeType | EdgeType, rows: pa.Table) -> bool:
    """Return whether `with_ids` generates all ids of the rows, so that none of them exists yet."""
    return not (isinstance(declared, NodeType) and declared.key) and rows[ID].null_count == rows.num_rows


def new_ids(count: int) -> pa.Array:
    """Generate ULIDs that sort in the order in which they are assigned.

    They share the time and 40 random bits, and count up from 39 random ones: two batches of the same millisecond
    have an id in common less than once in 10^18 times.
    """
    spread = int.from_bytes(os.urandom(10), "big") & ~(1 << 39)
    head = _base32((time.time_ns() // 1_000_000) << 40 | spread >> 40, _LENGTH - _COUNTED)
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


# Keys ----------------------------------------------------------------------------------------------


def _with_key_ids(node: NodeType, rows: pa.Table) -> tuple[pa.Table, list[Violation]]:
    problems: list[Violation] = []
    for name in node.key:
        column = rows[name]
        if column.null_count:
            problems += _without_key(node, rows.filter(column.is_null()), name)
            rows = rows.filter(column.is_valid())
        if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(rows[name]), min_count=0).as_py():
            problems += _not_finite(node, rows.filter(pc.invert(pc.is_finite(rows[name]))), name)
            rows = rows.filter(pc.is_finite(rows[name]))
    ids = key_ids(node, rows)
    given = rows[ID].combine_chunks()
    if given.null_count < len(given):
        wrong = pc.fill_null(pc.not_equal(given, ids), fill_value=False)
        if pc.any(wrong).as_py():
            problems += _mismatched(node, rows.filter(wrong), ids.filter(wrong))
            rows, ids = rows.filter(pc.invert(wrong)), ids.filter(pc.invert(wrong))
    return _with_column(rows, ids), problems


def key_ids(node: NodeType, rows: pa.Table) -> pa.Array:
    """Derive the ids of keyed nodes: the text of the key, or a JSON array of texts for a key of several properties."""
    texts = [_texts(node.properties[name].type.scalar, rows[name].combine_chunks()) for name in node.key]
    if len(texts) == 1:
        return texts[0]
    parts: list[Any] = []
    for text in texts:
        parts += ['","' if parts else '["', _escaped(text)]
    return pc.binary_join_element_wise(*parts, '"]', "")


def _texts(scalar: Scalar, column: pa.Array) -> pa.Array:
    """Write key values as `canonical_text` does."""
    if scalar is Scalar.STRING:
        return column
    if scalar is Scalar.DATE:
        column = column.view(pa.int32())
    elif scalar is Scalar.DATETIME:
        column = column.view(pa.int64())
    text = pc.cast(column, pa.string())
    return _float_texts(scalar, column, text) if scalar in FLOATS else text


def _float_texts(scalar: Scalar, column: pa.Array, text: pa.Array) -> pa.Array:
    """Rewrite the texts that Arrow writes with an exponent, or with the sign of a zero."""
    other = pc.or_(pc.match_substring(text, "e"), pc.equal(text, "-0"))
    if not pc.any(other).as_py():
        return text
    respelled = [canonical_text(scalar, value) for value in column.filter(other).to_pylist()]
    return pc.replace_with_mask(text, other, pa.array(respelled, pa.string()))


def _escaped(text: pa.Array) -> pa.Array:
    """Escape what must be escaped inside a JSON string, as `json.dumps` does."""
    if not pc.any(pc.match_substring_regex(text, _TO_ESCAPE)).as_py():
        return text
    for char in '\\"':
        text = pc.replace_substring(text, char, _ESCAPES[char])
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        for char, escape in _CONTROLS.items():
            text = pc.replace_substring(text, char, escape)
    return text


def _with_column(rows: pa.Table, ids: pa.Array) -> pa.Table:
    at = rows.column_names.index(ID)
    return rows.set_column(at, rows.schema.field(at), ids)


# Problems ------------------------------------------------------------------------------------------


def _without_key(node: NodeType, rows: pa.Table, name: str) -> list[Violation]:
    message = f"{node.name}.{name} is required, and there is no value"
    return _violations(node, ("required", name), rows, [message] * rows.num_rows)


def _not_finite(node: NodeType, rows: pa.Table, name: str) -> list[Violation]:
    messages = [f"{node.name}.{name} must be a finite number, not {value}" for value in rows[name].to_pylist()]
    return _violations(node, ("finite", name), rows, messages)


def _mismatched(node: NodeType, rows: pa.Table, ids: pa.Array) -> list[Violation]:
    pairs = zip(rows[ID].to_pylist(), ids.to_pylist(), strict=True)
    messages = [f"id {shown(given)} does not match its canonical @key id {shown(id_)}" for given, id_ in pairs]
    return _violations(node, ("key", *node.key), rows, messages, "leave the id out: it follows from the key")


def _violations(
    node: NodeType, broken: tuple[str, ...], rows: pa.Table, messages: Sequence[str], hint: str | None = None
) -> list[Violation]:
    rule, *names = broken
    found = zip(rows[ID].to_pylist(), rows[RECORD].to_pylist(), messages, strict=True)
    return [Violation(rule, node.name, id_, tuple(names), message, record, hint) for id_, record, message in found]
