"""Format versions and migrations: bring a `__manifest` of an older release to the current format, or read it as it is.

A step does its work first and stamps last. It can be repeated after dying anywhere, and any number of processes may run
it in parallel: one that loses to another looks again, and finds the work done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.api.results import Commit
from omnigraph.errors import ConflictError, ContentionError, CorruptGraphError, FormatTooNewError, FormatTooOldError
from omnigraph.manifest.rows import (
    MANIFEST_PATH,
    OBJECT_ID,
    SCHEMA,
    STAMP_KEY,
    commit_record,
    decode_commit,
    encode,
    head_record,
)
from omnigraph.manifest.segments import Segments, archived
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.internal import InternalTable, primary_key
from omnigraph.storage.lance_errors import lance_call
from omnigraph.version import INTERNAL_SCHEMA_VERSION

if TYPE_CHECKING:  # the publisher migrates a branch before it first writes to it
    from omnigraph.manifest.publisher import Manifest

OLDEST_ACCEPTED = 1
ATTEMPTS = 5
# Where the history was before it moved into the manifest. Only the names of these two and the fields of a commit
# consists of; the names of their columns are our reading. Only the first two of the commits must be there.
COMMITS_PATH = "_graph_commits.lance"
ACTORS_PATH = "_graph_commit_actors.lance"
_REQUIRED = ("graph_commit_id", "manifest_version")
_OPTIONAL = ("manifest_branch", "parent_commit_id", "merged_parent_commit_id", "created_at")

_MARKED, _SWEPT, _LINEAGE_INSIDE, WHOLE = 2, 3, 4, 5
_RUN_PREFIX = "__run__"
_UNSTAMPED = 1
_LONGEST = 9
_LOG = logging.getLogger(__name__)


def read_stamp(dataset: lance.LanceDataset) -> int:
    """Read the format version of a `__manifest`; without a stamp it is the first format."""
    text = (dataset.schema.metadata or {}).get(STAMP_KEY.encode())
    if text is None:
        return _UNSTAMPED
    if not text.isdigit() or len(text) > _LONGEST:
        message = f"the format stamp {text[:40]!r} is not a format number"
        raise CorruptGraphError(message, path=dataset.uri, hint="restore the graph from a backup")
    return int(text)


def stamped(rows: pa.Table) -> pa.Table:
    """Return the rows of a manifest with the current stamp: a swap takes the schema metadata from its rows."""
    return rows.replace_schema_metadata({STAMP_KEY: str(INTERNAL_SCHEMA_VERSION)})


def guard(stamp: int) -> None:
    """Raise if the format is too new or too old, in every open mode."""
    if stamp > INTERNAL_SCHEMA_VERSION:
        message = f"the graph has format {stamp}; this release supports formats up to {INTERNAL_SCHEMA_VERSION}"
        raise FormatTooNewError(message, found=stamp, supported=INTERNAL_SCHEMA_VERSION, hint="upgrade omnigraph")
    if stamp < OLDEST_ACCEPTED:
        message = (
            f"the graph has format {stamp}, which is older than {OLDEST_ACCEPTED}, the oldest that can be migrated"
        )
        hint = "migrate it with an older release of omnigraph first"
        raise FormatTooOldError(message, found=stamp, supported=OLDEST_ACCEPTED, hint=hint)


def migrate(manifest: Manifest, branch: str | None) -> int:
    """Migrate one branch of the manifest to the current format, step by step; return the format it had."""
    table = manifest.table
    found = stamp = read_stamp(table.open(branch))
    guard(stamp)
    while stamp < INTERNAL_SCHEMA_VERSION:
        # The step first and the stamp after it: a step that died is done again, and finds what is there.
        _STEPS[stamp](table, branch)
        stamp = _stamp(table, branch, stamp + 1)
        guard(stamp)
    return found


def with_old_lineage(manifest: Manifest, dataset: lance.LanceDataset, branch: str | None, rows: pa.Table) -> pa.Table:
    """Add the history that an older format keeps elsewhere to the rows of a manifest. Nothing is written.

    Past versions of a manifest that was migrated since are still in their older format.
    """
    if read_stamp(dataset) >= _LINEAGE_INSIDE:
        return rows
    commits = [commit for commit in _old_commits(manifest.table, branch) if commit.manifest_version <= dataset.version]
    added = [commit_record(commit) for commit in _not_in(commits, rows)]
    return pa.concat_tables([rows, encode(added).select(rows.column_names).cast(rows.schema)]) if added else rows


def _stamp(table: InternalTable, branch: str | None, target: int) -> int:
    """Stamp a finished step; return the current stamp, which another process may have raised further."""
    for _ in range(ATTEMPTS):
        dataset = table.open(branch)
        stamp = read_stamp(dataset)
        # Another process was faster, or is past this step: a lower stamp must not be written over its own.
        if stamp >= target:
            return stamp
        try:
            # From a handle that saw a lower stamp, this conflicts with every other stamp: one never goes back.
            table.set_schema_metadata(dataset, {STAMP_KEY: str(target)})
        except ConflictError:
            continue
        return target
    raise _exhausted(f"stamp format {target}")


def _exhausted(what: str) -> ContentionError:
    message = f"{ATTEMPTS} attempts to {what} lost to other writers"
    return ContentionError(message, attempts=ATTEMPTS, hint="try again")


# 1 to 2: two commits of one object conflict ---------------------------------------------------------


def _mark_key(table: InternalTable, branch: str | None) -> None:
    for _ in range(ATTEMPTS):
        dataset = table.open(branch)
        if read_stamp(dataset) >= _MARKED:  # of another process, which may be past the format that needs the mark
            return
        if primary_key(dataset):
            _check_key(dataset)
            return
        try:
            table.mark_primary_key(dataset, OBJECT_ID)
        except ConflictError:
            continue
        return
    raise _exhausted(f"mark the key of `{MANIFEST_PATH}`")


def _check_key(dataset: lance.LanceDataset) -> None:
    key = primary_key(dataset)
    if key != [OBJECT_ID]:
        message = f"the primary key of `{MANIFEST_PATH}` is {', '.join(key) or 'not set'} instead of {OBJECT_ID}"
        hint = "restore the graph from a backup; lance cannot change the mark"
        raise CorruptGraphError(message, path=dataset.uri, hint=hint)


# 2 to 3: the branches of a feature that is gone -----------------------------------------------------


def _sweep_runs(table: InternalTable, branch: str | None) -> None:  # noqa: ARG001 - the runs belong to all branches
    """Delete the branches that runs left behind."""
    for _ in range(ATTEMPTS):
        branches = table.branches()
        main = table.open()
        # Once main is past this step, the prefix is free: a branch that has it now may be a user's.
        if read_stamp(main) >= _SWEPT:
            return
        doomed = _run_branches(branches)
        if not doomed:
            return
        for name in doomed:
            table.delete_branch(main, name)
    raise _exhausted(f"delete the {_RUN_PREFIX} branches")


def _run_branches(branches: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Name the branches to delete, descendants first. One that an ordinary branch descends from holds its data."""
    above = {name: _ancestors(branches, name) for name in branches}
    runs = {name for name in branches if name.startswith(_RUN_PREFIX)}
    needed = {parent for name in branches if name not in runs for parent in above[name]}
    for name in sorted(runs & needed):
        _LOG.warning("branch '%s' is kept: others descend from it", name)
    return sorted(runs - needed, key=lambda name: (-len(above[name]), name))


