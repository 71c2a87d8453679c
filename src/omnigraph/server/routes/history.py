"""The past of a graph: commits, what they changed, differences between states."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal, cast

from fastapi import Depends, Query, Response

from omnigraph.api import change_documents, documents
from omnigraph.api.access import Action
from omnigraph.api.changes import DEFAULT_BYTES, DEFAULT_COMMITS, DEFAULT_LIMIT, ChangeOptions
from omnigraph.server import replies, requests, responses
from omnigraph.server.calls import CallNow
from omnigraph.server.guard import needs
from omnigraph.server.replies import AS_LINES, READING
from omnigraph.server.routes.common import Branch, Kinds, Operations, Types, chosen, named, or_main, router

routes = router("history")

Limit = Annotated[int, Query(description="How many changes at most.")]
MaxBytes = Annotated[int, Query(description="How many bytes of them at most.")]
MaxCommits = Annotated[int, Query(description="How many commits at most.")]
PageToken = Annotated[str | None, Query(description="Go on with the page that this token names.")]


async def _chosen(
    kind: Kinds = None,
    type: Types = None,  # noqa: A002 - the name of the parameter
    op: Operations = None,
) -> ChangeOptions:
    return chosen(kind, type, op)


Chosen = Annotated[ChangeOptions, Depends(_chosen)]


async def _page(
    which: Chosen, limit: Limit = DEFAULT_LIMIT, max_bytes: MaxBytes = DEFAULT_BYTES, page_token: PageToken = None
) -> ChangeOptions:
    return {**which, "limit": limit, "max_bytes": max_bytes, "page_token": page_token}


Page = Annotated[ChangeOptions, Depends(_page)]


@routes.get("/commits", response_model=responses.CommitListOutput, responses=READING)
@needs(Action.READ)
def list_commits(call: CallNow, branch: Branch = "main", actor: str | None = None) -> Response:
    """List the commits of a branch, newest first."""
    return replies.document(documents.commits_output(call.graph.commits(branch, actor)))


@routes.get("/commits/{commit_id:segment}", response_model=responses.CommitOutput, responses=READING)
@needs(Action.READ)
def get_commit(call: CallNow, commit_id: str) -> Response:
    """Find a commit on whichever branch has it."""
    return replies.document(documents.commit_output(call.graph.commit(commit_id)))


@routes.get("/commits/{commit_id:segment}/changes", response_model=responses.CommitChangesOutput, responses=READING)
@needs(Action.READ)
def get_commit_changes(call: CallNow, page: Page, commit_id: str) -> Response:
    """Tell what one commit changed with respect to its first parent."""
    return replies.document(
        change_documents.commit_changes_output(call.graph.commit_changes(commit_id, **cast("Any", page)))
    )


@routes.get("/changes", response_model=responses.ChangeFeedOutput, responses=READING)
@needs(Action.READ)
def poll_changes(
    call: CallNow,
    page: Page,
    *,
    branch: Branch = "main",
    start: Annotated[str | None, Query(description="now, beginning or after:<commit>.")] = None,
    cursor: Annotated[str | None, Query(description="Go on where an earlier poll ended.")] = None,
    max_commits: MaxCommits = DEFAULT_COMMITS,
) -> Response:
    """Tell what the commits of a branch changed, page by page."""
    wanted: ChangeOptions = {**page, "start": start, "cursor": cursor, "max_commits": max_commits}
    return replies.document(change_documents.feed_output(call.graph.changes(branch, **wanted)))


@routes.get("/changes/cursor", response_model=responses.ChangeCursorOutput, responses=READING)
@needs(Action.READ)
def get_change_cursor(call: CallNow, after: str, branch: Branch = "main") -> Response:
    """Give the cursor of all changes behind a commit."""
    return replies.document(change_documents.cursor_output(call.graph.change_cursor(after, branch)))


@routes.get("/changes/baseline", response_model=responses.ChangeBeginningOutput, responses=READING)
@needs(Action.READ)
def get_baseline(call: CallNow, which: Chosen, branch: Branch = "main") -> Response:
    """Tell where to begin to follow a branch: what to export at which commit, and the cursor to go on with."""
    return replies.document(change_documents.beginning_output(call.graph.baseline(branch, **cast("Any", which))))


@routes.post("/changes/baseline", response_class=Response, responses={**READING, **AS_LINES})
@needs(Action.EXPORT)
def export_baseline(call: CallNow, body: requests.ChangeBaselineRequest) -> Response:
    """Export what a feed begins with, as lines of JSON; the last line has the cursor to go on with."""
    graph = call.graph
    which: Any = chosen(body.kind or None, body.type or None, body.op or None)
    begins = graph.baseline(or_main(body.branch), **which)
    entities = graph.export(snapshot=begins.commit_id, types=begins.tables)
    last = replies.line(change_documents.baseline_output(begins))
    return replies.lines(itertools.chain(entities, [last]))


@routes.get("/diff", response_class=Response, responses={**READING, **AS_LINES})
@needs(Action.READ)
def diff(
    call: CallNow,
    *,
    before: Annotated[str, Query(alias="from", description="A branch, a tag, a commit, `ref~n` or `ref@version`.")],
    after: Annotated[str, Query(alias="to", description="The same.")],
    kind: Kinds = None,
    type: Types = None,  # noqa: A002 - the name of the parameter
    op: Operations = None,
    show: Annotated[Literal["head", "stats", "changes"], Query(description="How much of it.")] = "changes",
) -> Response:
    """Tell what turns one state into another, as lines of JSON: the head, the changes, and last their numbers."""
    found = call.graph.diff(before, after, kinds=named(kind), types=named(type), operations=named(op))
    return replies.lines(change_documents.diff_lines(found, change_documents.Show(show)))


@routes.get("/log", response_model=responses.LogOutput, responses=READING)
@needs(Action.READ)
def log(
    call: CallNow,
    branch: Annotated[list[str] | None, Query(description="Of which branches; of all if none is named.")] = None,
) -> Response:
    """List the commits of some branches, newest first, with the branches and tags that are at them."""
    return replies.document(documents.log_output(call.graph.log(named(branch))))


@routes.get("/outcomes/{operation_id:segment}", response_model=responses.OutcomeOutput, responses=READING)
@needs(Action.READ)
def get_outcome(call: CallNow, operation_id: str, branch: Branch = "main") -> Response:
    """Tell what became of an operation whose outcome was not known."""
    return replies.document(documents.outcome_output(call.graph.outcome(operation_id, branch)))
