"""Log segments: immutable objects with the rows of old commits, which `__manifest` names instead of holding them.

`__manifest` is written whole by every commit, so it keeps only a window of the newest commits. What leaves the window
goes into a segment. Segments of one size are merged, so their number grows with the logarithm of the history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import OPERATION
from omnigraph.core.executor import map_in_threads
from omnigraph.core.location import Location
from omnigraph.core.lru import LruCache
from omnigraph.errors import CorruptGraphError
from omnigraph.lang.identity import new_id
from omnigraph.manifest.rows import (
    COMMIT,
    MANIFEST_PATH,
    OBJECT_ID,
    PAST,
    SCHEMA,
    SEGMENT,
    TOMBSTONE,
    VERSION,
    decode_commit,
    of_kind,
    past_id,
)
from omnigraph.storage.durability import sync_file
from omnigraph.storage.objects import ObjectStore

DIRECTORY = "__commits"
WINDOW = 16  # commits that stay in the manifest when others leave; it is written whole, so it must stay small
LARGE = 2**16  # bytes of commits and merges with which all but the newest commit leave
FAN_OUT = 8  # segments of one size that become one
_CACHED = 2**26
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as the manifest names it, with what a search must know to pass it over.

    `least` and `greatest` are the bounds of its commit ids in upper case, `newest` its greatest manifest version.
    """

    name: str
    size: int
    newest: int
    commits: int
    least: str
    greatest: str
    operations: bool
    merges: bool

    def record(self) -> dict[str, Any]:
        metadata = {name: value for name, value in asdict(self).items() if name not in ("name", "newest")}
        return {
            OBJECT_ID: self.name,
            "object_type": SEGMENT,
            "table_key": "",
            "table_version": self.newest,
            "metadata": json.dumps(metadata, separators=(",", ":")),
        }

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Segment:
        try:
            return cls(record[OBJECT_ID], newest=record["table_version"], **json.loads(record["metadata"]))
        except (ValueError, TypeError) as error:
            message = f"the row of segment '{record[OBJECT_ID]}' in `{MANIFEST_PATH}` is invalid"
            raise CorruptGraphError(message, path=MANIFEST_PATH, hint="restore the graph from a backup") from error

    def may_have(self, commit_id: str) -> bool:
        # Commit ids are ULIDs, so those of one segment are from one period, and most segments are passed over.
        return self.least <= commit_id.upper() <= self.greatest

    def may_have_like(self, prefix: str) -> bool:
        """Return whether a commit id that begins so can be in here, ignoring case."""
        wanted, length = prefix.upper(), len(prefix)
        return self.least[:length] <= wanted <= self.greatest[:length]


