"""Merge requests and the rules of branches: what was asked for, who approved it, and what a branch demands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

REQUEST = "request"  # among the details of a commit: the merge request that it is, and what was decided about it
MOST_APPROVALS = 100
RULE = "rule"  # among the details of a commit: the rule that its branch has since; null if it was lifted


class ReviewState(StrEnum):
    """Whether a merge request waits, or how it ended."""

    OPEN = "open"
    MERGED = "merged"
    CLOSED = "closed"


class Lapse(StrEnum):
    """Whose new commits make an approval lapse."""

    EITHER = "source_or_target"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Heads:
    """The commits that the source and the target of a merge request were at."""

    source_commit: str
    target_commit: str


@dataclass(frozen=True, slots=True)
class Approval:
    """An approval, and the commits that it is for."""

    actor: str
    source_commit: str
    target_commit: str
    at: int

    def holds(self, heads: Heads, lapse: Lapse) -> bool:
        """Whether it counts for these heads: it lapses when a branch moves."""
        same_target = lapse is Lapse.SOURCE or self.target_commit == heads.target_commit
        return self.source_commit == heads.source_commit and same_target


@dataclass(frozen=True, slots=True)
class ReviewCheck:
    """How many rows a check found on the merged state: it passes with none. `digest` identifies its text."""

    check: str
    rows: int
    digest: str
    source_commit: str
    target_commit: str
    at: int


@dataclass(frozen=True, slots=True)
class Review:
    """A merge request: what is to be merged into what, by whom and why, and what was decided about it.

    `source_commit` and `target_commit` are the heads now; `approvals` are those that count for them, and `lapsed` those
    that no longer do. `commit_id` is the merge, if it was made.
    """

    request_id: str
    source: str
    target: str
    author: str | None
    title: str
    message: str | None
    state: ReviewState
    created_at: int
    source_commit: str | None
    target_commit: str | None
    approvals: tuple[Approval, ...] = ()
    lapsed: tuple[Approval, ...] = ()
    checks: tuple[ReviewCheck, ...] = ()
    wanted: Mapping[str, str] = field(default_factory=dict)  # its own checks, by name
    commit_id: str | None = None
    closed_by: str | None = None


@dataclass(frozen=True, slots=True)
class BranchRule:
    """What a branch demands of writes: a merge request with so many approvals, whose checks find no rows.

    `bypass` names actors who may write without one. An actor is what the caller says, unless a server knows it.
    """

    approvals: int = 1
    self_approval: bool = False
    lapse: Lapse = Lapse.EITHER
    checks: Mapping[str, str] = field(default_factory=dict)
    bypass: tuple[str, ...] = ()

    def to_document(self) -> dict[str, Any]:
        return {
            "approvals": self.approvals,
            "self_approval": self.self_approval,
            "lapse": self.lapse.value,
            "checks": dict(self.checks),
            "bypass": list(self.bypass),
        }

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> BranchRule:
        return cls(
            document["approvals"],
            document["self_approval"],
            Lapse(document["lapse"]),
            dict(document["checks"]),
            tuple(document["bypass"]),
        )

    def counting(self, approvals: Sequence[Approval], author: str | None, heads: Heads) -> list[Approval]:
        """Return the approvals that count: one for each actor, for these heads."""
        known: dict[str, Approval] = {}
        for one in approvals:
            if one.holds(heads, self.lapse) and (self.self_approval or one.actor != author):
                known.setdefault(one.actor, one)
        return [*known.values()]


@dataclass(frozen=True, slots=True)
class RuleOfBranch:
    """The rule of a branch; None if it has none."""

    branch: str
    rule: BranchRule | None
