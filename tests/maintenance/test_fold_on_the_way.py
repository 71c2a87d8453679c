"""Folds on the way: a commit that adds rows merges the small files before it, and no answer changes."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.commit import failpoints
from omnigraph.commit.publish import lead
from omnigraph.commit.queue import Queue, Waiting
from omnigraph.errors import OmnigraphError
from omnigraph.graph import Graph
from omnigraph.maintenance import fold
from omnigraph.storage import maintain
from omnigraph.storage.layout import FragmentSize, Segment, TableLayout
from tests.commit.child import after_a_lifetime
from tests.commit.places import copied as on_s3
from tests.maintenance.scene import PERSON, made_of, table_of, whenever
from tests.support.faults import CrashError, assert_settled, refuse
from tests.support.graphs import contents
from tests.support.mutations import Death, Query, at_write, die, once_prepared, store_of
from tests.support.templates import Templates
from tests.support.together import inserting, together

SCHEMA = "node Person { name: String @key  age: I32? } edge Knows: Person -> Person"
READY = 4  # commits; the next one folds what they left
ADD = Query('() { insert Person { name: "last", age: 99 } }')


def almost(uri: str | Path) -> Graph:
    graph = omnigraph.init(uri, SCHEMA)
    for at in range(READY):
        add(graph, at)
    return graph


def add(graph: Graph, at: int, **more: Any) -> Any:
    return graph.mutate(f'query add() {{ insert Person {{ name: "p{at}", age: {at} }} }}', **more)


@pytest.fixture
def graph(templates: Templates, tmp_path: Path) -> Graph:
    return templates.copy("almost folded on the way", almost, tmp_path / "g")


@pytest.fixture(params=["on", "off"])
def grouping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OMNIGRAPH_GROUP_COMMIT", request.param)
    return str(request.param)


def sizes(graph: Graph) -> list[int]:
    return [part.rows for part in made_of(graph, PERSON).parts]


def rows_with_ids(graph: Graph) -> Any:
    dataset = store_of(graph.uri).tables.own_handle(table_of(graph, PERSON))
    columns = ["id", "age", "_row_last_updated_at_version"]
    return dataset.scanner(columns=columns, with_row_id=True).to_table().to_pylist()


def files(graph: Graph) -> int:
    return len(store_of(graph.uri).objects.list_below(f"{table_of(graph, PERSON).path}/data"))


def copied(graph: Graph) -> str:
    return str(shutil.copytree(graph.uri, Path(graph.uri).with_name(uuid.uuid4().hex)))


@pytest.mark.usefixtures("grouping")
def test_a_commit_folds_what_those_before_it_left_and_is_the_only_commit(graph: Graph) -> None:
    before, version = rows_with_ids(graph), table_of(graph, PERSON).version
    commits = len(graph.commits())
    done = ADD.run(graph)
    assert sizes(graph) == [READY, 1]
    assert rows_with_ids(graph)[:-1] == before
    assert (table_of(graph, PERSON).version, len(graph.commits())) == (version + 2, commits + 1)
    assert graph.commits()[0] == done.commit
    assert_settled(store_of(graph.uri))
    assert graph.doctor(deep=True).is_healthy


def test_tails_stay_short_and_what_is_folded_is_folded_again(graph: Graph) -> None:
    for at in range(READY, READY + 16):
        add(graph, at)
        assert len(sizes(graph)) <= 6
    assert sizes(graph) == [READY + 15, 1]
    assert [row["age"] for row in rows_with_ids(graph)] == list(range(READY + 16))


def test_a_row_that_was_folded_is_still_known_to_the_handle_that_wrote_it(graph: Graph) -> None:
    """The handle remembers the ids that it appended, so as not to search for them: a fold must not lose one."""
    fresh = omnigraph.init(Path(graph.uri).with_name("fresh"), SCHEMA)
    for handle in (graph, fresh):
        before = len(contents(store_of(handle.uri))[PERSON])
        for at in range(20, 33):
            add(handle, at)
        for at in range(20, 33):
            handle.mutate(f'query q() {{ insert Person {{ name: "p{at}", age: {1000 + at} }} }}')
            add(handle, at + 20)
        found = {row["id"]: row["age"] for row in contents(store_of(handle.uri))[PERSON]}
        assert len(contents(store_of(handle.uri))[PERSON]) == before + 26
        written = {f"p{at}": 1000 + at for at in range(20, 33)} | {f"p{at}": at for at in range(40, 53)}
        assert {name: age for name, age in found.items() if name in written} == written


def test_history_across_it_shows_the_row_that_was_added_and_nothing_else(graph: Graph) -> None:
    before = graph.commits()[0]
    cursor = graph.change_cursor(before.commit_id)
    done = ADD.run(graph)
    assert done.commit
    changes = [change for block in graph.changes(cursor=cursor).blocks for change in block.changes]
    assert [(change.operation, change.id) for change in changes] == [("insert", "last")]
    assert {change.id for change in graph.diff(before.commit_id, "main")} == {"last"}
    assert graph.at(before.commit_id).query("query q() { match { $p: Person } return { count($p) as n } }").rows == [
        {"n": READY}
    ]
    assert graph.revert(done.commit.commit_id).commit
    assert [row["id"] for row in contents(store_of(graph.uri))[PERSON]] == [f"p{at}" for at in range(READY)]


def test_a_branch_folds_its_own_table_and_is_merged(graph: Graph) -> None:
    graph.create_branch("side")
    for at in range(50, 62):
        add(graph, at, branch="side")
    assert len(made_of(graph, PERSON, "side").parts) <= 6
    assert sizes(graph) == [1] * READY
    graph.merge("side")
    assert len(contents(store_of(graph.uri))[PERSON]) == READY + 12


@pytest.mark.parametrize("rival", ["insert", "update", "delete", "optimize", "the same key"])
@pytest.mark.usefixtures("grouping")
def test_what_others_did_since_it_was_prepared_stays(graph: Graph, rival: str) -> None:
    other = omnigraph.open(graph.uri, upkeep="off")
    acts: dict[str, Callable[[], object]] = {
        "insert": partial(add, other, 70),
        "update": lambda: other.mutate('query q() { update Person set { age: 7 } where name = "p1" }'),
        "delete": lambda: other.mutate('query q() { delete Person where name = "p1" }'),
        "optimize": other.optimize,
        "the same key": lambda: ADD.run(other),
    }
    expected = {f"p{at}": at for at in range(READY)} | {"last": 99}
    with once_prepared(acts[rival]):
        ADD.run(graph)
    expected |= {"insert": {"p70": 70}, "update": {"p1": 7}}.get(rival, {})
    expected = {name: age for name, age in expected.items() if (rival, name) != ("delete", "p1")}
    assert {row["id"]: row["age"] for row in contents(store_of(graph.uri))[PERSON]} == expected
    assert_settled(store_of(graph.uri))
    assert graph.doctor(deep=True).is_healthy


def test_a_fold_that_comes_too_late_leaves_no_file(graph: Graph) -> None:
    other, before = omnigraph.open(graph.uri, upkeep="off"), files(graph)
    with whenever("rewrite fragments", partial(add, other, 70)):
        ADD.run(graph)
    assert sizes(graph) == [1] * (READY + 2)
    assert files(graph) == before + 2


def test_of_a_group_only_the_first_plan_of_a_table_folds_it(graph: Graph) -> None:
    """The plans of the others are staged on what they saw, and land behind what the fold left of it."""
    calls = [partial(add, graph, at) for at in range(10, 14)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Queue, "is_idle", property(lambda _: True))  # let them all prepare one
        made = [one.result().commit for one in together(store_of(graph.uri), calls)]
    assert all(made)
    assert sizes(graph) == [READY, 1, 1, 1, 1]
    assert len(graph.commits()) == READY + 5
    for at, commit in enumerate(sorted(made, key=lambda one: one.order), start=READY + 1):
        count = "query q() { match { $p: Person } return { count($p) as n } }"
        assert graph.at(commit.commit_id).query(count).rows == [{"n": at}]
    assert_settled(store_of(graph.uri))
    assert files(graph) == READY + 5, "the other folds were taken back"


def test_who_comes_to_wait_behind_others_prepares_no_fold(graph: Graph) -> None:
    seen: list[str] = []
    calls = [partial(add, graph, at) for at in range(10, 14)]
    lock = threading.Lock()

    def note() -> None:
        with lock:
            seen.append("fold")

    with whenever("rewrite fragments", note):
        together(store_of(graph.uri), calls)
    assert seen == ["fold"], "of the first, that others came to wait for"
    assert sizes(graph) == [READY, 1, 1, 1, 1]


# Failures ------------------------------------------------------------------------------------------


def writes_of(uri: str) -> list[str]:
    with at_write(0, refuse) as writes:
        ADD.run(omnigraph.open(uri))
    return writes


def test_a_storage_that_fails_while_a_fold_is_written_costs_the_fold_and_not_the_write(
    graph: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    with whenever("rewrite fragments", refuse):
        assert ADD.run(graph).commit
    assert "folded" in caplog.text
    assert sizes(graph) == [1] * (READY + 1)
    _is_whole(graph.uri, READY + 1)


def test_a_fold_that_a_full_disk_cut_short_costs_the_fold_and_not_the_write(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lance may not notice that a disk is full."""
    rewrite = maintain.rewrite

    def cut_short(*arguments: Any) -> maintain.Rewrite:
        done = rewrite(*arguments)
        newest = max(
            Path(graph.uri, table_of(graph, PERSON).path, "data").iterdir(), key=lambda one: one.stat().st_ctime_ns
        )
        newest.write_bytes(newest.read_bytes()[:-1])
        return done

    with monkeypatch.context() as patched:
        patched.setattr(maintain, "rewrite", cut_short)
        assert ADD.run(graph).commit
    assert "the disk is full" in caplog.text
    assert sizes(graph) == [1] * (READY + 1)
    _is_whole(graph.uri, READY + 1)


