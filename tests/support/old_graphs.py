"""Graphs as older versions of Omnigraph left them: internal schema versions 1 to 4, made by hand with pylance.

`unpacked` has the bytes of a real graph of version 4.

The columns of the two old datasets of the history are our reading: the formats we know of name the datasets and the
fields of a commit, not the columns.
"""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Barrier
from typing import Any

import lance
import obstore
import pyarrow as pa

import omnigraph
from omnigraph.api.results import Commit
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.lang.identity import new_id
from omnigraph.manifest.migrations import ACTORS_PATH, COMMITS_PATH, migrate
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.rows import MANIFEST_PATH, OBJECT_ID, SCHEMA, STAMP_KEY, VersionRow, commit_record, head_record
from omnigraph.storage.objects import ObjectStore
from tests.support.graphs import PERSON, person
from tests.support.graphs import SCHEMA as GRAPH_SCHEMA

COMMIT_COLUMNS = pa.schema(
    [
        pa.field("graph_commit_id", pa.string(), nullable=False),
        pa.field("manifest_branch", pa.string()),
        pa.field("manifest_version", pa.uint64(), nullable=False),
        pa.field("parent_commit_id", pa.string()),
        pa.field("merged_parent_commit_id", pa.string()),
        pa.field("created_at", pa.int64()),
    ]
)
ACTOR_COLUMNS = pa.schema([pa.field("graph_commit_id", pa.string(), nullable=False), pa.field("actor_id", pa.string())])
_COLUMNS = [field.remove_metadata() for field in SCHEMA]
UNMARKED = pa.schema([*_COLUMNS[:4], pa.field("base_objects", pa.list_(pa.string())), *_COLUMNS[4:]])
REAL = Path(__file__).parent / "data" / "format-4.zip"


def old_rows(records: Iterable[dict[str, Any]]) -> pa.Table:
    """Rows of a manifest with the columns that it had up to version 4."""
    return pa.Table.from_pylist(list(records), schema=UNMARKED)


