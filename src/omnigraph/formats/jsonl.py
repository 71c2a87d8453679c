"""Convert JSON Lines: node and edge records in any mixture.

A node is `{"type": T, "data": {...}}`, an edge `{"edge": T, "from": id, "to": id, "data": {...}}`, one to a line.
`formats/records.py` defines which lines are valid. Here whole blocks of lines are read at once: they are grouped by
type, Arrow parses each type with its own schema, and lines that Arrow refuses are divided until few enough are left to
be read one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.values import TEMPORAL, ConversionError
from omnigraph.errors import Violation
from omnigraph.formats.batch import ConvertedBatch, in_order, sorted_problems
from omnigraph.formats.columns import Lines, clean, parse_type, parsed
from omnigraph.formats.files import BOM
from omnigraph.formats.identities import are_fresh, with_ids
from omnigraph.formats.jsonl_layout import DATA, cut_out
from omnigraph.formats.records import MAX_LINE, Entity, read_line, to_rows
from omnigraph.formats.splits import Split, line_blocks
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.storage.columns import table_key
from omnigraph.write.pending import image_schema

BLOCK = 2**22
_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"
_FEW = 64  # reading so many lines one by one takes about as long as dividing them further
_PARTS = 4
_LAYOUTS = 4
_MOST_PREFIXES = 64
_PREFIX = re.compile(rb'\{\s*"(type|edge)"\s*:\s*"([^"\\]*)"')
_SAMPLE = 8
_ENVELOPE = pa.schema([("type", pa.string()), ("edge", pa.string())])

Declared = NodeType | EdgeType
Numbers = np.ndarray[Any, Any]


def jsonl_batches(source: Split | bytes, catalog: Catalog) -> Iterator[ConvertedBatch]:
    """Convert a split, or the whole content of a file, batch by batch; records are numbered from 0 across batches."""
    first = 0
    for block in _whole_lines(source):
        batch = JsonlBlock(block, first, catalog).converted()
        first += batch.lines
        yield batch


def _whole_lines(source: Split | bytes) -> Iterator[bytes]:
    """Yield blocks of whole lines."""
    if isinstance(source, bytes):
        yield from _cut(source.removeprefix(BOM))
        return
    starts_file = source.start == 0
    for block in line_blocks(source, MAX_LINE):
        yield from _cut(block.removeprefix(BOM) if starts_file else block)
        starts_file = False


def _cut(data: bytes) -> Iterator[bytes]:
    """Divide data at line ends into blocks that fit the caches of a processor."""
    start = 0
    while len(data) - start > BLOCK:
        end = data.find(b"\n", start + BLOCK) + 1
        if not end:
            break
        yield data[start:end]
        start = end
    if start < len(data):
        yield data[start:]


class JsonlBlock:
    """Converts one block of lines."""

    def __init__(self, data: bytes, first: int, catalog: Catalog) -> None:
        self.lines, self._bytes, self._ends = _lines(data)
        self._is_ascii = data.isascii()
        self._first = first
        self._catalog = catalog
        self._tables: dict[str, list[pa.Table]] = {}
        self._types: dict[str, Declared] = {}
        self._problems: list[Violation] = []

    def converted(self) -> ConvertedBatch:
        framed = self._framed()
        left = np.flatnonzero(framed)
        for _ in range(_MOST_PREFIXES):
            prefix = _PREFIX.match(self.lines[int(left[0])].as_py()) if len(left) else None
            if prefix is None:
                break
            left = self._take(prefix, left)
        if len(left):
            self._dividing(left, self._sort_by_parsing)
        if not framed.all():
            self.read_one_by_one(np.flatnonzero(~framed & ~self._blank()))
        return self.converted_so_far()

    def converted_so_far(self) -> ConvertedBatch:
        tables, fresh = {}, set()
        for key, pieces in self._tables.items():
            brought = in_order(pieces)
            rows, problems = with_ids(self._types[key], brought)
            self._problems += problems
            if rows.num_rows:
                tables[key] = rows
                fresh |= {key} if are_fresh(self._types[key], brought) else set()
        return ConvertedBatch(tables, sorted_problems(self._problems), len(self.lines), frozenset(fresh))

    def read_one_by_one(self, numbers: Numbers) -> None:
        rows: dict[str, list[Any]] = {}
        for number in numbers.tolist():
            found = read_line(self.lines[number].as_py().removesuffix(b"\n"), self._catalog, self._first + number)
            if isinstance(found, Entity):
                key = table_key(found.declared)
                self._types[key] = found.declared
                rows.setdefault(key, []).append(found.row)
            else:
                self._problems += found
        for key, entities in rows.items():
            self._tables.setdefault(key, []).append(to_rows(self._types[key], entities))

    # Lines

    def _framed(self) -> Numbers:
        """Mark lines that start with `{`, end with `}` and are not too long."""
        # If such lines parse as a whole, no object spans two of them: `}` and `{` are never adjacent inside an object.
        starts = np.concatenate([[0], self._ends[:-1]])
        last = np.maximum(self._ends - 2, starts)
        ended = self._bytes[last] == _CLOSE
        if not ended.all():
            ended |= (self._bytes[last] == _RETURN) & (self._bytes[np.maximum(last - 1, starts)] == _CLOSE)
        framed: Numbers = ended & (self._bytes[starts] == _OPEN) & (self._ends - starts <= MAX_LINE + 1)
        return framed

    def _blank(self) -> Numbers:
        lengths = np.diff(self._ends, prepend=0)
        returned = self._bytes[np.maximum(self._ends - 2, 0)] == _RETURN
        blank: Numbers = (lengths == 1) | ((lengths == len(b"\r\n")) & returned)
        return blank

    # Types

    def _take(self, prefix: re.Match[bytes], left: Numbers) -> Numbers:
        """Convert the lines that start with the prefix, and return the others."""
        alike = pc.starts_with(self._select(left), prefix[0]).to_numpy(zero_copy_only=False)
        self._convert(prefix[1].decode(), prefix[2].decode(errors="replace"), left[alike])
        others: Numbers = left[~alike]
        return others

    def _sort_by_parsing(self, numbers: Numbers) -> None:
        """Find the types of lines that do not start with their type."""
        names = parsed(self._select(numbers), _ENVELOPE, "ignore")
        if pc.any(pc.equal(names["type"].is_valid(), names["edge"].is_valid())).as_py():
            raise ConversionError("a line has both 'type' and 'edge', or neither")
        for kind in ("type", "edge"):
            column = names[kind].combine_chunks().dictionary_encode()
            codes = pc.fill_null(column.indices, -1).to_numpy()
            for code, name in enumerate(column.dictionary.to_pylist()):
                self._convert(kind, name, numbers[codes == code])

    def _convert(self, kind: str, name: str, numbers: Numbers) -> None:
        declared = self._catalog.nodes.get(name) if kind == "type" else self._catalog.edge_by_word(name)
        if declared is None:
            self.read_one_by_one(numbers)
            return
        self._types[table_key(declared)] = declared
        left = self._convert_alike(declared, numbers)
        if len(left):
            self._dividing(left, lambda some: self._convert_type(declared, some))

    def _dividing(self, numbers: Numbers, attempt: Callable[[Numbers], None]) -> None:
        """Try all lines at once; on failure divide them, so that one bad line costs few good ones the fast path."""
        try:
            attempt(numbers)
        except (pa.ArrowException, ValueError, RecursionError):
            if len(numbers) <= _FEW:
                self.read_one_by_one(numbers)
                return
            for part in np.array_split(numbers, min(_PARTS, len(numbers))):
                self._dividing(part, attempt)

    # Values

    def _convert_alike(self, declared: Declared, numbers: Numbers) -> Numbers:
        """Convert the lines with the layout of the first, then of the first of the others; return the rest."""
        for _ in range(_LAYOUTS):
            if not len(numbers):
                break
            try:
                found = cut_out(declared, self._text(numbers))
                if found is None:
                    break
                alike, values = found
                rows = _image(declared, values, numbers[alike] + self._first)
            except (pa.ArrowException, ValueError):
                break
            self._tables.setdefault(table_key(declared), []).append(rows)
            numbers = numbers[~alike]
            if len(numbers) > len(alike) // 2:  # many layouts: the parser is quicker
                break
        return numbers

    def _convert_type(self, declared: Declared, numbers: Numbers) -> None:
        lines = self._text(numbers)
        table = parsed(lines, _schema(declared, _temporal_kinds(declared, lines)), "error")
        rows = _rows(declared, table, lines, numbers + self._first)
        self._tables.setdefault(table_key(declared), []).append(rows)

    def _text(self, numbers: Numbers) -> Lines:
        """Select lines and check that they are UTF-8: the parser of Arrow checks only some of the texts."""
        lines = self._select(numbers)
        if not self._is_ascii:
            lines.cast(pa.string())
        return lines

    def _select(self, numbers: Numbers) -> Lines:
        if len(numbers) == len(self.lines):
            return self.lines
        return self.lines.take(pa.array(numbers))


def _lines(data: bytes) -> tuple[Lines, Numbers, Numbers]:
    """Return the lines of a block, its bytes, and where the lines end."""
    if data and not data.endswith(b"\n"):
        data += b"\n"
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(codes == _NEWLINE) + 1
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers), codes, ends


# One type ------------------------------------------------------------------------------------------


def _schema(declared: Declared, temporal: tuple[pa.DataType, ...]) -> pa.Schema:
    kinds = dict(zip(_temporal(declared), temporal, strict=True))
    types = {name: parse_type(property_.type, kinds.get(name)) for name, property_ in declared.properties.items()}
    envelope = ("edge", "from", "to") if isinstance(declared, EdgeType) else ("type",)
    data = pa.struct([("id", pa.string()), *types.items()])
    return pa.schema([*((name, pa.string()) for name in envelope), ("data", data)])


def _temporal(declared: Declared) -> list[str]:
    return [name for name, property_ in declared.properties.items() if property_.type.scalar in TEMPORAL]


def _temporal_kinds(declared: Declared, lines: Lines) -> tuple[pa.DataType, ...]:
    """Guess from the first lines whether dates are written as texts or as numbers."""
    names = _temporal(declared)
    if not names:
        return ()
    sample = [json.loads(line).get("data") for line in lines[:_SAMPLE].to_pylist()]
    known = [data for data in sample if isinstance(data, dict)]
    return tuple(pa.int64() if any(_has_number(data.get(name)) for data in known) else pa.string() for name in names)


def _has_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, list) and any(isinstance(item, int) for item in value))


def _rows(declared: Declared, table: pa.Table, lines: Lines, records: Numbers) -> pa.Table:
    data = table["data"].combine_chunks()
    if data.null_count and pc.any(pc.match_substring(lines.filter(data.is_null()), "null")).as_py():
        raise ConversionError("missing data is empty, but null data is an error")
    id_, *columns = data.flatten()
    found = {"id": id_, **dict(zip(declared.properties, columns, strict=True))}
    return _image(
        declared, {**{DATA + name: column for name, column in found.items()}, **_ends(declared, table)}, records
    )


def _ends(declared: Declared, table: pa.Table) -> dict[str, pa.Array]:
    ends = {name: table[name].combine_chunks() for name in ("from", "to") if isinstance(declared, EdgeType)}
    if any(end.null_count for end in ends.values()):
        raise ConversionError("an edge has no end")
    return ends


def _image(declared: Declared, values: Mapping[str, pa.Array], records: Numbers) -> pa.Table:
    """Build rows from parsed values by name; missing ones are null."""
    schema = image_schema(declared)
    none = pa.nulls(len(records), pa.string())
    ends = [values[name] for name in ("from", "to") if isinstance(declared, EdgeType)]
    columns = [
        clean(values[DATA + name], property_.type)
        if DATA + name in values
        else pa.nulls(len(records), schema.field(name).type)
        for name, property_ in declared.properties.items()
    ]
    return pa.table([values.get(f"{DATA}id", none), *ends, *columns, pa.array(records, pa.int64())], schema=schema)
