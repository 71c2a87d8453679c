"""Loads that do not run smoothly: death at any durable write, rivals, tasks and workers that fail, changing files."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.results import Commit
from omnigraph.errors import (
    ExpectedVersionMismatchError,
    InputChangedError,
    InputError,
    KeyConflictError,
    LoadRejectedError,
    StorageError,
)
from omnigraph.graph import Graph
from omnigraph.ingest import steps as pipeline_steps
from omnigraph.storage import observe
from tests.support import steps
from tests.support.faults import assert_settled, failing
from tests.support.graphs import heads_and_pins
from tests.support.loads import (
    PIPELINE,
    SMALL,
    SPARK,
    SPLIT,
    Death,
    Order,
    Race,
    by_pipeline,
    copied,
    die,
    difference,
    edge,
    lines,
    load_by,
    look,
    make_graph,
    node,
    nothing_changes,
    race_of_processes,
    race_of_threads,
    rows_of,
    spelled,
    stage_failing_last,
    stage_failing_once,
    store_of,
    writes_of,
)
from tests.support.spark import PATIENCE, Cluster, program

APPEND = lines(
    node("Person", name="Eve", age=22),
    node("Person", name="Frank"),
    edge("Knows", "Eve", "Alice"),
    edge("Knows", "Frank", "Eve", id="k9"),
)
MERGE = lines(
    node("Person", name="Alice", age=31),
    node("Person", name="Eve"),
    edge("Knows", "Eve", "Alice", id="k1"),
    edge("Knows", "Eve", "Bob", id="k9"),
    edge("Knows", "Eve", "Diana", id="k9"),
)
OVERWRITE = lines(
    node("Person", name="Alice", age=31),
    node("Person", name="Bob"),
    edge("Knows", "Alice", "Bob", id="k1"),
)
INPUTS = {"append": APPEND, "merge": MERGE, "overwrite": OVERWRITE}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = tmp_path_factory.mktemp("graphs") / "people"
    make_graph("people", uri)
    return str(uri)


@pytest.fixture
def people(template: str) -> Graph:
    return omnigraph.open(copied(template))


def written(folder: Path, text: str, name: str = "input.jsonl") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def rows_at(uri: str) -> Counter[str]:
    return Counter(spelled(key, row) for key, found in rows_of(store_of(uri)).items() for row in found)


# Deaths of the driver


@dataclass(frozen=True, slots=True)
class Facts:
    version: int
    heads: dict[str, tuple[int, int]]
    commits: tuple[Commit, ...]
    audit: tuple[str, ...]


def opened(uri: str) -> Facts:
    omnigraph.open(uri)
    store = store_of(uri)
    assert_settled(store)
    state = store.manifest.load()
    audit = tuple(row.kind.value for row in store.audit.rows())
    return Facts(state.version, heads_and_pins(store), tuple(state.commits()), audit)


@pytest.mark.parametrize("mode", INPUTS)
def test_a_load_whose_driver_dies_at_any_durable_write_happened_whole_or_not_at_all(
    template: str, tmp_path: Path, mode: str
) -> None:
    file = str(written(tmp_path, INPUTS[mode]))
    done = copied(template)
    writes = writes_of(done, file, mode)
    states = {"before": rows_at(template), "after": rows_at(done)}
    deaths = [Death(copied(template), file, mode, ordinal) for ordinal in range(1, len(writes) + 1)]

    die(deaths)

    moved = writes.index("stage")  # all tables: from here on recovery finishes the load
    for at, death in enumerate(deaths):
        assert opened(death.uri) == (first := opened(death.uri)), "to recover twice is not the same as once"
        assert first.audit == _recovered(at, writes), (at, writes[at])
        assert rows_at(death.uri) == states["before" if at < moved else "after"], (at, writes[at])
        _takes_the_next_load(death.uri)


def _recovered(at: int, writes: list[str]) -> tuple[str, ...]:
    """What recovery has to do: something as long as there is a record, which is written before the tables move."""
    written, moved = writes.index("commit table") - 1, writes.index("stage")
    if not written < at <= writes.index("publish") + 1:
        return ()
    return ("RolledBack",) if at < moved else ("RolledForward",)


def _takes_the_next_load(uri: str) -> None:
    graph = omnigraph.open(uri)
    head = graph.commits()[0]
    done = load_by(PIPELINE, graph, [node("Company", name="Next")], "append")
    assert done.commit
    assert done.commit.parent_id == head.commit_id
    assert_settled(store_of(uri))


@pytest.mark.parametrize("way", [SMALL, PIPELINE])
def test_a_load_whose_temporary_files_cannot_be_deleted_has_happened_all_the_same(people: Graph, way: str) -> None:
    with failing("delete", "__tmp"):
        done = load_by(way, people, [node("Company", name="Next")], "append")
    assert done.commit == people.commits()[0]


def test_a_load_that_cannot_write_its_rows_changes_nothing(people: Graph, tmp_path: Path) -> None:
    file = written(tmp_path, MERGE)
    with nothing_changes(people, PIPELINE), failing("write rows", "", after=1, times=1), pytest.raises(StorageError):
        load_by(PIPELINE, people, file, "merge")


def test_a_load_that_cannot_move_all_its_tables_moves_none(people: Graph, tmp_path: Path) -> None:
    before = look(people)
    with failing("commit table", "", after=1, times=1), pytest.raises(StorageError):
        load_by(PIPELINE, people, written(tmp_path, MERGE), "merge")
    assert look(people).rows == before.rows
    _takes_the_next_load(people.uri)


# Files that change


def test_a_file_that_changes_while_it_is_read_is_noticed(people: Graph, tmp_path: Path) -> None:
    file = written(tmp_path, APPEND)

    def change() -> None:
        file.write_text(APPEND.replace("Frank", "Fritz"), encoding="utf-8")

    with (
        nothing_changes(people, PIPELINE),
        once_writing("write rows", change),
        pytest.raises(InputChangedError) as caught,
    ):
        load_by(PIPELINE, people, file, "append")
    assert caught.value.path == str(file)
    assert "input.jsonl" in caught.value.message


def test_a_file_that_goes_away_while_it_is_read_is_named(people: Graph, tmp_path: Path) -> None:
    file = written(tmp_path, APPEND)
    with (
        nothing_changes(people, PIPELINE),
        once_writing("write rows", file.unlink),
        pytest.raises(InputError) as caught,
    ):
        load_by(PIPELINE, people, file, "append")
    assert caught.value.path == str(file)


@contextmanager
def once_writing(operation: str, action: Callable[[], object]) -> Iterator[None]:
    """Act before the first durable write of a kind."""
    left = [action]

    def hook(tried: str, _: str) -> None:
        if tried.startswith(operation) and left:
            left.pop()()

    previous = observe.set_write_hook(hook)
    try:
        yield
        assert not left, f"there was no '{operation}'"
    finally:
        observe.set_write_hook(previous)


# Rivals


def test_a_load_and_eight_mutations_at_once_are_all_acknowledged_and_make_one_chain(people: Graph) -> None:
    store = store_of(people.uri)
    crowd = [node("Person", name=f"p{at}") for at in range(40)]
    friends = [edge("Knows", f"p{at}", "Alice") for at in range(40)]
    start = threading.Barrier(9, timeout=300)

    def load() -> Commit | None:
        start.wait()
        return omnigraph.open(people.uri).load([*crowd, *friends], mode="merge", engine="local").commit

    def mutate(at: int) -> Commit | None:
        graph = omnigraph.open(people.uri)
        start.wait()
        text = f'query q() {{ insert Person {{ name: "m{at}" }} insert Knows {{ from: "m{at}", to: "Bob" }} }}'
        return graph.mutate(text).commit

    before = look(people)
    with by_pipeline(split=500), ThreadPoolExecutor(9) as pool:
        futures = [pool.submit(load), *(pool.submit(mutate, at) for at in range(8))]
        commits = [future.result() for future in futures]

    after = look(people)
    told = {commit.commit_id for commit in commits if commit}
    assert len(told) == 9
    assert set(after.commits) == told | {*before.commits}
    assert len(after.commits) == len(before.commits) + 9
    new = difference(before, after)
    assert Counter(line.split("#")[0].split(" ")[1] for line in new) == {"Person": 48, "Knows": 48}
    assert all(line.startswith("+ ") for line in new)
    assert_settled(store)


def insert(uri: str, text: str) -> Callable[[], object]:
    return lambda: omnigraph.open(uri).mutate(f"query rival() {{ {text} }}")


@pytest.mark.parametrize("way", [SMALL, PIPELINE])
def test_a_load_sees_what_was_committed_while_it_was_prepared(people: Graph, way: str) -> None:
    taken = insert(people.uri, 'insert Person { name: "Eve" }')
    with rival(way, taken), pytest.raises(KeyConflictError) as caught:
        load_by(way, people, [node("Person", name="Dora"), node("Person", name="Eve", age=1)], "append")

    assert [problem.line for problem in caught.value.violations] == [2]
    assert [row["name"] for row in rows_of(store_of(people.uri))["node:Person"] if row["name"] > "Diana"] == ["Eve"]
    look(people)


@pytest.mark.parametrize("way", [SMALL, PIPELINE])
def test_a_load_is_not_held_up_by_a_commit_that_does_not_concern_it(people: Graph, way: str) -> None:
    before = look(people)
    with rival(way, insert(people.uri, 'insert Company { name: "Rival" }')):
        load_by(way, people, [node("Person", name="Eve"), edge("Knows", "Eve", "Alice")], "append")

    assert difference(before, look(people)) == [
        "+ Company#Rival name=Rival",
        "+ Knows Eve -> Alice",
        "+ Person#Eve name=Eve",
    ]


@pytest.mark.parametrize("way", [SMALL, PIPELINE])
def test_a_load_whose_endpoint_goes_meanwhile_is_refused(people: Graph, way: str) -> None:
    gone = insert(people.uri, 'delete Person where name = "Diana"')
    with rival(way, gone), pytest.raises(LoadRejectedError) as caught:
        load_by(way, people, [node("Person", name="Eve"), edge("Knows", "Eve", "Diana")], "merge")

    assert [(problem.rule, problem.line) for problem in caught.value.violations] == [("endpoint", 2)]
    look(people)


@pytest.mark.parametrize("way", [SMALL, PIPELINE])
def test_an_overwrite_does_not_wipe_out_what_it_has_not_seen(people: Graph, way: str) -> None:
    with (
        rival(way, insert(people.uri, 'insert Knows { from: "Diana", to: "Bob" }')),
        pytest.raises(ExpectedVersionMismatchError),
    ):
        load_by(way, people, [edge("Knows", "Alice", "Bob")], "overwrite")

    assert "Knows Diana -> Bob" in look(people).rows


def rival(way: str, action: Callable[[], object]) -> AbstractContextManager[None]:
    """Have somebody commit when a load has begun and has not published yet."""
    return once_writing("stage " if way == SMALL else "write rows", action)


# Two loads at once

SAME = lines(node("Person", name="Eve", age=1), node("Person", name="Frank"), edge("Knows", "Eve", "Frank", id="k9"))
OTHER = lines(node("Person", name="Eve", age=2), node("Person", name="Greta"), edge("Knows", "Eve", "Alice", id="k9"))


@pytest.mark.parametrize("race", [race_of_threads, race_of_processes])
def test_of_two_appends_of_one_key_one_is_done_and_one_refused(people: Graph, tmp_path: Path, race: Race) -> None:
    before = look(people)
    orders = [Order(people.uri, str(written(tmp_path, text, f"{at}.jsonl")), "append") for at, text in enumerate(TWO)]

    ends = race(orders)

    after = look(people)
    assert sorted(type(end).__name__ for end in ends) == ["KeyConflictError", "str"]
    (commit,) = (end for end in ends if isinstance(end, str))
    (refusal,) = (end for end in ends if isinstance(end, KeyConflictError))
    assert after.commits == [commit, *before.commits]
    assert [(problem.entity_id, problem.line) for problem in refusal.violations] == [("Eve", 1), ("k9", 3)]
    assert difference(before, after) == NEW[ends.index(commit)]


@pytest.mark.parametrize("race", [race_of_threads, race_of_processes])
def test_of_two_merges_both_are_done_and_nothing_is_mixed(people: Graph, tmp_path: Path, race: Race) -> None:
    before = look(people)
    orders = [Order(people.uri, str(written(tmp_path, text, f"{at}.jsonl")), "merge") for at, text in enumerate(TWO)]

    ends = race(orders)

    after = look(people)
    second, first = after.commits[:2]
    assert {first, second} == {*ends}
    assert after.commits[2:] == before.commits
    later, earlier = NEW[ends.index(second)], NEW[ends.index(first)]
    assert difference(before, after) == sorted({*later} | {line for line in earlier if "Eve" not in line})


TWO = (SAME, OTHER)
NEW = (
    ["+ Knows#k9 Eve -> Frank", "+ Person#Eve age=1 name=Eve", "+ Person#Frank name=Frank"],
    ["+ Knows#k9 Eve -> Alice", "+ Person#Eve age=2 name=Eve", "+ Person#Greta name=Greta"],
)


# Tasks and workers that fail


@pytest.mark.usefixtures("spark")
def test_tasks_that_fail_once_on_spark_change_nothing_about_the_result(
    people: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, MERGE)
    expected = _loaded_smoothly(people, file)
    monkeypatch.setattr(pipeline_steps, "stage", stage_failing_once)

    done = load_by(SPARK, people, file, "merge")

    failed = len(list(tmp_path.glob("_failed-*")))
    assert failed >= 4
    assert (done.nodes, done.edges) == ({"Person": 2}, {"Knows": 2})
    assert look(people).rows == expected


@pytest.mark.usefixtures("spark")
def test_a_job_that_fails_on_spark_leaves_no_file_of_the_tasks_that_succeeded(
    people: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(people.uri)
    monkeypatch.setattr(pipeline_steps, "stage", stage_failing_last)

    with pytest.raises(StorageError):
        load_by(SPARK, people, written(tmp_path, MERGE), "merge")

    assert list(tmp_path.glob("_done-*")), "a task succeeded"
    assert files(people.uri) == before


def files(uri: str) -> set[str]:
    return {str(path) for path in Path(uri).rglob("*") if path.is_file() and "__gates" not in path.parts}


DRIVER = f"""
import sys
import omnigraph
from omnigraph.formats import sources
from omnigraph.ingest import steps
from tests.support import loads
steps.stage, sources.SPLIT = loads.stage_meeting, {SPLIT}
done = omnigraph.open(sys.argv[1]).load(
    sys.argv[2], mode="merge", engine="spark", master=sys.argv[3], conf={{"spark.executor.memory": "512m"}}
)
print(done.commit.commit_id)
"""


def test_a_worker_that_is_killed_in_the_middle_of_a_load_changes_nothing_about_the_result(
    people: Graph, tmp_path: Path, spark_cluster: Cluster
) -> None:
    file = written(tmp_path, MERGE)
    expected, before = _loaded_smoothly(people, file), look(people)
    meeting = tmp_path / "meeting"
    meeting.mkdir()

    with program(DRIVER, people.uri, str(file), spark_cluster.master) as driver:
        processes = steps.begun(meeting, 2)
        spark_cluster.kill_a_worker()
        steps.ended(processes, at_least=1)
        (meeting / "go").touch()
        out, err = driver.communicate(timeout=PATIENCE)

    after = look(people)
    assert err == ""
    assert after.commits == [out.strip(), *before.commits]
    assert after.rows == expected
    tasks = -(-file.stat().st_size // SPLIT)
    assert len(list(meeting.glob("*.begun"))) > tasks, "no task was run again"


def _loaded_smoothly(graph: Graph, file: Path) -> Counter[str]:
    """What a graph holds after a load that nothing happens to."""
    other = omnigraph.open(copied(graph.uri))
    load_by(SMALL, other, file, "merge")
    return look(other).rows
