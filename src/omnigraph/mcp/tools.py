"""Which tools a caller has: those of its permissions, and the stored queries."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from omnigraph.api.access import Action
from omnigraph.api.documents import to_document
from omnigraph.api.results import MutationResult
from omnigraph.core.refs import MAIN
from omnigraph.errors import OptionError, StoredQueryNotFoundError
from omnigraph.lang.source import did_you_mean
from omnigraph.mcp import changing, entities, reading
from omnigraph.mcp.answers import ROWS, Answer, rows_answer
from omnigraph.mcp.session import Session, StoredTool
from omnigraph.mcp.tool import TOOLS, NoArguments, Params, StateArguments, Tool, place_of, tool

MANY_STORED = 24
"""From so many stored queries on, two tools list and run them: each tool takes room in the context of a model."""
__all__ = ["MANY_STORED", "TOOLS", "changing", "entities", "find_tool", "reading", "tools_of"]

# Stored queries ------------------------------------------------------------------------------------


class StoredArguments(StateArguments):
    params: Params = None


class RunStoredArguments(StoredArguments):
    name: str = Field(description="The name of the stored query.")


@tool("stored_query_list", Action.READ)
def _list_stored(session: Session, asked: NoArguments) -> Answer:
    """List the stored queries with their parameters."""
    known = ("name", "description", "instruction")
    return {
        "queries": [
            {
                **{name: getattr(one, name) for name in known if getattr(one, name) is not None},
                "mutation": one.is_mutation,
                "params": list(one.params),
            }
            for one in stored_tools(session)
        ]
    }


@tool("stored_query_run", Action.READ)
def _run_stored(session: Session, asked: RunStoredArguments) -> Answer:
    """Run a stored query by its name."""
    for one in stored_tools(session):
        if asked.name in (one.name, one.tool_name):
            return run_stored(session, one, asked)
    hint = did_you_mean(asked.name, [one.name for one in stored_tools(session)]) or "see stored_query_list"
    raise StoredQueryNotFoundError("stored query not found", query=asked.name, hint=hint)


def stored_tools(session: Session) -> list[StoredTool]:
    """The stored queries that the caller may run. Others look as if they did not exist."""
    if not session.allows(Action.INVOKE_QUERY):
        return []
    return [one for one in session.stored if session.allows(Action.CHANGE if one.is_mutation else Action.READ)]


def run_stored(session: Session, stored: StoredTool, asked: StoredArguments) -> Answer:
    """Run a stored query."""
    if stored.is_mutation:
        with session.admit():
            branch = session.branch_to_write(asked.branch)
            done = stored.run(session.graph, asked.params or {}, branch, None)
    else:
        place = place_of(session, asked)
        done = stored.run(session.graph, asked.params or {}, place.get("branch", MAIN), place.get("snapshot"))
    if isinstance(done, MutationResult):
        found: Answer = to_document(done)
        return found
    return rows_answer(done, 0, ROWS)


# Which tools a session has -------------------------------------------------------------------------


def _stored_tool(one: StoredTool) -> Tool:
    def run(session: Session, asked: StoredArguments) -> Answer:
        return run_stored(session, one, asked)

    given = ", ".join(f"{param['name']} ({param.get('item_kind', param['kind'])})" for param in one.params)
    about = [one.description or f"The stored query {one.name}.", one.instruction, f"Parameters: {given or 'none'}."]
    run.__doc__ = " ".join(filter(None, about))
    # READ also for a mutation: `run_stored` admits it, and `stored_tools` has seen to its permission.
    return Tool(one.tool_name, Action.READ, StoredArguments, run, is_destructive=one.is_mutation)


def tools_of(session: Session) -> dict[str, Tool]:
    """Return the tools that are listed for a caller, by name."""
    stored = stored_tools(session)
    few = len(stored) < MANY_STORED
    hidden = {"stored_query_list", "stored_query_run"} if few else set()
    if not session.allow_merge:
        hidden.add("branch_merge")
    found = {name: one for name, one in TOOLS.items() if name not in hidden and session.allows(one.action)}
    if any(one.is_mutation for one in stored) and not few:
        # The name of a query decides whether it changes anything, so a client must expect that it does.
        found["stored_query_run"] = replace(found["stored_query_run"], is_destructive=True)
    if few:
        # A tool of ours wins over a stored query of its name, which can be renamed in the settings.
        found |= {one.tool_name: _stored_tool(one) for one in stored if one.tool_name not in TOOLS}
    return found


def find_tool(session: Session, name: str) -> Tool:
    """Find a tool by its name or an older one. A tool that is not listed cannot be called."""
    listed = tools_of(session)
    if name in listed:
        return listed[name]
    for one in listed.values():
        if name in one.also:
            return one
    # No suggestion of another tool for one that is withheld: the nearest name may do something else entirely.
    if name in TOOLS or any(name in one.also for one in TOOLS.values()):
        message = f"'{name}' is not available in this session"
        raise OptionError(message, option="name", hint="it needs more permission: ask a person to do it")
    hint = did_you_mean(name, listed) or "list the tools: what you may not do is not among them"
    raise OptionError(f"there is no tool '{name:.80}' for you", option="name", hint=hint)
