"""The rows of a pipeline in this process, as Arrow tables: for small files of CSV, JSONL and Parquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.pipelines import ColumnEntry, SourceEntry, TypeEntry, parts_of
from omnigraph.errors import PipelineSourceError
from omnigraph.formats.batch import Declared
from omnigraph.formats.dialect import CsvDialect
from omnigraph.formats.files import File
from omnigraph.formats.fitting import TypeRows, chosen_columns, fit, keys_of, no_column
from omnigraph.formats.plain import read_plain

_WHOLE_NUMBER = r"^[+-]?[0-9]{1,18}$"
_ORDER = "__order"
_BY = "__by"
Bound = int | float | str


class RowEngine(Protocol):
    """Reads sources and makes the rows of types: in this process, or on Spark."""

    def open(self, name: str, source: SourceEntry, files: Sequence[File], since: str | None) -> str | None:
        """Read a source, or prepare to; return the version that it has now, if it has versions."""

    def columns(self, name: str) -> list[str]: ...

    def highest(self, name: str, column: str) -> Bound | None:
        """Return the greatest value of a column, in a form for JSON."""

    def between(self, name: str, column: str, low: Bound | None, high: Bound | None) -> None:
        """Keep the rows of a source after `low`, up to `high`."""

    def count(self, name: str) -> int: ...

    def rows(self, entry: TypeEntry, source: SourceEntry, declared: Declared) -> TypeRows: ...

    def joined(self, parts: Sequence[Any]) -> Any:
        """Join rows of one type."""

    def bad_lines(self) -> list[dict[str, Any]]:
        """Return the lines of files that are no records."""

    def close(self) -> None: ...


@dataclass(slots=True)
class LocalRows:
    """Reads files into memory."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    bad: list[dict[str, Any]] = field(default_factory=list)

    def open(self, name: str, source: SourceEntry, files: Sequence[File], since: str | None) -> str | None:
        assert since is None, "files have no versions"
        parts = [read_plain(file, source.format, CsvDialect.of(source.csv)) for file in files]
        for one in (line for part in parts for line in part.bad):
            self.bad.append({"rule": "shape", "type": None, "source": name, **asdict(one)})
        self.tables[name] = pa.concat_tables([part.rows for part in parts], promote_options="permissive")
        return None

    def columns(self, name: str) -> list[str]:
        return list(self.tables[name].column_names)

    def highest(self, name: str, column: str) -> Bound | None:
        values = _comparable(self.tables[name][column])
        return _plain_value(pc.max(values).as_py()) if len(values) else None

    def between(self, name: str, column: str, low: Bound | None, high: Bound | None) -> None:
        rows = self.tables[name]
        values = _comparable(rows[column])
        keep = values.is_valid()
        for bound, compare in ((low, pc.greater), (high, pc.less_equal)):
            if bound is not None:
                keep = pc.and_(keep, compare(values, _bound(name, column, bound, values.type)))
        self.tables[name] = rows.filter(pc.fill_null(keep, fill_value=False))

    def count(self, name: str) -> int:
        return int(self.tables[name].num_rows)

    def rows(self, entry: TypeEntry, source: SourceEntry, declared: Declared) -> TypeRows:
        rows = self.tables[entry.source]
        chosen = chosen_columns(entry, self.columns(entry.source), declared)
        made = {name: _value(entry, rows, one) for name, one in chosen.items()}
        if entry.latest_by is not None:
            made[_BY] = _comparable(_column(entry, rows, entry.latest_by))
        found = pa.table(made)
        if entry.latest_by is not None:
            found = _latest(found, keys_of(declared)).drop_columns([_BY])
        if entry.distinct:
            found = pa.TableGroupBy(found, found.column_names, use_threads=False).aggregate([])
        fitted, problems = fit(found, declared, CsvDialect.of(source.csv))
        bad = [{**json.loads(text), "source": entry.source} for text in problems.drop_null().to_pylist()]
        return TypeRows(fitted.filter(problems.is_null()), fitted.num_rows, bad, len(bad))

    def joined(self, parts: Sequence[Any]) -> Any:
        return pa.concat_tables(parts, promote_options="permissive")

    def bad_lines(self) -> list[dict[str, Any]]:
        return self.bad

    def close(self) -> None:
        self.tables.clear()


def _value(entry: TypeEntry, rows: pa.Table, one: ColumnEntry) -> pa.Array:
    if one.column is not None:
        return _column(entry, rows, one.column)
    if one.text is None:
        return pa.repeat(pa.scalar(one.value), rows.num_rows)
    parts: list[Any] = []
    for text, column in parts_of(one.text):
        parts += [pa.scalar(text)] if text else []
        parts += [_column(entry, rows, column).cast(pa.string())] if column else []
    if all(isinstance(part, pa.Scalar) for part in parts):
        return pa.repeat(pa.scalar("".join(part.as_py() for part in parts)), rows.num_rows)
    return pc.binary_join_element_wise(*parts, "")


def _column(entry: TypeEntry, rows: pa.Table, name: str) -> pa.ChunkedArray:
    first, *inner = [name] if name in rows.column_names else name.split(".")
    if first not in rows.column_names:
        raise no_column(entry.source, name, rows.column_names)
    found = rows[first]
    for part in inner:
        if not pa.types.is_struct(found.type) or found.type.get_field_index(part) < 0:
            raise no_column(entry.source, name, rows.column_names)
        found = pc.struct_field(found, part)
    return found


def _latest(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Keep the row of each key that is greatest in `_BY`; rows without a key are kept: each is a problem of its own."""
    keyed = pc.is_valid(rows[keys[0]])
    for name in keys[1:]:
        keyed = pc.and_(keyed, pc.is_valid(rows[name]))
    rows = rows.append_column(_ORDER, pa.array(range(rows.num_rows), pa.int64()))
    whole = rows.filter(keyed)
    # Any value is later than none; of equal rows the one that comes last is taken.
    whole = whole.append_column("__has", pc.is_valid(whole[_BY]))
    in_order = whole.sort_by([("__has", "ascending"), (_BY, "ascending"), (_ORDER, "ascending")])
    in_order = in_order.drop_columns(["__has"])
    place = pa.array(range(in_order.num_rows), pa.int64())
    last = in_order.append_column("__at", place).group_by(list(keys), use_threads=False).aggregate([("__at", "max")])
    kept = in_order.take(last["__at_max"])
    return pa.concat_tables([kept, rows.filter(pc.invert(keyed))]).sort_by(_ORDER).drop_columns([_ORDER])


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts that are whole numbers as numbers: as texts, 9 would come after 10."""
    if not pa.types.is_string(column.type):
        return column
    numbers = pc.all(pc.match_substring_regex(column.drop_null(), _WHOLE_NUMBER), min_count=0).as_py()
    return column.cast(pa.int64()) if numbers and len(column) > column.null_count else column


def _plain_value(value: Any) -> Bound | None:
    if value is None or isinstance(value, int | float | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _bound(source: str, column: str, value: Bound, type_: pa.DataType) -> pa.Scalar:
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    if is_number != isinstance(value, str):
        with suppress(pa.ArrowInvalid):
            return pa.scalar(value).cast(type_)
    message = f"the source '{source}' was loaded up to {column} {value!r}, and its values are now of type {type_}"
    raise PipelineSourceError(message, source=source, hint="restore the column, or load all again: --full")
