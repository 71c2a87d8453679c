"""The queue of a process in front of a branch: turns, time limits, and those who leave it."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from omnigraph.commit.publish import lead
from omnigraph.commit.queue import MOST, Queue, Waiting
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import GateTimeoutError
from omnigraph.graph import init
from tests.support.graphs import COMPANY, SCHEMA, company
from tests.support.together import inserting


@pytest.fixture
def store(tmp_path: Path) -> Store:
    init(str(tmp_path / "graph"), SCHEMA)
    return Store.at(Location.parse(str(tmp_path / "graph")))


def waiting(store: Store, name: str) -> Waiting:
    return Waiting(inserting(store, {COMPANY: [company(name)]}))


def test_a_writer_whose_turn_does_not_come_gives_up_and_leaves_the_queue(store: Store) -> None:
    queue = Queue(None)
    queue.join(waiting(store, "first"))
    with pytest.raises(GateTimeoutError) as raised:
        queue.publish(waiting(store, "second").plan, 0.0, lambda _: pytest.fail("it is not its turn"))
    assert raised.value.gate == "branch:main"
    assert len(queue) == 1


def test_a_leader_that_fails_leaves_the_queue_to_the_next(store: Store) -> None:
    queue, behind = Queue(None), waiting(store, "behind")

    def fail(_: float | None) -> None:
        queue.join(behind)
        raise GateTimeoutError("the gate is held", gate="branch:main", holder="another", waited=1.0)

    with pytest.raises(GateTimeoutError):
        queue.publish(waiting(store, "first").plan, 60.0, fail)
    assert len(queue) == 1
    lead(store, queue, None, None)
    assert behind.done.result().commit


def test_a_writer_that_is_interrupted_while_it_waits_withdraws_only_itself(store: Store) -> None:
    queue, leading, going_on = Queue(None), threading.Event(), threading.Event()

    def hold(_: float | None) -> None:
        leading.set()
        assert going_on.wait(60)
        lead(store, queue, None, None)

    with ThreadPoolExecutor(1) as pool:
        first: Future[object] = pool.submit(queue.publish, waiting(store, "first").plan, 60.0, hold)
        assert leading.wait(60)
        queue._changed.wait = _interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            queue.publish(waiting(store, "second").plan, 60.0, lambda _: pytest.fail("it is not its turn"))
        del queue._changed.wait
        assert len(queue) == 1
        going_on.set()
        assert first.result()


def _interrupted(timeout: float | None = None) -> bool:
    raise KeyboardInterrupt(timeout)


def test_a_writer_that_is_interrupted_after_it_was_taken_waits_for_its_outcome(store: Store) -> None:
    queue, one = Queue(None), waiting(store, "taken")
    queue.join(one)
    queue.take()
    calls: list[float | None] = []

    def interrupted_once(timeout: float | None = None) -> bool:
        calls.append(timeout)
        if len(calls) == 1:
            raise KeyboardInterrupt
        one.done.set_exception(RuntimeError("it has its outcome"))
        return True

    queue._changed.wait = interrupted_once  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        queue._is_done(one, 0.0)
    assert calls == [None, None]


def test_a_leader_takes_a_bounded_number_the_oldest_first(store: Store) -> None:
    queue, plan = Queue(None), waiting(store, "one").plan
    all_of_them = [Waiting(plan) for _ in range(MOST + 3)]
    for one in all_of_them:
        queue.join(one)
    assert queue.take() == all_of_them[:MOST]
    assert len(queue) == 3
    queue.put_back(all_of_them[:2])
    assert queue.take() == [*all_of_them[:2], *all_of_them[MOST:]]
