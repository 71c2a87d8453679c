"""Leases that can be waited for without much time going by, and writers that are not published together."""

from __future__ import annotations

import pytest

from omnigraph.commit.lease import now


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a tenth of the time for a gate, while a lease ends no sooner."""
    monkeypatch.setattr("omnigraph.commit.gates.now", lambda: 10 * now())


@pytest.fixture
def many_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is soon renewed, and its holder seen to be alive."""
    monkeypatch.setattr("omnigraph.commit.gates._RENEWALS", 50)


@pytest.fixture
def without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish each write by itself, here and in children."""
    monkeypatch.setenv("OMNIGRAPH_GROUP_COMMIT", "off")
