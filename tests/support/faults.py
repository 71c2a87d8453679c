"""Ways to stop a write half-way: crashes, storage that fails, commits by strangers, recovery records made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.api.results import Commit
from omnigraph.commit import failpoints, sidecar
from omnigraph.commit.plan import PublishPlan, TableAction
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.recovery import RECOVERY_ACTOR
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import StorageError
from omnigraph.lang.identity import new_id
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.storage import observe
from tests.support.graphs import (
    COMPANY,
    KNOWS,
    PERSON,
    SCHEMA,
    append,
    company,
    edge,
    heads_and_pins,
    person,
    plan,
    table,
)

_ROOT = Path(__file__).parents[2]


class CrashError(Exception):
    """The process would be dead here. No error of ours, so that nobody cleans up after it."""


# A graph to work on --------------------------------------------------------------------------------


def small_graph(uri: str) -> Store:
    """A graph of three people, two friendships and a company; a table with rows is at version 2."""
    omnigraph.init(uri, SCHEMA)
    store = Store.at(Location.parse(uri))
    txn = begin(store)
    people = append(store, txn, PERSON, [person("ada", 36), person("bob", 40), person("cleo", 25)])
    friends = append(store, txn, KNOWS, [edge("k1", "ada", "bob"), edge("k2", "bob", "cleo")])
    publish(store, plan(txn, people, friends, append(store, txn, COMPANY, [company("acme")])))
    return store


def add_company(store: Store, name: str, branch: str | None = None) -> Commit:
    """A small write from its beginning: it recovers what is pending first."""
    txn = begin(store, branch)
    return publish(store, plan(txn, append(store, txn, COMPANY, [company(name)]))).commit


def fork(store: Store, branch: str) -> None:
    """Make a branch of the graph."""
    store.manifest.create_branch(branch, store.manifest.load())


def on_branch(store: Store, branch: str) -> PublishPlan:
    """The first write to two tables of a branch, PERSON and COMPANY, which must be forked."""
    txn = begin(store, branch)
    actions = []
    for key, rows in ((PERSON, [person("dan")]), (COMPANY, [company("new")])):
        forked = txn.writable_table(store.tables, key)
        actions.append(TableAction(store.tables.stage_append(forked, table(store, txn, key, rows))))
    return plan(txn, *actions, actor="ada")


def unfork(store: Store, branch: str) -> None:
    """Delete a branch of the graph by hand."""
    dataset(store, MANIFEST_PATH).branches.delete(branch)


def dataset(store: Store, path: str) -> lance.LanceDataset:
    """A table by plain pylance, as a tool that knows nothing of us would open it."""
    return lance.dataset(store.location.child(path), storage_options=store.location.storage_options)


def foreign_commit(store: Store, key: str, times: int = 1) -> int:
    """Append to a table behind our back; returns where its head is then."""
    path = store.manifest.load().snapshot.entries[key].table.path
    opened = dataset(store, path)
    for number in range(times):
        row = {field.name: f"foreign{number}" for field in opened.schema if not field.nullable}
        opened.insert(pa.Table.from_pylist([row], schema=opened.schema))
    return int(opened.version)


# Stopping ------------------------------------------------------------------------------------------


def crash() -> None:
    raise CrashError


def doing(action: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """What a failpoint takes, made of any call."""

    def act() -> None:
        action(*arguments)

    return act


def at_arrival(number: int, action: Callable[[], None]) -> Callable[[], None]:
    """Act when a failpoint is reached for the n-th time, and only then."""
    arrivals = iter(range(1, sys.maxsize))

    def arrive() -> None:
        if next(arrivals) == number:
            action()

    return arrive


def interrupt(store: Store, work: PublishPlan, at: str, arrival: int = 1) -> str:
    """Publish a plan up to a failpoint and crash there; returns the operation that is left behind."""
    with pytest.raises(CrashError), failpoints.armed(at, at_arrival(arrival, crash)):
        publish(store, work)
    (operation_id,) = store.sidecars.pending()
    return operation_id


def refuse() -> None:
    raise StorageError("the storage does not answer", path="", operation="test")


def broken_storage(operation: str, path: str) -> Exception:
    return StorageError(f"cannot {operation} {path}: the storage fails", path=path, operation=operation)


@contextmanager
def failing(
    operation: str | None,
    part: str,
    *,
    after: int = 0,
    times: int = sys.maxsize,
    error: Callable[[str, str], Exception] = broken_storage,
) -> Iterator[list[str]]:
    """Let durable writes of one kind, or all, fail on paths with a part in them; yields the paths that failed."""
    seen, failed = 0, list[str]()

    def hook(tried: str, path: str) -> None:
        nonlocal seen
        if operation in (None, tried) and part in path:
            seen += 1
            if after < seen <= after + times:
                failed.append(path)
                raise error(tried, path)

    previous = observe.set_write_hook(hook)
    try:
        yield failed
    finally:
        observe.set_write_hook(previous)


@contextmanager
def opening(uri: str, at: str, action: str) -> Iterator[subprocess.Popen[str]]:
    """Open a graph in a process that stops at a failpoint: to `die` there, or to `hold` until it is told a line."""
    command = [sys.executable, "-m", __name__, uri, at, action]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _open_in_this_process(uri: str, at: str, action: str) -> None:
    def hold() -> None:
        print("reached", flush=True)  # noqa: T201 - how the parent learns it
        sys.stdin.readline()

    with failpoints.armed(at, failpoints.die if action == "die" else hold):
        omnigraph.open(uri)


# Recovery records by hand --------------------------------------------------------------------------


def pin_of(
    store: Store, key: str, changes: Mapping[str, int] | None = None, branch: str | None = None
) -> dict[str, Any]:
    """The pin of an honest one-step write to a table, as version 2 puts it; `changes` are relative to the version."""
    entry = store.manifest.load(branch).snapshot.entries[key].table
    version = entry.version
    numbers = {"expected_version": 0, "post_commit_pin": 1, **(changes or {})}
    return {
        "table_key": key,
        "table_path": store.location.child(entry.path),
        "table_branch": branch,
        **{name: version + change for name, change in numbers.items()},
    }


def write_record(
    store: Store, kind: str, pins: list[dict[str, Any]], *, version: int = 2, branch: str | None = None, **more: Any
) -> str:
    """Leave a recovery record behind, as Omnigraph 0.8 did; returns its operation."""
    operation_id = new_id()
    document = {
        "schema_version": version,
        "operation_id": operation_id,
        "started_at": "1760000000000000",
        "branch": branch,
        "actor_id": "eve",
        "writer_kind": kind,
        "tables": pins,
        **more,
    }
    store.objects.write(f"{sidecar.DIRECTORY}/{operation_id}.json", json.dumps(document).encode())
    return operation_id


# Looking afterwards --------------------------------------------------------------------------------


def assert_settled(store: Store, branch: str | None = None) -> None:
    """No write is under way, every head is its pin, and history is one chain."""
    assert store.sidecars.pending() == []
    state = store.manifest.load(branch)
    own = {key for key, entry in state.snapshot.entries.items() if entry.table.branch == branch}
    drifted = {key: pair for key, pair in heads_and_pins(store, branch).items() if pair[0] != pair[1] and key in own}
    assert drifted == {}
    commits = state.commits()
    assert [commit.parent_id for commit in commits] == [None, *(commit.commit_id for commit in commits[:-1])]


def pins(store: Store, branch: str | None = None) -> dict[str, int]:
    return {key: entry.table.version for key, entry in store.manifest.load(branch).snapshot.entries.items()}


def recovery_commits(store: Store, branch: str | None = None) -> list[str]:
    commits = store.manifest.load(branch).commits()
    return [commit.commit_id for commit in commits if commit.actor_id == RECOVERY_ACTOR]


if __name__ == "__main__":
    _open_in_this_process(*sys.argv[1:])
