import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import omnigraph
from omnigraph.api.results import Commit, Entry, TableVersion
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import CorruptGraphError
from omnigraph.manifest.publisher import Changes, Lineage
from omnigraph.manifest.rows import (
    MergedPast,
    TableRow,
    TombstoneRow,
    VersionRow,
    commit_record,
    encode,
    head_record,
    past_record,
)
from omnigraph.manifest.state import ManifestState
from tests.support.graphs import COMPANY, KNOWS, PERSON, SCHEMA

Row = TableRow | VersionRow | TombstoneRow | Commit


def _record(row: Row) -> dict[str, Any]:
    return commit_record(row) if isinstance(row, Commit) else row.record()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> ManifestState:
    """The state of a real graph, to put other rows into."""
    root = tmp_path_factory.mktemp("state")
    omnigraph.init(root, SCHEMA)
    return Store.at(Location.parse(root)).manifest.load()


State = Callable[..., ManifestState]


@pytest.fixture(scope="module")
def state(real: ManifestState) -> State:
    """Make a state of rows."""

    def made(*rows: Row | dict[str, Any], version: int = 9) -> ManifestState:
        records = [row if isinstance(row, dict) else _record(row) for row in rows]
        return replace(real, version=version, rows=encode(records).select(real.rows.column_names))

    return made


def _pins(of: ManifestState) -> dict[str, int]:
    return {key: entry.table.version for key, entry in of.snapshot.entries.items()}


A, B = TableRow("node:A", "nodes/a"), TableRow("edge:B", "edges/b")


# The fold


def test_the_newest_version_of_each_table_is_the_graph_in_order_of_keys(state: State) -> None:
    found = state(
        A, VersionRow("node:A", 10, None, 5), VersionRow("node:A", 9, "x", 4), B, VersionRow("edge:B", 2, "side", 1)
    ).snapshot

    assert (found.branch, found.manifest_version) == (None, 9)
    assert list(found.entries.items()) == [
        ("edge:B", Entry(TableVersion("edge:B", "edges/b", 2, "side"), 1)),
        ("node:A", Entry(TableVersion("node:A", "nodes/a", 10, None), 5)),
    ]
    assert [entry.key for entry in found.entries.values()] == ["edge:B", "node:A"]


@pytest.mark.parametrize("tombstones, visible", [([1, 2], True), ([3], False), ([9], False), ([1, 4, 2], False)])
def test_a_table_is_gone_up_to_its_greatest_tombstone(state: State, tombstones: list[int], visible: bool) -> None:  # noqa: FBT001
    found = state(
        A,
        VersionRow("node:A", 2, None, 0),
        VersionRow("node:A", 3, None, 0),
        *(TombstoneRow("node:A", n) for n in tombstones),
    )

    assert _pins(found) == ({"node:A": 3} if visible else {})
    assert found.actual_version("node:A") == (3 if visible else max(tombstones))


def test_a_table_that_was_never_there_is_at_version_zero(state: State) -> None:
    assert state(A).actual_version("node:A") == state().actual_version("node:C") == 0


def test_a_version_that_changed_hands_is_read_from_its_new_branch(state: State) -> None:
    before = state(A, VersionRow("node:A", 2, "side", 4))

    after = replace(before, rows=before.rows_with(encode([VersionRow("node:A", 2, None, 4).record()])))

    assert after.snapshot.entries["node:A"] == Entry(TableVersion("node:A", "nodes/a", 2, None), 4)
    assert before.snapshot.entries["node:A"].table.branch == "side"
    assert after.rows.num_rows == 2


def test_rows_of_an_unknown_type_are_ignored(state: State) -> None:
    unknown = VersionRow("node:A", 8, None, 1).record() | {"object_type": "table_spell", "object_id": "spell:1"}

    assert _pins(state(A, VersionRow("node:A", 2, None, 0), unknown)) == {"node:A": 2}


def test_a_version_without_its_table_row_is_an_error(state: State) -> None:
    with pytest.raises(CorruptGraphError, match="node:A") as failure:
        _ = state(B, VersionRow("node:A", 2, None, 0)).snapshot

    assert "__manifest" in failure.value.path


def test_a_table_that_is_gone_needs_no_table_row(state: State) -> None:
    assert _pins(state(VersionRow("node:A", 2, None, 0), TombstoneRow("node:A", 2))) == {}


