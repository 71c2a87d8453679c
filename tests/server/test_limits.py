"""Requests that are too large, too slow, too deep or no HTTP at all: refused as all errors are, and nothing changed."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import yaml
from starlette.types import Message, Receive, Scope, Send

from omnigraph.server.limits import RequestLimits
from omnigraph.server.settings import Limits
from tests.support.server_process import ServerProcess, received, served
from tests.support.serving import ADD, ALL, one_graph, people_graph, running

BODY, LOAD, HEAD, DEPTH = 2_000, 6_000, 4_000, 20
LINES = "application/x-ndjson"
ADMIN = b"Authorization: Bearer admin-token"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with low limits, which everybody may ask, so that nothing but the limits is in the way."""
    folder = tmp_path_factory.mktemp("limits")
    people_graph(folder / "people")
    (folder / "secret.gq").write_text("query secret() { match { $p: Person } return { $p.name } }\n")
    limits = {"body_bytes": BODY, "load_bytes": LOAD, "head_bytes": HEAD, "json_depth": DEPTH}
    written = {"graphs": {"people": {"uri": "people"}}, "server": {"limits": limits}}
    (folder / "omnigraph.yaml").write_text(yaml.safe_dump(written))
    with served("--unauthenticated", folder=folder) as started:
        yield started


@pytest.fixture(autouse=True)
def the_graph_is_as_it_was(server: ServerProcess) -> Iterator[None]:
    """Whatever was refused has changed nothing, and the server answers as before."""
    yield
    answer = httpx.post(f"{server.url}/query", json={"query": ALL})
    assert [row["p.name"] for row in answer.json()["rows"]] == ["ann", "bob"]


def post(path: str, body: bytes, *headers: bytes, kind: bytes = b"application/json") -> bytes:
    head = [b"POST %s HTTP/1.1" % path.encode(), b"Host: x", b"Content-Type: " + kind, *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def told(answer: bytes) -> tuple[int, dict[str, object]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)


def padded(size: int) -> bytes:
    """A mutation that would be carried out, of so many bytes."""
    text = json.dumps({"query": ADD, "params": {"name": "zenobia"}}).encode()
    return text[:-1] + b" " * (size - len(text)) + b"}"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("path", ["/mutate", "/graphs/people/mutate"])
def test_a_body_that_says_that_it_is_too_large_is_not_even_awaited(server: ServerProcess, path: str) -> None:
    status, body = told(server.raw(post(path, b"", b"Content-Length: %d" % (BODY + 1))))
    assert status == 413
    assert body["code"] == "bad_request"
    assert body["resource_limit"] == {"resource": "body_bytes", "limit": BODY, "actual": BODY + 1}


def test_a_body_that_does_not_say_its_size_is_counted(server: ServerProcess) -> None:
    sent = chunked(padded(BODY + 1)[:1000], padded(BODY + 1)[1000:])
    status, body = told(server.raw(post("/mutate", sent, b"Transfer-Encoding: chunked")))
    assert (status, body["code"]) == (413, "bad_request")


@pytest.mark.parametrize("path", ["/load", "/load/ndjson", "/ingest", "/graphs/people/load/ndjson"])
def test_loads_may_be_larger_but_not_without_end(server: ServerProcess, path: str) -> None:
    status, _ = told(server.raw(post(path, b" " * BODY + b"nothing", b"Content-Length: %d" % (BODY + 7))))
    assert status in (400, 415)  # it was read, and is no data
    status, body = told(server.raw(post(path, b"", b"Content-Length: %d" % (LOAD + 1))))
    assert (status, body["resource_limit"]) == (413, {"resource": "body_bytes", "limit": LOAD, "actual": LOAD + 1})


@contextmanager
def hasty(folder: Path, limits: Limits) -> Iterator[socket.socket]:
    """A connection to a server with one short limit. Other requests have time, however busy the machine is."""
    serving = one_graph(people_graph(folder / "people"), limits=limits)
    with running(serving) as url:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port or 0), 120) as connection:
            yield connection


def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    with hasty(tmp_path, Limits(body_seconds=0.4)) as connection:
        connection.sendall(post("/mutate", b'{"que', ADMIN, b"Content-Length: 100"))
        status, body = told(received(connection))
    assert (status, body["code"]) == (408, "bad_request")


