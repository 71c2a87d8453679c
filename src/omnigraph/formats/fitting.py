"""Fit the columns of any table to a type of the graph: texts become the values that they spell.

Columns that are no texts are left to the load, which converts them. A row with a value that does not fit is marked with
its problem, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from omnigraph.api.pipelines import ColumnEntry, TypeEntry
from omnigraph.errors import PipelineSourceError
from omnigraph.formats.batch import ENDS, Declared, mismatch
from omnigraph.formats.columns import plain
from omnigraph.formats.csv import from_text
from omnigraph.formats.dialect import CsvDialect
from omnigraph.lang.catalog import EdgeType
from omnigraph.lang.source import did_you_mean
from omnigraph.lang.types import Type
from omnigraph.write.pending import column_types

PROBLEM = "__problem"
_SHOWN = 200


def fit(rows: pa.Table, declared: Declared, dialect: CsvDialect) -> tuple[pa.Table, pa.Array]:
    """Return the rows with columns of the type, and the problem of each row; null if it has none."""
    problems: dict[int, tuple[list[str], list[str]]] = {}
    fitted = {}
    for name in rows.column_names:
        column = plain(rows[name].combine_chunks())
        type_ = target_type(declared, name)
        found = None if type_ is None else _fitted(column, type_, dialect)
        fitted[name] = column if found is None else found[0]
        for at, message in _problems(found, column, type_, f"{declared.name}.{name}"):
            names, messages = problems.setdefault(at, ([], []))
            names.append(name)
            messages.append(message)
    texts = np.full(rows.num_rows, None, object)
    for at, (names, messages) in problems.items():
        texts[at] = _described(declared, names, messages, rows.slice(at, 1).to_pylist()[0])
    return pa.table(fitted), pa.array(texts, pa.string())


def target_type(declared: Declared, name: str) -> Type | None:
    """Return the type of a property, of `id`, or of an end; None if there is none of the name."""
    ends = ENDS if isinstance(declared, EdgeType) else {}
    return column_types(declared).get(ends.get(name, name))


def needs_fitting(column: pa.DataType, type_: Type) -> bool:
    """Whether a column has texts that spell other values, or numbers for a text."""
    is_text = pt.is_string(column) or pt.is_large_string(column)
    wants_text = pt.is_string(_stored(type_))
    return (is_text and not wants_text) or (pt.is_integer(column) and wants_text)


def _stored(type_: Type) -> pa.DataType:
    from omnigraph.storage.columns import arrow_type  # noqa: PLC0415

    return pa.large_binary() if type_.is_blob else arrow_type(type_)


def _fitted(column: pa.Array, type_: Type, dialect: CsvDialect) -> tuple[pa.Array, pa.Array | None] | None:
    if not needs_fitting(column.type, type_):
        return None
    if pt.is_integer(column.type):
        return column.cast(pa.string()), None
    found = from_text(column, type_, dialect)
    return found.values, found.wrong


def _problems(
    found: tuple[pa.Array, pa.Array | None] | None, column: pa.Array, type_: Type | None, label: str
) -> Iterator[tuple[int, str]]:
    if found is None or found[1] is None or type_ is None:
        return
    for at in np.flatnonzero(found[1].to_numpy(zero_copy_only=False)).tolist():
        yield at, mismatch(type_, label, column[at].as_py())


def _described(declared: Declared, names: list[str], messages: list[str], row: Mapping[str, Any]) -> str:
    shown = {name: str(value)[:_SHOWN] for name, value in row.items() if value is not None}
    found = {"rule": "type", "type": declared.name, "properties": names, "message": "; ".join(messages), "row": shown}
    return json.dumps(found, ensure_ascii=False)


# What the executors of a pipeline share ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypeRows:
    """Rows of one type for a load, how many they are, and the problems of those that are left out."""

    rows: Any
    count: int
    problems: Sequence[Mapping[str, Any]] = ()
    bad: int = 0


def keys_of(declared: Declared) -> list[str]:
    """Return the properties, or the id, by which rows of a type are the same entity."""
    return list(getattr(declared, "key", None) or ("id",))


def chosen_columns(entry: TypeEntry, columns: Sequence[str], declared: Declared) -> dict[str, ColumnEntry]:
    """Return what each property is made of; without a mapping, of the column of its name."""
    if entry.columns is not None:
        return entry.columns
    known = [*declared.properties, "id", *(() if hasattr(declared, "key") else ("from", "to", "src", "dst"))]
    return {name: ColumnEntry(column=name) for name in known if name in columns}


def no_column(source: str, name: str, columns: Sequence[str]) -> PipelineSourceError:
    hint = did_you_mean(name, columns) or f"its columns are {', '.join(columns)[:200] or 'none'}"
    return PipelineSourceError(f"the source '{source}' has no column '{name}'", source=source, hint=hint)
