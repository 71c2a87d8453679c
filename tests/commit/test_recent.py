"""What a process remembers of its newest commits: enough to carry a prepared insert past them, within bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph.commit import together
from omnigraph.commit.plan import PublishPlan
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.commit.together import Recent
from omnigraph.core.location import Location
from omnigraph.manifest.state import ManifestState
from tests.support.faults import small_graph
from tests.support.graphs import COMPANY, append, company, plan


@pytest.fixture
def store(tmp_path: Path) -> Store:
    small_graph(str(tmp_path / "graph"))
    return Store.at(Location.parse(tmp_path / "graph"))


def added(store: Store, recent: Recent, name: str, size: int) -> tuple[ManifestState, PublishPlan]:
    """Commit a company, and remember it as one whose keys take so many bytes."""
    txn = begin(store)
    keys = pa.table({"name": pa.array([name * size])})
    made = replace(plan(txn, append(store, txn, COMPANY, [company(name)])), inserted={COMPANY: {("name",): keys}})
    published = publish(store, made)
    recent.add(made, published)
    return published.state, made


def test_keys_of_several_kilobytes_are_remembered_in_order(store: Store) -> None:
    recent, base = Recent(), store.manifest.load()
    _, first = added(store, recent, "a", 2**12)
    state, second = added(store, recent, "b", 2**12)

    assert recent.between(base, state) == [second.inserted, first.inserted]
    assert recent.between(state, state) == []


def test_beyond_four_megabytes_the_oldest_are_forgotten(store: Store) -> None:
    recent, base = Recent(), store.manifest.load()
    middle, _ = added(store, recent, "a", 2**21)
    state, second = added(store, recent, "b", 2**21)

    assert recent.between(base, state) is None
    assert recent.between(middle, state) == [second.inserted]
    last, third = added(store, recent, "c", 1)
    assert recent.between(middle, last) == [third.inserted, second.inserted]


def test_beyond_their_number_the_oldest_are_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_MOST_COMMITS", 1)
    recent, base = Recent(), store.manifest.load()
    middle, first = added(store, recent, "a", 1)
    assert recent.between(base, middle) == [first.inserted]

    state, second = added(store, recent, "b", 1)

    assert recent.between(base, state) is None
    assert recent.between(middle, state) == [second.inserted]
