import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import lance
import pytest

import omnigraph
from omnigraph.api.results import Commit
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import (
    BranchNotFoundError,
    ConflictError,
    ContentionError,
    CorruptGraphError,
    ExpectedVersionMismatchError,
    OmnigraphError,
)
from omnigraph.manifest.migrations import stamped
from omnigraph.manifest.publisher import RETRY_BUDGET, Changes, Lineage, Manifest, Published
from omnigraph.manifest.rows import OBJECT_ID, TableRow, TombstoneRow, VersionRow, encode
from omnigraph.manifest.state import ManifestState
from omnigraph.storage import observe
from omnigraph.storage.observe import RequestCounts, counted
from tests.support.contenders import contending, publish_version
from tests.support.graphs import COMPANY, KNOWS, PERSON, SCHEMA

NEW = TableRow("node:New", "nodes/new")


def publish(
    store: Store, changes: Changes | None = None, expected: dict[str, int] | None = None, actor: str | None = None
) -> Published:
    return store.manifest.publish(None, changes or Changes(), expected or {}, Lineage.new(actor))


def version(table_key: str, number: int, branch: str | None = None, row_count: int = 0) -> Changes:
    return Changes((VersionRow(table_key, number, branch, row_count),))


def tombstone(table_key: str, number: int) -> Changes:
    return Changes((), (), (TombstoneRow(table_key, number),))


def branch(store: Store, name: str) -> None:
    store.manifest.table.open().create_branch(name, storage_options=store.location.storage_options)


def pins(store: Store) -> dict[str, int]:
    return {key: entry.table.version for key, entry in store.manifest.load().snapshot.entries.items()}


def object_ids(store: Store) -> list[str]:
    """Read all ids by hand."""
    found: list[str] = store.manifest.table.open().to_table(columns=[OBJECT_ID])[OBJECT_ID].to_pylist()
    return sorted(found)


def assert_one_chain(commits: list[Commit], of: int) -> None:
    assert len(commits) == of
    assert [commit.parent_id for commit in commits] == [None, *(commit.commit_id for commit in commits[:-1])]
    assert len({commit.manifest_version for commit in commits}) == of


@contextmanager
def before_each_publish(act: Callable[[int], object]) -> Iterator[list[str]]:
    """Call `act(n)` right before the n-th compare-and-swap on `__manifest`, but not before those that it makes."""
    swaps: list[str] = []
    inside = threading.local()

    def hook(operation: str, path: str) -> None:
        if operation == "publish" and not getattr(inside, "act", False):
            swaps.append(path)
            inside.act = True
            act(len(swaps))
            inside.act = False

    previous = observe.set_write_hook(hook)
    try:
        yield swaps
    finally:
        observe.set_write_hook(previous)


# What may be published


def test_registrations_come_before_what_refers_to_them(store: Store) -> None:
    publish(store, Changes((VersionRow("node:New", 1, None, 0),), (NEW,)), {"node:New": 0})

    entry = store.manifest.load().snapshot.entries["node:New"]
    assert (entry.table.path, entry.table.version) == ("nodes/new", 1)


def test_a_known_table_may_be_registered_again_where_it_is(store: Store) -> None:
    before = store.manifest.load()

    publish(store, Changes((), (TableRow(PERSON, before.paths[PERSON]),)))

    assert store.manifest.load().paths == before.paths
    assert len(object_ids(store)) == len(set(object_ids(store))) == before.rows.num_rows + 1


def test_a_table_that_is_gone_can_come_back(store: Store) -> None:
    publish(store, tombstone(PERSON, 1), {PERSON: 1})
    assert PERSON not in pins(store)

    publish(store, version(PERSON, 2), {PERSON: 1})

    assert pins(store)[PERSON] == 2


def test_a_version_changes_hands_with_the_rows_it_has(store: Store) -> None:
    publish(store, version(PERSON, 2, "side", 3))

    publish(store, version(PERSON, 2, None, 3), {PERSON: 2})

    assert store.manifest.load().snapshot.entries[PERSON].table.branch is None


_REFUSED = {
    "a table registered at another path": Changes((), (TableRow(PERSON, "nodes/elsewhere"),)),
    "one table registered at two paths": Changes((), (NEW, TableRow("node:New", "nodes/other"))),
    "one table registered twice": Changes((), (NEW, NEW)),
    "a version of an unknown table": version("node:New", 1),
    "a tombstone of an unknown table": tombstone("node:New", 1),
    "one version named twice": Changes((VersionRow(PERSON, 3, None, 0), VersionRow(PERSON, 3, "side", 0))),
    "one tombstone named twice": Changes((), (), (TombstoneRow(KNOWS, 1), TombstoneRow(KNOWS, 1))),
    "a version that is there, with other rows": version(PERSON, 2, "side", 9),
    "a version that is there, on the same branch": version(PERSON, 2, None, 9),
    "a tombstone that is there": tombstone(COMPANY, 1),
}


