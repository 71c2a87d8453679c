"""Folding: a writer merges what small commits have left of the tables it writes, and no answer changes."""

from __future__ import annotations

import logging
import shutil
import threading
import uuid
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.results import TableVersion
from omnigraph.commit.plan import gates_for
from omnigraph.errors import HistoryReclaimedError, OptionError, PreconditionFailedError, StorageFullError
from omnigraph.graph import Graph
from omnigraph.maintenance import fold
from omnigraph.storage.layout import FragmentSize, Segment, TableLayout
from tests.maintenance.scene import PERSON, at_each, cleaned, coverage, made_of, table_of, whenever
from tests.support.faults import assert_settled, refuse
from tests.support.graphs import contents
from tests.support.mutations import Death, Query, at_write, die, once_prepared, store_of
from tests.support.templates import Templates

SCHEMA = "node Person { name: String @key  age: I32? @index } edge Knows: Person -> Person"
READY = 14  # commits; with the next one the table has as many versions as make a fold due
ADD = Query('() { insert Person { name: "last", age: 99 } }')


def almost(uri: str | Path) -> Graph:
    """A graph whose next commit makes a fold due."""
    graph = omnigraph.init(uri, SCHEMA)
    for at in range(READY):
        add(graph, at)
    return graph


def add(graph: Graph, at: int, branch: str = "main") -> Any:
    return graph.mutate(f'query add() {{ insert Person {{ name: "p{at}", age: {at} }} }}', branch=branch)


