"""The places where a graph can live: every behaviour of storage is tested over all of them."""

import pytest

from omnigraph.core.location import Location
from omnigraph.storage.objects import ObjectStore


@pytest.fixture
def objects(root_uri: str) -> ObjectStore:
    return ObjectStore(Location.parse(root_uri))
