"""Converted batches: rows for the tables of the graph, and the problems of the records that are not among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from omnigraph.core.values import FLOATS, INTEGER_BOUNDS, Scalar
from omnigraph.errors import Violation
from omnigraph.lang.types import Type
from omnigraph.write.pending import RECORD

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
        known |= part.tables.keys() - part.fresh
        problems += part.problems
        lines += part.lines
    whole = {key: pa.concat_tables(pieces) for key, pieces in tables.items()}
    return ConvertedBatch(whole, problems, lines, frozenset(whole.keys() - known))


def in_order(pieces: list[pa.Table]) -> pa.Table:
    """Join parts of one table in the order of their records."""
    rows = pa.concat_tables(pieces)
    return rows if len(pieces) == 1 else rows.sort_by(RECORD)


def sorted_problems(problems: list[Violation]) -> list[Violation]:
    return sorted(problems, key=lambda problem: -1 if problem.record is None else problem.record)


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
