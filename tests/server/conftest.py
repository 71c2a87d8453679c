"""A server with one graph of people, for all tests of a module; and somebody of each role who asks it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.serving import client, one_graph, people_graph, running


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(one_graph(people_graph(tmp_path_factory.mktemp("served") / "graph"))) as url:
        yield url


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[httpx.Client]:
    """Somebody who may do everything."""
    with client(address) as asking:
        yield asking
