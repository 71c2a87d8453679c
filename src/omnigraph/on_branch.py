"""A graph seen from one branch: what an agent holds while it works on its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnigraph.graph import Graph
    from omnigraph.history.merge import MergeResult
    from omnigraph.ingest.load import LoadResult
    from omnigraph.manifest.rows import Commit
    from omnigraph.manifest.state import Snapshot
    from omnigraph.query.result import Result
    from omnigraph.write.mutation import MutationResult


@dataclass(frozen=True, slots=True)
class OnBranch:
    """The calls of a graph, on one branch and by one actor."""

    graph: Graph
    name: str
    actor: str | None = None

    def query(self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, **more: Any) -> Result:
        return self.graph.query(source, params, branch=self.name, **more)

    def mutate(
        self, source: str | os.PathLike[str], params: Mapping[str, Any] | None = None, **more: Any
    ) -> MutationResult:
        return self.graph.mutate(source, params, branch=self.name, **{"actor": self.actor, **more})

    def load(self, data: Any, *, mode: str, **more: Any) -> LoadResult:
        return self.graph.load(data, mode=mode, branch=self.name, **{"actor": self.actor, **more})

    def snapshot(self) -> Snapshot:
        return self.graph.snapshot(self.name)

    def commits(self) -> list[Commit]:
        return self.graph.commits(self.name)

    def merge(self, source: str, **more: Any) -> MergeResult:
        """Bring onto this branch what another one has."""
        return self.graph.merge(source, into=self.name, **{"actor": self.actor, **more})
