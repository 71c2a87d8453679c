"""The routes: each calls the graph and renders its result; none decides anything itself. Here is what they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict
from urllib.parse import quote, unquote

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.convertors import Convertor, register_url_convertor

from omnigraph.api.changes import ChangeOptions
from omnigraph.api.operation import OPERATION_HEADER
from omnigraph.core.refs import MAIN
from omnigraph.errors import RequestError
from omnigraph.graph import Graph
from omnigraph.server import intake
from omnigraph.server.calls import CallNow
from omnigraph.server.guard import GuardedRoute


class SegmentConvertor(Convertor[str]):
    """One decoded segment of a path. Invalid UTF-8 becomes replacement characters, which name nothing."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        # After routing and not before: `RawPath` passes the path as sent, so that `%2F` does not separate segments.
        return unquote(value, errors="replace")

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("segment", SegmentConvertor())  # before any route is declared


Branch = Annotated[str, Query(description="The branch; main if none is named.")]
Kinds = Annotated[list[str] | None, Query(alias="kind", description="node or edge; can be repeated.")]
Types = Annotated[list[str] | None, Query(alias="type", description="Names of types; can be repeated.")]
Operations = Annotated[list[str] | None, Query(alias="op", description="insert, update or delete; can be repeated.")]

_Operation = Annotated[
    str | None,
    Header(
        alias=OPERATION_HEADER,
        description="An id for the change, a new ULID, to ask for its outcome by if the answer is lost.",
        json_schema_extra={"pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"},
    ),
]


def router(tag: str) -> APIRouter:
    return APIRouter(route_class=GuardedRoute, tags=[tag])


async def _operation(request: Request, _declared: _Operation = None) -> str | None:
    return intake.operation(request)


OperationId = Annotated[str | None, Depends(_operation)]


async def _committing(call: CallNow, operation_id: OperationId) -> Graph:
    return call.graph if operation_id is None else call.graph.as_operation(operation_id)


Committing = Annotated[Graph, Depends(_committing)]
"""The graph for a change that makes a commit, which carries the operation id of the client."""


async def _refuse_operation(request: Request) -> None:
    intake.refuse_operation(request)


WITHOUT_COMMIT = [Depends(_refuse_operation)]
"""What must hold for a change that makes no commit."""


def text(source: str, ending: str) -> str:
    """What a client sends is a text, and never the name of a file here: those have one line, and end like one."""
    # `Graph.query` takes a text or a path, and tells them apart by the ending. A line break makes it a text for
    # certain.
    return f"{source}\n" if source.endswith(ending) else source


def or_main(name: str | None) -> str:
    """A branch that is not named is main; one whose name is empty is none."""
    return MAIN if name is None else name


class State(TypedDict, total=False):
    """Which state to read: one of the two."""

    branch: str
    snapshot: str


def state(branch: str | None, snapshot: str | None) -> State:
    """Which state to read: a branch, or a commit, but not both."""
    if branch is not None and snapshot is not None:
        raise RequestError("branch and snapshot exclude each other", hint="a commit is enough: leave the branch out")
    return {"snapshot": snapshot} if snapshot is not None else {"branch": or_main(branch)}


def chosen(kinds: Sequence[str] | None, types: Sequence[str] | None, operations: Sequence[str] | None) -> ChangeOptions:
    """Which changes are wanted; what is not named means all."""
    return {"kinds": named(kinds), "types": named(types), "operations": named(operations)}


def named(given: Sequence[str] | None) -> list[str] | None:
    """What a repeated parameter names: `?kind=` names none, and no parameter at all means all."""
    return None if given is None else [one for one in given if one]
