"""Protocol for running a function over many tasks, locally or on Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from omnigraph.errors import SparkError

_ATTEMPTS = 3
T = TypeVar("T")
R = TypeVar("R")


class Parcel(NamedTuple):
    """Bytes that a task sends to the tasks of a later step."""

    section: int  # what the bytes are
    share: int  # which part of the section, so that parts that belong together meet in one task
    data: bytes
    sender: int = 0  # the number of the task; set by the executor
    of: int = 0  # into how many shares the sender divided the section; 0: into as many as there are receivers


class ParcelsLostError(Exception):
    """Parcels are gone, or come from another attempt of their task. Everything has to be sent again."""


@dataclass(frozen=True, slots=True)
class ParcelRoute:
    """The tasks that receive a section: one for all of its shares, or one for each of them.

    With a `width`, so many tasks receive it, each an equal part of its range. The senders may have divided it into more
    shares, or into fewer: then a parcel goes to all tasks that it has a part for. One number is a multiple of the
    other.
    """

    first: int
    spread: bool
    width: int = 0

    def receivers(self, share: int, of: int) -> range:
        if not of or not self.width or not self.spread:
            first = self.first + share * self.spread
            return range(first, first + 1)
        first = self.first + share * self.width // of
        return range(first, first + self.copies(of))

    def copies(self, of: int) -> int:
        """Return how many tasks receive each parcel of a section that was divided into so many shares."""
        assert not of or not self.width or not of % self.width or not self.width % of, "shares are nested"
        return max(1, self.width // of) if of and self.spread else 1


class Scattered(Protocol, Generic[R]):
    """The results of the tasks of a step, and the parcels that they sent. The parcels stay where the tasks ran."""

    results: list[R]

    def read(self, section: int, senders: Collection[int]) -> list[Parcel]:
        """Fetch the parcels that a few tasks sent of one section."""

    def close(self) -> None:
        """Free the parcels."""


class Executor(Protocol):
    """Runs one step over many tasks.

    A step is a module-level function. Its task and result are small and can be pickled. It may run more than once for a
    task, on any machine, so it must leave nothing behind that would count twice. `run` raises what a step raises.
    """

    def run(self, phase: str, step: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Return one result for each task, in order. `phase` is shown to users."""

    def scatter(self, phase: str, step: Callable[[T], tuple[R, Sequence[Parcel]]], tasks: Sequence[T]) -> Scattered[R]:
        """Run a step whose tasks send parcels. The result and the parcels of a task come from one attempt."""

    def gather(
        self,
        phase: str,
        step: Callable[[T, list[Parcel]], R],
        tasks: Sequence[T],
        sent: Sequence[Scattered[Any]],
        routes: Mapping[int, ParcelRoute],
    ) -> list[R]:
        """Run a step whose tasks receive the parcels of some sections, in the order of their senders."""


def exchanged(scatter: Callable[[], Scattered[R]], gather: Callable[[Scattered[R]], list[T]]) -> list[T]:
    """Send and receive parcels; send all of them again if some are lost."""
    for attempt in range(_ATTEMPTS):
        sent = scatter()
        try:
            return gather(sent)
        except ParcelsLostError as error:
            if attempt == _ATTEMPTS - 1:
                message = f"Spark lost what its tasks sent {_ATTEMPTS} times, nothing was changed: {error}"
                raise SparkError(message, hint="look for executors that die, and try again", detail="") from error
        finally:
            sent.close()
    raise AssertionError("unreachable")


class FrameExecutor(Executor, Protocol):
    """An executor that can also run a step over the rows of a DataFrame, where they are."""

    def scatter_frame(
        self, phase: str, step: Callable[..., tuple[R, Sequence[Parcel]]], task: Any, frame: Any, first: int
    ) -> Scattered[R]:
        """Call `step(task, number, batches)` for each partition; they are numbered from `first`."""


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
