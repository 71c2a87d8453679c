"""Turns at a gate: those who wait for one get it in the order in which they came."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from omnigraph.commit.file_locks import Queue
from omnigraph.commit.gates import DIRECTORY, Gate, LocalGates, remote_pause, waits
from omnigraph.errors import GateTimeoutError
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
