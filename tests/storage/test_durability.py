"""Barriers on a local disk: what is synced, and what a failure of the disk becomes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import omnigraph
from omnigraph.core.location import Location
from omnigraph.errors import OptionError, OutcomeUnknownError, StorageFullError
from omnigraph.storage import durability
from omnigraph.storage.durability import Durability, Medium

SCHEMA = "node Person { name: String @key }"
INSERT = "query q($name: String) { insert Person { name: $name } }"


def test_a_handle_says_more_than_the_environment_and_that_more_than_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMNIGRAPH_DURABILITY")
    assert Durability.of(None) is Durability.FULL
    monkeypatch.setenv("OMNIGRAPH_DURABILITY", "files")
    assert Durability.of(None) is Durability.FILES
    assert Durability.of("off") is Durability.OFF
    with pytest.raises(OptionError, match="durability cannot be 'never'"):
        Durability.of("never")


def test_files_syncs_each_new_file_once_and_the_directories_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    plain = os.fsync

    def recording(file: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink().relative_to(tmp_path)))
        plain(file)

    monkeypatch.setattr(os, "fsync", recording)
    for name in ("nodes/a/data/1.lance", "nodes/a/_versions/2.manifest", "nodes/b/data/3.lance", "nodes/a/tree/f/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    medium = Medium(Location.parse(tmp_path), Durability.FILES)
    medium.sync("nodes/a")
    assert sorted(synced) == [
        ".",
        "nodes",
        "nodes/a",
        "nodes/a/_versions",
        "nodes/a/_versions/2.manifest",
        "nodes/a/data",
        "nodes/a/data/1.lance",
    ]
    assert synced.index("nodes/a/data/1.lance") < synced.index("nodes/a/data") < synced.index("nodes/a")
    synced.clear()
    medium.sync("nodes/a")
    assert "nodes/a/data/1.lance" not in synced


@pytest.mark.parametrize("kind", Durability)
def test_a_commit_is_the_same_with_every_durability(tmp_path: Path, kind: Durability) -> None:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA, durability=kind)
    graph.create_branch("review")
    graph.mutate(INSERT, {"name": "ann"}, branch="review")
    graph.merge("review")
    found = omnigraph.open(tmp_path / "graph", read_only=True)
    assert found.snapshot().entries["node:Person"].row_count == 1
    assert found.doctor().is_healthy


def test_a_disk_that_fails_to_sync_leaves_the_outcome_unknown_and_the_next_write_settles_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA, durability="full")
    calls = 0

    def failing(_: Path) -> bool:
        nonlocal calls
        calls += 1
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durability, "_sync_file_system", failing)
        with pytest.raises(OutcomeUnknownError) as caught:
            graph.mutate(INSERT, {"name": "ann"})
        assert isinstance(caught.value.__cause__, StorageFullError)
    assert calls == 1, "what cannot be made durable is not published"
    graph.mutate(INSERT, {"name": "bob"})
    assert graph.snapshot().entries["node:Person"].row_count == 2, "recovery finished the first"
