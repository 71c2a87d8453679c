"""`omnigraph mcp`: serve the tools for agents on stdin and stdout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from omnigraph.api.access import Caller, Principal, Role
from omnigraph.api.protocol import GraphAPI
from omnigraph.api.results import MutationResult
from omnigraph.api.rows import Result
from omnigraph.cli import output
from omnigraph.cli.address import Served, Target
from omnigraph.cli.command import command, option, switch
from omnigraph.client.calls import StoredQueryInfo
from omnigraph.client.remote import RemoteGraph
from omnigraph.core.extras import require
from omnigraph.core.refs import MAIN
from omnigraph.graph import Graph
from omnigraph.lang.identity import new_id
from omnigraph.mcp.session import Session, StoredTool

_AGENT = "agent"


@command("mcp", json=False)
def mcp(
    target: Target,
    *,
    branch: Annotated[
        str | None,
        option("Read and change this branch. Default: read main, and change a branch of this session.", "NAME"),
    ] = None,
    read_only: Annotated[bool, switch("Offer no tool that changes anything.", "--read-only")] = False,
    allow_merge: Annotated[bool, switch("Offer the tool that merges branches.", "--allow-merge")] = False,
) -> None:
    """Serve a graph to an agent: the Model Context Protocol on stdin and stdout.

    Changes go to a branch of the session, `agent/<actor>/<id>`, unless a call or --branch names another one.
    """
    require("mcp", "omnigraph[mcp]")
    import anyio  # noqa: PLC0415 - with the SDK it would double the time that other commands take to start

    from omnigraph.mcp.protocol import serve_stdio  # noqa: PLC0415

    graph, caller, actor, stored = _served(target) if isinstance(target.address, Served) else _stored(target, read_only)
    own = None if branch else f"{_AGENT}/{actor}/{new_id()[-8:].lower()}"
    session = Session(graph, caller, actor, branch or MAIN, own, stored, read_only, allow_merge)
    if not target.scope.flags.quiet:
        where = "nothing is changed" if read_only else f"changes go to {own or branch}"
        output.note(f"omnigraph mcp: {target.uri}, {where}")
    anyio.run(serve_stdio, session)


_Known = tuple[GraphAPI, Caller, str, list[StoredTool]]


def _stored(target: Target, read_only: bool) -> _Known:  # noqa: FBT001 - what the command line says
    """Open a graph in storage. Its commits name the actor of the command line or the settings."""
    principal = Principal(target.actor or _AGENT, Role.READ if read_only else Role.ADMIN)
    graph = target.read() if read_only else target.write()
    assert isinstance(graph, Graph)
    return graph.acting_as(principal), Caller.of(principal), principal.actor, []


def _served(target: Target) -> _Known:
    """Connect to a server, whose token says who calls, and which has stored queries."""
    graph = target.stored()
    caller = graph.whoami()
    actor = _AGENT if caller.principal is None else caller.principal.actor
    return graph, caller, actor, [_stored_tool(graph, one) for one in graph.stored_queries()]


def _stored_tool(graph: RemoteGraph, one: StoredQueryInfo) -> StoredTool:
    run = partial(_invoke, graph, one)
    return StoredTool(one.name, one.tool_name, one.mutation, one.params, run, one.description, one.instruction)


def _invoke(
    graph: RemoteGraph, one: StoredQueryInfo, _: GraphAPI, params: Mapping[str, Any], branch: str, snapshot: str | None
) -> Result | MutationResult:
    if one.mutation:
        return graph.invoke_mutation(one.name, params, branch=branch)
    return graph.invoke_query(one.name, params, branch=branch, snapshot=snapshot)
