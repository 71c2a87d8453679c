"""A service that makes vectors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.embed.service import Service, running


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as started:
        yield started
