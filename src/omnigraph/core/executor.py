"""Who runs a step over many tasks: this process, or Spark. Those below the pipeline know no more of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Runs one step over many tasks.

    A step is a function of a module. Its task and its result can be pickled and are small. It may run more than once
    for one task, on any machine, so it leaves nothing behind that would count twice. What it raises, `run` raises.
    """

    def run(self, phase: str, step: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Return one result for each task, in the order of the tasks. `phase` is what a person is told."""


def map_in_threads(step: Callable[[T], R], tasks: Sequence[T], at_once: int) -> Iterator[R]:
    """Run a step over tasks in this process, some at once; the results come in the order of the tasks.

    When one fails, those that have begun are waited for, and no others begin.
    """
    workers = min(at_once, len(tasks))
    if workers <= 1:
        yield from map(step, tasks)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="omnigraph") as pool:
        yield from pool.map(step, tasks)


ChooseExecutor = Callable[[int], Executor]
"""Who does the work, by how many rows it is about."""