_COMMIT = Commit("c", None, 1, None, None, None, 5)
_VERSION = VersionRow("node:A", 2, None, 0)
_CORRUPT = {
    "a commit whose metadata is no JSON": commit_record(_COMMIT) | {"metadata": "{"},
    "a commit whose metadata is no object": commit_record(_COMMIT) | {"metadata": "[]"},
    "a commit without metadata": commit_record(_COMMIT) | {"metadata": None},
    "a commit without a time": commit_record(_COMMIT) | {"metadata": "{}"},
    "a commit whose time is no number": commit_record(_COMMIT) | {"metadata": '{"created_at":"now"}'},
    "a commit without a manifest version": commit_record(_COMMIT) | {"table_version": None},
    "a version row without a version": _VERSION.record() | {"table_version": None, "object_id": "node:A$x"},
    "a version row without a row count": VersionRow("node:A", 3, None, 0).record() | {"row_count": None},
    "a version row whose id is another's": _VERSION.record() | {"table_version": 3, "object_id": "node:A$x"},
    "a tombstone without a version": TombstoneRow("node:A", 2).record() | {"table_version": None},
    "a table row without a place": A.record() | {"location": None},
    "a second table row": A.record() | {"object_id": "again", "location": "nodes/z"},
}


@pytest.mark.parametrize("row", _CORRUPT.values(), ids=_CORRUPT)
def test_a_row_that_makes_no_sense_is_an_error_of_ours(state: State, row: dict[str, Any]) -> None:
    others = [other for other in (A.record(), _VERSION.record()) if other["object_id"] != row["object_id"]]

    def read() -> None:
        found = state(*others, row).checked()
        _ = (found.snapshot, found.head, found.commits())

    with pytest.raises(CorruptGraphError) as failure:
        read()

    assert "__manifest" in failure.value.path


def test_two_rows_of_one_object_are_an_error_whoever_reads_them(store: Store) -> None:
    again = encode([TableRow(PERSON, "nodes/elsewhere").record()])
    options = store.location.storage_options
    lance.write_dataset(again, store.manifest.table.uri(), mode="append", storage_options=options)

    for read_only in (True, False):
        with pytest.raises(CorruptGraphError, match="two rows") as failure:
            omnigraph.open(store.location.uri, read_only=read_only)
        assert failure.value.path == store.manifest.table.uri()
        assert failure.value.hint
    with pytest.raises(CorruptGraphError):
        store.manifest.publish(None, Changes(), {}, Lineage.new())
    assert store.manifest.table.open().version == 2


_KEYS = ["node:A", "node:B", "edge:A"]
_NUMBERS = st.integers(0, 6)
_ROWS = st.lists(
    st.one_of(
        st.builds(TableRow, st.sampled_from(_KEYS), st.sampled_from(["nodes/1", "nodes/2"])),
        st.builds(VersionRow, st.sampled_from(_KEYS), _NUMBERS, st.sampled_from([None, "x"]), _NUMBERS),
        st.builds(TombstoneRow, st.sampled_from(_KEYS), _NUMBERS),
        st.builds(Commit, st.sampled_from("abc"), st.none(), _NUMBERS, st.none(), st.none(), st.none(), _NUMBERS),
    ),
    unique_by=lambda row: _record(row)["object_id"],
)


def _plain_fold(rows: Sequence[Row]) -> dict[str, Entry]:
    """The fold, one row at a time."""
    paths = {row.table_key: row.path for row in rows if isinstance(row, TableRow)}
    newest: dict[str, VersionRow] = {}
    dead: dict[str, int] = {}
    for row in rows:
        if isinstance(row, VersionRow) and (row.table_key not in newest or newest[row.table_key].version < row.version):
            newest[row.table_key] = row
        if isinstance(row, TombstoneRow):
            dead[row.table_key] = max(row.version, dead.get(row.table_key, 0))
    return {
        key: Entry(TableVersion(key, paths[key], row.version, row.branch), row.row_count)
        for key, row in sorted(newest.items())
        if key not in dead or row.version > dead[key]
    }


@given(_ROWS)
def test_the_fold_over_columns_is_the_fold_row_by_row(state: State, rows: list[Row]) -> None:
    try:
        expected = _plain_fold(rows)
    except KeyError:
        with pytest.raises(CorruptGraphError):
            _ = state(*rows).snapshot
        return

    found = state(*rows)
    assert list(found.snapshot.entries.items()) == list(expected.items())
    commits = [row for row in rows if isinstance(row, Commit)]
    assert found.head == max(commits, key=lambda commit: commit.order, default=None)
    assert found.commits() == sorted(commits, key=lambda commit: commit.order)


@pytest.mark.slow
@given(_ROWS, _ROWS)
def test_rows_that_are_published_replace_those_of_the_same_objects(
    state: State, before: list[Row], published: list[Row]
) -> None:
    ids = {_record(row)["object_id"] for row in published}
    kept = [row for row in before if _record(row)["object_id"] not in ids]

    after = state(*before).rows_with(encode(_record(row) for row in published))

    assert _by_id(after) == _by_id(state(*kept, *published).rows)


