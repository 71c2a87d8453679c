"""Connections that may not keep the server waiting: for the head of a request there is a time and a size.

uvicorn itself waits for a head as long as it takes, and takes one of any size.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from omnigraph.server.settings import Limits
from omnigraph.server.shortcut import Found, Shortcut

_BAD, _TOO_LARGE = 400, 431
_BODY_SECONDS = 0.01  # how long a body that comes by itself is awaited before uvicorn waits for it


def bounded(limits: Limits, shortcut: Shortcut) -> type[HttpToolsProtocol]:
    """Make the class of connections that keeps to some limits: uvicorn takes a class, and gives it no settings."""
    return type("Connection", (BoundedConnection,), {"limits": limits, "shortcut": shortcut})


class BoundedConnection(HttpToolsProtocol):
    """A connection of uvicorn that is closed if the head of a request takes too long or is too large.

    What comes while nothing is under way is shown to the shortcut first; uvicorn never hears of what that answers.
    """

    limits: Limits
    shortcut: Shortcut

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._is_between = True  # no request has come in part
        self._began_here = False  # a head, in what is being read
        self._kept = b""  # of a request that the shortcut may answer when it is complete
        self._received = 0  # bytes of a head that is not complete
        self._parsed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None  # `cycle` is the last that came, and may wait behind it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        kept, self._kept = self._kept, b""
        if not self._takes_short_way(kept + data, is_awaited=bool(kept)):
            self._read(kept + data)

    def _takes_short_way(self, data: bytes, *, is_awaited: bool) -> bool:
        """Answer what can be answered at once, and keep for a moment what may become such; tell whether it was."""
        request = self.shortcut.arriving(data) if self._is_at_rest() and len(data) <= self.limits.head_bytes else None
        if request is None or (is_awaited and not request.is_complete):
            return False
        if not request.is_complete:  # many clients send the body by itself
            self._kept = data
            self.loop.call_later(_BODY_SECONDS, self._read_kept)
            return True
        found = self.shortcut.find(request, self.client)
        if found is not None:
            self._answer(found)
        return found is not None

    def _is_at_rest(self) -> bool:
        """Tell whether no request is begun and not answered, and all answers are sent."""
        is_answered = self.cycle is None or (self.cycle.response_complete and not self.pipeline)
        return is_answered and self._is_between and not self.flow.write_paused and not self.transport.is_closing()

    def _answer(self, found: Found) -> None:
        self.transport.write(found.written(self.server_state.default_headers))
        self.server_state.total_requests += 1
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self.shortcut.tell(found)

    def _read_kept(self) -> None:
        """Let uvicorn have what was kept: the rest of it takes longer."""
        data, self._kept = self._kept, b""
        if data and not self.transport.is_closing():
            self._read(data)

    def shutdown(self) -> None:
        self._read_kept()  # so that it is one that is under way
        super().shutdown()

    def _read(self, data: bytes) -> None:
        """Let uvicorn read what has come, and see how long a head gets."""
        self._began_here = False
        super().data_received(data)
        if not self._in_head or self._began_here or self.transport.is_closing():
            return
        # The parser keeps what it has of a header that is not complete, and does not say how much that is.
        self._received += len(data)
        if self._received > self.limits.head_bytes:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._began_here, self._is_between = True, True, False
        self._received, self._parsed = 0, 0
        if self._timer is None:
            self._start_timer()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_between = True

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_head = False
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

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
