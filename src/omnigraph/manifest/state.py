"""The meaning of the rows of `__manifest`: the fold from rows to a snapshot, the same on disk and in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import lance
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import OPERATION, Commit, Entry, SchemaRow, Snapshot, TableVersion
from omnigraph.errors import CorruptGraphError
from omnigraph.manifest.rows import (
    COMMIT,
    GRAPH_HEAD,
    MANIFEST_PATH,
    OBJECT_ID,
    PAST,
    SCHEMA_ID,
    SEGMENT,
    TABLE,
    TOMBSTONE,
    VERSION,
    MergedPast,
    VersionRow,
    decode_commit,
    decode_schema,
    encode,
    head_record,
    of_kind,
    past_id,
    pins_of,
    version_id,
)
from omnigraph.manifest.segments import Segment, Segments

HEAD = "graph_head"  # as a table key: the head of the branch; its version is that of the latest commit


@dataclass(frozen=True, slots=True)
class GraphState:
    """The tables of one state, and the commit that made it.

    Only a graph of an older format that was never changed since has a state without a commit.
    """

    snapshot: Snapshot
    head: Commit | None

    @property
    def commit(self) -> Commit:
        assert self.head is not None, "a graph that has a history begins with a commit"
        return self.head


@dataclass(frozen=True)
class ManifestState:
    """The rows of one branch of `__manifest` at one version: its tables, and the newest commits.

    Older commits are in the log segments that the rows name. Those are read when an answer is not in the rows.
    """

    branch: str | None
    version: int
    rows: pa.Table
    dataset: lance.LanceDataset = field(compare=False, repr=False)
    log: Segments = field(compare=False, repr=False)
    tag: str | None = field(default=None, compare=False, repr=False)  # of its version file; None if not known yet

    def checked(self) -> Self:
        """Return the state; raise if its rows cannot be what was written."""
        problem = _misshapen(self.rows)
        if problem:
            message = f"`{MANIFEST_PATH}` holds {problem}"
            raise CorruptGraphError(message, path=self.dataset.uri, hint="restore the graph from a backup")
        return self

    @cached_property
    def snapshot(self) -> Snapshot:
        """Fold the rows: per table the newest version, unless a tombstone at or above it drops the table."""
        newest = self._newest(VERSION)
        dead = self._newest(TOMBSTONE)
        # A tombstone hides versions up to its own. A type that is added again must continue past it to be visible.
        visible = {key: version for key, version in newest.items() if version > dead.get(key, -1)}
        entries = {key: self._entry(row) for key, row in self._version_rows(visible).items()}
        return Snapshot(self.branch, self.version, dict(sorted(entries.items())), self.schema)

    @property
    def graph_state(self) -> GraphState:
        return GraphState(self.snapshot, self.head)

    @cached_property
    def schema(self) -> SchemaRow | None:
        """The schema, if it was ever changed."""
        found = self._by_id([SCHEMA_ID]).to_pylist()
        return decode_schema(found[0]) if found else None

    @cached_property
    def paths(self) -> Mapping[str, str]:
        """The directory of every known table, including dropped ones."""
        tables = self._of(TABLE)
        return dict(zip(tables["table_key"].to_pylist(), tables["location"].to_pylist(), strict=True))

    @cached_property
    def head(self) -> Commit | None:
        """The latest commit: the greatest manifest version, then time, then id."""
        commits = self._of(COMMIT)
        if not commits.num_rows:
            return None
        # By Arrow first: decoding every commit of the window would cost each load.
        latest = commits.filter(pc.equal(commits["table_version"], pc.max(commits["table_version"])))
        return max(map(decode_commit, latest.to_pylist()), key=lambda commit: commit.order)

    @cached_property
    def graph_id(self) -> str | None:
        """The identity of the graph: the id of its first commit. Copies of a graph share it."""
        for text in self._of(GRAPH_HEAD)["metadata"].to_pylist():
            if found := json.loads(text).get("graph_id"):
                return str(found)
        commits = self._of(COMMIT)  # of an older format: all of them
        if not commits.num_rows:  # a graph of an older format that was never changed since
            return None
        first = commits.filter(pc.equal(commits["table_version"], pc.min(commits["table_version"])))
        return min(map(decode_commit, first.to_pylist()), key=lambda commit: commit.order).commit_id

    @cached_property
    def tombstones(self) -> Mapping[str, int]:
        return self._newest(TOMBSTONE)

    @cached_property
    def segments(self) -> Sequence[Segment]:
        """The log segments, newest first."""
        found = map(Segment.of_record, self._of(SEGMENT).to_pylist())
        return sorted(found, key=lambda one: one.newest, reverse=True)

    def commits(self) -> list[Commit]:
        """Return all commits visible on this branch, oldest first."""
        return sorted(map(decode_commit, self.history(COMMIT).to_pylist()), key=lambda commit: commit.order)

    def first_parents(self, commit: Commit) -> Iterator[Commit]:
        """Yield a commit and its first parents, newest first. Log segments are read only as far as the caller goes."""
        known: dict[str, Commit] = {}
        batches = self._commit_batches()
        yield commit
        while (parent := commit.parent_id) is not None:
            while parent not in known:
                batch = next(batches, None)
                if batch is None:
                    return
                known |= {one.commit_id: one for one in batch}
            commit = known[parent]
            yield commit

    def _commit_batches(self) -> Iterator[list[Commit]]:
        """Yield the commits of the state, then those of each log segment, newest first."""
        yield list(map(decode_commit, self._of(COMMIT).to_pylist()))
        for segment in self.segments:
            for rows in self._read([segment]):
                yield list(map(decode_commit, of_kind(rows, COMMIT).to_pylist()))

    def history(self, kind: str) -> pa.Table:
        """Return the rows of a kind that this branch ever had: those of the state and those of all log segments."""
        return of_kind(pa.concat_tables([self.rows, *self._read(self.segments)]), kind)

    def commit(self, commit_id: str) -> Commit | None:
        for rows in self._places_of(commit_id):
            found = _by_id(rows, [commit_id]).to_pylist()
            if found and found[0]["object_type"] == COMMIT:
                return decode_commit(found[0])
        return None

    def merged_past(self, merge_id: str) -> MergedPast | None:
        """Return what a merge brought in; None if it is no merge of this branch, or of an older release."""
        for rows in self._places_of(merge_id):  # it leaves the window together with its merge
            found = _by_id(rows, [past_id(merge_id)]).to_pylist()
            if found:
                return MergedPast.of_document(json.loads(found[0]["metadata"]))
        return None

    def merged_pasts(self) -> list[MergedPast]:
        """Return what all merges of the branch brought in."""
        places = [self.rows, *self._read([one for one in self.segments if one.merges])]
        texts = [text for rows in places for text in of_kind(rows, PAST)["metadata"].to_pylist()]
        return [MergedPast.of_document(json.loads(text)) for text in texts]

    def commits_like(self, prefix: str) -> list[Commit]:
        """Return all commits whose id starts with a prefix, ignoring case."""
        places = [self.rows, *self._read([one for one in self.segments if one.may_have_like(prefix)])]
        commits = of_kind(pa.concat_tables(places), COMMIT)
        alike = pc.starts_with(pc.utf8_upper(commits[OBJECT_ID]), prefix.upper())
        return [decode_commit(found) for found in commits.filter(alike).to_pylist()]

    def commit_of_operation(self, operation_id: str, within: int | None = None) -> Commit | None:
        """Return the commit of the change to which a client gave this id, if it is one of the newest `within`."""
        # Search the text of the column first: decoding the JSON of the whole history would cost much more.
        text = f'"{OPERATION}":{json.dumps(operation_id)}'
        for rows in self._newest_first(within):
            commits = of_kind(rows, COMMIT)
            found = map(decode_commit, commits.filter(pc.match_substring(commits["metadata"], text)).to_pylist())
            done = next((commit for commit in found if commit.operation_id == operation_id), None)
            if done:
                return done
        return None

    def _newest_first(self, within: int | None) -> Iterator[pa.Table]:
        """Yield the rows, then those of the segments that hold operation ids and reach into the newest commits."""
        yield self.rows
        seen, wanted = self._of(COMMIT).num_rows, list[Segment]()
        for one in self.segments:
            wanted += [one] if one.operations and (within is None or seen < within) else []
            seen += one.commits
        yield from self._read(wanted)

    def _places_of(self, commit_id: str) -> Iterator[pa.Table]:
        """Yield the rows, then those of each segment that may have a commit."""
        yield self.rows
        for segment in self.segments:
            if segment.may_have(commit_id):
                yield from self._read([segment])

    def _read(self, segments: Iterable[Segment]) -> list[pa.Table]:
        names = [one.name for one in segments]
        return [rows.select(self.rows.column_names) for rows in self.log.read(names)] if names else []

    def actual_version(self, table_key: str) -> int:
        """Return the version that a writer must expect: the visible one, else that of the tombstone, else 0."""
        if table_key == HEAD:
            return self.head.manifest_version if self.head else 0
        entry = self.snapshot.entries.get(table_key)
        return entry.table.version if entry else self.tombstones.get(table_key, 0)

    def at(self, commit: Commit) -> ManifestState | None:
        """Return the state of a commit that made this version, alone or together with others; None if it did not."""
        head = self.head
        if head is None or head.commit_id == commit.commit_id:
            return self
        made = (commit.branch, commit.manifest_version) == (head.branch, head.manifest_version)
        found = self._by_id([commit.commit_id]).to_pylist() if made else []
        pins = pins_of(found[0]) if found else None
        return self._cut(commit, pins) if pins else None

    def _cut(self, commit: Commit, pins: Mapping[str, VersionRow]) -> ManifestState:
        """Return the state without the commits that were published together with an earlier one and follow it."""
        commits = self._of(COMMIT)
        same = commits.filter(pc.equal(commits["table_version"], commit.manifest_version))
        later = [one.commit_id for one in map(decode_commit, same.to_pylist()) if one.order > commit.order]
        versions = self._of(VERSION)
        names = zip(*(versions[name].to_pylist() for name in ("table_key", "table_version")), strict=True)
        later += [version_id(key, version) for key, version in names if key in pins and version > pins[key].version]
        added = encode([*(row.record() for row in pins.values()), head_record(commit, self.graph_id)])
        rows = self.rows_with(added)
        kept = rows.filter(pc.invert(pc.is_in(rows[OBJECT_ID], value_set=pa.array(later, pa.string()))))
        return replace(self, rows=kept)

    @property
    def is_shared(self) -> bool:
        """Whether several commits made the version that the head names."""
        commits, head = self._of(COMMIT), self.head
        if head is None:
            return False
        same = commits.filter(pc.equal(commits["table_version"], head.manifest_version)).to_pylist()
        return len(same) > 1 or any(map(pins_of, same))

    def is_placed_alike(self, table_key: str, other: ManifestState) -> bool:
        """Return whether a table is at the same version of the same fork in two states."""
        # On a branch a table may be forked again at the same version number: then it is another table.
        one, two = (state.snapshot.entries.get(table_key) for state in (self, other))
        same_fork = one is None or two is None or one.table.branch == two.table.branch
        return same_fork and self.actual_version(table_key) == other.actual_version(table_key)

    def has(self, object_id: str) -> bool:
        return bool(self._by_id([object_id]).num_rows)

    def version_row(self, table_key: str, version: int) -> dict[str, Any] | None:
        found: list[dict[str, Any]] = self._by_id([version_id(table_key, version)]).to_pylist()
        return found[0] if found else None

    def rows_with(self, added: pa.Table) -> pa.Table:
        """Return the rows of the next state: those of this one and the added ones, which replace rows of their id."""
        gone = pc.or_(
            pc.is_in(self.rows[OBJECT_ID], value_set=added[OBJECT_ID].combine_chunks()),
            pc.equal(self.rows["object_type"], GRAPH_HEAD),  # also that of the branch from which this one was made
        )
        kept = self.rows.filter(pc.invert(gone)).select(added.column_names).cast(added.schema)
        return pa.concat_tables([kept, added])

    def _of(self, object_type: str) -> pa.Table:
        return of_kind(self.rows, object_type)

    def _newest(self, object_type: str) -> dict[str, int]:
        grouped = self._of(object_type).group_by("table_key").aggregate([("table_version", "max")])
        pairs = zip(grouped["table_key"].to_pylist(), grouped["table_version_max"].to_pylist(), strict=True)
        return dict(pairs)

    def _version_rows(self, versions: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        rows = self._by_id([version_id(key, version) for key, version in versions.items()]).to_pylist()
        return {row["table_key"]: row for row in rows}

    def _by_id(self, object_ids: Sequence[str]) -> pa.Table:
        return _by_id(self.rows, object_ids)

    def _entry(self, row: Mapping[str, Any]) -> Entry:
        key = row["table_key"]
        path = self.paths.get(key)
        if path is None or row["row_count"] is None:
            raise CorruptGraphError(f"`{MANIFEST_PATH}` does not say where table '{key}' is", path=MANIFEST_PATH)
        return Entry(TableVersion(key, path, row["table_version"], row["table_branch"]), row["row_count"])


def _by_id(rows: pa.Table, object_ids: Sequence[str]) -> pa.Table:
    return rows.filter(pc.is_in(rows[OBJECT_ID], value_set=pa.array(object_ids, pa.string())))


def _misshapen(rows: pa.Table) -> str | None:
    """Describe the problem if ids and versions of rows do not match; None if they do."""
    # A lost compare-and-swap leaves two rows for one key without an error: this is where it is noticed.
    if pc.count_distinct(rows[OBJECT_ID]).as_py() != rows.num_rows:
        return "two rows for one object"
    kinds = rows["object_type"]
    versioned = rows.filter(pc.is_in(kinds, pa.array([VERSION, TOMBSTONE, COMMIT])))
    if versioned["table_version"].null_count:
        return "a row without its version"
    versions = rows.filter(pc.equal(kinds, VERSION))
    padded = pc.utf8_lpad(pc.cast(versions["table_version"], pa.string()), width=20, padding="0")
    expected = pc.binary_join_element_wise(versions["table_key"], padded, "$")
    tables = rows.filter(pc.equal(kinds, TABLE))
    same = pc.all(pc.equal(versions[OBJECT_ID], expected)), pc.all(pc.equal(tables[OBJECT_ID], tables["table_key"]))
    return None if all(answer.as_py() in (True, None) for answer in same) else "a row under the id of another"
