"""Where forks look for the files that they share with the rest of their table, and how that follows a moved graph.

Lance writes the absolute address of the table into every version of a fork. In a copy of the graph that is the address
of the original: reads would go there, and a cleanup of the copy would not see which of its own files the fork needs.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance

from omnigraph.core.location import Location
from omnigraph.errors import CorruptGraphError
from omnigraph.storage.objects import ObjectStore, storage_error
from omnigraph.storage.observe import durable_write

# A version file: what the manifest points into, the length of the manifest, the manifest, and this: the position of
# that length, the format in two numbers, and a mark.
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_MARK = b"LANC"
# The fields of the protobuf messages that matter here. All others are copied as they are.
_BASES, _NAME, _PATH = 18, 2, 4
_MORE = 0x80  # the bit of a byte that says that a number goes on
NEWEST = 2**64 - 1  # Lance names a version by its distance from this number; older tables by the number
_DETACHED = 2**63
_VERSION_FILE = re.compile(r"(?P<table>.+?)/tree/(?P<fork>.+)/_versions/[^/]+\.manifest")


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The directory of a table below the root of a graph, and where that root is now."""

    location: Location
    path: str

    @property
    def uri(self) -> str:
        return self.location.child(self.path)

    def base(self, fork: str | None) -> str:
        """Return the address that a version should name for the table itself, or for another fork of it."""
        return self.location.child(self.path, "tree", fork) if fork else self.uri

    def former_root(self, base: str, fork: str | None) -> str | None:
        """Return the root of which a base is a part; None if it is the present one, or if the base is no part of any.

        The end of a base is known, whatever comes before: the path of the table, and the name of the fork. So no text
        is searched for, which might also occur in the address of the graph.
        """
        below = f"/{self.path}/tree/{fork}" if fork else f"/{self.path}"
        return base.removesuffix(below) if base.endswith(below) and base != self.base(fork) else None


def fork_of_version_file(name: str) -> tuple[str, str] | None:
    """Return the table and the fork of a version file, by its name below the root; None for any other file."""
    found = _VERSION_FILE.fullmatch(name)
    return (found["table"], found["fork"]) if found else None


def version_file(version: int) -> str:
    """Return the name of the file of a version, below the directory of its table or fork."""
    return f"_versions/{f'd{version}.manifest' if version >= _DETACHED else file_name(version)}"


def file_name(version: int) -> str:
    """Return the name of the file that describes a version, below `_versions`: the newest sorts first."""
    return f"{NEWEST - version:020d}.manifest"


def at_present_root(dataset: lance.LanceDataset, location: Location, **settings: Any) -> lance.LanceDataset:
    """Return the handle of a fork; one that finds its files below the present root, if it was written at another one.

    Nothing is written: a moved graph can be read as it is. The manifest is loaded, so the look costs no request.
    """
    # By the address of the handle: opened by `uri/tree/fork`, it is the one of the fork itself.
    path, _, fork = dataset.uri.removeprefix(location.child("")).strip("/").partition("/tree/")
    place = TablePlace(location, path)
    if not fork or not any(place.former_root(one.path, one.name) for one in dataset.base_paths().values()):
        return dataset
    version = int(dataset.version)
    data = _read_version(ObjectStore(location), f"{path}/tree/{fork}", version)
    manifest = moved_manifest(data, place)
    return lance.LanceDataset(dataset.uri, version=version, serialized_manifest=manifest, **settings)


def _read_version(objects: ObjectStore, directory: str, version: int) -> bytes:
    found = objects.read_if_exists(f"{directory}/{version_file(version)}")
    # Tables that were made by an old Lance number their version files upwards.
    return objects.read(f"{directory}/_versions/{version}.manifest") if found is None else found


def former_roots(data: bytes, place: TablePlace) -> set[str]:
    """Return the other roots that a version file of a fork refers to."""
    with _understood(place):
        found = [place.former_root(base, fork) for base, fork in _bases(_split(data, place)[1])]
    return {root for root in found if root is not None}


def moved_manifest(data: bytes, place: TablePlace) -> bytes:
    """Return the manifest in a version file, as if the fork had been written at the present root."""
    return _moved(_split(data, place)[1], place)


