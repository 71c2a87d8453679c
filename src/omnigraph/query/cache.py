"""A cache with a budget of bytes: what was used longest ago makes room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from omnigraph.core.nonblocking import may_block

_V = TypeVar("_V")
_MOST_NOTES = 10_000


class Cache:
    """Values of immutable things, by key. Safe between threads; two may make one value at once, and one is kept."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._used = 0
        self._entries: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._spent: dict[Hashable, float] = {}

    @property
    def used(self) -> int:
        return self._used

    def holds(self, key: Hashable) -> bool:
        """Tell whether a value is there, so that asking for it costs nothing."""
        return key in self._entries

    def spent(self, key: Hashable) -> float:
        """What doing without a value has cost so far."""
        return self._spent.get(key, 0.0)

    def spend(self, key: Hashable, cost: float) -> None:
        with self._lock:
            if len(self._spent) > _MOST_NOTES:
                self._spent.clear()
            self._spent[key] = self._spent.get(key, 0.0) + cost

    def get(self, key: Hashable, make: Callable[[], _V], size: Callable[[_V], int]) -> _V:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return cast("_V", self._entries[key][1])
        may_block()
        made = make()
        cost = size(made)
        with self._lock:
            if key not in self._entries and cost <= self._budget:
                self._entries[key] = (cost, made)
                self._used += cost
            while self._used > self._budget:
                _, (freed, _) = self._entries.popitem(last=False)
                self._used -= freed
        return made
