"""Turning tables of one type into rows: Arrow, Parquet and CSV, and records of Python.

Columns are properties by name, or by a mapping of their names. Besides these there are `id`, which is optional, and for
edges `from` and `to`, or `src` and `dst`. A column that is nothing of the type is an error, and so is a required
property without a column. How values are converted is written down in `omnigraph.formats.columns`, and for the texts
of a CSV file in `omnigraph.formats.csv_values`. An id and the ends of an edge are texts; integers are taken for their
decimal text, which is the id of a node with an integer key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.errors import InputColumnsError, Violation
from omnigraph.formats.batch import Converted, joined, misfit, sorted_problems
from omnigraph.formats.columns import Column, UnsuitableError, coerced, plain, stored_type
from omnigraph.formats.csv_values import from_text, meant
from omnigraph.formats.identities import are_fresh, with_ids
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.lang.types import Type
from omnigraph.storage.columns import table_key
from omnigraph.storage.read import DST, ID, SRC
from omnigraph.write.pending import column_types, image_schema

Declared = NodeType | EdgeType
Convert = Callable[[pa.Array, Type], Column]
Columns = Mapping[str, str | None]
"""Which property or part a column of the input is; None is one to be left out."""

_ROWS = 2**16
_ALIASES = {"from": SRC, "to": DST}
_SHOWN_COLUMNS = 30


def convert_table(
    rows: Any, declared: Declared, columns: Columns | None = None, *, source: str = "the table"
) -> Converted:
    """Convert an Arrow table, reader or batches, anything that exports an Arrow stream, or an iterable of dicts."""
    return joined(table_pieces(rows, declared, columns, source=source))


def table_pieces(
    rows: Any, declared: Declared, columns: Columns | None = None, *, source: str = "the table"
) -> Iterator[Converted]:
    """Convert a table piece by piece, in bounded memory; rows are numbered through from 0."""
    first = 0
    for batch in batches_of(rows):
        piece = _Piece(declared, source, coerced).converted(batch, _wanted(columns), first)
        first += piece.lines
        yield piece


def convert_texts(
    batch: pa.Table, declared: Declared, columns: Columns | None, records: np.ndarray[Any, Any], *, source: str
) -> Converted:
    """Convert a table of texts, as a CSV file has them; `records` are the numbers of its rows."""
    texts = {name: batch[name].combine_chunks() for name in batch.column_names}
    piece = _Piece(declared, source, from_text)
    return piece.converted(texts, _wanted(columns), records)


def batches_of(rows: Any) -> Iterator[dict[str, Any]]:
    """Cut rows of any kind into pieces: columns by name, Arrow arrays or lists of Python values."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        yield from _arrow(_chunks(pa.table(rows)))
    elif hasattr(rows, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(rows)
        yield from _arrow(itertools.chain(reader, [_empty(reader.schema)]))  # its columns count, if no rows do
    else:
        yield from _iterated(iter(rows))


def _chunks(table: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=_ROWS)
    return batches or [_empty(table.schema)]


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)


