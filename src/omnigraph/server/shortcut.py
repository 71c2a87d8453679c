"""The short way to a warm question: it is answered where it arrives, without a task, a thread or a second copy.

A lookup takes a quarter of a millisecond, and all that stands around a route takes twice as long. So a question that
was quick many times is looked at here first, by the same functions in the same order. Only an answer comes of it:
whatever is wrong, slow or large is left to the application, which begins anew and tells what it finds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httptools
from fastapi.routing import APIRoute
from pydantic import ValidationError

from omnigraph.api.access import Action
from omnigraph.api.http import CONDITION_HEADER
from omnigraph.core.nonblocking import WouldBlock, nonblocking
from omnigraph.errors import OmnigraphError
from omnigraph.server import intake, logs
from omnigraph.server.calls import Call, Service, about_graph, whoever_asks
from omnigraph.server.limits import can_be_deep
from omnigraph.server.replies import Rows
from omnigraph.server.requests import QueryRequest
from omnigraph.server.routes.reading import ask, query, routes
from omnigraph.server.watching import HEADER, PRINCIPAL, Watch

_LOG = logging.getLogger(__name__)
_CONDITION = CONDITION_HEADER.lower().encode()
_LINE_END = b"\r\n"
_ANSWER = b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\ncontent-type: %b\r\n%b: %b\r\n\r\n%b"


class Arriving:
    """A request as far as it has come; the parser calls what begins with `on_`."""

    def __init__(self, parameters: dict[str, str]) -> None:
        self.parameters = parameters
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.has_head = False
        self.is_complete = False
        self.is_alone = True
        self.is_plain = True  # nothing is wanted but an answer

    def on_message_begin(self) -> None:
        self.is_alone = not self.has_head

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        self.is_plain &= name != b"expect" and (name != b"connection" or value.lower() == b"keep-alive")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.is_complete = True


@dataclass(frozen=True, slots=True)
class Found:
    """An answer, and the request that it is for."""

    watch: Watch
    rows: Rows

    def written(self, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The answer as it goes over a connection."""
        content, kind = self.rows
        others = b"".join([b"%b: %b\r\n" % header for header in default_headers])
        return _ANSWER % (others, len(content), kind.encode(), HEADER, self.watch.id.encode(), content)


class Shortcut:
    """Answers warm questions to one application."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._route = next(one for one in routes.routes if isinstance(one, APIRoute) and one.endpoint is query)
        path = self._route.path
        paths = {path: {}, **{f"/graphs/{name}{path}": {"graph_id": name} for name in service.opened.graphs}}
        self._parameters = {f"POST {path} HTTP/1.1".encode(): named for path, named in paths.items()}

    def arriving(self, data: bytes) -> Arriving | None:
        """What has come of a request that can be such a question; None if it is another, or more than that."""
        parameters = self._parameters.get(data[: data.find(_LINE_END)])
        if parameters is None:
            return None
        request = Arriving(parameters)
        try:
            httptools.HttpRequestParser(request).feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return None  # whoever reads it in earnest tells what is wrong
        return request if request.has_head and request.is_alone and request.is_plain else None

    def find(self, request: Arriving, client: Any) -> Found | None:
        """Answer a question if that takes no time; None if the application is to see to it."""
        limits, body = self._service.serving.limits, request.body
        if len(body) > limits.body_bytes or can_be_deep(body, limits.json_depth):
            return None
        scope = {"method": "POST", "headers": request.headers, "client": client, "path_params": request.parameters}
        watch = Watch({**scope, "route": self._route, "state": {}})
        try:
            with nonblocking():
                rows = self._rows(watch, request)
        except (OmnigraphError, ValidationError, WouldBlock):
            return None
        except Exception as error:  # noqa: BLE001 - it would close the connection; the application meets it again
            logs.tell(_LOG, logging.ERROR, "the short way has failed", error)
            return None
        watch.status, watch.sent = 200, len(rows.content)
        return Found(watch, rows)

    def tell(self, found: Found) -> None:
        """Do for a request what is done for each after its answer."""
        found.watch.tell(self._service.metrics)

    def _rows(self, watch: Watch, request: Arriving) -> Rows:
        headers = {name: value.decode("latin-1") for name, value in reversed(request.headers)}  # the first one counts
        principal = whoever_asks(self._service, headers.get(b"authorization"))
        watch.state[PRINCIPAL] = principal
        graph = about_graph(Call(self._service, principal), request.parameters.get("graph_id"))
        call = Call(self._service, principal, graph)
        call.allow(Action.READ)
        asked = QueryRequest.model_validate(intake.value_of(headers.get(b"content-type"), request.body))
        question = asked.question(graph.graph_id)
        if _CONDITION in headers or not self._service.quick.knows(question):
            raise WouldBlock
        with self._service.quick.timed(question):
            return ask(call, asked, headers.get(b"accept"))
