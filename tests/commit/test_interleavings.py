"""What comes late, comes twice or comes in between must not undo, hide or block what others have done."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.commit import failpoints
from omnigraph.commit.audit import PATH, Audit, AuditRow, RecoveryKind, TableOutcome
from omnigraph.commit.failpoints import Rendezvous
from omnigraph.commit.gates import Gate, LeaseGates, LocalGates
from omnigraph.commit.lease import Lease
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind, WriteTxn, gates_for
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.recovery import RECOVERY_ACTOR, heal, recover_operation
from omnigraph.commit.sidecar import DIRECTORY, Sidecar
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import (
    ConflictError,
    ExpectedVersionMismatchError,
    GateTimeoutError,
    StorageDeniedError,
    StorageError,
)
from omnigraph.manifest.rows import TombstoneRow
from omnigraph.storage import objects, observe
from omnigraph.storage.internal import InternalTable, primary_key
from omnigraph.storage.layout import IndexSpec
from omnigraph.storage.objects import ObjectStore, Version
from tests.commit.child import hooked, is_renewal, store_at
from tests.support.faults import (
    add_company,
    assert_settled,
    at_arrival,
    failing,
    foreign_commit,
    fork,
    interrupt,
    on_branch,
    pin_of,
    pins,
    small_graph,
    unfork,
    write_record,
)
from tests.support.graphs import COMPANY, PERSON, append, company, contents, person, plan, write_plan

_LIFETIME = 2.0  # of a lease: it is renewed in time on a busy machine too
_MAIN = [Gate("branch:main")]
BACK, FORWARD = RecoveryKind.ROLLED_BACK, RecoveryKind.ROLLED_FORWARD
ONE_MOVED = failpoints.PUBLISH_AFTER_TABLE_COMMIT


@pytest.fixture
def store(root_uri: str) -> Store:
    small_graph(root_uri)
    return store_at(root_uri, lifetime=_LIFETIME)


@pytest.fixture
def remote(s3_uri: str) -> Store:
    """On an object store, where a gate can be lost and a request can outlive its sender."""
    small_graph(s3_uri)
    return store_at(s3_uri, lifetime=_LIFETIME)


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return small_graph(str(tmp_path / "graph"))


def ids(store: Store, key: str) -> list[str]:
    return [row["id"] for row in contents(store)[key]]


def half(store: Store) -> Sidecar:
    """Leave a write to two tables behind that has moved one of them, PERSON."""
    txn = begin(store)
    actions = append(store, txn, PERSON, [person("dan")]), append(store, txn, COMPANY, [company("x")])
    record = store.sidecars.read(interrupt(store, plan(txn, *actions), ONE_MOVED))
    assert record is not None
    return record


def restore(store: Store, record: Sidecar, key: str, seen: int) -> None:
    """Restore a table as a recoverer does who saw its head at some version, and whose request took its time."""
    (pin,) = [pin for pin in record.tables if pin.table_key == key]
    assert pin.rollback_uuid
    table = replace(store.manifest.load().snapshot.entries[key].table, version=seen)
    head = store.tables.head(table.path, None).version
    staged = store.tables.stage_restore(table, pin.expected_version, pin.rollback_uuid)
    store.tables.commit_staged(staged, head + 1)


# Restores and commits that come late ---------------------------------------------------------------


def test_a_restore_that_comes_after_its_record_is_gone_is_undone_by_the_next_write(store: Store) -> None:
    record = half(store)
    heal(store)
    add_company(store, "new")
    restore(store, record, COMPANY, 2)

    def prepare(txn: WriteTxn) -> PublishPlan:
        return plan(txn, append(store, txn, COMPANY, [company("later")]))

    write_plan(store, None, prepare)

    assert ids(store, COMPANY) == ["acme", "later", "new"]
    assert [(row.kind, row.actor) for row in store.audit.rows()] == [(BACK, None), (BACK, RECOVERY_ACTOR)]
    assert_settled(store)


def test_a_commit_that_failed_cannot_take_effect_once_its_record_is_gone(remote: Store) -> None:
    txn = begin(remote)
    action = append(remote, txn, COMPANY, [company("x")])
    with failing("commit table", "nodes/", times=1), pytest.raises(StorageError, match="the storage fails"):
        publish(remote, plan(txn, action))
    assert remote.sidecars.pending() == []

    with pytest.raises(ConflictError):
        remote.tables.commit_staged(action.staged, action.staged.base.version + 1)

    add_company(remote, "y")
    assert ids(remote, COMPANY) == ["acme", "y"]
    assert_settled(remote)


# Tables that go ------------------------------------------------------------------------------------


def drop(txn: WriteTxn) -> PublishPlan:
    tombstone = TombstoneRow(COMPANY, txn.entries[COMPANY].table.version + 1)
    return PublishPlan(txn, WriterKind.SCHEMA_APPLY, (), (), (tombstone,))


def test_a_table_that_a_dead_write_did_not_move_can_go_and_the_write_is_undone(store: Store) -> None:
    stale = begin(store)
    half(store)
    write_plan(store, None, lambda txn: drop(stale if txn.base.version == stale.base.version else txn))
    omnigraph.open(store.location.uri)
    assert COMPANY not in pins(store)
    assert ids(store, PERSON) == ["ada", "bob", "cleo"]
    assert [row.outcomes for row in store.audit.rows()] == [(TableOutcome(PERSON, 3, 2),)]
    assert_settled(store)


def test_a_table_that_a_dead_write_has_moved_does_not_go_unseen(store: Store) -> None:
    dropping, txn = drop(begin(store)), begin(store)
    interrupt(store, plan(txn, append(store, txn, COMPANY, [company("x")])), failpoints.PUBLISH_BEFORE_MANIFEST)
    with pytest.raises(ExpectedVersionMismatchError):
        publish(store, dropping)
    assert ids(store, COMPANY) == ["acme", "x"]
    publish(store, drop(begin(store)))
    assert COMPANY not in pins(store)


@pytest.mark.parametrize("writes", [1, 2])
def test_a_table_that_was_written_since_does_not_go(local: Store, writes: int) -> None:
    dropping = drop(begin(local))
    for number in range(writes):
        add_company(local, f"c{number}")
    with pytest.raises(ExpectedVersionMismatchError):
        publish(local, dropping)
    assert len(ids(local, COMPANY)) == 1 + writes
    assert_settled(local)


@pytest.mark.parametrize("op_class", list(OpClass))
def test_a_write_that_was_prepared_before_its_table_went_is_refused(local: Store, op_class: OpClass) -> None:
    txn = begin(local)
    staged = local.tables.stage_create_indices(txn.entries[COMPANY].table, [IndexSpec("id", "BTREE")])
    late = plan(txn, TableAction(staged, op_class))
    publish(local, drop(begin(local)))
    with pytest.raises(ExpectedVersionMismatchError):
        publish(local, late)
    assert COMPANY not in pins(local)
    assert local.sidecars.pending() == []


def test_a_table_goes_once(local: Store) -> None:
    publish(local, drop(begin(local)))
    again = PublishPlan(begin(local), WriterKind.SCHEMA_APPLY, (), (), (TombstoneRow(COMPANY, 4),))
    with pytest.raises(ConflictError, match="does not exist any more"):
        publish(local, again)


def test_a_published_write_with_a_record_left_does_not_stop_its_table_from_going(local: Store) -> None:
    catalog = begin(local).catalog
    with failing("delete", DIRECTORY):
        add_company(local, "x")
    dropping = drop(WriteTxn(None, local.manifest.load(), catalog))
    publish(local, dropping)
    omnigraph.open(local.location.uri)
    assert [row.kind for row in local.audit.rows()] == [FORWARD]
    assert_settled(local)


# Records of earlier versions -----------------------------------------------------------------------


@pytest.mark.parametrize("kind, version, moved", [("Mutation", 2, 0), ("BranchMerge", 1, 1)])
def test_an_old_record_that_was_being_undone_is_undone(remote: Store, kind: str, version: int, moved: int) -> None:
    before = contents(remote)
    write_record(remote, kind, [pin_of(remote, PERSON), pin_of(remote, COMPANY)], version=version)
    foreign_commit(remote, PERSON, moved)
    with failing("publish", "__manifest"), pytest.raises(StorageError):
        heal(remote)
    assert heal(remote) == 1
    assert contents(remote) == before
    outcomes = (TableOutcome(PERSON, 3, 2),) if moved else ()
    assert [(row.kind, row.outcomes) for row in remote.audit.rows()] == [(BACK, outcomes)]
    assert_settled(remote)


@pytest.mark.parametrize("then", ["gone", "with other ids"])
def test_an_old_record_does_not_come_back_after_another_was_there(remote: Store, then: str) -> None:
    operation_id = write_record(remote, "Mutation", [pin_of(remote, COMPANY)])
    name = f"{DIRECTORY}/{operation_id}.json"

    def meanwhile(_: str, path: str) -> None:
        if path.endswith(name):
            observe.set_write_hook(None)
            if then == "gone":
                remote.objects.delete(name)
            else:
                remote.sidecars.with_ids(operation_id)

    with hooked(meanwhile):
        assert heal(remote) == 0
    left = remote.sidecars.read(operation_id)
    assert (left is None) == (then == "gone")
    assert remote.audit.rows() == []


def test_a_branch_that_is_being_made_anew_is_not_taken_for_one_that_is_gone(local: Store) -> None:
    fork(local, "feature")
    interrupt(local, on_branch(local, "feature"), failpoints.PUBLISH_BEFORE_MANIFEST)
    unfork(local, "feature")
    with store_at(local.location.uri).gates.hold(gates_for("feature", [])):
        assert heal(local) == 0
    assert local.audit.rows() == []
    assert heal(local) == 1
    assert [row.kind for row in local.audit.rows()] == [RecoveryKind.ORPHANED_BRANCH_DISCARDED]


def test_an_orphan_waits_for_the_gate_of_main(local: Store) -> None:
    write_record(local, "Mutation", [], branch="feature")
    with store_at(local.location.uri).gates.hold(_MAIN):
        assert heal(local) == 0
    assert heal(local) == 1


# The audit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation, before", [("create", 0), ("publish", 1)])
def test_two_who_record_one_operation_at_once_leave_one_row(root_uri: str, operation: str, before: int) -> None:
    location = Location.parse(root_uri)
    rows = [AuditRow("commit", BACK, None, name, "Mutation", ()) for name in ("zero", "one")]
    for row in rows[:before]:
        Audit(location).record(row)

    def meanwhile(done: str, path: str) -> None:
        if done == operation and PATH in path:
            observe.set_write_hook(None)
            Audit(location).record(rows[1])

    with hooked(meanwhile):
        Audit(location).record(replace(rows[1], kind=FORWARD))
    assert Audit(location).rows() == [*rows[:before], rows[1]]


def test_a_log_that_an_earlier_release_made_has_one_row_for_an_operation_as_well(tmp_path: Path) -> None:
    made, old = Location.parse(tmp_path / "made"), Location.parse(tmp_path / "old")
    row = AuditRow("commit", BACK, None, "one", "Mutation", ())
    Audit(made).record(replace(row, operation_id="zero"))
    rows = InternalTable(made, PATH).open().to_table()
    unmarked = pa.schema([field.remove_metadata() for field in rows.schema])
    InternalTable(old, PATH).create(rows.cast(unmarked))
    assert primary_key(InternalTable(old, PATH).open()) == []

    def meanwhile(done: str, _: str) -> None:
        if done == "publish":
            observe.set_write_hook(None)
            Audit(old).record(row)

    with hooked(meanwhile):
        Audit(old).record(replace(row, kind=FORWARD))
    assert [found.operation_id for found in Audit(old).rows()] == ["zero", "one"]


def test_an_undone_write_that_moved_nothing_claims_nothing_of_what_others_wrote(local: Store) -> None:
    other = begin(local)
    later = plan(other, append(local, other, COMPANY, [company("b")]))
    txn = begin(local)
    interrupt(local, plan(txn, append(local, txn, COMPANY, [company("a")])), failpoints.PUBLISH_AFTER_SIDECAR)
    publish(local, later)
    heal(local)
    assert [(row.kind, row.outcomes) for row in local.audit.rows()] == [(BACK, ())]


@pytest.mark.parametrize("stop", [None, ("publish", "__manifest"), ("create", PATH)])
def test_what_became_of_a_table_is_told_the_same_at_every_try(store: Store, stop: tuple[str, str] | None) -> None:
    half(store)
    if stop:
        with failing(*stop), pytest.raises(StorageError):
            heal(store)
    heal(store)
    assert [row.outcomes for row in store.audit.rows()] == [(TableOutcome(PERSON, 3, 2),)]


def test_what_became_of_a_table_is_told_the_same_after_others_have_written_to_it(local: Store) -> None:
    catalog = begin(local).catalog
    half(local)
    with failing("create", PATH), pytest.raises(StorageError):
        heal(local)
    txn = WriteTxn(None, local.manifest.load(), catalog)
    publish(local, plan(txn, append(local, txn, PERSON, [person("eve")])))
    heal(local)
    assert [row.outcomes for row in local.audit.rows()] == [(TableOutcome(PERSON, 3, 2),)]


@pytest.mark.parametrize("visible", [True, False])
def test_the_record_of_maintenance_names_the_versions_it_was_rebased_to(local: Store, *, visible: bool) -> None:
    txn = begin(local)
    staged = local.tables.stage_create_indices(txn.entries[COMPANY].table, [IndexSpec("id", "BTREE")])
    upkeep = PublishPlan(txn, WriterKind.ENSURE_INDICES, (TableAction(staged, OpClass.MAINTENANCE),))
    add_company(local, "c")
    interrupt(local, upkeep, failpoints.PUBLISH_AFTER_MANIFEST if visible else failpoints.PUBLISH_BEFORE_MANIFEST)
    heal(local)
    assert [(row.kind, row.outcomes) for row in local.audit.rows()] == [(FORWARD, (TableOutcome(COMPANY, 3, 4),))]
    assert ids(local, COMPANY) == ["acme", "c"]
    assert_settled(local)


# Leases --------------------------------------------------------------------------------------------


class Unanswered(ObjectStore):
    """Objects of which some replacements are carried out, but not answered."""

    def __init__(self, location: Location, *numbers: int) -> None:
        super().__init__(location)
        self._numbers = numbers
        self.asked = 0

    def replace(self, name: str, data: bytes, expected: Version) -> Version | None:
        self.asked += 1
        number, done = self.asked, super().replace(name, data, expected)
        if number in self._numbers:
            raise StorageError("no answer", path=name, operation="replace")
        return done


def free_lease(uri: str) -> None:
    with store_at(uri, lifetime=_LIFETIME).gates.hold(_MAIN):
        pass


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_answer_that_is_lost_costs_nobody_the_lease(s3_uri: str, number: int) -> None:
    """The first takes the lease, the second and the third renew it."""
    free_lease(s3_uri)
    unanswered = Unanswered(Location.parse(s3_uri), number)
    renewed = threading.Event()

    def hook(_: str, path: str) -> None:
        if is_renewal(path) and unanswered.asked >= 4:
            renewed.set()

    with hooked(hook), LeaseGates(unanswered, 60, _LIFETIME).hold(_MAIN) as held:
        assert renewed.wait(300)
        held.check()


def test_a_lease_that_is_over_is_not_brought_back_to_life(s3_uri: str) -> None:
    """A shared holder of the schema gate has seen that nobody holds it alone, and relies on it."""
    stuck = Rendezvous()

    def hook(_: str, path: str) -> None:
        if is_renewal(path) and "schema" in path:
            stuck()

    asleep, awake = (store_at(s3_uri, lifetime=_LIFETIME).gates for _ in range(2))
    with hooked(hook), asleep.hold([Gate("schema"), *_MAIN]) as alone:
        stuck.wait_until_reached()
        with awake.hold([Gate("schema", shared=True), Gate("branch:dev")]) as shared:
            stuck.release()
            time.sleep(_LIFETIME / 2)  # for the renewals that must not be
            with pytest.raises(GateTimeoutError):
                alone.check()
            shared.check()


def test_one_request_that_fails_does_not_fail_a_write(remote: Store) -> None:
    txn = begin(remote)
    work = plan(txn, append(remote, txn, COMPANY, [company("x")]))
    with failing("replace", "__gates", times=1) as failed:
        publish(remote, work)
    assert len(failed) == 1
    assert ids(remote, COMPANY) == ["acme", "x"]


def test_a_lease_is_given_back_even_if_that_fails_at_first(s3_uri: str) -> None:
    free_lease(s3_uri)
    with failing("replace", "__gates", after=1, times=1) as failed:
        free_lease(s3_uri)
    assert len(failed) == 1
    with store_at(s3_uri).gates.hold(_MAIN, 0):
        pass


@pytest.mark.parametrize("failure", [StorageError, StorageDeniedError])
def test_storage_that_never_takes_a_lease_is_named_as_what_is_in_the_way(
    s3_uri: str, failure: type[StorageError]
) -> None:
    def refuse(_: str, path: str) -> None:
        raise failure("no", path=path, operation="create")

    with hooked(refuse), pytest.raises(failure), store_at(s3_uri).gates.hold(_MAIN, 0.05):
        pytest.fail("there is no lease")


def test_whoever_changes_a_lease_does_not_wait_for_an_answer_until_it_is_over(
    s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "ONCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        start = time.monotonic()
        with pytest.raises(StorageError):
            ObjectStore(Location.parse(s3_uri)).create("lease", b"")
    assert time.monotonic() - start < 20  # the limit of the library itself is 30 seconds


def test_a_lease_that_is_seen_for_the_first_time_is_not_over(s3_uri: str) -> None:
    """Others of this process note what they saw in the same place, and may be late to."""

    class Shared(dict[str, tuple[object, float]]):
        def __setitem__(self, path: str, _: object) -> None:
            super().__setitem__(path, (Version("another"), 0.0))

    store = store_at(s3_uri)
    store.objects.write("lease", b'{"held": true}')
    assert not Lease(store.objects, "branch:main", "lease", _LIFETIME, Shared(), released={}).is_free()


# Waiting for the living ----------------------------------------------------------------------------


def test_opening_does_not_wait_for_a_writer_who_shows_that_he_is_alive(remote: Store) -> None:
    lifetime = 60.0
    txn = begin(remote)
    work, writer = plan(txn, append(remote, txn, COMPANY, [company("x")])), Rendezvous()
    slow = store_at(remote.location.uri, lifetime=lifetime)
    with failpoints.armed(failpoints.PUBLISH_AFTER_SIDECAR, writer), ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish, slow, work)
        writer.wait_until_reached()
        start = time.monotonic()
        omnigraph.Graph(store_at(remote.location.uri, lifetime=lifetime), read_only=False)
        assert time.monotonic() - start < lifetime / 2
        assert len(remote.sidecars.pending()) == 1
        writer.release()
        publishing.result(300)
    assert ids(remote, COMPANY) == ["acme", "x"]


def test_nobody_waits_for_an_operation_that_is_finished(store: Store) -> None:
    operation_id = half(store).operation_id
    listed = threading.Event()
    with (
        store_at(store.location.uri, lifetime=_LIFETIME).gates.hold(gates_for(None, [PERSON])),
        failpoints.armed(failpoints.RECOVERY_AFTER_LIST, listed.set),
        ThreadPoolExecutor(1) as pool,
    ):
        healing = pool.submit(heal, store, 120.0)
        assert listed.wait(300)
        store.sidecars.delete(operation_id)
        assert healing.result(300) == 0


def test_a_write_waits_for_one_who_is_recovering_what_is_in_its_way(local: Store) -> None:
    txn = begin(local)
    work = plan(txn, append(local, txn, COMPANY, [company("b")]))
    half(local)  # it has moved PERSON
    upkeep = local.tables.stage_create_indices(txn.entries[PERSON].table, [IndexSpec("id", "BTREE")])
    work = replace(work, actions=(*work.actions, TableAction(upkeep, OpClass.MAINTENANCE)))
    recovering = Rendezvous()
    with ThreadPoolExecutor(1) as pool:

        def another_first() -> None:
            pool.submit(heal, store_at(local.location.uri))
            recovering.wait_until_reached()
            threading.Timer(0.3, recovering.release).start()

        with (
            failpoints.armed(failpoints.RECOVERY_AFTER_LIST, at_arrival(1, another_first)),
            failpoints.armed(failpoints.RECOVERY_AFTER_TABLE_RESTORE, recovering),
            pytest.raises(ConflictError),  # the table was restored: upkeep of what it was before cannot follow
        ):
            publish(local, work)
    assert [row.kind for row in local.audit.rows()][:1] == [BACK]


def test_one_operation_is_recovered_without_waiting_for_others(local: Store) -> None:
    operation_id = half(local).operation_id
    fork(local, "feature")
    write_record(local, "Mutation", [], branch="feature")
    with store_at(local.location.uri).gates.hold(gates_for("feature", [])):
        assert recover_operation(local, operation_id)
    assert operation_id not in local.sidecars.pending()


# Odd places ----------------------------------------------------------------------------------------


def test_a_file_system_that_cannot_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_: int, __: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StorageError, match="lock") as refused, LocalGates(tmp_path, 0).hold(_MAIN):
        pytest.fail("there is no lock")
    assert str(tmp_path) in refused.value.path
