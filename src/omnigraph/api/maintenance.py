"""What maintenance returns: per table what was done, removed, healed or found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from omnigraph.api.results import Commit
from omnigraph.core.refs import MAIN

# Younger files may belong to a write that is still running; Lance's own cleanup assumes the same.
ORPHAN_AGE = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Removal:
    """How many versions, files and bytes were removed, or would be."""

    versions: int = 0
    files: int = 0
    size: int = 0

    def __add__(self, other: Removal) -> Removal:
        return Removal(self.versions + other.versions, self.files + other.files, self.size + other.size)


@dataclass(frozen=True, slots=True)
class TableCleanup:
    """What was removed of one table and its forks, or would be; `error` if that failed half-way."""

    table_key: str
    bytes_removed: int = 0
    old_versions_removed: int = 0
    files_removed: int = 0
    # `error` is a value and not raised: one table that cannot be cleaned must not keep the others from it.
    forks_removed: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """What was removed, table by table; `temporary` counts the files of loads that never ended, and log segments."""

    confirmed: bool
    tables: tuple[TableCleanup, ...]
    temporary: Removal


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """The branches that were optimized because it was time to, and what was removed, if anything was to be."""

    optimized: tuple[str, ...]
    cleanup: CleanupResult | None = None


class Severity(StrEnum):
    """Whether something stands in the way, or could only be better."""

    PROBLEM = "problem"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know: about what, why, and the command that sees to it."""

    severity: Severity
    subject: str
    message: str
    run: str


@dataclass(frozen=True, slots=True)
class IndexHealth:
    """How many rows of a table an index covers, in how many parts."""

    name: str
    rows_covered: int
    segments: int


@dataclass(frozen=True, slots=True)
class TableHealth:
    """A table of a branch. What the branch inherits is looked at where it belongs."""

    table_key: str
    branch: str
    pin: int
    head: int
    rows: int = 0
    rows_deleted: int = 0
    fragments: int = 0
    fragments_small: int = 0
    versions: int = 0
    indexes: tuple[IndexHealth, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthReport:
    """All that was found."""

    uri: str
    branches: tuple[str, ...]
    pending: tuple[str, ...]
    tables: tuple[TableHealth, ...]
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing stands in the way of reading and writing."""
        # Advice does not count: a graph that could be faster is healthy, and scripts rely on the exit code.
        return all(finding.severity is not Severity.PROBLEM for finding in self.findings)


class Classification(StrEnum):
    """What is known about how a table was moved."""

    NO_DRIFT = "no_drift"
    VERIFIED = "verified_maintenance"  # its rows are what they were
    SUSPICIOUS = "suspicious"
    UNVERIFIABLE = "unverifiable"


class RepairAction(StrEnum):
    """What was done about it."""

    NONE = "no_op"
    PREVIEW = "preview"
    HEALED = "healed"
    FORCED = "forced"
    REFUSED = "refused"


class RepairMode(StrEnum):
    """How far a repair goes: it looks, takes what is proven harmless, or takes whatever is there."""

    PREVIEW = "preview"
    CONFIRM = "confirm"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class TableRepair:
    """One table, or the fork of it that a branch has: its pin and its head, what moved it since, and what was done.

    `lost_indexes` have lost files. They are dropped from the table if the repair is confirmed, and can be built again.
    """

    table_key: str
    manifest_version: int
    lance_head_version: int
    classification: Classification
    action: RepairAction
    operations: tuple[str, ...] = ()
    error: str | None = None
    # Last, with a default: documents of earlier releases have no branch.
    branch: str = MAIN
    lost_indexes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What was found, and the commits of what was healed: of each branch one for moved tables and one for lost indices.

    `lost` names files that are missing or damaged and cannot be mended: only a backup has them.
    """

    mode: RepairMode
    tables: tuple[TableRepair, ...]
    commits: tuple[Commit, ...]
    lost: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        return any(table.action is RepairAction.REFUSED for table in self.tables)


@dataclass(frozen=True, slots=True)
class PendingIndex:
    """An index that cannot be built yet, and why."""

    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """What was done to one table. `skipped` says why nothing was, if something stood in the way."""

    table_key: str
    fragments_removed: int = 0
    fragments_added: int = 0
    committed: bool = False
    # A reason and not an error: tables that others write to all the time are left to the next run.
    skipped: str | None = None
    manifest_version: int | None = None
    lance_head_version: int | None = None
    indexes: tuple[str, ...] = ()
    pending_indexes: tuple[PendingIndex, ...] = ()


@dataclass(frozen=True, slots=True)
class UpkeepResult:
    """What was done to each table, and the commit that made it visible, if there was anything to do."""

    tables: tuple[TableUpkeep, ...]
    commit: Commit | None


@dataclass(frozen=True, slots=True)
class Relocation:
    """Where the forks of a graph looked for their files, and how many of their versions were rewritten."""

    uri: str
    former_roots: tuple[str, ...] = ()
    versions: int = 0


@dataclass(frozen=True, slots=True)
class BackupResult:
    """A backup: the commit of each branch, and its files. What was copied for it is known when it is made."""

    uri: str
    backup_id: str
    made_at: int
    heads: Mapping[str, str]
    files: int
    size: int
    files_copied: int | None = None
    # None in a list of backups: how much was copied for one is not kept.
    bytes_copied: int | None = None


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """A graph that was made of a backup."""

    uri: str
    backup_id: str
    files: int
    size: int


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file that is missing, or not as it should be."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """How many files were checked, and which of them are not as they should be.

    `not_compared` files are in no backup that they could be compared with.
    """

    uri: str
    files: int
    size: int
    problems: tuple[FileProblem, ...]
    not_compared: int = 0

    @property
    def is_intact(self) -> bool:
        return not self.problems
