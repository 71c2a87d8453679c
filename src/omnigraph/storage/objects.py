"""The small control files of a graph, on a local disk or on S3."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, NewType, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import LocalStore, S3Store

from omnigraph.core.location import Location, is_temporary
from omnigraph.errors import StorageDeniedError, StorageError, StorageFullError
from omnigraph.storage import lance_errors
from omnigraph.storage.observe import count, durable_write

if TYPE_CHECKING:  # these exist for type checkers only
    from obstore.store import ClientConfig, RetryConfig, S3Config

Version = NewType("Version", str)
"""The e-tag of an object. S3 derives it from the content, so writes that must differ need different content."""

_LOG = logging.getLogger(__name__)
_RETRIES: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
_ONCE: RetryConfig = {"max_retries": 0}
_PIECE = 2**23  # of a large object
_BLOCK = 2**17  # of a large file; larger ones are given back to the system and cleared each time
ONCE_SECONDS = 5.0  # limit of a conditional put: the holder of a lease must know early that a renewal failed


@dataclass(frozen=True, slots=True)
class Listed:
    """An object: its name below the root, its size, and when it was last written."""

    name: str
    size: int
    modified: datetime


class ObjectStore:
    """Objects by name below the root of one graph. Nothing is cached; safe to share between threads.

    An object is absent only if the storage says so. Every other failure is a `StorageError`.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        with self._failures("open", ""):
            self._store = _store(location, retry=True)
            # A conditional put is sent once. If it worked and only its answer was lost, a repetition would meet its own
            # result, and look as if another process had won.
            self._once = _store(location, retry=False)

    def read(self, name: str) -> bytes:
        """Read an object that must exist."""
        data = self.read_if_exists(name)
        if data is None:
            path = self._location.child(name)
            hint = "check the address of the graph, or restore the file from a backup"
            raise StorageError(f"cannot read {path}: it does not exist", path=path, operation="read", hint=hint)
        return data

    def read_if_exists(self, name: str) -> bytes | None:
        """Read an object; None if it does not exist, found in the same request."""
        found = self.read_versioned(name)
        return None if found is None else found[0]

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Read a range of an object that must exist."""
        count("get")
        with self._failures("read", name):
            return bytes(obstore.get_range(self._store, self._key(name), start=start, length=length))

    def read_versioned(self, name: str) -> tuple[bytes, Version] | None:
        """Read an object together with the version that `replace` takes."""
        count("get")
        with self._failures("read", name):
            try:
                found = obstore.get(self._store, self._key(name))
                return bytes(found.bytes()), Version(found.meta["e_tag"] or "")
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Write an object atomically: a reader sees the old content or the new one."""
        with self._change("write", name):
            count("put")
            if self._location.is_local:  # a fifth of the CPU time, as below: every commit writes and deletes a record
                _write_local(self._path(name), [data])
            else:
                obstore.put(self._store, self._key(name), data)

    def chunks(self, name: str) -> Iterator[bytes]:
        """Read a large object that must exist, piece by piece."""
        count("get")
        with self._failures("read", name):
            if self._location.is_local:  # a fifth of the CPU time
                with Path(self._location.child(name)).open("rb", buffering=0) as file:
                    yield from iter(lambda: file.read(_BLOCK), b"")
                return
            for piece in obstore.get(self._store, self._key(name)).stream(min_chunk_size=_PIECE):
                yield bytes(piece)

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write a large object atomically, piece by piece."""
        with self._change("write", name):
            count("put")
            if self._location.is_local:
                _write_local(self._path(name), chunks)
            else:
                obstore.put(self._store, self._key(name), _ahead(iter(chunks)), chunk_size=_PIECE)

    def create(self, name: str, data: bytes) -> Version | None:
        """Create an object; None if it exists. Of any number of creators, one gets its version.

        After an error it is unknown whether the object was created.
        """
        with self._change("create", name):
            count("put")
            try:
                done = obstore.put(self._once, self._key(name), data, mode="create")
            except AlreadyExistsError:
                return None
            return Version(done["e_tag"] or "?")

    def replace(self, name: str, data: bytes, expected: Version) -> Version | None:
        """Replace the version that was read; None if the object has changed or is gone.

        Only for object stores: file systems have no compare-and-swap, and use locks instead. After an error it is
        unknown whether the object was replaced.
        """
        assert not self._location.is_local, "there is no compare-and-swap on a file system"
        with self._change("replace", name):
            count("put")
            try:
                done = obstore.put(self._once, self._key(name), data, mode={"e_tag": expected})
            except (PreconditionError, AlreadyExistsError):  # the second: S3 saw another change at the same moment
                return None
            except FileNotFoundError:  # nothing is there at all
                return None
            return Version(done["e_tag"] or "?")

    def rewrite(self, name: str, data: bytes, expected: Version) -> bool:
        """Replace an object that was read; on a file system, where a lock keeps others out, write it."""
        if self._location.is_local:
            self.write(name, data)
            return True
        return self.replace(name, data, expected) is not None

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        with self._change("delete", name):
            count("delete")
            with suppress(FileNotFoundError):
                if self._location.is_local:
                    os.unlink(self._path(name))  # noqa: PTH108 - a `Path` takes longer to make than the call
                else:
                    obstore.delete(self._store, self._key(name))

    def delete_below(self, prefix: str) -> None:
        """Delete every object below a prefix."""
        for found in self.list_below(prefix):
            self.delete(found.name)

    def discard_below(self, prefix: str) -> None:
        """Delete temporary objects. What cannot be deleted is left to a cleanup: the work that made them is done."""
        try:
            self.delete_below(prefix)
        except StorageError as error:
            _LOG.warning("temporary files below %s stay until the next cleanup: %s", prefix, error.message)

    def list_below(self, prefix: str) -> list[Listed]:
        """List every object below a prefix, at any depth."""
        count("list")
        with self._failures("list", prefix):
            chunks = list(obstore.list(self._store, self._key(prefix)))
        root = self._key("")
        return [
            Listed(str(meta["path"]).removeprefix(root).lstrip("/"), meta["size"], meta["last_modified"])
            for meta in itertools.chain.from_iterable(chunks)
            if not is_temporary(str(meta["path"]))
        ]

    def first_below(self, prefix: str) -> Iterator[tuple[str, Version]]:
        """Yield the last parts of the names below a prefix with their versions, in the order of the store.

        On S3 that is by name, and the first thousand cost one request.
        """
        count("list")
        with self._failures("list", prefix):
            for chunk in obstore.list(self._store, self._key(prefix)):
                for meta in chunk:
                    yield str(meta["path"]).rpartition("/")[2], Version(meta["e_tag"] or "")

    def list(self, prefix: str) -> list[str]:
        """List the objects directly below a prefix: the last parts of their names, sorted."""
        count("list")
        with self._failures("list", prefix):
            if self._location.is_local:
                names = _files_in(self._path(prefix))
            else:
                found = obstore.list_with_delimiter(self._store, self._key(prefix))
                names = [str(meta["path"]).rpartition("/")[2] for meta in found["objects"]]
        return sorted(name for name in names if not is_temporary(name))

    def versions(self, prefix: str) -> dict[str, Version]:
        """Return the versions of the objects directly below a prefix, by the last parts of their names."""
        count("list")
        with self._failures("list", prefix):
            found = obstore.list_with_delimiter(self._store, self._key(prefix))["objects"]
        return {str(meta["path"]).rpartition("/")[2]: Version(meta["e_tag"] or "") for meta in found}

    def version(self, name: str) -> Version | None:
        """Return the version of an object without reading it; None if it does not exist."""
        count("head")
        with self._failures("look for", name):
            try:
                return Version(obstore.head(self._store, self._key(name))["e_tag"] or "")
            except FileNotFoundError:
                return None

    def exists(self, name: str) -> bool:
        """Return whether an object of that name exists, or any below it."""
        key = self._key(name)
        with self._failures("look for", name):
            if key and self.version(name) is not None:
                return True
            count("list")
            return any(obstore.list(self._store, key, chunk_size=1))

    def _key(self, name: str) -> str:
        assert not is_temporary(name), f"{name} is the name of a temporary file"
        return f"{self._location.key}/{name}".strip("/")

    def _path(self, name: str) -> str:
        """Return the file of an object on a local disk."""
        assert not is_temporary(name), f"{name} is the name of a temporary file"
        return self._location.child(name)

    @contextmanager
    def _change(self, operation: str, name: str) -> Iterator[None]:
        durable_write(operation, self._location.child(name))
        with self._failures(operation, name):
            yield

    @contextmanager
    def _failures(self, operation: str, name: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError, NotImplementedError) as error:
            raise storage_error(error, operation, self._location.child(name)) from error


def _write_local(path: str, chunks: Iterable[bytes]) -> None:
    """Write a file under another name and rename it: a reader sees the old content or the new one."""
    # Named as obstore names its own: listings leave such files out.
    part = f"{path}#{secrets.randbits(32)}"
    try:
        with _created(part) as file:
            file.writelines(chunks)
        os.replace(part, path)  # noqa: PTH105 - quicker
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)  # noqa: PTH108 - as above
        raise


def _created(path: str) -> IO[bytes]:
    """Open a new file, and make its directory if there is none."""
    try:
        return open(path, "xb")  # noqa: PTH123 - as above; the caller closes it
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - as above
        return open(path, "xb")  # noqa: PTH123 - as above


def _files_in(directory: str) -> list[str]:
    """List the files of a directory; none if there is no such directory."""
    try:
        with os.scandir(directory) as found:
            return [one.name for one in found if one.is_file()]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        if Path(directory).is_file():  # there is nothing below an object; a file further up is an error
            return []
        raise


def _ahead(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Read chunks in a thread, one ahead. obstore panics if it is to read inside of a write, as a copy would."""
    with ThreadPoolExecutor(1, thread_name_prefix="omnigraph-read") as reader:
        coming = reader.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = reader.submit(next, chunks, None)
            yield chunk


