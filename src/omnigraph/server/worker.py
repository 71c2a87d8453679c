"""One server process: uvicorn around the application, on a socket that already listens."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

from uvicorn import Config, Server

from omnigraph.errors import OmnigraphError
from omnigraph.server import logs
from omnigraph.server.app import create_app, with_middleware
from omnigraph.server.limits import GuardedConnection
from omnigraph.server.settings import Limits, Serving

_KEEP_ALIVE = 30  # longer than clients pause between requests, shorter than proxies keep a connection


def serve(serving: Serving, listening: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until a signal arrives; then finish the requests in progress."""
    _run(create_server(serving, on_ready), listening)


def serve_as_child(serving: Serving, listening: socket.socket, parent: Pipe) -> None:
    """Serve in a child process: report to the parent whether it started, and stop when the parent is gone."""
    logs.set_up()
    try:
        server = create_server(serving, partial(_report, parent, None))
    except OmnigraphError as error:
        _report(parent, error)
        return
    threading.Thread(target=_stop_with, args=(parent, server), daemon=True).start()
    _run(server, listening)


def create_server(serving: Serving, on_ready: Callable[[], None]) -> OmnigraphServer:
    """Create the application and the uvicorn server that runs it."""
    app = create_app(serving)
    config = Config(
        with_middleware(app),
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # The headers of a proxy can be forged by any client, and nothing here needs the address of a client but the
        # log.
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        # uvicorn waits this long for requests; background loads share the same period, see `Loads.end`.
        timeout_graceful_shutdown=round(serving.limits.shutdown_seconds),
    )
    config.load()
    config.http_protocol_class = _guarded(config.http_protocol_class, serving.limits)
    server = OmnigraphServer(config)
    server.on_ready = on_ready
    server.on_stopping = app.state.service.loads.end
    return server


def _guarded(protocol: type[asyncio.Protocol], limits: Limits) -> type[asyncio.Protocol]:
    """Put the guard in front of the protocol that uvicorn chose; uvicorn takes a class and gives it no settings."""

    class HttpConnection(GuardedConnection):
        def __init__(self, *, app_state: dict[str, Any], **options: Any) -> None:
            super().__init__(partial(protocol, **options), limits, app_state)

    return HttpConnection


class OmnigraphServer(Server):
    """A uvicorn server that reports when it is ready and when it begins to stop."""

    on_ready: Callable[[], None]
    on_stopping: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.on_stopping()
        await super().shutdown(sockets)


def _run(server: OmnigraphServer, listening: socket.socket) -> None:
    # uvicorn installs handlers of its own and, once it has stopped, raises the signal again: these then ignore it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    gc.freeze()  # modules and open graphs stay: collections need not scan them
    server.run(sockets=[listening])


def _report(parent: Pipe, error: OmnigraphError | None) -> None:
    with suppress(OSError):  # the parent may be gone already
        parent.send(error)


def _stop_with(parent: Pipe, server: Server) -> None:
    """Stop the server when the parent process ends: nothing else would stop it then."""
    try:
        parent.recv()
    except (EOFError, OSError):
        server.should_exit = True
