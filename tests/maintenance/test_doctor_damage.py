"""`doctor` sees what a disk or a person lost: every file that a branch, a tag or a later merge needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.maintenance import Finding, HealthReport, Severity
from omnigraph.api.results import TableVersion
from omnigraph.errors import BackupTargetError, StorageError
from omnigraph.graph import Graph
from omnigraph.manifest.segments import FAN_OUT
from omnigraph.storage import observe
from omnigraph.storage.files import version_file
from tests.maintenance.scene import KNOWS, PERSON, add, coverage, named, people, table_of
from tests.support.mutations import store_of

PROBLEM, ADVICE = Severity
BACKUP = "restore it from a backup"
MEND = "omnigraph repair --confirm, then omnigraph optimize"
FORGET = 'query forget() { delete Person where name = "p1" }'


def examined(graph: Graph) -> HealthReport:
    """Examine a graph through a handle that has read nothing before, and changes nothing."""
    before = {path: path.stat().st_mtime_ns for path in Path(graph.uri).rglob("*")}
    report = omnigraph.open(graph.uri, read_only=True).doctor()
    assert {path: path.stat().st_mtime_ns for path in Path(graph.uri).rglob("*")} == before
    return report


def problems(graph: Graph) -> dict[str, Finding]:
    report = examined(graph)
    found = {one.subject: one for one in report.findings if one.severity is PROBLEM}
    assert report.is_healthy == (not found)
    return found


def files(graph: Graph, table: TableVersion, pattern: str) -> list[Path]:
    below = Path(graph.uri, table.path, *(("tree", table.branch) if table.branch else ()))
    return sorted(below.glob(pattern))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def blank(path: Path) -> None:
    """Keep the length of a file and none of its content, as some file systems do after a power cut."""
    path.write_bytes(bytes(path.stat().st_size))


HARM: dict[str, Callable[[Path], None]] = {
    "removed": Path.unlink,
    "truncated": truncate,
    "emptied": empty,
    "blank": blank,
}


def below(graph: Graph, path: Path) -> str:
    return path.relative_to(graph.uri).as_posix()


@pytest.mark.parametrize("how", HARM)
@pytest.mark.parametrize("branch", ["main", "feature"])
def test_a_data_file_is_a_problem(graph: Graph, branch: str, how: str) -> None:
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    lost = files(graph, table_of(graph, PERSON, branch), "data/*.lance")[0]
    assert problems(graph) == {}
    HARM[how](lost)
    found = problems(graph)
    assert found.keys() == {below(graph, lost)}
    [finding] = found.values()
    assert finding.run == BACKUP
    assert f"branch {branch}" in finding.message


@pytest.mark.parametrize("how", HARM)
@pytest.mark.parametrize("branch", ["main", "feature"])
def test_a_deletion_file_is_a_problem(graph: Graph, branch: str, how: str) -> None:
    graph.optimize()  # otherwise the row is all of its fragment, and no deletion file is needed
    graph.create_branch("feature")
    graph.mutate(FORGET, branch=branch)
    [lost] = files(graph, table_of(graph, PERSON, branch), "_deletions/*")
    assert problems(graph) == {}
    HARM[how](lost)
    assert {name: one.run for name, one in problems(graph).items()} == {below(graph, lost): BACKUP}


@pytest.mark.parametrize("how", ["directory", "removed", "truncated", "emptied"])  # only sizes of indices are known
def test_an_index_is_a_problem_that_repair_mends(graph: Graph, how: str) -> None:
    graph.optimize()
    lost = files(graph, table_of(graph, PERSON), "_indices/*")[0]
    if how == "directory":
        shutil.rmtree(lost)
    else:
        HARM[how](next(lost.iterdir()))
    assert {name: one.run for name, one in problems(graph).items()} == {below(graph, lost): MEND}
    omnigraph.open(graph.uri).repair(confirm=True)
    assert problems(graph) == {}


def test_writes_go_on_once_lost_indices_are_mended(graph: Graph) -> None:
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    for branch in ("main", "feature"):
        graph.optimize(branch=branch)
    for branch in ("main", "feature"):
        for lost in files(graph, table_of(graph, PERSON, branch), "_indices/*"):
            shutil.rmtree(lost)
    damaged = omnigraph.open(graph.uri)
    with pytest.raises(StorageError):
        add(damaged, 70)
    assert damaged.ensure_indices().commit is None, "the manifest says that they are there"
    preview = damaged.repair()
    assert len(preview.tables) == 4
    assert {one.branch for one in preview.tables if one.lost_indexes} == {"main", "feature"}
    assert damaged.commits() == graph.commits()
    done = damaged.repair(confirm=True)
    assert (len(done.commits), done.lost, done.is_refused) == (2, (), False)
    assert [one.lost_indexes for one in preview.tables] == [one.lost_indexes for one in done.tables]
    for branch in ("main", "feature"):
        add(damaged, 80, branch=branch)
        damaged.optimize(branch=branch)
        assert all(coverage(damaged, PERSON, branch).values())
    assert named(damaged, "p80") == [80]
    assert problems(graph) == {}


def test_repair_says_what_it_cannot_mend(graph: Graph) -> None:
    lost = files(graph, table_of(graph, PERSON), "data/*.lance")[0]
    lost.unlink()
    damaged = omnigraph.open(graph.uri)
    assert damaged.repair().lost == damaged.repair(confirm=True).lost == (below(graph, lost),)


def test_the_version_of_a_pin_is_a_problem(graph: Graph) -> None:
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    table = table_of(graph, PERSON, "feature")
    Path(graph.uri, version_file(table)).unlink()
    assert any(version_file(table) in f"{one.subject} {one.message}" for one in problems(graph).values())


@pytest.mark.parametrize("kind", ["tag", "merge base"])
@pytest.mark.parametrize("which", [PERSON, "__manifest"])
@pytest.mark.parametrize("how", ["removed", "truncated"])
def test_a_version_of_the_past_that_is_still_needed_is_a_problem(graph: Graph, kind: str, which: str, how: str) -> None:
    table = table_of(graph, PERSON)
    if which != PERSON:
        table = TableVersion("", which, graph.commits()[0].manifest_version)
    if kind == "tag":
        graph.create_tag("v1")
    else:
        graph.create_branch("feature")
        add(graph, 60, branch="feature")
    add(graph, 70)
    assert problems(graph) == {}
    HARM[how](Path(graph.uri, version_file(table)))
    found = problems(graph)
    assert version_file(table) in found
    assert found[version_file(table)].run.startswith(BACKUP)


def test_a_version_that_nothing_needs_may_be_gone(graph: Graph) -> None:
    table = table_of(graph, PERSON)
    add(graph, 70)
    Path(graph.uri, version_file(table)).unlink()
    assert problems(graph) == {}


@pytest.mark.parametrize("folder", ["_versions", "_refs/branches"])
def test_files_that_were_set_aside_are_worth_a_word(graph: Graph, folder: str) -> None:
    torn = Path(graph.uri, "__manifest", folder, "x.manifest.torn")
    torn.parent.mkdir(parents=True, exist_ok=True)
    torn.write_bytes(b"half")
    report = examined(graph)
    assert report.is_healthy
    [finding] = [one for one in report.findings if one.subject == below(graph, torn)]
    assert (finding.severity, finding.run) == (ADVICE, "omnigraph cleanup --keep 10")


def test_the_lost_reference_of_a_branch_with_commits_is_a_problem_until_it_is_there_again(graph: Graph) -> None:
    graph.create_branch("side")
    for at in (200, 201):
        add(graph, at, "side")
    graph.create_branch("unwritten")
    refs = Path(graph.uri, "__manifest", "_refs", "branches")
    content = (refs / "side.json").read_bytes()
    for name in ("side", "unwritten"):
        empty(refs / f"{name}.json")
    again = omnigraph.open(graph.uri)
    assert again.branches() == ["main"]
    [(subject, finding)] = problems(graph).items()
    assert subject == "__manifest/_refs/branches/side.json.torn"
    assert "'side' has commits" in finding.message
    (refs / "side.json").write_bytes(content)
    assert problems(graph) == {}
    assert {row["p.name"] for row in people(again, branch="side")} >= {"p200", "p201"}


# Deep ------------------------------------------------------------------------------------------------


def replaced(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


def deep(graph: Graph) -> dict[str, str]:
    report = omnigraph.open(graph.uri, read_only=True).doctor(deep=True)
    return {one.subject: one.message for one in report.findings if one.severity is PROBLEM}


def test_a_healthy_graph_reads_well(graph: Graph) -> None:
    graph.optimize()
    graph.create_branch("feature")
    graph.mutate(FORGET, branch="feature")
    graph.create_tag("v1")
    assert deep(graph) == {}


def test_a_changed_byte_of_an_indexed_value_is_found(graph: Graph) -> None:
    graph.optimize()
    [changed] = [Path(graph.uri, table_of(graph, PERSON).path, "data", one) for one in data_files(graph, PERSON)]
    replaced(changed, b"text 3", b"text X")
    assert problems(graph) == {}, "its size is right"
    found = deep(graph)
    assert found.keys() == {below(graph, changed)}
    assert "disagree" in found[below(graph, changed)]


def test_a_changed_end_of_an_edge_is_found(graph: Graph) -> None:
    graph.optimize()
    [changed] = [Path(graph.uri, table_of(graph, KNOWS).path, "data", one) for one in data_files(graph, KNOWS)]
    data = bytearray(changed.read_bytes())
    at = data.index(b"p5")
    data[at] ^= 0x20
    changed.write_bytes(data)
    assert any("edges have a" in message for message in deep(graph).values())


def test_a_file_that_cannot_be_decoded_is_found(graph: Graph) -> None:
    [first, *_] = [Path(graph.uri, table_of(graph, PERSON).path, "data", one) for one in data_files(graph, PERSON)]
    data = first.read_bytes()
    first.write_bytes(bytes(len(data) - 40) + data[-40:])
    assert below(graph, first) in deep(graph)


def data_files(graph: Graph, key: str) -> list[str]:
    dataset = store_of(graph.uri).tables.own_handle(table_of(graph, key))
    return [file.path for fragment in dataset.get_fragments() for file in fragment.data_files()]


def test_requests_do_not_grow_with_files(graph: Graph) -> None:
    def requests() -> observe.RequestCounts:
        with observe.counted() as counter:
            omnigraph.open(graph.uri, read_only=True).doctor()
        return counter.requests

    before = requests()
    for at in range(100, 110):
        add(graph, at)
    after = requests()
    assert (after.list, after.head) == (before.list, before.head)
    assert after.get - before.get <= FAN_OUT, "the log segments"


def test_a_newest_version_that_is_not_whole_is_a_problem(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "torn", "node Person { name: String @key }")
    graph.mutate('query q() { insert Person { name: "ann" } }')
    newest = min((tmp_path / "torn" / "__manifest" / "_versions").glob("*.manifest"))
    newest.write_bytes(b"")
    found = omnigraph.open(tmp_path / "torn", read_only=True).doctor()
    assert not found.is_healthy
    assert "its newest version is damaged or incomplete; version 1 is read instead" in [
        one.message for one in found.findings
    ]


# Digests of a backup


def test_a_flipped_byte_that_still_decodes_is_found_with_a_backup(graph: Graph, tmp_path: Path) -> None:
    graph.backup(tmp_path / "backups")
    add(graph, 70)
    [changed] = [one for one in files(graph, table_of(graph, PERSON), "data/*.lance") if b"text 3" in one.read_bytes()]
    replaced(changed, b"text 3", b"text X")
    assert deep(graph) == {}, "no index has the value, and it is no end of an edge"

    report = omnigraph.open(graph.uri, read_only=True).doctor(deep=True, backup=tmp_path / "backups")

    [problem] = [one for one in report.findings if one.severity is PROBLEM]
    assert (problem.subject, problem.message) == (below(graph, changed), "it has other content")
    assert problem.run == f"restore it from the backup at {tmp_path / 'backups'}"
    [advice] = [one for one in report.findings if "were not compared" in one.message]
    assert (advice.subject, advice.run) == (str(tmp_path / "backups"), "omnigraph backup create")


def test_a_version_file_that_changed_since_the_backup_is_found(graph: Graph, tmp_path: Path) -> None:
    graph.backup(tmp_path / "backups")
    version = max(Path(graph.uri, "__manifest", "_versions").glob("*.manifest"))  # the oldest one
    data, times = bytearray(version.read_bytes()), version.stat()
    data[len(data) // 2] ^= 1
    version.write_bytes(data)
    os.utime(version, ns=(times.st_atime_ns, times.st_mtime_ns))

    found = omnigraph.open(graph.uri, read_only=True).doctor(backup=tmp_path / "backups")

    assert below(graph, version) in [one.subject for one in found.findings if one.severity is PROBLEM]


def test_the_backup_of_another_graph_proves_nothing(graph: Graph, tmp_path: Path) -> None:
    other = omnigraph.init(tmp_path / "other", "node Thing { name: String @key }")
    other.backup(tmp_path / "backups")
    with pytest.raises(BackupTargetError, match="another graph"):
        graph.doctor(backup=tmp_path / "backups")
