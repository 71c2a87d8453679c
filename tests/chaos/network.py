"""A bad network before the S3 server: a proxy of our own, in the place of toxiproxy, which no package registry has."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum, auto
from pathlib import Path

import omnigraph
from tests.chaos.graph import SCHEMA, Told, check
from tests.chaos.writers import started, write_some
from tests.support import s3

_WRITERS = 2
_PIECE = 65_536


class Fault(StrEnum):
    """What happens to a connection."""

    NONE = auto()
    CUT_REQUEST = auto()  # it ends within a request
    CUT_ANSWER = auto()  # it ends within an answer: what was asked for is done
    LOST_ANSWER = auto()  # it ends before an answer


_CHANCES = {Fault.NONE: 0.94, Fault.CUT_REQUEST: 0.02, Fault.CUT_ANSWER: 0.02, Fault.LOST_ANSWER: 0.02}


class Proxy:
    """Forwards connections to a server, slowly, and lets some of them fail."""

    def __init__(self, host: str, port: int, seed: int) -> None:
        self._target, self._chance = (host, port), random.Random(seed)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.pieces: Counter[Fault] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                for source, other, is_answer in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._forward, args=(source, other, is_answer), daemon=True).start()

    def _forward(self, source: socket.socket, other: socket.socket, is_answer: bool) -> None:  # noqa: FBT001
        """Forward what comes, piece by piece, to the end or to a fault."""
        with suppress(OSError):  # the other direction has ended the connection
            while piece := source.recv(_PIECE):
                fault = self._fault(is_answer)
                self.pieces[fault] += 1
                time.sleep(self._chance.uniform(0.0, 0.02))
                other.sendall(piece if fault is Fault.NONE else piece[: self._kept(fault, len(piece))])
                if fault is not Fault.NONE:
                    break
        for one in (source, other):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _fault(self, is_answer: bool) -> Fault:  # noqa: FBT001
        fault = self._chance.choices([*_CHANCES], [*_CHANCES.values()])[0]
        return Fault.NONE if is_answer == (fault is Fault.CUT_REQUEST) else fault

    def _kept(self, fault: Fault, length: int) -> int:
        return 0 if fault is Fault.LOST_ANSWER else self._chance.randrange(length)


def failing(_: Path, number: int) -> str:
    """Commit over a bad network from two processes. Errors must be ours, and every answer true."""
    with s3.running() as server, _environment(server.environment):
        uri = f"s3://{server.create_bucket()}/graph"
        omnigraph.init(uri, SCHEMA)
        proxy, told = Proxy(server.host, server.port, number), Told()
        endpoint = f"http://127.0.0.1:{proxy.port}"
        with _environment({"AWS_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL_S3": endpoint}):
            _write(uri, number, told)
        proxy.close()
        commits = check(uri, told)
    faults = ", ".join(f"{proxy.pieces[fault]} {fault}" for fault in Fault if fault is not Fault.NONE)
    assert proxy.pieces.total() > proxy.pieces[Fault.NONE], "no connection has failed"
    assert told.acknowledged, told
    return f"own proxy (no toxiproxy): {faults} of {proxy.pieces.total():,} pieces, {told}, {commits} commits"


def _write(uri: str, number: int, told: Told) -> None:
    with ExitStack() as stack:
        writers = [
            stack.enter_context(started(write_some, uri, f"n{at}", number // _WRITERS)) for at in range(_WRITERS)
        ]
        for _, connection in writers:
            told.listen(connection)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
