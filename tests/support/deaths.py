"""Processes that are ordered to die, several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

import omnigraph
from omnigraph.commit import failpoints
from tests.support.forks import forked

DIED = 137  # how a process ends that `failpoints.die` has ended
_AT_ONCE = 4
_PATIENCE = 300.0

D = TypeVar("D")


def die_each(carry_out: Callable[[D], None], orders: Iterable[D]) -> None:
    """Carry out orders, each in a process of its own. Whoever does not die is an error."""
    left = iter(orders)
    while chosen := list(islice(left, _AT_ONCE)):
        processes = [forked(carry_out, (one,)) for one in chosen]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_PATIENCE)
            process.kill()
        ends = [(one, process.exitcode) for one, process in zip(chosen, processes, strict=True)]
        assert ends == [(one, DIED) for one in chosen]


def dying_init(order: tuple[str, str, str]) -> None:
    """Make a graph, and die at a failpoint."""
    uri, schema, at = order
    with failpoints.armed(at, failpoints.die):
        omnigraph.init(uri, schema)
