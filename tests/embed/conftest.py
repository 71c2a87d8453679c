"""A service that makes vectors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.embed.service import Service, running


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """It is asked directly, also on a machine that reaches others through a proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with running() as started:
        yield started
