"""Branches, merges, tags, and what changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnigraph.errors.base import OmnigraphError
from omnigraph.errors.writing import ConflictError

_SHOWN_CONFLICTS = 20


class RefNameError(OmnigraphError):
    """A name that no branch or tag can have, or that is reserved."""

    code = "invalid_name"
    http_status = 400
    name: str


class RefExistsError(ConflictError):
    """There is a branch or tag of that name, or one that its name would lie below or above."""

    code = "already_exists"
    name: str


class BranchInUseError(ConflictError):
    """A branch that cannot be deleted, for others were made from it."""

    code = "branch_in_use"
    branch: str


class TagNotFoundError(OmnigraphError):
    """No such tag."""

    code = "tag_not_found"
    http_status = 404
    tag: str


class MergeError(OmnigraphError):
    """Two branches that cannot be merged at all."""

    code = "merge_impossible"
    http_status = 400
    source: str
    target: str


class SchemaBoundaryError(ConflictError):
    """Something that would bring together two states of the graph that have different schemas."""

    code = "schema_boundary"


class ResolutionError(OmnigraphError):
    """A resolution of conflicts that says nothing that can be done."""

    code = "resolution_invalid"
    http_status = 400


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """One thing that two sides of a merge did not leave to each other."""

    kind: str
    table_key: str
    id: str | None
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        entity_kind, _, type_name = self.table_key.partition(":")
        return {
            "kind": self.kind,
            "table_key": self.table_key,
            "row_id": self.id,
            "entity_kind": entity_kind,
            "type_name": type_name,
            "entity_id": self.id,
            "message": self.message,
        }


class MergeConflictError(OmnigraphError):
    """A merge or revert that was refused, for the two sides contradict each other; has all conflicts."""

    code = "merge_conflict"
    http_status = 409
    conflicts: tuple[MergeConflict, ...]

    def __str__(self) -> str:
        shown = "\n".join(f"  {conflict}" for conflict in self.conflicts[:_SHOWN_CONFLICTS])
        rest = len(self.conflicts) - _SHOWN_CONFLICTS
        more = f"\n  and {rest:,} more" if rest > 0 else ""
        return f"{self.message}\n{shown}{more}" + (f"\nhint: {self.hint}" if self.hint else "")

    def details(self) -> dict[str, Any]:
        return {"merge_conflicts": [conflict.to_dict() for conflict in self.conflicts]}


class HistoryReclaimedError(OmnigraphError):
    """A state of the past that a cleanup removed; `commit_id` names the first commit that cannot be read."""

    code = "history_reclaimed"
    http_status = 410
    commit_id: str


class ChangeRequestError(OmnigraphError):
    """A request for changes that names something which does not exist; `option` says which part of it."""

    code = "change_request"
    http_status = 400
    option: str


class ChangeCursorError(OmnigraphError):
    """A cursor or page token that is not one of this graph, branch and filter."""

    code = "change_cursor_rejected"
    http_status = 400


class ChangeRefusedError(OmnigraphError):
    """A commit of which nobody can say what it changed: it has no parent, or it changed the schema."""

    code = "change_diff_refusal"
    http_status = 409
    commit_id: str
    reason: str
