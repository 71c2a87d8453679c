"""Values as JSON, and back: by the table of names of a document, or by their declared types."""

from __future__ import annotations

import base64
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, Union, get_args, get_origin, get_type_hints

Document = dict[str, Any]
Place = str | tuple[str | Callable[[Any], Any], Any]

_UNIONS = (Union, types.UnionType)
_PLAIN = frozenset({str, int, float, bool, types.NoneType})
_NOTHING: Mapping[str, Any] = {}
_KNOWN = {"uri": str, "actor": str | None}  # beside a value; everything else that is known is a text


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a document: how its value is found and written. A `known` value does not come from the object."""

    name: str
    kind: Any
    find: Callable[[Any], Any]
    write: Callable[[Any], Any] | None
    field: str | None = None
    known: str | None = None
    is_optional: bool = False
    is_promised: bool = False


class Form:
    """A document: its name in OpenAPI, and for each of its members in order the place that the value comes from.

    A place is a field or a property, `a.b` for one of a part, `.` for the object itself, `@name` for something that is
    known beside it, or a pair: one of these or a function of the object, and the type or the form of what is there,
    `[form]` for many. Without a table the members are the fields.

    A name that ends with `?` is left out when there is no value. One that ends with `!` is required by OpenAPI, but can
    be null. `*` stands for all members of the document of its place.

    `reads` is a function of the document, or has one for each field that is not simply a member. Members in `unlisted`
    are for our own clients, and OpenAPI does not describe them; those in `added` it describes, although something else
    writes them. A function writes all members of a form of `dict`. `docs` describes single members.
    """

    def __init__(
        self,
        kind: Any,
        name: str,
        places: Mapping[str, Place] | None = None,
        *,
        reads: Mapping[str, Callable[[Any], Any]] | Callable[[Any], Any] = _NOTHING,
        unlisted: Collection[str] = (),
        added: Mapping[str, Any] = _NOTHING,
        docs: Mapping[str, str] = _NOTHING,
    ) -> None:
        self.kind, self.name, self.reads = kind, name, reads
        self.places = {name: name for name in hints_of(kind)} if places is None else places
        self.unlisted, self.added, self.docs = unlisted, added, docs

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """What the table says, worked out once: a change feed writes very many documents of one form."""
        return tuple(self._member(name, place) for name, place in self.places.items())

    def _member(self, name: str, given: Place) -> Member:
        place, kind = given if isinstance(given, tuple) else (given, None)
        name, is_optional, is_promised = name.rstrip("?!"), name.endswith("?"), name.endswith("!")
        if callable(place):
            return Member(name, kind, place, _writer(kind), is_optional=is_optional)
        if place.startswith("@"):
            known = place.removeprefix("@")
            return Member(name, _KNOWN.get(known, str), lambda _: None, None, known=known)
        kind = kind or (self.kind if place == "." else _kind_at(self.kind, place))
        # `attrgetter` resolves `a.b` in C; a change feed calls this for each member of each change.
        find = (lambda value: value) if place == "." else attrgetter(place)
        field = place if place == "." or place in hints_of(self.kind) else None  # a property is written, and not read
        return Member(name, kind, find, _writer(kind), field=field, is_optional=is_optional, is_promised=is_promised)

    def write(self, value: Any, known: Mapping[str, Any] = _NOTHING) -> Document:
        """Make the document of an object."""
        document: Document = {}
        for member in self.members:
            found = member.find(value) if member.known is None else known[member.known]
            # Only None is left out: 0, false and an empty list are values, which a reader must see.
            if found is None and member.is_optional:
                continue
            if member.write is not None:
                found = member.write(found)
            if member.name == "*":
                document.update(found)
            else:
                document[member.name] = found
        return document

    def read(self, document: Mapping[str, Any]) -> Any:
        """Make the object of a document; members that it does not know have no effect."""
        if callable(self.reads):
            return self.reads(document)
        given = {name: read(document) for name, read in self.reads.items()}
        for member in self.members:
            if member.field is None or member.field in given:
                continue  # of two names for one field the first counts
            # A missing optional member is None and never the default of the field, which may mean something else.
            if member.is_optional and member.name not in document:
                given[member.field] = None
                continue
            found = decode(member.kind, document if member.name == "*" else document[member.name])
            if member.field == ".":
                return found
            given[member.field] = found
        return self.kind(**given)


FORMS: dict[Any, Form] = {}
"""The form of each type that has one; of some operations, whose answer differs, by the operation."""


def encode(value: Any) -> Any:
    """Make JSON of a value, without its type."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    # Before the general cases: a form may give a dataclass names that differ from its fields.
    if kind in FORMS:
        return FORMS[kind].write(value)
    # Not by `_PLAIN`: the type of a StrEnum is the enumeration, although its values are texts.
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): encode(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [encode(one) for one in value]
    return value


def decode(kind: Any, value: Any) -> Any:
    """Make a value of a type from what `encode` made of one. Members that are missing have their defaults."""
    if kind in _PLAIN:
        return value
    if isinstance(kind, Form) or kind in FORMS:
        return (kind if isinstance(kind, Form) else FORMS[kind]).read(value)
    origin, inner = get_origin(kind), get_args(kind)
    # Only unions with None occur: a document does not say which of several types it holds.
    if origin in _UNIONS:
        return None if value is None else decode(next(one for one in inner if one is not types.NoneType), value)
    if origin is not None:
        return _decode_many(origin, inner, value)
    if not isinstance(kind, type):  # Any
        return value
    if is_dataclass(kind):
        hints = hints_of(kind)
        # Members that are not fields are dropped, so that a client reads the answers of a newer server.
        return kind(**{name: decode(hints[name], one) for name, one in value.items() if name in hints})
    if issubclass(kind, bytes):
        return base64.b64decode(value)
    return kind(value) if issubclass(kind, Enum) else value


def _decode_many(origin: Any, inner: Sequence[Any], value: Any) -> Any:
    if issubclass(origin, Mapping):
        return {decode(inner[0], name): decode(inner[1], one) for name, one in value.items()}
    if origin is tuple and inner[-1] is not ...:
        # Strict: an answer with more parts than the type has is of another version, and must not be cut.
        return tuple(decode(kind, one) for kind, one in zip(inner, value, strict=True))
    items = [decode(inner[0], one) for one in value]
    # `Sequence` and `Collection` cannot be instantiated, and a list is one.
    return items if issubclass(list, origin) else origin(items)


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass, by name and in order."""
    # The hints are texts because of `from __future__ import annotations`; to resolve them costs too much for each
    # value.
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _kind_at(kind: Any, place: str) -> Any:
    """The type of a field or a property, also of one of a part."""
    name, _, rest = place.partition(".")
    found = getattr(kind, name, None)
    inner = get_type_hints(found.fget)["return"] if isinstance(found, property) else get_type_hints(kind)[name]
    return _kind_at(inner, rest) if rest else inner


def _writer(kind: Any) -> Callable[[Any], Any] | None:
    """How values of a type are written; None if they are JSON as they are."""
    if isinstance(kind, list):
        (form,) = kind
        return None if form.kind is dict else lambda found: [form.write(one) for one in found]
    if isinstance(kind, Form):
        return None if kind.kind is dict else kind.write
    return None if _is_json(kind) else encode


def _is_json(kind: Any) -> bool:
    """Whether values of a type are JSON already. What a dict of anything holds was made for JSON, a vector too."""
    if get_origin(kind) in (*_UNIONS, dict, list):
        return all(map(_is_json, get_args(kind)))
    return kind is Any or kind in _PLAIN
