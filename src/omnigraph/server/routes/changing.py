"""Changing a graph: mutations, loads, its schema."""

from __future__ import annotations

import io
from typing import Annotated, Literal

from fastapi import Query, Request, Response

from omnigraph.api import documents
from omnigraph.api.access import Action
from omnigraph.api.results import LoadResult
from omnigraph.graph import Graph
from omnigraph.lang import Source, compile_schema
from omnigraph.server import intake, replies, requests, responses
from omnigraph.server.calls import CallNow
from omnigraph.server.guard import Brings, Condition, Need, needs
from omnigraph.server.replies import CHANGING, LINES_BODY, READING, Conditional
from omnigraph.server.routes.common import Branch, Committing, or_main, router, text

routes = router("changing")


@routes.post("/mutate", response_model=responses.ChangeOutput, responses=CHANGING)
@needs(Action.CHANGE)
def mutate(graph: Committing, body: requests.ChangeRequest) -> Response:
    """Insert, update or delete by a query: all of it in one commit, or nothing."""
    return _mutate(graph, body)


@routes.post("/change", response_model=responses.ChangeOutput, responses=CHANGING, deprecated=True)
@needs(Action.CHANGE)
def change(graph: Committing, body: requests.ChangeRequest) -> Response:
    """Change a graph, as older clients ask for it."""
    return replies.deprecated(_mutate(graph, body), "mutate")


@routes.post("/mutate/if-graph-commit", response_model=responses.ChangeOutput, responses=CHANGING)
@needs(Need(Action.CHANGE, condition=Condition.REQUIRED))
def mutate_if_graph_commit(
    graph: Committing, request: Request, body: requests.ChangeRequest, _condition: Conditional
) -> Response:
    """Change a graph only if its branch is at the commit that the header names."""
    return _mutate(graph, body, intake.condition(request))


def _mutate(graph: Graph, body: requests.ChangeRequest, if_commit: str | None = None) -> Response:
    done = graph.mutate(
        text(body.query, ".gq"), body.params, name=body.name, branch=or_main(body.branch), if_commit=if_commit
    )
    return replies.document(documents.change_output(done))


@routes.post("/load", response_model=responses.IngestOutput, responses=CHANGING)
@needs(Action.CHANGE)
def load(graph: Committing, body: requests.IngestRequest) -> Response:
    """Load entities in one commit, or nothing; every problem is named."""
    return replies.document(documents.ingest_output(graph.uri, _load_text(graph, body)))


@routes.post("/ingest", response_model=responses.IngestOutput, responses=CHANGING, deprecated=True)
@needs(Action.CHANGE)
def ingest(graph: Committing, body: requests.IngestRequest) -> Response:
    """Load entities, as older clients ask for it."""
    response = replies.document(documents.ingest_output(graph.uri, _load_text(graph, body)))
    return replies.deprecated(response, "load")


def _load_text(graph: Graph, body: requests.IngestRequest) -> LoadResult:
    data = io.BytesIO(body.data.encode())
    return graph.load(data, mode=body.mode or "merge", branch=or_main(body.branch), base=body.from_)


@routes.post(
    "/load/ndjson",
    response_model=responses.GraphBatchLoadOutput,
    responses=CHANGING,
    openapi_extra=LINES_BODY,
)
@needs(Need(Action.CHANGE, brings=Brings.LINES))
def load_ndjson(
    call: CallNow,
    graph: Committing,
    *,
    branch: Branch = "main",
    base: Annotated[str | None, Query(alias="from", description="What to make the branch of.")] = None,
    mode: Annotated[Literal["append", "merge", "overwrite"], Query()] = "merge",
    dry_run: Annotated[bool, Query(description="Only check.")] = False,
) -> Response:
    """Load entities that are sent as they are, one JSON object per line."""
    done = graph.load(call.lines, mode=mode, branch=branch, base=base, dry_run=dry_run)
    return replies.document(documents.batch_output(done))


@routes.post("/schema/plan", response_model=responses.SchemaPlanOutput, responses=READING)
@needs(Action.READ)
def plan_schema(call: CallNow, body: requests.SchemaRequest) -> Response:
    """Tell which steps lead to a schema, and touch nothing."""
    graph = call.graph
    done = graph.plan_schema(text(body.schema_source, ".pg"), allow_data_loss=body.allow_data_loss)
    return replies.document(documents.schema_plan_output(graph.uri, done))


@routes.post("/schema/apply", response_model=responses.SchemaApplyOutput, responses=CHANGING)
@needs(Action.SCHEMA_APPLY)
def apply_schema(call: CallNow, graph: Committing, body: requests.SchemaRequest) -> Response:
    """Change the schema in one commit. It is refused if a stored query would not suit it any more."""
    source = text(body.schema_source, ".pg")
    call.opened.stored.check(compile_schema(Source(source, "<schema>")))
    done = graph.apply_schema(source, allow_data_loss=body.allow_data_loss)
    return replies.document(documents.schema_apply_output(graph.uri, done))
