"""Bytes that are no request, or two at once: refused, or the connection closed; and the server is as well as before.

With OMNIGRAPH_SOAK set it sends many times as much, and something else every time.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.server_process import ServerProcess, served
from tests.support.serving import ADD, ALL, people_graph

SOAKING = "OMNIGRAPH_SOAK" in os.environ
SETTINGS = settings(max_examples=5_000 if SOAKING else 120, derandomize=not SOAKING)
THREADS = 4
OTHERS = 4  # those of libraries, which begin when they are needed
QUIET = 0.25  # seconds without an answer after which a server waits for more
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")

HIDDEN_BODY = b'{"name": "smuggled"}'
HIDDEN = b"POST /branches HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(HIDDEN_BODY),
    HIDDEN_BODY,
)
CHANGE = json.dumps({"query": ADD, "params": {"name": "zenobia"}}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that lets one change in at a time: if one kept its place, all others would be refused."""
    folder = tmp_path_factory.mktemp("raw")
    people_graph(folder / "people")
    limits = {"actor_requests": 1, "threads": THREADS, "body_seconds": 1.0, "head_seconds": 1.0}
    written = {"graphs": {"people": {"uri": "people"}}, "server": {"limits": limits}}
    (folder / "omnigraph.yaml").write_text(yaml.safe_dump(written))
    with served("--unauthenticated", folder=folder) as running:
        for _ in range(2 * THREADS):
            _check_well(running)
        yield running


@pytest.fixture(autouse=True)
def the_server_is_well(server: ServerProcess) -> Iterator[None]:
    """Whatever was sent has left no request, no place and no thread behind, and was no fault of the server."""
    before = _threads(server)
    yield
    _check_well(server)
    assert _threads(server) <= before + THREADS + OTHERS
    assert not [line for line in server.log_lines() if line.get("level") == "error" or line.get("status", 0) >= 500]


def _check_well(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=120) as asking:
        assert asking.get("/healthz").json()["status"] == "ok"
        assert asking.post("/query", json={"query": ALL}).status_code == 200
        assert "smuggled" not in asking.get("/branches").json()["branches"]
        _wait_for_the_end(asking)
        assert asking.post("/mutate", json={"query": ADD, "params": {"name": "yan"}}).status_code in (200, 409)


def _wait_for_the_end(asking: httpx.Client) -> None:
    """What was cut off ends soon; then the only request under way is the one that asks."""
    deadline = time.monotonic() + 120
    while "omnigraph_http_requests_in_flight 1.0" not in asking.get("/metrics").text:
        assert time.monotonic() < deadline, "a request is still under way"
        time.sleep(0.05)


def _threads(server: ServerProcess) -> int:
    """Count the threads that have the name of the process; those of lance have their own, and come and go."""
    process = Path(f"/proc/{server.process.pid}")
    name = (process / "comm").read_text()
    return sum(thread.read_text() == name for thread in process.glob("task/*/comm"))


