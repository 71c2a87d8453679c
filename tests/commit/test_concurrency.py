"""Many writers at once: what was acknowledged is there, once, in one line of history."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from lance.optimize import Compaction, CompactionOptions

from omnigraph.api.results import Commit
from omnigraph.commit import failpoints
from omnigraph.commit.audit import RecoveryKind
from omnigraph.commit.failpoints import Rendezvous
from omnigraph.commit.plan import PublishPlan, WriteTxn
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.errors import ConflictError, ContentionError, ExpectedVersionMismatchError, OutcomeUnknownError
from omnigraph.graph import Graph, init
from omnigraph.manifest.publisher import RETRY_BUDGET, Changes, Lineage, Manifest
from omnigraph.manifest.rows import MANIFEST_PATH, OBJECT_ID, TableRow, VersionRow
from tests.commit.child import LIFETIME, Child, hooked, pairs, store_at
from tests.commit.places import mostly_local
from tests.support.graphs import (
    COMPANY,
    KNOWS,
    PERSON,
    SCHEMA,
    WORKS_AT,
    append,
    contents,
    edge,
    heads_and_pins,
    person,
    plan,
    upsert,
    write_plan,
)

TABLES = (PERSON, COMPANY, KNOWS, WORKS_AT)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return init(tmp_path / "graph", SCHEMA).uri


@pytest.fixture
def store(uri: str) -> Store:
    return store_at(uri)


def history(store: Store) -> list[Commit]:
    """The commits after the first, oldest first; they must be one chain that ends at the head."""
    state = store.manifest.load()
    commits = state.commits()
    assert [commit.parent_id for commit in commits] == [None, *(commit.commit_id for commit in commits[:-1])]
    versions = [commit.manifest_version for commit in commits]
    assert versions == sorted(versions)
    assert state.head == commits[-1]
    return commits[1:]


def ids(store: Store, key: str) -> list[str]:
    return [str(row["id"]) for row in contents(store)[key]]


def assert_settled(store: Store) -> None:
    pairs = heads_and_pins(store)
    assert {key: head for key, (head, _) in pairs.items()} == {key: pin for key, (_, pin) in pairs.items()}
    assert store.sidecars.pending() == []


def one_row(store: Store, key: str, name: str) -> Callable[[WriteTxn], PublishPlan]:
    """Prepare one row of one table."""
    row = {"id": name, "name": name} if key.startswith("node:") else edge(name, "a", "b")

    def prepare(txn: WriteTxn) -> PublishPlan:
        return plan(txn, append(store, txn, key, [row]), actor=name)

    return prepare


# Many at once --------------------------------------------------------------------------------------


@mostly_local("stores", ["one", "a store each"], ["a store each"])
def test_threads_that_write_to_the_same_tables_lose_and_double_nothing(root_uri: str, stores: str) -> None:
    store, start, writers = store_at(init(root_uri, SCHEMA).uri), threading.Barrier(8), 8
    commits = 3 if store.location.is_local else 1

    def work(number: int) -> list[Commit]:
        own = store if stores == "one" else store_at(root_uri)
        start.wait()
        done = [write_plan(own, None, pairs(own, f"w{number}-{each}")) for each in range(commits)]
        return [published.commit for published in done if published]

    with ThreadPoolExecutor(writers) as pool:
        acknowledged = [commit for done in pool.map(work, range(writers)) for commit in done]
    expected = sorted(f"w{number}-{each}" for number in range(writers) for each in range(commits))
    assert ids(store, PERSON) == ids(store, COMPANY) == expected
    assert sorted(history(store), key=str) == sorted(acknowledged, key=str)
    assert sorted(str(commit.actor_id) for commit in acknowledged) == expected
    assert_settled(store)


@pytest.mark.usefixtures("without_groups")
@mostly_local("stores", ["a store each"], [])
def test_threads_that_are_not_published_together_lose_and_double_nothing(root_uri: str, stores: str) -> None:
    test_threads_that_write_to_the_same_tables_lose_and_double_nothing(root_uri, stores)


def test_threads_that_write_to_different_tables_lose_and_double_nothing(root_uri: str) -> None:
    store = store_at(init(root_uri, SCHEMA).uri)
    writers, commits = (8, 3) if store.location.is_local else (4, 2)
    start = threading.Barrier(writers)

    def work(number: int) -> None:
        own, key = store_at(root_uri), TABLES[number % len(TABLES)]
        start.wait()
        for each in range(commits):
            write_plan(own, None, one_row(own, key, f"w{number}-{each}"))

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(work, range(writers)))
    for index, key in enumerate(TABLES):
        mine = range(index, writers, len(TABLES))
        assert ids(store, key) == sorted(f"w{number}-{each}" for number in mine for each in range(commits))
    assert len(history(store)) == writers * commits
    assert_settled(store)


def test_processes_that_write_to_the_same_tables_lose_and_double_nothing(root_uri: str) -> None:
    store = store_at(init(root_uri, SCHEMA).uri)
    writers, commits = (8, 3) if store.location.is_local else (3, 2)
    with at_work(root_uri, {f"w{number}": [] for number in range(writers)}, commits) as children:
        for child in children.values():
            child.succeed()
    expected = sorted(f"w{number}-{each}" for number in range(writers) for each in range(commits))
    assert ids(store, PERSON) == ids(store, COMPANY) == expected
    assert sorted(str(commit.actor_id) for commit in history(store)) == expected
    assert_settled(store)


def test_a_process_that_is_killed_among_others_takes_nothing_of_theirs_with_it(root_uri: str) -> None:
    store = store_at(init(root_uri, SCHEMA).uri)
    commits = 3 if store.location.is_local else 2
    half_way = ["--stop-at", failpoints.PUBLISH_AFTER_TABLE_COMMIT, "--pass", "3"]  # one table of two, second commit
    with at_work(root_uri, {"w0": [], "w1": [], "dead": half_way}, commits) as children:
        children["dead"].wait_until_stopped()
        children["dead"].kill()
        for name in ("w0", "w1"):
            children[name].succeed()
    Graph(store_at(root_uri, lifetime=LIFETIME), read_only=False)
    expected = [*(f"{name}-{each}" for name in ("w0", "w1") for each in range(commits)), "dead-0"]
    assert ids(store, PERSON) == ids(store, COMPANY) == sorted(expected)
    assert [row.kind for row in store.audit.rows()] == [RecoveryKind.ROLLED_BACK]
    assert len(history(store)) == len(expected) + 1
    assert_settled(store)


@pytest.mark.usefixtures("without_groups")
@pytest.mark.parametrize("root_uri", ["local"], indirect=True)
def test_a_process_without_group_commit_that_is_killed_among_others_takes_nothing_of_theirs(root_uri: str) -> None:
    test_a_process_that_is_killed_among_others_takes_nothing_of_theirs_with_it(root_uri)


@contextmanager
def at_work(uri: str, options: dict[str, list[str]], commits: int) -> Iterator[dict[str, Child]]:
    """Have processes of some names commit pairs of these names, all from one start."""
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(Child("write", uri, name, str(commits), "--lifetime", str(LIFETIME), *more))
            for name, more in options.items()
        }
        for child in children.values():
            child.wait_until_stopped()
        for child in children.values():
            child.go_on()
        yield children


def test_a_reader_among_writers_sees_only_what_was_committed(uri: str) -> None:
    store, writers, commits, start = store_at(uri), 4, 4, threading.Event()

    def work(number: int) -> None:
        own = store_at(uri)
        assert start.wait(300)
        for each in range(commits):
            write_plan(own, None, pairs(own, f"w{number}-{each}"))

    seen: list[set[str]] = [set()]
    with ThreadPoolExecutor(writers) as pool:
        working = [pool.submit(work, number) for number in range(writers)]
        while True:
            finished = all(each.done() for each in working)
            shown = contents(store)
            people, companies = ({row["id"] for row in shown[key]} for key in (PERSON, COMPANY))
            assert people == companies
            assert people >= seen[-1]
            seen.append(people)
            start.set()
            if finished:
                break
        for each in working:
            each.result()
    assert len(seen[-1]) == writers * commits


# The publisher alone -------------------------------------------------------------------------------


def publish_versions(store: Store, number: int, versions: int) -> None:
    """Publish versions of a table of its own without any gate, each as often as it takes."""
    manifest, key = Manifest(store.location), f"node:Own{number}"
    for version in range(1, versions + 1):
        row = VersionRow(key, version, None, version)
        changes = Changes((row,), (TableRow(key, f"nodes/own{number}"),))
        lineage = Lineage.new(f"w{number}-{version}")
        while True:
            with suppress(ContentionError):
                manifest.publish(None, changes, {key: version - 1}, lineage)
                break


def assert_published(store: Store, writers: int, versions: int) -> None:
    table = store.manifest.table.open().to_table()
    assert len(set(table[OBJECT_ID].to_pylist())) == table.num_rows
    entries = store.manifest.load().snapshot.entries
    assert {f"node:Own{number}": versions for number in range(writers)} == {
        key: entry.table.version for key, entry in entries.items() if key.startswith("node:Own")
    }
    actors = sorted(str(commit.actor_id) for commit in history(store))
    assert actors == sorted(f"w{number}-{version}" for number in range(writers) for version in range(1, versions + 1))


def test_publishers_without_gates_make_one_chain_and_no_object_twice(root_uri: str) -> None:
    store = store_at(init(root_uri, SCHEMA).uri)
    writers, versions = (8, 3) if store.location.is_local else (8, 1)
    start = threading.Barrier(writers)

    def work(number: int) -> None:
        start.wait()
        publish_versions(store, number, versions)

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(work, range(writers)))
    assert_published(store, writers, versions)


def test_a_compaction_that_loses_to_a_publish_costs_the_next_one_nothing(store: Store) -> None:
    """Lance compacts in two commits: the first lands and conflicts with nothing, even if the second is refused."""
    write_plan(store, None, one_row(store, PERSON, "ann"))
    old, options = store.manifest.table.open(), CompactionOptions(materialize_deletions_threshold=0.0)
    rewritten = [task.execute(old) for task in Compaction.plan(old, options).tasks]
    write_plan(store, None, one_row(store, PERSON, "bob"))
    late = iter(rewritten)

    def hook(operation: str, _: str) -> None:
        if operation == "publish" and (found := list(late)):
            with pytest.raises(OSError, match="preempted by concurrent transaction"):
                Compaction.commit(store.manifest.table.open(), found)

    with hooked(hook):
        done = write_plan(store, None, one_row(store, PERSON, "cat"))
    assert done
    assert [commit.actor_id for commit in history(store)] == ["ann", "bob", "cat"]
    assert store.manifest.load(version=done.commit.manifest_version).head == done.commit
    assert_settled(store)


# Two handles ---------------------------------------------------------------------------------------


def test_an_insert_prepared_on_an_old_state_is_prepared_anew(store: Store, uri: str) -> None:
    prepared: list[int] = []

    def prepare(txn: WriteTxn) -> PublishPlan:
        prepared.append(txn.entries[PERSON].table.version)
        if len(prepared) == 1:
            other = store_at(uri)
            write_plan(other, None, one_row(other, PERSON, "first"))
        return one_row(store, PERSON, "second")(txn)

    done = write_plan(store, None, prepare)
    assert ids(store, PERSON) == ["first", "second"]
    assert prepared == [1, 2]
    assert done
    assert [commit.actor_id for commit in history(store)] == ["first", "second"]
    assert_settled(store)


def test_an_update_prepared_on_an_old_state_is_refused_until_it_reads_again(store: Store, uri: str) -> None:
    write_plan(store, None, one_row(store, PERSON, "ann"))
    stale = begin(store)
    other = store_at(uri)
    write_plan(other, None, one_row(other, PERSON, "bob"))
    update = plan(stale, upsert(store, stale, PERSON, [person("ann", 31)]))
    with pytest.raises(ExpectedVersionMismatchError) as refused:
        publish(store, update)
    assert refused.value.details() == {"table_key": PERSON, "expected": 2, "actual": 3}
    assert contents(store)[PERSON] == [person("ann"), person("bob")]
    assert_settled(store)
    fresh = begin(store)
    publish(store, plan(fresh, upsert(store, fresh, PERSON, [person("ann", 31)])))
    assert contents(store)[PERSON] == [person("ann", 31), person("bob")]


def test_two_writers_of_different_tables_both_commit_what_they_prepared_on_one_state(store: Store, uri: str) -> None:
    first, second = store, store_at(uri)
    plans = [one_row(first, PERSON, "ann")(begin(first)), one_row(second, COMPANY, "yard")(begin(second))]
    half_way = Rendezvous()
    with failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, half_way), ThreadPoolExecutor(2) as pool:
        try:
            one = pool.submit(publish, first, plans[0])
            half_way.wait_until_reached()
            two = pool.submit(publish, second, plans[1])
        finally:
            half_way.release()
    assert [commit.commit_id for commit in history(store)] == [
        one.result().commit.commit_id,
        two.result().commit.commit_id,
    ]
    assert (ids(store, PERSON), ids(store, COMPANY)) == (["ann"], ["yard"])
    assert_settled(store)


def test_eight_writers_of_eight_tables_make_a_chain_of_eight(tmp_path: Path) -> None:
    number = 8
    uri = init(tmp_path, "\n".join(f"node Type{each} {{ name: String @key }}" for each in range(number))).uri
    prepared = threading.Barrier(number)

    def work(each: int) -> Commit:
        store = store_at(uri)
        mine = one_row(store, f"node:Type{each}", "x")(begin(store))
        prepared.wait()
        return publish(store, mine).commit

    with ThreadPoolExecutor(number) as pool:
        commits = list(pool.map(work, range(number)))
    store = store_at(uri)
    assert sorted(history(store), key=str) == sorted(commits, key=str)
    assert len({commit.parent_id for commit in commits}) == number
    assert all(len(rows) == 1 for rows in contents(store).values())
    assert_settled(store)


def test_a_write_that_begins_while_another_is_half_way_leaves_that_one_alone(root_uri: str) -> None:
    store, half_way = store_at(init(root_uri, SCHEMA).uri), Rendezvous()
    mine = one_row(store, PERSON, "ann")(begin(store))
    with failpoints.armed(failpoints.PUBLISH_AFTER_TABLE_COMMIT, half_way), ThreadPoolExecutor(1) as pool:
        try:
            writing = pool.submit(publish, store, mine)
            half_way.wait_until_reached()
            other = store_at(root_uri)
            theirs = one_row(other, COMPANY, "yard")(begin(other))
            assert len(store.sidecars.pending()) == 1
        finally:
            half_way.release()
        publish(other, theirs)
        writing.result()
    assert len(history(store)) == 2
    assert store.audit.rows() == []
    assert_settled(store)


# Contention ----------------------------------------------------------------------------------------


@contextmanager
def rivals(store: Store, number: int) -> Iterator[list[str]]:
    """Have somebody else commit right before a publish, that many times; yields what they committed."""
    manifest, committed, racing = Manifest(store.location), list[str](), threading.Lock()

    def hook(operation: str, path: str) -> None:
        if operation == "publish" and path.endswith(MANIFEST_PATH) and racing.acquire(blocking=False):
            try:
                if len(committed) < number:
                    committed.append(manifest.publish(None, Changes(), {}, Lineage.new("rival")).commit.commit_id)
            finally:
                racing.release()

    with hooked(hook):
        yield committed


@pytest.mark.parametrize("number", [1, RETRY_BUDGET])
def test_a_publish_that_loses_to_others_is_tried_again_behind_them(store: Store, number: int) -> None:
    with rivals(store, number) as others:
        done = write_plan(store, None, one_row(store, PERSON, "ann"))
    assert done
    assert [commit.commit_id for commit in history(store)] == [*others, done.commit.commit_id]
    assert len(others) == number
    assert ids(store, PERSON) == ["ann"]
    assert_settled(store)


def test_a_publish_that_always_loses_fails_and_is_finished_by_the_next_write(store: Store) -> None:
    with rivals(store, RETRY_BUDGET + 1) as others, pytest.raises(OutcomeUnknownError) as lost:
        write_plan(store, None, pairs(store, "ann"))
    assert isinstance(lost.value.__cause__, ContentionError)
    assert lost.value.__cause__.attempts == RETRY_BUDGET + 1
    assert ids(store, PERSON) == []
    (operation_id,) = store.sidecars.pending()
    assert lost.value.operation_id == operation_id
    write_plan(store, None, pairs(store, "bob"))
    assert ids(store, PERSON) == ids(store, COMPANY) == ["ann", "bob"]
    (audit,) = store.audit.rows()
    assert (audit.operation_id, audit.kind, audit.actor) == (operation_id, RecoveryKind.ROLLED_FORWARD, "ann")
    assert [commit.commit_id for commit in history(store)[:-2]] == others
    assert_settled(store)


def test_a_publish_that_names_a_version_twice_writes_nothing(store: Store) -> None:
    before = store.manifest.load()
    row = VersionRow(PERSON, 2, None, 1)
    with pytest.raises(ConflictError):
        store.manifest.publish(None, Changes((row, row)), {PERSON: 1}, Lineage.new())
    after = store.manifest.load()
    assert (after.version, after.rows) == (before.version, before.rows)
