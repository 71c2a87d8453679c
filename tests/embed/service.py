"""A real HTTP service on this machine that makes vectors, and misbehaves as a test wants it to."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from omnigraph.embed.embedder import Purpose
from omnigraph.embed.local import MockEmbedder

KEY = "sk-very-secret-0123456789"


@dataclass
class Asked:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float


@dataclass
class Service:
    """What it was asked, and what it answers: the answers of `script` first, one each, then vectors."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    script: list[Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=list)

    @property
    def texts(self) -> list[list[str]]:
        return [request.body["input"] for request in self.asked]


def vectors(texts: list[str], dimension: int) -> list[list[float]]:
    """Vectors ten times as long as they end up: a client has to normalise them."""
    found: list[list[float]] = (MockEmbedder().embed(texts, dimension, Purpose.QUERY) * np.float32(10)).tolist()
    return found


def answer(status: int, document: Any, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return send


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


def cut_short(handler: BaseHTTPRequestHandler) -> None:
    """Announce more than is sent."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.wfile.write(b'{"data"')
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Send a byte now and then, and never all."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(2_000):
        try:
            handler.wfile.write(b" ")
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.05)


@contextmanager
def running() -> Iterator[Service]:
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            service.asked.append(Asked(self.path, dict(self.headers), body, time.monotonic()))
            self.close_connection = True
            if service.script:
                service.script.pop(0)(self)
            elif self.path.endswith(":embedContent"):
                text = body["content"]["parts"][0]["text"]
                answer(200, {"embedding": {"values": vectors([text], body["outputDimensionality"])[0]}})(self)
            else:
                found = vectors(body["input"], body["dimensions"])
                items = [{"index": at, "embedding": vector} for at, vector in enumerate(found)]
                answer(200, {"object": "list", "data": items[::-1]})(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
