"""Protocol for running a function over many tasks, locally or on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Runs one step over many tasks.

    A step is a module-level function. Its task and result are small and can be pickled. It may run more than once for a
    task, on any machine, so it must leave nothing behind that would count twice. `run` raises what a step raises.
    """

    def run(self, phase: str, step: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Return one result for each task, in order. `phase` is shown to users."""


def map_in_threads(step: Callable[[T], R], tasks: Sequence[T], at_once: int) -> Iterator[R]:
    """Run a step over tasks in threads of this process; yield results in the order of the tasks.

    When one fails, running ones are awaited and no others are started.
    """
    workers = min(at_once, len(tasks))
    if workers <= 1:
        # One task needs no thread, and a traceback without one is easier to read.
        yield from map(step, tasks)
        return
    # Each task sees the context of its caller, such as the write that it belongs to.
    contexts = [copy_context() for _ in tasks]
    with ThreadPoolExecutor(workers, thread_name_prefix="omnigraph") as pool:
        yield from pool.map(lambda context, task: context.run(step, task), contexts, tasks)


ChooseExecutor = Callable[[int], Executor]
"""Chooses an executor by the number of rows to process."""