def _ancestors(branches: Mapping[str, Mapping[str, Any]], name: str) -> list[str]:
    found: list[str] = []
    parent = branches[name]["parent_branch"]
    while parent in branches and parent not in found:
        found.append(parent)
        parent = branches[parent]["parent_branch"]
    return found


# 3 to 4: the history moves into the manifest --------------------------------------------------------


def _copy_lineage(table: InternalTable, branch: str | None) -> None:
    for _ in range(ATTEMPTS):
        dataset = table.open(branch)
        if read_stamp(dataset) >= _LINEAGE_INSIDE:
            return
        with lance_call(dataset.uri, "read"):
            rows = dataset.to_table(filter="object_type = 'graph_commit'")
        missing = _not_in(_old_commits(table, branch), rows)
        if not missing:
            return
        _check_key(dataset)  # without the mark, a second runner would leave every row twice
        head = max([*map(decode_commit, rows.to_pylist()), *missing], key=lambda commit: commit.order)
        records = [*(commit_record(commit) for commit in missing), head_record(replace(head, branch=branch))]
        try:
            table.merge(dataset, OBJECT_ID, _all_columns(encode(records), dataset))
        except ConflictError:
            continue
        return
    raise _exhausted(f"copy the history into `{MANIFEST_PATH}`")


def _all_columns(rows: pa.Table, dataset: lance.LanceDataset) -> pa.Table:
    """Return rows with all columns of a dataset: later formats have fewer."""
    columns = {
        field.name: rows[field.name] if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in dataset.schema
    }
    return pa.table(columns)


def _not_in(commits: Iterable[Commit], rows: pa.Table) -> list[Commit]:
    known = set(rows[OBJECT_ID].to_pylist())
    return [commit for commit in commits if commit.commit_id not in known]


