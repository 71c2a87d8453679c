"""The storage format of a graph: one stamp, one guard, two refusals."""

from __future__ import annotations

import lance

from omnigraph.errors import CorruptGraphError, FormatTooNewError, FormatTooOldError
from omnigraph.manifest.rows import STAMP_KEY
from omnigraph.version import INTERNAL_SCHEMA_VERSION

OLDEST_ACCEPTED = 1
_UNSTAMPED = 1
_LONGEST = 9


def read_stamp(dataset: lance.LanceDataset) -> int:
    """Read the format version of a `__manifest`; one without a stamp is of the first format."""
    text = (dataset.schema.metadata or {}).get(STAMP_KEY.encode())
    if text is None:
        return _UNSTAMPED
    if not text.isdigit() or len(text) > _LONGEST:
        message = f"the format stamp {text[:40]!r} is not a number of a format"
        raise CorruptGraphError(message, path=dataset.uri, hint="restore the graph from a backup")
    return int(text)


def guard(stamp: int) -> None:
    """Refuse a graph that is too new or too old, in every open mode."""
    if stamp > INTERNAL_SCHEMA_VERSION:
        message = f"the graph has format {stamp}; this omnigraph works on formats up to {INTERNAL_SCHEMA_VERSION}"
        raise FormatTooNewError(message, found=stamp, supported=INTERNAL_SCHEMA_VERSION, hint="upgrade omnigraph")
    if stamp < OLDEST_ACCEPTED:
        message = (
            f"the graph has format {stamp}, which is older than {OLDEST_ACCEPTED}, the oldest that can be migrated"
        )
        hint = "migrate it with an older release of omnigraph first"
        raise FormatTooOldError(message, found=stamp, supported=OLDEST_ACCEPTED, hint=hint)
