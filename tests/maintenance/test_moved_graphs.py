"""Graphs that were copied or moved: they hold what they held, alone, and nothing they need is ever cleaned up."""

from __future__ import annotations

import base64
import datetime as dt
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.maintenance import Severity
from omnigraph.errors import OmnigraphError
from omnigraph.graph import Graph
from omnigraph.maintenance.relocate import MARK, moved_versions
from tests.commit.child import Ordinals, hooked
from tests.maintenance.scene import ALL, add, cleaned, grown, people
from tests.support.deaths import die_each
from tests.support.mutations import store_of
from tests.support.s3 import S3Server
from tests.support.templates import Templates

STATES = ("main", "review", "draft", "tagged")
ENDS = "query ends() { match { $a: Person $a knows $b } return { $a.name, $b.name } order { $a.name asc } }"


def branched(uri: Path | str) -> Graph:
    """Main, a branch of it, a branch of that, and a tag; indices, deletions, and Blobs in files of their own."""
    graph = grown(uri)
    graph.optimize()
    graph.create_branch("review")
    add(graph, 20, "review")
    graph.mutate('query gone() { delete Person where name = "p1" }', branch="review")
    graph.load([_photo("p30", 300_000)], mode="merge", branch="review")
    graph.create_branch("draft", base="review")
    add(graph, 40, "draft")
    graph.optimize("draft")
    graph.mutate('query gone() { delete Person where name = "p2" }', branch="draft")
    graph.create_tag("tagged", "draft")
    add(graph, 41, "draft")
    add(graph, 50)
    return graph


def _photo(name: str, size: int) -> dict[str, Any]:
    return {"type": "Person", "data": {"name": name, "photo": f"base64:{base64.b64encode(bytes(size)).decode()}"}}


def everything(graph: Graph) -> dict[str, Any]:
    """What a graph holds and was, as its users see it."""
    return {
        "rows": {ref: (graph.at(ref).query(ALL).rows, graph.at(ref).query(ENDS).rows) for ref in STATES},
        "commits": {ref: graph.commits(ref) for ref in STATES[:3]},
        "tags": graph.tags(),
        "past": [people(graph, snapshot=commit.commit_id) for commit in graph.commits("draft")[::4]],
    }


@pytest.fixture
def original(templates: Templates, tmp_path: Path) -> Graph:
    """A graph that is where it says: a copy that was relocated is as good as one that was made there."""
    return templates.copy("branched", branched, tmp_path / "original")


def copied(graph: Graph, name: str = "copy") -> Path:
    return Path(shutil.copytree(graph.uri, Path(graph.uri).parent / name))


def removed(graph: Graph) -> None:
    shutil.rmtree(graph.uri)


def test_a_moved_graph_is_read_as_it_is_and_nothing_is_written(original: Graph) -> None:
    before = everything(original)
    moved = Path(original.uri).rename(Path(original.uri).with_name("moved ü"))
    files = {path: path.stat().st_mtime_ns for path in moved.rglob("*")}
    graph = omnigraph.open(moved, read_only=True)
    assert everything(graph) == before
    assert graph.at("review").blob("Person", "p30", "photo").size == 300_000
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*")} == files


def test_a_copy_reads_none_of_the_files_of_the_original(original: Graph) -> None:
    before, copy = everything(original), copied(original)
    removed(original)
    for read_only in (True, False, True):
        assert everything(omnigraph.open(copy, read_only=read_only)) == before
    assert moved_versions(store_of(str(copy))) == {}


def test_opening_a_copy_read_write_relocates_it_once(original: Graph, caplog: pytest.LogCaptureFixture) -> None:
    copy = copied(original)
    omnigraph.open(copy)
    assert f"{copy} was at {original.uri} before" in caplog.text
    caplog.clear()
    versions = {path: path.stat().st_mtime_ns for path in copy.rglob("*.manifest")}
    omnigraph.open(copy)
    omnigraph.open(original.uri)
    assert caplog.text == ""
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*.manifest")} == versions
    assert moved_versions(store_of(original.uri)) == {}


def test_a_handle_from_before_a_copy_was_put_in_its_place_relocates_it_before_it_optimizes(original: Graph) -> None:
    copy = omnigraph.open(copied(original))
    removed(copy)
    copied(original)
    assert moved_versions(store_of(copy.uri))
    copy.optimize("draft")
    assert moved_versions(store_of(copy.uri)) == {}