def _arrow(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        names = batch.schema.names
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            message = f"column {min(repeated)!r} is there twice"
            raise InputColumnsError(message, path=None, columns=names, hint="rename one of them")
        yield dict(zip(names, batch.columns, strict=True))


def _iterated(items: Iterator[Any]) -> Iterator[dict[str, Any]]:
    for first in items:
        if isinstance(first, pa.Table | pa.RecordBatch):
            yield from _arrow(_chunks(pa.table(first)))
            continue
        records = [first, *itertools.islice(items, _ROWS - 1)]
        names = dict.fromkeys(name for record in records for name in record)
        yield {name: [record.get(name) for record in records] for name in names}


def _wanted(columns: Columns | None) -> Columns:
    return columns or {}


@dataclass(frozen=True, slots=True)
class _Piece:
    """Converts one batch of rows of one type."""

    declared: Declared
    source: str
    convert: Convert

    def converted(self, batch: Mapping[str, Any], renamed: Columns, first: int | np.ndarray[Any, Any]) -> Converted:
        count = len(next(iter(batch.values()), ()))
        records = np.arange(first, first + count) if isinstance(first, int) else first
        sources = {target: batch[name] for target, name in self._columns(list(batch), renamed).items()}
        found, unsuitable = {}, []
        for target, column in sources.items():
            try:
                found[target] = self._column(column, target)
            except UnsuitableError as error:
                unsuitable.append(f"{self._label(target)} is {self._types[target]}, and its column is {error}")
        if unsuitable:
            raise self._error("; ".join(unsuitable), list(batch), "convert the column, or leave it out")
        return self._collected(found, sources, records)

    @property
    def _types(self) -> dict[str, Type]:
        return column_types(self.declared)

    def _label(self, target: str) -> str:
        return f"{self.declared.name}.{target}"

    # Which columns

    def _columns(self, names: list[str], renamed: Columns) -> dict[str, str]:
        """Find for each column of the table the column of the input that it comes from."""
        missing = [name for name in renamed if name not in names]
        if missing:
            raise self._error(f"there is no column {missing[0]!r} to map", names, "correct the mapping")
        found: dict[str, str] = {}
        for name in names:
            target = self._target(renamed.get(name, name))
            if target is None:
                continue
            if target not in self._types:
                raise self._error(
                    self._stranger(name, target), names, "map it to a property, or to null to leave it out"
                )
            if target in found:
                raise self._error(f"columns {found[target]!r} and {name!r} are the same", names, "leave one out")
            found[target] = name
        self._require(found, names)
        return found

    def _target(self, name: str | None) -> str | None:
        is_end = isinstance(self.declared, EdgeType) and name in _ALIASES
        return _ALIASES[str(name)] if is_end else name

    def _stranger(self, name: str, target: str) -> str:
        return f"column {name!r} is no property of {self.declared.name}" + (
            "" if name == target else f", and neither is {target!r}, to which it is mapped"
        )

    def _require(self, found: Mapping[str, str], names: list[str]) -> None:
        ends = [end for end in (SRC, DST) if isinstance(self.declared, EdgeType)]
        required = [name for name, property_ in self.declared.properties.items() if not property_.type.nullable]
        missing = [name for name in (*ends, *required) if name not in found]
        if missing:
            spelled = {SRC: "from", DST: "to"} if ends else {}
            listed = ", ".join(repr(spelled.get(name, name)) for name in missing)
            raise self._error(f"{self.declared.name} needs {listed}", names, "add the column, or map one to it")

    def _error(self, problem: str, names: list[str], hint: str) -> InputColumnsError:
        shown = ", ".join(names[:_SHOWN_COLUMNS]) + (", ..." if len(names) > _SHOWN_COLUMNS else "")
        message = f"{self.source}: {problem}; its columns are: {shown or 'none'}"
        return InputColumnsError(message, path=self.source, columns=names, hint=hint)

    # What is in them

    def _column(self, column: Any, target: str) -> Column:
        type_ = self._types[target]
        if isinstance(column, list):
            return _of_values(column, type_)
        if target in (ID, SRC, DST) and pa.types.is_integer(plain(column).type):
            return Column(plain(column).cast(pa.string()))
        return self.convert(column, type_)

    def _collected(
        self, found: Mapping[str, Column], sources: Mapping[str, Any], records: np.ndarray[Any, Any]
    ) -> Converted:
        problems: list[Violation] = []
        bad = np.zeros(len(records), bool)
        for target, column in found.items():
            wrong = self._wrong(target, column)
            if wrong is not None:
                bad |= wrong
                problems += self._problems(target, sources[target], found.get(ID), np.flatnonzero(wrong), records)
        brought = self._rows(found, records)
        rows, others = with_ids(self.declared, brought.filter(pa.array(~bad)) if bad.any() else brought)
        key = table_key(self.declared)
        fresh = frozenset({key} if are_fresh(self.declared, brought) else ())
        return Converted({key: rows}, sorted_problems(problems + others), len(records), fresh)

    def _wrong(self, target: str, column: Column) -> np.ndarray[Any, Any] | None:
        """Mark what cannot be converted, and ends that are missing."""
        wrong = column.wrong
        if target in (SRC, DST) and column.values.null_count:
            wrong = column.values.is_null()
        return None if wrong is None else wrong.to_numpy(zero_copy_only=False)

    def _problems(
        self, target: str, column: Any, ids: Column | None, places: np.ndarray[Any, Any], records: np.ndarray[Any, Any]
    ) -> Iterator[Violation]:
        type_ = self._types[target]
        values = _taken(column, places)
        for place, value in zip(places.tolist(), values, strict=True):
            id_ = None if ids is None else ids.values[place].as_py()
            rule, message = self._wording(target, type_, value)
            yield Violation(rule, self.declared.name, id_, (target,), message, int(records[place]))

    def _wording(self, target: str, type_: Type, value: Any) -> tuple[str, str]:
        if value is None:
            return "required", f"{self._label(target)} is required, and there is no value"
        if self.convert is not from_text:
            return "type", misfit(type_, self._label(target), value)
        try:
            return "type", misfit(type_, self._label(target), meant(value.decode(), type_))
        except UnicodeDecodeError:
            return "shape", f"{self._label(target)} is not UTF-8: {value[:40]!r}"

    def _rows(self, found: Mapping[str, Column], records: np.ndarray[Any, Any]) -> pa.Table:
        arrays = [
            found[target].values if target in found else pa.nulls(len(records), stored_type(type_))
            for target, type_ in self._types.items()
        ]
        return pa.table([*arrays, pa.array(records, pa.int64())], schema=image_schema(self.declared))


def _taken(column: Any, places: np.ndarray[Any, Any]) -> list[Any]:
    if isinstance(column, list):
        return [column[place] for place in places.tolist()]
    return list(plain(column.take(pa.array(places))).to_pylist())


def _of_values(values: list[Any], type_: Type) -> Column:
    """Convert plain values: as a column if they make one, or else one by one."""
    try:
        return coerced(pa.array(values), type_)
    except (pa.ArrowException, UnsuitableError, ValueError, OverflowError, TypeError):
        found = [_of_value(value, type_) for value in values]
    wrong = pa.array([column.wrong is not None for column in found])
    return Column(pa.concat_arrays([column.values for column in found]), wrong if pc.any(wrong).as_py() else None)


def _of_value(value: Any, type_: Type) -> Column:
    try:
        return coerced(pa.array([value]), type_)
    except (pa.ArrowException, UnsuitableError, ValueError, OverflowError, TypeError):
        return Column(pa.nulls(1, stored_type(type_)), pa.array([True]))
