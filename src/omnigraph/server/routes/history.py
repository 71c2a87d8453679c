"""History as streams: baselines and differences between states."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from omnigraph.api.access import Action
from omnigraph.api.documents import Show, diff_lines
from omnigraph.server import models, replies
from omnigraph.server.calls import CallNow
from omnigraph.server.guard import needs
from omnigraph.server.replies import AS_LINES, READING
from omnigraph.server.routes.common import Kinds, Operations, Types, chosen, named, or_main, router

routes = router("history")


@routes.post("/changes/baseline", response_class=Response, responses={**READING, **AS_LINES})
@needs(Action.EXPORT)
def export_baseline(call: CallNow, body: models.ChangeBaselineRequest) -> Response:
    """Export the baseline of a change feed, as lines of JSON; the last line has the cursor to continue with."""
    graph = call.graph
    which: Any = chosen(body.kind or None, body.type or None, body.op or None)
    begins = graph.baseline(or_main(body.branch), **which)
    entities = graph.export(snapshot=begins.commit_id, types=begins.tables)
    last = replies.line({"baseline": {"snapshot_commit_id": begins.commit_id, "resume_cursor": begins.cursor}})
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
    """Return what turns one state into another, as lines of JSON: the head, the changes, and last their counts."""
    found = call.graph.diff(before, after, kinds=named(kind), types=named(type), operations=named(op))
    return replies.lines(diff_lines(found, Show(show)))
