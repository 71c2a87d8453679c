"""The recovery record: what it says, when it is there, and what happens when it cannot be read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.commit import failpoints
from omnigraph.commit.audit import RecoveryKind
from omnigraph.commit.plan import PublishPlan, WriterKind
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.recovery import heal
from omnigraph.commit.sidecar import DIRECTORY, GROUP_VERSION, SCHEMA_VERSION, Sidecar
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import SidecarError
from omnigraph.lang.identity import new_id
from omnigraph.manifest.publisher import Lineage
from omnigraph.manifest.rows import TableRow, TombstoneRow
from omnigraph.storage.observe import counted
from tests.support.faults import add_company, doing, fork, interrupt, on_branch, pin_of, pins, small_graph, write_record
from tests.support.graphs import COMPANY, PERSON, append, company, contents, heads_and_pins, person, plan


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "graph"
    small_graph(str(path))
    return path


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Store:
    return Store.at(Location.parse(shutil.copytree(template, tmp_path / "graph")))


def two_tables(store: Store) -> PublishPlan:
    txn = begin(store)
    people = append(store, txn, PERSON, [person("dan")])
    return plan(txn, people, append(store, txn, COMPANY, [company("new")]), actor="ada")


def records(store: Store) -> dict[str, bytes]:
    """Everything in the directory of the records, by name."""
    directory = Path(store.location.child(DIRECTORY))
    return {path.name: path.read_bytes() for path in directory.iterdir()} if directory.exists() else {}


# What it says --------------------------------------------------------------------------------------


def test_it_is_there_before_the_first_head_moves_and_names_all_that_recovery_needs(store: Store) -> None:
    work = two_tables(store)
    operation_id = interrupt(store, work, failpoints.PUBLISH_AFTER_SIDECAR)
    assert all(head == pin for head, pin in heads_and_pins(store).values())
    (written,) = records(store).values()
    document = json.loads(written)
    tables = document.pop("tables")
    assert document.pop("started_at").isdigit()
    assert document.pop("rollback_commit_id") != operation_id == work.lineage.commit_id
    assert document == {
        "schema_version": SCHEMA_VERSION,
        "operation_id": operation_id,
        "actor_id": "ada",
        "writer_kind": "Mutation",
        "commit_id": work.lineage.commit_id,
    }
    assert [pin.pop("transaction_uuid") for pin in tables] == [action.staged.uuid for action in work.actions]
    assert len({pin.pop("rollback_uuid") for pin in tables}) == 2
    for pin, key in zip(tables, (PERSON, COMPANY), strict=True):
        assert (pin["table_key"], pin["expected_version"], pin["post_commit_pin"]) == (key, 2, 3)


@pytest.mark.parametrize("kind", list(WriterKind))
def test_it_names_who_writes(store: Store, kind: WriterKind) -> None:
    interrupt(store, replace(two_tables(store), kind=kind), failpoints.PUBLISH_AFTER_SIDECAR)
    (written,) = records(store).values()
    assert json.loads(written)["writer_kind"] == kind.value


def test_only_a_schema_apply_can_make_tables_come_and_go(store: Store) -> None:
    with pytest.raises(AssertionError, match="only a schema apply"):
        PublishPlan(begin(store), WriterKind.LOAD, (), (TableRow("node:City", "nodes/city"),))


def test_it_names_which_tables_come_and_go(store: Store) -> None:
    kind = WriterKind.SCHEMA_APPLY
    txn = begin(store)
    tombstones = (TombstoneRow(COMPANY, txn.entries[COMPANY].table.version + 1),)
    lineage = Lineage.new("ada", merged_parent_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    work = PublishPlan(txn, kind, (), (TableRow("node:City", "nodes/city"),), tombstones, lineage=lineage)
    interrupt(store, work, failpoints.PUBLISH_AFTER_SIDECAR)
    (written,) = records(store).values()
    document = json.loads(written)
    assert document["writer_kind"] == kind.value
    assert document["merge_source_commit_id"] == lineage.merged_parent_id
    assert document["additional_registrations"] == [{"table_key": "node:City", "table_path": "nodes/city"}]
    assert document["tombstones"] == [{"table_key": COMPANY, "tombstone_version": 3}]


def test_it_names_the_branch_of_the_graph_and_of_each_table(store: Store) -> None:
    fork(store, "feature")
    interrupt(store, on_branch(store, "feature"), failpoints.PUBLISH_AFTER_SIDECAR)
    (written,) = records(store).values()
    document = json.loads(written)
    assert document["branch"] == "feature"
    assert [pin["table_branch"].partition("/")[2] for pin in document["tables"]] == ["feature", "feature"]


def test_it_reads_back_as_it_was_written(store: Store) -> None:
    operation_id = interrupt(store, two_tables(store), failpoints.PUBLISH_AFTER_SIDECAR)
    found = store.sidecars.read(operation_id)
    assert found is not None
    store.sidecars.write(found)
    assert store.sidecars.read(operation_id) == found
    assert found.table_keys == [PERSON, COMPANY]


def test_it_is_gone_when_the_write_is_done(store: Store) -> None:
    seen = list[str]()
    with failpoints.armed(failpoints.PUBLISH_AFTER_MANIFEST, lambda: seen.extend(records(store))):
        publish(store, two_tables(store))
    assert len(seen) == 1
    assert records(store) == {}


def test_records_are_taken_oldest_first(store: Store) -> None:
    written = [write_record(store, "Mutation", []) for _ in range(5)]
    assert store.sidecars.pending() == written
    heal(store)
    assert [row.operation_id for row in store.audit.rows()] == written


def test_what_a_later_version_adds_to_a_record_is_passed_over(store: Store) -> None:
    operation_id = write_record(store, "Mutation", [pin_of(store, COMPANY) | {"mood": "fine"}], weather="rain")
    heal(store)
    assert [row.operation_id for row in store.audit.rows()] == [operation_id]


@pytest.mark.parametrize("name", ["notes.txt", "01ARZ3NDEKTSV4RRFFQ69G5FAV.json.bak", "x.JSON", "json", "sub/x.json"])
def test_what_is_no_record_by_its_name_is_passed_over(store: Store, name: str) -> None:
    store.objects.write(f"{DIRECTORY}/{name}", b"{")
    add_company(store, "later")
    omnigraph.open(store.location.uri)
    assert store.objects.read(f"{DIRECTORY}/{name}") == b"{"


# What cannot be read -------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "schema_version": 2,
    "started_at": "1760000000000000",
    "branch": None,
    "actor_id": "eve",
    "writer_kind": "Mutation",
    "tables": [{"table_key": COMPANY, "table_path": "x", "expected_version": 2, "post_commit_pin": 3}],
}


def _without(name: str) -> Callable[[str], Any]:
    return lambda operation_id: {
        key: value for key, value in ({"operation_id": operation_id} | GOOD).items() if key != name
    }


def _with(**fields: Any) -> Callable[[str], Any]:
    return lambda operation_id: {"operation_id": operation_id} | GOOD | fields


def _with_pin(**fields: Any) -> Callable[[str], Any]:
    return _with(tables=[GOOD["tables"][0] | fields])


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{'schema_version': 2}",
    "no text": b"\xff\xfe\xfd",
    "zeros": bytes(64),
    "a list": b"[]",
    "null": b"null",
    "a number": b"3",
    "nothing in it": b"{}",
    "too deep": b'{"schema_version": 2, "tables": ' + b"[" * 100_000,
    "an endless version": b'{"schema_version": 1e999}',
    "a worded version": b'{"schema_version": "latest"}',
    "no version": b'{"schema_version": null}',
}
WRONG: dict[str, Callable[[str], Any]] = {
    "no operation": _without("operation_id"),
    "no writer": _without("writer_kind"),
    "no tables": _without("tables"),
    "an operation of another name": _with(operation_id="01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    "an operation outside": _with(operation_id="../_schema"),
    "an operation that is a number": _with(operation_id=5),
    "an unknown writer": _with(writer_kind="Wizard"),
    "a writer that is a number": _with(writer_kind=5),
    "a branch that is a number": _with(branch=5),
    "a branch that is a list": _with(branch=["feature"]),
    "an actor that is a number": _with(actor_id=5),
    "a commit that is a number": _with(commit_id=5),
    "tables that are a number": _with(tables=5),
    "tables that are null": _with(tables=None),
    "tables that are a text": _with(tables="all"),
    "tables by name": _with(tables={COMPANY: {}}),
    "a table that is a text": _with(tables=[COMPANY]),
    "a table without anything": _with(tables=[{}]),
    "a version that is a text": _with_pin(expected_version="2"),
    "a version that is null": _with_pin(expected_version=None),
    "a goal that is a text": _with_pin(post_commit_pin="3"),
    "a confirmation that is a text": _with_pin(confirmed_version="3"),
    "a key that is a number": _with_pin(table_key=5),
    "a table's branch that is a number": _with_pin(table_branch=5),
    "a transaction that is a number": _with_pin(transaction_uuid=5),
    "registrations that are a number": _with(additional_registrations=5),
    "a registration of nothing": _with(additional_registrations=[{}]),
    "a tombstone of nothing": _with(tombstones=[{}]),
    "a tombstone at a text": _with(tombstones=[{"table_key": COMPANY, "tombstone_version": "2"}]),
}


def _leave(store: Store, data: bytes | Callable[[str], Any]) -> str:
    """Leave a record that cannot be acted on; returns its path."""
    operation_id = new_id()
    path = f"{DIRECTORY}/{operation_id}.json"
    store.objects.write(path, data if isinstance(data, bytes) else json.dumps(data(operation_id)).encode())
    return path


@pytest.mark.parametrize("data", [data for data in BROKEN.values() if not _is_json(data)])
def test_a_record_that_a_power_cut_tore_is_set_aside_and_recorded(store: Store, data: bytes) -> None:
    path = _leave(store, data)
    before = store.manifest.load().version, heads_and_pins(store), contents(store)
    assert omnigraph.open(store.location.uri, read_only=True).snapshot().entries
    assert list(records(store)) == [Path(path).name], "a reader changes nothing"
    add_company(store, "later")
    assert store.sidecars.pending() == []
    assert store.objects.read(f"{path}.torn") == data
    assert [row.kind for row in store.audit.rows()] == [RecoveryKind.TORN_SET_ASIDE]
    assert store.manifest.load().version == before[0] + 1


def test_a_file_that_is_no_record_by_its_name_is_in_nobodys_way(store: Store) -> None:
    for name in ("notes.json", "x.json", "README.md"):
        store.objects.write(f"{DIRECTORY}/{name}", b"{")
    add_company(store, "later")
    omnigraph.open(store.location.uri)
    assert store.sidecars.pending() == []
    assert store.sidecars.strays() == ["README.md", "notes.json", "x.json"]


@pytest.mark.parametrize(
    "data",
    [*(data for data in BROKEN.values() if _is_json(data)), *WRONG.values()],
    ids=[*(name for name, data in BROKEN.items() if _is_json(data)), *WRONG],
)
def test_a_record_that_makes_no_sense_is_refused_and_kept(store: Store, data: bytes | Callable[[str], Any]) -> None:
    path = _leave(store, data)
    before = records(store), store.manifest.load().version, heads_and_pins(store)
    with pytest.raises(SidecarError) as caught:
        heal(store)
    assert (caught.value.path, path in str(caught.value)) == (path, True)
    assert (records(store), store.manifest.load().version, heads_and_pins(store)) == before
    assert store.audit.rows() == []


def test_a_good_record_differs_from_a_wrong_one_in_one_thing_only(store: Store) -> None:
    _leave(store, _with())
    assert heal(store) == 1


def test_no_part_of_a_record_is_taken_for_a_record(store: Store) -> None:
    operation_id = interrupt(store, two_tables(store), failpoints.PUBLISH_AFTER_SIDECAR)
    path = Path(store.location.child(DIRECTORY, f"{operation_id}.json"))
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert store.sidecars.read(operation_id) is None


def test_a_record_of_a_later_version_asks_for_an_upgrade(store: Store) -> None:
    path = _leave(store, _with(schema_version=GROUP_VERSION + 1, tables="in a new shape"))
    with pytest.raises(SidecarError, match="upgrade") as caught:
        heal(store)
    assert (caught.value.path, f"version {GROUP_VERSION + 1}" in str(caught.value)) == (path, True)


@pytest.mark.parametrize("data", [_with(schema_version=99), WRONG["no writer"]])
def test_a_record_that_makes_no_sense_stops_writers_and_no_readers(
    store: Store, data: bytes | Callable[[str], Any]
) -> None:
    graph = omnigraph.open(store.location.uri)
    work = two_tables(store)
    path = _leave(store, data)
    before = records(store), pins(store), contents(store)

    for attempt in (graph.refresh, doing(omnigraph.open, store.location.uri), doing(add_company, store, "later")):
        with pytest.raises(SidecarError) as caught:
            attempt()
        assert caught.value.path == path
    with counted() as requests:
        reader = omnigraph.open(store.location.uri, read_only=True)
        reader.refresh()
        assert reader.snapshot().entries[COMPANY].table.version == 2
    assert requests.writes == 0
    assert (records(store), pins(store), contents(store)) == before

    store.objects.delete(path)
    publish(store, work)
    omnigraph.open(store.location.uri)


def test_a_record_that_names_no_table_of_the_graph_is_kept(store: Store) -> None:
    path = _leave(store, _with_pin(table_key="node:Nobody", table_path="nodes/nobody"))
    with pytest.raises(omnigraph.errors.OmnigraphError, match=r"nodes/nobody|node:Nobody"):
        heal(store)
    assert list(records(store)) == [Path(path).name]
    assert store.audit.rows() == []


@pytest.mark.parametrize("missing", ["transaction_uuid", "commit_id", "rollback_commit_id"])
def test_a_record_of_our_own_version_without_its_ids_is_refused(store: Store, missing: str) -> None:
    operation_id = interrupt(store, two_tables(store), failpoints.PUBLISH_BEFORE_MANIFEST)
    path = Path(store.location.child(DIRECTORY, f"{operation_id}.json"))
    document = json.loads(path.read_bytes())
    for owner in (document, *document["tables"]):
        owner.pop(missing, None)
    path.write_text(json.dumps(document))
    with pytest.raises(SidecarError):
        heal(store)
    assert store.audit.rows() == []


def test_reading_a_record_that_is_gone_finds_nothing(store: Store) -> None:
    found: Sidecar | None = store.sidecars.read("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert found is None
