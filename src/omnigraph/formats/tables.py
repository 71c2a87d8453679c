"""Convert tables of one type, from Parquet or CSV, to rows of the graph.

Columns are properties by name, or by a mapping of their names. Besides these there are `id`, which is optional, and for
edges `from` and `to`, or `src` and `dst`. A column that the type does not have is an error, and so is a required
property without a column. `core/values.py` defines how values are converted. An id and the ends of an edge are texts;
integers are accepted as their decimal text, which is the id of a node with an integer key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.core.values import ConversionError
from omnigraph.errors import InputColumnsError, Violation
from omnigraph.formats.batch import (
    ENDS,
    ConvertedBatch,
    Declared,
    Numbers,
    are_fresh,
    image,
    mismatch,
    sorted_problems,
    with_ids,
)
from omnigraph.formats.columns import ConvertedColumn, coerced, plain
from omnigraph.lang.catalog import EdgeType
from omnigraph.lang.types import Type
from omnigraph.storage.columns import table_key
from omnigraph.storage.read import DST, ID, SRC
from omnigraph.write.pending import column_types

Convert = Callable[[pa.Array, Type], ConvertedColumn]
Columns = Mapping[str, str | None]
"""The property, `id`, `from` or `to` that a column of the input becomes; None leaves the column out."""

Explain = Callable[[Type, str, Any], tuple[str, str]]
"""Returns the rule that a value breaks, and the message, given the type and name of the property."""

_SHOWN_COLUMNS = 30


def table_batches(
    reader: pa.RecordBatchReader, declared: Declared, columns: Columns, *, source: str, when: str = ""
) -> Iterator[ConvertedBatch]:
    """Convert a table batch by batch, in bounded memory; rows are numbered from 0 across batches."""
    names = reader.schema.names
    # Before columns are looked up by name: the second of two would silently win.
    refuse_repeated(names, source)
    converter = TableConverter(declared, source, coerced, lambda *value: ("type", mismatch(*value)), when)
    empty = pa.record_batch([pa.nulls(0, field.type) for field in reader.schema], schema=reader.schema)
    first = 0
    for batch in itertools.chain(reader, [empty]):  # so that the columns of a file without rows are checked, too
        found = dict(zip(names, batch.columns, strict=True))
        yield converter.converted(found, columns, np.arange(first, first + batch.num_rows))
        first += batch.num_rows


def refuse_repeated(names: Sequence[str], source: str) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        message = f"{source}: column {repeated!r} appears twice"
        raise InputColumnsError(message, path=source, columns=list(names), hint="rename one of them")


@dataclass(frozen=True, slots=True)
class TableConverter:
    """Converts batches of rows of one type: of those that have a value in the column `when`, if there is one."""

    declared: Declared
    source: str
    convert: Convert
    explain: Explain
    when: str = ""

    def converted(self, batch: Mapping[str, pa.Array], renamed: Columns, records: Numbers) -> ConvertedBatch:
        """Convert one batch; `records` are the numbers of its rows."""
        lines = len(records)
        if self.when:
            batch, records = self._with_value(batch, records)
        sources = {target: batch[name] for target, name in self._columns(list(batch), renamed).items()}
        found, unsuitable = {}, []
        for target, column in sources.items():
            try:
                found[target] = self._column(column, target)
            except ConversionError as error:
                unsuitable.append(f"{self._label(target)} is {self._types[target]}, but its column is {error}")
        if unsuitable:
            raise self._error("; ".join(unsuitable), list(batch), "convert the column, or leave it out")
        return replace(self._collected(found, sources, records), lines=lines)

    def _with_value(self, batch: Mapping[str, pa.Array], records: Numbers) -> tuple[dict[str, pa.Array], Numbers]:
        if self.when not in batch:
            raise self._error(f"there is no column {self.when!r} for 'when'", list(batch), "correct the mapping")
        kept = batch[self.when].is_valid()
        return {name: column.filter(kept) for name, column in batch.items()}, records[
            kept.to_numpy(zero_copy_only=False)
        ]

    @property
    def _types(self) -> dict[str, Type]:
        return column_types(self.declared)

    def _label(self, target: str) -> str:
        return f"{self.declared.name}.{target}"

    # Columns

    def _columns(self, names: list[str], renamed: Columns) -> dict[str, str]:
        """Return the column of the input for each column of the table."""
        unknown = [name for name in renamed if name not in names]
        if unknown:
            raise self._error(f"there is no column {unknown[0]!r} to map", names, "correct the mapping")
        found: dict[str, str] = {}
        is_edge = isinstance(self.declared, EdgeType)
        for name in names:
            wanted = renamed.get(name, name)
            target = ENDS.get(str(wanted), wanted) if is_edge else wanted
            if target is None:
                continue
            if target not in self._types:
                mapped = "" if name == target else f", nor is {target!r}, which it is mapped to"
                problem = f"column {name!r} is not a property of {self.declared.name}{mapped}"
                raise self._error(problem, names, "map it to a property, or to null to leave it out")
            if target in found:
                raise self._error(f"columns {found[target]!r} and {name!r} are the same", names, "leave one out")
            found[target] = name
        required = ((name, name) for name, declared in self.declared.properties.items() if not declared.type.nullable)
        needed = [*(ENDS.items() if is_edge else ()), *required]
        missing = ", ".join(repr(name) for name, target in needed if target not in found)
        if missing:
            raise self._error(f"{self.declared.name} needs {missing}", names, "add the column, or map one to it")
        return found

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
        self, found: Mapping[str, ConvertedColumn], sources: Mapping[str, Any], records: Numbers
    ) -> ConvertedBatch:
        problems: list[Violation] = []
        bad = np.zeros(len(records), bool)
        for target, column in found.items():
            no_end = target in (SRC, DST) and column.values.null_count
            wrong = column.values.is_null() if no_end else column.wrong
            if wrong is not None:
                marks = wrong.to_numpy(zero_copy_only=False)
                bad |= marks
                problems += self._problems(target, sources[target], found.get(ID), np.flatnonzero(marks), records)
        # Before bad rows are left out: a batch without any id of the input is fresh, whatever else is wrong.
        brought = image(self.declared, {target: column.values for target, column in found.items()}, records)
        rows, others = with_ids(self.declared, brought.filter(pa.array(~bad)) if bad.any() else brought)
        key = table_key(self.declared)
        fresh = frozenset({key} if are_fresh(self.declared, brought) else ())
        return ConvertedBatch({key: rows}, sorted_problems(problems + others), len(records), fresh)

    def _problems(
        self, target: str, column: Any, ids: ConvertedColumn | None, places: Numbers, records: Numbers
    ) -> Iterator[Violation]:
        label = self._label(target)
        values = plain(column.take(pa.array(places))).to_pylist()
        for place, value in zip(places.tolist(), values, strict=True):
            id_ = None if ids is None else ids.values[place].as_py()
            rule, message = "required", f"{label} is required, and there is no value"
            if value is not None:
                rule, message = self.explain(self._types[target], label, value)
            yield Violation(rule, self.declared.name, id_, (target,), message, int(records[place]))
