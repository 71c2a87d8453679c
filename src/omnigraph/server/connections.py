"""Connections that may not keep the server waiting: for the head of a request there is a time and a size.

uvicorn itself waits for a head as long as it takes, and takes one of any size.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from omnigraph.server.settings import Limits
from omnigraph.server.shortcut import Shortcut

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

_BAD, _TOO_LARGE = 400, 431
_BODY_SECONDS = 0.01  # how long a body is awaited before the application is asked to wait for it


def bounded(limits: Limits, shortcut: Shortcut) -> type[HttpToolsProtocol]:
    """Make the class of connections that keeps to some limits: uvicorn takes a class, and gives it no settings."""
    return type("Connection", (BoundedConnection,), {"limits": limits, "shortcut": shortcut})


class BoundedConnection(HttpToolsProtocol):
    """A connection of uvicorn that is closed if the head of a request takes too long or is too large."""

    limits: Limits
    shortcut: Shortcut

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._received = 0  # bytes of a head that is not complete
        self._parsed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None  # `cycle` is the last that came, and may wait behind it
        self._held: ASGI3Application | None = None  # what is to answer the request whose body is being read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._held is not None:  # its body comes by itself: many clients send it so
            self.loop.call_later(_BODY_SECONDS, self._start_held, self.cycle)
        if not self._in_head or self.transport.is_closing():
            return
        # The parser keeps what it has of a header that is not complete, and does not say how much that is.
        self._received += len(data)
        if self._received > self.limits.head_bytes:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._received, self._parsed = True, 0, 0
        if self._timer is None:
            self._start_timer()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()
        self._in_head = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if self._in_head and cycle is self.cycle and self._can_be_short(cycle):
            self._held = app  # its body may have come with its head
        else:
            super()._start_asgi_task(cycle, app)

    def _can_be_short(self, cycle: RequestResponseCycle) -> bool:
        scope: Any = cycle.scope
        is_plain = cycle.keep_alive and cycle.more_body and not cycle.waiting_for_100_continue
        return is_plain and self.shortcut.leads_to(scope)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._held is not None and not self._answer_at_once(self.cycle):
            self._start_held(self.cycle)

    def _start_held(self, cycle: RequestResponseCycle) -> None:
        """Let the application have a request, if it is still held."""
        if self._held is not None and cycle is self.cycle:
            app, self._held = self._held, None
            super()._start_asgi_task(cycle, app)

    def _answer_at_once(self, cycle: RequestResponseCycle) -> bool:
        """Answer a request without the application, if that can be; it is complete and the only one."""
        scope: Any = cycle.scope
        found = None if self.flow.write_paused else self.shortcut.find(scope, bytes(cycle.body))
        if found is None:
            return False
        self._held = None
        self.transport.write(found.written(cycle.default_headers))
        cycle.response_started = cycle.response_complete = True
        cycle.on_response()
        self.shortcut.tell(found)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._give_up()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        """Let the request that runs know that nobody awaits its answer."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def send_400_response(self, msg: str) -> None:
        """Tell what is wrong with a request as every other error is told, and close the connection."""
        running = self._running
        if running is not None and not running.response_complete and not self._is_being_sent(running):
            # What is told now would be taken for its answer, or for a part of that.
            running.keep_alive = False
            self.pipeline.clear()
            return
        self._give_up()
        large = max(self._received, self._parsed) > self.limits.head_bytes
        error = f"the head of the request has more than {self.limits.head_bytes} bytes" if large else msg
        body = json.dumps({"error": error, "code": "bad_request"}).encode()
        length = f"content-length: {len(body)}\r\n".encode()
        head = b"content-type: application/json\r\nconnection: close\r\n" + length
        self.transport.write(STATUS_LINE[_TOO_LARGE if large else _BAD] + head + b"\r\n" + body)
        self.transport.close()

    @staticmethod
    def _is_being_sent(request: RequestResponseCycle) -> bool:
        return request.more_body and not request.response_started

    def _count(self, size: int) -> None:
        self._parsed += size
        if self._parsed > self.limits.head_bytes:
            raise ValueError("the head is too large")  # stops the parser, which then asks for the answer above

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.limits.head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
