"""Connections to a server are kept and given up; its answers come in every form that HTTP allows."""

from __future__ import annotations

import asyncio
import io
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from omnigraph.api.operations import ReadSnapshot
from omnigraph.client.calls import steps_of
from omnigraph.client.requests import Answer, Request, Steps, Stream
from omnigraph.client.transport import Address, Awaiting, Blocking
from omnigraph.core.http import milliseconds_until, proxy_of
from omnigraph.errors import ServerAnswerError, ServerUnavailableError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Talk = Callable[[socket.socket], None]


class Scripted:
    """A server that talks over each connection as it is told, and counts them."""

    def __init__(self, talk: Talk) -> None:
        self.accepted = 0
        self._talk = talk
        self._threads: list[threading.Thread] = []

    def serve(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                self.accepted += 1
                self._threads.append(threading.Thread(target=self._talk_over, args=(connection,)))
                self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _talk_over(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            self._talk(connection)


@contextmanager
def scripted(talk: Talk, seconds: float = 5.0) -> Iterator[tuple[Scripted, Blocking]]:
    server = Scripted(talk)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=server.serve, args=(listening,))
        thread.start()
        transport = Blocking(Address(f"http://127.0.0.1:{port}/x", None, seconds))
        try:
            yield server, transport
        finally:
            transport.close()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            server.join()


def read_request(connection: socket.socket) -> bytes:
    """A head and as much of a body as it announces; nothing if the client has gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
    while len(body) < length and (more := connection.recv(65536)):
        body += more
    return head + b"\r\n\r\n" + body


def always(answer: bytes) -> Talk:
    def talk(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall(answer)

    return talk


def once(answer: bytes) -> Talk:
    def talk(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer)

    return talk


def send(transport: Blocking, request: Request) -> Answer:
    def steps() -> Steps[Answer]:
        return (yield request)

    return transport.run(steps())


def ask(transport: Blocking, document: object = None) -> bytes:
    return send(transport, Request("POST", "/y", document=document)).content


def test_a_connection_is_used_again() -> None:
    with scripted(always(OK)) as (server, transport):
        assert [ask(transport, {}) for _ in range(5)] == [b"ok"] * 5
        assert server.accepted == 1


def test_a_connection_that_the_server_has_closed_is_replaced() -> None:
    closed = threading.Event()

    def talk(connection: socket.socket) -> None:
        once(OK)(connection)
        connection.close()
        closed.set()

    with scripted(talk) as (server, transport):
        for _ in range(3):
            closed.clear()
            assert ask(transport) == b"ok"
            assert closed.wait(300)
        assert server.accepted == 3


def test_a_connection_that_the_server_says_it_closes_is_not_kept() -> None:
    with scripted(once(OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))) as (server, transport):
        assert [ask(transport), ask(transport)] == [b"ok", b"ok"]
        assert server.accepted == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nok",
    ],
    ids=["in chunks", "to the end of the connection"],
)
def test_an_answer_of_unknown_length_is_read_to_its_end(answer: bytes) -> None:
    with scripted(once(answer)) as (_, transport):
        assert ask(transport) == b"ok"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
    ids=["nothing", "part of a head", "part of a body", "part of the chunks", "something else"],
)
def test_an_answer_that_is_cut_short_or_none_is_never_taken_for_a_whole_one(answer: bytes) -> None:
    with scripted(once(answer)) as (_, transport), pytest.raises(ServerUnavailableError):
        ask(transport)


def test_an_answer_that_does_not_come_in_time_is_not_waited_for() -> None:
    def talk(connection: socket.socket) -> None:
        while connection.recv(65536):
            pass

    with scripted(talk, seconds=0.05) as (_, transport), pytest.raises(ServerUnavailableError):
        ask(transport)


def test_a_refusal_in_the_middle_of_a_long_request_is_read() -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(2**20):
            pass

    with scripted(talk) as (_, transport), pytest.raises(ServerAnswerError) as refused:
        send(transport, Request("POST", "", file=io.BytesIO(b"x" * 2**22)))
    assert refused.value.status == 413


def test_a_request_is_sent_below_the_address_with_its_headers_and_its_length() -> None:
    sent = []

    def talk(connection: socket.socket) -> None:
        sent.append(read_request(connection))
        connection.sendall(OK)

    with scripted(talk) as (_, transport):
        send(transport, Request("POST", "/y", [("a", "1")], document={}, accept="z"))
    first, host, *others = sent[0].decode().split("\r\n")
    assert first == "POST /x/y?a=1 HTTP/1.1"
    assert host.startswith("Host: 127.0.0.1:")
    assert {"Accept: z", "Content-Length: 2", "Content-Type: application/json"} < set(others)
    assert others[-2:] == ["", "{}"]


def test_threads_that_ask_at_once_each_get_their_own_answer() -> None:
    def talk(connection: socket.socket) -> None:
        while request := read_request(connection):
            body = request.partition(b"\r\n\r\n")[2]
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with scripted(talk) as (server, transport), ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda one: ask(transport, one), range(200))
        assert [int(answer) for answer in answers] == list(range(200))
        assert server.accepted <= 8


def test_the_environment_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert proxy_of("http://example.org") is None
    monkeypatch.setenv("http_proxy", "http://me:a%20b@127.0.0.1:9")
    assert proxy_of("http://example.org/graphs/x") == "http://me:a%20b@127.0.0.1:9"
    assert proxy_of("https://example.org") is None
    monkeypatch.setenv("all_proxy", "localhost:10")
    assert proxy_of("https://example.org") == "http://localhost:10"
    monkeypatch.setenv("no_proxy", "example.org")
    assert proxy_of("http://example.org:8080") is None


def test_a_request_goes_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def talk(connection: socket.socket) -> None:
        sent.append(read_request(connection))
        connection.sendall(OK)

    with scripted(talk) as (_, proxy):
        address = proxy.address.url.removesuffix("/x").replace("//", "//me:a%20b@")
        monkeypatch.setenv("http_proxy", address)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        other = Blocking(Address("http://graphs.invalid/x", None, 5.0))
        assert ask(other) == b"ok"
        other.close()
    assert sent[0].startswith(b"POST http://graphs.invalid/x/y HTTP/1.1\r\n")
    assert b"\r\nProxy-Authorization: Basic bWU6YSBi\r\n" in sent[0]


def test_a_name_and_password_in_the_address_are_sent() -> None:
    sent = []

    def talk(connection: socket.socket) -> None:
        sent.append(read_request(connection))
        connection.sendall(OK)

    with scripted(talk) as (_, transport):
        other = Blocking(Address(transport.address.url.replace("//", "//me:secret@"), None, 5.0))
        ask(other)
        other.close()
    assert b"\r\nAuthorization: Basic bWU6c2VjcmV0\r\n" in sent[0]
    assert b"Host: 127.0.0.1:" in sent[0]


FORKED = """
import os, sys
from omnigraph.client.requests import Request
from omnigraph.client.transport import Address, Blocking

def ask():
    return transport.run((step for step in [Request("GET", "/y")]))

transport = Blocking(Address(sys.argv[1], None, 60.0))
ask()
child = os.fork()
if child == 0:
    ask()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
ask()
"""


def test_a_forked_process_has_connections_of_its_own() -> None:
    """In a process that has not loaded Lance, which no fork survives."""
    with scripted(always(OK)) as (server, transport):
        subprocess.run([sys.executable, "-c", FORKED, transport.address.url], check=True, timeout=120)
        assert server.accepted == 2


def hang_up_on_the_second(heads: list[bytes]) -> Talk:
    """Answers the first request of a connection, reads another one, and closes."""

    def talk(connection: socket.socket) -> None:
        heads.append(read_request(connection))
        connection.sendall(OK)
        if more := read_request(connection):
            heads.append(more)

    return talk


def test_a_change_is_never_sent_again_even_if_a_kept_connection_ends() -> None:
    """libcurl would: it takes a kept connection that ends without an answer for one that had ended before."""
    change = Request("POST", "/y", document={}, changes=True)
    heads: list[bytes] = []
    with scripted(hang_up_on_the_second(heads)) as (server, transport):
        for _ in range(3):
            assert send(transport, change).content == b"ok"
        assert (len(heads), server.accepted) == (3, 3)
    heads.clear()
    with scripted(hang_up_on_the_second(heads)) as (_, transport):
        ask(transport)
        assert ask(transport) == b"ok"
        assert len(heads) == 3, "a read is sent again over a new connection"


def test_a_wait_for_an_answer_can_be_interrupted() -> None:
    asked = threading.Event()

    def talk(connection: socket.socket) -> None:
        read_request(connection)
        asked.set()
        connection.recv(1)

    def interrupt() -> None:
        assert asked.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with scripted(talk, seconds=120.0) as (_, transport):
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            ask(transport)
        interrupter.join()


def test_connections_beyond_the_first_1024_files_of_a_process_work() -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < 1200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    with scripted(always(OK)) as (_, transport), ExitStack() as held:
        for _ in range(1100):
            held.enter_context(Path(os.devnull).open("rb"))
        assert ask(transport) == b"ok"


NEWS = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


@pytest.mark.parametrize("cut", [0, len(NEWS), len(NEWS) + 10, len(NEWS + OK) - 2], ids=["no", "a", "b", "c"])
def test_what_comes_before_an_answer_is_not_taken_for_it(cut: int) -> None:
    def talk(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall((NEWS + OK)[:cut])
            time.sleep(0.02)
            connection.sendall((NEWS + OK)[cut:])

    with scripted(talk) as (server, transport):
        for _ in range(3):
            answer = send(transport, Request("POST", "/y"))
            assert (answer.status, answer.content) == (200, b"ok")
            assert not answer.header("link")
        assert server.accepted == 1


def test_a_head_without_an_end_is_not_read_for_ever() -> None:
    def talk(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for _ in range(100):
            connection.sendall(b"X: " + b"y" * 10_000 + b"\r\n")

    with scripted(talk) as (_, transport), pytest.raises(ServerUnavailableError):
        ask(transport)


def test_a_file_that_cannot_be_read_is_no_fault_of_the_connection() -> None:
    class Broken(io.BytesIO):
        def read(self, _size: int | None = -1, /) -> bytes:
            raise OSError("the disk is gone")

    with scripted(always(OK)) as (_, transport), pytest.raises(OSError, match="the disk is gone"):
        send(transport, Request("POST", "/y", file=Broken(b"xx")))


async def send_async(transport: Awaiting, request: Request) -> Answer:
    def steps() -> Steps[Answer]:
        return (yield request)

    return await transport.run(steps())


def test_one_client_serves_one_event_loop_after_the_other() -> None:
    with scripted(always(OK)) as (server, blocking):
        transport = Awaiting(blocking.address)

        async def twice() -> None:
            for _ in range(2):
                assert (await send_async(transport, Request("GET", "/y"))).content == b"ok"

        async def last() -> None:
            await twice()
            await transport.close()

        for _ in range(2):
            asyncio.run(twice())
        asyncio.run(last())
        assert server.accepted == 3


def test_a_cancelled_request_gives_its_connection_up_and_the_next_one_works() -> None:
    asked, gone = threading.Event(), threading.Event()

    def talk(connection: socket.socket) -> None:
        if b" /x/slow " in read_request(connection):
            asked.set()
            assert connection.recv(1) == b""  # closed by the client
            gone.set()
        else:
            connection.sendall(OK)

    async def cancel(transport: Awaiting) -> None:
        task = asyncio.create_task(send_async(transport, Request("GET", "/slow")))
        assert await asyncio.to_thread(asked.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(gone.wait, 60)
        assert (await send_async(transport, Request("GET", "/y"))).content == b"ok"
        await transport.close()

    with scripted(talk, seconds=120.0) as (_, blocking):
        asyncio.run(cancel(Awaiting(blocking.address)))


def test_a_slow_reader_in_an_event_loop_holds_a_long_answer_back() -> None:
    line, count = b"x" * 1023 + b"\n", 64 * 1024
    sent = []

    def talk(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(line) * count))
        for at in range(0, count, 1024):
            connection.sendall(line * 1024)
            sent.append(at)

    async def read(transport: Awaiting) -> int:
        lines = await transport.stream(Stream(Request("GET", "/y"), lambda text: (len(text),)))
        assert await anext(lines) == len(line) - 1
        await asyncio.sleep(0.5)  # with nothing to hold it back, all of it would be here by then
        assert len(sent) < count // 1024 // 2
        return 1 + sum([1 async for _ in lines])

    with scripted(talk, seconds=120.0) as (_, blocking):
        transport = Awaiting(blocking.address)

        async def whole() -> int:
            try:
                return await read(transport)
            finally:
                await transport.close()

        assert asyncio.run(whole()) == count


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e9, float("inf")])
def test_a_timeout_may_be_longer_than_the_system_can_wait_at_once(seconds: float) -> None:
    read, write = socket.socketpair()
    with read, write:
        waiting = select.poll()
        waiting.register(read, select.POLLIN)
        write.send(b"x")
        assert waiting.poll(milliseconds_until(time.monotonic() + seconds)) == [(read.fileno(), select.POLLIN)]


def test_an_answer_whose_parts_have_another_type_is_no_answer_of_a_server() -> None:
    content = b'{"branch": "main", "manifest_version": 1, "tables": [], "schema": []}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)
    with scripted(always(answer)) as (_, transport), pytest.raises(ServerAnswerError, match="unexpected form"):
        transport.run(steps_of(ReadSnapshot()))


def test_an_error_whose_fields_have_another_type_is_reported_with_its_status() -> None:
    problem = '{"type": "MergeConflictError", "message": "", "hint": null, "fields": {"conflicts": [1]}}'
    content = f'{{"error": "odd", "problem": {problem}}}'.encode()
    answer = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)
    with scripted(always(answer)) as (_, transport), pytest.raises(ServerAnswerError, match="odd") as raised:
        transport.run(steps_of(ReadSnapshot()))
    assert raised.value.status == 409
