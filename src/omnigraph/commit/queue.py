"""The queue of a process in front of the gate of a branch: the first in it publishes for those behind it as well."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import lru_cache

from omnigraph.commit.gates import waits
from omnigraph.commit.lease import me, now
from omnigraph.commit.plan import PublishPlan
from omnigraph.commit.together import Recent
from omnigraph.core.refs import MAIN
from omnigraph.errors import GateTimeoutError, OptionError
from omnigraph.manifest.publisher import Published

ENVIRONMENT = "OMNIGRAPH_GROUP_COMMIT"
MOST = 32  # plans that one leader publishes; those behind them wait for the next
_MOST_QUEUES = 1024
_SETTINGS = {"on": True, "off": False}
_NOTABLE = 0.1  # seconds: a shorter wait does not count against the time that a gate may take


def is_grouping() -> bool:
    """Return whether writers that wait for the same branch are published together."""
    text = os.environ.get(ENVIRONMENT, "").strip() or "on"
    if text not in _SETTINGS:
        message = f"{ENVIRONMENT} cannot be {text!r:.40}"
        raise OptionError(message, option="group_commit", hint=f"use one of {', '.join(_SETTINGS)}")
    return _SETTINGS[text]


@dataclass(slots=True, eq=False)
class Waiting:
    """A plan in the queue. `context` is that of its thread, which takes back what it staged if the plan fails."""

    plan: PublishPlan
    context: Context = field(default_factory=copy_context)
    done: Future[Published] = field(default_factory=Future)
    is_taken: bool = False


class Queue:
    """The plans of one process that wait for one branch of one graph, in order of arrival."""

    def __init__(self, branch: str | None) -> None:
        self.recent = Recent()
        self._gate = f"branch:{branch or MAIN}"
        self._changed = threading.Condition()
        self._waiting: deque[Waiting] = deque()
        self._is_led = False

    def publish(self, plan: PublishPlan, longest: float, lead: Callable[[float | None], None]) -> Published:
        """Return when the plan is published, by this thread as the leader or by that of another plan.

        `lead` gets the seconds that are left of the `longest` wait; None if there was no wait.
        """
        one, start = Waiting(plan), now()
        self.join(one)
        try:
            while not self._is_done(one, start + longest):
                waited = now() - start
                waits.add(self._gate, waited)
                with self._leading():
                    lead(longest - waited if waited > _NOTABLE else None)
        finally:
            self._withdraw(one)
        return one.done.result()

    def join(self, one: Waiting) -> None:
        with self._changed:
            self._waiting.append(one)

    def __len__(self) -> int:
        """The number of plans that wait and that no leader has taken."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no plan waits or is being published."""
        return not self._waiting and not self._is_led

    def _is_done(self, one: Waiting, deadline: float) -> bool:
        """Wait until the plan has its outcome, or until it is first in the queue and must lead (False).

        A plan that a leader has taken gets its outcome from there, even if its own thread is interrupted: what it
        staged must stay until then.
        """
        stopped: BaseException | None = None
        with self._changed:
            while not one.done.done() and (one.is_taken or self._is_led or self._waiting[0] is not one):
                try:
                    self._changed.wait(None if one.is_taken else max(deadline - now(), 0))
                except BaseException as error:
                    if not one.is_taken:
                        raise
                    stopped = error
                if stopped is None and not one.is_taken and not one.done.done() and now() >= deadline:
                    stopped = self._too_long()
                if stopped is not None and not one.is_taken:
                    break
            if stopped is not None:
                raise stopped
            self._is_led = self._is_led or not one.done.done()
            return one.done.done()

    def _too_long(self) -> GateTimeoutError:
        message = f"gate '{self._gate}' is held by other writes of this process"
        hint = "wait for the other writes, then try again"
        return GateTimeoutError(message, gate=self._gate, holder=me(), waited=0.0, hint=hint)

    @contextmanager
    def _leading(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._changed:
                self._is_led = False
                self._changed.notify_all()

    def _withdraw(self, one: Waiting) -> None:
        with self._changed:
            if one in self._waiting:
                self._waiting.remove(one)
                self._changed.notify_all()

    def take(self) -> list[Waiting]:
        """Take the plans that wait, the oldest first. Each must get its outcome, or be put back."""
        with self._changed:
            taken = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
            for one in taken:
                one.is_taken = True
        return taken

    def put_back(self, plans: Iterable[Waiting]) -> None:
        """Let plans that were taken wait for the next turn."""
        with self._changed:
            for one in reversed([*plans]):
                one.is_taken = False
                self._waiting.appendleft(one)


@lru_cache(maxsize=_MOST_QUEUES)
def queue_of(uri: str, durability: str, branch: str | None) -> Queue:  # noqa: ARG001 - the key of the cache
    """Return the queue of this process for a branch. Handles with another durability have another one."""
    return Queue(branch)
