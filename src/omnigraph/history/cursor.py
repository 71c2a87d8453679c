"""Where a reader of changes stands: an opaque text that fits one graph, one branch and one filter."""

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
class Scope:
    """What a cursor is bound to: the graph, the branch as it was made, and the filter."""

    graph: str
    branch: str
    filter: str

    @classmethod
    def of(cls, graph: str, branch: str, incarnation: str, digest: str) -> Scope:
        return cls(graph, hashlib.sha256(f"{branch}\0{incarnation}".encode()).hexdigest()[:16], digest)


@dataclass(frozen=True, slots=True)
class Position:
    """The last commit that was told in full; in a page token also how far the next one was told, and where to end."""

    after: str
    until: str | None = None
    table: str | None = None
    entity: str | None = None

    def encode(self, scope: Scope) -> str:
        text = json.dumps([_VERSION, asdict(scope), asdict(self)], separators=(",", ":"))
        encoded = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        assert len(encoded) <= _LONGEST, "a token is short, whatever the ids are"
        return encoded


def decode(text: str, scope: Scope) -> Position:
    """Read a cursor or page token, if it is one of ours and belongs to this scope."""
    if len(text) > _LONGEST:
        raise _rejected("it is too long to be one")
    try:
        version, theirs, position = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        found, bound = Position(**position), Scope(**theirs)
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


def _is_text(position: Position) -> bool:
    optional = (position.until, position.table, position.entity)
    return isinstance(position.after, str) and all(isinstance(part, str | None) for part in optional)


def _rejected(reason: str) -> ChangeCursorError:
    return ChangeCursorError(f"change cursor rejected: {reason}", hint="start again with `start`, or from a baseline")


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
