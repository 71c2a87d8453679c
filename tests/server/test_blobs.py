"""Blobs over HTTP: whole, in part, by their tags."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import omnigraph
from omnigraph.api.rows import Blob
from omnigraph.client import calls
from tests.support.serving import bearer, client, one_graph, running

SCHEMA = "node Doc { name: String @key  body: Blob?  pages: I32? }\nedge Cites: Doc -> Doc { scan: Blob? }"
READER = bearer("read")["Authorization"].removeprefix("Bearer ")
LARGE = bytes(range(256)) * 10_000
CONTENTS = {"small": b"hello world", "empty": b"", "large": LARGE}
SMALL = {"type": "Doc", "id": "small", "property": "body"}


def encoded(content: bytes) -> str:
    return f"base64:{base64.b64encode(content).decode()}"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blobs") / "graph"
    docs = [{"type": "Doc", "data": {"name": name, "body": encoded(content)}} for name, content in CONTENTS.items()]
    edge = {"edge": "Cites", "from": "small", "to": "large", "data": {"id": "e", "scan": encoded(b"scanned")}}
    omnigraph.init(path, SCHEMA).load([*docs, {"type": "Doc", "data": {"name": "none"}}, edge], mode="append")
    return path


@pytest.fixture(scope="module")
def blobs(path: Path) -> Iterator[httpx.Client]:
    with running(one_graph(str(path))) as url, client(url, "read") as http:
        yield http


@pytest.mark.parametrize("name", CONTENTS)
def test_a_blob_is_delivered_as_it_was_loaded(blobs: httpx.Client, path: Path, name: str) -> None:
    answer = blobs.get("/blob", params={**SMALL, "id": name})

    assert answer.status_code == 200
    assert answer.content == CONTENTS[name]
    assert answer.headers["content-length"] == str(len(CONTENTS[name]))
    assert answer.headers["accept-ranges"] == "bytes"
    head = omnigraph.open(path).commits()[0].commit_id
    assert answer.headers["omnigraph-snapshot-id"] == head
    assert blobs.get("/blob", params={**SMALL, "id": name, "snapshot": head}).content == CONTENTS[name]


def test_the_head_of_a_blob_has_its_size_and_no_body(blobs: httpx.Client) -> None:
    whole, answer = blobs.get("/blob", params=SMALL), blobs.head("/graphs/default/blob", params=SMALL)

    assert (answer.status_code, answer.content) == (200, b"")
    for name in ("content-length", "etag", "accept-ranges", "omnigraph-snapshot-id"):
        assert answer.headers[name] == whole.headers[name]
    missing = blobs.head("/blob", params={**SMALL, "id": "absent"})
    assert (missing.status_code, missing.content) == (404, b"")


def test_an_edge_has_blobs_as_well(blobs: httpx.Client) -> None:
    asked = {"entity": "edge", "type": "Cites", "id": "e", "property": "scan"}

    assert blobs.get("/blob", params=asked).content == b"scanned"


@pytest.mark.parametrize(
    "wanted, start, end",
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-", 5, None),
        ("bytes=-3", -3, None),
        ("bytes=2000000-2000009", 2_000_000, 2_000_010),
    ],
)
def test_a_range_is_delivered_alone(blobs: httpx.Client, wanted: str, start: int, end: int | None) -> None:
    answer = blobs.get("/blob", params={**SMALL, "id": "large"}, headers={"Range": wanted})

    assert answer.status_code == 206
    assert answer.content == LARGE[start:end]
    first = start % len(LARGE)
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(answer.content) - 1}/{len(LARGE)}"


@pytest.mark.parametrize("wanted", ["bytes=0-1,3-4", "bytes=5-2", "lines=1-2", "bytes=-", f"bytes=0-{'9' * 5000}"])
def test_what_is_not_one_range_is_answered_with_all(blobs: httpx.Client, wanted: str) -> None:
    answer = blobs.get("/blob", params=SMALL, headers={"Range": wanted})

    assert (answer.status_code, answer.content) == (200, b"hello world")


@pytest.mark.parametrize("wanted", ["bytes=11-", "bytes=500-600"])
def test_a_range_beyond_the_end_is_refused(blobs: httpx.Client, wanted: str) -> None:
    answer = blobs.get("/blob", params=SMALL, headers={"Range": wanted})

    assert (answer.status_code, answer.json()["code"]) == (416, "bad_request")
    assert answer.json()["blob_range"]["length"] == 11


def test_tags_decide_what_is_delivered(blobs: httpx.Client) -> None:
    tag = blobs.get("/blob", params=SMALL).headers["etag"]
    other = blobs.get("/blob", params={**SMALL, "id": "large"}).headers["etag"]

    def status(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return blobs.get("/blob", params=SMALL, headers=named).status_code

    assert tag != other
    assert status(If_None_Match=tag) == status(If_None_Match=f"{other}, {tag}") == status(If_None_Match="*") == 304
    assert status(If_None_Match=other) == status(If_Match=tag) == status(If_Match="*") == 200
    assert status(Range="bytes=0-1", If_Range=tag) == 206
    assert status(Range="bytes=0-1", If_Range=other) == 200
    refused = blobs.get("/blob", params=SMALL, headers={"If-Match": other})
    assert (refused.status_code, refused.json()["code"]) == (412, "conflict")


@pytest.mark.parametrize(
    "more, status, saying",
    [
        ({"id": "absent"}, 404, "is not there"),
        ({"id": "none"}, 404, "has no content"),
        ({"property": "pages"}, 400, "is no Blob"),
        ({"property": "bdy"}, 400, "is no Blob"),
        ({"type": "Dco"}, 400, "no node type 'Dco'"),
        ({"entity": "edge"}, 400, "no edge type 'Doc'"),
        ({"entity": "thing"}, 422, "entity"),
        ({"branch": "absent"}, 404, "absent"),
        ({"snapshot": ""}, 400, "cannot name"),
        ({"branch": "main", "snapshot": "x"}, 400, "exclude each other"),
    ],
)
def test_what_is_no_blob_is_refused(blobs: httpx.Client, more: dict[str, str], status: int, saying: str) -> None:
    answer = blobs.get("/blob", params={**SMALL, **more})

    assert answer.status_code == status
    assert saying in answer.json()["error"]


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("part", [2**20, 7], ids=["at once", "in parts"])
def test_a_client_reads_blobs_like_a_graph_in_storage(
    blobs: httpx.Client, path: Path, name: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "FIRST_PART", part)
    there, content = omnigraph.open(path).at("main").blob("Doc", name, "body"), CONTENTS[name]
    with omnigraph.connect(str(blobs.base_url), token=READER) as served:
        here = served.at("main").blob("Doc", name, "body")
        awaited = asyncio.run(_awaited(str(blobs.base_url), name))
        for found in (there, here, awaited):
            assert (found.size, found.etag) == (len(content), there.etag)
            assert (found.read(), found.read(3, 9), found.read(5)) == (content, content[3:9], content[5:])


async def _awaited(address: str, name: str) -> Blob:
    async with omnigraph.connect_async(address, token=READER) as served:
        return await (await served.at("main")).blob("Doc", name, "body")


def test_a_client_is_told_that_a_blob_is_not_there(blobs: httpx.Client) -> None:
    with (
        omnigraph.connect(str(blobs.base_url), token=READER) as served,
        pytest.raises(omnigraph.errors.BlobNotFoundError),
    ):
        served.at("main").blob("Doc", "none", "body")
