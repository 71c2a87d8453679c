"""Backups: made while others write, restored elsewhere, equal to one commit of every branch; and what is refused."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.maintenance import FileProblem
from omnigraph.errors import (
    AlreadyInitializedError,
    BackupDamagedError,
    BackupNotFoundError,
    BackupTargetError,
    CommitNotFoundError,
    NotAGraphError,
    StorageError,
    StorageFullError,
)
from omnigraph.graph import Graph
from omnigraph.maintenance.relocate import moved_versions
from tests.commit.child import Ordinals, hooked
from tests.maintenance.scene import add, cleaned, people, whenever
from tests.maintenance.test_moved_graphs import branched, everything
from tests.support.deaths import die_each
from tests.support.forks import FORKS, forked
from tests.support.mutations import store_of
from tests.support.templates import Templates


@pytest.fixture
def graph(templates: Templates, tmp_path: Path) -> Graph:
    return templates.copy("branched", branched, tmp_path / "graph")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def restored(target: Path, backup: str | None = None) -> Graph:
    uri = target.with_name(f"restored-{target.name}-{backup}")
    omnigraph.restore(target, uri, backup=backup)
    return omnigraph.open(uri)


def test_a_restored_graph_is_the_one_that_was_backed_up(graph: Graph, target: Path) -> None:
    before = everything(graph)
    done = graph.backup(target)
    shutil.rmtree(graph.uri)
    again = restored(target)
    assert everything(again) == before
    assert {name: again.commits(name)[0].commit_id for name in again.branches()} == done.heads
    assert again.at("review").blob("Person", "p30", "photo").size == 300_000
    assert moved_versions(store_of(again.uri)) == {}
    assert again.doctor().is_healthy
    assert again.verify().is_intact
    add(again, 90, "draft")
    again.merge("draft", into="review")
    again.optimize()
    cleaned(store_of(again.uri), keep=1)
    assert again.verify().is_intact


def test_a_second_backup_copies_only_what_is_new(graph: Graph, target: Path) -> None:
    first = graph.backup(target)
    assert first.files_copied == first.files
    before = everything(graph)
    add(graph, 90, "review")
    second = graph.backup(target)
    assert second.files_copied is not None
    assert 0 < second.files_copied < 12
    assert graph.backup(target).files_copied == 0
    assert [one.backup_id for one in omnigraph.backups(target)][:2] == [first.backup_id, second.backup_id]
    assert everything(restored(target, first.backup_id)) == before
    assert [row["p.name"] for row in people(restored(target, second.backup_id), branch="review")][-1] == "p90"


def test_large_files_go_piece_by_piece(graph: Graph, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnigraph.maintenance.backup._WHOLE", 100)  # so that all files of tables are large ones
    monkeypatch.setattr("omnigraph.storage.objects._BLOCK", 300)
    assert graph.backup(target).files_copied
    assert omnigraph.verify_backup(target).is_intact
    assert everything(restored(target)) == everything(graph)

    lost = max((target / "files").rglob("data/*.lance"), key=lambda path: path.stat().st_size)
    lost.write_bytes(lost.read_bytes()[:-400] + bytes(400))
    with pytest.raises(BackupDamagedError, match=lost.name):
        restored(target, omnigraph.backups(target)[0].backup_id)
    lost.unlink()
    with pytest.raises(StorageError, match=lost.name):
        omnigraph.restore(target, target.with_name("third"))
    assert not list(target.with_name("third").rglob(lost.name))


def test_nothing_is_written_to_a_graph_that_is_backed_up(graph: Graph, target: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(graph.uri).rglob("*")}
    omnigraph.open(graph.uri, read_only=True).backup(target)
    assert {path: path.stat().st_mtime_ns for path in Path(graph.uri).rglob("*")} == before


def test_a_moved_graph_that_was_only_read_can_be_backed_up(graph: Graph, target: Path) -> None:
    before = everything(graph)
    moved = Path(graph.uri).rename(target.with_name("moved"))
    omnigraph.open(moved, read_only=True).backup(target)
    assert everything(restored(target)) == before


def torn_next(directory: Path) -> None:
    """Leave a version that a power cut tore, behind the newest one."""
    newest = min((directory / "_versions").glob("*.manifest"))
    newest.with_name(f"{int(newest.stem) - 1}.manifest").touch()


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("where", ["manifest", "manifest of a branch", "table", "fork"])
def test_what_a_power_cut_tore_stops_no_backup(graph: Graph, target: Path, where: str, read_only: bool) -> None:  # noqa: FBT001
    before, person = everything(graph), graph.snapshot().entries["node:Person"].table
    (fork,) = [path.parent for path in Path(graph.uri, person.path, "tree").rglob("_versions")][:1]
    directories = {
        "manifest": Path(graph.uri, "__manifest"),
        "manifest of a branch": Path(graph.uri, "__manifest", "tree", "review"),
        "table": Path(graph.uri, person.path),
        "fork": fork,
    }
    torn_next(directories[where])
    omnigraph.open(graph.uri, read_only=read_only).backup(target)
    assert not [path for path in target.rglob("*.manifest*") if not path.stat().st_size]
    again = restored(target)
    assert everything(again) == before
    assert again.verify().is_intact


BOTH = "query both($n: String, $at: I32) { insert Person { name: $n, age: $at } insert Place { title: $n } }"
_PATIENCE = 120


def _write(uri: str, number: int, branch: str, begun: Semaphore, stop: Event) -> None:
    handle = omnigraph.open(uri)
    for at in itertools.count(1000 * (number + 1)):
        handle.mutate(BOTH, {"n": f"p{at}", "at": at}, branch=branch)
        begun.release()
        if stop.is_set():
            return


@contextmanager
def writing(graph: Graph, branches: list[str]) -> Iterator[None]:
    """Let one process for each of the branches commit without a pause; two tables in every commit."""
    begun, stop = FORKS.Semaphore(0), FORKS.Event()
    writers = [forked(_write, (graph.uri, at, name, begun, stop), daemon=True) for at, name in enumerate(branches)]
    for one in writers:
        one.start()
    assert all(begun.acquire(timeout=_PATIENCE) for _ in writers), "the writers do not come to write"
    try:
        yield
    finally:
        stop.set()
        for one in writers:
            one.join(_PATIENCE)
    assert [one.exitcode for one in writers] == [0] * len(writers)


def test_a_backup_while_eight_processes_write_is_one_commit_of_every_branch(graph: Graph, target: Path) -> None:
    with writing(graph, [*["main"] * 4, *["review"] * 2, *["draft"] * 2]):
        done = [graph.backup(target) for _ in range(2)]
    for one in done:
        again = restored(target, one.backup_id)
        assert again.doctor(deep=True).is_healthy
        for branch, commit in one.heads.items():
            assert again.commits(branch)[0].commit_id == commit
            assert sorted(again.export(branch=branch)) == sorted(graph.export(snapshot=commit))
        add(again, 90)


def test_a_cursor_of_commits_that_a_restore_took_back_is_refused(graph: Graph, target: Path) -> None:
    known = graph.changes().cursor
    graph.backup(target)
    for at in (90, 91):
        add(graph, at)
    lost = graph.changes()
    page = graph.changes(cursor=known, limit=1)
    assert lost.cursor
    assert page.next_page_token
    version = graph.snapshot().manifest_version
    shutil.rmtree(graph.uri)
    omnigraph.restore(target, graph.uri)
    with omnigraph.open(graph.uri) as other:
        for at in (92, 93):
            add(other, at)
        assert other.snapshot().manifest_version == version, "the numbers are the same"

    for handle in (graph, omnigraph.open(graph.uri)):
        with pytest.raises(CommitNotFoundError):
            handle.changes(cursor=lost.cursor)
        with pytest.raises(CommitNotFoundError):
            handle.changes(page_token=page.next_page_token)
        again = handle.changes(cursor=known)
        assert [change.id for block in again.blocks for change in block.changes] == ["p92", "p93"]
        assert {row["p.name"] for row in people(handle)} >= {"p92", "p93"}


def test_a_backup_begins_again_when_a_cleanup_takes_its_files(graph: Graph, target: Path) -> None:
    done: list[bool] = []

    def clean() -> None:
        if not done:
            done.append(True)
            graph.optimize()
            cleaned(store_of(graph.uri), keep=1)

    with whenever("create", clean):
        graph.backup(target)
    assert done
    assert people(restored(target)) == people(graph)


def test_two_backups_at_once_are_both_complete(graph: Graph, target: Path) -> None:
    before = everything(graph)
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda _: graph.backup(target), range(3)))
    assert omnigraph.verify_backup(target).is_intact
    for one in made:
        assert everything(restored(target, one.backup_id)) == before


# Death, and a full disk -----------------------------------------------------------------------------


def backing_up(order: tuple[str, str, int]) -> None:
    uri, target, ordinal = order
    with hooked(Ordinals(ordinal)):
        omnigraph.open(uri, read_only=True).backup(target)


def restoring(order: tuple[str, str, int]) -> None:
    source, target, ordinal = order
    with hooked(Ordinals(ordinal)):
        omnigraph.restore(source, target)


def test_a_backup_that_dies_is_none_and_is_made_again(graph: Graph, target: Path) -> None:
    before = everything(graph)
    with hooked(counted := Ordinals()):
        graph.backup(target)
    last = len(counted.written)
    orders = [(graph.uri, f"{target}-{ordinal}", ordinal) for ordinal in (1, 2, 3, last // 2, last - 2, last - 1)]
    die_each(backing_up, orders)
    for _, uri, _ in orders:
        place = Path(uri)
        if place.exists() and not list(place.glob("backups/*")):
            with pytest.raises(BackupNotFoundError):
                omnigraph.restore(place, place.with_name("never"))
        graph.backup(place)
        assert omnigraph.verify_backup(place).is_intact
        assert everything(restored(place)) == before


def test_a_restore_that_dies_leaves_no_graph_and_is_finished_by_the_next(graph: Graph, target: Path) -> None:
    before = everything(graph)
    graph.backup(target)
    with hooked(counted := Ordinals()):
        restored(target)
    last = len(counted.written)
    orders = [(str(target), f"{target}-{ordinal}", ordinal) for ordinal in (2, 3, last // 2, last - 3)]
    die_each(restoring, orders)
    for _, uri, ordinal in orders:
        if ordinal < last - 3:
            with pytest.raises(NotAGraphError, match="its restore stopped half-way"):
                omnigraph.open(uri)
            with pytest.raises(AlreadyInitializedError, match="is being restored"):
                omnigraph.init(uri, "node A { x: I32 }")
        omnigraph.restore(target, uri)
        assert everything(omnigraph.open(uri)) == before


def test_a_target_that_fills_up_loses_nothing(graph: Graph, target: Path) -> None:
    graph.backup(target)
    before = everything(graph)
    add(graph, 90)

    def fill(operation: str, path: str) -> None:
        if operation == "write" and "/backups/files/" in path:
            raise StorageFullError("no space is left", path=path, operation=operation, hint="free some space")

    with hooked(fill), pytest.raises(StorageFullError):
        graph.backup(target)
    assert len(omnigraph.backups(target)) == 1
    assert everything(restored(target)) == before


_ON_A_SMALL_DISK = [
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-ec",
    'mount -t tmpfs -o size=64k none "$0"; exec "$@"',
]
_FILL = """
import shutil, sys
from pathlib import Path
import omnigraph
from omnigraph.errors import NotAGraphError, StorageFullError
from omnigraph.maintenance import backup
disk, uri, backups = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
graph = omnigraph.open(uri, read_only=True)
backup._WHOLE = int(sys.argv[4])
for act in (lambda: graph.backup(disk / "backups"), lambda: omnigraph.restore(backups, disk / "graph")):
    try:
        act()
    except StorageFullError as error:
        assert str(disk) in error.path and error.hint, error
    else:
        raise AssertionError("there is enough space")
    if (disk / "backups").exists():
        assert omnigraph.backups(disk / "backups") == []
        shutil.rmtree(disk / "backups")
