"""The places where a graph can live, for what must hold on all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.s3 import reachable, s3_server, s3_uri

__all__ = ["place", "root_uri", "s3_server", "s3_uri"]


@pytest.fixture(params=["local", "s3"])
def root_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    uri: str = request.getfixturevalue("s3_uri") if request.param == "s3" else str(tmp_path / "graphs" / "one")
    return uri


@pytest.fixture(scope="module", params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a graph that a module makes once, and copies."""
    if request.param == "local":
        yield str(tmp_path_factory.mktemp("place") / "graph")
    else:
        server = request.getfixturevalue("s3_server")
        with reachable(server):
            yield f"s3://{server.create_bucket()}/graphs/one"
