"""Processes that are ordered to die, several at once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TypeVar

DIED = 137  # how a process ends that `failpoints.die` has ended
_AT_ONCE = 4
_PATIENCE = 120.0
_FORKS = multiprocessing.get_context("forkserver")

D = TypeVar("D")


def die_each(carry_out: Callable[[D], None], orders: Iterable[D]) -> None:
    """Carry out orders, each in a process of its own. Whoever does not die is an error."""
    left = iter(orders)
    while chosen := list(islice(left, _AT_ONCE)):
        processes = [_FORKS.Process(target=_obey, args=(carry_out, one, dict(os.environ))) for one in chosen]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_PATIENCE)
            process.kill()
        ends = [(one, process.exitcode) for one, process in zip(chosen, processes, strict=True)]
        assert ends == [(one, DIED) for one in chosen]


def _obey(carry_out: Callable[[D], None], order: D, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)  # that of the process this one was forked from is older
    carry_out(order)
