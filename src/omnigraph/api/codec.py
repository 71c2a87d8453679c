"""Frozen dataclasses and plain values as JSON, and back by their declared types."""

from __future__ import annotations

import base64
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

_UNIONS = (Union, types.UnionType)


def encode(value: Any) -> Any:
    """Make JSON of a value, without its type."""
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
    origin, inner = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return None if value is None else decode(next(one for one in inner if one is not types.NoneType), value)
    if origin is not None:
        return _decode_many(origin, inner, value)
    if not isinstance(kind, type):  # Any
        return value
    if is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: decode(hints[name], one) for name, one in value.items() if name in hints})
    if issubclass(kind, bytes):
        return base64.b64decode(value)
    return kind(value) if issubclass(kind, Enum) else value


def _decode_many(origin: Any, inner: Sequence[Any], value: Any) -> Any:
    if issubclass(origin, Mapping):
        return {decode(inner[0], name): decode(inner[1], one) for name, one in value.items()}
    if origin is tuple and inner[-1] is not ...:
        return tuple(decode(kind, one) for kind, one in zip(inner, value, strict=True))
    items = [decode(inner[0], one) for one in value]
    return items if issubclass(list, origin) else origin(items)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
