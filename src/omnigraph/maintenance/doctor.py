"""`doctor`: report the health of a graph without changing it; what to run, and why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from omnigraph.api.maintenance import Finding, HealthReport, IndexHealth, Severity, TableHealth
from omnigraph.api.results import TableVersion
from omnigraph.commit.sidecar import DIRECTORY, Sidecar
from omnigraph.commit.staged_schema import fate_of
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor
from omnigraph.core.location import Location
from omnigraph.core.refs import FOREIGN_LOCK, MAIN
from omnigraph.errors import BranchNotFoundError, OmnigraphError
from omnigraph.history.old_merges import unknown_merges
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.maintenance import damage, deep
from omnigraph.maintenance.backup import MISSING, verify
from omnigraph.maintenance.optimize import declared_types
from omnigraph.maintenance.relocate import is_in_place, moved_versions
from omnigraph.maintenance.tasks import compaction_groups, wanted_indices
from omnigraph.manifest.schema_files import leftovers
from omnigraph.manifest.state import ManifestState
from omnigraph.storage import reclaim
from omnigraph.storage.bases import fork_of_version_file
from omnigraph.storage.files import version_file
from omnigraph.storage.layout import TableLayout, layout_of
from omnigraph.storage.stage import auto_cleanup_settings
from omnigraph.storage.torn import SUFFIX

# Below these numbers, optimizing or cleaning up makes no difference that a user notices.
_MANY_ROWS = 8192
_MANY_FRAGMENTS = 8
_MANY_VERSIONS = 100
_LONG = 300.0  # seconds


def examine(store: Store, *, deep: ChooseExecutor | None = None, backup: Location | None = None) -> HealthReport:
    """Examine every branch and every table. A part that cannot be read is a finding, and the rest is still examined.

    With `deep`, which chooses who does it, every row is read as well; `backup` compares files with the digests of the
    latest backup there.
    """
    return _Examination(store, deep, backup).report()


@dataclass
class _Examination:
    store: Store
    deep: ChooseExecutor | None
    backup: Location | None
    findings: list[Finding] = field(default_factory=list)
    tables: list[TableHealth] = field(default_factory=list)
    states: list[ManifestState] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)  # version files that the finding of their table names

    def report(self) -> HealthReport:
        sidecars = self._pending()
        self._staged_schema()
        self._root()
        branches = []
        known: set[tuple[str, str | None]] = set()
        for name in self.store.manifest.branches():
            try:
                known |= self._branch(name, [one for one in sidecars if (one.branch or MAIN) == name])
            except BranchNotFoundError:
                continue  # deleted since it was listed: nothing about it is wrong
            branches.append(name)
        # After all branches: which forks are in use is known only then.
        self._forks(branches, known)
        self._old_merges()
        self._files()
        pending = tuple(one.operation_id for one in sidecars)
        order = sorted(self.findings, key=lambda one: (one.severity is not Severity.PROBLEM, one.subject))
        return HealthReport(self.store.location.uri, tuple(branches), pending, tuple(self.tables), tuple(order))

    def _old_merges(self) -> None:
        """Report merges of older releases whose second parent was deleted: a later merge may use an earlier base."""
        try:
            unknown = unknown_merges(self.states)
        except OmnigraphError:  # the history cannot be read: `_files` reports why
            return
        for merge in unknown:
            message = f"an older release made this merge, and its second parent {merge.merged_parent_id} was deleted"
            self._find(Severity.ADVICE, f"commit {merge.commit_id}", message, "review merges with --dry-run")

    def _files(self) -> None:
        """Report files that are missing, damaged or set aside, and files that are no recovery records."""
        found = damage.findings(self.store)
        if self.deep:
            known = {one.subject for one in found}  # a file that is gone cannot be read either
            found += [one for one in deep.findings(self.store, self.deep) if one.subject not in known]
        if self.backup is not None:
            found += self._differing(self.backup, {one.subject for one in found})
        self.findings += [one for one in found if one.subject not in self.lost]
        for name in self.store.sidecars.strays():
            if name.endswith(SUFFIX):
                message, run = "torn by a crash and set aside: its commit was never visible", "remove the file"
            else:
                message, run = "it is no recovery record: another program wrote it", "remove the file if none needs it"
            self._find(Severity.ADVICE, f"{DIRECTORY}/{name}", message, run)

    def _differing(self, backup: Location, known: set[str]) -> list[Finding]:
        """Report files that differ from a backup, and how much of the graph it does not have."""
        done = verify(self.store, backup)
        run = f"restore it from the backup at {backup.uri}"
        found = [
            Finding(Severity.PROBLEM, one.path, f"it {one.problem}", run)
            for one in done.problems
            if one.path not in known and one.problem != MISSING
        ]
        if done.not_compared:
            message = f"it does not have {done.not_compared} of {done.files} files, which were not compared"
            found.append(Finding(Severity.ADVICE, backup.uri, message, "omnigraph backup create"))
        return found

    def _find(self, severity: Severity, subject: str, message: str, run: str) -> None:
        self.findings.append(Finding(severity, subject, message, run))

    def _pending(self) -> list[Sidecar]:
        """Read the recovery records. One that cannot be read is a finding."""
        found = []
        for operation in self.store.sidecars.pending():
            try:
                sidecar = self.store.sidecars.read(operation)
            except OmnigraphError as error:
                self._find(Severity.PROBLEM, operation, error.message, error.hint or "")
                continue
            if sidecar is not None:
                found.append(sidecar)
                self._record(sidecar)
            elif self.store.sidecars.exists(operation):  # its writer has not finished: a power cut tore the record
                message = "its recovery record was torn by a crash; the next read-write open sets it aside"
                self._find(Severity.ADVICE, operation, message, "open the graph read-write")
        return found

    def _record(self, sidecar: Sidecar) -> None:
        """Report a recovery record. Writes are short, so an old record is that of a dead writer."""
        seconds = time.time() - int(sidecar.started_at) / 1e6 if sidecar.started_at.isdecimal() else _LONG
        # By age, and not by its gates: doctor takes no lock, so that it can look at a graph whose writer hangs.
        dead = seconds >= _LONG
        message = f"{sidecar.writer_kind} {'stopped half-way' if dead else 'is under way'}"
        severity = Severity.PROBLEM if dead else Severity.ADVICE
        self._find(severity, sidecar.operation_id, message, "open the graph read-write" if dead else "wait for it")

    def _staged_schema(self) -> None:
        """Report files of a schema change that another program began; some are resolved by the next writer."""
        found = leftovers(self.store.objects)
        if not found:
            return
        try:
            fate_of(self.store, found)
        except OmnigraphError as error:
            self._find(Severity.PROBLEM, found[0], error.message, error.hint or "")
            return
        message = "another program began a schema change; it is resolved when the graph is opened read-write"
        self._find(Severity.ADVICE, found[0], message, "open the graph read-write")

    def _root(self) -> None:
        """Report forks that refer to another root: the graph was copied or moved, and not opened read-write since."""
        if is_in_place(self.store):
            return
        moved = moved_versions(self.store)
        for root in sorted(frozenset().union(*moved.values())):
            forks = {fork_of_version_file(name) for name, roots in moved.items() if root in roots}
            message = f"{len(forks)} forks refer to {root}: the graph was copied or moved"
            self._find(Severity.PROBLEM, self.store.location.uri, message, "omnigraph relocate")

    def _branch(self, name: str, sidecars: list[Sidecar]) -> set[tuple[str, str | None]]:
        branch = None if name == MAIN else name
        try:
            state = self.store.manifest.load(branch)
        except BranchNotFoundError:
            raise
        except OmnigraphError as error:
            run = f"restore it from a backup, or give it up: omnigraph branch delete {name}"
            self._find(
                Severity.PROBLEM,
                f"branch {name}",
                error.message,
                run if branch else error.hint or "restore it from a backup",
            )
            return set()
        if self.store.manifest.table.is_torn(branch):
            message = f"its newest version is damaged or incomplete; version {state.version} is read instead"
            run = "if a power cut did it: open the graph read-write; if not: restore it from a backup"
            self._find(Severity.PROBLEM, f"branch {name}", message, run)
        if name == FOREIGN_LOCK:
            message = "another program is changing the schema, or died while it did"
            self._find(Severity.ADVICE, f"branch {name}", message, "if it has died: omnigraph repair --confirm --force")
        self.states.append(state)
        moving = {key for sidecar in sidecars for key in sidecar.table_keys}
        types = declared_types(self.store.schema_of_row(state.schema).catalog)
        for key, entry in state.snapshot.entries.items():
            if entry.table.owner == branch:
                self._table(entry.table, name, types.get(key), is_moving=key in moving)
        entries = state.snapshot.entries.values()
        return {(entry.table.path, entry.table.branch) for entry in entries}

    # One table

    def _table(self, table: TableVersion, name: str, declared: NodeType | EdgeType | None, *, is_moving: bool) -> None:
        try:
            head = int(self.store.tables.head(table.path, table.branch).version)
            made_of = layout_of(self.store.tables, table)
            versions = len(reclaim.versions(self.store.tables, table.path, table.branch))
        except OmnigraphError as error:
            path = version_file(table)
            gone = "" if self.store.objects.exists(path) else f"; {path} is gone"
            self.lost.add(path)
            self._find(Severity.PROBLEM, table.key, f"{error.message}{gone}", error.hint or "restore it from a backup")
            return
        small = sum(map(len, compaction_groups(made_of)))
        deleted = sum(part.deleted for part in made_of.parts)
        rows, fragments, covered = made_of.rows, len(made_of.parts), _indexes(made_of)
        self.tables.append(
            TableHealth(table.key, name, table.version, head, rows, deleted, fragments, small, versions, covered)
        )
        if not is_moving:
            self._compare(table, head)
        self._advise(table, made_of, declared, small, versions)

    def _compare(self, table: TableVersion, head: int) -> None:
        if head > table.version:
            message = f"its head is version {head}, past its pin {table.version}: something else has written to it"
            self._find(Severity.PROBLEM, table.key, message, "omnigraph repair")
        if head < table.version:
            path = version_file(table)
            message = (
                f"its head is version {head}, before its pin {table.version}: versions were lost, {path} among them"
            )
            self.lost.add(path)
            self._find(Severity.PROBLEM, table.key, message, "restore it from a backup")

    def _advise(
        self, table: TableVersion, made_of: TableLayout, declared: NodeType | EdgeType | None, small: int, versions: int
    ) -> None:
        for message in self._reasons_to_optimize(table, made_of, declared, small):
            self._find(Severity.ADVICE, table.key, message, "omnigraph optimize")
        if versions > _MANY_VERSIONS:
            self._find(Severity.ADVICE, table.key, f"it has {versions} versions", "omnigraph cleanup --keep 10")

    def _reasons_to_optimize(
        self, table: TableVersion, made_of: TableLayout, declared: NodeType | EdgeType | None, small: int
    ) -> Iterator[str]:
        if auto_cleanup_settings(self.store.tables.open(table)):
            yield "it is set to remove its own versions, and cannot be written to"
        if small >= _MANY_FRAGMENTS:
            yield f"{small} of its {len(made_of.parts)} fragments are small, or mostly deleted"
        for spec in wanted_indices(declared) if declared else ():
            covered = made_of.covered(spec.name)
            rows = sum(part.rows for part in made_of.parts if part.number not in covered)
            if rows > _MANY_ROWS:
                yield f"index {spec.name} does not cover {rows} of its {made_of.rows} rows"

    # Forks

    def _forks(self, branches: list[str], known: set[tuple[str, str | None]]) -> None:
        """Report forks of deleted branches. A fork of an existing branch may be about to be published."""
        for path in sorted({path for path, _ in known}):
            for fork in reclaim.removable_forks(self._forks_of(path), partial(_is_left, branches, known, path)):
                message = f"fork '{fork.name}' belongs to a deleted branch"
                self._find(Severity.ADVICE, path, message, "omnigraph cleanup --keep 10")

    def _forks_of(self, path: str) -> list[reclaim.Fork]:
        try:
            return reclaim.forks(self.store.tables, path)
        except OmnigraphError as error:
            self._find(Severity.PROBLEM, path, error.message, error.hint or "restore it from a backup")
            return []


def _is_left(branches: list[str], known: set[tuple[str, str | None]], path: str, fork: reclaim.Fork) -> bool:
    return (path, fork.name) not in known and TableVersion("", path, 0, fork.name).owner not in branches


def _indexes(made_of: TableLayout) -> tuple[IndexHealth, ...]:
    return tuple(
        IndexHealth(name, sum(part.rows for part in made_of.parts if part.number in covered), len(segments))
        for name, segments in sorted(made_of.indices.items())
        for covered in (made_of.covered(name),)
    )
