"""HTTP for the S3 server of the tests: whole requests to an application, one after the other on each connection."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote_to_bytes
from wsgiref.types import StartResponse, WSGIEnvironment

from httptools import HttpRequestParser

Application = Callable[[WSGIEnvironment, StartResponse], Awaitable[list[bytes]]]


class Connection(asyncio.Protocol):
    """Collects what httptools parses. A request that its client does not finish is never answered, nor carried out."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._parser = HttpRequestParser(self)
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._body = b"", io.BytesIO()
        self._headers: dict[str, str] = {}

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").upper().replace("-", "_")
        self._headers[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if "HTTP_EXPECT" in self._headers:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.write(body)

    def on_message_complete(self) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(self._environ()))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _environ(self) -> WSGIEnvironment:
        path, _, query = self._url.partition(b"?")
        self._body.seek(0)
        host, port = self._transport.get_extra_info("sockname")
        return {
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": self._body,
            "wsgi.errors": None,
            "wsgi.multithread": False,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            "REQUEST_METHOD": self._parser.get_method().decode(),
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
            "QUERY_STRING": query.decode("latin-1"),
            "RAW_URI": self._url.decode("latin-1"),
            "REMOTE_ADDR": host,
            "SERVER_NAME": host,
            "SERVER_PORT": str(port),
            "SERVER_PROTOCOL": "HTTP/1.1",
            **self._headers,
        }

    async def _answer(self, environ: WSGIEnvironment) -> None:
        told: list[str] = []

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
            told[:] = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]

        body = b"".join(await self._application(environ, start))
        if not any(line.lower().startswith("content-length:") for line in told):
            told.append(f"Content-Length: {len(body)}")
        self._transport.write("\r\n".join([*told, "", ""]).encode("latin-1") + body)
