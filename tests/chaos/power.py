"""Power cuts of a real file system: ext4 on a loop device, shut down while a writer commits."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import omnigraph
from tests.chaos.graph import SCHEMA, Told, check
from tests.chaos.skipped import SkippedError
from tests.chaos.writers import started, write_for_ever

_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN: from now on nothing reaches the device
_NO_LOG_FLUSH = 2  # not even what is in the journal
_SIZE = 512 * 1024 * 1024
_LONGEST = 2.0  # seconds before a cut: several commits
_PATIENCE = 120.0


def cuts(directory: Path, number: int) -> str:
    """Cut the power again and again, on one file system that is mounted again each time."""
    image, place = directory / "disk.img", directory / "disk"
    _make(image, place)
    uri, told, chance, empty = str(place / "graph"), Told(), random.Random(number), 0
    with _mounted(image, place):
        omnigraph.init(uri, SCHEMA)
    for cut in range(number):
        with _mounted(image, place), started(write_for_ever, uri, f"p{cut}") as (process, connection):
            connection.poll(_PATIENCE)  # it has begun to write
            time.sleep(chance.uniform(0.0, _LONGEST))
            _cut_power(place)
            process.kill()
            process.join()
            told.listen(connection)
        with _mounted(image, place):
            empty += sum(path.stat().st_size == 0 for path in Path(uri).rglob("*") if path.suffix != ".lock")
            commits = check(uri, told, may_be_there=told.tried)
    return f"{number} cuts on ext4, {told}, {commits} commits, {empty} empty files found after the cuts"


def _make(image: Path, place: Path) -> None:
    if os.geteuid() != 0:
        raise SkippedError("needs root, to mount a file system")
    if shutil.which("mkfs.ext4") is None:
        raise SkippedError("needs mkfs.ext4 (package e2fsprogs)")
    with image.open("wb") as file:
        file.truncate(_SIZE)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    place.mkdir()
    try:
        with _mounted(image, place):
            pass
    except subprocess.CalledProcessError as error:
        raise SkippedError(f"needs loop devices: {error.stderr.decode().strip()}") from error


@contextmanager
def _mounted(image: Path, place: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "loop", image, place], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True, capture_output=True)


def _cut_power(place: Path) -> None:
    opened = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(opened, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(opened)