def _old_commits(table: InternalTable, branch: str | None) -> list[Commit]:
    """Read the history of a branch from its former place, sorted by id."""
    rows = _old_rows(table, branch)
    actors = _actors(table) if rows else {}
    found: dict[str, Commit] = {}
    for row in rows:
        commit = Commit(
            row["graph_commit_id"],
            row["manifest_branch"],
            row["manifest_version"],
            row["parent_commit_id"],
            row["merged_parent_commit_id"],
            actors.get(row["graph_commit_id"]),
            row["created_at"] or 0,
        )
        # Two rows with one id would both become rows of the manifest, which then counts as corrupt.
        found[commit.commit_id] = max(commit, found.get(commit.commit_id, commit), key=lambda commit: commit.order)
    return [found[commit_id] for commit_id in sorted(found)]


def _old_rows(table: InternalTable, branch: str | None) -> list[dict[str, Any]]:
    """Read the commit rows of a branch, including those from before its fork; empty if there never were any."""
    commits = InternalTable(table.location, COMMITS_PATH)
    main = commits.open_if_exists()
    if main is None:
        return []
    if branch is None:
        return _read(main, _REQUIRED, _OPTIONAL)
    if branch in commits.branches():
        return _read(commits.open(branch), _REQUIRED, _OPTIONAL)
    # Branching was two steps: one that died in between left a branch without commits of its own.
    fork = table.branches().get(branch)
    if fork is None:
        raise CorruptGraphError(f"the history of branch '{branch}' is missing", path=commits.uri(branch))
    inherited = _old_rows(table, fork["parent_branch"])
    return [row for row in inherited if row["manifest_version"] <= fork["parent_version"]]


def _actors(table: InternalTable) -> dict[str, str]:
    """Read the actors of commits. This dataset never had branches: it serves all of them."""
    dataset = InternalTable(table.location, ACTORS_PATH).open_if_exists()
    if dataset is None:
        return {}
    return {row["graph_commit_id"]: row["actor_id"] for row in _read(dataset, ("graph_commit_id", "actor_id"), ())}


def _read(dataset: lance.LanceDataset, required: tuple[str, ...], optional: tuple[str, ...]) -> list[dict[str, Any]]:
    present = dataset.schema.names
    # A part that is missing here is a failure like any other: only a dataset that never was has no commits.
    with lance_call(dataset.uri, "read"):
        rows = dataset.to_table(columns=[name for name in (*required, *optional) if name in present])
    if any(name not in present or rows[name].null_count for name in required):
        raise CorruptGraphError(f"{dataset.uri} lacks one of {', '.join(required)}", path=dataset.uri)
    columns = {name: _plain(rows[name]) if name in present else [None] * rows.num_rows for name in required + optional}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; times are microseconds."""
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


# 4 to 5: the state is swapped whole, and old commits are in log segments ----------------------------


def _swap_whole(table: InternalTable, branch: str | None) -> None:
    """Replace the rows by those of the new format, with its stamp, in one swap. Lance takes the mark off the key."""
    for _ in range(ATTEMPTS):
        dataset = table.open(branch)
        if read_stamp(dataset) >= WHOLE:
            return
        with lance_call(dataset.uri, "read"):
            rows = dataset.to_table(columns=SCHEMA.names).cast(SCHEMA)
        log = Segments(table.location)
        state = ManifestState(branch, int(dataset.version), rows, dataset, log).checked()
        head = [head_record(replace(state.head, branch=branch), state.graph_id)] if state.head else []
        # Said before the step that cannot be taken back: other programs may still use the graph.
        _LOG.warning("%s gets format %d; releases before 0.2 cannot open it any more", dataset.uri, WHOLE)
        named = state.named_with(head)
        staged = table.stage(dataset, stamped(archived(encode(named.values()), named.values(), log)))
        try:
            table.swap(dataset, staged)
        except ConflictError:
            continue
        newest = table.open(branch)
        if read_stamp(newest) >= WHOLE:
            return
        # Behind the head: others committed and cleaned up since the handle was opened.
        table.remove_stray(branch, int(dataset.version) + 1)
    raise _exhausted(f"swap the rows of `{MANIFEST_PATH}`")


_STEPS: dict[int, Callable[[InternalTable, str | None], None]] = {
    _MARKED - 1: _mark_key,
    _SWEPT - 1: _sweep_runs,
    _LINEAGE_INSIDE - 1: _copy_lineage,
    WHOLE - 1: _swap_whole,
}
assert list(_STEPS) == list(range(OLDEST_ACCEPTED, INTERNAL_SCHEMA_VERSION)), "there is a step from each old format"
