"""Read JSON lines one by one: the record of each, or all of its problems.

This defines the format. The fast path in `formats/jsonl.py` leaves every line to it that it cannot vouch for.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from omnigraph.core.values import MAX_DIGITS, ConversionError, Scalar, scalar_value
from omnigraph.errors import Violation
from omnigraph.formats.batch import ENDS, Declared, image, mismatch, shown
from omnigraph.lang.catalog import Catalog, EdgeType
from omnigraph.lang.types import Type
from omnigraph.storage.columns import to_array
from omnigraph.storage.read import DST, ID, SRC
from omnigraph.write.pending import RECORD, column_types

MAX_LINE = 32 * 2**20
_RESERVED = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version", "_tombstone"}
)
_MEMBERS = {"type": ("type", "data"), "edge": ("edge", "from", "to", "data")}
_DATA, _TYPE, _EDGE = "data", "type", "edge"
_BLANK = b" \t\r\n"
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Entity:
    """The node or edge of one line: plain values by column."""

    declared: Declared
    row: Mapping[str, Any]


def read_line(line: bytes, catalog: Catalog, record: int) -> Entity | list[Violation]:
    """Read one line; a blank one is neither a record nor a problem."""
    if not line.strip(_BLANK):
        return []
    try:
        document = _document(line)
    except ConversionError as problem:
        return [Violation("json", None, None, (), str(problem), record, problem.hint)]
    return _Reading(catalog, record).entity(document)


def to_rows(declared: Declared, rows: list[Mapping[str, Any]]) -> pa.Table:
    """Build a table from entities of one type."""
    columns = {}
    for name, type_ in column_types(declared).items():
        values = [row.get(name) for row in rows]
        columns[name] = pa.array(values, pa.large_binary()) if type_.is_blob else to_array(type_, values)
    return image(declared, columns, [row[RECORD] for row in rows])


# JSON ----------------------------------------------------------------------------------------------


def _document(line: bytes) -> Any:
    if len(line) > MAX_LINE:
        raise ConversionError(f"a line of more than {MAX_LINE} bytes", "break the file into lines of one record each")
    try:
        text = line.decode()
        document = _decoder.decode(text)
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"
        raise ConversionError(message, "convert the file to UTF-8") from None
    except json.JSONDecodeError as error:
        raise _not_json(error) from None
    except RecursionError:
        raise ConversionError("not a record: it is nested too deeply") from None
    # JSON can escape half of a surrogate pair, which UTF-8 cannot encode.
    if "\\u" in text and _SURROGATE.search(json.dumps(document, ensure_ascii=False)):
        raise ConversionError("not Unicode: half of a surrogate pair stands alone")
    return document


def _not_json(error: json.JSONDecodeError) -> ConversionError:
    if error.msg == "Extra data":
        return ConversionError(f"more than one JSON value on the line, at column {error.colno}")
    if not error.doc[error.pos :].strip() or error.msg.startswith("Unterminated"):
        return ConversionError("not JSON: the line ends too early", "a record is one line; is the file truncated?")
    return ConversionError(f"not JSON: {error.msg.lower()} at column {error.colno}")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ConversionError(f"duplicate JSON member {shown(repeated)}")
    return members


def _constant(name: str) -> Any:
    raise ConversionError(f"not JSON: {name} is not a number")


def _integer(digits: str) -> float:
    # Python refuses to read integers of more than 4,300 digits; as a float it is merely out of range.
    return int(digits) if len(digits) < MAX_DIGITS else float(digits)


_decoder = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_constant, parse_int=_integer)


# Records -------------------------------------------------------------------------------------------


class _Reading:
    """Reads one record and collects its problems."""

    def __init__(self, catalog: Catalog, record: int) -> None:
        self._catalog = catalog
        self._record = record
        self._type_name: str | None = None
        self._id: str | None = None
        self._problems: list[Violation] = []

    def entity(self, document: Any) -> Entity | list[Violation]:
        declared = self._declared(document)
        if declared is None:
            return self._problems
        self._type_name = declared.name
        row: dict[str, Any] = {RECORD: self._record}
        if isinstance(declared, EdgeType):
            for end, column in ENDS.items():
                row[column] = self._text(document, end)
        self._read_data(declared, document.get(_DATA, {}), row)
        return self._problems or Entity(declared, row)

    def _declared(self, document: Any) -> Declared | None:
        if not isinstance(document, dict):
            self._wrong("shape", (), f"a record is a JSON object, not {shown(document)}")
            return None
        kinds = [kind for kind in (_TYPE, _EDGE) if kind in document]
        if len(kinds) != 1:
            self._wrong("shape", tuple(kinds), "a record has exactly one of 'type' and 'edge'")
            return None
        (kind,) = kinds
        for name in (name for name in document if name not in _MEMBERS[kind]):
            what = "is reserved physical state" if name in _RESERVED else "is an unknown top-level graph batch field"
            self._wrong("shape", (name,), f"{shown(name)} {what}")
        name = self._text(document, kind)
        return None if name is None else self._find(kind, name)

    def _find(self, kind: str, name: str) -> Declared | None:
        found = self._catalog.nodes.get(name) if kind == _TYPE else self._catalog.edge_by_word(name)
        if found is not None:
            return found
        word, known = ("node", self._catalog.nodes) if kind == _TYPE else ("edge", self._catalog.edges)
        self._wrong("shape", (kind,), f"unknown {word} type {shown(name)}", _closest(name, known))
        return None

    def _text(self, document: dict[str, Any], name: str) -> str | None:
        value = document.get(name)
        if isinstance(value, str):
            return value
        what = shown(value) if name in document else "missing"
        self._wrong("shape", (name,), f"{shown(name)} must be a string: {what}")
        return None

    def _read_data(self, declared: Declared, data: Any, row: dict[str, Any]) -> None:
        if not isinstance(data, dict):
            self._wrong("shape", (_DATA,), f"'data' must be an object, not {shown(data)}")
            return
        if data.get(ID) is not None:
            self._id = row[ID] = self._text(data, ID)
        for name in data:
            if name != ID and name not in declared.properties:
                self._unknown(declared, name)
        for name, property_ in declared.properties.items():
            if data.get(name) is not None:
                row[name] = self._value(property_.type, name, data[name])

    def _unknown(self, declared: Declared, name: str) -> None:
        if isinstance(declared, EdgeType) and name in (SRC, DST):
            hint = "the ends of an edge are 'from' and 'to', beside 'data'"
            self._wrong("shape", (name,), f"{shown(name)} is reserved structural state", hint)
            return
        message = f"unknown input field {shown(name)}: {declared.name} has no such property"
        self._wrong("shape", (name,), message, _closest(name, declared.properties))

    def _value(self, type_: Type, name: str, value: Any) -> Any:
        label = f"{self._type_name}.{name}"
        try:
            return json_value(type_, value)
        except ConversionError as problem:
            # `mismatch` gives the same message as for CSV and Parquet; for a Blob, the scalar table knows the reason.
            message = f"{problem} ({label})" if problem.hint and type_.is_blob else mismatch(type_, label, value)
            self._wrong("type", (name,), message, problem.hint if type_.is_blob else None)
            return None

    def _wrong(self, rule: str, names: tuple[str, ...], message: str, hint: str | None = None) -> None:
        self._problems.append(Violation(rule, self._type_name, self._id, names, message, self._record, hint))


def _closest(name: str, known: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {shown(found[0])}?" if found else None


# Values --------------------------------------------------------------------------------------------


def json_value(type_: Type, value: Any) -> Any:
    """Convert a JSON value to the value that a property of the type stores, or raise ConversionError."""
    if not type_.is_vector and not type_.is_list:
        return scalar_value(type_.scalar, value)
    if not isinstance(value, list) or (type_.is_vector and len(value) != type_.dimension):
        raise ConversionError(f"expected an array for {type_}, got {shown(value)}")
    element = Scalar.F32 if type_.is_vector else type_.scalar
    return [scalar_value(element, item) for item in value]
