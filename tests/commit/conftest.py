"""The places where a graph can live, for what must hold on all of them."""

from pathlib import Path

import pytest

from tests.support.s3 import s3_server, s3_uri

__all__ = ["root_uri", "s3_server", "s3_uri"]


@pytest.fixture(params=["local", "s3"])
def root_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    uri: str = request.getfixturevalue("s3_uri") if request.param == "s3" else str(tmp_path / "graphs" / "one")
    return uri