class Segments:
    """The segments of one graph. A name never gets other content, so what was read stays cached."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._objects = ObjectStore(location)
        self._cache = LruCache(_CACHED)

    def read(self, names: Sequence[str]) -> list[pa.Table]:
        """Read the rows of some segments, several at once."""
        return list(map_in_threads(self._read, names, _AT_ONCE))

    def _read(self, name: str) -> pa.Table:
        return self._cache.get(name, lambda: _decoded(name, self._objects.read(name)), lambda rows: int(rows.nbytes))

    def write(self, rows: pa.Table) -> Segment:
        """Write rows under a new name. Until a manifest names it, a cleanup may take it for left over."""
        data = _encoded(rows)
        name = f"{DIRECTORY}/{new_id()}.arrow"
        self._objects.write(name, data)
        # A segment holds commits of long ago, which even a graph without durability must not lose.
        sync_file(self._location, name)
        self._cache.get(name, lambda: rows, lambda _: int(rows.nbytes))
        commits = of_kind(rows, COMMIT)
        ids = pc.utf8_upper(commits[OBJECT_ID])
        # A hint for searches, from the text: to parse every row would cost a publish.
        operations = pc.any(pc.match_substring(commits["metadata"], f'"{OPERATION}":')).as_py()
        return Segment(
            name,
            len(data),
            pc.max(commits["table_version"]).as_py(),
            commits.num_rows,
            pc.min(ids).as_py(),
            pc.max(ids).as_py(),
            bool(operations),
            bool(of_kind(rows, PAST).num_rows),
        )


def _encoded(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    schema = rows.schema.remove_metadata()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows.replace_schema_metadata().combine_chunks())
    return bytes(sink.getvalue())


def _decoded(name: str, data: bytes) -> pa.Table:
    try:
        return pa.ipc.open_file(data).read_all().select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        message = f"the log segment {name} is damaged"
        raise CorruptGraphError(message, path=name, hint="restore it from a backup") from error


def archived(rows: pa.Table, records: Iterable[dict[str, Any]], segments: Segments, new: int = 1) -> pa.Table:
    """Return the rows of a state without those that leave the window; those are written into a segment first.

    `records` are the same rows. Rows leave many at a time: a segment for each commit would be a request for each
    commit. The newest `new` commits stay: their states are made of this one.
    """
    # Not by Arrow: a state has so few rows that a call costs more than all of them, and every publish comes by here.
    described = [(one["object_type"], one["metadata"]) for one in records if one["object_type"] in (COMMIT, PAST)]
    count = sum(kind == COMMIT for kind, _ in described)
    size = sum(len(text.encode()) for _, text in described if text)
    staying = max(_staying(size, count), new)
    if count == staying:
        return rows
    commits = of_kind(rows, COMMIT)
    ordered = sorted(map(decode_commit, commits.to_pylist()), key=lambda commit: commit.order)
    # The oldest by order and not by time: the window must hold the head and its ancestors whatever the clocks say.
    gone = [commit.commit_id for commit in ordered[:-staying]]
    # What a merge recorded goes with its commit: a reader of one needs the other.
    ids = pa.array([*gone, *map(past_id, gone)], pa.string())
    leaving = pc.or_(pc.is_in(rows[OBJECT_ID], ids), _superseded(rows))
    known = sorted(map(Segment.of_record, of_kind(rows, SEGMENT).to_pylist()), key=lambda one: one.newest)
    # As in a log-structured tree: each commit is rewritten a logarithmic number of times.
    kept, taken = _to_merge(known, len(gone))
    moved = pa.concat_tables([*segments.read([one.name for one in taken]), rows.filter(leaving)])
    named = pa.Table.from_pylist([one.record() for one in (*kept, segments.write(moved))], schema=SCHEMA)
    rest = rows.filter(pc.and_(pc.invert(leaving), pc.not_equal(rows["object_type"], SEGMENT)))
    return pa.concat_tables([rest, named])


def _staying(size: int, commits: int) -> int:
    """Return how many of the commits of a state stay in it, by the size of what is known about them."""
    if size > LARGE:
        # One large commit, such as a merge with a long past, must not be written again with each of the next fifteen.
        return min(commits, 1)
    return WINDOW if commits >= 2 * WINDOW else commits


def _superseded(rows: pa.Table) -> pa.ChunkedArray:
    """Mark the versions of tables before the newest, and the tombstones that hide nothing any more."""
    latest = dict[tuple[str, str], int]()
    named = of_kind(rows, VERSION, TOMBSTONE)
    columns = (named[name].to_pylist() for name in ("object_type", "table_key", "table_version", OBJECT_ID))
    entries = list(zip(*columns, strict=True))
    for kind, key, version, _ in entries:
        latest[kind, key] = max(version, latest.get((kind, key), 0))
    needless = [
        object_id
        for kind, key, version, object_id in entries
        if version < latest[kind, key] or (kind == TOMBSTONE and version < latest.get((VERSION, key), 0))
    ]
    return pc.is_in(rows[OBJECT_ID], pa.array(needless, pa.string()))


def _to_merge(known: Sequence[Segment], commits: int) -> tuple[list[Segment], list[Segment]]:
    """Divide segments into those that stay, and the newest ones that a new one of so many commits is merged with."""
    kept, taken = list(known), list[Segment]()
    while True:
        level = _level(commits)
        alike = list(takewhile(lambda one: _level(one.commits) <= level, reversed(kept)))  # noqa: B023 - used at once
        if len(alike) < FAN_OUT - 1:
            return kept, taken
        kept, taken = kept[: -len(alike)], [*alike[::-1], *taken]
        commits += sum(one.commits for one in alike)


def _level(commits: int) -> int:
    level, bound = 0, WINDOW * FAN_OUT
    while commits >= bound:
        level, bound = level + 1, bound * FAN_OUT
    return level
