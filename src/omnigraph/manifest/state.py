"""The meaning of the rows of `__manifest`: the fold from rows to a snapshot, the same on disk and in memory."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import lance
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import OPERATION, Commit, Entry, SchemaRow, Snapshot, StreamPosition, TableVersion
from omnigraph.errors import CorruptGraphError
from omnigraph.manifest.rows import (
    COMMIT,
    GRAPH_HEAD,
    MANIFEST_PATH,
    OBJECT_ID,
    PAST,
    SCHEMA,
    SCHEMA_ID,
    SEGMENT,
    STREAM_HEAD,
    TABLE,
    TOMBSTONE,
    VERSION,
    MergedPast,
    RuleRow,
    SchemaSeen,
    VersionRow,
    decode_commit,
    decode_schema,
    decode_stream,
    encode,
    head_record,
    of_kind,
    past_id,
    pins_of,
    rule_id,
    stream_id,
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
        entries = {key: self._entry(self._named[version_id(key, version)]) for key, version in visible.items()}
        return Snapshot(self.branch, self.version, dict(sorted(entries.items())), self.schema)

    @property
    def graph_state(self) -> GraphState:
        return GraphState(self.snapshot, self.head)

    @cached_property
    def schema(self) -> SchemaRow | None:
        """The schema, if it was ever changed."""
        found = self._named.get(SCHEMA_ID)
        return decode_schema(found) if found else None

    @cached_property
    def paths(self) -> Mapping[str, str]:
        """The directory of every known table, including dropped ones."""
        return {row["table_key"]: row["location"] for row in self._of(TABLE)}

    @cached_property
    def head(self) -> Commit | None:
        """The latest commit: the greatest manifest version, then time, then id."""
        # Only the newest are decoded: decoding every commit of the window would cost each load.
        newest = max((row["table_version"] for row in self._of(COMMIT)), default=None)
        latest = [decode_commit(row) for row in self._of(COMMIT) if row["table_version"] == newest]
        return max(latest, key=lambda commit: commit.order, default=None)

    @cached_property
    def graph_id(self) -> str | None:
        """The identity of the graph: the id of its first commit. Copies of a graph share it."""
        for row in self._of(GRAPH_HEAD):
            if found := json.loads(row["metadata"]).get("graph_id"):
                return str(found)
        # Of an older format: all commits are here, or there are none if it was never changed since.
        first = min(map(decode_commit, self._of(COMMIT)), key=lambda commit: commit.order, default=None)
        return first.commit_id if first else None

    @cached_property
    def schema_seen(self) -> SchemaSeen | None:
        """The schema files as a writer found them to agree with this state; None if none has said so."""
        heads = (json.loads(row["metadata"]) for row in self._of(GRAPH_HEAD))
        found = next((one for one in heads if one.get("schema_files")), None)
        return SchemaSeen(found["schema_files"], found.get("schema_source")) if found else None

    @property
    def schema_identity(self) -> object:
        """What is different in any two states whose schemas differ."""
        return self.graph_id, self.schema, frozenset(self.snapshot.entries)

    def stream(self, name: str) -> StreamPosition | None:
        """Return how far a stream is on this branch; None if it never wrote to it."""
        found = self._named.get(stream_id(name))
        return decode_stream(found) if found else None

    @property
    def streams(self) -> list[StreamPosition]:
        """How far all streams are, by name."""
        return sorted(map(decode_stream, self._of(STREAM_HEAD)), key=lambda one: one.last.stream)

    @property
    def rule_row(self) -> RuleRow | None:
        """The row with the rule of the branch; it may be for an earlier branch of this name."""
        found = self._named.get(rule_id(self.branch))
        return RuleRow.of_record(found, self.branch) if found else None

    @cached_property
    def tombstones(self) -> Mapping[str, int]:
        return self._newest(TOMBSTONE)

    @cached_property
    def segments(self) -> Sequence[Segment]:
        """The log segments, newest first."""
        return sorted(map(Segment.of_record, self._of(SEGMENT)), key=lambda one: one.newest, reverse=True)

    def commits(self) -> list[Commit]:
        """Return all commits visible on this branch, oldest first."""
        return sorted(map(decode_commit, self.history(COMMIT).to_pylist()), key=lambda commit: commit.order)

    def recent(self) -> list[Commit]:
        """Return the commits that the state itself holds, newest first."""
        return sorted(map(decode_commit, self._of(COMMIT)), key=lambda commit: commit.order, reverse=True)

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
        yield list(map(decode_commit, self._of(COMMIT)))
        for segment in self.segments:
            for rows in self._read([segment]):
                yield list(map(decode_commit, of_kind(rows, COMMIT).to_pylist()))

    def history(self, kind: str) -> pa.Table:
        """Return the rows of a kind that this branch ever had: those of the state and those of all log segments."""
        return of_kind(pa.concat_tables([self.rows, *self._read(self.segments)]), kind)

    def commit(self, commit_id: str) -> Commit | None:
        found = self._find(commit_id, commit_id)
        return decode_commit(found) if found and found["object_type"] == COMMIT else None

    def merged_past(self, merge_id: str) -> MergedPast | None:
        """Return what a merge brought in; None if it is no merge of this branch, or of an older release."""
        found = self._find(past_id(merge_id), merge_id)  # it leaves the window together with its merge
        return MergedPast.of_document(json.loads(found["metadata"])) if found else None

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
        seen, wanted = len(self._of(COMMIT)), list[Segment]()
        for one in self.segments:
            wanted += [one] if one.operations and (within is None or seen < within) else []
            seen += one.commits
        yield from self._read(wanted)

    def _find(self, object_id: str, commit_id: str) -> dict[str, Any] | None:
        """Find a row in the state, or in a segment that may have the commit to which it belongs."""
        if object_id in self._named:
            return self._named[object_id]
        for segment in self.segments:
            for rows in self._read([segment] if segment.may_have(commit_id) else []):
                if found := rows.filter(pc.equal(rows[OBJECT_ID], object_id)).to_pylist():
                    return dict(found[0])
        return None

    def _read(self, segments: Iterable[Segment]) -> list[pa.Table]:
        names = [one.name for one in segments]
        return [rows.select(self.rows.column_names) for rows in self.log.read(names)] if names else []

    def actual_version(self, table_key: str) -> int:
        """Return the version that a writer must expect: the visible one, else that of the tombstone, else 0."""
        if table_key == HEAD:
            return self.head.manifest_version if self.head else 0
        if table_key.startswith(STREAM_HEAD):
            position = self.stream(table_key.removeprefix(stream_id("")))
            return position.last.batch + 1 if position else 0
        entry = self.snapshot.entries.get(table_key)
        return entry.table.version if entry else self.tombstones.get(table_key, 0)

    def at(self, commit: Commit) -> ManifestState | None:
        """Return the state of a commit that made this version, alone or together with others; None if it did not."""
        head = self.head
        if head is None or head.commit_id == commit.commit_id:
            return self
        made = (commit.branch, commit.manifest_version) == (head.branch, head.manifest_version)
        found = self._named.get(commit.commit_id) if made else None
        pins = pins_of(found) if found else None
        return self._cut(commit, pins) if pins else None

    def _cut(self, commit: Commit, pins: Mapping[str, VersionRow]) -> ManifestState:
        """Return the state without the commits that were published together with an earlier one and follow it."""
        same = map(decode_commit, self._made(commit.manifest_version))
        later = [one.commit_id for one in same if one.order > commit.order]
        names = ((row["table_key"], row["table_version"]) for row in self._of(VERSION))
        later += [version_id(key, version) for key, version in names if key in pins and version > pins[key].version]
        added = encode([*(row.record() for row in pins.values()), head_record(commit, self.graph_id)])
        rows = self.rows_with(added)
        kept = rows.filter(pc.invert(pc.is_in(rows[OBJECT_ID], value_set=pa.array(later, pa.string()))))
        return replace(self, rows=kept)

    @property
    def is_shared(self) -> bool:
        """Whether several commits made the version that the head names."""
        same = self._made(self.head.manifest_version) if self.head else []
        return len(same) > 1 or any(map(pins_of, same))

    def _made(self, version: int) -> list[dict[str, Any]]:
        """Return the commits that made a version."""
        return [row for row in self._of(COMMIT) if row["table_version"] == version]

    def is_placed_alike(self, table_key: str, other: ManifestState) -> bool:
        """Return whether a table is at the same version of the same fork in two states."""
        # On a branch a table may be forked again at the same version number: then it is another table.
        one, two = (state.snapshot.entries.get(table_key) for state in (self, other))
        same_fork = one is None or two is None or one.table.branch == two.table.branch
        return same_fork and self.actual_version(table_key) == other.actual_version(table_key)

    def has(self, object_id: str) -> bool:
        return object_id in self._named

    def version_row(self, table_key: str, version: int) -> dict[str, Any] | None:
        return self._named.get(version_id(table_key, version))

    def rows_with(self, added: pa.Table) -> pa.Table:
        """Return the rows of the next state: those of this one and the added ones, which replace rows of their id."""
        return encode(self.named_with(added.to_pylist()).values())

    def named_with(self, added: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the same rows as records, by their ids."""
        new = {record[OBJECT_ID]: {name: record.get(name) for name in SCHEMA.names} for record in added}
        # Without every head, also that of the branch from which this one was made.
        kept = {id_: row for id_, row in self._named.items() if id_ not in new and row["object_type"] != GRAPH_HEAD}
        return kept | new

    def followed(
        self, named: Mapping[str, dict[str, Any]] | None, rows: pa.Table, dataset: lance.LanceDataset, tag: str
    ) -> ManifestState:
        """Return the state that a publish made of this one. `named` are its rows as records, if they are known."""
        made = replace(self, version=int(dataset.version), rows=rows, dataset=dataset, tag=tag)
        if named is not None:  # the next publish needs them, and to read them from the table takes as long as to encode
            vars(made)["_named"] = named
        return made

    # Every answer needs a few of the rows, and a state is small: dictionaries find them much quicker than scans.

    @cached_property
    def _named(self) -> Mapping[str, dict[str, Any]]:
        return {row[OBJECT_ID]: row for row in self.rows.to_pylist()}

    @cached_property
    def _kinds(self) -> Mapping[str, list[dict[str, Any]]]:
        kinds = defaultdict[str, list[dict[str, Any]]](list)
        for row in self._named.values():
            kinds[row["object_type"]].append(row)
        return kinds

    def _of(self, object_type: str) -> Sequence[dict[str, Any]]:
        return self._kinds.get(object_type, ())

    def _newest(self, object_type: str) -> dict[str, int]:
        newest: dict[str, int] = {}
        for row in self._of(object_type):
            key, version = row["table_key"], row["table_version"]
            newest[key] = max(version, newest.get(key, version))
        return newest

    def _entry(self, row: Mapping[str, Any]) -> Entry:
        key = row["table_key"]
        path = self.paths.get(key)
        if path is None or row["row_count"] is None:
            raise CorruptGraphError(f"`{MANIFEST_PATH}` does not say where table '{key}' is", path=MANIFEST_PATH)
        return Entry(TableVersion(key, path, row["table_version"], row["table_branch"]), row["row_count"])


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
