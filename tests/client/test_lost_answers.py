"""A server that is killed before it has answered a change: the client can ask what became of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph import AsyncGraph
from omnigraph.api.results import Commit
from omnigraph.commit import failpoints
from omnigraph.errors import OutcomeUnknownError
from tests.support.server_process import dying, served
from tests.support.serving import ADD, ALL, one_graph, people_graph, running

ADMIN = "admin-token"
CY: Any = (ADD, {"name": "cy"})


def waiting(change: Any, *arguments: Any) -> Callable[[str], Any]:
    def call(url: str) -> Any:
        with omnigraph.connect(url, token=ADMIN) as graph:
            return change(graph)(*arguments)

    return call


def awaiting(change: Callable[[AsyncGraph], Any], *arguments: Any) -> Callable[[str], Any]:
    async def run(url: str) -> Any:
        async with omnigraph.connect_async(url, token=ADMIN) as graph:
            return await change(graph)(*arguments)

    return lambda url: asyncio.run(run(url))


@pytest.mark.parametrize(
    "at, client, is_made",
    [
        (failpoints.PUBLISH_AFTER_MANIFEST, waiting, True),
        (failpoints.PUBLISH_AFTER_GATES, awaiting, False),
    ],
    ids=["committed", "not committed"],
)
def test_the_outcome_of_a_change_is_known_by_the_id_that_the_client_gave_it(
    at: str, client: Callable[..., Callable[[str], Any]], tmp_path: Path, *, is_made: bool
) -> None:
    uri = people_graph(tmp_path / "graph")
    with served(uri, "--unauthenticated", folder=tmp_path, program=dying(at)) as server:
        with pytest.raises(OutcomeUnknownError) as caught:
            client(lambda graph: graph.mutate, *CY)(server.url)
        assert server.process.wait(300) == -signal.SIGKILL

    operation_id = caught.value.operation_id
    assert operation_id
    assert operation_id in str(caught.value.hint)
    with running(one_graph(uri)) as url:
        found: Commit | None = client(lambda graph: graph.outcome, operation_id)(url)
        names = [row["p.name"] for row in omnigraph.connect(url, token=ADMIN).query(ALL).rows]
        head = omnigraph.open(uri).commits()[0]

    assert (found == head, "cy" in names) == (is_made, is_made)
    assert found is None or found.operation_id == operation_id
