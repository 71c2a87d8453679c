"""Which data a server may be told to load: only what lies below the roots that its configuration names."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterable
from pathlib import Path

from omnigraph.api.access import Action
from omnigraph.errors import ForbiddenError

_S3, _FILE = "s3://", "file://"
_WILD = re.compile(r"[*?\[]")


def check_addresses(addresses: Iterable[str], roots: Iterable[str]) -> None:
    """Refuse an address that is not below a root. It is not said what is there, nor which roots there are."""
    allowed = [_parts(root) for root in roots]
    for address in addresses:
        if not any(_is_below(address, root) for root in allowed):
            message = f"{address!r:.200} is not below a place from which this server loads"
            raise ForbiddenError(message, action=Action.CHANGE, hint="whoever runs the server can add it to load_roots")


def _is_below(address: str, root: tuple[str, ...]) -> bool:
    if ".." in re.split(r"[/\\]", urllib.parse.unquote(address)) or "\0" in address:
        return False
    found = _parts(_fixed(address))
    return found[: len(root)] == root


def _fixed(address: str) -> str:
    """What comes before the first name with a wildcard: that much is known of everything that matches."""
    wild = _WILD.search(address)
    return address if wild is None else address[: wild.start()].rpartition("/")[0]


def _parts(address: str) -> tuple[str, ...]:
    """An address as the names on the way to it. Links on a local disk are followed, so that none leads out."""
    if address.lower().startswith(_S3):
        return ("s3", *filter(None, address[len(_S3) :].split("/")))
    if address.lower().startswith(_FILE):
        address = urllib.parse.unquote(address[len(_FILE) :]).removeprefix("localhost")
    return ("file", *Path(os.path.realpath(address)).parts)
