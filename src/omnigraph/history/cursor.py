"""Cursors and page tokens of the change feed: opaque texts, each valid for one graph, branch and filter."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.errors import ChangeCursorError

_LONGEST = 4096
_VERSION = 1


@dataclass(frozen=True, slots=True)
class CursorScope:
    """What a cursor is valid for: the graph, the incarnation of the branch, and the filter."""

    graph: str
    branch: str
    filter: str

    @classmethod
    def of(cls, graph: str, branch: str, incarnation: str, digest: str) -> CursorScope:
        return cls(graph, hashlib.sha256(f"{branch}\0{incarnation}".encode()).hexdigest()[:16], digest)


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """The last commit delivered in full; a page token also has the position inside the next, and the last commit."""

    after: str
    until: str | None = None
    table: str | None = None
    entity: str | None = None

    def encode(self, scope: CursorScope) -> str:
        text = json.dumps([_VERSION, asdict(scope), asdict(self)], separators=(",", ":"))
        encoded = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        assert len(encoded) <= _LONGEST, "a token is short, whatever the ids are"
        return encoded


def decode(text: str, scope: CursorScope) -> CursorPosition:
    """Decode a cursor or page token; raise ChangeCursorError if it is invalid or of another scope."""
    if len(text) > _LONGEST:
        raise _rejected("it is too long to be one")
    try:
        version, theirs, position = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        found, bound = CursorPosition(**position), CursorScope(**theirs)
    except (ValueError, TypeError, RecursionError):
        raise _rejected("it cannot be read") from None
    if version != _VERSION or not _is_text(found):
        raise _rejected("it cannot be read")
    for part, problem in (
        ("graph", "it is one of another graph"),
        ("branch", "it is one of another branch, or of a branch that was deleted and made again"),
        ("filter", "it was made with another filter"),
    ):
        if getattr(bound, part) != getattr(scope, part):
            raise _rejected(problem)
    return found


def _is_text(position: CursorPosition) -> bool:
    optional = (position.until, position.table, position.entity)
    return isinstance(position.after, str) and all(isinstance(part, str | None) for part in optional)


def _rejected(reason: str) -> ChangeCursorError:
    return ChangeCursorError(f"change cursor rejected: {reason}", hint="start again with `start`, or from a baseline")


_LONGEST_ID, _PREFIX = 256, 64  # bytes
_HASHED = "\0"  # occurs in no id


def short_id(text: str) -> str:
    """Return the form of an id in a token: a long id becomes a prefix and a hash, so that tokens stay short."""
    data = text.encode()
    if len(data) <= _LONGEST_ID:
        return text
    return f"{data[:_PREFIX].decode(errors='ignore')}{_HASHED}{hashlib.sha256(data).hexdigest()}"


def whole_id(short: str, ids: pa.ChunkedArray) -> str:
    """Find the id that `short_id` made a token of."""
    prefix, hashed, _ = short.partition(_HASHED)
    if not hashed:
        return short
    alike = ids.filter(pc.starts_with(ids, prefix)).to_pylist()
    found = next((one for one in alike if short_id(one) == short), None)
    if found is None:
        raise ChangeCursorError("change cursor rejected: the entity it stops at no longer exists", hint="start again")
    return str(found)
