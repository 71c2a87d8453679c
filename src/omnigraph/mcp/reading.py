"""The tools that read."""

from __future__ import annotations

from pydantic import Field

from omnigraph.api.access import Action
from omnigraph.api.documents import to_document
from omnigraph.core.refs import MAIN
from omnigraph.mcp.answers import ROWS, Answer, changes_answer, rows_answer
from omnigraph.mcp.describe import TOKENS, describe_schema, searchable
from omnigraph.mcp.entities import node_type
from omnigraph.mcp.session import Session
from omnigraph.mcp.tool import Arguments, Limit, NoArguments, Params, Read, StateArguments, place_of, tool
from omnigraph.version import INTERNAL_SCHEMA_VERSION, __version__


class QueryArguments(StateArguments):
    query: str = Field(description="One or more queries in the .gq language.")
    params: Params = None
    name: str | None = Field(None, description="Which query to run, if the text has several.")
    limit: Limit = Field(ROWS, description="How many rows to return.")
    start: int = Field(0, ge=0, description="The first row to return: `next_start` of the answer before.")


class SchemaArguments(Arguments):
    types: list[str] | None = Field(None, description="Only these types.")
    detail: str | None = Field(None, description="names, typed or full. Default: the richest that fits.")
    max_tokens: int = Field(TOKENS, ge=50, le=100_000)
    branch: Read = None


class BranchArguments(Arguments):
    branch: Read = None


class CommitsArguments(BranchArguments):
    limit: Limit = 20


class CommitArguments(Arguments):
    commit_id: str = Field(description="The id of a commit, or a unique beginning of it.")


class SearchArguments(Arguments):
    text: str = Field(description="Words to look for.")
    types: list[str] | None = Field(None, description="Only nodes of these types.")
    branch: Read = None
    limit: int = Field(10, ge=1, le=100)


class DiffArguments(Arguments):
    from_: str = Field(MAIN, alias="from", description="The state before: a branch, a tag or a commit.")
    to: str = Field(description="The state after.")
    types: list[str] | None = None
    limit: Limit = ROWS


@tool("graph_health", Action.READ, "health")
def _health(session: Session, asked: NoArguments) -> Answer:
    """Return the version of the server, the branches of the graph, and what this session may do."""
    actions = [one.value for one in Action if session.allows(one)]
    about = {"version": __version__, "internal_schema_version": INTERNAL_SCHEMA_VERSION, "uri": session.graph.uri}
    places = {"branch": session.branch_to_read(None), "writes_to": session.own or session.branch}
    return {"status": "ok", **about, **places, "actor": session.actor, "actions": actions}


@tool("graph_query", Action.READ, "read", "query")
def _query(session: Session, asked: QueryArguments) -> Answer:
    """Run a read query in the .gq language and return its rows.

    Example: query q($name: String) { match { $p: Person { name: $name } $p knows $f } return { $f.name } limit 10 }.
    Read the schema first. The answer is cut to `limit` rows; `next_start` and `graph_commit_id` continue it.
    """
    found = session.graph.query(asked.query, asked.params, name=asked.name, **place_of(session, asked))
    return rows_answer(found, asked.start, asked.limit)


@tool("graph_snapshot", Action.READ, "snapshot")
def _snapshot(session: Session, asked: BranchArguments) -> Answer:
    """Return the tables of a branch: the version and the number of rows of each type."""
    found: Answer = to_document(session.graph.snapshot(session.branch_to_read(asked.branch)))
    return found


@tool("schema_get", Action.READ)
def _schema(session: Session, asked: BranchArguments) -> Answer:
    """Return the whole schema, as it was written. Prefer schema_describe, which is short."""
    return {"schema_source": session.graph.at(session.branch_to_read(asked.branch)).schema}


@tool("schema_describe", Action.READ)
def _describe(session: Session, asked: SchemaArguments) -> Answer:
    """Return the node and edge types with their properties, in at most `max_tokens` tokens. Call this first."""
    view = session.graph.at(session.branch_to_read(asked.branch))
    return describe_schema(view.catalog, view.schema, asked.types, asked.detail, asked.max_tokens)


@tool("graph_search", Action.READ)
def _search(session: Session, asked: SearchArguments) -> Answer:
    """Find nodes by words in their indexed texts, best first: what to begin with if you know no key."""
    branch = session.branch_to_read(asked.branch)
    catalog = session.graph.at(branch).catalog
    for name in asked.types or ():
        node_type(catalog, name)
    found: list[Answer] = []
    for node, text in searchable(catalog):
        if asked.types is None or node.name in asked.types:
            query = (
                f"query words($text: String) {{ match {{ $x: {node.name} }} "
                f"return {{ $x as id, $x.{text} as text, bm25($x.{text}, $text) as score }} "
                f"order {{ bm25($x.{text}, $text) }} limit {asked.limit} }}"
            )
            rows = session.graph.query(query, {"text": asked.text}, branch=branch).rows
            found += [{"type": node.name, "property": text, **row} for row in rows]
    # Scores of two properties have the same formula, but other statistics: an order for reading, not a measure.
    found.sort(key=lambda one: -one["score"])
    return {"found": [{**one, "text": one["text"][:200]} for one in found[: asked.limit]]}


@tool("branch_list", Action.READ, "branches_list")
def _branches(session: Session, asked: NoArguments) -> Answer:
    """List the branches."""
    return {"branches": session.graph.branches()}


@tool("commit_list", Action.READ, "commits_list")
def _commits(session: Session, asked: CommitsArguments) -> Answer:
    """List the commits of a branch, newest first."""
    found = session.graph.commits(session.branch_to_read(asked.branch))
    shown = [to_document(one) for one in found[: asked.limit]]
    return {"commits": shown, "truncated": len(found) > asked.limit}


@tool("commit_get", Action.READ, "commits_get")
def _commit(session: Session, asked: CommitArguments) -> Answer:
    """Return one commit: its parents, its actor and its details."""
    found: Answer = to_document(session.graph.commit(asked.commit_id))
    return found


@tool("branch_diff", Action.READ)
def _diff(session: Session, asked: DiffArguments) -> Answer:
    """Return the changes that turn one state into another: entities inserted, updated and deleted, with values."""
    found = session.graph.diff(asked.from_, asked.to, types=asked.types)
    return {"counts": found.stats().counts, **changes_answer(found, asked.limit)}


class RequestsArguments(Arguments):
    state: str | None = Field(None, description="open, merged or closed; all if none is named.")


class MergeArguments(Arguments):
    source: str = Field(description="The branch that has the changes.")
    target: str = Field(MAIN, description="The branch that gets them.")


@tool("merge_request_list", Action.READ)
def _requests(session: Session, asked: RequestsArguments) -> Answer:
    """List the merge requests, newest first, with the approvals and checks that count for them now."""
    return {"requests": [to_document(one) for one in session.graph.requests.list(asked.state)]}


@tool("merge_preview", Action.READ)
def _preview(session: Session, asked: MergeArguments) -> Answer:
    """Return what a merge would change, and its conflicts, without merging."""
    found: Answer = to_document(session.graph.merge(asked.source, asked.target, dry_run=True))
    return found
