"""Writing files below a directory or an S3 prefix, of any size: each is there as a whole, or not at all."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from omnigraph.core.location import Location
from omnigraph.storage.objects import storage_error

if TYPE_CHECKING:
    from obstore.store import S3Config

_BUFFER = 8 * 2**20


@contextmanager
def written(location: Location, name: str = "") -> Iterator[io.RawIOBase]:
    """Give a stream to write a file to. It takes its place at the end of the block, unless that raises.

    Until then it is under another name or nowhere, so of two that write the same file, the later one replaces it.
    """
    path = location.child(name)
    with _failures(path):
        key = f"{location.key}/{name}".strip("/")
        writer = obstore.open_writer(_store(location), key, buffer_size=_BUFFER)
    yield _Upload(path, writer)
    with _failures(path):
        writer.close()


class _Upload(io.RawIOBase):
    """A file on its way. Closing it changes nothing: whoever made it does that.

    What is written is not copied until it is sent, so it must not change afterwards: no `io.BufferedWriter` on top.
    """

    def __init__(self, path: str, writer: Any) -> None:
        self._path = path
        self._writer = writer
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        with _failures(self._path):
            self._writer.write(data)
        length = memoryview(data).nbytes
        self._at += length
        return length


def _store(location: Location) -> LocalStore | S3Store:
    options = location.storage_options
    return LocalStore() if options is None else S3Store(location.bucket, config=cast("S3Config", options))


@contextmanager
def _failures(path: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise storage_error(error, "write", path) from error
