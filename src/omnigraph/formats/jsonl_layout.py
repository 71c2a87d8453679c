"""Fast path for JSON lines that share one layout: compare the bytes between the values, and cut the values out.

A program writes record after record in one way: the same names, order and blanks. The first line shows the layout. A
line has it if the same bytes are between its values, and it is valid JSON if its values are: a string without backslash
and control characters is, and so is a number that matches a pattern. Lines of other layouts go to the parser, which
takes three times as long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.values import FLOATS, TEMPORAL, Scalar
from omnigraph.formats.columns import Lines, parse_type
from omnigraph.formats.hashing import MASKS, U64, overlapping_words
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.lang.types import Type

Mask = np.ndarray[Any, Any]
Places = np.ndarray[Any, Any]

DATA = "data."
_QUOTE, _BACKSLASH, _BLANK = b'"\\ '
_WORD = 8
_MEMBER = re.compile(rb'\s*"([^"\\]*)"\s*:\s*(?:"([^"\\]*)"|([-+.0-9eE]+|true|false)|(\{)|null)')
_CLOSE, _COMMA = re.compile(rb"\s*\}"), re.compile(rb"\s*,")
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


def cut_out(declared: NodeType | EdgeType, lines: Lines) -> tuple[Mask, dict[str, pa.Array]] | None:
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
        if name.startswith(DATA) and not inside:
            return None
        if match[4]:
            if name != "data":
                return None
            inside = DATA
            continue
        found.append(_Member(name, *match.span(2 if match[2] is not None else 3), match[2] is not None))
        while (closed := _CLOSE.match(line, at)) is not None:
            at = closed.end()
            if not inside:
                return found if line[at:] == b"\n" else None
            inside = ""
        comma = _COMMA.match(line, at)
        if comma is None:
            return None
        at = comma.end()
    return None


def _fit(members: Sequence[_Member], declared: NodeType | EdgeType) -> bool:
    names = [member.name for member in members]
    envelope = {"edge", "from", "to"} if isinstance(declared, EdgeType) else {"type"}
    outside = {name for name in names if not name.startswith(DATA)}
    return len(set(names)) == len(names) and outside == envelope and all(_fits(one, declared) for one in members)


def _fits(member: _Member, declared: NodeType | EdgeType) -> bool:
    name = member.name.removeprefix(DATA)
    if name in (member.name, "id"):
        return member.quoted
    property_ = declared.properties.get(name)
    if property_ is None or property_.type.is_list or property_.type.is_vector:
        return False
    scalar = property_.type.scalar
    if member.start < 0:
        return True
    return scalar in _QUOTED if member.quoted else scalar in TEMPORAL or scalar not in _QUOTED


def _type(declared: NodeType | EdgeType, name: str) -> Type:
    return declared.properties[name.removeprefix(DATA)].type


# The lines -----------------------------------------------------------------------------------------


def _texts(lines: Lines, between: Sequence[bytes]) -> tuple[Mask, list[pa.Array]]:
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


def _spans(codes: Places, words: U64, offsets: Places, between: Sequence[bytes]) -> tuple[Mask, list[Places]]:
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


def _has(words: U64, at: Places, expected: bytes) -> Mask:
    """Return which lines have the expected bytes at their position."""
    same = np.ones(len(at), bool)
    for begin in range(0, len(expected), _WORD):
        part = expected[begin : begin + _WORD]
        word = words[np.clip(at + begin, 0, len(words) - 1)]
        same &= (word & MASKS[len(part)]) == np.uint64(int.from_bytes(part, "little"))
    return same


def _odd(codes: Places, offsets: Places) -> Mask:
    """Return which lines have a backslash, or a control character before their end."""
    odd = np.zeros(len(offsets) - 1, bool)
    found = (codes < _BLANK) | (codes == _BACKSLASH)
    if np.count_nonzero(found) > len(odd):
        lines = np.searchsorted(offsets, np.flatnonzero(found), "right") - 1
        odd = np.bincount(lines, minlength=len(odd)) > 1
    return odd


def _are_good(texts: pa.Array, type_: Type) -> Mask:
    """Return which unquoted values are valid JSON of the type."""
    number = _DECIMAL if type_.scalar in FLOATS else _INTEGER
    pattern = _WORDS if type_.scalar is Scalar.BOOL else number
    good: Mask = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
    return good


def _parsed(texts: pa.Array, type_: Type) -> pa.Array:
    """Convert unquoted values; a number that does not fit raises."""
    is_null = pc.equal(texts, "null")
    if pc.any(is_null).as_py():
        texts = pc.if_else(is_null, pa.scalar(None, pa.string()), texts)
    if type_.scalar is Scalar.BOOL:
        return pc.equal(texts, "true")
    return texts.cast(parse_type(type_, pa.int64() if type_.scalar in TEMPORAL else None))
