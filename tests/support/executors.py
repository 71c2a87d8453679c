"""An executor that weighs what returns from tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from omnigraph.core.executor import Parcel
from omnigraph.ingest.executor import LocalExecutor


class Weighed(LocalExecutor):
    """Counts the bytes of results, as Spark would bring them to the driver."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def run(self, phase: str, step: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return self._weighed(super().run(phase, step, tasks))

    def scatter(self, phase: str, step: Callable[[Any], tuple[Any, Sequence[Parcel]]], tasks: Sequence[Any]) -> Any:
        sent = super().scatter(phase, step, tasks)
        self._weighed(sent.results)
        return sent

    def gather(self, *given: Any) -> list[Any]:
        return self._weighed(super().gather(*given))

    def _weighed(self, results: list[Any]) -> list[Any]:
        self.bytes += len(pickle.dumps(results))
        return results
