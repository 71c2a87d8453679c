"""What the S3 server of the tests answers by itself is what moto answers."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3.models import s3_backends
from werkzeug.test import Client, EnvironBuilder

from tests.support.s3_answers import plain

KEYS = ("a/x", "a/sub/y", "a/sub/z", "a/b & c/<d>", "a/ü", "b", "a/empty")
SIGNED = "AWS4-HMAC-SHA256 Credential=an-access-key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
READS = {
    "an object": ("GET", "a/x", {}),
    "an empty object": ("GET", "a/empty", {}),
    "a part": ("GET", "a/x", {"Range": "bytes=2-4"}),
    "a part that ends with the object": ("GET", "a/x", {"Range": "bytes=2-"}),
    "a part that goes beyond the end": ("GET", "a/x", {"Range": "bytes=2-400"}),
    "the properties of an object": ("HEAD", "a/x", {}),
    "an object that is not there": ("GET", "a/none & <none>", {}),
    "the properties of an object that is not there": ("HEAD", "a/none", {}),
    "everything": ("GET", "?list-type=2", {}),
    "a folder": ("GET", "?list-type=2&prefix=a/&delimiter=%2F", {}),
    "all below a folder": ("GET", "?list-type=2&prefix=a/", {}),
    "names that begin the same": ("GET", "?list-type=2&prefix=a/s&delimiter=/", {}),
    "a folder with nothing in it": ("GET", "?list-type=2&prefix=c/&delimiter=/", {}),
}
WRITES = {
    "a new object": ("PUT", "a/new & <new>", {}, b"text"),
    "an object in the place of another": ("PUT", "a/x", {}, b"text"),
    "a new object, on that condition": ("PUT", "a/new", {"If-None-Match": "*"}, b"text"),
    "an object in the place of a known one": ("PUT", "a/x", {"If-Match": "THE ETAG"}, b""),
    "an object to delete": ("DELETE", "a/x", {}, b""),
    "a known object to delete": ("DELETE", "a/x", {"If-Match": "THE ETAG"}, b""),
    "an object to delete that is not there": ("DELETE", "a/none", {}, b""),
    "several objects to delete": (
        *("POST", "?delete", {"X-Amz-Checksum-Sha256": "0"}),
        b"<Delete><Object><Key>a/b &amp; c/&lt;d&gt;</Key></Object><Object><Key>a/none</Key></Object></Delete>",
    ),
}
REFUSED = {
    "an object that is there already": ("PUT", "a/x", {"If-None-Match": "*"}),
    "an object in the place of another than the known one": ("PUT", "a/x", {"If-Match": '"0"'}),
    "an object in the place of one that is gone": ("PUT", "a/none", {"If-Match": '"0"'}),
    "another than the known object to delete": ("DELETE", "a/x", {"If-Match": '"0"'}),
}
LEFT = {
    "an object with a type": ("PUT", "a/x", {"Content-Type": "text/plain"}),
    "an object with a checksum": ("PUT", "a/x", {"X-Amz-Checksum-Sha256": "0"}),
    "a part of an upload": ("PUT", "a/x?partNumber=1&uploadId=1", {}),
    "an upload in parts": ("POST", "a/x?uploads", {}),
    "a bucket": ("PUT", "", {}),
    "an object whose name is not ASCII": ("GET", "a/ü", {}),
    "a condition": ("GET", "a/x", {"If-None-Match": "*"}),
    "the end of an object": ("GET", "a/x", {"Range": "bytes=-2"}),
    "a part behind the end": ("GET", "a/x", {"Range": "bytes=40-"}),
    "a page of a listing": ("GET", "?list-type=2&max-keys=1", {}),
    "an old listing": ("GET", "?prefix=a/", {}),
}
KEYED = re.compile("<Key>.*?</Key>")
VARYING = re.compile(r"<(RequestId|HostId)>.*?</\1>")


@pytest.fixture(scope="module")
def application() -> Client:
    return Client(create_backend_app("s3"))


@pytest.fixture
def moto(application: Client) -> Iterator[Client]:
    _fill(application)
    yield application
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].reset()


def _fill(client: Client) -> None:
    client.open(_request("PUT", "", {}))
    for key in KEYS:
        client.open(_request("PUT", key, {}, b"" if key == "a/empty" else key.encode() * 3))


def _objects() -> dict[str, tuple[bytes, str]]:
    keys = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets["bucket"].keys
    return {key: (keys[key].value, keys[key].etag) for key in sorted(keys)}


def _request(method: str, key: str, headers: dict[str, str], body: bytes = b"") -> dict[str, Any]:
    parts = urlsplit(key)
    signed = {"Authorization": SIGNED, **headers}
    builder = EnvironBuilder(
        f"/bucket/{quote(parts.path)}".rstrip("/"),
        "http://127.0.0.1:80",
        query_string=parts.query,
        method=method,
        input_stream=io.BytesIO(body),
        content_length=len(body),
    )
    builder.headers.update(signed)
    return builder.get_environ()


@pytest.mark.parametrize("name", READS)
def test_a_plain_read_is_answered_as_moto_answers_it(name: str, moto: Client) -> None:
    asked = _request(*READS[name])
    answer = plain(s3_backends[DEFAULT_ACCOUNT_ID]["aws"], asked)
    expected = moto.open(asked)

    assert answer
    assert answer.status == expected.status
    assert [(header, expected.headers.get(header)) for header, _ in answer.headers] == answer.headers
    assert READS[name][0] == "HEAD" or _parts(answer.body) == _parts(expected.data)


@pytest.mark.parametrize("name", WRITES)
def test_a_plain_write_does_what_moto_does_and_is_answered_alike(name: str, moto: Client) -> None:
    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    method, key, conditions, body = WRITES[name]
    headers = {header: value.replace("THE ETAG", _objects()["a/x"][1]) for header, value in conditions.items()}
    before = _objects()
    answer, ours = plain(backend, _request(method, key, headers, body)), _objects()
    backend.reset()
    _fill(moto)
    assert _objects() == before
    expected = moto.open(_request(method, key, headers, body))

    assert answer
    assert answer.status == expected.status
    assert [(header, expected.headers.get(header)) for header, _ in answer.headers] == answer.headers
    assert KEYED.findall(answer.body.decode()) == KEYED.findall(expected.text)
    assert _objects() == ours


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_to_be_refused_is_left_to_moto(name: str, moto: Client) -> None:
    before = _objects()
    assert plain(s3_backends[DEFAULT_ACCOUNT_ID]["aws"], _request(*REFUSED[name])) is None
    assert moto.open(_request(*REFUSED[name])).status_code in (404, 412)
    assert _objects() == before


def _parts(body: bytes) -> list[str]:
    """The elements of a document, in any order; the bytes of an object as they are."""
    text = VARYING.sub("", body.decode()).replace("<Prefix/>", "<Prefix>")
    return sorted(re.findall(r"<[^/][^>]*>[^<]*", text)) or [text]


@pytest.mark.parametrize("name", LEFT)
def test_all_else_is_left_to_moto(name: str, moto: Client) -> None:
    assert moto
    before = _objects()
    assert plain(s3_backends[DEFAULT_ACCOUNT_ID]["aws"], _request(*LEFT[name])) is None
    assert _objects() == before
