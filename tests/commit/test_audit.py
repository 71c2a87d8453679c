"""The audit log of recoveries: what a row holds, and that there is one of them."""

from __future__ import annotations

import datetime as dt
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph.commit.audit import PATH, Audit, AuditRow, RecoveryKind, TableOutcome
from omnigraph.core.location import Location
from omnigraph.errors import StorageError
from omnigraph.storage import observe
from omnigraph.storage.internal import InternalTable
from tests.support.faults import failing
from tests.support.old_graphs import _remove as remove


@pytest.fixture
def location(root_uri: str) -> Location:
    return Location.parse(root_uri)


@pytest.fixture
def audit(location: Location) -> Audit:
    return Audit(location)


def a_row(operation_id: str, kind: RecoveryKind = RecoveryKind.ROLLED_BACK, actor: str | None = "ada") -> AuditRow:
    outcomes = (TableOutcome("node:Person", 3, 2), TableOutcome("edge:Knows", 7, 5))
    return AuditRow(f"commit of {operation_id}", kind, actor, operation_id, "Mutation", outcomes)


def test_without_recoveries_there_is_no_row_and_nothing_is_made(audit: Audit, location: Location) -> None:
    assert audit.rows() == []
    assert InternalTable(location, PATH).open_if_exists() is None


def test_a_row_has_the_columns_that_other_tools_expect(audit: Audit, location: Location) -> None:
    begin = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    audit.record(a_row("one"))
    stored = InternalTable(location, PATH).open().to_table()
    assert {field.name: field.type for field in stored.schema} == {
        "graph_commit_id": pa.string(),
        "recovery_kind": pa.string(),
        "recovery_for_actor": pa.string(),
        "operation_id": pa.string(),
        "sidecar_writer_kind": pa.string(),
        "per_table_outcomes_json": pa.string(),
        "created_at": pa.timestamp("us"),
    }
    assert [field.name for field in stored.schema if field.nullable] == ["recovery_for_actor"]
    (row,) = stored.to_pylist()
    assert begin <= row.pop("created_at") <= dt.datetime.now(dt.UTC).replace(tzinfo=None)
    assert json.loads(row.pop("per_table_outcomes_json")) == [
        {"table_key": "node:Person", "from_version": 3, "to_version": 2},
        {"table_key": "edge:Knows", "from_version": 7, "to_version": 5},
    ]
    assert row == {
        "graph_commit_id": "commit of one",
        "recovery_kind": "RolledBack",
        "recovery_for_actor": "ada",
        "operation_id": "one",
        "sidecar_writer_kind": "Mutation",
    }


def test_rows_read_back_as_they_were_recorded(audit: Audit) -> None:
    rows = [
        a_row(kind.value, kind, actor) for kind, actor in zip(RecoveryKind, ("ada", None, "bob", None), strict=True)
    ]
    for row in rows:
        audit.record(row)
    assert audit.rows() == rows
    kinds = ["RolledForward", "RolledBack", "OrphanedBranchDiscarded", "TornSetAside"]
    assert [row.kind.value for row in rows] == kinds


def test_an_operation_is_recorded_once_and_the_first_record_stands(audit: Audit) -> None:
    audit.record(a_row("one"))
    audit.record(a_row("one", RecoveryKind.ROLLED_FORWARD))
    audit.record(a_row("two"))
    audit.record(a_row("one"))
    assert audit.rows() == [a_row("one"), a_row("two")]


@pytest.mark.parametrize("operation, before", [("create", []), ("publish", ["zero"])])
def test_a_row_that_cannot_be_written_is_an_error_and_is_written_later(
    audit: Audit, operation: str, before: list[str]
) -> None:
    rows = [a_row(operation_id) for operation_id in before]
    for row in rows:
        audit.record(row)
    with failing(operation, PATH), pytest.raises(StorageError):
        audit.record(a_row("one"))
    assert audit.rows() == rows
    audit.record(a_row("one"))
    assert audit.rows() == [*rows, a_row("one")]


def test_one_who_comes_second_to_making_the_log_adds_to_it(audit: Audit, location: Location) -> None:
    def come_first(operation: str, _: str) -> None:
        if operation == "create":
            observe.set_write_hook(None)
            Audit(location).record(a_row("first"))

    observe.set_write_hook(come_first)
    try:
        audit.record(a_row("second"))
    finally:
        observe.set_write_hook(None)
    assert audit.rows() == [a_row("first"), a_row("second")]


@pytest.mark.slow
def test_those_who_make_the_log_at_once_are_all_in_it(tmp_path: Path) -> None:
    """Lance alone lets a second one overwrite what the first created, more often than not."""
    all_see_none = threading.Barrier(4, timeout=300)

    def meet(operation: str, _: str) -> None:
        if operation == "create":
            all_see_none.wait()

    rows = [a_row(str(number)) for number in range(4)]
    observe.set_write_hook(meet)
    try:
        for attempt in range(8):
            audit = Audit(Location.parse(tmp_path / f"graph{attempt}"))
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(audit.record, rows))
            assert sorted(row.operation_id for row in audit.rows()) == ["0", "1", "2", "3"]
    finally:
        observe.set_write_hook(None)


# What a death or a power cut leaves of the log -----------------------------------------------------


def test_a_log_whose_maker_died_before_its_first_version_is_made_again(audit: Audit, location: Location) -> None:
    """The defect: its files were there, it could not be opened, and so every write that had to recover failed."""
    audit.record(a_row("one"))
    for part in ("_versions", "_transactions"):
        remove(location, f"{PATH}/{part}")
    assert audit.rows() == []
    audit.record(a_row("two"))
    audit.record(a_row("three"))
    assert [row.operation_id for row in audit.rows()] == ["two", "three"]


@pytest.mark.parametrize("rows", [1, 2])
def test_a_version_of_the_log_that_a_power_cut_tore_is_set_aside(tmp_path: Path, rows: int) -> None:
    audit = Audit(Location.parse(tmp_path))
    for number in range(rows):
        audit.record(a_row(f"row {number}"))
    newest = min((tmp_path / PATH / "_versions").glob("*.manifest"))
    newest.write_bytes(b"")
    audit.record(a_row("later"))
    assert [row.operation_id for row in audit.rows()] == [*(f"row {number}" for number in range(rows - 1)), "later"]
    assert newest.with_name(f"{newest.name}.torn").exists()
