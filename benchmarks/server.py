"""What serving costs: a warm lookup over HTTP and embedded, more processes against one, and a cold command.

Run it as `python -m benchmarks.server`.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa

import omnigraph
from benchmarks.server_client import PEOPLE, QUERY, Raw, body_of
from omnigraph.api.operation import ARROW

SCHEMA = "node Person { name: String @key  age: I32? }  edge Knows: Person -> Person"
FRIENDS = "query f($name: String) { match { $p: Person { name: $name } $p knows $f } return { $f.name, $f.age } }"
EDGES = 50_000
TURNS, TIMES, COLD = 15, 150, 5
SECONDS, CONNECTIONS = 4.0, 4
WARM_LIMIT, COLD_LIMIT, SCALE_LIMIT = 3.5, 4.0, 1.5
COMPARISON = "for comparison"
BIN = Path(sys.executable).parent


def build(root: Path) -> str:
    names = pa.array([f"p{number}" for number in range(PEOPLE)])
    ends = np.random.default_rng(3).integers(0, PEOPLE, (2, EDGES))
    people = pa.table({"name": names, "age": pa.array(np.arange(PEOPLE) % 90, pa.int32())})
    knows = pa.table({"from": names.take(pa.array(ends[0])), "to": names.take(pa.array(ends[1]))})
    with omnigraph.init(root, SCHEMA) as graph:
        graph.load({"Person": people, "Knows": knows}, mode="append", engine="local")
        graph.optimize(engine="local")
    return str(root)


@contextmanager
def served(uri: str, workers: int) -> Iterator[str]:
    """A server as people start it; the log of requests goes where it is not read."""
    command = [sys.executable, "-m", "omnigraph.server", uri, "--bind", "127.0.0.1:0", "--unauthenticated"]
    started = [*command, "--workers", str(workers)]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(started, stdout=pipe, stderr=nowhere, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip().partition("=")[2]
        finally:
            server.terminate()


@contextmanager
def echo() -> Iterator[Callable[[bytes], bytes]]:
    """A process that says what it is told."""
    code = "import socket\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\n"
    code += "c = s.accept()[0]\nwhile data := c.recv(65536):\n    c.sendall(data)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as connection:

            def ask(data: bytes) -> bytes:
                connection.sendall(data)
                return connection.recv(65536)

            yield ask


FLOOR = """
import socket, sys, uvicorn
content = bytes.fromhex(sys.argv[1])
head = [(b"content-length", b"%d" % len(content)), (b"content-type", b"application/vnd.apache.arrow.stream")]

async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": content})

