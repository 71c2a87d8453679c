"""Writers that wait for a branch at the same time, so that they are published together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from omnigraph.commit.gates import DIRECTORY, Gate
from omnigraph.commit.plan import Inserted, PublishPlan
from omnigraph.commit.publish import begin, lead
from omnigraph.commit.queue import Queue, Waiting, is_grouping, queue_of
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.manifest.publisher import Lineage, Published
from tests.support.graphs import append, plan, table

T = TypeVar("T")
_PATIENCE = 60.0


def together(store: Store, calls: Sequence[Callable[[], T]], branch: str | None = None) -> list[Future[T]]:
    """Make calls that write, in order, while the branch is held; return when all of them are done.

    Each begins when the one before it waits in the queue, or is done.
    """
    queue: Sized = queue_of(store.location.uri, store.medium.durability, branch) if is_grouping() else _Tickets(store)
    with ThreadPoolExecutor(len(calls)) as pool:
        with store.gates.hold([Gate(f"branch:{branch or MAIN}")]):
            made = list[Future[T]]()
            for call in calls:
                before = len(queue)
                made.append(pool.submit(call))
                _wait_until(lambda: made[-1].done() or len(queue) > before)  # noqa: B023 - used at once
        return made


class _Tickets:
    """Those who wait for main of a graph on a local disk, each by itself."""

    def __init__(self, store: Store) -> None:
        self._directory = Path(store.location.child(DIRECTORY, "branch%3Amain.queue"))

    def __len__(self) -> int:
        return len([*self._directory.iterdir()]) if self._directory.exists() else 0


def _wait_until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not reached():
        assert time.monotonic() < end, "it never comes to that"
        time.sleep(0.001)


def publish_together(store: Store, plans: Iterable[PublishPlan]) -> list[Future[Published]]:
    """Publish plans as the leader of a queue does, in this thread."""
    waiting = [Waiting(one) for one in plans]
    branch = waiting[0].plan.branch
    queue = Queue(branch)
    for one in waiting:
        queue.join(one)
    lead(store, queue, branch, None)
    return [one.done for one in waiting]


def inserting(store: Store, rows: Mapping[str, list[dict[str, Any]]], operation: str | None = None) -> PublishPlan:
    """A plan that inserts rows, and says which: their ids."""
    txn = begin(store)
    made = plan(txn, *(append(store, txn, key, some) for key, some in rows.items()))
    ids: dict[str, Inserted] = {
        key: {("id",): table(store, txn, key, some).select(["id"])} for key, some in rows.items()
    }
    return replace(made, inserted=ids, lineage=Lineage.new("ann", operation_id=operation))
