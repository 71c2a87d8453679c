"""The protocol: tools, resources and prompts of a session, through the official SDK."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import mcp_types as types
from anyio import to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from omnigraph.errors import OmnigraphError, ServerFailedError
from omnigraph.mcp.answers import Answer, error_answer
from omnigraph.mcp.session import Session
from omnigraph.mcp.tool import Tool
from omnigraph.mcp.tools import find_tool, tools_of
from omnigraph.version import __version__

_LOG = logging.getLogger(__name__)
_INSTRUCTIONS = (
    "A typed property graph, versioned like git. Call schema_describe first, then graph_query with the .gq language. "
    "Make changes with propose: they go to a branch of your own, for review."
)
_SCHEMA, _BRANCHES = "omnigraph://schema", "omnigraph://branches"
_PROMPTS = {
    "explore": "Explore the graph",
    "write_query": "Write a query that answers: {question}",
    "review_branch": "Review the branch {branch}",
}
_TEXTS = {
    "explore": """
        Call schema_describe. Then count the nodes of the main types with graph_query, look at a few of them, and
        summarize what this graph holds and which questions it can answer.""",
    "write_query": """
        Read the schema with schema_describe. Write a query in the .gq language that answers: {question}. Run it with
        graph_query; if it is refused, mend it by the hint of the error. Return the query and its answer.""",
    "review_branch": """
        Review the branch {branch}: look at branch_diff from main to it and at merge_preview. Say what it changes, what
        could be wrong, and whether to merge it. Do not merge it yourself.""",
}
_ARGUMENTS = {"write_query": "question", "review_branch": "branch"}

Context = ServerRequestContext[Any, Any]
FindSession = Callable[[Context], Session]


def create_server(find_session: FindSession) -> Server[Any]:
    """Create a server whose every request is answered for the session that it belongs to."""
    return Server(
        "omnigraph",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=partial(_list_tools, find_session),
        on_call_tool=partial(_call_tool, find_session),
        on_list_resources=_list_resources,
        on_read_resource=partial(_read_resource, find_session),
        on_list_prompts=_list_prompts,
        on_get_prompt=_get_prompt,
    )


async def serve_stdio(session: Session) -> None:
    """Answer requests on stdin with lines on stdout, until stdin ends."""
    server = create_server(lambda _: session)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _list_tools(
    find_session: FindSession, context: Context, _: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    found = await to_thread.run_sync(tools_of, find_session(context))
    return types.ListToolsResult(tools=[_declared(one) for one in found.values()])


def _declared(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=tool.reads and not tool.is_destructive,
        destructive_hint=tool.is_destructive,
        idempotent_hint=tool.is_idempotent,
        open_world_hint=False,
    )
    schema = tool.arguments.model_json_schema(by_alias=True)
    return types.Tool(name=tool.name, description=tool.description, input_schema=schema, annotations=hints)


async def _call_tool(
    find_session: FindSession, context: Context, asked: types.CallToolRequestParams
) -> types.CallToolResult:
    session = find_session(context)
    try:
        answer = await to_thread.run_sync(_answer, session, asked.name, asked.arguments or {})
    except OmnigraphError as error:
        return _result(*error_answer(error), is_error=True)
    except Exception:  # noqa: BLE001 - it is logged, and the connection goes on
        # The model learns only that it failed, as a client of every other route does.
        _LOG.exception("the tool %s failed", asked.name)
        failure = ServerFailedError("the tool failed unexpectedly", hint="the log of the server has the reason")
        return _result(*error_answer(failure), is_error=True)
    return _result(_text(answer), answer, is_error=False)


def _answer(session: Session, name: str, given: dict[str, Any]) -> Answer:
    return find_tool(session, name).answer(session, given)


def _result(text: str, members: Answer, *, is_error: bool) -> types.CallToolResult:
    # As text too: clients of older versions of the protocol show only that.
    members = json.loads(_text(members))
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=members, is_error=is_error)


def _text(answer: Answer) -> str:
    return json.dumps(answer, ensure_ascii=False, default=str, separators=(",", ":"))


# Resources and prompts -----------------------------------------------------------------------------


async def _list_resources(_: Context, __: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    return types.ListResourcesResult(
        resources=[
            types.Resource(uri=_SCHEMA, name="schema", description="The schema, as written.", mime_type="text/plain"),
            types.Resource(uri=_BRANCHES, name="branches", description="The branches.", mime_type="application/json"),
        ]
    )


async def _read_resource(
    find_session: FindSession, context: Context, asked: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    session, uri = find_session(context), str(asked.uri)
    if uri == _SCHEMA:
        text = await to_thread.run_sync(lambda: session.graph.at(session.branch_to_read(None)).schema)
        kind = "text/plain"
    elif uri == _BRANCHES:
        text, kind = json.dumps(await to_thread.run_sync(session.graph.branches)), "application/json"
    else:
        raise MCPError(code=types.INVALID_PARAMS, message=f"there is no resource {uri:.200}")
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=text, mime_type=kind)])


async def _list_prompts(_: Context, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(
                name=name,
                description=title,
                arguments=[types.PromptArgument(name=_ARGUMENTS[name], required=True)] if name in _ARGUMENTS else [],
            )
            for name, title in _PROMPTS.items()
        ]
    )


async def _get_prompt(_: Context, asked: types.GetPromptRequestParams) -> types.GetPromptResult:
    given, wanted = asked.arguments or {}, _ARGUMENTS.get(asked.name)
    if asked.name not in _PROMPTS or (wanted is not None and wanted not in given):
        message = f"there is no prompt {asked.name:.80}" if asked.name not in _PROMPTS else f"{wanted} is missing"
        raise MCPError(code=types.INVALID_PARAMS, message=message)
    filled = {wanted: given[wanted]} if wanted else {}
    title, text = (texts[asked.name].format(**filled) for texts in (_PROMPTS, _TEXTS))
    content = types.TextContent(text=" ".join(text.split()))
    return types.GetPromptResult(description=title, messages=[types.PromptMessage(role="user", content=content)])
