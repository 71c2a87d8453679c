"""Branches and tags: names for states, and what joins or undoes them."""

from __future__ import annotations

from fastapi import Response

from omnigraph.api import documents
from omnigraph.api.access import Action
from omnigraph.errors import OmnigraphError
from omnigraph.server import replies, requests, responses
from omnigraph.server.calls import Call, CallNow
from omnigraph.server.guard import needs
from omnigraph.server.replies import CHANGING, READING
from omnigraph.server.routes.common import WITHOUT_COMMIT, Committing, or_main, router

routes = router("branches")


@routes.get("/branches", response_model=responses.BranchListOutput, responses=READING)
@needs(Action.READ)
def list_branches(call: CallNow) -> Response:
    """List the branches, sorted."""
    return replies.document(documents.branches_output(call.graph.branches()))


@routes.post("/branches", response_model=responses.BranchCreateOutput, responses=CHANGING, dependencies=WITHOUT_COMMIT)
@needs(Action.BRANCH_CREATE)
def create_branch(call: CallNow, body: requests.BranchCreateRequest) -> Response:
    """Make a branch that begins as another branch, a tag or a commit is."""
    graph, base = call.graph, or_main(body.from_)
    graph.create_branch(body.name, base)
    return replies.document(documents.branch_created_output(graph.uri, body.name, base, call.actor))


@routes.post("/branches/merge", response_model=responses.BranchMergeOutput, responses=CHANGING)
@needs(Action.BRANCH_MERGE)
def merge_branches(call: CallNow, graph: Committing, body: requests.MergeRequest) -> Response:
    """Bring onto a branch what another has: in one commit, or a refusal with every conflict."""
    resolution = documents.resolution_of(body.resolve)
    done = graph.merge(body.source, or_main(body.target), resolve=resolution)
    deleted = _deleted(call, body.source) if body.delete_branch else {}
    return replies.document({**documents.merge_output(done, call.actor), **deleted})


def _deleted(call: Call, name: str) -> dict[str, bool | str]:
    """Delete a branch that was merged. The merge is done, whether that works or not."""
    try:
        call.graph.delete_branch(name)
    except OmnigraphError as error:
        return {"branch_deleted": False, "branch_delete_error": str(error)}
    return {"branch_deleted": True}


@routes.post("/branches/merge/preview", response_model=responses.BranchMergeOutput, responses=READING)
@needs(Action.READ)
def preview_merge(call: CallNow, body: requests.MergePreviewRequest) -> Response:
    """Tell what a merge would bring, conflicts included, and touch nothing."""
    resolution = documents.resolution_of(body.resolve)
    found = call.graph.merge(body.source, or_main(body.target), dry_run=True, resolve=resolution)
    return replies.document(documents.merge_output(found, call.actor))


@routes.delete(
    "/branches/{branch:segment}",
    response_model=responses.BranchDeleteOutput,
    responses=CHANGING,
    dependencies=WITHOUT_COMMIT,
)
@needs(Action.BRANCH_DELETE)
def delete_branch(call: CallNow, branch: str) -> Response:
    """Delete a branch, and what only it has."""
    graph = call.graph
    graph.delete_branch(branch)
    return replies.document(documents.branch_deleted_output(graph.uri, branch, call.actor))


@routes.post("/revert", response_model=responses.RevertOutput, responses=CHANGING)
@needs(Action.CHANGE)
def revert(call: CallNow, graph: Committing, body: requests.RevertRequest) -> Response:
    """Undo what one commit changed, by a new commit."""
    done = graph.revert(body.commit_id, or_main(body.branch), resolve=documents.resolution_of(body.resolve))
    return replies.document(documents.revert_output(done, call.actor))


@routes.get("/tags", response_model=responses.TagListOutput, responses=READING)
@needs(Action.READ)
def list_tags(call: CallNow) -> Response:
    """List the tags by name, each with its commit."""
    return replies.document(documents.tags_output(call.graph.tags()))


@routes.post("/tags", response_model=responses.TagOutput, responses=CHANGING, dependencies=WITHOUT_COMMIT)
@needs(Action.BRANCH_CREATE)
def create_tag(call: CallNow, body: requests.TagCreateRequest) -> Response:
    """Give a commit a name that stays."""
    return replies.document(documents.tag_output(call.graph.create_tag(body.name, or_main(body.ref))))


@routes.delete(
    "/tags/{tag:segment}", response_model=responses.TagDeleteOutput, responses=CHANGING, dependencies=WITHOUT_COMMIT
)
@needs(Action.BRANCH_DELETE)
def delete_tag(call: CallNow, tag: str) -> Response:
    """Take a name away; the commit stays."""
    graph = call.graph
    graph.delete_tag(tag)
    return replies.document(documents.tag_deleted_output(graph.uri, tag))
