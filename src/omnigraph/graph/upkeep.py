"""Keeping a graph healthy: indices, compaction, cleanup, repair."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from omnigraph.api.access import Action
from omnigraph.api.maintenance import CleanupResult, HealthReport, RepairResult, UpkeepResult
from omnigraph.api.progress import SILENT, Progress, finishing
from omnigraph.core.refs import MAIN
from omnigraph.engines import choose_runner
from omnigraph.graph.handle import Handle, named_branch
from omnigraph.maintenance.cleanup import CleanupRequest, cleanup
from omnigraph.maintenance.doctor import examine
from omnigraph.maintenance.optimize import optimize
from omnigraph.maintenance.repair import mode_of, repair
from omnigraph.maintenance.together import at_once
from omnigraph.maintenance.upkeep import ensure_indices
from omnigraph.storage.reclaim import ORPHAN_AGE


class Upkeep(Handle):
    """What changes no answer."""

    def ensure_indices(
        self,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> UpkeepResult:
        """Build the indices that the schema asks for over all rows, in one commit. No answer depends on them."""
        self._admit(Action.ADMIN, branch)
        with finishing(progress):
            runner = choose_runner(engine, master, conf, progress, at_once())
            return ensure_indices(self._store, named_branch(branch), runner, self._actor(actor))

    def optimize(
        self,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> UpkeepResult:
        """Make many small fragments few large ones and let indices cover them, in one commit; rows stay as they are."""
        self._admit(Action.ADMIN, branch)
        with finishing(progress):
            runner = choose_runner(engine, master, conf, progress, at_once())
            return optimize(self._store, named_branch(branch), runner, self._actor(actor))

    def cleanup(
        self,
        keep: int | None = None,
        older_than: timedelta | None = None,
        *,
        confirm: bool = False,
        orphan_age: timedelta = ORPHAN_AGE,
        progress: Progress = SILENT,
    ) -> CleanupResult:
        """Remove what only old commits need: those that are neither among the last `keep` nor younger than that.

        Without `confirm` nothing is removed, and the result tells what would be. Branches and tags are kept as they
        are. Files that nothing refers to go when they are older than `orphan_age`.
        """
        self._admit(Action.ADMIN)
        request = CleanupRequest(keep, older_than, confirm, orphan_age)
        with finishing(progress):
            progress.phase("clean up", len(self._store.manifest.load().paths))
            return cleanup(self._store, request, lambda: progress.advance(1, 0))

    def repair(self, *, confirm: bool = False, force: bool = False) -> RepairResult:
        """Look at tables that something else has moved; confirmed, keep what is proven to have changed no rows.

        With `force` as well, whatever is there is kept.
        """
        self._admit(Action.ADMIN)
        return repair(self._store, mode_of(confirm=confirm, force=force))

    def doctor(self) -> HealthReport:
        """Report the health of the graph: what stands in the way, what could be better, and what to run."""
        self._admit(Action.READ)
        return examine(self._store, self._read_contract().catalog)