def unpacked(into: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack a graph that a release with version 4 has written; return where it is, and what was read from it then."""
    with zipfile.ZipFile(REAL) as packed:
        packed.extractall(into)
    return into, json.loads(REAL.with_suffix(".json").read_text())


class OldGraph:
    """A graph in an older format, with the history it has; written to as the releases of the time did."""

    def __init__(self, uri: str, version: int, *, key: str | None = OBJECT_ID, runs: Sequence[str] = ()) -> None:
        """Make a graph with two commits after the first. `key` is the column with the primary-key mark, if any."""
        self.uri = uri
        self.location = Location.parse(uri)
        self.history: dict[str | None, list[Commit]] = {}
        self.is_inside = version >= 4  # the history is in the manifest
        self._write_manifest(version, None if version == 1 and key == OBJECT_ID else key)
        if not self.is_inside:
            self._write("create", COMMITS_PATH, None, COMMIT_COLUMNS.empty_table())
            self._write("create", ACTORS_PATH, None, ACTOR_COLUMNS.empty_table())
            self._record(None, 1, None)
        self.commit("Ada", actor="alice")
        self.commit("Bob")
        for name in runs:
            self.dataset(MANIFEST_PATH).create_branch(name)

    def _write_manifest(self, version: int, key: str | None) -> None:
        """Take a new graph back: its history is not in the manifest, and neither are the later marks."""
        omnigraph.init(self.uri, GRAPH_SCHEMA)
        rows = self.dataset(MANIFEST_PATH).to_table(filter="not starts_with(object_type, 'graph_')")
        _remove(self.location, MANIFEST_PATH)
        mark = {"lance-schema:unenforced-primary-key": "true"}
        schema = pa.schema([field.with_metadata(mark) if field.name == key else field for field in UNMARKED])
        records = rows.to_pylist()
        if self.is_inside:
            first = Commit(new_id(), None, 1, None, None, None, time.time_ns() // 1000)
            self.history[None] = [first]
            records += [commit_record(first), head_record(first)]
        dataset = self._write("create", MANIFEST_PATH, None, old_rows(records).cast(schema))
        dataset.update_config({"table_version_management": "true"})
        if version > 1:
            dataset.update_schema_metadata({STAMP_KEY: str(version)})

    def commit(self, name: str, *, branch: str | None = None, actor: str | None = None) -> Commit:
        """Add a person: the table first, then the manifest, then the history."""
        pin = Manifest(self.location).load(branch).snapshot.entries[PERSON].table
        table = self.dataset(pin.path, pin.branch)
        if branch and pin.branch != branch:
            table = table.create_branch(branch, (pin.branch, pin.version))
        table = self._write("append", pin.path, branch, pa.Table.from_pylist([person(name)], schema=table.schema))
        row = VersionRow(PERSON, table.version, branch, table.count_rows())
        manifest = self.dataset(MANIFEST_PATH, branch)
        if self.is_inside:
            return self._merge(manifest, row, branch, actor)
        rows = old_rows([row.record()]).cast(manifest.schema)
        published = self._write("append", MANIFEST_PATH, branch, rows)
        return self._record(branch, published.version, actor)

    def _merge(self, manifest: lance.LanceDataset, row: VersionRow, branch: str | None, actor: str | None) -> Commit:
        """Publish as version 4 did: the rows of the table and the history in one merge."""
        known = self.history[branch]
        commit = Commit(
            new_id(), branch, manifest.version + 1, known[-1].commit_id, None, actor, time.time_ns() // 1000
        )
        rows = old_rows([row.record(), commit_record(commit), head_record(commit)])
        merge = manifest.merge_insert(OBJECT_ID).when_matched_update_all().when_not_matched_insert_all()
        merge.use_index(use_index=False).conflict_retries(0).execute(rows)
        known.append(commit)
        return commit

    def fork(self, branch: str, parent: str | None = None, *, with_history: bool = True) -> None:
        """Branch in the two steps of the time; one that died in between did not reach the history."""
        self.dataset(MANIFEST_PATH).create_branch(branch, (parent, None))
        if with_history and not self.is_inside:
            self.dataset(COMMITS_PATH).create_branch(branch, (parent, None))
        self.history[branch] = list(self.history[parent])

    def dataset(self, path: str, branch: str | None = None, version: int | None = None) -> lance.LanceDataset:
        uri = self.location.child(path, *(["tree", branch] if branch else []))
        return lance.dataset(uri, version=version, storage_options=self.location.storage_options)

    def rewrite_history(self, rows: pa.Table) -> None:
        """Put other columns in the place of the commits."""
        _remove(self.location, COMMITS_PATH)
        self._write("create", COMMITS_PATH, None, rows)

    def remove(self, path: str) -> None:
        _remove(self.location, path)

    def append_commits(self, commits: Iterable[Commit], branch: str | None = None) -> None:
        rows = [
            {
                "graph_commit_id": commit.commit_id,
                "manifest_branch": commit.branch,
                "manifest_version": commit.manifest_version,
                "parent_commit_id": commit.parent_id,
                "merged_parent_commit_id": commit.merged_parent_id,
                "created_at": commit.created_at,
            }
            for commit in commits
        ]
        self._write("append", COMMITS_PATH, branch, pa.Table.from_pylist(rows, schema=COMMIT_COLUMNS))

    def _record(self, branch: str | None, version: int, actor: str | None) -> Commit:
        known = self.history.setdefault(branch, [])
        parent = known[-1].commit_id if known else None
        commit = Commit(new_id(), branch, version, parent, None, actor, time.time_ns() // 1000)
        self.append_commits([commit], branch)
        if actor:
            row = {"graph_commit_id": commit.commit_id, "actor_id": actor}
            self._write("append", ACTORS_PATH, None, pa.Table.from_pylist([row], schema=ACTOR_COLUMNS))
        known.append(commit)
        return commit

    def _write(self, mode: str, path: str, branch: str | None, rows: pa.Table) -> lance.LanceDataset:
        return lance.write_dataset(
            rows,
            self.location.child(path, *(["tree", branch] if branch else [])),
            mode=mode,
            enable_stable_row_ids=True,
            data_storage_version="2.2",
            storage_options=self.location.storage_options,
        )


def _remove(location: Location, path: str) -> None:
    objects = ObjectStore(location)
    listed: Any = obstore.list(objects._store, f"{location.key}/{path}")
    obstore.delete(objects._store, [found["path"] for batch in listed for found in batch])


def migrate_together(barrier: Barrier, uri: str) -> None:
    """What one of several processes does."""
    store = Store.at(Location.parse(uri))
    barrier.wait(300)
    migrate(store.manifest, None)