def moved_file(data: bytes, place: TablePlace) -> bytes:
    """Return a version file as if its fork had been written at the present root."""
    before, manifest, footer = _split(data, place)
    after = _moved(manifest, place)
    # A reader may know the length of the file from a listing, and look for its end there. So it never gets shorter:
    # what is missing goes before the manifest, where nothing points.
    filler = bytes(max(len(manifest) - len(after), 0))
    position = len(before) + len(filler)
    end = _FOOTER.pack(position, *footer[1:])
    return b"".join((before, filler, _LENGTH.pack(len(after)), after, end))


def rewrite_version(objects: ObjectStore, place: TablePlace, name: str) -> bool:
    """Make a version file of a fork name the present root; return False if there was nothing to change.

    A reader sees the old file or the new one, and so does the world after a power cut. The caller holds the gates.
    """
    found = objects.read_versioned(name)
    if found is None or not former_roots(found[0], place):
        return False
    data = moved_file(found[0], place)
    if not place.location.is_local:
        # Another process that did the same meanwhile has put the same content there.
        return objects.replace(name, data, found[1]) is not None
    path = Path(place.location.child(name))
    durable_write("relocate", str(path))
    try:
        _replace(path, data)
    except OSError as error:
        raise storage_error(error, "relocate", str(path)) from error
    return True


def _replace(path: Path, data: bytes) -> None:
    # The name of a temporary file: listings leave it out, and so does a copy that comes across it.
    temporary = path.with_name(f"{path.name}#0")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # before the rename: otherwise a power cut could leave an empty file in its place
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _split(data: bytes, place: TablePlace) -> tuple[bytes, bytes, tuple[int, int, int, bytes]]:
    """Return what precedes the manifest, the manifest, and the footer."""
    if len(data) >= _FOOTER.size + _LENGTH.size and data.endswith(_MARK):
        footer = _FOOTER.unpack(data[-_FOOTER.size :])
        start, end = footer[0] + _LENGTH.size, len(data) - _FOOTER.size
        if start <= end and _LENGTH.unpack(data[footer[0] : start])[0] == end - start:
            return data[: footer[0]], data[start:end], footer
    raise _unknown_format(place)


def _unknown_format(place: TablePlace) -> CorruptGraphError:
    message = f"a version of a fork in {place.uri} is incomplete or in an unknown format"
    return CorruptGraphError(message, path=place.path, hint="restore it from a backup")


@contextmanager
def _understood(place: TablePlace) -> Iterator[None]:
    try:
        yield
    except (ValueError, IndexError) as error:  # the message breaks off, or has fields of another kind
        raise _unknown_format(place) from error


def _moved(manifest: bytes, place: TablePlace) -> bytes:
    with _understood(place):
        return b"".join(
            proto_field(_BASES, _moved_base(value, place)) if number == _BASES else whole
            for number, whole, value in _fields(manifest)
        )


def _moved_base(message: bytes, place: TablePlace) -> bytes:
    fields = list(_fields(message))
    fork, path = _text(fields, _NAME), _text(fields, _PATH)
    if place.former_root(path, fork or None) is None:
        return message
    new = proto_field(_PATH, place.base(fork or None).encode())
    return b"".join(new if number == _PATH else whole for number, whole, _ in fields)


def _bases(manifest: bytes) -> Iterator[tuple[str, str | None]]:
    for number, _, value in _fields(manifest):
        if number == _BASES:
            fields = list(_fields(value))
            yield _text(fields, _PATH), _text(fields, _NAME) or None


def _text(fields: list[tuple[int, bytes, bytes]], wanted: int) -> str:
    return next((value.decode() for number, _, value in fields if number == wanted), "")


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the fields of a protobuf message: the number, the bytes of the whole field, and those of its value."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        value_at = at
        match tag & 7:
            case 0:  # a number
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 2:  # text, bytes or a message
                length, value_at = _varint(message, at)
                at = value_at + length
            case 5:
                at += 4
            case kind:
                raise ValueError(f"wire type {kind} of protobuf is not supported")
        if at > len(message):
            raise ValueError("a protobuf message ends inside a field")
        yield tag >> 3, message[start:at], message[value_at:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte % _MORE) << shift
        at, shift = at + 1, shift + 7
        if not byte & _MORE:
            return value, at


def proto_field(number: int, value: bytes) -> bytes:
    """Encode a text, bytes or a message as a field of a protobuf message."""
    return proto_varint(number << 3 | 2) + proto_varint(len(value)) + value


def proto_varint(value: int) -> bytes:
    """Encode a number: seven bits a byte, the lowest first."""
    found = bytearray()
    while value >= _MORE:
        found.append(value % _MORE | _MORE)
        value >>= 7
    return bytes((*found, value))
