"""Which state of the graph a query reads: the branch as it is, a commit as it was, and one state from start to end."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pytest

import omnigraph
from omnigraph.api.results import Commit
from omnigraph.api.rows import Result
from omnigraph.commit.store import Store
from omnigraph.errors import BranchNotFoundError, CommitNotFoundError, GraphNotFoundError
from omnigraph.graph import Graph
from omnigraph.lang import ir
from omnigraph.manifest.publisher import Changes, Lineage
from omnigraph.query.frame import Frame
from omnigraph.query.match import Matcher
from omnigraph.query.view import TableCache
from omnigraph.storage.observe import counted
from tests.support.forks import FORKS
from tests.support.mutations import KNOWS, PERSON, SCHEMA, Rival, compact, store_of

PEOPLE = "query people() { match { $p: Person } return { $p.name, $p.age } order { $p.name } }"
FRIENDS = "query friends() { match { $p: Person  $p knows{1,2} $f } return { $p.name, $f.name } order { $p.name } }"
CHANGES = [
    'query q() { insert Person { name: "Eve", age: 22 } }',
    'query q() { insert Knows { from: "Eve", to: "Alice" } }',
    'query q() { delete Person where name = "Bob" }',
    'query q() { update Person set { age: 99 } where name = "Alice" }',
]
WALKS = "query walks() { match { $p: Person  $p $w:knows $f } return { $p.name, $f.name } order { $p.name, $f.name } }"


def look(graph: Graph, snapshot: str | None = None) -> list[list[dict[str, Any]]]:
    return [graph.query(source, snapshot=snapshot).rows for source in (PEOPLE, FRIENDS)]


def commit_of(found: Result) -> str:
    assert found.commit
    return found.commit.commit_id


# Commits


def test_a_past_commit_stays_what_it_was(people: Graph) -> None:
    seen = {commit_of(people.query(PEOPLE)): look(people)}
    for change in CHANGES:
        people.mutate(change)
        seen[commit_of(people.query(PEOPLE))] = look(people)
    compact(store_of(people.uri), "node:Person")
    assert len({repr(rows) for rows in seen.values()}) == len(seen) == 5

    for graph in (people, omnigraph.open(people.uri, read_only=True)):
        for commit, rows in seen.items():
            assert look(graph, commit) == rows
            assert commit_of(graph.query(PEOPLE, snapshot=commit)) == commit
        assert look(graph) == [*seen.values()][-1]


def test_the_first_commit_holds_nothing(people: Graph) -> None:
    first = people.commits()[-1].commit_id

    assert look(people, first) == [[], []]
    assert people.query(FRIENDS, snapshot=first).to_arrow().schema == people.query(FRIENDS).to_arrow().schema


@pytest.mark.parametrize("commit", ["01JZZZZZZZZZZZZZZZZZZZZZZZ", "", "mian", "1"])
def test_an_unknown_commit_is_an_error(people: Graph, commit: str) -> None:
    with pytest.raises(CommitNotFoundError) as caught:
        people.query(PEOPLE, snapshot=commit)
    assert caught.value.commit_id == commit


def test_an_unknown_branch_is_an_error(people: Graph) -> None:
    with pytest.raises(BranchNotFoundError):
        people.query(PEOPLE, branch="nowhere")
    with pytest.raises(BranchNotFoundError):
        people.query(PEOPLE, branch="nowhere", snapshot=people.commits()[0].commit_id)


def test_others_are_seen_without_a_refresh(people: Graph) -> None:
    reader = omnigraph.open(people.uri, read_only=True)
    before = reader.query(PEOPLE)

    done = people.mutate(CHANGES[0])

    after = reader.query(PEOPLE)
    assert done.commit
    assert (len(after), commit_of(after)) == (len(before) + 1, done.commit.commit_id)


def test_upkeep_changes_no_answer(people: Graph) -> None:
    for at in range(6):
        people.mutate("query q($n: String) { insert Person { name: $n } }", {"n": f"n{at}"})
    people.mutate('query q() { delete Person where name = "n2" }')
    people.mutate('query q() { insert Knows { from: "n4", to: "n1" } }')
    before = look(people)

    for key in ("node:Person", "edge:Knows"):
        compact(store_of(people.uri), key)

    assert look(people) == before


# One state


def test_a_query_holds_its_state_to_the_end(people: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = look(people)[1]
    reader = omnigraph.open(people.uri, read_only=True)
    changes, step = iter(CHANGES), Matcher.step

    def interrupted(self: Matcher, one: ir.MatchStep, frame: Frame) -> Frame:
        for change in changes:
            people.mutate(change)
            break
        return step(self, one, frame)

    monkeypatch.setattr(Matcher, "step", interrupted)
    found = reader.query(FRIENDS)

    assert found.rows == expected
    assert [*changes] == CHANGES[2:], "nobody changed anything meanwhile"


@pytest.mark.slow
@pytest.mark.usefixtures("reading")
def test_threads_share_a_graph(people: Graph) -> None:
    expected = look(people)
    for _ in range(3):
        fresh = omnigraph.open(people.uri, read_only=True)  # so that they fill the cache at once
        ready = threading.Barrier(8)

        def ask(_: int, graph: Graph = fresh, ready: threading.Barrier = ready) -> list[Any]:
            ready.wait(300)
            return [look(graph) for _ in range(5)]

        with ThreadPoolExecutor(8) as pool:
            assert [*pool.map(ask, range(8))] == [[expected] * 5] * 8


def test_threads_read_while_another_writes(people: Graph) -> None:
    done = threading.Event()

    def ask(_: int) -> dict[str, list[Any]]:
        seen: dict[str, list[Any]] = {}
        while not done.wait(0.01):
            found = people.query(PEOPLE)
            assert seen.setdefault(commit_of(found), found.rows) == found.rows
        return seen

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(ask, at) for at in range(3)]
        try:
            for at in range(8):
                people.mutate("query q($n: String) { insert Person { name: $n } }", {"n": f"n{at}"})
        finally:
            done.set()
        seen = [one for reader in readers for one in reader.result(300).items()]
    assert len({commit for commit, _ in seen}) > 2, "nobody saw anything"
    for commit, rows in seen:
        assert people.query(PEOPLE, snapshot=commit).rows == rows


NAMES = "query names() { match { $p: Person } return { $p.name, $p.score } order { $p.name } }"
COMMITS = 50


def read_until_done(uri: str, done: Any) -> dict[tuple[str, str], list[Any]]:
    """Ask again and again; what was answered, by query and commit."""
    graph = omnigraph.open(uri, read_only=True)
    seen: dict[tuple[str, str], list[Any]] = {}
    while not done.wait(0.05):
        for source, key in ((NAMES, PERSON), (WALKS, KNOWS)):
            found = graph.query(source)
            assert seen.setdefault((key, commit_of(found)), found.rows) == found.rows
    return seen


def test_readers_in_other_processes_see_only_whole_commits_of_a_writer(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", SCHEMA)
    graph.mutate('query q() { insert Person { name: "hub" } }')
    with FORKS.Manager() as shared, ProcessPoolExecutor(2, mp_context=FORKS) as pool:
        done = shared.Event()
        readers = [pool.submit(read_until_done, graph.uri, done) for _ in range(2)]
        writer = Rival.process()
        writer.start_many(graph.uri, 1, COMMITS)
        work = writer.outcome()
        done.set()
        seen = [one for reader in readers for one in reader.result(300).items()]
    writer.close()

    stored = partial(_stored, store_of(graph.uri), {commit.commit_id: commit for commit in graph.commits()})
    assert len(work.commits) == COMMITS
    assert len({commit for (_, commit), _ in seen}) > 3, "the readers were too slow to see anything"
    for (key, commit), rows in seen:
        assert rows == stored(commit, key)
    for commit in work.commits[::10]:
        assert graph.query(NAMES, snapshot=commit).rows == stored(commit, PERSON)


def _stored(store: Store, commits: Mapping[str, Commit], commit: str, key: str) -> list[dict[str, Any]]:
    """What a table holds at a commit, read without the query engine."""
    entry = store.manifest.load(None, commits[commit].manifest_version).snapshot.entries[key]
    rows = store.tables.open(entry.table).to_table().to_pylist()
    if key == KNOWS:
        return [{"p.name": ends[0], "f.name": ends[1]} for ends in sorted((row["src"], row["dst"]) for row in rows)]
    return [{"p.name": row["name"], "p.score": row["score"]} for row in sorted(rows, key=lambda row: str(row["name"]))]


# Cost


def test_a_warm_read_opens_no_table_and_makes_one_request_at_most(
    people: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    start = lance.LanceDataset.__init__

    def counting(self: lance.LanceDataset, uri: Any, *arguments: Any, **options: Any) -> None:
        opened.append(str(uri))
        start(self, uri, *arguments, **options)

    monkeypatch.setattr(lance.LanceDataset, "__init__", counting)
    fresh = omnigraph.open(people.uri)
    cold = fresh.query(FRIENDS).rows
    assert opened
    opened.clear()

    with counted() as requests:
        warm = fresh.query(FRIENDS).rows

    assert (warm, opened) == (cold, [])
    assert requests.total <= 1, requests.requests


HALF_WAY = "__recovery/01ARZ3NDEKTSV4RRFFQ69G5FAV.json"


def publish_nothing(graph: Graph) -> None:
    store_of(graph.uri).manifest.publish(None, Changes(), {}, Lineage.new())


def test_a_schema_that_another_changes_is_seen_by_the_next_read(people: Graph) -> None:
    reader = omnigraph.open(people.uri, read_only=True)
    before = [reader.query(PEOPLE).rows for _ in range(2)]
    text = f"// a remark\n{reader.schema}"

    store_of(people.uri).objects.write("_schema.pg", text.encode())
    publish_nothing(people)

    assert reader.query(PEOPLE).rows == before[0] == before[1]
    assert reader.schema == text


def test_the_schema_is_read_until_a_change_of_it_is_finished(people: Graph) -> None:
    objects = store_of(people.uri).objects
    reader = omnigraph.open(people.uri, read_only=True)
    reader.query(PEOPLE)
    old = reader.schema
    objects.write(HALF_WAY, b"{}")
    publish_nothing(people)
    assert (reader.query(PEOPLE).rows, reader.schema) == (look(people)[0], old)

    text = f"// a remark\n{old}"
    objects.write("_schema.pg", text.encode())
    objects.delete(HALF_WAY)

    reader.query(PEOPLE)
    assert reader.schema == text


def test_a_graph_that_was_removed_is_not_found(people: Graph) -> None:
    people.query(PEOPLE)
    shutil.rmtree(people.uri)

    with pytest.raises(GraphNotFoundError):
        people.query(PEOPLE)


def test_a_small_cache_changes_no_answer(people: Graph) -> None:
    expected = look(people)
    people._cache = TableCache(600)

    assert look(people) == expected
    assert 0 <= people._cache._used <= 600