@pytest.mark.once_on_s3
@pytest.mark.parametrize("changes", _REFUSED.values(), ids=_REFUSED)
def test_what_would_rewrite_a_row_is_refused_and_nothing_is_written(store: Store, changes: Changes) -> None:
    publish(store, version(PERSON, 2, None, 5))
    publish(store, tombstone(COMPANY, 1))
    before = object_ids(store)

    with before_each_publish(lambda _: None) as swaps, pytest.raises(ConflictError) as failure:
        publish(store, changes)

    assert any(table_key in failure.value.message for table_key in (PERSON, COMPANY, KNOWS, "node:New"))
    assert failure.value.hint
    assert swaps == []
    assert object_ids(store) == before


def test_a_commit_that_is_published_again_is_found_and_not_made_twice(store: Store) -> None:
    lineage = Lineage.new("ann")
    first = store.manifest.publish(None, version(PERSON, 2), {PERSON: 1}, lineage)
    publish(store)

    again = store.manifest.publish(None, version(PERSON, 2), {PERSON: 1}, lineage)

    assert again.commit == first.commit
    assert store.manifest.table.open().version == first.state.version + 1
    assert_one_chain(store.manifest.load().commits(), 3)


@pytest.mark.parametrize(
    "prepare, actual",
    [(Changes(), 1), (version(PERSON, 4), 4), (tombstone(PERSON, 6), 6)],
    ids=["as created", "moved", "gone"],
)
def test_an_expectation_is_compared_with_what_is_visible(store: Store, prepare: Changes, actual: int) -> None:
    publish(store, prepare)
    before = object_ids(store)

    for wrong in (actual - 1, actual + 1):
        with pytest.raises(ExpectedVersionMismatchError) as failure:
            publish(store, version(KNOWS, 2), {PERSON: wrong})
        assert failure.value.details() == {"table_key": PERSON, "expected": wrong, "actual": actual}
    assert object_ids(store) == before
    publish(store, version(KNOWS, 2), {PERSON: actual, "node:Unknown": 0})
    assert pins(store)[KNOWS] == 2


# The history


def test_a_commit_has_its_actor_its_parents_and_the_version_that_it_makes(store: Store) -> None:
    (genesis,) = store.manifest.load().commits()
    lineage = Lineage("01J0000000000000000000000A", "ann", genesis.commit_id, 77)

    published = store.manifest.publish(None, Changes(), {}, lineage)

    expected = Commit("01J0000000000000000000000A", None, 2, genesis.commit_id, genesis.commit_id, "ann", 77)
    assert published.commit == store.manifest.load().head == expected
    assert published.state.version == store.manifest.table.open().version == 2
    heads = [row for row in store.manifest.load().rows.to_pylist() if row["object_type"] == "graph_head"]
    assert [row["object_id"] for row in heads] == ["graph_head:main"]
    assert json.loads(heads[0]["metadata"]) == {
        "head_commit_id": expected.commit_id,
        "parent_commit_id": genesis.commit_id,
        "graph_id": genesis.commit_id,
    }


def test_a_branch_starts_from_what_it_inherits_and_leaves_main_alone(store: Store) -> None:
    publish(store, actor="ann")
    branch(store, "team/side")
    main = store.manifest.load()

    inherited = store.manifest.load("team/side")
    published = store.manifest.publish("team/side", version(PERSON, 2), {PERSON: 1}, Lineage.new("bob"))

    assert store.manifest.branches() == ["main", "team/side"]
    assert inherited.commits() == main.commits()
    assert published.commit.parent_id == (main.head.commit_id if main.head else "")
    assert published.commit.branch == "team/side"
    reopened = store.manifest.load("team/side")
    assert reopened.head == published.commit
    heads = [one for one in reopened.rows[OBJECT_ID].to_pylist() if one.startswith("graph_head:")]
    assert heads == ["graph_head:team/side"]
    assert reopened.graph_id == main.graph_id
    assert reopened.snapshot.entries[PERSON].table.version == 2
    assert reopened.snapshot.entries[KNOWS].table.branch is None
    after = store.manifest.load()
    assert (after.version, after.snapshot, after.head) == (main.version, main.snapshot, main.head)


