"""Routes are found by the path as it was sent, and each segment is decoded by itself.

So a branch `review/x`, sent as `review%2Fx`, is one segment: a server that decodes first would see two.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.convertors import Convertor
from starlette.types import ASGIApp, Receive, Scope, Send


class SegmentConvertor(Convertor[str]):
    """One segment of a path, decoded. Bytes that are no text become the sign for that, and name nothing."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value, errors="replace")

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


class RawPath:
    """Lets the application see the path as it was sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("raw_path"):
            scope["path"] = scope["raw_path"].decode("latin-1")
        await self.app(scope, receive, send)
