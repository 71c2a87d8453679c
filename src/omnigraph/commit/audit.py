"""The audit log of recoveries: one row for every operation that was finished or undone for a writer that could not."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from omnigraph.commit import failpoints
from omnigraph.errors import StorageError
from omnigraph.storage.internal import InternalTable
from omnigraph.storage.lance_errors import Kind, classify
from omnigraph.storage.location import Location

PATH = "_graph_commit_recoveries.lance"
_SCHEMA = pa.schema(
    [
        pa.field("graph_commit_id", pa.string(), nullable=False),
        pa.field("recovery_kind", pa.string(), nullable=False),
        pa.field("recovery_for_actor", pa.string()),
        pa.field("operation_id", pa.string(), nullable=False),
        pa.field("sidecar_writer_kind", pa.string(), nullable=False),
        pa.field("per_table_outcomes_json", pa.string(), nullable=False),
        pa.field("created_at", pa.timestamp("us"), nullable=False),
    ]
)


class RecoveryKind(StrEnum):
    ROLLED_FORWARD = "RolledForward"
    ROLLED_BACK = "RolledBack"
    ORPHANED_BRANCH_DISCARDED = "OrphanedBranchDiscarded"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one table."""

    table_key: str
    from_version: int
    to_version: int


@dataclass(frozen=True, slots=True)
class AuditRow:
    graph_commit_id: str
    kind: RecoveryKind
    actor: str | None
    operation_id: str
    writer_kind: str
    outcomes: tuple[Outcome, ...]


class Audit:
    def __init__(self, location: Location) -> None:
        self._table = InternalTable(location, PATH)

    def rows(self) -> list[AuditRow]:
        try:
            found = self._table.open().to_table().to_pylist()
        except StorageError as error:
            if classify(error) is Kind.NOT_FOUND:
                return []
            raise
        return [_row(record) for record in found]

    def has(self, operation_id: str) -> bool:
        return any(row.operation_id == operation_id for row in self.rows())

    def record(self, row: AuditRow) -> None:
        """Append a row, once per operation however often recovery comes by."""
        failpoints.reach(failpoints.RECOVERY_RECORD_AUDIT)
        if self.has(row.operation_id):
            return
        rows = pa.Table.from_pylist([_record(row)], schema=_SCHEMA)
        if not self._table.create(rows):
            self._table.append(rows)


def _record(row: AuditRow) -> dict[str, object]:
    return {
        "graph_commit_id": row.graph_commit_id,
        "recovery_kind": row.kind.value,
        "recovery_for_actor": row.actor,
        "operation_id": row.operation_id,
        "sidecar_writer_kind": row.writer_kind,
        "per_table_outcomes_json": _outcomes_json(row.outcomes),
        "created_at": dt.datetime.now(dt.UTC).replace(tzinfo=None),
    }


def _outcomes_json(outcomes: Sequence[Outcome]) -> str:
    plain = [
        {"table_key": outcome.table_key, "from_version": outcome.from_version, "to_version": outcome.to_version}
        for outcome in outcomes
    ]
    return json.dumps(plain, separators=(",", ":"))


def _row(record: dict[str, str]) -> AuditRow:
    outcomes = tuple(Outcome(**outcome) for outcome in json.loads(record["per_table_outcomes_json"]))
    return AuditRow(
        record["graph_commit_id"],
        RecoveryKind(record["recovery_kind"]),
        record["recovery_for_actor"],
        record["operation_id"],
        record["sidecar_writer_kind"],
        outcomes,
    )