def test_the_original_and_the_copy_go_on_apart(original: Graph) -> None:
    copy = omnigraph.open(copied(original))
    before = everything(original)
    for branch in ("main", "review", "draft"):
        add(copy, 60, branch)
    copy.merge("draft", into="review")
    copy.optimize("draft")
    copy.create_branch("new", base="draft")
    add(copy, 61, "new")
    assert everything(original) == before
    for branch in ("main", "review", "draft"):
        add(original, 70, branch)
    assert [row["p.name"] for row in people(copy, branch="new")][-2:] == ["p60", "p61"]
    assert copy.doctor().is_healthy
    assert original.doctor().is_healthy


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_cleanup_of_the_original_leaves_the_copy_whole(original: Graph, when: str) -> None:
    if when == "before":
        cleaned(store_of(original.uri), keep=1)
    before, copy = everything_now(original), copied(original)
    for branch in ("main", "review", "draft"):
        original.mutate("query none() { delete Person where age >= 0 }", branch=branch)
        original.optimize(branch)
    cleaned(store_of(original.uri), keep=1)
    assert everything_now(omnigraph.open(copy, read_only=True)) == before
    assert everything_now(omnigraph.open(copy)) == before


def everything_now(graph: Graph) -> dict[str, Any]:
    """What a graph holds, without a past that a cleanup has removed."""
    return {ref: (graph.at(ref).query(ALL).rows, graph.at(ref).query(ENDS).rows) for ref in STATES}


def merged(uri: Path | str) -> Graph:
    """Main was rewritten, and merged into a branch: only its forks need the files that main had when they were made."""
    graph = grown(uri)
    graph.create_branch("review")
    add(graph, 20, "review")
    graph.optimize()
    add(graph, 55)
    graph.merge("main", into="review")
    add(graph, 56)
    graph.optimize()
    return graph


@pytest.fixture
def rewritten(templates: Templates, tmp_path: Path) -> Graph:
    return templates.copy("merged", merged, tmp_path / "original")


def both(graph: Graph) -> list[Any]:
    return [people(graph, branch=branch) for branch in ("main", "review")]


@pytest.mark.parametrize("opened", ["read-write", "by another handle"])
def test_a_cleanup_of_the_copy_removes_nothing_that_its_forks_need(rewritten: Graph, opened: str) -> None:
    before, copy = both(rewritten), copied(rewritten)
    removed(rewritten)
    if opened == "read-write":
        omnigraph.open(copy)
    store = store_of(str(copy))
    assert not any(table.error for table in cleaned(store, keep=1, orphan_age=dt.timedelta()).tables)
    graph = omnigraph.open(copy)
    assert both(graph) == before
    assert graph.doctor().is_healthy


def test_versions_that_came_back_without_the_mark_are_found_before_a_cleanup(rewritten: Graph) -> None:
    """As after an incremental copy over a graph that was relocated, which broke off before its last file."""
    before, copy = both(rewritten), copied(rewritten)
    omnigraph.open(copy)
    for version in Path(rewritten.uri).rglob("tree/**/*.manifest"):
        shutil.copy2(version, copy / version.relative_to(rewritten.uri))
    removed(rewritten)
    assert moved_versions(store_of(str(copy)))
    cleaned(store_of(str(copy)), keep=1)
    assert both(omnigraph.open(copy)) == before


def test_doctor_reports_forks_that_refer_to_another_root(original: Graph) -> None:
    copy = copied(original)
    report = omnigraph.open(copy, read_only=True).doctor()
    assert not report.is_healthy
    problems = [one for one in report.findings if one.severity is Severity.PROBLEM]
    assert [one.run for one in problems] == ["omnigraph relocate"]
    assert f"forks refer to {original.uri}" in problems[0].message
    graph = omnigraph.open(copy)
    done = graph.relocate()
    assert done.former_roots == (original.uri,)
    assert done.versions > 10
    assert graph.relocate().versions == 0
    assert omnigraph.open(copy, read_only=True).doctor().is_healthy


def test_a_graph_without_branches_has_no_mark_and_needs_none(tmp_path: Path) -> None:
    graph = grown(tmp_path / "g", people=1)
    copy = copied(graph)
    assert omnigraph.open(copy).relocate().versions == 0
    assert not (copy / MARK).exists()


def test_a_graph_that_is_reached_by_two_names_is_cleaned_up_by_either(rewritten: Graph, tmp_path: Path) -> None:
    before = both(rewritten)
    (tmp_path / "other").symlink_to(rewritten.uri)
    for uri in (tmp_path / "other", rewritten.uri, tmp_path / "other"):
        cleaned(store_of(str(uri)), keep=1)
        assert both(omnigraph.open(uri)) == before
        assert both(rewritten) == before


