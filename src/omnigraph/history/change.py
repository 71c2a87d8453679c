"""A change of one entity, and the choice of changes that somebody wants to see."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.changes import ChangeOperation, EntityKind
from omnigraph.errors import ChangeCursorError, ChangeRequestError
from omnigraph.lang.source import did_you_mean


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Which changes are wanted: of some kinds, types and operations. Made by `chosen`."""

    kinds: frozenset[EntityKind] = frozenset(EntityKind)
    types: frozenset[str] | None = None
    operations: frozenset[ChangeOperation] = frozenset(ChangeOperation)

    def wants_table(self, key: str) -> bool:
        kind, _, name = key.partition(":")
        return kind in self.kinds and (self.types is None or name in self.types)

    @property
    def digest(self) -> str:
        """Identify the filter in a cursor."""
        parts = (sorted(self.kinds), "*" if self.types is None else sorted(self.types), sorted(self.operations))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def chosen(
    kinds: Collection[str] | None,
    types: Collection[str] | None,
    operations: Collection[str] | None,
    known: Collection[str],
) -> ChangeFilter:
    """Check what somebody asks for; None is everything. `known` are the names of all types."""
    for name in types or ():
        if name not in known:
            message = f"there is no type '{name}'"
            hint = did_you_mean(name, sorted(known)) or f"use {', '.join(sorted(known))}"
            raise ChangeRequestError(message, option="type", hint=hint)
    return ChangeFilter(
        _members(EntityKind, kinds, "kind"),
        None if types is None else frozenset(types),
        _members(ChangeOperation, operations, "op"),
    )


_E = TypeVar("_E", bound=StrEnum)


def _members(choices: type[_E], given: Collection[str] | None, option: str) -> frozenset[_E]:
    if given is None:
        return frozenset(choices)
    for name in given:
        if name not in list(choices):
            hint = f"use {', '.join(choices)}"
            raise ChangeRequestError(f"'{name}' is no {option} of change", option=option, hint=hint)
    return frozenset(map(choices, given))


_LONGEST_ID, _PREFIX = 256, 64  # bytes
_HASHED = "\0"  # no id has it in it


def short_id(text: str) -> str:
    """An id as it stands in a token: a long one as its beginning and a hash."""
    data = text.encode()
    if len(data) <= _LONGEST_ID:
        return text
    return f"{data[:_PREFIX].decode(errors='ignore')}{_HASHED}{hashlib.sha256(data).hexdigest()}"


def whole_id(short: str, ids: pa.ChunkedArray) -> str:
    """Find the id that a token means among those that it can be."""
    prefix, hashed, _ = short.partition(_HASHED)
    if not hashed:
        return short
    alike = ids.filter(pc.starts_with(ids, prefix)).to_pylist()
    found = next((one for one in alike if short_id(one) == short), None)
    if found is None:
        raise ChangeCursorError("change cursor rejected: the entity it stops at is not there", hint="start again")
    return str(found)
