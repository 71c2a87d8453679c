"""Group commit: eight writers on one branch against one, on a disk and on an object store at 30 ms a request."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import omnigraph
from omnigraph.graph import Graph
from omnigraph.storage.observe import counted
from tests.support.s3 import S3Server, running

SCHEMA = "node Person { name: String @key  age: I32? }"
INSERT = "query q($name: String) { insert Person { name: $name } }"
WRITERS = 8
DELAY = 0.030
RATIO_LIMIT, RATE_LIMIT = 1.5, 4.0
SETTING = "OMNIGRAPH_GROUP_COMMIT"


# Writers -------------------------------------------------------------------------------------------


def run(graph: Graph, writers: int, commits: int) -> tuple[float, float, float]:
    """Insert a person with each commit; return commits a second, requests a commit and the mean size of a group."""
    before = graph.commits()[0]

    def work(writer: int) -> None:
        for _ in range(commits):
            graph.mutate(INSERT, {"name": f"{writer}-{uuid.uuid4().hex}"})

    with counted() as requests, ThreadPoolExecutor(writers) as pool:
        start = time.perf_counter()
        list(pool.map(work, range(writers)))
        seconds = time.perf_counter() - start
    made = writers * commits
    swaps = graph.commits()[0].manifest_version - before.manifest_version
    return made / seconds, requests.total / made, made / swaps


def compared(name: str, uri: str, commits: int, durability: str | None = None) -> tuple[float, float]:
    """Print one writer and eight, without grouping and with it; return the ratio and the rate of eight.

    Each gets a graph of its own and makes the same number of commits.
    """
    rates = []
    for writers, setting in ((1, "on"), (WRITERS, "off"), (WRITERS, "on")):
        os.environ[SETTING] = setting
        graph = omnigraph.init(f"{uri}-{writers}-{setting}", SCHEMA, durability=durability)
        run(graph, writers, 8 // writers)
        rate, requests, group = run(graph, writers, commits * WRITERS // writers)
        rates.append(rate)
        print(
            f"{name:<22} {writers} writers, grouping {setting:<4}{rate:7.1f} commits/s {requests:6.1f} requests each, "
            f"{group:4.1f} commits a swap"
        )
    print(f"{name:<22} eight against one {rates[2] / rates[0]:19.2f}        (at least {RATIO_LIMIT})")
    return rates[2] / rates[0], rates[2]


def folded(name: str, uri: str) -> None:
    """Print what eight rows cost as the members of groups, and as one commit that holds them all."""
    graph = omnigraph.init(uri, SCHEMA)
    run(graph, WRITERS, 2)
    rate, requests, _ = run(graph, WRITERS, 3)
    with counted() as together:
        start = time.perf_counter()
        for _ in range(3):
            records = [{"type": "Person", "data": {"name": uuid.uuid4().hex}} for _ in range(WRITERS)]
            graph.load(records, mode="merge", engine="local")
        seconds = time.perf_counter() - start
    print(
        f"{name:<22} folded into one commit {3 * WRITERS / seconds:9.1f} rows/s    {together.total / 3 / WRITERS:6.1f} "
        f"requests each; with commits of their own {rate:.1f} and {requests:.1f}"
    )


# An object store that takes its time ---------------------------------------------------------------


@contextmanager
def delayed(server: S3Server, seconds: float) -> Iterator[S3Server]:
    """Put a proxy in front of a server, in a process of its own, that waits before it passes a request on."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_proxy, args=(server.host, server.port, seconds, there), daemon=True)
    process.start()
    try:
        yield S3Server("127.0.0.1", here.recv())
    finally:
        process.terminate()
        process.join()


def _proxy(host: str, port: int, seconds: float, ready: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.start_server(partial(_pass_on, host, port, seconds), "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


async def _pass_on(
    host: str, port: int, seconds: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Pass on one connection. What a client sends after an answer is a new request."""
    theirs, ours = await asyncio.open_connection(host, port)
    answered = True

    async def ask() -> None:
        nonlocal answered
        while data := await reader.read(2**16):
            if answered:
                await asyncio.sleep(seconds)
                answered = False
            ours.write(data)
            await ours.drain()
        ours.close()

    async def answer() -> None:
        nonlocal answered
        while data := await theirs.read(2**16):
            answered = True
            writer.write(data)
            await writer.drain()
        writer.close()

    await asyncio.gather(ask(), answer(), return_exceptions=True)


def main() -> int:
    failed = False
    with tempfile.TemporaryDirectory() as root:
        for durability in ("off", "full"):
            ratio, _ = compared(f"disk, durability {durability}", str(Path(root) / durability), 20, durability)
            failed |= ratio < RATIO_LIMIT
        folded("disk", str(Path(root) / "folded"))
    with running() as server:
        for seconds in (0.0, DELAY):
            with delayed(server, seconds) as proxy:
                os.environ.update(proxy.environment)
                name = f"object store, {seconds * 1e3:.0f} ms"
                bucket = server.create_bucket()
                ratio, rate = compared(name, f"s3://{bucket}/graph", 6 if seconds else 10)
                folded(name, f"s3://{bucket}/folded")
                failed |= ratio < RATIO_LIMIT or (bool(seconds) and rate < RATE_LIMIT)
    print(f"eight writers at 30 ms a request must make {RATE_LIMIT} commits a second")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