def test_a_branch_that_is_deleted_while_all_are_loaded_is_left_out(store: Store) -> None:
    for name in ("one", "two"):
        branch(store, name)
    states = store.manifest.states()
    assert next(states)[0] == "main"

    store.manifest.delete_branch("one")

    assert [name for name, _ in states] == ["two"]


def test_a_new_commit_has_the_time_of_now_in_microseconds() -> None:
    before, lineage = time.time(), Lineage.new()

    assert before <= lineage.created_at / 1_000_000 + 1e-6 <= time.time() + 1e-6


def test_a_branch_that_does_not_exist_is_named(store: Store) -> None:
    for act in (store.manifest.load, lambda name: store.manifest.publish(name, Changes(), {}, Lineage.new())):
        with pytest.raises(BranchNotFoundError) as failure:
            act("nowhere")
        assert failure.value.branch == "nowhere"
    assert not store.objects.exists("__manifest/tree")


# Losing to others


@pytest.mark.parametrize("losses", range(RETRY_BUDGET + 1))
def test_a_publish_that_loses_up_to_five_times_lands_behind_the_winners(store: Store, losses: int) -> None:
    rival = Store.at(store.location)
    lineage = Lineage.new("ann")

    with before_each_publish(lambda n: publish(rival, actor="rival") if n <= losses else None) as swaps:
        published = store.manifest.publish(None, version(PERSON, 2), {PERSON: 1}, lineage)

    assert len(swaps) == losses + 1
    commits = store.manifest.load().commits()
    assert_one_chain(commits, losses + 2)
    assert commits[-1] == published.commit
    assert (published.commit.commit_id, published.commit.created_at) == (lineage.commit_id, lineage.created_at)
    assert published.state.version == store.manifest.table.open().version
    assert [commit.actor_id for commit in commits] == [None, *["rival"] * losses, "ann"]
    assert pins(store)[PERSON] == 2


def test_after_six_losses_the_publish_gives_up_with_nothing_written(store: Store) -> None:
    rival = Store.at(store.location)

    with (
        before_each_publish(lambda _: publish(rival, actor="rival")) as swaps,
        pytest.raises(ContentionError) as failure,
    ):
        publish(store, version(PERSON, 2), {PERSON: 1}, "ann")

    assert (len(swaps), failure.value.attempts, RETRY_BUDGET) == (6, 6, 5)
    assert failure.value.hint
    assert pins(store)[PERSON] == 1
    assert_one_chain(store.manifest.load().commits(), 7)
    assert not [commit for commit in store.manifest.load().commits() if commit.actor_id == "ann"]


def test_a_table_that_moves_during_the_publish_is_not_retried(store: Store) -> None:
    rival = Store.at(store.location)

    with (
        before_each_publish(lambda _: publish(rival, version(PERSON, 2, None, 7), {PERSON: 1})) as swaps,
        pytest.raises(ExpectedVersionMismatchError) as failure,
    ):
        publish(store, version(PERSON, 2), {PERSON: 1})

    assert len(swaps) == 1
    assert failure.value.details() == {"table_key": PERSON, "expected": 1, "actual": 2}
    assert store.manifest.load().snapshot.entries[PERSON].row_count == 7
    assert_one_chain(store.manifest.load().commits(), 2)


def test_a_row_that_somebody_else_publishes_first_is_not_rewritten(store: Store) -> None:
    rival = Store.at(store.location)

    with (
        before_each_publish(lambda _: publish(rival, version(PERSON, 2, None, 7))),
        pytest.raises(ConflictError, match="already published"),
    ):
        publish(store, version(PERSON, 2, None, 8))

    assert store.manifest.load().snapshot.entries[PERSON].row_count == 7


def _build_index(handle: lance.LanceDataset) -> None:
    handle.create_scalar_index(OBJECT_ID, "BTREE")


def _set_config(handle: lance.LanceDataset) -> None:
    handle.update_config({"team": "blue"})


def _set_schema_metadata(handle: lance.LanceDataset) -> None:
    handle.update_schema_metadata({"team": "blue"})


@pytest.mark.parametrize("change", [_build_index, _set_config, _set_schema_metadata])
def test_a_commit_to_the_manifest_that_is_no_publish_may_come_in_between(
    store: Store, change: Callable[[lance.LanceDataset], None]
) -> None:
    publish(store)

    with before_each_publish(lambda n: change(store.manifest.table.open()) if n == 1 else None):
        published = publish(store, version(PERSON, 2), {PERSON: 1}, "ann")

    assert published.commit.manifest_version == published.state.version == store.manifest.table.open().version
    assert store.manifest.load().head == published.commit
    assert_one_chain(store.manifest.load().commits(), 3)
    assert store.manifest.load(None, published.commit.manifest_version).snapshot.entries[PERSON].table.version == 2


