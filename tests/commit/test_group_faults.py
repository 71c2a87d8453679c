"""A group whose leader dies or whose storage fails at any durable write: each member happened whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from omnigraph.commit import failpoints
from omnigraph.commit.plan import PublishPlan
from omnigraph.commit.publish import lead
from omnigraph.commit.queue import Queue, Waiting
from omnigraph.commit.store import Store
from omnigraph.errors import ExpectedVersionMismatchError, OutcomeUnknownError, RecoveryRequiredError, StorageError
from omnigraph.graph import Graph
from omnigraph.history.resolve import graph_state_at
from omnigraph.manifest.publisher import Published
from tests.commit.child import Death, Ordinals, after_a_lifetime, die, hooked, peopled, store_at, three_members
from tests.commit.places import copied
from tests.support.faults import CrashError, assert_settled
from tests.support.graphs import COMPANY, KNOWS, PERSON, contents
from tests.support.together import publish_together

OPERATIONS = ("operation-1", "operation-2", "operation-3")
STAGES = ("stage append", "stage append", "stage append", "stage delete")
PHASES = ("write", *["commit table"] * 4, "stage", "publish", "delete")
Rows = Mapping[str, Any]


def _opened(uri: str) -> Graph:
    return Graph(after_a_lifetime(store_at(uri)), read_only=False)


def _writes(store: Store) -> tuple[str, ...]:
    ordinals = Ordinals()
    with hooked(ordinals):
        done = publish_together(store, three_members(store))
    assert [one.exception() for one in done] == [None] * 3
    return tuple(ordinals.written)


def _assert_members(graph: Graph, store: Store) -> None:
    """Each member has its commit, by its operation id, with exactly its own rows."""
    commits = [graph.outcome(name) for name in OPERATIONS]
    head = graph.commits()[0]
    assert commits[-1] == head
    assert [one.parent_id for one in commits[1:] if one] == [one.commit_id for one in commits[:-1] if one]
    found = []
    for commit in commits:
        assert commit
        entries = graph_state_at(store.manifest, commit).snapshot.entries
        found.append(tuple(entries[key].row_count for key in (PERSON, COMPANY, KNOWS)))
    assert found == [(4, 1, 2), (5, 2, 2), (5, 2, 1)]


def test_a_leader_that_dies_at_any_durable_write_leaves_all_members_or_none(root_uri: str) -> None:
    before = contents(peopled(root_uri))
    changed = store_at(copied(root_uri))
    writes = _writes(changed)
    after = contents(changed)
    lease = () if changed.location.is_local else ("replace",)
    assert writes == (*STAGES, *lease, *PHASES, *lease)
    deaths = [Death("group", copied(root_uri), ordinal) for ordinal in range(1, len(writes) + 1)]
    if lease:  # requests take their time: one of each kind is enough
        deaths = [one for one in deaths if one.ordinal in (6, 8, 10, 11, 12, 13)]
    die(deaths)
    ends = {}
    for death in deaths:
        graph, store = _opened(death.uri), store_at(death.uri)
        shown = contents(store)
        ends[death.ordinal] = "after" if shown == after else "before" if shown == before else "neither"
        assert_settled(store)
        audits = [(row.operation_id, row.kind.value) for row in store.audit.rows()]
        if ends[death.ordinal] == "after":
            _assert_members(graph, store)
            ids = {commit.commit_id for name in OPERATIONS if (commit := graph.outcome(name))}
            assert death.ordinal == len(writes) or {name for name, _ in audits} == ids
        else:
            assert [graph.outcome(name) for name in OPERATIONS] == [None] * 3
        assert len(audits) in (0, 3)
        graph.mutate('query q() { insert Company { name: "next" } }')
    at = 4 + len(lease) + 1 + 4  # the last of the tables has moved before what comes next
    assert ends == {ordinal: "after" if ordinal > at else "before" for ordinal in ends}


@pytest.mark.parametrize("ordinal", range(5, 13))
def test_storage_that_fails_at_any_durable_write_gives_each_member_its_outcome(tmp_path: Path, ordinal: int) -> None:
    store = peopled(str(tmp_path / "graph"))
    before = contents(store)
    count = 0

    def fail(operation: str, path: str) -> None:
        nonlocal count
        count += 1
        if count == ordinal:
            raise StorageError(f"the disk is gone at {operation}", path=path, operation=operation)

    plans = three_members(store)
    count = 4
    with hooked(fail):
        try:
            done = publish_together(store, plans)
        except StorageError:
            assert ordinal == 0, "every member has an outcome"
            return
    errors = {type(one.exception()) for one in done}
    unknown = {OutcomeUnknownError} == errors
    graph = Graph(store_at(store.location.uri), read_only=False)
    found = [graph.outcome(name) for name in OPERATIONS]
    if errors == {type(None)}:
        _assert_members(graph, store)
        assert [one.result().commit for one in done] == found
    elif unknown:
        assert [_operation(one) for one in done] == [plan.lineage.commit_id for plan in plans]
        assert all(found)
        _assert_members(graph, store)
    else:
        assert errors == {ExpectedVersionMismatchError}
        assert found == [None] * 3
        assert contents(store) == before
    assert_settled(store)
    # record, tables, manifest, record again
    assert ("done" if errors == {type(None)} else "unknown" if unknown else "undone") == (
        {5: "undone", 10: "unknown", 11: "unknown", 12: "done"}.get(ordinal, "undone")
    )


def _operation(one: Future[Published]) -> str | None:
    error = one.exception()
    return error.operation_id if isinstance(error, OutcomeUnknownError) else None


def test_a_leader_that_is_interrupted_leaves_its_members_without_a_known_outcome(tmp_path: Path) -> None:
    store = peopled(str(tmp_path / "graph"))
    plans = three_members(store)

    def crash() -> None:
        raise CrashError

    queue, waiting = _waiting(plans)
    with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash), pytest.raises(CrashError):
        lead(store, queue, None, None)
    assert [type(one.done.exception()) for one in waiting[1:]] == [OutcomeUnknownError] * 2
    reader = Graph(store_at(store.location.uri), read_only=True)
    for name in OPERATIONS:
        with pytest.raises(RecoveryRequiredError):
            reader.outcome(name)
    graph = Graph(store_at(store.location.uri), read_only=False)
    _assert_members(graph, store)
    assert [row.actor for row in store.audit.rows()] == ["ann", "ann", "cat"]


def _waiting(plans: list[PublishPlan]) -> tuple[Queue, list[Waiting]]:
    queue, waiting = Queue(None), [Waiting(one) for one in plans]
    for one in waiting:
        queue.join(one)
    return queue, waiting


def test_plans_that_a_leader_cannot_check_wait_for_the_next(tmp_path: Path) -> None:
    store = peopled(str(tmp_path / "graph"))

    def fail() -> None:
        raise StorageError("the disk is gone", path="", operation="test")

    queue, waiting = _waiting(three_members(store))
    with failpoints.armed(failpoints.PUBLISH_AFTER_GATES, fail), pytest.raises(StorageError):
        lead(store, queue, None, None)
    assert [one.is_taken for one in waiting[1:]] == [False, False]
    assert len(queue) == 2
    lead(store, queue, None, None)
    assert all(one.done.result() for one in waiting[1:])
