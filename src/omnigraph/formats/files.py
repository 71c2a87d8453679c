"""Find, read and write files and parts of files, on a local disk and in S3 buckets alike.

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from glob import iglob
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import LocalStore, S3Store

from omnigraph.core.location import Location
from omnigraph.errors import InputChangedError, InputFormatError, InputNotFoundError, InputUnreadableError
from omnigraph.formats.dialect import CsvDialect
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.storage.columns import declared_of
from omnigraph.storage.objects import storage_error

if TYPE_CHECKING:
    from obstore.store import S3Config

T = TypeVar("T")

BOM = b"\xef\xbb\xbf"
"""The mark that some programs write at the start of UTF-8 files."""

_S3, _FILE = "s3://", "file://"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_WILD = re.compile(r"[*?\[]")
CHUNK = 16 * 2**20
MAX_RECORD = 2**30  # bytes of a CSV record: one quote that is never closed would take the rest of the file into memory
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


@dataclass(frozen=True, slots=True)
class Split:
    """A part of one file, with the rows or lines that start in it; or several small files, which are its `parts`.

    `start` and `end` are bytes; of a compressed file they count its content, and `end` is unknown. A CSV split does not
    contain the header: `header` is that of the file, and `lines_before` the number of its lines. `type_key` is None for
    JSONL. Rows count for the type only if they have a value in the column `when`. `size` is about how much there is to
    read, `rows` is known of Parquet, `version` and `file_size` are those of the file when it was found.
    """

    file: str
    file_size: int
    version: str
    format: str
    compression: str | None = None
    start: int = 0
    end: int = 0
    size: int = 0
    row_groups: tuple[int, ...] = ()
    type_key: str | None = None
    columns: tuple[tuple[str, str | None], ...] = ()
    when: str = ""
    distinct: bool = False  # of rows with the same identity one counts
    header: tuple[str, ...] = ()
    lines_before: int = 0
    rows: int = 0
    dialect: CsvDialect = field(default_factory=CsvDialect)
    parts: tuple[Split, ...] = ()

    @property
    def found(self) -> File:
        return File(self.file, self.file_size, self.version)

    def declared(self, catalog: Catalog) -> NodeType | EdgeType:
        """The type of the rows of a CSV or Parquet file."""
        assert self.type_key, "a JSONL file has rows of many types"
        return declared_of(catalog, self.type_key)


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
    with _Failures(text):
        return _find_local(text)


def read_range(file: File, start: int, end: int) -> bytes:
    """Read a range of a file; less if the file ends before."""
    end = min(end, file.size)
    if start >= end:
        return b""
    with _Failures(file.uri):
        if not file.is_local:
            # The e-tag, so that parts of two versions never mix.
            options: Any = {"range": (start, end), "if_match": file.version}
            return bytes(obstore.get(_store(_S3 + _bucket(file.uri)), _key(file.uri), options=options).bytes())
        return _read_local(file, start, end)


def _read_local(file: File, start: int, end: int) -> bytes:
    # Not by `opened`: of a thousand small files, most of the time would go into the layers of a stream.
    handle = os.open(file.uri, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(handle, end - start, start)
        while len(data) < end - start and (more := os.pread(handle, end - start - len(data), start + len(data))):
            data += more
        _check_unchanged(file, handle)  # after it was read: a change before or meanwhile is one since it was found
        return data
    finally:
        os.close(handle)


@contextlib.contextmanager
def opened(file: File) -> Iterator[Any]:
    """Open a file for random access."""
    with _Failures(file.uri):
        if not file.is_local:
            yield io.BufferedReader(_Remote(file), _BUFFER)
            return
        with Path(file.uri).open("rb") as stream:
            # Before and after: a program that is still writing may change the file while it is read.
            _check_unchanged(file, stream.fileno())
            yield stream
            _check_unchanged(file, stream.fileno())


def decompressed(file: File, compression: str | None, chunk: int) -> Iterator[bytes]:
    """Read a whole file, decompressed, chunk by chunk."""
    with opened(file) as stream, _Failures(file.uri):
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


def grouped(items: Iterable[T], sizes: Callable[[T], tuple[int, ...]], most: tuple[int, ...]) -> Iterator[list[T]]:
    """Divide items into groups of neighbours, none larger than `most` in any respect unless it is a single item."""
    group: list[T] = []
    held = [0] * len(most)
    for item in items:
        held = [before + more for before, more in zip(held, sizes(item), strict=True)]
        if group and any(size > limit for size, limit in zip(held, most, strict=True)):
            yield group
            group, held = [], list(sizes(item))
        group.append(item)
    if group:
        yield group


# Local files ---------------------------------------------------------------------------------------


def _find_local(text: str) -> tuple[list[File], str]:
    path = Path(text).absolute()
    if path.is_dir():
        found = sorted(_below(str(path)), key=lambda file: file.uri.split("/"))
        if not found:
            raise _nothing(text, "the directory is empty")
        return found, str(path)
    if path.exists():
        return [_local(path)], str(path.parent)
    if not _WILD.search(text):
        raise _nothing(text, "no such file or directory")
    # Sorted: the order of files is that of records, and errors and fresh ids follow it.
    matches = (Path(name) for name in sorted(iglob(str(path), recursive=True)))  # noqa: PTH207 - `**/` must take links, too
    found = [_local(file) for file in matches if file.is_file() and not file.name.startswith(_HIDDEN)]
    if not found:
        raise _nothing(text, "nothing matches")
    return found, str(Path(str(path)[: _WILD.search(str(path)).start()]).parent)  # type: ignore[union-attr]


def _below(directory: str) -> Iterator[File]:
    """Find the files of a directory and those below it. Not by `rglob`, which takes ten times as long."""
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        for name in names:
            if not name.startswith(_HIDDEN):
                path = f"{folder.rstrip('/')}/{name}"
                with contextlib.suppress(FileNotFoundError):  # a link to nothing
                    status = os.stat(path)  # noqa: PTH116 - a Path takes longer than the call
                    if stat.S_ISREG(status.st_mode):
                        yield File(path, status.st_size, _version(status))


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
    # First: a key may contain `*`, and then means itself.
    exact = [file for file in objects if _key(file.uri) == key]
    if exact:
        return exact, _root(uri, base.rpartition("/")[0])
    if wild:
        try:
            pattern = pattern_of(key)
        except re.error as error:  # such as [z-a]; the same pattern of local files matches nothing
            raise _nothing(uri, f"not a pattern: {error}") from None
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
    with _Failures(uri):
        store = _store(_S3 + _bucket(uri))
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


def _store(location: str | Location) -> LocalStore | S3Store:
    if isinstance(location, str):
        location = Location.parse(location)
    options = location.storage_options
    return LocalStore() if options is None else _s3_store(location.bucket, tuple(sorted(options.items())))


@lru_cache(maxsize=16)
def _s3_store(bucket: str, options: tuple[tuple[str, str], ...]) -> S3Store:
    return S3Store(bucket, config=cast("S3Config", dict(options)))


class _Remote(io.RawIOBase):
    """An object as a stream."""

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


# Failures ------------------------------------------------------------------------------------------


def _check_unchanged(file: File, handle: int) -> None:
    if _version(os.fstat(handle)) != file.version:
        raise _changed(file.uri)


def _changed(uri: str) -> InputChangedError:
    return InputChangedError(f"{uri} changed while it was read", path=uri, hint="load it again when it is complete")


class _Failures:
    """Translates errors of reading. A class, because `contextmanager` takes as long as to read a small file."""

    __slots__ = ("_uri",)

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        uri = self._uri
        if isinstance(error, PreconditionError):
            raise _changed(uri) from None
        if isinstance(error, pa.ArrowException | BaseError | OSError):
            if uri.startswith(_S3) and isinstance(error, BaseError | FileNotFoundError):
                raise storage_error(error, "read", uri) from error
            reason = getattr(error, "strerror", None) or str(error)
            raise InputUnreadableError(f"cannot read {uri}: {reason}", path=uri, hint="check the file") from error


# Blocks of lines and records -----------------------------------------------------------------------


def line_blocks(split: Split, most: int) -> Iterator[bytes]:
    """Read the lines of a split in blocks of whole lines; a line of more than `most` bytes is truncated."""
    if split.compression:
        # Of a line that is too long, enough is kept to report it, and no more however long it is.
        yield from _whole(split, lambda data: data.rfind(b"\n") + 1, most + 1 + CHUNK)
        return
    # A line that starts before the split belongs to the previous one.
    # One byte more is read, because a line end just before the split means that a line starts with it.
    data = read_range(split.found, max(split.start - 1, 0), split.end)
    start = data.find(b"\n") + 1 if split.start else 0
    if (split.start and not start) or start >= len(data):
        return
    data = data[start:]
    yield data if data.endswith(b"\n") else data + _rest_of_line(split, most)


def _rest_of_line(split: Split, most: int) -> bytes:
    at, rest, step = split.end, b"", 2**16
    # In growing steps: most lines end within the first, and a long one must not take a request for each 64 KiB.
    while at < split.file_size and len(rest) <= most:
        piece = read_range(split.found, at, at + step)
        line, end, _ = piece.partition(b"\n")
        rest += line + end
        if end:
            break
        at, step = at + len(piece), step * 4
    return rest


def csv_blocks(split: Split) -> Iterator[bytes]:
    """Read the records of a CSV split in blocks of whole records; each block ends with a line end."""
    for block in _whole(split, partial(last_record_end, quote=split.dialect.quote_byte)):
        if block:
            yield block if block.endswith(b"\n") else block + b"\n"


def _whole(split: Split, last_end: Callable[[bytes], int], most: int | None = None) -> Iterator[bytes]:
    """Read a split in blocks that end with a record; `most` bytes of an incomplete one are kept for the next."""
    rest = b""
    for chunk in _chunks(split):
        data = rest + chunk
        end = last_end(data)
        if end:
            yield data[:end]
        rest = data[end:][:most]
        if len(rest) > MAX_RECORD:
            raise unclosed(split)
    if rest:
        yield rest


def _chunks(split: Split) -> Iterator[bytes]:
    if not split.compression:
        for start in range(split.start, split.end, CHUNK):
            yield read_range(split.found, start, min(split.end, start + CHUNK))
        return
    skip = split.start
    for chunk in decompressed(split.found, split.compression, CHUNK):
        yield chunk[skip:]
        skip = max(skip - len(chunk), 0)


def last_record_end(data: bytes, quote: bytes) -> int:
    """Find the end of the last whole record; 0 if there is none. The data starts with a record."""
    end = data.rfind(b"\n") + 1
    while end and data.count(quote, 0, end) & 1:  # inside of quotes: go back to before they were opened
        end = data.rfind(b"\n", 0, data.rfind(quote, 0, end)) + 1
    return end


def unclosed(split: Split) -> InputUnreadableError:
    """Return the error for a CSV file with a record that is too long to be one."""
    message = f"{split.file}: a record has more than {MAX_RECORD:,} bytes; probably a quote is not closed"
    return InputUnreadableError(message, path=split.file, hint="close the quote, or write it twice inside of quotes")


def record_start(data: bytes, parity: int, quote: bytes) -> int:
    """Find the start of the first record after the current one; 0 if there is none.

    `parity` is 1 inside of quotes, where an end of line does not end the record.
    """
    start = 0
    while True:
        if parity:
            start = data.find(quote, start) + 1
            if not start:
                return 0
        end = data.find(b"\n", start)
        if end < 0:
            return 0
        parity = data.count(quote, start, end) & 1
        if not parity:
            return end + 1
        start = end


# Parquet -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def parquet(split: Split) -> Iterator[Any]:
    """Open a Parquet file."""
    with opened(split.found) as stream:
        try:
            yield pq.ParquetFile(pa.PythonFile(stream, mode="r"))
        except (pa.ArrowException, OSError) as error:
            message = f"{split.file} is not a readable Parquet file: {error}"
            raise InputUnreadableError(message, path=split.file, hint="write it again") from error


# Writing -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def written(location: Location, name: str = "") -> Iterator[io.RawIOBase]:
    """Open a stream to write a file. The file appears at the end of the block, unless the block raises.

    Until then it has another name or does not exist, so if two tasks write the same file, the later one replaces it.
    """
    path = location.child(name)
    with _write_failures(path):
        key = f"{location.key}/{name}".strip("/")
        writer = obstore.open_writer(_store(location), key, buffer_size=_UPLOAD_BUFFER)
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


@contextlib.contextmanager
def _write_failures(path: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise storage_error(error, "write", path) from error