def test_rows_that_a_stranger_added_in_between_are_in_the_state_that_a_publish_returns(store: Store) -> None:
    def add_a_table(number: int) -> None:
        if number == 1:
            handle = Store.at(store.location).manifest.table.open()
            options = store.location.storage_options
            lance.write_dataset(encode([NEW.record()]), handle, mode="append", storage_options=options)

    with before_each_publish(add_a_table):
        published = publish(store)

    assert NEW.table_key in published.state.paths
    assert NEW.table_key in store.manifest.load().paths


def test_a_graph_that_was_made_anew_in_the_same_place_gets_no_parent_from_the_old_one(tmp_path: Path) -> None:
    """A handle that is kept reads what it remembers until it is opened again; what it writes must fit what is there."""
    uri = tmp_path / "graph"
    omnigraph.init(uri, SCHEMA)
    store = Store.at(Location.parse(uri))
    publish(store)
    remembered = store.manifest.load()
    shutil.rmtree(uri)
    omnigraph.init(uri, SCHEMA)
    publish(Store.at(Location.parse(uri)))

    store.manifest.publish(None, Changes(), {}, Lineage.new(), first=remembered)

    assert_one_chain(Store.at(Location.parse(uri)).manifest.load().commits(), 3)


# What an attempt costs


def test_an_attempt_scans_the_manifest_once_and_not_at_all_when_its_state_is_given(tmp_path: Path) -> None:
    omnigraph.init(tmp_path / "graph", SCHEMA)
    publish(Store.at(Location.parse(tmp_path / "graph")))

    def copy(name: str) -> tuple[Manifest, ManifestState]:
        """The same graph elsewhere, freshly opened, and the state of it before its latest publish."""
        shutil.copytree(tmp_path / "graph", tmp_path / name)
        stale = Manifest(Location.parse(tmp_path / name)).load()
        Manifest(Location.parse(tmp_path / name)).publish(None, Changes(), {}, Lineage.new())
        return Manifest(Location.parse(tmp_path / name)), stale

    read, given, alone, retried = (copy(name) for name in ("read", "given", "alone", "retried"))
    state = given[0].load()

    scan = _requests(read[0].load)
    swap = _requests(lambda: given[0].publish(None, Changes(), {}, Lineage.new(), first=state))
    both = _requests(lambda: alone[0].publish(None, Changes(), {}, Lineage.new()))
    with_a_stale_one = _requests(lambda: retried[0].publish(None, Changes(), {}, Lineage.new(), first=retried[1]))

    assert (scan.writes, scan.total > 0) == (0, True)
    assert swap.total < both.total <= scan.total + swap.total
    assert with_a_stale_one.total <= both.total + swap.total + 3, "with the removal of what was staged in vain"


def test_a_state_is_not_scanned_again_until_somebody_publishes(tmp_path: Path) -> None:
    omnigraph.init(tmp_path / "graph", SCHEMA)
    manifest = Manifest(Location.parse(tmp_path / "graph"))
    first = manifest.load()

    assert manifest.load() is first
    Manifest(Location.parse(tmp_path / "graph")).publish(None, Changes(), {}, Lineage.new())
    assert manifest.load().version == first.version + 1
    own = manifest.publish(None, Changes(), {}, Lineage.new())
    assert manifest.load() is own.state


def _requests(act: Callable[[], object]) -> RequestCounts:
    with counted() as requests:
        act()
    return requests.requests


# The silent ways to lose the compare-and-swap


def turns(store: Store) -> int:
    return 10 if store.location.is_local else 3


def _race(states: list[ManifestState], act: Callable[[int, ManifestState], object]) -> list[object]:
    """Let one thread per state start at once; return what each got, or its error."""
    start = threading.Barrier(len(states))

    def run(number: int) -> object:
        start.wait()
        try:
            return act(number, states[number])
        except OmnigraphError as error:
            return error

    with ThreadPoolExecutor(len(states)) as pool:
        return list(pool.map(run, range(len(states))))