@pytest.fixture(autouse=True)
def _nothing_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here tails grow until they get a commit of their own."""
    monkeypatch.setattr("omnigraph.graph._FOLD_WITHIN", 2**32)


@pytest.fixture
def graph(templates: Templates, tmp_path: Path) -> Graph:
    return templates.copy("almost", almost, tmp_path / "g")


def sizes(graph: Graph, branch: str = "main") -> list[int]:
    return [part.rows for part in made_of(graph, PERSON, branch).parts]


def rows_with_ids(graph: Graph, branch: str = "main") -> Any:
    """All that identifies a row: its number in the table, and the version that wrote it."""
    dataset = store_of(graph.uri).tables.own_handle(table_of(graph, PERSON, branch))
    columns = ["id", "age", "_row_last_updated_at_version"]
    return dataset.scanner(columns=columns, with_row_id=True).to_table().to_pylist()


def commit_id(made: Any) -> str:
    assert made.commit
    return str(made.commit.commit_id)


def folds(graph: Graph, branch: str = "main") -> list[omnigraph.Commit]:
    return [commit for commit in graph.commits(branch) if commit.actor_id == fold.ACTOR]


# What a fold does ----------------------------------------------------------------------------------


def test_the_commit_that_passes_the_bound_is_followed_by_one_that_merges_what_it_left(graph: Graph) -> None:
    before = rows_with_ids(graph)
    assert sizes(graph) == [1] * READY
    done = ADD.run(graph)
    assert sizes(graph) == [READY + 1]
    assert rows_with_ids(graph)[:-1] == before
    newest, second = graph.commits()[:2]
    assert second == done.commit
    assert (newest.actor_id, newest.is_maintenance, newest.parent_id) == (fold.ACTOR, True, second.commit_id)
    assert_settled(store_of(graph.uri))


def test_later_commits_are_folded_with_what_was_folded_before(graph: Graph) -> None:
    for at in range(READY, READY + 34):
        add(graph, at)
    assert sizes(graph) == [READY + 17 + 14, *[1] * 3]
    assert len(folds(graph)) == 3
    assert_settled(store_of(graph.uri))


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_without_upkeep_nothing_is_folded(graph: Graph, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "environment":
        monkeypatch.setenv("OMNIGRAPH_UPKEEP", "off")
    ADD.run(omnigraph.open(graph.uri, upkeep="off" if how == "argument" else None))
    assert sizes(graph) == [1] * (READY + 1)
    with pytest.raises(OptionError, match="unknown upkeep 'sometimes'"):
        omnigraph.open(graph.uri, upkeep="sometimes")


def test_loads_updates_and_merges_fold_as_well(graph: Graph) -> None:
    graph.create_branch("feature")
    add(graph, 50, "feature")
    assert sizes(graph, "feature") == [READY + 1], "a branch folds its own copy"
    assert sizes(graph) == [1] * READY
    graph.load([{"type": "Person", "data": {"name": "p3", "age": -3}}], mode="merge")
    assert sizes(graph) == [READY]
    assert graph.merge("feature").commit
    found = {row["id"]: row["age"] for row in contents(store_of(graph.uri))[PERSON]}
    assert found == {**{f"p{at}": at for at in range(READY)}, "p3": -3, "p50": 50}
    assert_settled(store_of(graph.uri))
    assert_settled_fork(graph, "feature")


def assert_settled_fork(graph: Graph, branch: str) -> None:
    entry = table_of(graph, PERSON, branch)
    assert store_of(graph.uri).tables.head(entry.path, entry.branch).version == entry.version


def test_a_tail_of_many_rows_is_indexed_and_segments_stay_few(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "INDEXED", 8)
    for at in range(READY, READY + 95):
        add(graph, at)
    layout = made_of(graph, PERSON)
    assert len(folds(graph)) == 7
    assert set(layout.indices) == {"id_btree", "name_btree", "age_btree"}
    assert max(len(segments) for segments in layout.indices.values()) <= 3
    covered = layout.covered("id_btree")
    assert sum(part.rows for part in layout.parts if part.number in covered) >= READY + 95 - 16
    assert len(layout.parts) <= 16 + 3
    assert [row["age"] for row in contents(store_of(graph.uri))[PERSON]] == [
        age for _, age in sorted((f"p{at}", at) for at in range(READY + 95))
    ]
    found = graph.query('query q() { match { $p: Person { name: "p77" } } return { $p.age } }').rows
    assert found == [{"p.age": 77}]
    assert graph.doctor(deep=True).is_healthy
    assert graph.optimize().commit
    assert all(coverage(graph, PERSON).values())


# Others --------------------------------------------------------------------------------------------


def test_a_fold_gives_way_to_another_writer_and_leaves_no_file(graph: Graph) -> None:
    other, meanwhile = store_of(graph.uri), ExitStack()
    with (
        meanwhile,
        whenever("rewrite fragments", lambda: meanwhile.enter_context(other.gates.hold(gates_for(None, ())))),
    ):
        assert ADD.run(graph).commit
    assert sizes(graph) == [1] * (READY + 1)
    files = other.objects.list_below(f"{table_of(graph, PERSON).path}/data")
    assert len(files) == READY + 1
    assert not folds(graph)


def test_a_fold_of_a_long_tail_waits_for_its_turn(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "URGENT", READY)
    other, taken, let_go = store_of(graph.uri), threading.Event(), threading.Event()

    def hold() -> None:
        with other.gates.hold(gates_for(None, ())):
            taken.set()
            assert let_go.wait(60)

    holder = threading.Thread(target=hold)

    def take() -> None:
        holder.start()
        assert taken.wait(60)
        threading.Timer(0.05, let_go.set).start()

    with whenever("rewrite fragments", take):
        ADD.run(graph)
    holder.join()
    assert sizes(graph) == [READY + 1]


def test_rows_that_others_add_during_a_fold_stay(graph: Graph) -> None:
    other = omnigraph.open(graph.uri, upkeep="off")
    with whenever("rewrite fragments", lambda: add(other, 70)):
        ADD.run(graph)
    assert sorted(sizes(graph)) == [1, READY + 1]
    assert len(contents(store_of(graph.uri))[PERSON]) == READY + 2
    assert_settled(store_of(graph.uri))


def test_a_row_that_is_deleted_during_a_fold_stays_deleted(graph: Graph, caplog: pytest.LogCaptureFixture) -> None:
    other = omnigraph.open(graph.uri, upkeep="off")
    gone = Query('() { delete Person where name = "p3" }')
    with whenever("rewrite fragments", lambda: gone.run(other)), caplog.at_level(logging.INFO):
        assert ADD.run(graph).commit
    assert "were not folded" in caplog.text
    assert "p3" not in {row["id"] for row in contents(store_of(graph.uri))[PERSON]}
    assert_settled(store_of(graph.uri))


# Failures ------------------------------------------------------------------------------------------


def writes_of(uri: str) -> list[str]:
    with at_write(0, refuse) as writes:
        ADD.run(omnigraph.open(uri))
    return writes


def copied(graph: Graph) -> str:
    return str(shutil.copytree(graph.uri, Path(graph.uri).with_name(uuid.uuid4().hex)))


def test_a_storage_that_fails_at_any_durable_write_of_a_fold_leaves_the_write_acknowledged(graph: Graph) -> None:
    writes = writes_of(copied(graph))
    first = writes.index("rewrite fragments") + 1
    assert {"write", "commit table", "publish", "delete"} <= {*writes[first:]}
    for ordinal in range(first, len(writes) + 1):
        uri = copied(graph)
        with at_write(ordinal, refuse):
            done = ADD.run(omnigraph.open(uri))
        assert done.commit
        _is_whole(uri, READY + 1)


def full() -> None:
    raise StorageFullError("no space is left", path="", operation="test")


def test_a_disk_that_fills_up_during_a_fold_costs_nothing_but_the_fold(
    graph: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    before = len(contents(store_of(graph.uri))[PERSON])
    with whenever("rewrite fragments", full):
        assert ADD.run(graph).commit
    assert "no space is left" in caplog.text
    assert not folds(graph)
    _is_whole(graph.uri, before + 1)


def test_a_file_that_a_full_disk_cut_short_is_never_published_by_a_fold(
    graph: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    """Lance may not notice that a disk is full: then the length of the file shows it."""
    before, cut = len(contents(store_of(graph.uri))[PERSON]), list[Path]()
    files = Path(graph.uri, table_of(graph, PERSON).path, "data")

    def cut_short() -> None:
        if folding and not cut:
            newest = max(files.iterdir(), key=lambda path: path.stat().st_mtime_ns)
            newest.write_bytes(newest.read_bytes()[:-1])
            cut.append(newest)

    folding = list[str]()
    with at_each({"rewrite fragments": lambda: folding.append("now"), "write": cut_short}):
        assert ADD.run(graph).commit
    assert cut
    assert "the disk is full" in caplog.text
    assert not folds(graph)
    _is_whole(graph.uri, before + 1)


def test_a_death_at_any_durable_write_of_a_write_that_folds_leaves_all_of_it_or_nothing(graph: Graph) -> None:
    ordinals = range(1, len(writes_of(copied(graph))) + 1)
    deaths = [Death(copied(graph), ADD, ordinal) for ordinal in ordinals]
    die(deaths)
    published = [len(contents(store_of(death.uri))[PERSON]) - READY for death in deaths]
    assert published == sorted(published), "once the row is there, it stays"
    assert {*published} == {0, 1}
    for death, there in zip(deaths, published, strict=True):
        omnigraph.open(death.uri)
        found = len(contents(store_of(death.uri))[PERSON]) - READY
        assert found >= there
        _is_whole(death.uri, READY + found)


def _is_whole(uri: str, rows: int) -> None:
    """After any failure: the graph opens, has its rows, can be written, and folds again in the end."""
    graph = omnigraph.open(uri)
    store = store_of(uri)
    assert_settled(store)
    assert len(contents(store)[PERSON]) == rows
    for at in range(100, 117):
        add(graph, at)
    assert_settled(store)
    assert len(contents(store)[PERSON]) == rows + 17
    assert len(sizes(graph)) <= 17
    assert omnigraph.open(uri, read_only=True).doctor(deep=True).is_healthy


# History -------------------------------------------------------------------------------------------


def test_who_relied_on_its_own_commit_need_not_read_again(graph: Graph) -> None:
    done = ADD.run(graph)
    assert folds(graph)
    again = graph.mutate('query add() { insert Person { name: "z" } }', if_commit=commit_id(done))
    assert again.commit
    with pytest.raises(PreconditionFailedError):
        graph.mutate('query add() { insert Person { name: "y" } }', if_commit=commit_id(done))


def test_history_across_a_fold_shows_what_was_changed_and_nothing_else(graph: Graph) -> None:
    start = graph.change_cursor(graph.commits()[0].commit_id)
    past = graph.commits()[3].commit_id
    then = graph.at(past).query("query q() { match { $p: Person } return { count($p) as n } }").rows
    done = ADD.run(graph)
    folded = folds(graph)[0]
    changes = [change for block in graph.changes(cursor=start).blocks for change in block.changes]
    assert [(change.operation, change.id) for change in changes] == [("insert", "last")]
    assert not list(graph.diff(commit_id(done), folded.commit_id))
    assert {change.id for change in graph.diff(past, "main")} == {"last", *(f"p{at}" for at in range(READY - 3, READY))}
    assert graph.at(past).query("query q() { match { $p: Person } return { count($p) as n } }").rows == then
    assert graph.revert(commit_id(done)).commit
    assert "last" not in {row["id"] for row in contents(store_of(graph.uri))[PERSON]}


def test_a_branch_that_was_folded_has_nothing_to_merge(graph: Graph) -> None:
    graph.create_branch("feature")
    add(graph, 50, "feature")
    graph.merge("feature")
    before = contents(store_of(graph.uri))
    head = graph.commits()[0]
    for at in range(51, 70):
        add(graph, at, "feature")
        graph.mutate(f'query q() {{ delete Person where name = "p{at}" }}', branch="feature")
    graph.merge("feature")
    assert contents(store_of(graph.uri)) == before
    assert graph.at(head.commit_id).commit == head


def test_a_reader_that_began_before_folds_and_a_cleanup_reads_its_state_or_is_refused(graph: Graph) -> None:
    count = "query q() { match { $p: Person } return { count($p) as n } }"
    pinned = graph.at("main")
    for at in range(READY, READY + 20):
        add(graph, at)
    assert pinned.query(count).rows == [{"n": READY}]
    cleaned(store_of(graph.uri), keep=1)
    with pytest.raises(HistoryReclaimedError):
        omnigraph.open(graph.uri).at(commit_id(pinned)).query(count)
    assert graph.query(count).rows == [{"n": READY + 20}]


@pytest.mark.parametrize("how", ["merge", "revert", "delete", "cleanup", "optimize"])
def test_a_fold_in_the_middle_of_another_operation_changes_no_answer(
    templates: Templates, tmp_path: Path, how: str
) -> None:
    """The same with folds and without them."""
    found = []
    for upkeep in ("auto", "off"):
        uri = str(tmp_path / upkeep)
        templates.copy("almost", almost, uri)
        graph = omnigraph.open(uri, upkeep=upkeep)
        graph.create_branch("feature")
        graph.mutate('query q() { update Person set { age: 77 } where name = "p2" }', branch="feature")
        other = omnigraph.open(uri, upkeep=upkeep)
        with once_prepared(partial(ADD.run, other)):
            _run(how, graph)
        assert bool(folds(graph)) == (upkeep == "auto")
        assert_settled(store_of(uri))
        found.append([contents(store_of(uri), branch) for branch in [None, *graph.branches()[1:]]])
    assert found[0] == found[1]


def _run(how: str, graph: Graph) -> None:
    match how:
        case "merge":
            graph.merge("feature")
        case "revert":
            graph.revert(graph.commits()[5].commit_id)
        case "delete":
            add(graph, 80, "feature")
            graph.delete_branch("feature")
        case "cleanup":
            add(graph, 80)
            cleaned(store_of(graph.uri), keep=1)
        case "optimize":
            add(graph, 80)
            graph.optimize()


# Which fragments -----------------------------------------------------------------------------------


def layout(*sizes: int, covered: int = 0) -> TableLayout:
    parts = tuple(FragmentSize(at, rows, 0) for at, rows in enumerate(sizes))
    return TableLayout(parts, {"id_btree": (Segment("s", frozenset(range(covered))),)} if covered else {})


@pytest.mark.parametrize(
    "made_of, chosen",
    [
        (layout(), ()),
        (layout(*[1] * 9), tuple(range(9))),
        (layout(70_000, *[1] * 9), tuple(range(1, 10))),
        (layout(100, *[1] * 9, covered=1), tuple(range(1, 10))),
        (layout(4_000, *[1] * 9), tuple(range(10))),
        (layout(5_000, *[1] * 9), tuple(range(1, 10))),
        (layout(5_000, *[1_000] * 9), tuple(range(10))),
        (layout(*[5_000, 1] * 5), tuple(range(10))),
    ],
)
def test_the_tail_ends_at_an_index_or_at_a_fragment_that_is_large_beside_it(
    made_of: TableLayout, chosen: tuple[int, ...]
) -> None:
    assert fold.tail(made_of) == chosen


def test_an_indexed_fragment_is_folded_again_with_one_that_is_not_much_smaller() -> None:
    assert fold.with_indexed(layout(70_000, 9_000, 4_000, 5_000, covered=3), (3,)) == (1, 2, 3)
    assert fold.with_indexed(layout(50_000, 5_000, covered=1), (1,)) == (1,)


def test_a_graph_that_has_no_table_of_a_type_yet_is_left_alone(graph: Graph) -> None:
    assert table_of(graph, PERSON) == TableVersion(PERSON, table_of(graph, PERSON).path, READY + 1, None)