def test_a_body_that_drips_is_given_up_although_something_always_comes(tmp_path: Path) -> None:
    with hasty(tmp_path, Limits(body_seconds=0.4)) as connection:
        connection.sendall(post("/mutate", b"", ADMIN, b"Content-Length: 1000"))
        connection.settimeout(0.05)
        answer = b""
        for _ in range(200):
            try:
                connection.sendall(b" ")
                answer = connection.recv(4096)
            except TimeoutError:
                continue
            break
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: "])
def test_a_head_that_does_not_come_is_given_up(tmp_path: Path, sent: bytes) -> None:
    with hasty(tmp_path, Limits(head_seconds=0.4)) as connection:
        connection.sendall(sent)
        assert received(connection) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz?" + b"a" * HEAD + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nX-A: " + b"a" * HEAD + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"X-A: a\r\n" * HEAD + b"\r\n",
    ],
    ids=["path", "header", "headers"],
)
def test_a_head_that_is_too_large_is_refused(server: ServerProcess, sent: bytes) -> None:
    status, body = told(server.raw(sent))
    assert (status, body["code"]) == (431, "bad_request")
    assert str(HEAD) in str(body["error"])


@pytest.mark.parametrize("before", [b"", b"\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_head_that_never_ends_closes_the_connection(server: ServerProcess, before: bytes) -> None:
    with server.connection() as connection, suppress(ConnectionError):
        connection.sendall(before)
        time.sleep(0.05)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX-A: " + b"a" * 100 * HEAD)
        assert received(connection).count(b"HTTP/1.1 200 ") == before.count(b"GET")


def test_the_next_head_is_limited_though_a_body_was_not_read(server: ServerProcess) -> None:
    with server.connection() as connection, suppress(ConnectionError):
        connection.sendall(post("/nowhere", b"x" * 10, b"Content-Length: 10"))
        time.sleep(0.05)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX-A: ")
        assert received(connection).startswith(b"HTTP/1.1 404 ")


def test_a_head_that_just_fits_passes_also_in_parts_and_again(server: ServerProcess) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * (HEAD - 100) + b"\r\n\r\n"
    with server.connection() as connection:
        for _ in range(3):
            for at in range(0, len(head), 1500):
                connection.sendall(head[at : at + 1500])
                time.sleep(0.005)  # so that the parts arrive one by one
            assert received(connection).startswith(b"HTTP/1.1 200 ")


def test_an_answer_that_nobody_takes_is_given_up() -> None:
    sent: list[str] = []

    async def stuck(message: Message) -> None:
        sent.append(message["type"])
        if len(sent) == 2:
            await asyncio.Event().wait()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"more", "more_body": True})

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    limited = RequestLimits(app, Limits(body_seconds=0.05))
    asyncio.run(limited({"type": "http", "path": "/export", "headers": []}, nothing, stuck))
    assert sent == ["http.response.start", "http.response.body"]


def test_what_is_not_http_is_refused(server: ServerProcess) -> None:
    assert server.raw(b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "bomb, status",
    [
        (b'{"query": ' + b"[" * 900 + b"]" * 900 + b"}", 413),
        (b"[" * 1900, 413),
        (b'{"a":' * 380, 413),
        (b'{"query": "q", "params": {"a": ' + b"9" * 1800 + b"}}", 400),
        (b'{"query": "q", "params": {"a": 1e' + b"9" * 100 + b"}}", 400),
        (b'{"query": "' + b'\\"' * 900, 400),
        (b'{"query": "q", "query": ' + b'"q", "query": ' * 100 + b'"q"}', 400),
    ],
    ids=["nested", "open", "objects", "digits", "exponent", "quotes", "members"],
)
def test_json_that_is_made_to_hurt_is_refused(server: ServerProcess, bomb: bytes, status: int) -> None:
    answered, body = told(server.raw(post("/query", bomb, b"Content-Length: %d" % len(bomb))))
    assert (answered, body["code"]) == (status, "bad_request")


def test_brackets_in_texts_are_no_nesting(server: ServerProcess) -> None:
    text = json.dumps({"query": ALL + "// " + '[{"\\' * 100}).encode()
    status, body = told(server.raw(post("/query", text, b"Content-Length: %d" % len(text))))
    assert (status, body["row_count"]) == (200, 2)