@pytest.mark.slow
@pytest.mark.parametrize("indexed", [False, True], ids=["without an index", "with an index on the key"])
def test_of_four_who_swap_one_object_one_wins(store: Store, *, indexed: bool) -> None:
    if indexed:
        _build_index(store.manifest.table.open())
    table = store.manifest.table
    for turn in range(turns(store)):
        states = [Manifest(store.location).load() for _ in range(4)]

        def swap(number: int, state: ManifestState, turn: int = turn) -> str:
            row = TableRow(f"node:{turn}", f"nodes/{number}").record()
            table.swap(state.dataset, table.stage(state.dataset, stamped(state.rows_with(encode([row])))))
            return f"nodes/{number}"

        outcome = _race(states, swap)

        assert len([lost for lost in outcome if isinstance(lost, ConflictError)]) == 3, outcome
        assert store.manifest.load().paths[f"node:{turn}"] in outcome


@pytest.mark.slow
@pytest.mark.parametrize("indexed", [False, True], ids=["without an index", "with an index on the key"])
def test_of_four_who_publish_one_version_one_wins(store: Store, *, indexed: bool) -> None:
    if indexed:
        _build_index(store.manifest.table.open())
    for turn in range(turns(store)):
        states = [Manifest(store.location).load() for _ in range(4)]

        def attempt(number: int, state: ManifestState, turn: int = turn) -> int:
            changes = version(PERSON, turn + 2, None, number)
            store.manifest.publish(None, changes, {PERSON: turn + 1}, Lineage.new(), first=state)
            return number

        outcome = _race(states, attempt)

        assert len([lost for lost in outcome if isinstance(lost, ExpectedVersionMismatchError)]) == 3, outcome
        assert store.manifest.load().snapshot.entries[PERSON].row_count in outcome
        assert_one_chain(store.manifest.load().commits(), turn + 2)


def test_of_four_processes_that_publish_one_version_one_wins(store: Store) -> None:
    with contending(4, publish_version, store.location.uri) as publish_at_once:
        for number in range(2, turns(store)):
            outcome = publish_at_once(number)
            assert sorted(outcome) == ["ExpectedVersionMismatchError"] * 3 + ["won"]
            entry = store.manifest.load().snapshot.entries[PERSON]
            assert (entry.table.version, entry.row_count) == (number, outcome.index("won"))
    assert_one_chain(store.manifest.load().commits(), turns(store) - 1)


def _clean_up(store: Store) -> None:
    """Remove all old versions by hand, as `cleanup_old_versions` does without being asked to keep any."""
    removed = store.manifest.table.open().cleanup_old_versions(timedelta(0), retain_versions=1)
    assert removed.old_versions


@pytest.mark.parametrize("cleaned", [False, True], ids=["with all versions kept", "with the old versions cleaned"])
def test_a_stale_state_loses_and_doubles_nothing(store: Store, *, cleaned: bool) -> None:
    stale = store.manifest.load()
    for number in range(2, 6):
        publish(store, version(PERSON, number), {PERSON: number - 1}, "rival")
    if cleaned:
        _clean_up(store)

    published = store.manifest.publish(None, version(KNOWS, 2), {KNOWS: 1}, Lineage.new("ann"), first=stale)

    ids = object_ids(store)
    assert len(ids) == len(set(ids))
    assert_one_chain(store.manifest.load().commits(), 6)
    assert store.manifest.load().head == published.commit
    assert (pins(store)[PERSON], pins(store)[KNOWS]) == (5, 2)


@pytest.mark.parametrize("cleaned", [False, True], ids=["with all versions kept", "with the old versions cleaned"])
def test_a_stale_state_does_not_bring_back_what_it_expects(store: Store, *, cleaned: bool) -> None:
    stale = store.manifest.load()
    for number in range(2, 6):
        publish(store, version(PERSON, number), {PERSON: number - 1})
    if cleaned:
        _clean_up(store)
    before = object_ids(store)

    with pytest.raises(ExpectedVersionMismatchError):
        store.manifest.publish(None, version(PERSON, 2), {PERSON: 1}, Lineage.new("ann"), first=stale)

    assert object_ids(store) == before


def test_a_state_that_was_published_on_may_be_published_on_again(store: Store) -> None:
    state = store.manifest.load()
    store.manifest.publish(None, version(PERSON, 2), {PERSON: 1}, Lineage.new("ann"), first=state)

    store.manifest.publish(None, version(KNOWS, 2), {KNOWS: 1}, Lineage.new("bob"), first=state)

    assert_one_chain(store.manifest.load().commits(), 3)
    assert (pins(store)[PERSON], pins(store)[KNOWS]) == (2, 2)


def test_a_manifest_that_would_clean_itself_up_is_not_published_to(store: Store) -> None:
    handle = store.manifest.table.open()
    handle.update_config({"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "0s"})

    with pytest.raises(CorruptGraphError, match="clean") as failure:
        publish(store)

    assert failure.value.hint
    assert store.manifest.table.open().version == handle.version
