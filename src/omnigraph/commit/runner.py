"""Who runs a step over many tasks: this process, or Spark. Those below the pipeline know no more of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    """Runs one step over many tasks.

    A step is a function of a module. Its task and its result can be pickled and are small. It may run more than once
    for one task, on any machine, so it leaves nothing behind that would count twice. What it raises, `run` raises.
    """

    def run(self, phase: str, step: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Return one result for each task, in the order of the tasks. `phase` is what a person is told."""


ChooseRunner = Callable[[int], Runner]
"""Who does the work, by how many rows it is about."""
