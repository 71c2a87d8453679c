"""What only a server has: a list of its graphs, and stored queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnigraph.api.results import MutationResult
    from omnigraph.api.rows import Result


@dataclass(frozen=True, slots=True)
class Server:
    """An address to which requests go: of a server, or of one of its graphs."""

    url: str
    token: str | None

    def graphs(self) -> list[tuple[str, str]]:
        """List the ids and addresses of its graphs."""
        from omnigraph.client import served_graphs  # noqa: PLC0415 - loads the client

        return served_graphs(self.url, token=self.token)

    def invoke_read(self, name: str, params: Mapping[str, Any] | None, *, branch: str, snapshot: str | None) -> Result:
        """Run a stored query that reads."""
        from omnigraph.client import connect  # noqa: PLC0415 - loads the client

        with connect(self.url, token=self.token) as graph:
            return graph.invoke_query(name, params, branch=branch, snapshot=snapshot)

    def invoke_change(
        self, name: str, params: Mapping[str, Any] | None, *, branch: str, if_commit: str | None
    ) -> MutationResult:
        """Run a stored query that changes the graph."""
        from omnigraph.client import connect  # noqa: PLC0415 - loads the client

        with connect(self.url, token=self.token) as graph:
            return graph.invoke_mutation(name, params, branch=branch, if_commit=if_commit)
