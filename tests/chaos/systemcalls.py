"""Failing system calls: a writer under libfiu, whose calls of the C library fail at random."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import omnigraph
from tests.chaos.graph import SCHEMA, Told, add, check
from tests.chaos.skipped import SkippedError

_ROOT = Path(__file__).parents[2]
_ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EACCES, errno.EINTR)
# What a graph on a local disk is written and read with. Not `write`: the runtime of Lance also wakes its threads with
# it, and ends the process if it cannot. No disk brings that about.
_CALLS = (
    "posix/io/oc/open",
    "posix/io/rw/pwrite",
    "posix/io/rw/read",
    "posix/io/rw/pread",
    "posix/io/sync/fsync",
    "posix/io/dir/rename",
    "posix/io/dir/unlink",
    "posix/io/dir/opendir",
)
_WRITER = ("fiu-run", "-x", "-f", "", sys.executable, "-m", __name__)
_COMMITS = 25  # of each process
_PATIENCE = 240  # seconds
_CHANCE = 0.05  # of a call to fail: some commits fail, and some do not


def failing(directory: Path, number: int) -> str:
    """Make commits while calls fail. Each error must be one of ours, and each answer true."""
    if shutil.which("fiu-run") is None:
        raise SkippedError("needs fiu-run (package fiu-utils)")
    uri = str(directory / "graph")
    omnigraph.init(uri, SCHEMA)
    told, died = Told(), 0
    for seed, at in enumerate(range(0, number, _COMMITS)):
        died += _hear_writer(uri, seed, min(_COMMITS, number - at), told)
        check(uri, told, may_be_there=told.tried - told.answered)
    assert told.acknowledged, told
    assert told.errors or told.unknown, "no call has failed"
    return f"{len(_CALLS)} calls that fail with {_CHANCE:.0%}, {told}, {died} processes aborted by their runtime"


def _hear_writer(uri: str, seed: int, number: int, told: Told) -> bool:
    """Hear what a writer was told; return whether the runtime of Lance ended it."""
    command = [*_WRITER, uri, str(seed), str(number)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        told.hear(tuple(json.loads(line)))
    assert done.returncode in {0, -signal.SIGABRT}, f"seed {seed}: {done.returncode}: {done.stderr[-2000:]}"
    return done.returncode != 0


def _write(uri: str, seed: int, number: int) -> None:
    graph, chance = omnigraph.open(uri), random.Random(seed)
    warm = f"f{seed}-warm"  # so that nothing is imported while calls fail
    _report("try", warm)
    _report(*add(graph, warm))
    for at in range(number):
        name = f"f{seed}-{at}"
        _report("try", name)
        with _calls_fail(chance):
            answer = add(graph, name)
        _report(*answer)


def _report(kind: str, name: str) -> None:
    print(json.dumps((kind, name)), flush=True)


@contextmanager
def _calls_fail(chance: random.Random) -> Iterator[None]:
    library = ctypes.CDLL("libfiu.so.0")
    library.fiu_enable_random.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_uint,
        ctypes.c_float,
    ]
    call, number = chance.choice(_CALLS).encode(), chance.choice(_ERRORS)
    library.fiu_enable_random(call, 1, number, 0, _CHANCE)
    try:
        yield
    finally:
        library.fiu_disable(call)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)  # a process that hangs says where
    _write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # without the ends of libraries, which are not the question here
