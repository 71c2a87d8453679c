"""A gate that is lost half-way: from then on a write or a recovery takes no step that others can see."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from omnigraph.commit import failpoints
from omnigraph.commit.gates import DIRECTORY
from omnigraph.commit.plan import PublishPlan, TableAction, gates_for
from omnigraph.commit.publish import begin, publish, publish_held
from omnigraph.commit.recovery import heal, recover
from omnigraph.commit.sidecar import DIRECTORY as RECORDS
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import GateTimeoutError, OutcomeUnknownError
from omnigraph.storage import observe
from omnigraph.storage.layout import IndexSpec
from omnigraph.storage.maintain import chained
from tests.support.faults import CrashError, crash, pin_of, small_graph, write_record
from tests.support.graphs import COMPANY, PERSON, append, company, heads_and_pins, person, plan

# Files of a new version are staged, and the medium is synced, before a gate is looked at again.
VISIBLE = {"write", "commit table", "publish", "create"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "graph"
    small_graph(str(path))
    return path


def copied(template: Path, path: Path) -> Store:
    return Store.at(Location.parse(shutil.copytree(template, path)))


def two_tables(store: Store) -> PublishPlan:
    txn = begin(store)
    return plan(txn, append(store, txn, PERSON, [person("dan")]), append(store, txn, COMPANY, [company("new")]))


def write(store: Store) -> None:
    with suppress(OutcomeUnknownError):
        publish(store, two_tables(store))


def write_in_two_steps(store: Store) -> None:
    """One table by two transactions, one after the other, as when compaction is followed by an index."""
    txn = begin(store)
    index = store.tables.stage_create_indices(txn.entries[COMPANY].table, [IndexSpec("id", "BTREE")])
    staged = chained(append(store, txn, COMPANY, [company("new")]).staged, index)
    with suppress(OutcomeUnknownError):
        publish(store, plan(txn, TableAction(staged)))


def died(at: str) -> Callable[[Store], object]:
    def die(store: Store) -> None:
        with suppress(CrashError), failpoints.armed(at, crash):
            publish(store, two_tables(store))

    return die


def left_an_old_record(store: Store) -> str:
    return write_record(store, "Mutation", [pin_of(store, COMPANY, {"expected_version": -1, "post_commit_pin": 0})])


def records(store: Store) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(store.location.child(RECORDS)).iterdir()}


def lose_gates(store: Store) -> None:
    """As if the graph was replaced: the files of the locks are no longer those at their names."""
    directory = Path(store.location.child(DIRECTORY))
    directory.rename(directory.with_name("elsewhere"))


def steps(store: Store, action: Callable[[Store], object], lost_at: int) -> list[str]:
    """Return the durable writes of an action that loses its gates when it is about to make one of them."""
    seen: list[str] = []

    def hook(operation: str, _: str) -> None:
        if len(seen) == lost_at:
            lose_gates(store)
        seen.append(operation)

    previous = observe.set_write_hook(hook)
    try:
        action(store)
    finally:
        observe.set_write_hook(previous)
    return seen


CASES: dict[str, tuple[Callable[[Store], object], Callable[[Store], object]]] = {
    "a write": (lambda _: None, write),
    "a write in two steps": (lambda _: None, write_in_two_steps),
    "a recovery that finishes": (died(failpoints.PUBLISH_BEFORE_MANIFEST), heal),
    "a recovery that undoes": (died(failpoints.PUBLISH_AFTER_TABLE_COMMIT), heal),
    "a recovery of an old record": (left_an_old_record, heal),
}


@pytest.mark.parametrize("name", CASES)
def test_whatever_step_it_is_lost_at_is_the_last_one_that_others_see(template: Path, tmp_path: Path, name: str) -> None:
    prepare, action = CASES[name]
    lost_at, visible = 0, set[str]()
    while True:
        store = copied(template, tmp_path / str(lost_at))
        prepare(store)
        seen = steps(Store.at(store.location), action, lost_at)
        if lost_at >= len(seen):
            break
        if seen[lost_at] in VISIBLE:
            visible.add(seen[lost_at])
            assert not VISIBLE.intersection(seen[lost_at + 1 :]), (name, lost_at, seen)
        lost_at += 1
    assert "publish" in visible


@pytest.mark.parametrize("prepare", [left_an_old_record, died(failpoints.PUBLISH_AFTER_TABLE_COMMIT)])
def test_a_recovery_without_its_gates_changes_nothing(
    template: Path, tmp_path: Path, prepare: Callable[[Store], object]
) -> None:
    store = copied(template, tmp_path / "graph")
    prepare(store)
    [operation_id] = store.sidecars.pending()
    record, before = store.sidecars.read(operation_id), (records(store), heads_and_pins(store))
    assert record is not None

    with store.gates.hold(gates_for(None, record.table_keys)) as held:
        lose_gates(store)
        with pytest.raises(GateTimeoutError, match="replaced or removed"):
            recover(store, record, held)

    assert (records(store), heads_and_pins(store)) == before


def test_a_write_without_its_gates_leaves_no_record(template: Path, tmp_path: Path) -> None:
    store = copied(template, tmp_path / "graph")
    made = two_tables(store)

    with store.gates.hold(gates_for(None, made.table_keys)) as held:
        lose_gates(store)
        with pytest.raises(GateTimeoutError, match="replaced or removed"):
            publish_held(store, made, held)

    assert store.sidecars.pending() == []


def test_a_head_that_no_record_explains_gets_none_without_the_gates(template: Path, tmp_path: Path) -> None:
    store = copied(template, tmp_path / "graph")
    made = two_tables(store)
    died(failpoints.PUBLISH_AFTER_TABLE_COMMIT)(Store.at(store.location))
    shutil.rmtree(store.location.child(RECORDS))  # as a request that arrives after its sender was recovered

    with store.gates.hold(gates_for(None, made.table_keys)) as held:
        lose_gates(store)
        with pytest.raises(GateTimeoutError, match="replaced or removed"):
            publish_held(store, made, held)

    assert store.sidecars.pending() == []
