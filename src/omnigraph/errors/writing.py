"""Changes that are refused, that lose to others, or that stop half-way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnigraph.errors.base import OmnigraphError, Place

_SHOWN_VIOLATIONS = 20


class PlacedError(OmnigraphError):
    """A query that does not suit the graph as it is; `place` says where in it, if that is known."""

    code = "query_unsuitable"
    http_status = 400
    place: Place | None

    def __str__(self) -> str:
        if self.place is None:
            return super().__str__()
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{self.place}: {self.message}\n{self.place.underlined()}{hint}"

    def details(self) -> dict[str, Any]:
        place = self.place
        at = None if place is None else {"file": place.file, "line": place.line, "column": place.column}
        return {**super().details(), "place": at}


class ValueRejectedError(PlacedError):
    """A value does not fit the property it is for. Nothing was changed."""

    code = "value_rejected"
    type_name: str
    property: str


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that one entity would break.

    `rule` is what it breaks: required, enum, finite, range, check, unique, endpoint, cardinality; for input that is
    loaded also json, shape, type and key. `record` is the number of the statement or of the input record that brings
    the entity, from 0, if one does. `kind` is node or edge, where that is known.
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


class ConstraintError(PlacedError):
    """The change would break a rule of the schema. Nothing was changed."""

    code = "constraint_violated"
    violations: tuple[Violation, ...]

    def details(self) -> dict[str, Any]:
        return {**super().details(), "violations": [violation.to_dict() for violation in self.violations]}


class LoadRejectedError(OmnigraphError):
    """Records that cannot be loaded; `violations` are all of them, in order. Nothing was changed."""

    code = "load_rejected"
    http_status = 400
    violations: tuple[Violation, ...]

    def __str__(self) -> str:
        shown = "\n".join(f"  {violation}" for violation in self.violations[:_SHOWN_VIOLATIONS])
        rest = len(self.violations) - _SHOWN_VIOLATIONS
        more = f"\n  and {rest:,} more" if rest > 0 else ""
        return f"{self.message}\n{shown}{more}" + (f"\nhint: {self.hint}" if self.hint else "")

    def details(self) -> dict[str, Any]:
        shown = self.violations[:_SHOWN_VIOLATIONS]
        return {"count": len(self.violations), "violations": [violation.to_dict() for violation in shown]}


class KeyConflictError(LoadRejectedError):
    """Records of an append whose ids are there already. Nothing was changed."""

    code = "key_conflict"
    http_status = 409


class ResourceLimitError(OmnigraphError):
    """There is more of something in one change, or in one read, than is allowed. Nothing was changed."""

    code = "resource_limit"
    http_status = 413
    resource: str
    limit: int
    actual: int


class PreconditionFailedError(OmnigraphError):
    """The branch is not at the commit that the caller named. Nothing was changed."""

    code = "precondition_failed"
    http_status = 412
    expected: str
    actual: str | None


class OutcomeUnknownError(OmnigraphError):
    """The change was prepared, but whether it took effect is not known yet: ask with `Graph.outcome`.

    Recovery finishes or undoes it. `operation_id` is what to ask about. It is None if the answer of a server is lost to
    a request that makes no commit: then the branches and tags tell.
    """

    code = "outcome_unknown"
    http_status = 503
    operation_id: str | None


class ConflictError(OmnigraphError):
    """Somebody else's change came first. Nothing of this one is visible, unless the hint says that it may become so."""

    code = "conflict"
    http_status = 409


class OperationDoneError(ConflictError):
    """A change with this id was made before; it was not made again. `commit_id` is the commit of then."""

    code = "operation_done"
    operation_id: str
    commit_id: str


class ExpectedVersionMismatchError(ConflictError):
    """A table is not at the version that the operation was prepared on."""

    code = "version_conflict"
    table_key: str
    expected: int
    actual: int


class ContentionError(ConflictError):
    """Other writers came first each time; all retries are used up."""

    code = "contention"
    attempts: int


class DriftError(ConflictError):
    """A table's head is past its pin and no pending operation explains it."""

    code = "drift"
    table_key: str
    pin: int
    head: int


class SchemaDriftError(ConflictError):
    """The schema files of the graph do not belong together."""

    code = "schema_drift"
    path: str


class GateTimeoutError(ConflictError):
    """Another writer held a gate for too long; `holder` is who."""

    code = "gate_timeout"
    gate: str
    holder: str


class RecoveryRequiredError(OmnigraphError):
    """An operation stopped half-way. The next write or open finishes or undoes it."""

    code = "recovery_required"
    http_status = 503
    operation_id: str


class SidecarError(OmnigraphError):
    """A recovery record that cannot be read or acted on; it was left as it is."""

    code = "sidecar_unusable"
    path: str


class SchemaUnsupportedError(OmnigraphError):
    """A change of the schema that cannot be made; `steps` says which parts of it, each with its code if it has one."""

    code = "schema_unsupported"
    http_status = 400
    steps: list[str]


class BranchesPresentError(ConflictError):
    """Something that can only be done when there is no branch but main."""

    code = "branches_present"
    branches: list[str]
