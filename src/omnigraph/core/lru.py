"""A cache with a budget: when it is full, the values that were used longest ago make room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from omnigraph.core.nonblocking import may_block

_V = TypeVar("_V")


class LruCache:
    """Immutable values by key, as many as fit a budget of bytes or characters. Safe between threads."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._used = 0
        self._entries: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._generation = 0
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Drop every value, also those that are being made."""
        with self._lock:
            self._entries.clear()
            self._used = 0
            # A value that was begun before `clear` must not be kept after it: it may hold what `clear` was called to
            # forget.
            self._generation += 1

    def holds(self, key: Hashable) -> bool:
        """Whether a value is cached, so that `get` costs nothing."""
        # Without the lock: a lookup in a dict is atomic, and the answer is only a hint in any case.
        return key in self._entries

    def get(self, key: Hashable, make: Callable[[], _V], size: Callable[[_V], int]) -> _V:
        """Return the cached value, or make it and keep it if it fits the budget."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return cast("_V", self._entries[key][1])
            generation = self._generation
        may_block()
        # Outside the lock: a slow value must not delay the others. Two threads may make it, and one is kept.
        made = make()
        cost = size(made)
        with self._lock:
            if key not in self._entries and cost <= self._budget and generation == self._generation:
                self._entries[key] = (cost, made)
                self._used += cost
            while self._used > self._budget:
                _, (freed, _) = self._entries.popitem(last=False)
                self._used -= freed
        return made
