"""Gates: one writer at a time, among threads and processes, whatever becomes of those who hold one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from omnigraph.commit import failpoints
from omnigraph.commit.failpoints import Rendezvous
from omnigraph.commit.gates import DIRECTORY, LEASE_SECONDS, Gate, LeaseGates, LocalGates
from omnigraph.commit.plan import PublishPlan, WriteTxn, gates_for
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.recovery import heal
from omnigraph.commit.store import Store
from omnigraph.errors import ForkedHandleError, GateTimeoutError, OutcomeUnknownError, StorageError
from omnigraph.graph import init
from tests.commit.child import COUNTER, Child, hooked, is_lease, is_renewal, store_at, three_tables
from tests.support.graphs import (
    KNOWS,
    PERSON,
    SCHEMA,
    append,
    company,
    contents,
    edge,
    heads_and_pins,
    person,
    plan,
    write_plan,
)

_LIFETIME = 2.0  # of a lease that is to end
_BRIEFLY = 0.05
WRITE = [Gate("schema", shared=True), Gate("branch:main")]
APPLY = [Gate("schema"), Gate("branch:main")]
LEASE = f"{DIRECTORY}/branch%3Amain.json"


def gates_at(uri: str, timeout: float = 60, lifetime: float = LEASE_SECONDS) -> LocalGates | LeaseGates:
    return store_at(uri, timeout=timeout, lifetime=lifetime).gates


def scaled(uri: str, local: int, s3: int) -> int:
    """How much to do: on an object store every step is a request."""
    return s3 if uri.startswith("s3://") else local


@contextmanager
def in_threads(number: int, work: Callable[[int], None]) -> Iterator[None]:
    """Do something in several threads; all must come to a good end."""
    with ThreadPoolExecutor(number) as pool:
        running: list[Future[None]] = [pool.submit(work, each) for each in range(number)]
        yield
        for each in running:
            each.result()


# Keeping others out --------------------------------------------------------------------------------


def test_one_thread_at_a_time_is_behind_a_gate(root_uri: str) -> None:
    threads, rounds = 8, scaled(root_uri, 20, 3)
    start, inside, most = threading.Barrier(threads), [0], [0]
    shared = gates_at(root_uri)

    def work(number: int) -> None:
        gates = shared if number % 2 else gates_at(root_uri)
        start.wait()
        for _ in range(rounds):
            with gates.hold([Gate("branch:main")]):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)  # lets another thread in, if the gate does
                inside[0] -= 1

    with in_threads(threads, work):
        pass
    assert most == [1]
    assert inside == [0]


def test_one_process_at_a_time_is_behind_a_gate(root_uri: str) -> None:
    store, rounds = store_at(root_uri), scaled(root_uri, 40, 5)
    store.objects.write(COUNTER, b"0")
    with ExitStack() as stack:
        children = [stack.enter_context(Child("count", root_uri, "branch:main", str(rounds))) for _ in range(4)]
        for child in children:
            child.wait_until_stopped()
        for child in children:
            child.go_on()
        for child in children:
            child.succeed()
    assert int(store.objects.read(COUNTER)) == 4 * rounds


def test_all_writers_are_behind_the_shared_schema_gate_at_once(root_uri: str) -> None:
    everybody, met = threading.Barrier(4, timeout=120), list[int]()

    def work(number: int) -> None:
        with gates_at(root_uri).hold([Gate("schema", shared=True), Gate(f"branch:{number}")]):
            met.append(everybody.wait())

    with in_threads(4, work):
        pass
    assert sorted(met) == [0, 1, 2, 3]


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("first, second", [(WRITE, APPLY), (APPLY, WRITE), (APPLY, APPLY)])
def test_a_change_of_the_schema_and_any_other_write_keep_each_other_out(
    root_uri: str, first: Sequence[Gate], second: Sequence[Gate]
) -> None:
    with gates_at(root_uri).hold(first) as held:
        with pytest.raises(GateTimeoutError), gates_at(root_uri, _BRIEFLY).hold(second):
            pytest.fail("two writers at once")
        held.check()
    with gates_at(root_uri, _BRIEFLY).hold(second):
        pass


@pytest.mark.usefixtures("short_waits")
def test_those_who_share_a_gate_by_turns_do_not_keep_out_whoever_wants_it_alone(root_uri: str) -> None:
    """While he waits for those who are inside, nobody else goes in."""
    newcomer = [Gate("schema", shared=True), Gate("branch:other")]
    deadline = time.monotonic() + 120

    def alone() -> None:
        with gates_at(root_uri).hold(APPLY):
            pass

    with ExitStack() as inside:
        inside.enter_context(gates_at(root_uri).hold(WRITE))
        waiting = threading.Thread(target=alone)
        waiting.start()
        while time.monotonic() < deadline:
            try:
                with gates_at(root_uri, 0).hold(newcomer):
                    time.sleep(0.01)
            except GateTimeoutError:
                break
        assert time.monotonic() < deadline, "newcomers still go in"
        assert waiting.is_alive()
    waiting.join(300)
    assert not waiting.is_alive()
    with gates_at(root_uri, _BRIEFLY).hold(newcomer):
        pass


def test_whoever_waits_for_the_schema_gate_holds_nothing_that_its_owner_needs(s3_uri: str) -> None:
    """On an object store a writer looks at the schema gate, takes its own, and must look again."""
    applier, applying, taken = gates_at(s3_uri, timeout=300), ExitStack(), threading.Event()

    def hook(_: str, path: str) -> None:
        if path.endswith(LEASE) and threading.current_thread() is writer and not taken.is_set():
            applying.enter_context(applier.hold(APPLY[:1]))
            taken.set()

    def write() -> None:
        with gates_at(s3_uri).hold(WRITE):
            wrote.set()

    wrote, writer = threading.Event(), threading.Thread(target=write)
    with hooked(hook), applying:
        writer.start()
        assert taken.wait(300)
        applying.enter_context(applier.hold(APPLY[1:]))
        assert not wrote.is_set()
    writer.join()
    assert wrote.is_set()


# Order ---------------------------------------------------------------------------------------------


def test_gates_are_taken_in_one_order_whatever_order_they_are_asked_for() -> None:
    asked = gates_for("dev", ["node:B", "edge:Z", "node:A"])
    names = ["schema", "branch:dev", "table:dev:edge:Z", "table:dev:node:A", "table:dev:node:B"]
    assert [gate.name for gate in asked] == names
    assert [gate.shared for gate in asked] == [True, False, False, False, False]


def test_writers_of_random_tables_never_wait_for_each_other_in_a_circle(root_uri: str) -> None:
    threads, rounds = scaled(root_uri, 8, 4), scaled(root_uri, 15, 2)
    owners: dict[str, int] = {}

    def work(number: int) -> None:
        chance, gates = random.Random(number), gates_at(root_uri, timeout=120)  # noqa: S311 - repeatable
        for _ in range(rounds):
            asked = gates_for(chance.choice([None, "dev"]), chance.sample("abcde", chance.randint(0, 3)))
            with gates.hold(asked) as held:
                alone = [gate.name for gate in asked if not gate.shared]
                taken = {name: owners.setdefault(name, number) for name in alone}
                assert taken == dict.fromkeys(alone, number)
                held.check()
                for name in alone:
                    del owners[name]

    with in_threads(threads, work):
        pass
    assert not owners


# Waiting -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_waits")
def test_whoever_waits_too_long_is_told_which_process_is_in_the_way(root_uri: str) -> None:
    with Child("hold", root_uri, "branch:main") as child:
        child.wait_until_stopped()
        with pytest.raises(GateTimeoutError) as timeout, gates_at(root_uri, _BRIEFLY).hold(WRITE):
            pytest.fail("the gate was held")
        assert timeout.value.gate == "branch:main"
        assert f"process {child.pid} " in timeout.value.holder
        assert timeout.value.holder in timeout.value.message
        child.go_on()
        child.succeed()


def test_the_process_that_is_named_is_not_one_that_let_go_long_ago(tmp_path: Path) -> None:
    with Child("hold", str(tmp_path), "schema") as gone:
        gone.wait_until_stopped()
        gone.go_on()
        gone.succeed()
    with (
        gates_at(str(tmp_path)).hold(WRITE),
        pytest.raises(GateTimeoutError) as timeout,
        gates_at(str(tmp_path), _BRIEFLY).hold(APPLY),
    ):
        pytest.fail("the gate was held")
    assert str(gone.pid) not in timeout.value.holder


def test_a_gate_is_let_go_by_whoever_fails_behind_it(root_uri: str) -> None:
    with pytest.raises(StorageError), gates_at(root_uri).hold(WRITE):
        raise StorageError("no luck", path="", operation="test")
    start = time.monotonic()
    with store_at(root_uri, timeout=0).gates.hold(APPLY):
        assert time.monotonic() - start < LEASE_SECONDS, "a lease was left to expire"


# The dead ------------------------------------------------------------------------------------------


def test_the_gates_of_a_killed_process_are_free_at_once_on_a_local_disk(tmp_path: Path) -> None:
    gates = gates_at(str(tmp_path), timeout=0)
    with Child("hold", str(tmp_path), "~schema", "branch:main") as child:
        child.wait_until_stopped()
        with pytest.raises(GateTimeoutError), gates.hold(APPLY):
            pytest.fail("two writers at once")
        child.kill()
    with gates.hold(APPLY) as held:
        held.check()


def test_the_gates_of_a_killed_process_are_free_after_a_lifetime_on_an_object_store(s3_uri: str) -> None:
    with Child("hold", s3_uri, "branch:main", "--lifetime", str(_LIFETIME)) as child:
        child.wait_until_stopped()
        child.kill()
    start = time.monotonic()
    with gates_at(s3_uri, timeout=0, lifetime=_LIFETIME).hold(WRITE):
        assert time.monotonic() - start >= _LIFETIME


def test_what_is_left_in_the_place_of_a_gate_keeps_nobody_out(root_uri: str) -> None:
    for suffix in ("json", "lock"):
        store_at(root_uri).objects.write(f"{DIRECTORY}/branch%3Amain.{suffix}", b"\xff not ours")
    with gates_at(root_uri, lifetime=_LIFETIME).hold(WRITE) as held:
        held.check()


# Lost leases ---------------------------------------------------------------------------------------


@contextmanager
def without_renewals(stuck: Rendezvous) -> Iterator[None]:
    """Have the first one who renews a lease wait at a rendezvous, as if its machine had gone to sleep."""

    def hook(_: str, path: str) -> None:
        if is_renewal(path):
            stuck()

    with hooked(hook):
        try:
            yield
        finally:
            stuck.release()


def assert_held(uri: str) -> None:
    with pytest.raises(GateTimeoutError), gates_at(uri, timeout=0).hold(WRITE):
        pytest.fail("somebody else's lease was given away")


@pytest.mark.usefixtures("short_waits")
def test_a_lease_that_was_lost_is_missed_before_the_next_step_and_not_given_back(s3_uri: str) -> None:
    stuck = Rendezvous()
    with ExitStack() as slow, without_renewals(stuck):
        held = slow.enter_context(gates_at(s3_uri, 600, _LIFETIME).hold(WRITE))
        held.check()
        stuck.wait_until_reached()
        with gates_at(s3_uri, 600, _LIFETIME).hold(WRITE) as taken:
            with pytest.raises(GateTimeoutError) as lost:
                held.check()
            assert lost.value.gate == "branch:main"
            stuck.release()
            slow.close()
            taken.check()
            assert_held(s3_uri)


@pytest.mark.usefixtures("short_waits")
def test_a_lease_that_is_lost_while_it_is_given_back_stays_with_its_new_holder(s3_uri: str) -> None:
    leaving, late = threading.Event(), Rendezvous()

    def hook(_: str, path: str) -> None:
        if leaving.is_set() and threading.current_thread() is slow and is_lease(path):
            late()

    def work() -> None:
        with gates_at(s3_uri, 600, _LIFETIME).hold(WRITE):
            leaving.set()

    slow = threading.Thread(target=work)
    with hooked(hook):
        slow.start()
        late.wait_until_reached()
        with gates_at(s3_uri, 600, _LIFETIME).hold(WRITE):
            late.release()
            slow.join()
            assert_held(s3_uri)


def test_a_renewal_that_fails_is_tried_again(s3_uri: str) -> None:
    again = threading.Event()
    failures = iter([StorageError("the network is gone", path=LEASE, operation="replace")])

    def hook(_: str, path: str) -> None:
        if is_renewal(path):
            for failure in failures:
                raise failure
            again.set()

    with hooked(hook), gates_at(s3_uri, lifetime=_LIFETIME).hold(WRITE):
        assert again.wait(300)


def test_no_two_leases_look_alike(s3_uri: str) -> None:
    """Or whoever saw one, slept for a while and then saw the other, would take it for one that nobody renews."""
    objects, gates, seen = store_at(s3_uri).objects, gates_at(s3_uri, lifetime=_LIFETIME), []
    for _ in range(30):
        with gates.hold(WRITE):
            seen.append(objects.read_versioned(LEASE))
    assert len(set(seen)) == len(seen)


# What a lost lease must not do to a graph ----------------------------------------------------------


class PowerCut(BaseException):
    """Nobody catches it: what is on the disk stays as it is."""


@pytest.fixture
def store(s3_uri: str) -> Store:
    init(s3_uri, SCHEMA)
    store = store_at(s3_uri, lifetime=_LIFETIME)
    txn = begin(store)
    rows = append(store, txn, PERSON, [person("ann", 30)]), append(store, txn, KNOWS, [edge("e1", "ann", "ann")])
    publish(store, plan(txn, *rows))
    return store


def add_zoe(store: Store) -> None:
    def prepare(txn: WriteTxn) -> PublishPlan:
        rows = append(store, txn, PERSON, [person("zoe")]), append(store, txn, KNOWS, [edge("e9", "zoe", "zoe")])
        return plan(txn, *rows)

    write_plan(store, None, prepare)


def assert_settled(store: Store, people: list[str]) -> None:
    """Let everything come to its end: then heads are pins, nothing is left, and the graph shows these people."""
    heal(store, store.gates.patience)
    assert {key: head for key, (head, _) in heads_and_pins(store).items()} == {
        key: pin for key, (_, pin) in heads_and_pins(store).items()
    }
    assert store.sidecars.pending() == []
    assert [row["id"] for row in contents(store)[PERSON]] == people
    assert len(store.audit.rows()) == 1


@contextmanager
def overtaken(failpoint: str, work: Callable[[], object]) -> Iterator[Future[object]]:
    """Have somebody stop at a failpoint and lose his leases while the block runs; he goes on at its end."""
    stopped, stuck = Rendezvous(), Rendezvous()
    with ThreadPoolExecutor(1) as pool, without_renewals(stuck), failpoints.armed(failpoint, stopped):
        slow = pool.submit(work)
        try:
            stopped.wait_until_reached()
            stuck.wait_until_reached()
            yield slow
        finally:
            stuck.release()
            stopped.release()


@pytest.mark.parametrize(
    "failpoint, rolled_forward",
    [
        (failpoints.PUBLISH_AFTER_SIDECAR, False),
        (failpoints.PUBLISH_AFTER_TABLE_COMMIT, False),
        (failpoints.PUBLISH_BEFORE_MANIFEST, True),
    ],
)
def test_a_writer_that_lost_its_leases_moves_nothing_more(
    store: Store, monkeypatch: pytest.MonkeyPatch, failpoint: str, *, rolled_forward: bool
) -> None:
    slow_store = store_at(store.location.uri, lifetime=_LIFETIME)
    prepared = three_tables(slow_store)
    with overtaken(failpoint, lambda: publish(slow_store, prepared)) as slow:
        monkeypatch.setenv("OMNIGRAPH_GROUP_COMMIT", "off")  # as another process: one of this process would wait for it
        add_zoe(store)
    with pytest.raises((GateTimeoutError, OutcomeUnknownError), match="lease on gate 'branch:main' was lost"):
        slow.result()
    assert_settled(store, ["ann", "dan", "zoe"] if rolled_forward else ["ann", "zoe"])


def test_a_recovery_that_lost_its_leases_moves_nothing_more(store: Store) -> None:
    """A restore wins over whatever came before it: late, it would take back what others have published."""
    passes = iter([None, PowerCut()])

    def cut() -> None:
        if failure := next(passes):
            raise failure

    with failpoints.armed(failpoints.PUBLISH_AFTER_TABLE_COMMIT, cut), pytest.raises(PowerCut):
        publish(store, three_tables(store))
    slow_store = store_at(store.location.uri, lifetime=_LIFETIME)
    with overtaken(failpoints.RECOVERY_AFTER_TABLE_RESTORE, lambda: heal(slow_store)) as slow:
        add_zoe(store)
    slow.exception()
    assert_settled(store, ["ann", "zoe"])


# Odd places ----------------------------------------------------------------------------------------


def test_a_type_of_any_name_has_a_gate(tmp_path: Path) -> None:
    name = "N" * 250
    init(tmp_path / "graph", f"node {name} {{ name: String @key }}")
    store = store_at(str(tmp_path / "graph"))
    txn = begin(store)
    publish(store, plan(txn, append(store, txn, f"node:{name}", [company("a")])))
    assert contents(store) == {f"node:{name}": [company("a")]}


def test_a_file_in_the_place_of_the_gates_is_named(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).touch()
    with pytest.raises(StorageError) as refused, gates_at(str(tmp_path)).hold(WRITE):
        pytest.fail("there is no gate")
    assert str(tmp_path / DIRECTORY) in refused.value.path
    assert refused.value.hint


def test_a_forked_child_does_not_keep_the_gate_of_its_dead_parent(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
from pathlib import Path
from omnigraph.commit.gates import Gate, LocalGates

with LocalGates(Path(sys.argv[1]), 1).hold([Gate("branch:main")]):
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        try:
            assert parent.wait() == -signal.SIGKILL
            with LocalGates(tmp_path, 1).hold([Gate("branch:main")]):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_gate_of_a_graph_that_was_replaced_is_lost(tmp_path: Path) -> None:
    directory = tmp_path / "gates"
    with LocalGates(directory, 1).hold([Gate("schema", shared=True), Gate("branch:main")]) as held:
        held.check()
        directory.rename(tmp_path / "elsewhere")
        with pytest.raises(GateTimeoutError, match="replaced or removed"):
            held.check()


def test_a_handle_from_before_a_fork_is_refused_in_the_child(tmp_path: Path) -> None:
    graph = init(tmp_path / "graph", "node Person { name: String @key }")
    graph._process += 1  # as in a child: forking a process with Lance's threads is what this protects from
    with pytest.raises(ForkedHandleError, match="before this process was forked"):
        graph.branches()
