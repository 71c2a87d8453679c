"""Writes that are rejected, conflict with others, or are interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnigraph.errors.base import SHOWN, OmnigraphError, Place, shown_lines


class PlacedError(OmnigraphError, code="query_unsuitable", status=400):
    """The query does not fit the current state of the graph; `place` is the position in it, if known."""

    place: Place | None

    def __str__(self) -> str:
        if self.place is None:
            return super().__str__()
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{self.place}: {self.message}\n{self.place.underlined()}{hint}"

    def details(self) -> dict[str, Any]:
        place = self.place
        # Without the line of source itself: details go to logs and over the network.
        at = None if place is None else {"file": place.file, "line": place.line, "column": place.column}
        return {**super().details(), "place": at}


class ExpressionError(PlacedError, code="expression_undefined"):
    """An expression has no value for some entity: it divides by zero, overflows, or leaves the years 1 to 9999."""


class ValueRejectedError(PlacedError, code="value_rejected"):
    """A value does not fit its property. Nothing was changed."""

    type_name: str
    property: str


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule of the schema that one entity breaks.

    `rule` is one of required, enum, finite, range, check, unique, endpoint, cardinality; for loads also json, shape,
    type and key. `record` is the 0-based number of the statement or input record. `kind` is node or edge, if known.
    """

    rule: str
    type_name: str | None
    entity_id: str | None
    properties: tuple[str, ...]
    message: str
    record: int | None = None
    hint: str | None = None
    file: str | None = None
    line: int | None = None
    kind: str | None = None

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}: " if self.line is not None else f"{self.file}: " if self.file else ""
        return f"{at}{self.message}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "rule": self.rule,
            "type": self.type_name,
            "id": self.entity_id,
            "properties": list(self.properties),
            "message": self.message,
        }


class ConstraintError(PlacedError, code="constraint_violated"):
    """The change breaks a rule of the schema. Nothing was changed."""

    violations: tuple[Violation, ...]

    def details(self) -> dict[str, Any]:
        return {**super().details(), "violations": [violation.to_dict() for violation in self.violations]}


@dataclass(frozen=True, slots=True)
class ProblemCount:
    """How many problems of one rule and type a load has."""

    rule: str
    type_name: str | None
    count: int

    def __str__(self) -> str:
        return f"{self.count:,} {self.rule}" + (f" of {self.type_name}" if self.type_name else "")

    def to_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "type": self.type_name, "count": self.count}


class LoadRejectedError(OmnigraphError, code="load_rejected", status=400):
    """Records cannot be loaded; `violations` has the first problems, up to 1,000, in order. Nothing was changed.

    `counts` has the numbers of all problems, by rule and type; `rejects` of a load is the file that lists all of them.
    """

    violations: tuple[Violation, ...]
    counts: tuple[ProblemCount, ...] = ()  # an older server sends none

    @property
    def count(self) -> int:
        """The number of all problems."""
        return sum(one.count for one in self.counts) or len(self.violations)

    def __str__(self) -> str:
        shown = shown_lines(self.violations, self.count)
        if self.count > SHOWN and self.counts:
            shown += f"\n  in all: {', '.join(map(str, self.counts))}"
        return f"{self.message}\n{shown}" + (f"\nhint: {self.hint}" if self.hint else "")

    def details(self) -> dict[str, Any]:
        # A load can have as many violations as records; an answer carries the first ones and how many there are.
        return {
            "count": self.count,
            "counts": [one.to_dict() for one in self.counts],
            "violations": [violation.to_dict() for violation in self.violations[:SHOWN]],
        }


class KeyConflictError(LoadRejectedError, code="key_conflict", status=409):
    """An append has ids that already exist. Nothing was changed."""


class ResourceLimitError(OmnigraphError, code="resource_limit", status=413):
    """One change or read exceeds a limit. Nothing was changed."""

    resource: str
    limit: int
    actual: int


class PreconditionFailedError(OmnigraphError, code="precondition_failed", status=412):
    """The branch is not at the commit the caller expects. Nothing was changed."""

    expected: str
    actual: str | None


# Not a ConflictError: programs retry those, and a retry would repeat a change that may have taken effect.
class OutcomeUnknownError(OmnigraphError, code="outcome_unknown", status=503):
    """It is not known yet whether the change took effect; recovery completes or undoes it.

    Pass `operation_id` to `Graph.outcome` to find out. It is None for a request that makes no commit: list the branches
    and tags instead.
    """

    operation_id: str | None


# 409 for all of its kind, which a client may retry after reading again.
class ConflictError(OmnigraphError, code="conflict", status=409):
    """Another change came first. Nothing of this one is visible, unless the hint says that it may still be."""


class OperationDoneError(ConflictError, code="operation_done"):
    """A change with this operation id was already committed as `commit_id`; it was not repeated."""

    operation_id: str
    commit_id: str


class StreamBatchDoneError(ConflictError, code="stream_batch_done"):
    """The batch of the stream was committed before; it was not repeated. `commit_id` is known for the last only."""

    stream: str
    batch: int
    commit_id: str | None


class ExpectedVersionMismatchError(ConflictError, code="version_conflict"):
    """A table moved since the operation read it."""

    table_key: str
    expected: int
    actual: int


class ContentionError(ConflictError, code="contention"):
    """Other writers came first every time, and no retries are left."""

    attempts: int


class DriftError(ConflictError, code="drift"):
    """A table's head is past the version the graph records, and no pending operation explains it."""

    table_key: str
    pin: int
    head: int


class SchemaDriftError(ConflictError, code="schema_drift"):
    """The schema files and the graph disagree."""

    path: str


class GateTimeoutError(ConflictError, code="gate_timeout"):
    """Another writer, `holder`, held a lock for too long: the caller has waited for `waited` seconds."""

    gate: str
    holder: str
    waited: float


# 503: the same request succeeds after the recovery, which needs no person.
class RecoveryRequiredError(OmnigraphError, code="recovery_required", status=503):
    """An operation was interrupted. The next write or open completes or undoes it."""

    operation_id: str


class SidecarError(OmnigraphError, code="sidecar_unusable"):
    """A recovery record cannot be read or applied. It was left unchanged."""

    path: str


class SchemaUnsupportedError(OmnigraphError, code="schema_unsupported", status=400):
    """The schema change is not supported; `steps` lists the unsupported parts, with their codes."""

    steps: list[str]


class BranchesPresentError(ConflictError, code="branches_present"):
    """The operation needs a graph without branches other than main."""

    branches: list[str]


# Not conflicts, which programs retry: a person must decide which checkpoint, name or branch is right.
class StreamError(OmnigraphError, code="stream_refused", status=409):
    """A batch of a stream cannot be committed, or its branch cannot be merged. Nothing was changed."""

    stream: str


class StreamTakenError(StreamError, code="stream_taken"):
    """Another query, `query`, writes to the branch under the name of this stream."""

    query: str


class StreamGapError(StreamError, code="stream_gap"):
    """The batch is not the next one of its stream: the checkpoint does not belong to this state of the graph."""

    batch: int
    expected: int


class StreamCheckError(StreamError, code="stream_check_failed"):
    """A check found `rows` rows on the branch of the stream, so the branch was not merged."""

    check: str
    rows: int
