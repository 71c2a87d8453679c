"""Plain reads, listings, puts and deletes of S3, carried out on the objects that moto holds.

They are nearly all requests, and moto takes ten times as long for them. What it refuses, long listings, uploads in
parts and all else are left to moto. tests/storage/test_s3_answers.py compares the answers with those of moto.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qs
from wsgiref.types import WSGIEnvironment
from xml.sax.saxutils import escape, unescape

_CONDITIONS = {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH", "HTTP_IF_MODIFIED_SINCE", "HTTP_IF_UNMODIFIED_SINCE"}
# What a plain write may come with: headers of HTTP, the signature, and a condition that holds.
_PLAIN = {
    f"HTTP_{name}" for name in ("HOST", "ACCEPT", "USER_AGENT", "AUTHORIZATION", "CONNECTION", "EXPECT", "CONTENT_MD5")
}
_PLAIN |= {f"HTTP_X_AMZ_{name}" for name in ("DATE", "CONTENT_SHA256", "SECURITY_TOKEN")}
_PLAIN |= {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"}
_OF_BULK = {"HTTP_X_AMZ_CHECKSUM_SHA256"}  # which moto looks at with a put only
_LISTED = {"list-type", "prefix", "delimiter"}
_PAGE = 1000
_SPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_XML = '<?xml version="1.0" encoding="utf-8"?>\n'


class Answer(NamedTuple):
    status: str
    headers: list[tuple[str, str]]
    body: bytes


def plain(backend: Any, environ: WSGIEnvironment) -> Answer | None:
    """Answer a plain request; None if moto has to."""
    return read(backend, environ) if environ["REQUEST_METHOD"] in ("GET", "HEAD") else write(backend, environ)


def read(backend: Any, environ: WSGIEnvironment) -> Answer | None:
    """Answer a plain read of an object or a short listing; None if moto has to."""
    path, query = str(environ["PATH_INFO"]), parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD") or environ.keys() & _CONDITIONS or not path.isascii():
        return None
    _, bucket, key = f"{path}/".split("/", 2)
    key = key.removesuffix("/")
    if bucket not in backend.buckets:
        return None
    keys = backend.buckets[bucket].keys
    if key and not query:
        return _object(keys[key], environ.get("HTTP_RANGE", "")) if key in keys else _missing(key)
    if key or query.keys() - _LISTED or "list-type" not in query:
        return None
    return _listing(bucket, keys, *(query.get(name, [""])[0] for name in ("prefix", "delimiter")))


def _object(found: Any, wanted: str) -> Answer | None:
    headers = [("ETag", found.etag), ("Last-Modified", found.last_modified_RFC1123), ("Accept-Ranges", "bytes")]
    if not wanted:
        return Answer("200 OK", headers, found.value)
    part = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
    if part is None or int(part[1]) >= found.size:
        return None
    first, last = int(part[1]), min(int(part[2] or found.size), found.size - 1)
    headers.append(("Content-Range", f"bytes {first}-{last}/{found.size}"))
    return Answer("206 PARTIAL CONTENT", headers, found.value[first : last + 1])


def _missing(key: str) -> Answer:
    why = "<Code>NoSuchKey</Code><Message>The specified key does not exist.</Message>"
    return Answer("404 NOT FOUND", [], f"{_XML}<Error>{why}<Key>{escape(key)}</Key></Error>".encode())


def _listing(bucket: str, keys: Any, prefix: str, delimiter: str) -> Answer | None:
    files, folders = [], set()
    for key in sorted(key for key in keys if key.startswith(prefix)):
        folder, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        if found:
            folders.add(f"{prefix}{folder}{delimiter}")
        else:
            files.append(keys[key])
    if len(files) + len(folders) > _PAGE:
        return None
    contents = "".join(
        f"<Contents><Key>{escape(file.name)}</Key><LastModified>{file.last_modified_ISO8601}</LastModified>"
        f"<ETag>{file.etag}</ETag><Size>{file.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for file in files
    )
    common = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
    cut = f"<Delimiter>{escape(delimiter)}</Delimiter>" if delimiter else ""
    told = f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>{cut}<MaxKeys>{_PAGE}</MaxKeys>"
    count = f"<KeyCount>{len(files) + len(folders)}</KeyCount><IsTruncated>false</IsTruncated>"
    document = f'{_XML}<ListBucketResult xmlns="{_SPACE}">{told}{count}{contents}{common}</ListBucketResult>'
    return Answer("200 OK", [("Content-Type", "application/xml")], document.encode())


def write(backend: Any, environ: WSGIEnvironment) -> Answer | None:
    """Carry out a put or a delete whose condition, if it has one, holds; None if moto has to."""
    method, path, query = environ["REQUEST_METHOD"], str(environ["PATH_INFO"]), environ["QUERY_STRING"]
    _, bucket, key = f"{path}/".split("/", 2)
    key = key.removesuffix("/")
    is_bulk = method == "POST" and not key and query in ("delete", "delete=")
    headers = {name for name in environ if name.startswith("HTTP_")} - _PLAIN
    if headers - (_OF_BULK if is_bulk else set()) or bucket not in backend.buckets or not path.isascii():
        return None
    if is_bulk:
        return _deleted(backend, bucket, environ["wsgi.input"].getvalue().decode())
    if not key or query or not _holds(backend.buckets[bucket].keys.get(key), environ):
        return None
    if method == "PUT" and "CONTENT_TYPE" not in environ:
        return Answer("200 OK", [("ETag", backend.put_object(bucket, key, environ["wsgi.input"].getvalue()).etag)], b"")
    if method == "DELETE":
        backend.delete_object(bucket, key)
        return Answer("204 NO CONTENT", [], b"")
    return None


def _holds(found: Any, environ: WSGIEnvironment) -> bool:
    wanted, unwanted = environ.get("HTTP_IF_MATCH"), environ.get("HTTP_IF_NONE_MATCH")
    if wanted is not None and (found is None or wanted != found.etag):
        return False
    return unwanted is None or (unwanted == "*" and found is None)


def _deleted(backend: Any, bucket: str, document: str) -> Answer | None:
    objects = re.findall("<Object>(.*?)</Object>", document)
    keys = [re.fullmatch("<Key>(.*?)</Key>", one) for one in objects]
    if not keys or "&#" in document or not document.isascii():
        return None
    names = [unescape(key[1]) for key in keys if key]
    if len(names) < len(keys):  # versions of objects
        return None
    for name in names:
        backend.delete_object(bucket, name)
    told = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
    document = f'{_XML}<DeleteResult xmlns="{_SPACE}">{told}</DeleteResult>'
    return Answer("200 OK", [("Content-Type", "application/xml")], document.encode())