def _by_id(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: str(row["object_id"]))


# Commits


def _commit(commit_id: str, version: int, at: int) -> Commit:
    return Commit(commit_id, None, version, None, None, None, at)


@pytest.mark.parametrize(
    "lesser, greater",
    [
        (_commit("z", 1, 9), _commit("a", 2, 1)),
        (_commit("z", 2, 1), _commit("a", 2, 9)),
        (_commit("a", 2, 9), _commit("z", 2, 9)),
    ],
    ids=["by manifest version", "then by time", "then by id"],
)
def test_the_head_is_the_greatest_commit(state: State, lesser: Commit, greater: Commit) -> None:
    for order in itertools.permutations([lesser, greater, _commit("0", 0, 99)]):
        found = state(*order)
        assert found.head == greater
        assert found.commits()[1:] == [lesser, greater]


def test_the_head_row_has_no_say_in_who_is_the_head(state: State) -> None:
    found = state(_commit("a", 1, 1), _commit("b", 2, 2), head_record(_commit("a", 1, 1)))

    assert found.head == _commit("b", 2, 2)
    assert state().head is None


def test_only_a_commit_is_found_by_the_id_of_a_commit(state: State) -> None:
    found = state(A, _commit("c", 1, 5))

    assert found.commit("c") == _commit("c", 1, 5)
    assert found.commit("node:A") is None
    assert found.commit("d") is None
    assert (found.has("node:A"), found.has("d")) == (True, False)


def test_a_merge_has_the_past_that_it_recorded_and_no_other_commit_has_one(state: State) -> None:
    past = MergedPast((_commit("c", 1, 5),), {"c": {"node:A": TableVersion("node:A", "nodes/a", 3, "side")}})
    found = state(A, _commit("m", 2, 6), past_record("m", past.to_document()))

    assert found.merged_past("m") == past
    assert found.merged_past("c") is None
    assert found.merged_pasts() == [past]


def test_a_table_is_placed_alike_at_the_same_version_of_the_same_fork(state: State) -> None:
    here = state(A, VersionRow("node:A", 3, "fork", 0))
    elsewhere, later, gone = (
        state(A, VersionRow("node:A", 3, "other", 0)),
        state(A, VersionRow("node:A", 4, "fork", 0)),
        state(A, VersionRow("node:A", 3, "fork", 0), TombstoneRow("node:A", 4)),
    )

    assert here.is_placed_alike("node:A", here)
    assert gone.is_placed_alike("node:A", gone)
    assert not any(here.is_placed_alike("node:A", other) for other in (elsewhere, later, gone))
    assert not gone.is_placed_alike("node:A", here)


# After a publish


def _ipc(state: ManifestState) -> bytes:
    plain = pa.schema([field.remove_metadata() for field in state.rows.schema])
    rows = state.rows.cast(plain).sort_by("object_id").combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _changes(company: str) -> list[Changes]:
    return [
        Changes(),
        Changes((VersionRow(PERSON, 2, None, 3), VersionRow(KNOWS, 2, None, 1))),
        Changes((VersionRow(PERSON, 3, "side", 4),)),
        Changes((VersionRow(PERSON, 3, None, 4),)),
        Changes((VersionRow("node:New", 1, None, 0),), (TableRow("node:New", "nodes/new"),)),
        Changes((), (), (TombstoneRow(COMPANY, 1),)),
        Changes((VersionRow(COMPANY, 2, None, 0),), (TableRow(COMPANY, company),)),
        Changes((VersionRow(PERSON, 4, None, 4),), (), (TombstoneRow(KNOWS, 2),)),
    ]


def test_the_state_after_a_publish_is_the_state_of_a_fresh_reopen(store: Store) -> None:
    for changes in _changes(store.manifest.load().paths[COMPANY]):
        published = store.manifest.publish(None, changes, {}, Lineage.new("ann")).state

        reopened = Store.at(store.location).manifest.load()
        assert published.version == reopened.version == published.dataset.version
        assert repr(published.snapshot).encode() == repr(reopened.snapshot).encode()
        assert _ipc(published) == _ipc(reopened)

    assert set(_pins(reopened)) == {PERSON, COMPANY, "edge:WorksAt", "node:New"}


def test_the_state_at_an_older_version_is_what_it_was(store: Store) -> None:
    before = store.manifest.load()
    store.manifest.publish(None, Changes((), (), (TombstoneRow(PERSON, 1),)), {PERSON: 1}, Lineage.new())

    assert PERSON not in store.manifest.load().snapshot.entries
    older = store.manifest.load(None, before.version)
    assert older.snapshot == before.snapshot
    assert PERSON in older.snapshot.entries
    assert older.commits() == before.commits()