def test_deep_lines_of_a_load_are_refused_too(server: ServerProcess) -> None:
    line = b'{"type": "Person", "data": {"name": ' + b"[" * 2500 + b"]" * 2500 + b"}}"
    status, body = told(server.raw(post("/load/ndjson", line, b"Content-Length: %d" % len(line), kind=LINES.encode())))
    assert (status, body["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    "path",
    [
        "/graphs/../../etc/passwd",
        "/graphs/..%2F..%2Fetc%2Fpasswd/snapshot",
        "/graphs/%2e%2e/snapshot",
        "/commits/..%2F..%2Fetc%2Fpasswd",
        "/commits/%00",
        "/branches/..%2F..",
        "/loads/..%2F..%2Fomnigraph",
        "/snapshot?branch=..%2F..%2Fetc",
        "/graphs/people%00/snapshot",
        "//etc/passwd",
        "/%ff%fe",
    ],
)
def test_no_path_leads_out_of_the_graph(server: ServerProcess, path: str) -> None:
    status, body = told(server.raw(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode()))
    assert status in (400, 404, 405)
    assert "code" in body
    assert "root:" not in json.dumps(body)


@pytest.mark.parametrize("route, member", [("query", "query"), ("mutate", "query"), ("schema/plan", "schema_source")])
def test_what_is_sent_is_never_taken_for_the_name_of_a_file(server: ServerProcess, route: str, member: str) -> None:
    for name in ("secret.gq", "people/_schema.pg", "/etc/passwd", "omnigraph.yaml"):
        answer = httpx.post(f"{server.url}/{route}", json={member: name})
        assert answer.status_code == 400
        assert not {"Person", "root:", "limits"} & set(answer.text.split())
        assert "$p" not in answer.text


@pytest.mark.parametrize(
    "given, kept",
    [
        (b"abc-1.2_X", True),
        (b"a b", False),
        (b"<script>", False),
        (b"a" * 65, False),
        (b"\xc3\xbc", False),
        (b"a\tb", False),
    ],
)
def test_a_request_id_comes_back_only_if_it_is_one(server: ServerProcess, given: bytes, kept: bool) -> None:  # noqa: FBT001
    answer = server.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\n\r\n" % given)
    found = next(line for line in answer.split(b"\r\n") if line.startswith(b"x-request-id: ")).partition(b": ")[2]
    assert (found == given) is kept
    assert kept or len(found) == 26


@pytest.mark.parametrize("given", ["a%0d%0aSet-Cookie:%20x=1", "a%0aX-Evil:%201"])
def test_what_is_sent_makes_no_headers(server: ServerProcess, given: str) -> None:
    for path in (f"/snapshot?branch={given}", f"/graphs/{given}/snapshot", f"/commits/{given}", f"/queries/{given}"):
        for method in (b"GET", b"POST"):
            answer = server.raw(method + b" %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % path.encode())
            head = answer.partition(b"\r\n\r\n")[0].lower()
            assert b"set-cookie" not in head
            assert b"x-evil" not in head
            assert 400 <= int(answer.split(b" ")[1]) < 500


def test_a_header_with_a_line_break_is_no_request(server: ServerProcess) -> None:
    answer = server.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: a\rX-B: b\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_two_lengths_or_a_length_and_chunks_are_no_request(server: ServerProcess) -> None:
    for extra in (b"Content-Length: 3", b"Transfer-Encoding: chunked"):
        answer = server.raw(post("/mutate", b"0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n", b"Content-Length: 5", extra))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1


def test_the_log_of_all_this_is_json_and_has_no_bodies(server: ServerProcess) -> None:
    large = padded(BODY + 1)
    server.raw(b"GET /etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n")
    server.raw(post("/mutate", large, b"Content-Length: %d" % len(large)))
    server.raw(post("/mutate", b"zenobia", b"Content-Length: 7"))
    httpx.get(f"{server.url}/healthz")  # a line is written right after its answer; so those of the others are there now

    lines = server.log_lines()

    assert {line["status"] for line in lines if line["event"] == "request"} >= {400, 404, 413}
    assert not any(line["level"] == "error" for line in lines)
    assert "passwd" not in server.log()
    assert "zenobia" not in server.log()
