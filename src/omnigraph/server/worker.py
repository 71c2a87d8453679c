"""One process that serves: uvicorn around the application, on a socket that listens already."""

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
from omnigraph.server.app import create_app
from omnigraph.server.limits import GuardedConnection
from omnigraph.server.settings import Limits, Serving

_KEEP_ALIVE = 30  # longer than clients leave between two requests, shorter than proxies keep a connection


def serve(serving: Serving, listening: socket.socket, when_ready: Callable[[], None]) -> None:
    """Serve until a signal says to end; then finish what is under way."""
    _run(made(serving, when_ready), listening)


def serve_as_child(serving: Serving, listening: socket.socket, parent: Pipe) -> None:
    """Do the same in a process that another has started: tell it what comes of it, and end when it does."""
    logs.set_up()
    try:
        server = made(serving, partial(_tell, parent, None))
    except OmnigraphError as error:
        _tell(parent, error)
        return
    threading.Thread(target=_end_with, args=(parent, server), daemon=True).start()
    _run(server, listening)


def made(serving: Serving, when_ready: Callable[[], None]) -> Served:
    """Make what serves: the application, and the connections to it."""
    app = create_app(serving)
    config = Config(
        app,
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=round(serving.limits.shutdown_seconds),
    )
    config.load()
    config.http_protocol_class = _guarded(config.http_protocol_class, serving.limits)
    server = Served(config)
    server.when_ready = when_ready
    server.when_ending = app.state.service.loads.end
    return server


def _guarded(protocol: type[asyncio.Protocol], limits: Limits) -> type[asyncio.Protocol]:
    """Put the guard in front of the protocol that uvicorn chose."""

    class Connection(GuardedConnection):
        def __init__(self, *, app_state: dict[str, Any], **options: Any) -> None:
            super().__init__(partial(protocol, **options), limits, app_state)

    return Connection


class Served(Server):
    """A server of uvicorn that says when it can be asked, and when it is to end."""

    when_ready: Callable[[], None]
    when_ending: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.when_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.when_ending()
        await super().shutdown(sockets)


def _run(server: Served, listening: socket.socket) -> None:
    # uvicorn puts its own in their place, and when it has ended it raises what it got once more: that is no news then.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    gc.freeze()  # what is there now stays: no need to look through it again and again
    server.run(sockets=[listening])


def _tell(parent: Pipe, error: OmnigraphError | None) -> None:
    with suppress(OSError):  # it may be gone already
        parent.send(error)


def _end_with(parent: Pipe, server: Server) -> None:
    """Wait for the end of the process that has started this one: nobody else would end it then."""
    try:
        parent.recv()
    except (EOFError, OSError):
        server.should_exit = True
