"""The short way to a warm question: it is answered where it arrives, without a task, a thread or a second copy.

A lookup takes a quarter of a millisecond, and all that stands around a route takes twice as long. So a question that
was quick many times is looked at here first, by the same functions in the same order. Only an answer comes of it:
whatever is wrong, slow or large is left to the application, which begins anew and tells what it finds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.types import Scope

from omnigraph.access import Action
from omnigraph.errors import OmnigraphError
from omnigraph.server import intake, logs
from omnigraph.server.calls import Call, Service, about_graph, whoever_asks
from omnigraph.server.limits import can_be_deep
from omnigraph.server.requests import QueryRequest
from omnigraph.server.routes.reading import ask, query, routes
from omnigraph.server.watching import HEADER, PRINCIPAL, Watch
from omnigraph.storage.at_once import TakesLongError, at_once

_LOG = logging.getLogger(__name__)
_CONDITION = intake.CONDITION.lower().encode()


@dataclass(frozen=True, slots=True)
class Found:
    """An answer, and the request that it is for."""

    watch: Watch
    response: Response

    def written(self, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The answer as it goes over a connection."""
        own = (*self.response.raw_headers, (HEADER, self.watch.id.encode()))
        lines = [b"%b: %b\r\n" % header for header in (*default_headers, *own)]
        return b"".join([b"HTTP/1.1 200 OK\r\n", *lines, b"\r\n", self.response.body])


class Shortcut:
    """Answers warm questions to one application."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._route = next(one for one in routes.routes if isinstance(one, APIRoute) and one.endpoint is query)
        path = self._route.path
        named = {f"/graphs/{name}{path}".encode(): {"graph_id": name} for name in service.opened.graphs}
        self._parameters: dict[bytes, dict[str, str]] = {path.encode(): {}, **named}  # of each path there is

    def leads_to(self, scope: Scope) -> bool:
        """Tell by the head of a request whether it can be such a question."""
        return scope["method"] == "POST" and scope["raw_path"] in self._parameters and not scope["query_string"]

    def find(self, scope: Scope, body: bytes) -> Found | None:
        """Answer a question if that takes no time; None if the application is to see to it."""
        limits, watch = self._service.serving.limits, Watch(scope)
        if len(body) > limits.body_bytes or can_be_deep(body, limits.json_depth):
            return None
        try:
            with at_once():
                response = self._answer(scope, body)
        except (OmnigraphError, ValidationError, TakesLongError):
            return None
        except Exception as error:  # noqa: BLE001 - the parser that calls this would take it for a malformed request
            logs.tell(_LOG, logging.ERROR, "the short way has failed", error)
            return None
        watch.status, watch.sent = response.status_code, len(response.body)
        return Found(watch, response)

    def tell(self, found: Found) -> None:
        """Do for a request what is done for each after its answer."""
        found.watch.tell(self._service.metrics)

    def _answer(self, scope: Scope, body: bytes) -> Response:
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}  # the first one counts
        parameters = self._parameters[scope["raw_path"]]
        scope["route"], scope["path_params"] = self._route, parameters
        principal = scope["state"][PRINCIPAL] = whoever_asks(self._service, headers.get(b"authorization"))
        graph = about_graph(Call(self._service, principal), parameters.get("graph_id"))
        call = Call(self._service, principal, graph)
        call.allow(Action.READ)
        asked = QueryRequest.model_validate(intake.value_of(headers.get(b"content-type"), body))
        question = asked.question(graph.graph_id)
        if _CONDITION in headers or not self._service.quick.knows(question):
            raise TakesLongError
        with self._service.quick.timed(question):
            return ask(call, asked, headers.get(b"accept"))