def answers(server: ServerProcess, *parts: bytes, patience: float = QUIET) -> list[int]:
    """Send bytes in parts; give the statuses of all that comes back until the server closes or waits for more."""
    found = b""
    with server.connection() as connection, suppress(ConnectionError, TimeoutError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        connection.settimeout(patience)
        while part := connection.recv(65_536):
            found += part
    return [int(status) for status in STATUS.findall(found)]


def post(path: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join(
        [b"POST %s HTTP/1.1" % path, b"Host: x", b"Content-Type: application/json", *headers, b"", body]
    )


def _chunked(*lines: bytes) -> bytes:
    return post(b"/query", b"Transfer-Encoding: chunked", body=b"\r\n".join(lines))


def _with(*headers: bytes) -> bytes:
    """A request that ends where one of its headers says, or where another does: behind it hides a second one."""
    return post(b"/query", *headers, body=b"0\r\n\r\n" + HIDDEN)


LENGTH = b"Content-Length: 5"
TWO_IN_ONE = {
    "a length and chunks": _with(LENGTH, b"Transfer-Encoding: chunked"),
    "chunks and a length": _with(b"Transfer-Encoding: chunked", LENGTH),
    "two lengths": _with(LENGTH, b"Content-Length: 99"),
    "two lengths in one": _with(b"Content-Length: 5, 99"),
    "a signed length": _with(b"Content-Length: +5"),
    "a negative length": _with(b"Content-Length: -5"),
    "a hexadecimal length": _with(b"Content-Length: 0x5"),
    "a length with a space inside": _with(b"Content-Length: 5 5"),
    "a length that is no number": _with(b"Content-Length: five"),
    "an empty length": _with(b"Content-Length: "),
    "a length beyond all numbers": _with(b"Content-Length: " + b"9" * 40),
    "an unknown coding": _with(LENGTH, b"Transfer-Encoding: xchunked"),
    "chunks that are not last": _with(b"Transfer-Encoding: chunked, identity"),
    "chunks behind a tabulator": _with(LENGTH, b"Transfer-Encoding:\x0bchunked"),
    "a space before the colon": _with(LENGTH, b"Transfer-Encoding : chunked"),
    "a coding on the next line": _with(LENGTH, b"Transfer-Encoding:\r\n chunked"),
    "a bare line feed": _with(b"X: y\nTransfer-Encoding: chunked", LENGTH),
    "a bare carriage return": _with(b"X: y\rTransfer-Encoding: chunked", LENGTH),
    "a header with a NUL": _with(LENGTH, b"X: a\x00b"),
    "a header without a name": _with(LENGTH, b": chunked"),
    "a header without a colon": _with(LENGTH, b"chunked"),
    "a negative chunk": _chunked(b"-1", b"", HIDDEN),
    "a chunk beyond all numbers": _chunked(b"f" * 20, HIDDEN),
    "a chunk of no number": _chunked(b"0x5", b"hello", b"0", b"", HIDDEN),
    "a chunk that is longer than it says": _chunked(b"2", b"hello", b"0", b"", HIDDEN),
    "chunks that end with line feeds": _chunked(b"5\nhello\n0\n\n" + HIDDEN),
    "no version": b"POST /query\r\nHost: x\r\n\r\n" + HIDDEN,
    "a version of the future": b"POST /query HTTP/9.9\r\nHost: x\r\n\r\n" + HIDDEN,
    "an unknown method": b"STEAL /query HTTP/1.1\r\nHost: x\r\n\r\n" + HIDDEN,
    "a line feed in the path": b"POST /query\nX HTTP/1.1\r\nHost: x\r\n\r\n" + HIDDEN,
    "a NUL in the path": b"POST /que\x00ry HTTP/1.1\r\nHost: x\r\n\r\n" + HIDDEN,
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + HIDDEN,
    "the second version": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
}


@pytest.mark.parametrize("sent", TWO_IN_ONE.values(), ids=TWO_IN_ONE.keys())
def test_a_request_that_can_be_read_in_two_ways_is_not_read(server: ServerProcess, sent: bytes) -> None:
    found = answers(server, sent)
    assert len(found) <= 1
    assert all(400 <= status < 500 for status in found)


def _change(name: bytes) -> bytes:
    body = CHANGE.replace(b"zenobia", name)
    return post(b"/mutate", b"Content-Length: %d" % len(body), body=body)


def test_nonsense_behind_a_request_is_refused_and_the_connection_closed(server: ServerProcess) -> None:
    with server.connection() as connection:
        connection.sendall(_change(b"walt") + b"nonsense\r\n\r\n")
        connection.settimeout(120)
        found = b""
        while part := connection.recv(65_536):
            found += part
    assert STATUS.findall(found) in ([b"400"], [b"200", b"400"])


def test_a_client_may_go_while_several_of_its_requests_wait(server: ServerProcess) -> None:
    for _ in range(10):
        with server.connection() as connection:
            connection.sendall(_change(b"vera") * 3)
            time.sleep(0.01)
    assert httpx.get(f"{server.url}/healthz").json()["status"] == "ok"


def test_what_a_client_sends_does_not_become_a_header_of_the_answer(server: ServerProcess) -> None:
    for value in (b"a\tb", b"\xe4\xf6", b"x" * 65, b"a%0d%0aX-Made: up", b"'\"<>"):
        sent = b"GET /healthz?%s HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\nConnection: close\r\n\r\n"
        answer = server.raw(sent % (quote(value).encode(), value))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"made: up" not in answer.lower()
        assert value not in answer


PIECES = [b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b"\xff", b"Content-Length: 7\r\n", b"0\r\n\r\n", b"%2F", b"/../"]
REQUESTS = [
    b"GET /snapshot?branch=main HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /states/a%2Fb HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n",
    post(b"/query", b"Content-Length: 2", body=b"{}"),
    post(b"/mutate", b"Content-Length: %d" % len(CHANGE), body=CHANGE),
    post(b"/mutate", b"Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(CHANGE), CHANGE)),
    post(b"/mutate/if-graph-commit", b"Omnigraph-If-Graph-Commit: x", b"Content-Length: 2", body=b"{}"),
    post(b"/mutate", b"Expect: 100-continue", b"Content-Length: 9"),
    b"DELETE /branches/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n",
]


@st.composite
def spoilt(draw: st.DrawFn) -> list[bytes]:
    """A request, or some, in which something was put, left out, said twice or cut off, sent in two parts."""
    sent = b"".join(draw(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=2)))
    for _ in range(draw(st.integers(1, 3))):
        first, last = sorted(draw(st.tuples(*[st.integers(0, len(sent))] * 2)))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=8) | st.just(sent[first:last]))
        sent = draw(
            st.sampled_from([sent[:first] + piece + sent[first:], sent[:first] + piece + sent[last:], sent[:last]])
        )
    cut = draw(st.integers(0, len(sent)))
    return [sent[:cut], sent[cut:]]


@SETTINGS
@given(spoilt())
def test_a_spoilt_request_is_answered_or_cut_off_and_is_no_fault(server: ServerProcess, sent: list[bytes]) -> None:
    assert all(100 <= status < 500 for status in answers(server, *sent))