def test_a_table_with_blobs_is_left_to_a_commit_of_its_own(tmp_path: Path) -> None:
    """The bytes of its data files say nothing about those of its blobs."""
    graph = omnigraph.init(tmp_path / "blobs", "node Photo { name: String @key  data: Blob? }")
    for at in range(6):
        graph.load([{"type": "Photo", "data": {"name": f"p{at}", "data": "base64:AAAA"}}], mode="merge")
    assert [part.rows for part in made_of(graph, "node:Photo").parts] == [1] * 6


@pytest.mark.usefixtures("grouping")
def test_a_storage_that_fails_at_any_durable_write_leaves_all_of_the_write_or_nothing(graph: Graph) -> None:
    writes = writes_of(copied(graph))
    assert writes.count("commit table") == 2  # the fold, and the rows
    for ordinal in range(1, len(writes) + 1):
        uri = copied(graph)
        handle = omnigraph.open(uri)
        with at_write(ordinal, refuse):
            try:
                done = bool(ADD.run(handle).commit)
            except OmnigraphError:
                done = False
        found = len(contents(store_of(omnigraph.open(uri).uri))[PERSON]) - READY
        assert found >= done
        _is_whole(uri, READY + found)


@pytest.mark.usefixtures("grouping")
def test_a_death_at_any_durable_write_leaves_all_of_it_or_nothing(graph: Graph) -> None:
    ordinals = range(1, len(writes_of(copied(graph))) + 1)
    deaths = [Death(copied(graph), ADD, ordinal) for ordinal in ordinals]
    die(deaths)
    found = []
    for death in deaths:
        shown = len(contents(store_of(death.uri))[PERSON]) - READY
        omnigraph.open(death.uri)
        found.append(len(contents(store_of(death.uri))[PERSON]) - READY)
        assert found[-1] >= shown, "once the row is there, it stays"
        _is_whole(death.uri, READY + found[-1])
    assert found == sorted(found)
    assert {*found} == {0, 1}


