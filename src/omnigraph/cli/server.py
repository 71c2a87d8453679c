"""What only a server has: a list of its graphs, and stored queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from omnigraph.api.results import MutationResult
    from omnigraph.api.rows import Result
    from omnigraph.client.steps import Steps

_A = TypeVar("_A")
_CONDITION = "Omnigraph-If-Graph-Commit"
_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Server:
    """An address to which requests go: of a server, or of one of its graphs."""

    url: str
    token: str | None

    def graphs(self) -> list[tuple[str, str]]:
        """The ids and places of its graphs."""
        return self._run(_graphs)

    def invoke_read(self, name: str, params: Mapping[str, Any] | None, *, branch: str, snapshot: str | None) -> Result:
        """Run a stored query that reads."""
        place = {"branch": branch} if snapshot is None else {"snapshot": snapshot}
        document = {"params": params or {}, "expect_mutation": False, **place}
        return self._run(lambda: _read(name, document))

    def invoke_change(
        self, name: str, params: Mapping[str, Any] | None, *, branch: str, if_commit: str | None
    ) -> MutationResult:
        """Run a stored query that changes the graph; on a condition only by a route that knows it."""
        document = {"params": params or {}, "expect_mutation": True, "branch": branch}
        return self._run(lambda: _change(name, document, if_commit))

    def _run(self, steps: Callable[[], Steps[_A]]) -> _A:
        from omnigraph.client.transport import Address, Blocking  # noqa: PLC0415 - loads the client

        transport = Blocking(Address(self.url, self.token, _SECONDS))
        try:
            return transport.run(steps())
        finally:
            transport.close()


def _graphs() -> Steps[list[tuple[str, str]]]:
    from omnigraph.client.steps import Request  # noqa: PLC0415 - loads the client

    answer = yield Request("GET", "/graphs")
    return [(one["graph_id"], one["uri"]) for one in answer.document["graphs"]]


def _read(name: str, document: dict[str, Any]) -> Steps[Result]:
    from omnigraph.api import arrow  # noqa: PLC0415
    from omnigraph.api.http import ARROW  # noqa: PLC0415
    from omnigraph.client.asking import segment  # noqa: PLC0415 - loads the client
    from omnigraph.client.steps import Request  # noqa: PLC0415

    answer = yield Request("POST", f"/queries/{segment(name)}", document=document, accept=ARROW)
    return arrow.result_of(answer.content)


def _change(name: str, document: dict[str, Any], if_commit: str | None) -> Steps[MutationResult]:
    from omnigraph.api.documents import change_of  # noqa: PLC0415
    from omnigraph.client.asking import segment  # noqa: PLC0415 - loads the client
    from omnigraph.client.steps import Request  # noqa: PLC0415

    path, headers = f"/queries/{segment(name)}", {}
    if if_commit is not None:
        path, headers = f"{path}/if-graph-commit", {_CONDITION: if_commit}
    answer = yield Request("POST", path, document=document, headers=headers, changes=True)
    return change_of(answer.document)
