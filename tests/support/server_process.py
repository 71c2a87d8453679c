"""The real `omnigraph-server` as a process of its own, on a port that the kernel chooses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnigraph.commit.gates import Gate
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from tests.support.cli import Run

_LISTENING = "OMNIGRAPH_LISTEN_ADDR="
_PATIENCE = 300.0
PROGRAM = [sys.executable, "-m", "omnigraph.server"]
_DYING = """
import os, signal, sys
from omnigraph.commit import failpoints
from omnigraph.server.main import main
with failpoints.armed(sys.argv.pop(1), lambda: os.kill(os.getpid(), signal.SIGKILL)):
    main()
"""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that runs: where it is to be asked, and what it says."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    log_file: Path

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def log(self) -> str:
        return self.log_file.read_text()

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log().splitlines()]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; say how it ended."""
        self.process.send_signal(number)
        return self.process.wait(_PATIENCE)

    def connection(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=_PATIENCE)

    def raw(self, sent: bytes) -> bytes:
        """Send bytes as they are; give all that comes back until the server closes, or has answered."""
        with self.connection() as connection:
            connection.sendall(sent)
            return received(connection)


def received(connection: socket.socket) -> bytes:
    """Read an answer: to its length, or to the end of the connection."""
    found = b""
    while not _is_complete(found):
        try:
            part = connection.recv(65_536)
        except ConnectionResetError:  # it was closed while we were sending
            break
        if not part:
            break
        found += part
    return found


def _is_complete(found: bytes) -> bool:
    head, end, body = found.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(end) and bool(lengths) and len(body) >= int(lengths[0])


def environment_of(more: Mapping[str, str] | None) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OMNIGRAPH_")}
    return {**ours, **(more or {})}


def refused(*arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> Run:
    """Run a server that cannot start."""
    run = subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        cwd=cwd,
        env=environment_of(environment),
        timeout=_PATIENCE,
        check=False,
    )
    assert b"Traceback" not in run.stderr, run.stderr
    return Run(run.returncode, run.stdout.decode(), run.stderr.decode())


def dying(at: str) -> list[str]:
    """The program of a server that is killed when it reaches a failpoint."""
    return [sys.executable, "-c", _DYING, at]


@contextmanager
def served(
    *arguments: str | Path,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> Iterator[ServerProcess]:
    """Start a server in a folder, where its log is kept, and wait until it can be asked; it ends with the block."""
    log = folder / "server.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [*program, *arguments, "--bind", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env={**environment_of(environment), "TMPDIR": str(folder)},  # one that is killed leaves something there
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        assert line.startswith(_LISTENING), log.read_text()
        host, _, port = line.strip().removeprefix(_LISTENING).rpartition(":")
        yield ServerProcess(process, host, int(port), log)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(_PATIENCE)
        process.stdout.close()


@contextmanager
def writes_waiting(graph: str | Path) -> Iterator[None]:
    """While the block runs, writes of main wait for it: it holds the gate that they need."""
    with Store.at(Location.parse(graph)).gates.hold([Gate("branch:main")]):
        yield