listening = socket.create_server(("127.0.0.1", 0), backlog=64)
print("127.0.0.1:%d" % listening.getsockname()[1], flush=True)
config = uvicorn.Config(app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
uvicorn.Server(config).run(sockets=[listening])
"""


@contextmanager
def floor(content: bytes) -> Iterator[str]:
    """uvicorn with an application that reads a request, answers with these bytes, and does nothing else."""
    command = [sys.executable, "-c", FLOOR, content.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def median(task: Callable[[int], Any], start: int) -> float:
    times = []
    for number in range(start, start + TIMES):
        begun = time.perf_counter()
        task(number)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def in_turns(tasks: dict[str, Callable[[int], Any]]) -> dict[str, float]:
    """Each in turn, so that whatever disturbs the machine disturbs all; of each the turn that was disturbed least.

    Where cores are shared, to wake one that sleeps may take longer than all that is measured here, and only what is
    served sleeps. The first turn only warms up.
    """
    found: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(TURNS + 1):
        for name, task in tasks.items():
            found[name].append(median(task, turn * TIMES))
    return {name: min(times[1:]) for name, times in found.items()}


def report(what: str, ratio: float, limit: str, *, good: bool, detail: str) -> bool:
    verdict = "" if limit == COMPARISON else "met" if good else "MISSED"
    print(f"{verdict:<6} {what:<60} {ratio:5.2f} ({limit}; {detail})")
    return good


def warm(uri: str) -> list[bool]:
    """One query after the other: embedded, through our client, through a plain one, through a bare socket.

    Beside them two floors: our client and uvicorn with the bytes of one answer and no work in between, and an echo of
    as many bytes, the least that it takes to hear from another process.
    """
    with ExitStack() as open_, omnigraph.open(uri, read_only=True) as graph:
        address, ask_echo = open_.enter_context(served(uri, 1)), open_.enter_context(echo())
        plain = httpx.Client(base_url=f"http://{address}", headers={"Content-Type": "application/json"})
        content = plain.post("/query", content=body_of(77), headers={"Accept": ARROW}).content
        idle = omnigraph.connect(f"http://{open_.enter_context(floor(content))}")
        remote, bare = omnigraph.connect(f"http://{address}"), Raw(address)
        assert idle.query(QUERY).rows == remote.query(QUERY, {"name": "p77"}).rows
        assert graph.query(QUERY, {"name": "p77"}).rows == json.loads(bare.ask(body_of(77)))["rows"]
        assert graph.query(FRIENDS, {"name": "p77"}).rows == remote.query(FRIENDS, {"name": "p77"}).rows
        found = in_turns(
            {
                "embedded": lambda n: graph.query(QUERY, {"name": f"p{n}"}).rows,
                "client": lambda n: remote.query(QUERY, {"name": f"p{n}"}).rows,
                "httpx": lambda n: plain.post("/query", content=body_of(n)).json()["rows"],
                "socket": lambda n: json.loads(bare.ask(body_of(n)))["rows"],
                "floor": lambda n: idle.query(QUERY, {"name": f"p{n}"}).rows,
                "echo": lambda n: ask_echo(body_of(n)),
                "friends, embedded": lambda n: graph.query(FRIENDS, {"name": f"p{n}"}).rows,
                "friends, client": lambda n: remote.query(FRIENDS, {"name": f"p{n}"}).rows,
            }
        )
        for connection in (remote, idle, plain, bare):
            connection.close()
    return [
        compared("a node by its key, our client / embedded", found, "client", "embedded"),
        compared("its neighbours, our client / embedded", found, "friends, client", "friends, embedded"),
        compared("a node by its key, httpx / embedded", found, "httpx", "embedded", None),
        compared("a node by its key, a bare socket / embedded", found, "socket", "embedded", None),
        compared("the same bytes from a bare ASGI app, our client / embedded", found, "floor", "embedded", None),
        compared("a node by its key / the same bytes, our client", found, "client", "floor", None),
        compared("an echo of the question / embedded", found, "echo", "embedded", None),
    ]


def compared(what: str, found: dict[str, float], ours: str, against: str, limit: float | None = WARM_LIMIT) -> bool:
    ratio = found[ours] / found[against]
    detail = f"{found[ours] * 1e3:.2f} ms, {against} {found[against] * 1e3:.2f} ms"
    if limit is None:
        return report(what, ratio, COMPARISON, good=True, detail=detail)
    return report(what, ratio, f"at most {limit}", good=ratio <= limit, detail=detail)


def throughput(uri: str, workers: int) -> tuple[float, float]:
    """Answers a second, and which part of the cores those who asked took for themselves."""
    load = [sys.executable, str(Path(__file__).with_name("server_client.py"))]
    with served(uri, workers) as address:
        for seconds in (1.0, SECONDS):  # the first only warms up
            asking = [
                subprocess.Popen([*load, address, str(CONNECTIONS), str(seconds)], stdout=subprocess.PIPE)
                for _ in range(2)
            ]
            told = [json.loads(child.communicate()[0]) for child in asking]
    busy = sum(one["busy"] for one in told) / SECONDS / (os.cpu_count() or 1)
    return sum(one["asked"] / one["seconds"] for one in told), busy


def scaling(uri: str) -> list[bool]:
    (one, _), (two, busy), (again, _) = (throughput(uri, workers) for workers in (1, 2, 1))
    ratio = two / max(one, again)
    detail = f"{max(one, again):,.0f} and {two:,.0f} a second; those who ask take {busy:.0%} of the cores"
    limit = f"at least {SCALE_LIMIT}"
    return [report("answers a second, 2 processes / 1", ratio, limit, good=ratio >= SCALE_LIMIT, detail=detail)]


def seconds(command: Sequence[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def cold(uri: str) -> list[bool]:
    ask = [str(BIN / "omnigraph"), "query", "--store", uri, "-e", QUERY, "--params", '{"name": "p77"}']
    load = [sys.executable, "-c", "import pyarrow, lance"]
    for command in (ask, load):
        seconds(command)  # so that files are in memory, and modules compiled
    pairs = [(seconds(ask), seconds(load)) for _ in range(COLD)]
    ours, floor = (statistics.median(side) for side in zip(*pairs, strict=True))
    detail = f"{ours:.2f} s, importing takes {floor:.2f} s"
    limit = f"at most {COLD_LIMIT}"
    ratio = ours / floor
    what = "a cold `omnigraph query` / importing pyarrow and lance"
    return [report(what, ratio, limit, good=ratio <= COLD_LIMIT, detail=detail)]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        uri = build(Path(directory) / "graph")
        good = [*cold(uri), *warm(uri), *scaling(uri)]
    raise SystemExit(not all(good))


if __name__ == "__main__":
    main()
