"""`doctor`: one report, from reading alone; what stands in the way is a problem, what could be better is advice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.maintenance import Finding, HealthReport, Severity
from omnigraph.commit import failpoints
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.graph import Graph
from tests.maintenance.scene import KNOWS, PERSON, PLACE, add, table_of
from tests.support.faults import CrashError, crash, dataset, foreign_commit, refuse
from tests.support.graphs import append, plan
from tests.support.mutations import at_write

PROBLEM, ADVICE = Severity


def commands(report: HealthReport) -> dict[str, set[str]]:
    """What to run, by what it is for."""
    return {
        one.subject: {other.run for other in report.findings if other.subject == one.subject} for one in report.findings
    }


def test_a_graph_that_is_well_has_nothing_to_do(graph: Graph) -> None:
    graph.optimize()
    report = omnigraph.open(graph.uri, read_only=True).doctor()
    assert (report.is_healthy, report.findings, report.pending, report.branches) == (True, (), (), ("main",))
    [person] = [row for row in report.tables if row.table_key == PERSON]
    assert (person.pin, person.rows, person.fragments, person.fragments_small) == (person.head, 6, 1, 0)
    assert {one.rows_covered for one in person.indexes} == {6}


def test_it_writes_nothing(graph: Graph, store: Store) -> None:
    foreign_commit(store, PERSON)
    with at_write(1, refuse) as written:
        graph.doctor()
    assert written == []


def test_small_fragments_and_many_versions_are_worth_a_word(graph: Graph) -> None:
    for at in range(100, 103):
        add(graph, at)
    report = graph.doctor()
    assert report.is_healthy
    assert commands(report)[PERSON] == {"omnigraph optimize"}
    [finding] = [one for one in report.findings if one.subject == PERSON]
    assert finding.message == "9 of its 9 fragments are small, or mostly deleted"
    [row] = [row for row in report.tables if row.table_key == PERSON]
    assert (row.fragments, row.fragments_small, row.versions) == (9, 9, 10)


def test_a_table_that_others_have_moved_is_a_problem(graph: Graph, store: Store) -> None:
    head = foreign_commit(store, PERSON)
    report = graph.doctor()
    assert not report.is_healthy
    message = f"its head is version {head}, past its pin {head - 1}: something else has written to it"
    assert report.findings[0] == Finding(PROBLEM, PERSON, message, "omnigraph repair")


def test_a_table_that_is_gone_is_a_problem_and_the_others_are_told_of(graph: Graph) -> None:
    shutil.rmtree(Path(graph.uri, table_of(graph, KNOWS).path))
    report = omnigraph.open(graph.uri, read_only=True).doctor()
    assert not report.is_healthy
    assert {row.table_key for row in report.tables} == {PERSON, PLACE}
    assert KNOWS in commands(report)


@pytest.mark.parametrize("started, healthy", [(None, True), ("1700000000000000", False)], ids=["young", "old"])
def test_a_write_that_stopped_half_way_is_told_from_one_under_way_by_its_age(
    graph: Graph,
    store: Store,
    started: str | None,
    healthy: bool,  # noqa: FBT001 - what a case expects
) -> None:
    txn = begin(store)
    with pytest.raises(CrashError), failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash):
        publish(store, plan(txn, append(store, txn, PERSON, [{"id": "late", "name": "late"}])))
    [operation] = store.sidecars.pending()
    path = f"__recovery/{operation}.json"
    if started:
        sidecar = store.sidecars.read(operation)
        assert sidecar
        store.objects.write(path, store.objects.read(path).replace(sidecar.started_at.encode(), started.encode()))
    report = omnigraph.open(graph.uri, read_only=True).doctor()
    assert report.pending == (operation,)
    assert report.is_healthy is healthy
    assert [one.subject for one in report.findings if one.severity is PROBLEM] == [] if healthy else [operation]


def test_a_record_that_a_crash_tore_is_set_aside_by_the_next_open(graph: Graph, store: Store) -> None:
    torn = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    store.objects.write(f"__recovery/{torn}.json", b"nonsense")
    report = omnigraph.open(graph.uri, read_only=True).doctor()
    [finding] = [one for one in report.findings if torn in one.subject]
    assert (report.is_healthy, finding.severity, finding.run) == (True, ADVICE, "open the graph read-write")
    assert "the next read-write open sets it aside" in finding.message
    report = omnigraph.open(graph.uri).doctor()
    [finding] = [one for one in report.findings if torn in one.subject]
    assert (finding.severity, finding.subject) == (ADVICE, f"__recovery/{torn}.json.torn")


def test_a_record_of_a_later_release_is_a_problem(graph: Graph, store: Store) -> None:
    store.objects.write("__recovery/01ARZ3NDEKTSV4RRFFQ69G5FAV.json", b'{"schema_version": 99}')
    report = omnigraph.open(graph.uri, read_only=True).doctor()
    assert not report.is_healthy
    assert report.findings[0].subject == "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def test_branches_and_their_forks_are_looked_at(graph: Graph, store: Store) -> None:
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    store.tables.fork(table_of(graph, PERSON), "gone")
    report = graph.doctor()
    assert {(row.branch, row.table_key) for row in report.tables if row.branch != "main"} == {("feature", PERSON)}
    assert commands(report)[table_of(graph, PERSON).path] == {"omnigraph cleanup --keep 10"}


def test_a_table_that_removes_its_own_versions_is_worth_a_word(graph: Graph, store: Store) -> None:
    settings: dict[str, str | None] = {"lance.auto_cleanup.interval": "1000", "lance.auto_cleanup.older_than": "0s"}
    dataset(store, table_of(graph, PERSON).path).update_config(settings)
    graph.repair(confirm=True, force=True)
    [finding] = [one for one in graph.doctor().findings if one.subject == PERSON]
    assert (finding.severity, finding.run) == (ADVICE, "omnigraph optimize")
