"""A commit that another process follows before its publisher has looked again: both are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.manifest.publisher import Changes, Lineage, Manifest
from omnigraph.storage.internal import InternalTable
from tests.support.graphs import SCHEMA


def test_a_commit_that_another_one_followed_at_once_is_acknowledged_with_the_state_behind_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    omnigraph.init(tmp_path / "graph", SCHEMA)
    store = Store.at(Location.parse(tmp_path / "graph"))
    swap = InternalTable.swap

    def and_then_a_rival(*arguments: Any) -> Any:
        monkeypatch.undo()
        done = swap(*arguments)
        Manifest(store.location).publish(None, Changes(), {}, Lineage.new("rival"))
        return done

    monkeypatch.setattr(InternalTable, "swap", and_then_a_rival)
    published = store.manifest.publish(None, Changes(), {}, Lineage.new("ours"))

    assert published.commit.actor_id == "ours"
    assert [commit.actor_id for commit in published.state.commits()] == [None, "ours", "rival"]