@contextmanager
def disk_call(operation: str, path: str) -> Iterator[None]:
    """Re-raise failures of the operating system as ours, where a local disk is used without obstore or Lance."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, operation, path) from error


def storage_error(error: Exception, operation: str, path: str) -> StorageError:
    """Translate an error of obstore, or of the operating system."""
    failed = f"cannot {operation} {path}"
    local = path.startswith("/")
    match lance_errors.classify(error):  # both libraries raise the messages of the same crate
        case lance_errors.Failure.DENIED:
            hint = "check the permissions of the directory" if local else "check the credentials and the bucket policy"
            return StorageDeniedError(f"{failed}: not permitted", path=path, operation=operation, hint=hint)
        case lance_errors.Failure.FULL:
            hint = "free some space and try again"
            return StorageFullError(f"{failed}: no space is left", path=path, operation=operation, hint=hint)
        case lance_errors.Failure.NOT_FOUND:
            hint = "check the address of the graph" if local else "check that the bucket exists"
        case _ if local:
            hint = "check that the path is a file below directories, and that the disk works"
        case _:
            hint = "check the network, AWS_REGION and AWS_ENDPOINT_URL; a plain http endpoint needs AWS_ALLOW_HTTP=true"
    return StorageError(f"{failed}: {_reason(error, path)}", path=path, operation=operation, hint=hint)


def _reason(error: Exception, path: str) -> str:
    """Return the innermost cause: the last part of the first line, without the server's answer and the debug dump."""
    if isinstance(error, OSError) and error.strerror:
        elsewhere = error.filename if not str(error.filename).startswith(path) else None
        return f"{error.strerror} ({elsewhere})" if elsewhere else error.strerror
    line = str(error).partition("\n")[0].partition(": <")[0]
    return line.rpartition(": ")[2].strip() or type(error).__name__


def _store(location: Location, *, retry: bool) -> LocalStore | S3Store:
    options = location.storage_options
    if options is None:
        return LocalStore()
    return _s3_store(location.bucket, tuple(sorted(options.items())), retry=retry)


@lru_cache(maxsize=16)  # a store takes some 20 ms to create, and has a connection pool
def _s3_store(bucket: str, options: tuple[tuple[str, str], ...], *, retry: bool) -> S3Store:
    # In a bulk delete, the store reports a refused deletion as success.
    config = {**dict(options), "disable_bulk_delete": "true"}
    if retry:
        return S3Store(bucket, config=cast("S3Config", config), retry_config=_RETRIES)
    client: ClientConfig = {"timeout": timedelta(seconds=ONCE_SECONDS)}
    return S3Store(bucket, config=cast("S3Config", config), client_options=client, retry_config=_ONCE)