def test_a_damaged_mark_is_as_good_as_none(original: Graph) -> None:
    before, copy = everything(original), copied(original)
    for mark in (b"", b"[]", b'{"root": 1}', b"\xff"):
        (copy / MARK).write_bytes(mark)
        assert everything(omnigraph.open(copy)) == before


def test_half_a_version_of_a_fork_does_not_keep_the_others_from_being_relocated(original: Graph) -> None:
    copy = copied(original)
    removed(original)
    torn = next((copy / "nodes").rglob("tree/**/_versions/*.manifest"))
    torn.write_bytes(torn.read_bytes()[:100])
    graph = omnigraph.open(copy)
    assert moved_versions(store_of(str(copy))) == {}
    assert people(graph)


# Death ---------------------------------------------------------------------------------------------


def relocating(order: tuple[str, int]) -> None:
    uri, ordinal = order
    with hooked(Ordinals(ordinal)):
        omnigraph.open(uri)


def test_a_relocation_that_dies_at_any_write_is_finished_by_the_next_open(original: Graph) -> None:
    before = everything(original)
    counting = copied(original, "counting")
    with hooked(written := Ordinals()):
        omnigraph.open(counting)
    assert written.written.count("relocate") > 10
    assert written.written[-1] == "write"  # the mark comes last
    ordinals = [1, 2, 3, len(written.written) // 2, *range(len(written.written) - 2, len(written.written) + 1)]
    orders = [(str(copied(original, f"copy{ordinal}")), ordinal) for ordinal in ordinals]
    removed(original)
    die_each(relocating, orders)
    for uri, _ in orders:
        assert everything(omnigraph.open(uri, read_only=True)) == before
        graph = omnigraph.open(uri)
        assert moved_versions(store_of(uri)) == {}
        assert everything(graph) == before
        cleaned(store_of(uri), keep=1)
        assert everything_now(graph) == before["rows"]


def test_no_file_is_left_by_a_relocation_that_died(original: Graph) -> None:
    """A death between writing a file and renaming it leaves one that listings do not show, and the next one takes."""
    copy = copied(original)
    version = next(copy.rglob("tree/**/_versions/*.manifest"))
    version.with_name(f"{version.name}#0").write_bytes(b"half")
    omnigraph.open(copy)
    assert not list(copy.rglob("*#0"))


# Branches that cannot be read ----------------------------------------------------------------------


def test_a_branch_that_cannot_be_read_can_be_deleted(original: Graph) -> None:
    before = everything_now(original)
    for version in Path(original.uri, "__manifest", "tree", "draft", "_versions").glob("*.manifest"):
        version.write_bytes(b"not what was written LANC")
    original.delete_tag("tagged")
    graph = omnigraph.open(original.uri)
    with pytest.raises(OmnigraphError):
        people(graph, branch="draft")
    finding = next(one for one in graph.doctor().findings if one.subject == "branch draft")
    assert finding.run == "restore it from a backup, or give it up: omnigraph branch delete draft"
    graph.delete_branch("draft")
    assert graph.branches() == ["main", "review"]
    cleaned(store_of(graph.uri), keep=1)
    assert people(graph, branch="review") == before["review"][0]
    graph.create_branch("draft", base="review")
    add(graph, 80, "draft")
    assert graph.doctor().is_healthy


# On an object store --------------------------------------------------------------------------------


def test_a_copy_in_another_bucket_reads_none_of_the_original(s3_uri: str, s3_server: S3Server) -> None:
    original = branched(s3_uri)
    before = everything(original)
    bucket = s3_uri.split("/")[2]
    copy = s3_server.copy_bucket(bucket)
    uri = s3_uri.replace(bucket, copy)
    asked = s3_server.requests(bucket)
    assert everything(omnigraph.open(uri, read_only=True)) == before
    graph = omnigraph.open(uri)
    assert everything(graph) == before
    add(graph, 60, "draft")
    graph.merge("draft", into="review")
    cleaned(store_of(uri), keep=1)
    assert graph.doctor().is_healthy
    assert graph.relocate().former_roots == (s3_uri,)
    assert s3_server.requests(bucket) == asked
    assert everything(omnigraph.open(s3_uri)) == before


def test_several_may_relocate_at_once(original: Graph) -> None:
    before, copy = everything(original), copied(original)
    removed(original)
    with ThreadPoolExecutor() as pool:
        graphs = list(pool.map(omnigraph.open, [copy] * 4))
    assert all(everything(graph) == before for graph in graphs)
    assert moved_versions(store_of(str(copy))) == {}
