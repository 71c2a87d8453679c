"""Ids of entities: derived from the stored key, or a new ULID."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping

from omnigraph.core.values import EPOCH_DATE, FLOATS, INTEGER_BOUNDS, Scalar, milliseconds_of
from omnigraph.errors import IdentityError
from omnigraph.lang.catalog import NodeType
from omnigraph.lang.ir import PlainValue

_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def new_id() -> str:
    """Make an id for an edge or a node without a key."""
    from ulid import ULID  # noqa: PLC0415 - loads slowly, and parsing needs none of it

    return str(ULID())


def is_new_id(text: str) -> bool:
    """Return whether a text is an id made by `new_id`: a ULID in canonical spelling."""
    return _ULID.fullmatch(text) is not None


def fnv1a(data: bytes) -> int:
    """Hash bytes to 64 bits (FNV-1a), stable across machines and versions."""
    digest = _FNV_OFFSET
    for byte in data:
        # Fixed for good: it names the directories of tables.
        digest = ((digest ^ byte) * _FNV_PRIME) % 2**64
    return digest


def node_id(node: NodeType, values: Mapping[str, PlainValue]) -> str:
    """Derive the id of a keyed node: the text of its key, or a JSON array of texts for a key of several properties."""
    assert node.key, f"{node.name} has no key"
    texts = [canonical_text(node.properties[name].type.scalar, values.get(name)) for name in node.key]
    # One part is its own id, so that a key reads as people write it. Several are a JSON array, which no separator can
    # fake.
    return texts[0] if len(texts) == 1 else json.dumps(texts, separators=(",", ":"), ensure_ascii=False)


def canonical_text(scalar: Scalar, value: PlainValue) -> str:
    """Spell a key value; equal stored values give equal texts, different ones different texts."""
    if scalar is Scalar.STRING and isinstance(value, str):
        return value
    if scalar is Scalar.BOOL and isinstance(value, bool):
        return "true" if value else "false"
    # bool is an int in Python, and True would become the id "True" of an integer key.
    if scalar in INTEGER_BOUNDS and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if scalar in FLOATS and isinstance(value, int | float) and not isinstance(value, bool):
        return _float_text(scalar, value)
    if scalar is Scalar.DATETIME and isinstance(value, dt.datetime) and value.tzinfo is not None:
        # Milliseconds since the epoch, as the column stores it: one text for every zone of the same instant.
        return str(milliseconds_of(value))
    if scalar is Scalar.DATE and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return str((value - EPOCH_DATE).days)
    raise IdentityError(f"{value!r} is not a {scalar} and cannot be part of a key")


def _float_text(scalar: Scalar, value: float) -> str:
    """Spell a float as the shortest decimal that reads back as the stored value, without an exponent."""
    import numpy as np  # noqa: PLC0415 - most keys are not floats, and lang must load fast

    try:
        with np.errstate(over="ignore"):
            # The id is made of the stored value: 0.1 in an F32 column is another number than in an F64 column.
            stored = np.float32(value) if scalar is Scalar.F32 else np.float64(value)
    except OverflowError:
        stored = np.float64("inf")
    if not np.isfinite(stored):
        raise IdentityError(f"a value that is not a finite {scalar} cannot be part of a key")
    # -0.0 equals 0.0 and must give the same id.
    return "0" if stored == 0 else np.format_float_positional(stored, unique=True, trim="-")
