"""The routes. Each calls the graph and renders its result; none decides anything itself."""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor


class SegmentConvertor(Convertor[str]):
    """One decoded segment of a path. Invalid UTF-8 becomes replacement characters, which name nothing."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value, errors="replace")

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("segment", SegmentConvertor())  # before any route is declared
