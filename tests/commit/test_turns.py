"""Turns at a gate: those who wait for one get it in the order in which they came."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from omnigraph.commit import lease as leases
from omnigraph.commit.file_locks import Queue
from omnigraph.commit.gates import DIRECTORY, Gate, LeaseGates, LocalGates, remote_pause, waits
from omnigraph.commit.lease import Lease
from omnigraph.core.location import Location
from omnigraph.errors import GateTimeoutError
from omnigraph.storage.objects import ObjectStore, Version
from tests.commit.child import COUNTER, Child, store_at

BRANCH = Gate("branch:main")
LOOPERS = 8
_PATIENCE = 120.0


def gates_at(root: Path, timeout: float = _PATIENCE) -> LocalGates:
    return LocalGates(root / DIRECTORY, timeout)


def tickets(root: Path) -> list[Path]:
    return [one for one in (root / DIRECTORY).glob("branch*.queue/*") if not one.name.startswith(".")]


def until(number: int, root: Path) -> None:
    """Wait until so many stand in the queue."""
    deadline = time.monotonic() + _PATIENCE
    while len(tickets(root)) != number:
        assert time.monotonic() < deadline, f"{len(tickets(root))} wait, not {number}"
        time.sleep(0.001)


def test_a_latecomer_has_its_turn_after_those_who_waited_before_it_however_often_they_come_again(
    tmp_path: Path,
) -> None:
    turns: list[str] = []

    def take(name: str, times: int) -> None:
        for _ in range(times):
            with gates_at(tmp_path).hold([BRANCH]):
                turns.append(name)

    with ThreadPoolExecutor(LOOPERS + 1) as pool:
        with gates_at(tmp_path).hold([BRANCH]):
            work = [pool.submit(take, "looper", 12) for _ in range(LOOPERS)]
            until(LOOPERS, tmp_path)
            work.append(pool.submit(take, "latecomer", 1))
            until(LOOPERS + 1, tmp_path)
        for one in work:
            one.result()
    assert turns.index("latecomer") == LOOPERS
    assert len(turns) == 12 * LOOPERS + 1
    assert tickets(tmp_path) == []


def test_processes_have_their_turns_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    store, loopers = store_at(str(tmp_path)), 3
    store.objects.write(COUNTER, b"")
    with ExitStack() as stack:
        children = []
        with gates_at(tmp_path).hold([BRANCH]):
            for at, letter in enumerate("aaaz", 1):
                words = ("sign", str(tmp_path), BRANCH.name, "1" if letter == "z" else "20", letter)
                children.append(stack.enter_context(Child(*words)))
                until(at, tmp_path)
        for child in children:
            child.succeed()
    signed = store.objects.read(COUNTER).decode()
    assert signed.index("z") == loopers
    assert len(signed) == 20 * loopers + 1


def test_a_waiter_that_dies_keeps_no_place(tmp_path: Path) -> None:
    store_at(str(tmp_path)).objects.write(COUNTER, b"")
    with gates_at(tmp_path).hold([BRANCH]), Child("sign", str(tmp_path), BRANCH.name, "1", "a") as dead:
        until(1, tmp_path)
        dead.kill()
    assert len(tickets(tmp_path)) == 1
    with gates_at(tmp_path, timeout=0).hold([BRANCH]) as held:
        held.check()
    assert tickets(tmp_path) == []


def test_who_gives_up_reads_for_how_long_it_has_waited_and_leaves_the_queue(tmp_path: Path) -> None:
    with gates_at(tmp_path).hold([BRANCH]):
        with pytest.raises(GateTimeoutError) as gave_up, gates_at(tmp_path, 0.05).hold([BRANCH]):
            pytest.fail("two holders at once")
        assert gave_up.value.waited >= 0.05
        assert "process" in gave_up.value.holder
        assert f"{gave_up.value.waited:.1f} s" in gave_up.value.message
        assert tickets(tmp_path) == []


def test_who_does_not_want_to_wait_does_not_pass_those_who_do(tmp_path: Path) -> None:
    """The queue counts, not only the lock: or a caller that comes often enough would find the right moment."""
    queue = Queue(tmp_path / DIRECTORY / "branch%3Amain.queue")
    with queue.ticket(), pytest.raises(GateTimeoutError), gates_at(tmp_path, timeout=0).hold([BRANCH]):
        pytest.fail("it passed the queue")
    with gates_at(tmp_path, timeout=0).hold([BRANCH]):
        pass


def test_a_wait_is_counted_and_a_gate_that_is_free_is_none(tmp_path: Path) -> None:
    before = waits.snapshot()
    with gates_at(tmp_path).hold([BRANCH]):
        pass
    assert waits.snapshot() == before
    with ThreadPoolExecutor(1) as pool:
        with gates_at(tmp_path).hold([BRANCH]):
            waiting = pool.submit(_take, gates_at(tmp_path))
            until(1, tmp_path)
            time.sleep(0.01)
        waiting.result()
    count, seconds = waits.snapshot()
    assert count == before[0] + 1
    assert seconds > before[1]


def _take(gates: LocalGates) -> None:
    with gates.hold([BRANCH]):
        pass


def test_who_waits_longer_for_a_lease_looks_more_often() -> None:
    pauses = [remote_pause(waited) for waited in (0, 1, 5, 15, 60)]
    assert all(later <= earlier for earlier, later in pairwise(pauses))
    assert pauses[0] == 10 * pauses[-1]


# The line of a lease -------------------------------------------------------------------------------

LEASE = f"{DIRECTORY}/branch%3Amain.json"
_LIFETIME = 0.5  # of a lease that is to end


class Contender:
    """A process that wants a lease, and looks at it when the test says so."""

    def __init__(self, objects: ObjectStore, lifetime: float = 600) -> None:
        self.objects, self.lifetime = objects, lifetime
        self.seen: dict[str, tuple[object, float]] = {}
        self.released: dict[str, Version] = {}
        self.lease = self.new_lease()

    def new_lease(self) -> Lease:
        return Lease(self.objects, BRANCH.name, LEASE, self.lifetime, self.seen, released=self.released)

    def takes_it(self) -> bool:
        return self.lease.try_acquire(stands_in_line=True)

    def comes_again(self) -> bool:
        self.lease = self.new_lease()
        return self.takes_it()


@pytest.fixture
def contender(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Contender]:
    monkeypatch.setattr(leases, "IN_LINE_AFTER", 0.0)
    objects = ObjectStore(Location.parse(s3_uri))
    return lambda **options: Contender(objects, **options)


def body(one: Contender) -> dict[str, object]:
    found: dict[str, object] = json.loads(one.objects.read(LEASE))
    return found


def test_a_lease_that_is_released_belongs_to_the_first_in_line(contender: Callable[..., Contender]) -> None:
    holder, first, second, newcomer = contender(), contender(), contender(), contender()
    assert holder.takes_it()
    assert not first.takes_it()
    assert not second.takes_it()
    holder.lease.release()
    assert not holder.comes_again()
    assert not newcomer.takes_it()
    assert not second.takes_it()
    assert first.takes_it()
    first.lease.check()
    assert not second.takes_it()
    first.lease.release()
    assert not first.comes_again()
    assert second.takes_it()


def test_who_has_not_waited_long_and_who_does_not_wait_are_not_in_line(
    contender: Callable[..., Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, brief, passing = contender(), contender(), contender()
    assert holder.takes_it()
    assert not passing.lease.try_acquire()
    monkeypatch.setattr(leases, "IN_LINE_AFTER", 60.0)
    assert not brief.takes_it()
    assert "line" not in body(holder)
    holder.lease.release()
    assert holder.comes_again()


def test_a_holder_keeps_its_lease_and_the_line_when_it_renews_it(contender: Callable[..., Contender]) -> None:
    holder, first, second = contender(), contender(), contender()
    assert holder.takes_it()
    for one in (first, second):
        assert not one.takes_it()
        before = body(holder)
        holder.lease.renew()
        holder.lease.check()
        assert body(holder)["serial"] != before["serial"]
        assert body(holder)["line"] == before["line"]
    holder.lease.release()
    assert first.takes_it()


def test_a_place_in_line_does_not_make_a_dead_holder_look_alive(contender: Callable[..., Contender]) -> None:
    dead, watching = contender(), contender(lifetime=_LIFETIME)
    assert dead.takes_it()
    assert not watching.lease.try_acquire()
    since = watching.seen[LEASE]
    assert not contender().takes_it()
    assert not watching.lease.try_acquire()
    assert not watching.lease.was_renewed
    assert watching.seen[LEASE] == since
    dead.lease.renew()
    assert not watching.lease.try_acquire()
    assert watching.lease.was_renewed


def test_who_gives_up_leaves_the_line(contender: Callable[..., Contender]) -> None:
    holder, first, second = contender(), contender(), contender()
    assert holder.takes_it()
    assert not first.takes_it()
    assert not second.takes_it()
    first.lease.withdraw()
    holder.lease.check()
    holder.lease.release()
    assert second.takes_it()
    assert "line" not in body(holder)


def test_who_dies_in_line_keeps_others_waiting_for_one_lifetime(contender: Callable[..., Contender]) -> None:
    holder, dead, waiting = contender(), contender(), contender(lifetime=_LIFETIME)
    assert holder.takes_it()
    assert not dead.takes_it()
    assert not waiting.takes_it()
    holder.lease.release()
    deadline = time.monotonic() + _PATIENCE
    while not waiting.takes_it():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "line" not in body(holder)
    waiting.lease.release()
    assert holder.comes_again()


@pytest.mark.usefixtures("contender")
def test_a_waiter_for_a_lease_has_its_turn_after_those_in_line_before_it_however_often_others_come_again(
    s3_uri: str,
) -> None:
    turns: list[str] = []

    def take(name: str, times: int) -> None:
        gates = LeaseGates(ObjectStore(Location.parse(s3_uri)), _PATIENCE)
        for _ in range(times):
            with gates.hold([BRANCH]):
                turns.append(name)

    def in_line() -> int:
        return len(json.loads(ObjectStore(Location.parse(s3_uri)).read(LEASE)).get("line", ()))

    def until_in_line(number: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        while in_line() != number:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    loopers = 3
    with ThreadPoolExecutor(loopers + 1) as pool:
        with LeaseGates(ObjectStore(Location.parse(s3_uri)), _PATIENCE).hold([BRANCH]):
            work = [pool.submit(take, "looper", 4) for _ in range(loopers)]
            until_in_line(loopers)
            work.append(pool.submit(take, "latecomer", 1))
            until_in_line(loopers + 1)
        for one in work:
            one.result()
    assert turns.index("latecomer") == loopers
    assert len(turns) == 4 * loopers + 1


def test_a_wait_for_a_lease_that_ends_leaves_no_place_in_line(contender: Callable[..., Contender], s3_uri: str) -> None:
    holder = contender()
    assert holder.takes_it()
    gates = LeaseGates(ObjectStore(Location.parse(s3_uri)), timeout=0.2 - 600, lifetime=600)
    with pytest.raises(GateTimeoutError) as gave_up, gates.hold([BRANCH]):
        pytest.fail("two holders at once")
    assert gave_up.value.waited > 0
    holder.lease.renew()
    assert "line" not in body(holder)
