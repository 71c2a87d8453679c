"""The audit log of recoveries: one row for each operation that recovery finished or undid."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import lance
import pyarrow as pa

from omnigraph.commit import failpoints
from omnigraph.core.location import Location
from omnigraph.errors import ConflictError, ContentionError, StorageError
from omnigraph.storage.internal import PRIMARY_KEY_MARK, InternalTable, primary_key
from omnigraph.storage.lance_errors import Failure, classify, lance_call

PATH = "_graph_commit_recoveries.lance"
KEY = "operation_id"
# More than a publish has: every process that opens the graph after a crash records the same operation at once.
_ATTEMPTS = 16
_SCHEMA = pa.schema(
    [
        pa.field("graph_commit_id", pa.string(), nullable=False),
        pa.field("recovery_kind", pa.string(), nullable=False),
        pa.field("recovery_for_actor", pa.string()),
        # With this mark, Lance rejects a second row of one operation.
        pa.field(KEY, pa.string(), nullable=False, metadata={PRIMARY_KEY_MARK: "true"}),
        pa.field("sidecar_writer_kind", pa.string(), nullable=False),
        pa.field("per_table_outcomes_json", pa.string(), nullable=False),
        pa.field("created_at", pa.timestamp("us"), nullable=False),
    ]
)


class RecoveryKind(StrEnum):
    ROLLED_FORWARD = "RolledForward"
    ROLLED_BACK = "RolledBack"
    ORPHANED_BRANCH_DISCARDED = "OrphanedBranchDiscarded"
    TORN_SET_ASIDE = "TornSetAside"


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """The versions of one table before and after a recovery."""

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
    outcomes: tuple[TableOutcome, ...]


class Audit:
    def __init__(self, location: Location) -> None:
        self._table = InternalTable(location, PATH)

    def rows(self) -> list[AuditRow]:
        try:
            dataset = self._table.open()
            with lance_call(dataset.uri, "read"):
                found = dataset.to_table().to_pylist()
        except StorageError as error:
            if classify(error) is Failure.NOT_FOUND:
                return []
            raise
        return [_row(record) for record in found]

    def has(self, operation_id: str) -> bool:
        return any(row.operation_id == operation_id for row in self.rows())

    def record(self, row: AuditRow) -> None:
        """Add the row of an operation once, however many recoveries record it, and in parallel."""
        failpoints.reach(failpoints.RECOVERY_RECORD_AUDIT)
        for _ in range(_ATTEMPTS):
            try:
                if self._add(row):
                    return
            except ConflictError:
                continue
        raise ContentionError(
            f"{_ATTEMPTS} attempts to write `{PATH}` lost to other writers", attempts=_ATTEMPTS, hint="try again"
        )

    def _add(self, row: AuditRow) -> bool:
        """Add a row unless the operation has one; return False if the table appeared meanwhile and must be read."""
        rows = pa.Table.from_pylist([_record(row)], schema=_SCHEMA)
        dataset = self._opened()
        if dataset is None:
            return self._table.create(rows)
        if not primary_key(dataset) and not dataset.schema.field(KEY).nullable:  # an earlier release made it
            self._table.mark_primary_key(dataset, KEY)
        # Checked on the handle that the merge compares with: a row that arrives later conflicts, and we look again.
        with lance_call(dataset.uri, "read"):
            known = dataset.to_table(columns=[KEY])[KEY].to_pylist()
        if row.operation_id not in known:
            self._table.merge(dataset, KEY, rows)
        return True

    def _opened(self) -> lance.LanceDataset | None:
        """Open the log; None if there is none. What a death or a power cut left of it must not block recoveries."""
        try:
            return self._table.open_if_exists()
        except StorageError:
            if self._table.newest() is None:  # its maker died after its first file and before its first version
                return None
            if not self._table.set_aside_torn():
                raise
        return self._opened()


def _record(row: AuditRow) -> dict[str, object]:
    return {
        "graph_commit_id": row.graph_commit_id,
        "recovery_kind": row.kind.value,
        "recovery_for_actor": row.actor,
        KEY: row.operation_id,
        "sidecar_writer_kind": row.writer_kind,
        "per_table_outcomes_json": _outcomes_json(row.outcomes),
        # UTC without a zone, as the column is in graphs of earlier releases.
        "created_at": dt.datetime.now(dt.UTC).replace(tzinfo=None),
    }


def _outcomes_json(outcomes: Sequence[TableOutcome]) -> str:
    plain = [
        {"table_key": outcome.table_key, "from_version": outcome.from_version, "to_version": outcome.to_version}
        for outcome in outcomes
    ]
    return json.dumps(plain, separators=(",", ":"))


def _row(record: dict[str, str]) -> AuditRow:
    outcomes = tuple(TableOutcome(**outcome) for outcome in json.loads(record["per_table_outcomes_json"]))
    return AuditRow(
        record["graph_commit_id"],
        RecoveryKind(record["recovery_kind"]),
        record["recovery_for_actor"],
        record["operation_id"],
        record["sidecar_writer_kind"],
        outcomes,
    )
