"""Find, read and write files, on a local disk and in S3 buckets alike.

A file is read as it was found: a different size, time or e-tag raises InputChangedError. A file is written as a whole
or not at all.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from glob import iglob
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import LocalStore, S3Store

from omnigraph.core.location import Location
from omnigraph.errors import InputChangedError, InputFormatError, InputNotFoundError, InputUnreadableError
from omnigraph.storage.objects import storage_error

if TYPE_CHECKING:
    from obstore.store import S3Config

BOM = b"\xef\xbb\xbf"
"""The mark that some programs write at the start of UTF-8 files."""

_S3, _FILE = "s3://", "file://"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_WILD = re.compile(r"[*?\[]")
_BUFFER = 2**22
_UPLOAD_BUFFER = 8 * 2**20
_HIDDEN = (".", "_")  # files that Spark and others write beside the data: _SUCCESS, .part-0.crc


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was found; a different `version` means that it has changed since."""

    uri: str
    size: int
    version: str

    @property
    def is_local(self) -> bool:
        return not self.uri.startswith(_S3)


def find_files(address: str | os.PathLike[str]) -> tuple[list[File], str]:
    """Find the files of an address (a file, a directory or a pattern); also return the directory it starts from."""
    text = os.fspath(address)
    if text.lower().startswith(_S3):
        return _find_objects(_S3 + text[len(_S3) :])
    if text.lower().startswith(_FILE):
        text = urllib.parse.unquote(text[len(_FILE) :]).removeprefix("localhost")
    elif _SCHEME.match(text):
        raise InputFormatError(
            f"cannot read from {text}", path=text, hint="use a path, file:///path or s3://bucket/key"
        )
    with _failures(text):
        return _find_local(text)


def read_range(file: File, start: int, end: int) -> bytes:
    """Read a range of a file; less if the file ends before."""
    end = min(end, file.size)
    if start >= end:
        return b""
    with _failures(file.uri):
        if not file.is_local:
            return bytes(_get(file, {"range": (start, end), "if_match": file.version}).bytes())
        with opened(file) as stream:
            stream.seek(start)
            return bytes(stream.read(end - start))


@contextlib.contextmanager
def opened(file: File) -> Iterator[Any]:
    """Open a file for random access."""
    with _failures(file.uri):
        if not file.is_local:
            yield io.BufferedReader(_Remote(file), _BUFFER)
            return
        with Path(file.uri).open("rb") as stream:
            # Before and after: a program that is still writing may change the file while it is read.
            _unchanged(file, _version(os.fstat(stream.fileno())))
            yield stream
            _unchanged(file, _version(os.fstat(stream.fileno())))


def decompressed(file: File, compression: str | None, chunk: int) -> Iterator[bytes]:
    """Read a whole file, decompressed, chunk by chunk."""
    with opened(file) as stream, _failures(file.uri):
        source = pa.PythonFile(stream, mode="r")
        plain = source if compression is None else pa.CompressedInputStream(source, compression)
        while data := plain.read(chunk):
            yield bytes(data)