try:
    omnigraph.open(disk / "graph")
except NotAGraphError:
    print("no graph")
"""


@pytest.mark.parametrize("whole", [2**23, 100], ids=["small files", "large files"])
def test_a_small_disk_that_fills_up_gets_no_backup_and_no_graph(
    graph: Graph, target: Path, tmp_path: Path, whole: int
) -> None:
    graph.backup(target)
    disk = tmp_path / "disk"
    disk.mkdir()
    if not shutil.which("unshare") or subprocess.run([*_ON_A_SMALL_DISK, disk, "true"], check=False).returncode:
        pytest.skip("a small disk can be mounted only where user namespaces are allowed")
    before = everything(graph)
    command = [*_ON_A_SMALL_DISK, disk, sys.executable, "-c", _FILL, disk, graph.uri, target, whole]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("no graph\n", 0), done.stderr
    assert omnigraph.verify_backup(target).is_intact
    assert everything(graph) == before


# What is refused ------------------------------------------------------------------------------------


def test_a_backup_into_a_graph_is_refused(graph: Graph, tmp_path: Path) -> None:
    other = omnigraph.init(tmp_path / "other", "node A { x: I32 }")
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for uri in (graph.uri, f"{graph.uri}/inside", str(tmp_path), other.uri):
        with pytest.raises(BackupTargetError) as refused:
            graph.backup(uri)
        assert refused.value.hint
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == files


def test_a_backup_into_something_else_is_refused(graph: Graph, target: Path) -> None:
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(BackupTargetError, match="is not empty"):
        graph.backup(target)
    assert [path.name for path in target.iterdir()] == ["notes.txt"]


def test_a_backup_beside_those_of_another_graph_is_refused(graph: Graph, target: Path, tmp_path: Path) -> None:
    omnigraph.init(tmp_path / "other", "node A { x: I32 }").backup(target)
    with pytest.raises(BackupTargetError, match="another graph"):
        graph.backup(target)
    assert len(omnigraph.backups(target)) == 1


def test_a_restore_over_anything_is_refused(graph: Graph, target: Path, tmp_path: Path) -> None:
    graph.backup(target)
    before = everything(graph)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    for uri in (graph.uri, str(tmp_path / "notes"), str(target)):
        with pytest.raises(BackupTargetError, match="cannot restore"):
            omnigraph.restore(target, uri)
    assert everything(graph) == before


def test_half_a_backup_is_found_out(graph: Graph, target: Path) -> None:
    graph.backup(target)
    files = sorted((target / "files").rglob("*.lance"))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1])
    content = bytearray(files[2].read_bytes())
    content[len(content) // 2] ^= 1
    files[2].write_bytes(content)
    names = [path.relative_to(target / "files").as_posix() for path in files[:3]]
    size = files[1].stat().st_size
    assert set(omnigraph.verify_backup(target).problems) == {
        FileProblem(names[0], "missing"),
        FileProblem(names[1], f"has {size} bytes instead of {size + 1}"),
        FileProblem(names[2], "has other content"),
    }
    with pytest.raises((BackupDamagedError, omnigraph.errors.StorageError)):
        restored(target)
    assert graph.verify().is_intact


def test_a_graph_that_lost_or_changed_a_file_is_found_out(graph: Graph, target: Path) -> None:
    graph.backup(target)
    files = sorted(Path(graph.uri, "nodes").rglob("data/*.lance"))
    files[0].unlink()
    content = bytearray(files[1].read_bytes())
    content[len(content) // 2] ^= 1
    files[1].write_bytes(content)
    names = [path.relative_to(graph.uri).as_posix() for path in files[:2]]
    assert graph.verify().problems == (FileProblem(names[0], "missing"),)
    assert set(graph.verify(target).problems) == {
        FileProblem(names[0], "missing"),
        FileProblem(names[1], "has other content"),
    }
    with pytest.raises(BackupDamagedError, match="is missing from the graph"):
        graph.backup(target)
    assert len(omnigraph.backups(target)) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff"])
def test_a_list_of_files_that_is_none_is_found_out(graph: Graph, target: Path, content: bytes) -> None:
    done = graph.backup(target)
    (target / "backups" / f"{done.backup_id}.json").write_bytes(content)
    for act in (lambda: omnigraph.restore(target, target.with_name("never")), lambda: omnigraph.backups(target)):
        with pytest.raises(BackupDamagedError):
            act()


def test_no_backup_is_not_found(graph: Graph, target: Path) -> None:
    with pytest.raises(BackupNotFoundError):
        omnigraph.verify_backup(target)
    graph.backup(target)
    with pytest.raises(BackupNotFoundError, match="no backup 01ABC"):
        omnigraph.restore(target, target.with_name("never"), backup="01ABC")
    assert omnigraph.backups(target.with_name("nowhere")) == []


def test_a_list_names_every_file_with_its_digest(graph: Graph, target: Path) -> None:
    done = graph.backup(target)
    document: dict[str, Any] = json.loads((target / "backups" / f"{done.backup_id}.json").read_text())
    assert document["format"] == "omnigraph-backup-1"
    assert document["root"] == graph.uri
    assert document["tags"] == ["tagged"]
    assert {"path", "size", "sha256", "modified", "stored"} == document["files"][0].keys()
    assert not [one for one in document["files"] if "hint" in one["path"] or one["path"].startswith("__gates")]


# On an object store ---------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [2**23, 100], ids=["small files", "large files"])
def test_a_backup_goes_to_a_bucket_and_comes_back_from_it(
    graph: Graph, s3_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr("omnigraph.maintenance.backup._WHOLE", whole)
    before = everything(graph)
    graph.backup(f"{s3_uri}/backups")
    assert omnigraph.verify_backup(f"{s3_uri}/backups").is_intact
    omnigraph.restore(f"{s3_uri}/backups", f"{s3_uri}/restored")
    served = omnigraph.open(f"{s3_uri}/restored")
    assert everything(served) == before
    served.backup(tmp_path / "local")
    assert everything(restored(tmp_path / "local")) == before