@pytest.mark.slow
def test_on_an_object_store_a_death_between_the_fold_and_the_rows_leaves_nothing(s3_uri: str) -> None:
    """And one after them leaves all of it, though no process but the dead one knows of the second version."""
    almost(s3_uri)
    writes = writes_of(on_s3(s3_uri))
    tables = [number for number, name in enumerate(writes, start=1) if name == "commit table"]
    deaths = [Death(on_s3(s3_uri), ADD, ordinal) for ordinal in (tables[1], tables[1] + 1)]
    die(deaths)
    for death, there in zip(deaths, (0, 1), strict=True):
        graph = Graph(after_a_lifetime(store_of(death.uri)), read_only=False)
        assert_settled(store_of(death.uri))
        assert len(contents(store_of(death.uri))[PERSON]) == READY + there
        assert add(graph, 50).commit


def _is_whole(uri: str, rows: int) -> None:
    """After any failure: the graph opens, has its rows, can be written, and folds again in the end."""
    graph, store = omnigraph.open(uri), store_of(uri)
    assert_settled(store)
    assert len(contents(store)[PERSON]) == rows
    for at in range(100, 108):
        add(graph, at)
    assert_settled(store)
    assert len(contents(store)[PERSON]) == rows + 8
    assert len(sizes(graph)) <= 8
    assert omnigraph.open(uri, read_only=True).doctor(deep=True).is_healthy