def pattern_of(glob: str) -> re.Pattern[str]:
    """Compile a pattern of paths: `*` and `?` match within a name, `**` across directories."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob)
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    texts = (
        wild.get(part) or (part.replace("[!", "[^") if part.startswith("[") else re.escape(part)) for part in parts
    )
    return re.compile("".join(texts), re.DOTALL)


# Local files ---------------------------------------------------------------------------------------


def _find_local(text: str) -> tuple[list[File], str]:
    path = Path(text).absolute()
    if path.is_dir():
        found = [_local(file) for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file, path)]
        if not found:
            raise _nothing(text, "the directory is empty")
        return found, str(path)
    if path.exists():
        return [_local(path)], str(path.parent)
    if not _WILD.search(text):
        raise _nothing(text, "no such file or directory")
    matches = (Path(name) for name in sorted(iglob(str(path), recursive=True)))  # noqa: PTH207 - `**/` must take links, too
    found = [_local(file) for file in matches if file.is_file() and not file.name.startswith(_HIDDEN)]
    if not found:
        raise _nothing(text, "nothing matches")
    return found, str(Path(str(path)[: _WILD.search(str(path)).start()]).parent)  # type: ignore[union-attr]


def _local(path: Path) -> File:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputUnreadableError(f"{path} is not a regular file", path=str(path), hint="copy it into one")
    return File(str(path), status.st_size, _version(status))


def _version(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


def _is_hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(_HIDDEN) for part in file.relative_to(root).parts)


def _nothing(text: str, why: str) -> InputNotFoundError:
    return InputNotFoundError(f"nothing to load from {text}: {why}", path=text, hint="check the path")


# S3 ------------------------------------------------------------------------------------------------


def _find_objects(uri: str) -> tuple[list[File], str]:
    key = _key(uri)
    wild = _WILD.search(key)
    base = key[: wild.start()].rpartition("/")[0] if wild else key.rstrip("/")
    root = _root(uri, base)
    objects = _listed(uri, base)
    exact = [file for file in objects if _key(file.uri) == key]
    if exact:
        return exact, _root(uri, base.rpartition("/")[0])
    if wild:
        pattern = pattern_of(key)
        objects = [file for file in objects if pattern.fullmatch(_key(file.uri))]
    else:
        objects = [file for file in objects if _key(file.uri).startswith(f"{base}/" if base else "")]
    found = [file for file in objects if not _is_hidden(Path(file.uri), Path(root))]
    if not found:
        raise _nothing(uri, "nothing matches" if wild else "no such object or prefix")
    return found, root


def _root(uri: str, base: str) -> str:
    return f"{_S3}{_bucket(uri)}/{base}".rstrip("/")


def _listed(uri: str, base: str) -> list[File]:
    """List an object and all objects below it; the store itself leaves the object out."""
    with _failures(uri):
        store = _store(uri)
        metas = [meta for chunk in obstore.list(store, base or None) for meta in chunk]
        if base and not _WILD.search(_key(uri)) and not uri.endswith("/"):
            with contextlib.suppress(FileNotFoundError):
                metas.append(obstore.head(store, base))
    files = (File(_root(uri, str(meta["path"])), meta["size"], str(meta["e_tag"])) for meta in metas)
    return sorted(files, key=lambda file: file.uri)


def _bucket(uri: str) -> str:
    return uri.removeprefix(_S3).partition("/")[0]


def _key(uri: str) -> str:
    return uri.removeprefix(_S3).partition("/")[2]


def _store(uri: str) -> S3Store:
    location = Location.parse(_S3 + _bucket(uri))
    return _s3_store(location.bucket, tuple(sorted((location.storage_options or {}).items())))


@lru_cache(maxsize=16)
def _s3_store(bucket: str, options: tuple[tuple[str, str], ...]) -> S3Store:
    return S3Store(bucket, config=cast("S3Config", dict(options)))


class _Remote(io.RawIOBase):
    """An object as a stream. Every read names the e-tag, so that parts of two versions never mix."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = read_range(self._file, self._at, self._at + len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _get(file: File, options: Any) -> Any:
    return obstore.get(_store(file.uri), _key(file.uri), options=options)


# Failures ------------------------------------------------------------------------------------------


def _unchanged(file: File, version: str) -> None:
    if version != file.version:
        raise _changed(file.uri)


def _changed(uri: str) -> InputChangedError:
    return InputChangedError(f"{uri} changed while it was read", path=uri, hint="load it again when it is complete")


@contextlib.contextmanager
def _failures(uri: str) -> Iterator[None]:
    try:
        yield
    except PreconditionError:
        raise _changed(uri) from None
    except (pa.ArrowException, BaseError, OSError) as error:
        if uri.startswith(_S3) and isinstance(error, BaseError | FileNotFoundError):
            raise storage_error(error, "read", uri) from error
        reason = getattr(error, "strerror", None) or str(error)
        raise InputUnreadableError(f"cannot read {uri}: {reason}", path=uri, hint="check the file") from error


# Writing -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def written(location: Location, name: str = "") -> Iterator[io.RawIOBase]:
    """Open a stream to write a file. The file appears at the end of the block, unless the block raises.

    Until then it has another name or does not exist, so if two tasks write the same file, the later one replaces it.
    """
    path = location.child(name)
    with _write_failures(path):
        key = f"{location.key}/{name}".strip("/")
        writer = obstore.open_writer(_output_store(location), key, buffer_size=_UPLOAD_BUFFER)
    yield _Upload(path, writer)
    with _write_failures(path):
        writer.close()


class _Upload(io.RawIOBase):
    """A file being written. Closing the stream does not complete the file; `written` does.

    Written data is not copied until it is sent, so it must not change afterwards: no `io.BufferedWriter` on top.
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
        with _write_failures(self._path):
            self._writer.write(data)
        length = memoryview(data).nbytes
        self._at += length
        return length


def _output_store(location: Location) -> LocalStore | S3Store:
    options = location.storage_options
    return LocalStore() if options is None else S3Store(location.bucket, config=cast("S3Config", options))


@contextlib.contextmanager
def _write_failures(path: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise storage_error(error, "write", path) from error
