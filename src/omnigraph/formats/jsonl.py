"""Convert JSON Lines: node and edge records in any mixture.

A node is `{"type": T, "data": {...}}`, an edge `{"edge": T, "from": id, "to": id, "data": {...}}`, one to a line.
`formats/records.py` defines which lines are valid. Here whole blocks of lines are read at once, grouped by type. Lines
of one layout are cut apart (see "Lines of one layout" below). Arrow parses the others with the schema of their type,
and lines that Arrow refuses are divided until few enough are left to be read one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.values import FLOATS, TEMPORAL, ConversionError, Scalar
from omnigraph.errors import Violation
from omnigraph.formats.batch import (
    ENDS,
    ConvertedBatch,
    Declared,
    Numbers,
    are_fresh,
    image,
    in_order,
    sorted_problems,
    with_ids,
)
from omnigraph.formats.columns import BYTE_MASKS, WORD, Lines, clean, overlapping_words, parse_type, parsed
from omnigraph.formats.files import BOM, Split, line_blocks
from omnigraph.formats.records import MAX_LINE, Entity, read_line, to_rows
from omnigraph.lang.catalog import Catalog, EdgeType
from omnigraph.lang.types import Type
from omnigraph.storage.columns import table_key

BLOCK = 2**22
_NEWLINE, _RETURN, _OPEN, _CLOSE, _QUOTE, _BACKSLASH, _BLANK = b'\n\r{}"\\ '
_FEW = 64  # reading so many lines one by one takes about as long as dividing them further
_PARTS = 4
_LAYOUTS = 4
_MOST_PREFIXES = 64
_PREFIX = re.compile(rb'\{\s*"(type|edge)"\s*:\s*"([^"\\]*)"')
_SAMPLE = 8
_ENVELOPE = pa.schema([("type", pa.string()), ("edge", pa.string())])


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
        # Only at the start of the file: in the middle the same bytes are a character of a text.
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
        # Most lines start with their type. The first line that is left shows one type, and takes all lines of it along.
        for _ in range(_MOST_PREFIXES):
            prefix = _PREFIX.match(self.lines[int(left[0])].as_py()) if len(left) else None
            if prefix is None:
                break
            alike = pc.starts_with(self._select(left), prefix[0]).to_numpy(zero_copy_only=False)
            self._convert(prefix[1].decode(), prefix[2].decode(errors="replace"), left[alike])
            left = left[~alike]
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
        found: dict[str, list[Entity]] = {}
        for number in numbers.tolist():
            one = read_line(self.lines[number].as_py().removesuffix(b"\n"), self._catalog, self._first + number)
            if isinstance(one, Entity):
                found.setdefault(table_key(one.declared), []).append(one)
            else:
                self._problems += one
        for entities in found.values():
            declared = entities[0].declared
            self._add(declared, to_rows(declared, [entity.row for entity in entities]))

    # Lines

    def _framed(self) -> Numbers:
        """Mark lines that start with `{`, end with `}` and are not too long."""
        # If such lines parse as a whole, no object spans two of them: `}` and `{` are never adjacent inside an object.
        starts = np.concatenate([[0], self._ends[:-1]])
        last = np.maximum(self._ends - 2, starts)
        ended = self._bytes[last] == _CLOSE
        if not ended.all():
            # Lines of Windows end in two characters. Looked at only if there are any: most files have none.
            ended |= (self._bytes[last] == _RETURN) & (self._bytes[np.maximum(last - 1, starts)] == _CLOSE)
        framed: Numbers = ended & (self._bytes[starts] == _OPEN) & (self._ends - starts <= MAX_LINE + 1)
        return framed

    def _blank(self) -> Numbers:
        lengths = np.diff(self._ends, prepend=0)
        returned = self._bytes[np.maximum(self._ends - 2, 0)] == _RETURN
        blank: Numbers = (lengths == 1) | ((lengths == len(b"\r\n")) & returned)
        return blank

    # Types

    def _sort_by_parsing(self, numbers: Numbers) -> None:
        """Find the types of lines that do not start with their type."""
        # Only the envelope is parsed, so that lines of one type can be parsed together by the schema of that type.
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
            self._add(declared, rows)
            numbers = numbers[~alike]
            if len(numbers) > len(alike) // 2:  # many layouts: the parser is quicker
                break
        return numbers

    def _convert_type(self, declared: Declared, numbers: Numbers) -> None:
        lines = self._text(numbers)
        table = parsed(lines, _schema(declared, lines), "error")
        self._add(declared, _rows(declared, table, lines, numbers + self._first))

    def _add(self, declared: Declared, rows: pa.Table) -> None:
        self._types[table_key(declared)] = declared
        self._tables.setdefault(table_key(declared), []).append(rows)

    def _text(self, numbers: Numbers) -> Lines:
        """Select lines and check that they are UTF-8: the parser of Arrow checks only some of the texts."""
        lines = self._select(numbers)
        if not self._is_ascii:
            # For its check alone: the cast raises for bytes that are not UTF-8.
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


def _schema(declared: Declared, lines: Lines) -> pa.Schema:
    """Return the schema to parse lines with. The first lines show whether dates are written as texts or as numbers."""
    dates = [name for name, property_ in declared.properties.items() if property_.type.scalar in TEMPORAL]
    sample = [json.loads(line).get("data") for line in lines[:_SAMPLE].to_pylist()] if dates else []
    known = [data for data in sample if isinstance(data, dict)]
    kinds = {name: pa.int64() if any(_has_number(data.get(name)) for data in known) else pa.string() for name in dates}
    types = {name: parse_type(property_.type, kinds.get(name)) for name, property_ in declared.properties.items()}
    envelope = ("edge", *ENDS) if isinstance(declared, EdgeType) else ("type",)
    data = pa.struct([("id", pa.string()), *types.items()])
    return pa.schema([*((name, pa.string()) for name in envelope), ("data", data)])


def _has_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, list) and any(isinstance(item, int) for item in value))


def _rows(declared: Declared, table: pa.Table, lines: Lines, records: Numbers) -> pa.Table:
    data = table["data"].combine_chunks()
    if data.null_count and pc.any(pc.match_substring(lines.filter(data.is_null()), "null")).as_py():
        raise ConversionError("missing data is empty, but null data is an error")
    values = dict(zip(("id", *declared.properties), data.flatten(), strict=True))
    ends = {name: table[name].combine_chunks() for name in ENDS if isinstance(declared, EdgeType)}
    if any(end.null_count for end in ends.values()):
        raise ConversionError("an edge has no end")
    return _image(declared, {**{_DATA + name: column for name, column in values.items()}, **ends}, records)


def _image(declared: Declared, values: Mapping[str, pa.Array], records: Numbers) -> pa.Table:
    """Build rows from parsed values by name: `from`, `to`, and those in `data` as `data.name`."""
    columns = {}
    for name, column in values.items():
        inside = name.removeprefix(_DATA)
        is_property = inside != name and inside in declared.properties
        columns[ENDS.get(name, inside)] = clean(column, declared.properties[inside].type) if is_property else column
    return image(declared, columns, records)


# Lines of one layout -------------------------------------------------------------------------------
#
# A program writes record after record in one way: the same names, order and blanks. The first line shows the layout. A
# line has it if the same bytes are between its values, and it is valid JSON if its values are: a string without
# backslash and control characters is, and so is a number that matches a pattern. Lines of other layouts go to the
# parser, which takes three times as long.

_DATA = "data."
_MEMBER = re.compile(rb'\s*"([^"\\]*)"\s*:\s*(?:"([^"\\]*)"|([-+.0-9eE]+|true|false)|(\{)|null)')
_END, _COMMA = re.compile(rb"\s*\}"), re.compile(rb"\s*,")
_QUOTED = (Scalar.STRING, Scalar.DATE, Scalar.DATETIME, Scalar.BLOB)
_WORDS = "^(true|false|null)$"
_INTEGER = "^(-?(0|[1-9][0-9]*)|null)$"
_DECIMAL = r"^(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|null)$"


@dataclass(frozen=True, slots=True)
class _Member:
    """A value of the first line: its name, its position and whether it is quoted. A null has no position."""

    name: str
    start: int = -1
    end: int = -1
    quoted: bool = False


def cut_out(declared: Declared, lines: Lines) -> tuple[Numbers, dict[str, pa.Array]] | None:
    """Extract the values of the lines with the layout of the first; None if this path cannot read that layout.

    Return which lines have it, and their values by name: `from`, `to`, and those in `data` as `data.name`. Missing
    values are null. A number that does not fit its property raises.
    """
    first = lines[0].as_py()
    members = _members(first)
    if members is None or not _fit(members, declared):
        return None
    values = [member for member in members if member.start >= 0 and member.name not in ("type", "edge")]
    if not values:
        return None
    ends, starts = [0, *(one.end for one in values)], [*(one.start for one in values), len(first)]
    between = [first[end:start] for end, start in zip(ends, starts, strict=True)]
    alike, texts = _texts(lines, between)
    bare = [(text, _type(declared, one.name)) for one, text in zip(values, texts, strict=True) if not one.quoted]
    good = np.logical_and.reduce([_are_good(text, type_) for text, type_ in bare]) if bare else np.True_
    if not good.all():
        texts = [text.filter(pa.array(good)) for text in texts]
        alike[alike] = good
    return alike, {
        one.name: text if one.quoted else _parsed(text, _type(declared, one.name))
        for one, text in zip(values, texts, strict=True)
    }


# The layout ----------------------------------------------------------------------------------------


def _members(line: bytes) -> list[_Member] | None:
    """Find the values of a line; None if some are not strings, numbers, booleans or null."""
    found: list[_Member] = []
    inside, at = "", 1
    while (match := _MEMBER.match(line, at)) is not None:
        name = inside + match[1].decode(errors="replace")
        at = match.end()
        if name.startswith(_DATA) and not inside:
            return None
        if match[4]:
            if name != "data":
                return None
            inside = _DATA
            continue
        found.append(_Member(name, *match.span(2 if match[2] is not None else 3), match[2] is not None))
        while (closed := _END.match(line, at)) is not None:
            at = closed.end()
            if not inside:
                return found if line[at:] == b"\n" else None
            inside = ""
        comma = _COMMA.match(line, at)
        if comma is None:
            return None
        at = comma.end()
    return None


def _fit(members: Sequence[_Member], declared: Declared) -> bool:
    names = [member.name for member in members]
    envelope = {"edge", "from", "to"} if isinstance(declared, EdgeType) else {"type"}
    outside = {name for name in names if not name.startswith(_DATA)}
    return len(set(names)) == len(names) and outside == envelope and all(_fits(one, declared) for one in members)


def _fits(member: _Member, declared: Declared) -> bool:
    name = member.name.removeprefix(_DATA)
    if name in (member.name, "id"):
        return member.quoted
    property_ = declared.properties.get(name)
    if property_ is None or property_.type.is_list or property_.type.is_vector:
        return False
    scalar = property_.type.scalar
    if member.start < 0:
        return True
    return scalar in _QUOTED if member.quoted else scalar in TEMPORAL or scalar not in _QUOTED


def _type(declared: Declared, name: str) -> Type:
    return declared.properties[name.removeprefix(_DATA)].type


# The lines -----------------------------------------------------------------------------------------


def _texts(lines: Lines, between: Sequence[bytes]) -> tuple[Numbers, list[pa.Array]]:
    """Return which lines have these bytes between their values, and the values of those lines."""
    content = lines.buffers()[2].slice(0, lines.total_values_length)
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[: len(lines) + 1]
    assert lines.offset == 0, "lines are selected by copying"
    codes = np.frombuffer(content, np.uint8)
    alike, spans = _spans(codes, overlapping_words(content), offsets, between)
    alike &= ~_odd(codes, offsets)
    places = np.stack(spans, axis=1)
    chosen = (places if alike.all() else places[alike]).astype(np.int32, copy=False)
    count, width = chosen.shape
    pieces = pa.Array.from_buffers(pa.string(), max(chosen.size - 1, 0), [None, pa.py_buffer(chosen), content])
    return alike, [pieces.take(pa.array(np.arange(count) * width + at)) for at in range(0, width, 2)]


def _spans(codes: Numbers, words: Numbers, offsets: Numbers, between: Sequence[bytes]) -> tuple[Numbers, list[Numbers]]:
    """Walk through all lines at once, from value to value; the next quote shows where a value ends."""
    starts, ends = offsets[:-1], offsets[1:]
    quotes = np.flatnonzero(codes == _QUOTE)
    quote = np.searchsorted(quotes, starts)
    alike = np.ones(len(starts), bool)
    at, spans = starts, []
    for before, after in pairwise(between):
        alike &= _has(words, at, before)
        at = at + len(before)
        quote += before.count(b'"')
        ahead = after.find(b'"')
        end = ends - len(after) if ahead < 0 else quotes[np.minimum(quote, len(quotes) - 1)] - ahead
        alike &= (end >= at) & (end <= ends)
        spans += [at, end]
        at = end
    return alike & _has(words, at, between[-1]) & (at + len(between[-1]) == ends), spans


def _has(words: Numbers, at: Numbers, expected: bytes) -> Numbers:
    """Return which lines have the expected bytes at their position."""
    same = np.ones(len(at), bool)
    for begin in range(0, len(expected), WORD):
        part = expected[begin : begin + WORD]
        word = words[np.clip(at + begin, 0, len(words) - 1)]
        same &= (word & BYTE_MASKS[len(part)]) == np.uint64(int.from_bytes(part, "little"))
    return same


def _odd(codes: Numbers, offsets: Numbers) -> Numbers:
    """Return which lines have a backslash, or a control character before their end."""
    odd = np.zeros(len(offsets) - 1, bool)
    found = (codes < _BLANK) | (codes == _BACKSLASH)
    if np.count_nonzero(found) > len(odd):
        lines = np.searchsorted(offsets, np.flatnonzero(found), "right") - 1
        odd = np.bincount(lines, minlength=len(odd)) > 1
    return odd


def _are_good(texts: pa.Array, type_: Type) -> Numbers:
    """Return which unquoted values are valid JSON of the type."""
    number = _DECIMAL if type_.scalar in FLOATS else _INTEGER
    pattern = _WORDS if type_.scalar is Scalar.BOOL else number
    good: Numbers = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
    return good


def _parsed(texts: pa.Array, type_: Type) -> pa.Array:
    """Convert unquoted values; a number that does not fit raises."""
    is_null = pc.equal(texts, "null")
    if pc.any(is_null).as_py():
        texts = pc.if_else(is_null, pa.scalar(None, pa.string()), texts)
    if type_.scalar is Scalar.BOOL:
        return pc.equal(texts, "true")
    return texts.cast(parse_type(type_, pa.int64() if type_.scalar in TEMPORAL else None))
