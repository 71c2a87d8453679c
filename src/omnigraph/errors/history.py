"""Branches, tags, merges, changes and maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnigraph.errors.base import OmnigraphError, shown_lines
from omnigraph.errors.writing import ConflictError


class RefNameError(OmnigraphError, code="invalid_name", status=400):
    """The name is invalid or reserved for branches and tags."""

    name: str


class AmbiguousRefError(RefNameError, code="ambiguous_name"):
    """Several commit ids begin with the prefix; `candidates` lists them."""

    candidates: list[str]


# A conflict and not an invalid name: the name is right, and free again once the other is deleted.
class RefExistsError(ConflictError, code="already_exists"):
    """A branch or tag of that name exists, or one whose path would contain it."""

    name: str


class BranchInUseError(ConflictError, code="branch_in_use"):
    """The branch cannot be deleted: other branches were made from it."""

    branch: str


class TagNotFoundError(OmnigraphError, code="tag_not_found", status=404):
    """The graph has no such tag."""

    tag: str


class EntityNotFoundError(OmnigraphError, code="entity_not_found", status=404):
    """The state has no such entity."""

    type_name: str
    id: str


class BranchProtectedError(OmnigraphError, code="branch_protected", status=403):
    """The rule of the branch does not allow the write. Nothing was changed."""

    branch: str


class RequestNotFoundError(OmnigraphError, code="request_not_found", status=404):
    """The graph has no such merge request."""

    request_id: str


class RequestStateError(ConflictError, code="request_state"):
    """The merge request is merged or closed already, or there is nothing to merge."""

    request_id: str


class ApprovalRefusedError(OmnigraphError, code="approval_refused", status=403):
    """The actor may not approve the merge request. Nothing was changed."""

    request_id: str


class CheckFailedError(OmnigraphError, code="check_failed", status=409):
    """A check of a merge request found rows on the merged state, or could not be run. Nothing was changed."""

    check: str
    rows: int


class HookError(OmnigraphError, code="hook_refused", status=409):
    """A hook refused a merge, took too long, or may not be called. Nothing was changed."""

    hook: str


class MergeError(OmnigraphError, code="merge_impossible", status=400):
    """The two branches cannot be merged at all."""

    source: str
    target: str


class SchemaBoundaryError(ConflictError, code="schema_boundary"):
    """The operation would combine two states with different schemas."""


class ResolutionError(OmnigraphError, code="resolution_invalid", status=400):
    """The conflict resolution is invalid."""


class ResolutionStaleError(OmnigraphError, code="resolution_stale", status=409):
    """The conflict resolution was made for another merge, or a branch has moved since. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class PropertyConflict:
    """A property that both sides of a merge changed differently, with its values as JSON has them.

    A value that is too large to read is shown by its size and digest. Without `has_base` there was none before.
    """

    name: str
    base: Any
    ours: Any
    theirs: Any
    has_base: bool = True

    def to_dict(self) -> dict[str, Any]:
        return ({"base": self.base} if self.has_base else {}) | {"ours": self.ours, "theirs": self.theirs}

    @classmethod
    def of(cls, name: str, document: Mapping[str, Any]) -> PropertyConflict:
        return cls(name, document.get("base"), document["ours"], document["theirs"], "base" in document)


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """One conflict between the two sides of a merge.

    `properties` are those that contradict each other, and `combined` those of the same entity that do not.
    """

    kind: str
    table_key: str
    id: str | None
    message: str
    properties: tuple[PropertyConflict, ...] = ()
    combined: tuple[str, ...] = ()
    # Of a conflict between two schemas: the type or property, such as `node:Person.age`.
    schema: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        entity_kind, _, type_name = self.table_key.partition(":")
        return {
            # Each fact has two names: programs that speak of tables and rows read one, those of entities the other.
            "kind": self.kind,
            "table_key": self.table_key,
            "row_id": self.id,
            "entity_kind": entity_kind,
            "type_name": type_name,
            "entity_id": self.id,
            "message": self.message,
            **({"properties": {one.name: one.to_dict() for one in self.properties}} if self.properties else {}),
            **({"combined": list(self.combined)} if self.combined else {}),
            **({"schema": self.schema} if self.schema else {}),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> MergeConflict:
        """Read a conflict as `to_dict` writes it."""
        found = tuple(PropertyConflict.of(name, one) for name, one in document.get("properties", {}).items())
        kind, table_key, id_, message = (document[name] for name in ("kind", "table_key", "row_id", "message"))
        combined, schema = tuple(document.get("combined", ())), document.get("schema")
        return cls(kind, table_key, id_, message, found, combined, schema)


class MergeConflictError(OmnigraphError, code="merge_conflict", status=409):
    """The merge or revert has conflicts. `conflicts` lists them, of a large table the first. Nothing was changed."""

    conflicts: tuple[MergeConflict, ...]

    def __str__(self) -> str:
        return f"{self.message}\n{shown_lines(self.conflicts)}" + (f"\nhint: {self.hint}" if self.hint else "")

    def details(self) -> dict[str, Any]:
        return {"merge_conflicts": [conflict.to_dict() for conflict in self.conflicts]}


# 410 and not 404: the state existed and will not come back, so a follower must begin with a new baseline.
class HistoryReclaimedError(OmnigraphError, code="history_reclaimed", status=410):
    """Cleanup removed this state; `commit_id` is the first commit that cannot be read."""

    commit_id: str


class ChangeRequestError(OmnigraphError, code="change_request", status=400):
    """A request for changes names something that does not exist, in `option`."""

    option: str


class ChangeCursorError(OmnigraphError, code="change_cursor_rejected", status=400):
    """The cursor or page token belongs to another graph, branch or filter."""


class ChangeRefusedError(OmnigraphError, code="change_diff_refusal", status=409):
    """The changes of a commit cannot be computed: it has no parent, or it changed the schema."""

    commit_id: str
    reason: str


class RetentionError(OmnigraphError, code="retention_missing", status=400):
    """A cleanup was requested without saying what to keep."""


class RepairError(OmnigraphError, code="repair_invalid", status=400):
    """The repair request is invalid, or lacks its confirmation."""
