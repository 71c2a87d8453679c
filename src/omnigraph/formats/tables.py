"""Convert tables of one type, from Parquet or CSV, to rows of the graph.

Columns are properties by name, or by a mapping of their names. Besides these there are `id`, which is optional, and for
edges `from` and `to`, or `src` and `dst`. A column that the type does not have is an error, and so is a required
property without a column. `core/values.py` defines how values are converted. An id and the ends of an edge are texts;
integers are accepted as their decimal text, which is the id of a node with an integer key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.core.values import ConversionError
from omnigraph.errors import InputColumnsError, Violation
from omnigraph.formats.batch import ConvertedBatch, mismatch, sorted_problems
from omnigraph.formats.columns import ConvertedColumn, coerced, plain, stored_type
from omnigraph.formats.identities import are_fresh, with_ids
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.lang.types import Type
from omnigraph.storage.columns import table_key
from omnigraph.storage.read import DST, ID, SRC
from omnigraph.write.pending import column_types, image_schema

Declared = NodeType | EdgeType
Convert = Callable[[pa.Array, Type], ConvertedColumn]
Columns = Mapping[str, str | None]
"""The property, `id`, `from` or `to` that a column of the input becomes; None leaves the column out."""

Explain = Callable[[Type, str, Any], tuple[str, str]]
"""Returns the rule that a value breaks, and the message, given the type and name of the property."""

Indices = np.ndarray[Any, Any]

_ALIASES = {"from": SRC, "to": DST}
_SHOWN_COLUMNS = 30


def table_batches(
    reader: pa.RecordBatchReader, declared: Declared, columns: Columns, *, source: str
) -> Iterator[ConvertedBatch]:
    """Convert a table batch by batch, in bounded memory; rows are numbered from 0 across batches."""
    names = reader.schema.names
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        message = f"column {min(repeated)!r} appears twice"
        raise InputColumnsError(message, path=None, columns=names, hint="rename one of them")
    converter = TableConverter(declared, source, coerced, _explain)
    empty = pa.record_batch([pa.nulls(0, field.type) for field in reader.schema], schema=reader.schema)
    first = 0
    for batch in itertools.chain(reader, [empty]):  # so that the columns of a file without rows are checked, too
        found = dict(zip(names, batch.columns, strict=True))
        yield converter.converted(found, columns, np.arange(first, first + batch.num_rows))
        first += batch.num_rows


def _explain(type_: Type, label: str, value: Any) -> tuple[str, str]:
    return "type", mismatch(type_, label, value)


@dataclass(frozen=True, slots=True)
class TableConverter:
    """Converts batches of rows of one type."""

    declared: Declared
    source: str
    convert: Convert
    explain: Explain

    def converted(self, batch: Mapping[str, pa.Array], renamed: Columns, records: Indices) -> ConvertedBatch:
        """Convert one batch; `records` are the numbers of its rows."""
        sources = {target: batch[name] for target, name in self._columns(list(batch), renamed).items()}
        found, unsuitable = {}, []
        for target, column in sources.items():
            try:
                found[target] = self._column(column, target)
            except ConversionError as error:
                unsuitable.append(f"{self._label(target)} is {self._types[target]}, but its column is {error}")
        if unsuitable:
            raise self._error("; ".join(unsuitable), list(batch), "convert the column, or leave it out")
        return self._collected(found, sources, records)

    @property
    def _types(self) -> dict[str, Type]:
        return column_types(self.declared)

    def _label(self, target: str) -> str:
        return f"{self.declared.name}.{target}"

    # Columns

    def _columns(self, names: list[str], renamed: Columns) -> dict[str, str]:
        """Return the column of the input for each column of the table."""
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
                    self._unknown(name, target), names, "map it to a property, or to null to leave it out"
                )
            if target in found:
                raise self._error(f"columns {found[target]!r} and {name!r} are the same", names, "leave one out")
            found[target] = name
        self._require(found, names)
        return found

    def _target(self, name: str | None) -> str | None:
        is_end = isinstance(self.declared, EdgeType) and name in _ALIASES
        return _ALIASES[str(name)] if is_end else name

    def _unknown(self, name: str, target: str) -> str:
        mapped = "" if name == target else f", nor is {target!r}, which it is mapped to"
        return f"column {name!r} is not a property of {self.declared.name}{mapped}"

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

    # Values

    def _column(self, column: pa.Array, target: str) -> ConvertedColumn:
        type_ = self._types[target]
        if target in (ID, SRC, DST) and pa.types.is_integer(plain(column).type):
            return ConvertedColumn(plain(column).cast(pa.string()))
        return self.convert(column, type_)

    def _collected(
        self, found: Mapping[str, ConvertedColumn], sources: Mapping[str, Any], records: Indices
    ) -> ConvertedBatch:
        problems: list[Violation] = []
        bad = np.zeros(len(records), bool)
        for target, column in found.items():
            wrong = self._wrong(target, column)
            if wrong is not None:
                bad |= wrong
                problems += self._problems(target, sources[target], found.get(ID), np.flatnonzero(wrong), records)
        # Before bad rows are left out: a batch without any id of the input is fresh, whatever else is wrong.
        rows_in = self._rows(found, records)
        rows, others = with_ids(self.declared, rows_in.filter(pa.array(~bad)) if bad.any() else rows_in)
        key = table_key(self.declared)
        fresh = frozenset({key} if are_fresh(self.declared, rows_in) else ())
        return ConvertedBatch({key: rows}, sorted_problems(problems + others), len(records), fresh)

    def _wrong(self, target: str, column: ConvertedColumn) -> Indices | None:
        """Mark values that cannot be converted, and missing ends."""
        wrong = column.wrong
        if target in (SRC, DST) and column.values.null_count:
            wrong = column.values.is_null()
        return None if wrong is None else wrong.to_numpy(zero_copy_only=False)

    def _problems(
        self, target: str, column: Any, ids: ConvertedColumn | None, places: Indices, records: Indices
    ) -> Iterator[Violation]:
        type_ = self._types[target]
        values = plain(column.take(pa.array(places))).to_pylist()
        for place, value in zip(places.tolist(), values, strict=True):
            id_ = None if ids is None else ids.values[place].as_py()
            if value is None:
                rule, message = "required", f"{self._label(target)} is required, and there is no value"
            else:
                rule, message = self.explain(type_, self._label(target), value)
            yield Violation(rule, self.declared.name, id_, (target,), message, int(records[place]))

    def _rows(self, found: Mapping[str, ConvertedColumn], records: Indices) -> pa.Table:
        arrays = [
            found[target].values if target in found else pa.nulls(len(records), stored_type(type_))
            for target, type_ in self._types.items()
        ]
        return pa.table([*arrays, pa.array(records, pa.int64())], schema=image_schema(self.declared))
