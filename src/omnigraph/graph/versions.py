"""The versions of a graph: branches, merges, tags, and what changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Unpack

from omnigraph.api.access import Action
from omnigraph.api.changes import Baseline, ChangeOptions, ChangePage
from omnigraph.api.options import Resolution, Resolve
from omnigraph.api.progress import SILENT, Progress, finishing
from omnigraph.api.results import LogEntry, MergeResult, Tag
from omnigraph.core.refs import FOREIGN_LOCK, MAIN, checked_name, parse_ref
from omnigraph.engines import choose_runner
from omnigraph.graph.handle import named_branch
from omnigraph.graph.reading import Reading
from omnigraph.history.branches import create_branch, create_tag, delete_branch, delete_tag, tags
from omnigraph.history.diff import Diff, diff
from omnigraph.history.feed import ChangeRequest
from omnigraph.history.log import log
from omnigraph.history.merge import MergeRequest, merge, preview, revert


class Versions(Reading):
    """What makes, names, joins and compares states."""

    def branches(self) -> list[str]:
        """List the branches, main first."""
        self._admit(Action.READ)
        return [name for name in self._store.manifest.branches() if name != FOREIGN_LOCK]

    def create_branch(self, name: str, base: str = MAIN) -> None:
        """Make a branch that begins as its base is: another branch, a tag or a commit. No data is copied."""
        self._admit(Action.BRANCH_CREATE, base, name)
        create_branch(self._store, name, base)

    def delete_branch(self, name: str) -> None:
        """Delete a branch and what only it has."""
        self._admit(Action.BRANCH_DELETE, target=name)
        delete_branch(self._store, name)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        actor: str | None = None,
        dry_run: bool = False,
        resolve: Resolve | None = None,
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> MergeResult:
        """Bring onto a branch what another has: one commit with two parents, or MergeConflictError with all conflicts.

        `resolve` says who wins where both changed the same: `ours` (the branch that is merged into), `theirs`, one of
        them for each type, or a list of conflicts each with the side to `take`. `dry_run` only tells what would be. A
        merge of very many entities runs on Spark, unless `engine` says otherwise.
        """
        places, resolution = (str(parse_ref(source)), named_branch(into)), Resolution.of(resolve)
        runner = choose_runner(engine, master, conf, progress)
        self._admit(Action.READ if dry_run else Action.BRANCH_MERGE, source, into)
        with finishing(progress), self._carrying_out() as operation:
            request = MergeRequest(*places, self._actor(actor), resolution, operation)
            return (preview if dry_run else merge)(self._store, request, runner)

    def revert(
        self,
        commit_id: str,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        resolve: Resolve | None = None,
    ) -> MergeResult:
        """Undo what one commit changed, by a new commit. What was changed again since then is a conflict."""
        self._admit(Action.CHANGE, branch)
        on, resolution = named_branch(branch), Resolution.of(resolve)
        with self._carrying_out() as operation:
            request = MergeRequest(MAIN, on, self._actor(actor), resolution, operation)
            return revert(self._store, self.commit(commit_id), request, choose_runner("auto", None, None, SILENT))

    def tags(self) -> list[Tag]:
        """List the tags by name, each with its commit."""
        self._admit(Action.READ)
        return tags(self._store.manifest)

    def create_tag(self, name: str, ref: str = MAIN) -> Tag:
        """Give the commit that a branch is at, or a commit by its id, a name that stays."""
        self._admit(Action.BRANCH_CREATE, ref, name)
        return create_tag(self._store, name, ref)

    def delete_tag(self, name: str) -> None:
        """Take a name away; the commit stays."""
        self._admit(Action.BRANCH_DELETE, target=name)
        delete_tag(self._store, name)

    def diff(
        self,
        a: str,
        b: str,
        *,
        kinds: Collection[str] | None = None,
        types: Collection[str] | None = None,
        operations: Collection[str] | None = None,
    ) -> Diff:
        """Tell what turns one state into another: entities inserted, updated and deleted.

        A state is a branch, a commit, or a branch at a commit or version: `main`, an id, `main@12`. Changes are read
        when the answer is iterated; `kinds` are node and edge, `operations` insert, update and delete.
        """
        self._look()
        return diff(self._store, a, b, kinds=kinds, types=types, operations=operations)

    def changes(self, branch: str = MAIN, *, after: str | None = None, **request: Unpack[ChangeOptions]) -> ChangePage:
        """Tell what the commits of a branch changed, each with respect to its first parent, page by page.

        `start` is now, beginning or after:<commit>, which `after` is short for; `cursor` and `page_token` go on where
        an earlier page ended. What was told once may be told again, never left out.
        """
        self._look(branch)
        if after is not None:
            request["start"] = f"after:{after}"
        return self._feed.poll(ChangeRequest(checked_name(branch), **request))

    def change_cursor(self, after: str, branch: str = MAIN) -> str:
        """The cursor of all changes behind a commit: with it `changes` goes on from an export at that commit."""
        self._look(branch)
        return self._feed.cursor(ChangeRequest(checked_name(branch), f"after:{after}"))

    def baseline(self, branch: str = MAIN, **request: Unpack[ChangeOptions]) -> Baseline:
        """Where to begin to follow a branch: export the tables that it names at its commit, then go on with its cursor.

        `kinds` and `types` choose tables; with the cursor `changes` takes the same `kinds`, `types` and `operations`.
        """
        self._look(branch)
        return self._feed.baseline(ChangeRequest(checked_name(branch), **request))

    def log(self, branches: Sequence[str] | None = None) -> list[LogEntry]:
        """List the commits of some branches, or of all, newest first, with the branches and tags that are at them."""
        self._look()
        return log(self._store.manifest, branches)

    def commit_changes(self, commit_id: str, **request: Unpack[ChangeOptions]) -> ChangePage:
        """Tell what one commit changed with respect to its first parent."""
        self._look()
        return self._feed.commit(commit_id, ChangeRequest(**request))
