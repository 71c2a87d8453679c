"""The routes of operations: parameters, bodies, answers and descriptions come from the operations themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter as Argument
from typing import Annotated, Any, get_args

from fastapi import Path, Query, Request, Response
from pydantic import AliasChoices, BaseModel, Field, create_model

from omnigraph.api import operations as op
from omnigraph.api.access import READS
from omnigraph.api.documents import answer_document, form_of, resolution_of
from omnigraph.api.operation import OPERATIONS, Description, Parameter, Route
from omnigraph.errors import RequestError
from omnigraph.lang import Source, compile_schema
from omnigraph.server import intake, models, replies
from omnigraph.server.calls import Call, CallNow
from omnigraph.server.guard import Condition, Need, needs
from omnigraph.server.models import model_of
from omnigraph.server.replies import CHANGING, READING, Conditional
from omnigraph.server.routes import WITHOUT_COMMIT, Committing, named, router, text

BY_HAND = {"/query", "/branches/merge"}
"""Paths that another module declares: they answer more than the result, or in another form."""

_BODIES: dict[str, Any] = {  # how JSON has what an operation takes in more than one form
    "params": dict[str, Any] | None,
    "checks": dict[str, str] | list[str] | None,
    "resolve": str | dict[str, Any] | list[dict[str, Any]] | None,
}
_OLDER = {"query": "query_source", "name": "query_name"}  # members of queries, as older clients spell them

routes = router("operations")


def _declare(known: Description, route: Route) -> None:
    """Declare one route."""
    changes = (route.action or known.action) not in READS
    commits = changes and known.commits
    path = re.sub(r"\{(\w+)\}", r"{\1:segment}", route.path)
    condition = Condition.NONE if route.condition is None else Condition.REQUIRED
    endpoint = needs(Need(route.action or known.action, condition=condition))(_endpoint(known, route))
    arguments = [*_arguments(known, route)]
    if commits:
        arguments.append(_argument("graph", Committing))
    if route.condition is not None:
        arguments.append(_argument("_condition", Conditional))
    # FastAPI reads parameters, bodies and dependencies from the signature.
    endpoint.__dict__["__signature__"] = inspect.Signature(arguments, return_annotation=Response)
    endpoint.__name__ = route.id or _snake(known.kind.__name__)
    endpoint.__doc__ = route.doc or inspect.getdoc(known.kind)
    routes.add_api_route(
        path,
        endpoint,
        methods=[route.verb],
        response_model=model_of(form_of(known)),
        responses=CHANGING if changes else READING,
        dependencies=WITHOUT_COMMIT if changes and not commits else None,
    )


def _endpoint(known: Description, route: Route) -> Callable[..., Response]:
    def endpoint(call: Call, request: Request, graph: Any = None, **given: Any) -> Response:
        body = given.pop("body", None)
        values = given if body is None else {**given, **vars(body)}
        sent = {name: _value(one, values[route.wire_name(name)]) for name, one in known.sent.items()}
        if isinstance(checks := sent.get("checks"), list):
            sent["checks"] = call.opened.stored.checks(checks)
        if route.condition is not None:
            sent[route.condition] = intake.condition(request)
        operation = known.kind(**_checked({**sent, **route.given}))
        if isinstance(operation, op.ApplySchema):  # stored queries must suit the schema that the graph is to have
            # Before the change: a schema that breaks a stored query would be noticed at its next run.
            call.opened.stored.check(compile_schema(Source(str(operation.schema), "<schema>")))
        held = call.graph if graph is None else graph
        result = held.call(operation)
        return replies.document(answer_document(operation, result, held.uri, call.actor))

    return endpoint


def _checked(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what was not given, so that the defaults of the operation count."""
    if sent.get("branch") is not None and sent.get("snapshot") is not None:
        raise RequestError("branch and snapshot exclude each other", hint="a commit is enough: leave the branch out")
    # null and absent mean the same, in a body and in a query.
    return {name: value for name, value in sent.items() if value is not None}


def _value(parameter: Parameter, value: Any) -> Any:
    if value is None:
        return None
    if parameter.source is not None:
        return text(value, parameter.source.suffix)
    if parameter.name == "resolve":
        return resolution_of(value)
    return named(value) if isinstance(value, list) else value


def _arguments(known: Description, route: Route) -> Iterator[Argument]:
    yield _argument("call", CallNow)
    yield _argument("request", Request)
    in_path = {name for name in known.sent if f"{{{route.wire_name(name)}}}" in route.path}
    for name in in_path:
        yield _argument(route.wire_name(name), Annotated[str, Path(description=known.sent[name].doc)])
    if route.verb == "POST":
        yield _argument("body", _body(known, route))
        return
    for name, one in known.sent.items():
        if name not in in_path:
            yield _query_argument(one, route.wire_name(name))


def _argument(name: str, kind: Any, default: Any = Argument.empty) -> Argument:
    return Argument(name, Argument.KEYWORD_ONLY, annotation=kind, default=default)


def _query_argument(parameter: Parameter, wire: str) -> Argument:
    is_many = any(getattr(kind, "__origin__", None) is not None for kind in get_args(parameter.kind))
    kind = list[str] | None if is_many else parameter.kind
    described = Annotated[kind, Query(description=parameter.doc)]  # type: ignore[valid-type]
    return _argument(wire, described, Argument.empty if parameter.is_required else parameter.default)


def _body(known: Description, route: Route) -> type[BaseModel]:
    is_query = any(one.source and one.source.suffix == ".gq" for one in known.sent.values())
    members: dict[str, Any] = {}
    for name, one in known.sent.items():
        wire = route.wire_name(name)
        if f"{{{wire}}}" in route.path:
            continue  # the path says it
        alias = AliasChoices(wire, _OLDER[wire]) if is_query and wire in _OLDER else None
        members[wire] = (_body_kind(one), Field(_default(one), validation_alias=alias, description=one.doc))
    return create_model(f"{known.kind.__name__}{_suffix(route)}Request", __base__=models.Request, **members)


def _suffix(route: Route) -> str:
    """Distinguish two bodies of one operation."""
    return "If" if route.condition else "Preview" if route.given else ""


def _body_kind(parameter: Parameter) -> Any:
    if parameter.name in _BODIES:
        return _BODIES[parameter.name]
    kind = str if parameter.source is not None else parameter.kind
    # null means the same as a member that is missing; a flag has no third value.
    return kind if parameter.is_required or kind is bool else kind | None


def _default(parameter: Parameter) -> Any:
    return ... if parameter.is_required else parameter.default if parameter.kind is bool else None


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


for _known in OPERATIONS.values():
    for _route in _known.routes:
        if _route.path not in BY_HAND:
            _declare(_known, _route)
