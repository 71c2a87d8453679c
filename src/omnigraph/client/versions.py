"""The calls about versions of a graph: branches, merges, tags, and what changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from omnigraph.api import change_documents, documents
from omnigraph.api.changes import Baseline, ChangeOptions, ChangePage
from omnigraph.api.options import Resolution, Resolve
from omnigraph.api.progress import SILENT, Progress, finishing
from omnigraph.api.results import LogEntry, MergeResult, Tag
from omnigraph.client.asking import members, options, refuse_engine, segment
from omnigraph.client.reading import ReadCalls
from omnigraph.client.steps import Request, Steps, committing
from omnigraph.core.refs import MAIN
from omnigraph.errors import BranchInUseError

_LOG = logging.getLogger(__name__)


class VersionCalls(ReadCalls):
    """What makes, names, joins and compares states of a graph that is served."""

    def branches(self) -> Steps[list[str]]:
        """List the branches, main first."""
        answer = yield Request("GET", "/branches")
        return documents.branches_of(answer.document)

    def create_branch(self, name: str, base: str = MAIN) -> Steps[None]:
        """Make a branch that begins as its base is: another branch, a tag or a commit. No data is copied."""
        yield Request("POST", "/branches", document={"name": name, "from": base}, changes=True)

    def delete_branch(self, name: str) -> Steps[None]:
        """Delete a branch and what only it has."""
        yield Request("DELETE", f"/branches/{segment(name)}", changes=True)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        actor: str | None = None,  # noqa: ARG002 - the server knows who asks
        dry_run: bool = False,
        resolve: Resolve | None = None,
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> Steps[MergeResult]:
        """Bring onto a branch what another has: one commit with two parents, or MergeConflictError with all conflicts.

        `resolve` says who wins where both changed the same: `ours` (the branch that is merged into), `theirs`, one of
        them for each type, or a list of conflicts each with the side to `take`. `dry_run` only tells what would be.
        """
        refuse_engine(engine, master, conf)
        document = members(source=source, target=into, resolve=_resolution(resolve))
        previewing = Request("POST", "/branches/merge/preview", document=document)
        with finishing(progress):
            answer = yield previewing if dry_run else committing(replace(previewing, path="/branches/merge"))
        return documents.merge_of(answer.document)

    def revert(
        self,
        commit_id: str,
        branch: str = MAIN,
        *,
        actor: str | None = None,  # noqa: ARG002 - the server knows who asks
        resolve: Resolve | None = None,
    ) -> Steps[MergeResult]:
        """Undo what one commit changed, by a new commit. What was changed again since then is a conflict."""
        document = members(commit_id=commit_id, branch=branch, resolve=_resolution(resolve))
        answer = yield committing(Request("POST", "/revert", document=document))
        return documents.merge_of(answer.document)

    def tags(self) -> Steps[list[Tag]]:
        """List the tags by name, each with its commit."""
        answer = yield Request("GET", "/tags")
        return documents.tags_of(answer.document)

    def create_tag(self, name: str, ref: str = MAIN) -> Steps[Tag]:
        """Give the commit that a branch is at, or a commit by its id, a name that stays."""
        answer = yield Request("POST", "/tags", document={"name": name, "ref": ref}, changes=True)
        return documents.tag_of(answer.document)

    def delete_tag(self, name: str) -> Steps[None]:
        """Take a name away; the commit stays."""
        yield Request("DELETE", f"/tags/{segment(name)}", changes=True)

    def ensure_branch(self, name: str, base: str) -> Steps[None]:
        """Make a branch if it is not there."""
        if name not in (yield from self.branches()):
            yield from self.create_branch(name, base)

    def merge_and_delete(self, name: str, into: str) -> Steps[None]:
        """Merge a branch and delete it. That others were made from it must not look as if it was not merged."""
        yield from self.merge(name, into)
        try:
            yield from self.delete_branch(name)
        except BranchInUseError as error:
            _LOG.warning("the branch was merged, but not deleted: %s", error.message)

    def changes(
        self, branch: str = MAIN, *, after: str | None = None, **request: Unpack[ChangeOptions]
    ) -> Steps[ChangePage]:
        """Tell what the commits of a branch changed, each with respect to its first parent, page by page.

        `start` is now, beginning or after:<commit>, which `after` is short for; `cursor` and `page_token` go on where
        an earlier page ended. What was told once may be told again, never left out.
        """
        if after is not None:
            request["start"] = f"after:{after}"
        answer = yield Request("GET", "/changes", options(branch=branch, **_renamed(request)))
        return change_documents.feed_of(answer.document)

    def change_cursor(self, after: str, branch: str = MAIN) -> Steps[str]:
        """The cursor of all changes behind a commit: with it `changes` goes on from an export at that commit."""
        answer = yield Request("GET", "/changes/cursor", options(after=after, branch=branch))
        cursor: str = answer.document["cursor"]
        return cursor

    def baseline(self, branch: str = MAIN, **request: Unpack[ChangeOptions]) -> Steps[Baseline]:
        """Where to begin to follow a branch: export the tables that it names at its commit, then go on with its cursor.

        `kinds` and `types` choose tables; with the cursor `changes` takes the same `kinds`, `types` and `operations`.
        """
        answer = yield Request("GET", "/changes/baseline", options(branch=branch, **_renamed(request)))
        return change_documents.beginning_of(answer.document)

    def log(self, branches: Sequence[str] | None = None) -> Steps[list[LogEntry]]:
        """List the commits of some branches, or of all, newest first, with the branches and tags that are at them."""
        answer = yield Request("GET", "/log", options(branch=branches))
        return documents.log_of(answer.document)

    def commit_changes(self, commit_id: str, **request: Unpack[ChangeOptions]) -> Steps[ChangePage]:
        """Tell what one commit changed with respect to its first parent."""
        path = f"/commits/{segment(commit_id)}/changes"
        answer = yield Request("GET", path, options(**_renamed(request)))
        return change_documents.commit_changes_of(answer.document)


_NAMES = {"kinds": "kind", "types": "type", "operations": "op"}


def _renamed(request: ChangeOptions) -> dict[str, Any]:
    """What a caller says about changes, by the names that the server has for it."""
    return {_NAMES.get(name, name): value for name, value in request.items()}


def _resolution(resolve: Resolve | None) -> dict[str, Any] | None:
    return Resolution.of(resolve).to_dict() or None
