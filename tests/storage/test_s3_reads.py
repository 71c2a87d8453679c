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

from tests.support.s3_reads import read

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
LEFT = {
    "an object whose name is not ASCII": ("GET", "a/ü", {}),
    "a condition": ("GET", "a/x", {"If-None-Match": "*"}),
    "the end of an object": ("GET", "a/x", {"Range": "bytes=-2"}),
    "a part behind the end": ("GET", "a/x", {"Range": "bytes=40-"}),
    "a write": ("PUT", "a/x", {}),
    "a page of a listing": ("GET", "?list-type=2&max-keys=1", {}),
    "an old listing": ("GET", "?prefix=a/", {}),
}
VARYING = re.compile(r"<(RequestId|HostId)>.*?</\1>")


@pytest.fixture(scope="module")
def moto() -> Iterator[Client]:
    client = Client(create_backend_app("s3"))
    client.open(_request("PUT", "", {}))
    for key in KEYS:
        client.open(_request("PUT", key, {}, b"" if key == "a/empty" else key.encode() * 3))
    yield client
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].reset()


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
    answer = read(s3_backends[DEFAULT_ACCOUNT_ID]["aws"], asked)
    expected = moto.open(asked)

    assert answer
    assert answer.status == expected.status
    assert [(header, expected.headers.get(header)) for header, _ in answer.headers] == answer.headers
    assert READS[name][0] == "HEAD" or _parts(answer.body) == _parts(expected.data)


def _parts(body: bytes) -> list[str]:
    """The elements of a document, in any order; the bytes of an object as they are."""
    text = VARYING.sub("", body.decode()).replace("<Prefix/>", "<Prefix>")
    return sorted(re.findall(r"<[^/][^>]*>[^<]*", text)) or [text]


@pytest.mark.parametrize("name", LEFT)
def test_all_else_is_left_to_moto(name: str, moto: Client) -> None:
    assert moto
    assert read(s3_backends[DEFAULT_ACCOUNT_ID]["aws"], _request(*LEFT[name])) is None