def test_a_group_with_a_fold_that_stopped_half_way_is_finished_by_the_next_open(graph: Graph) -> None:
    store = store_of(graph.uri)
    plans = [inserting(store, {PERSON: [{"id": name, "name": name, "age": 1}]}) for name in ("one", "two")]
    queue, waiting = Queue(None), [Waiting(fold.with_folds(store, one, 6)) for one in plans]
    for one in waiting:
        queue.join(one)

    def crash() -> None:
        raise CrashError

    with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash), pytest.raises(CrashError):
        lead(store, queue, None, None)
    graph = omnigraph.open(graph.uri)
    assert sizes(graph) == [READY, 1, 1]
    moved = [outcome for row in store.audit.rows() for outcome in row.outcomes]
    assert [(one.from_version, one.to_version) for one in moved] == [(READY + 1, READY + 3), (READY + 3, READY + 4)]
    assert_settled(store)


# Which fragments -----------------------------------------------------------------------------------


def layout(*parts: tuple[int, int | None], covered: int = 0) -> TableLayout:
    found = tuple(FragmentSize(at, rows, 0, size) for at, (rows, size) in enumerate(parts))
    return TableLayout(found, {"id_btree": (Segment("s", frozenset(range(covered))),)} if covered else {})


@pytest.mark.parametrize(
    "made_of, chosen",
    [
        (layout(), ()),
        (layout(*[(1, 900)] * 5), (0, 1, 2, 3, 4)),
        (layout((9, 900), *[(1, 900)] * 5, covered=1), (1, 2, 3, 4, 5)),
        (layout((9, 2**18), *[(1, 900)] * 5), (1, 2, 3, 4, 5)),
        (layout((9, None), *[(1, 900)] * 5), (1, 2, 3, 4, 5)),
        (layout((fold.INDEXED, 900), *[(1, 900)] * 5), (1, 2, 3, 4, 5)),
        (layout((1, 900), (9, 2**18), (1, 900)), (2,)),
    ],
)
def test_a_commit_rewrites_no_more_than_one_read_brings(made_of: TableLayout, chosen: tuple[int, ...]) -> None:
    assert fold.small_tail(made_of) == chosen
