"""Steps for tests of the executors. They are here because an executor must be able to import them."""

from __future__ import annotations

import os
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import omnigraph
from omnigraph.core.executor import Parcel
from omnigraph.errors import ConstraintError, StorageFullError, Violation
from omnigraph.lang import Source, compile_schema

_PATIENCE = 900


@dataclass(frozen=True, slots=True)
class Counted:
    number: int
    rows: int


def squared(number: int) -> int:
    return number * number


def counted(number: int) -> Counted:
    return Counted(number, 10 * number)


@dataclass(frozen=True, slots=True)
class OnceTask:
    marker: str
    number: int


def fails_once(task: OnceTask) -> int:
    """Leave a mark at the first attempt, and fail."""
    try:
        Path(task.marker).touch(exist_ok=False)
    except FileExistsError:
        return task.number
    raise StorageFullError("full, this once", path=task.marker, operation="write")


class StubbornError(Exception):
    """Can be made in a way that pickle does not know."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


def fails(kind: str) -> None:
    violation = Violation("unique", "Person", "ada", ("name",), "taken", 7)
    errors = {
        "typed": ConstraintError("broken", hint="mend it", place=None, violations=(violation,) * 2_000),
        "plain": KeyError("missing"),
        "stubborn": StubbornError(reason="no way"),
    }
    raise errors[kind]


def fails_at_length(length: int) -> None:
    raise ValueError("x" * length)


def dies(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def variable(name: str) -> str | None:
    return os.environ.get(name)


def libraries_of_the_daemon(_: int) -> tuple[bool, bool]:
    """Tell whether lance is loaded in this worker, which uses it, and in the daemon that it was forked from."""
    import lance  # noqa: PLC0415

    assert lance.__version__
    return _has_lance(os.getpid()), _has_lance(os.getppid())


def _has_lance(process: int) -> bool:
    return "/lance/" in Path(f"/proc/{process}/maps").read_text(encoding="utf-8")


def types_of(schema: str) -> list[str]:
    """Compile a schema, which needs the grammar that comes with the package."""
    return sorted(compile_schema(Source(schema)).nodes)


def home_of_the_package(_: int) -> str:
    return omnigraph.__file__


@dataclass(frozen=True, slots=True)
class MeetingTask:
    directory: str
    number: int


def meets(task: MeetingTask) -> tuple[int, str]:
    """Say that it has begun, and wait until it is told to go on."""
    token = uuid.uuid4().hex
    directory = Path(task.directory)
    (directory / f"{token}.tmp").write_text(str(os.getpid()))
    (directory / f"{token}.tmp").rename(directory / f"{token}.begun")
    deadline = time.monotonic() + _PATIENCE
    while not (directory / "go").exists():
        assert time.monotonic() < deadline, "nobody came"
        time.sleep(0.02)
    return task.number, token


def meets_the_first(task: MeetingTask | OnceTask) -> int:
    """Wait, if it is a meeting; be done at once otherwise."""
    return meets(task)[0] if isinstance(task, MeetingTask) else task.number


def meets_or_fails(task: MeetingTask | str) -> tuple[int, str]:
    """Wait, if it is a meeting; fail otherwise, but not before somebody waits."""
    if isinstance(task, MeetingTask):
        return meets(task)
    begun(Path(task), 1)
    fails("typed")
    raise AssertionError


def begun(directory: Path, count: int) -> list[int]:
    """Wait until so many tasks have begun; return the processes they run in."""
    deadline = time.monotonic() + _PATIENCE
    while len(found := sorted(directory.glob("*.begun"))) < count:
        assert time.monotonic() < deadline, f"only {len(found)} tasks have begun"
        time.sleep(0.02)
    return [int(file.read_text()) for file in found]


def ended(processes: list[int], at_least: int = 1, within: float = _PATIENCE) -> None:
    """Wait until so many of the processes are no more."""
    deadline = time.monotonic() + within
    while sum(map(is_running, processes)) > len(processes) - at_least:
        assert time.monotonic() < deadline, f"too many of {processes} are still there"
        time.sleep(0.02)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")


# Parcels


def sends(number: int) -> tuple[int, list[Parcel]]:
    """Send a parcel of section 1 to each of three shares, and one of section 2."""
    shares = [Parcel(1, share, f"{number} to {share}".encode()) for share in range(3)]
    return number * 10, [*shares, Parcel(2, 0, b"x" * number)]


@dataclass(frozen=True)
class SendingTask:
    directory: str
    number: int


def sends_after_a_failure(task: SendingTask) -> tuple[str, list[Parcel]]:
    """Name the attempt in the result and in the parcel. The first attempt of odd tasks fails after its work."""
    attempt = uuid.uuid4().hex
    mark = Path(task.directory) / str(task.number)
    first = not mark.exists()
    mark.touch()
    if first and task.number % 2:
        raise ConnectionError("once")
    return attempt, [Parcel(1, task.number % 3, attempt.encode())]


def receives(task: str, parcels: list[Parcel]) -> tuple[str, list[tuple[int, int, bytes, int]]]:
    return task, [(one.section, one.share, one.data, one.sender) for one in parcels]


@dataclass(frozen=True, slots=True)
class SpreadTask:
    directory: str
    shares: int


def sends_to_all(task: SpreadTask) -> tuple[str, list[Parcel]]:
    """Name the attempt in the result and in a parcel for each share; leave a mark."""
    attempt = uuid.uuid4().hex
    (Path(task.directory) / f"{attempt}.sent").touch()
    return attempt, [Parcel(1, share, attempt.encode()) for share in range(task.shares)]


def receives_and_loses(mark: str, parcels: list[Parcel]) -> list[tuple[int, str]]:
    """Receive; the first to do so deletes all rows and shuffle files of Spark, and those beside it wait for that."""
    try:
        Path(f"{mark}.first").touch(exist_ok=False)
        for directory in os.environ["SPARK_LOCAL_DIRS"].split(","):  # those of this executor; Spark sets it for workers
            for kind in ("rdd_*", "shuffle_*"):
                for file in Path(directory).rglob(kind):
                    file.unlink(missing_ok=True)
        Path(mark).touch()
    except FileExistsError:
        deadline = time.monotonic() + _PATIENCE
        while not Path(mark).exists():
            assert time.monotonic() < deadline, "the files are not lost"
            time.sleep(0.02)
    return [(one.sender, one.data.decode()) for one in parcels]
