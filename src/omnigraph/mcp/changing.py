"""The tools that change a graph."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import Field

from omnigraph.api.access import Action
from omnigraph.api.documents import to_document
from omnigraph.core.refs import MAIN
from omnigraph.errors import RequestError
from omnigraph.mcp.answers import ROWS, Answer, changes_answer
from omnigraph.mcp.reading import MergeArguments
from omnigraph.mcp.session import Session
from omnigraph.mcp.tool import Arguments, Params, Written, tool

_PROPOSALS = "agent"


class MutateArguments(Arguments):
    query: str = Field(description="A query of the .gq language that inserts, updates or deletes.")
    params: Params = None
    name: str | None = Field(None, description="Which query to run, if the text has several.")
    branch: Written = None


class LoadArguments(Arguments):
    ndjson: str = Field(
        description='Records, one JSON object a line: {"type": "Person", "data": {...}} for nodes, '
        '{"edge": "Knows", "from": "a", "to": "b", "data": {...}} for edges.'
    )
    mode: str = Field("merge", description="append, merge or overwrite.")
    branch: Written = None


class ProposeArguments(Arguments):
    title: str = Field(description="What the change is for, in a few words; the branch is named after it.")
    query: str | None = Field(None, description="A query of the .gq language that changes the graph.")
    params: Params = None
    ndjson: str | None = Field(None, description="Records to merge instead, as for graph_load.")


class CreateBranchArguments(Arguments):
    name: str
    base: str = Field(MAIN, alias="from", description="A branch, a tag or a commit.")


class DeleteBranchArguments(Arguments):
    name: str


class OpenRequestArguments(MergeArguments):
    title: str = Field(description="What the merge is about, in a line.")
    message: str | None = Field(None, description="More about it: what changes, and why.")


class ApplySchemaArguments(Arguments):
    schema_source: str = Field(description="The whole new schema in the .pg language.")


@tool("graph_mutate", Action.CHANGE, "change", "mutate", destructive=True)
def _mutate(session: Session, asked: MutateArguments) -> Answer:
    """Insert, update or delete with a query in the .gq language, in one commit.

    Example: query add($slug: String) { insert Person { slug: $slug } }.
    """
    branch = session.branch_to_write(asked.branch)
    found: Answer = to_document(session.graph.mutate(asked.query, asked.params, name=asked.name, branch=branch))
    return found


@tool("graph_load", Action.CHANGE, "ingest", "load", destructive=True)
def _load(session: Session, asked: LoadArguments) -> Answer:
    """Load nodes and edges, checked against the schema, in one commit or not at all."""
    branch = session.branch_to_write(asked.branch)
    found: Answer = to_document(session.graph.load(_records(asked.ndjson), mode=asked.mode, branch=branch))
    return found


def _records(text: str) -> list[Any]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError as error:
                message = f"line {number} of ndjson is not JSON: {error.msg}"
                raise RequestError(message, hint="write one JSON object a line") from None
    return found


@tool("propose", Action.CHANGE)
def _propose(session: Session, asked: ProposeArguments) -> Answer:
    """Make a change on a branch of your own, `agent/<actor>/<title>`, for review: nothing else is changed.

    The answer has the branch and what it changes. A second call with the same title continues on that branch.
    """
    if (asked.query is None) == (asked.ndjson is None):
        raise RequestError("propose takes either `query` or `ndjson`", hint="give one of them")
    branch = session.ensure(f"{_PROPOSALS}/{_slug(session.actor)}/{_slug(asked.title)}", session.branch)
    if asked.query is not None:
        done: Any = session.graph.mutate(asked.query, asked.params, branch=branch, message=asked.title)
    else:
        done = session.graph.load(_records(asked.ndjson or ""), mode="merge", branch=branch, message=asked.title)
    found = session.graph.diff(session.branch, branch)
    changed = {"counts": found.stats().counts, **changes_answer(found, ROWS)}
    commit = done.commit.commit_id if done.commit else None
    return {"branch": branch, "into": session.branch, "graph_commit_id": commit, **changed}


def _slug(text: str) -> str:
    """A part of the name of a branch."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].rstrip("-")
    if not slug:
        raise RequestError(f"'{text:.80}' has no letter or digit to name a branch by", hint="use a title in words")
    return slug


@tool("branch_create", Action.BRANCH_CREATE, "branches_create")
def _create(session: Session, asked: CreateBranchArguments) -> Answer:
    """Create a branch. No data is copied."""
    session.graph.create_branch(asked.name, asked.base)
    return {"name": asked.name, "from": asked.base}


@tool("branch_delete", Action.BRANCH_DELETE, "branches_delete", destructive=True, idempotent=True)
def _delete(session: Session, asked: DeleteBranchArguments) -> Answer:
    """Delete a branch, and what only it has."""
    session.graph.delete_branch(asked.name)
    return {"name": asked.name}


@tool("branch_merge", Action.BRANCH_MERGE, "branches_merge", destructive=True, idempotent=True)
def _merge(session: Session, asked: MergeArguments) -> Answer:
    """Merge a branch into another, in one commit. Look at merge_preview first."""
    found: Answer = to_document(session.graph.merge(asked.source, asked.target))
    return found


@tool("merge_request_open", Action.BRANCH_MERGE)
def _open_request(session: Session, asked: OpenRequestArguments) -> Answer:
    """Ask for a merge of a branch into another, for a person to review. Nothing is merged."""
    opened = session.graph.requests.open(asked.source, asked.target, title=asked.title, message=asked.message)
    found: Answer = to_document(opened)
    return found


@tool("schema_apply", Action.SCHEMA_APPLY, destructive=True, idempotent=True)
def _apply(session: Session, asked: ApplySchemaArguments) -> Answer:
    """Change the schema, in one commit."""
    found: Answer = to_document(session.graph.apply_schema(asked.schema_source))
    return found
