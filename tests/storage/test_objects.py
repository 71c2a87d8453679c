import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import obstore
import pytest

from omnigraph.core.location import Location
from omnigraph.errors import StorageDeniedError, StorageError, StorageFullError
from omnigraph.storage import observe
from omnigraph.storage.objects import ObjectStore, Version, storage_error
from tests.support.s3 import S3Server

_RACERS = 16
_NOBODY = 65534

Operation = Callable[[ObjectStore, str], object]
_READS: dict[str, Operation] = {
    "read": lambda objects, name: objects.read(name),
    "read_if_exists": lambda objects, name: objects.read_if_exists(name),
    "read_versioned": lambda objects, name: objects.read_versioned(name),
    "list": lambda objects, name: objects.list(name),
    "exists": lambda objects, name: objects.exists(name),
}
_WRITES: dict[str, Operation] = {
    "write": lambda objects, name: objects.write(name, b"new"),
    "create": lambda objects, name: objects.create(name, b"new"),
    "delete": lambda objects, name: objects.delete(name),
}
_ALL = {**_READS, **_WRITES}
_REPLACE: dict[str, Operation] = {"replace": lambda objects, name: objects.replace(name, b"new", Version('"0"'))}


def _at(uri: object) -> ObjectStore:
    return ObjectStore(Location.parse(str(uri)))


def _check_failure(failure: StorageError, path: str) -> None:
    """An error names the place, what was tried and the remedy, and is one short line."""
    assert failure.path == path
    assert failure.operation
    assert failure.hint
    assert path in failure.message
    assert "\n" not in failure.message
    assert len(failure.message) < len(path) + 100


def _race(step: Callable[[int], object]) -> list[int]:
    """Have all racers take the step at once; return those who succeeded."""
    start = threading.Barrier(_RACERS)

    def racer(number: int) -> bool:
        start.wait()
        return bool(step(number))

    with ThreadPoolExecutor(_RACERS) as pool:
        return [number for number, won in enumerate(pool.map(racer, range(_RACERS))) if won]


# Reading and writing


@pytest.mark.parametrize("data", [b"", b"{}", bytes(range(256)) * 5_000])
@pytest.mark.parametrize("name", ["a.json", "__recovery/a.json", "a/b/c", "a b/ü%41+=.json", "#1/a#b.1"])
def test_what_was_written_is_read(objects: ObjectStore, name: str, data: bytes) -> None:
    objects.write(name, b"old and longer than some")
    objects.write(name, data)

    assert objects.read(name) == objects.read_if_exists(name) == data
    found = objects.read_versioned(name)
    assert found is not None
    assert found[0] == data


@pytest.mark.parametrize("name", ["a.json", "no/such/a.json"])
def test_absence_is_an_answer_where_it_was_asked_for_and_an_error_elsewhere(
    objects: ObjectStore, root_uri: str, name: str
) -> None:
    assert objects.read_if_exists(name) is None
    assert objects.read_versioned(name) is None
    assert not objects.exists(name)
    with pytest.raises(StorageError, match="does not exist") as failure:
        objects.read(name)
    _check_failure(failure.value, f"{root_uri}/{name}")


def test_a_reader_sees_the_old_object_or_the_new_one(objects: ObjectStore) -> None:
    versions = [b"a" * 100_000, b"b" * 200_000]

    def write_alternately() -> None:
        for turn in range(1, 60):
            objects.write("a", versions[turn % 2])

    objects.write("a", versions[0])

    with ThreadPoolExecutor(2) as pool:
        writer = pool.submit(write_alternately)
        seen = {objects.read("a")}
        while not writer.done():
            seen.add(objects.read("a"))
        writer.result()

    assert seen <= set(versions)
    assert objects.read("a") == versions[1]


def test_an_object_is_created_once(objects: ObjectStore) -> None:
    assert objects.create("a/b", b"first")
    assert not objects.create("a/b", b"second")

    assert objects.read("a/b") == b"first"
    objects.delete("a/b")
    assert objects.create("a/b", b"third")


@pytest.mark.slow
def test_of_sixteen_creators_one_succeeds_in_every_round(objects: ObjectStore) -> None:
    for turn in range(50):
        name = f"claims/{turn}"
        winners = _race(lambda number, name=name: objects.create(name, b"%d" % number * 1_000))  # type: ignore[misc]

        assert len(winners) == 1, turn
        assert objects.read(name) == b"%d" % winners[0] * 1_000


def test_what_is_deleted_is_gone_and_may_be_deleted_again(objects: ObjectStore) -> None:
    objects.write("a/b", b"1")
    objects.write("a/c", b"1")

    objects.delete("a/b")
    objects.delete("a/b")
    objects.delete("no/such")

    assert objects.read_if_exists("a/b") is None
    assert objects.list("a") == ["c"]


def test_a_listing_has_the_objects_directly_below_in_order(objects: ObjectStore) -> None:
    for name in ["d/c", "d/a", "d/ü b%41", "d/sub/x", "dd", "d.json"]:
        objects.write(name, b"1")

    assert objects.list("d") == ["a", "c", "ü b%41"]
    assert objects.list("") == ["d.json", "dd"]
    assert objects.list("no/such") == []
    assert objects.list("dd") == []


def test_unfinished_files_of_a_dead_writer_are_never_seen(objects: ObjectStore, root_uri: str) -> None:
    location = Location.parse(root_uri)
    for name in ("d/a.json#1", "d/a.json#2", "only/a.json#12"):
        if location.is_local:
            path = Path(location.child(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"half")
        else:
            obstore.put(objects._store, f"{location.key}/{name}", b"half")

    objects.write("d/a.json", b"whole")
    assert objects.create("d/b#x.json", b"whole")

    assert objects.list("d") == ["a.json", "b#x.json"]
    assert objects.read("d/a.json") == b"whole"
    assert objects.list("only") == []


def test_a_name_or_anything_below_it_exists(objects: ObjectStore) -> None:
    assert not objects.exists("")
    objects.write("nodes/abc/data/x", b"1")

    assert all(map(objects.exists, ["", "nodes", "nodes/abc", "nodes/abc/data/x"]))
    assert not any(map(objects.exists, ["node", "nodes/ab", "nodes/abc/data/x1", "data"]))


def test_an_empty_directory_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "nodes" / "abc").mkdir(parents=True)

    assert not _at(tmp_path).exists("")
    assert not _at(tmp_path).exists("nodes")
    assert _at(tmp_path).list("nodes") == []


# Compare and swap


def test_only_the_version_that_was_read_is_replaced(s3_uri: str) -> None:
    objects = _at(s3_uri)
    objects.write("lease", b"1")
    first = objects.read_versioned("lease")
    assert first is not None

    assert objects.replace("lease", b"2", first[1])
    assert not objects.replace("lease", b"3", first[1])
    assert objects.read("lease") == b"2"

    objects.delete("lease")
    assert not objects.replace("lease", b"4", first[1])
    assert not objects.exists("lease")


def test_of_sixteen_who_replace_one_version_one_succeeds(s3_uri: str) -> None:
    objects = _at(s3_uri)
    objects.write("lease", b"start")
    for turn in range(10):
        found = objects.read_versioned("lease")
        assert found is not None
        version, bodies = found[1], [b"%d:%d" % (turn, number) for number in range(_RACERS)]
        winners = _race(lambda number, v=version, b=bodies: objects.replace("lease", b[number], v))  # type: ignore[misc]

        assert len(winners) == 1, turn
        assert objects.read("lease") == bodies[winners[0]]


def test_a_file_system_is_not_asked_to_compare_and_swap(tmp_path: Path) -> None:
    objects = _at(tmp_path)
    objects.write("lease", b"1")

    with pytest.raises(AssertionError, match="compare-and-swap"):
        objects.replace("lease", b"2", Version(""))
    assert objects.read("lease") == b"1"


# Failures


@pytest.mark.parametrize("operation", [*_ALL, *_REPLACE])
def test_a_refusal_of_the_server_is_an_error_never_absence(s3_uri: str, operation: str) -> None:
    with pytest.raises(StorageDeniedError, match="not permitted") as failure:
        {**_ALL, **_REPLACE}[operation](_at(s3_uri), "denied/a")

    _check_failure(failure.value, f"{s3_uri}/denied/a")


def test_an_object_that_may_be_listed_but_not_read_is_an_error_never_absence(s3_uri: str) -> None:
    for operation in ("read_if_exists", "exists"):
        with pytest.raises(StorageDeniedError):
            _READS[operation](_at(s3_uri), "unreadable/a")
    assert _at(s3_uri).list("unreadable") == []


@contextmanager
def _unprivileged() -> Iterator[None]:
    """Permissions do not hold for root, so be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that nobody can reach, as opposed to `tmp_path`; its subdirectory `closed` nobody can use."""
    with tempfile.TemporaryDirectory() as name:
        closed = Path(name) / "closed"
        closed.mkdir()
        (closed / "a").write_bytes(b"old")
        Path(name).chmod(0o755)
        yield Path(name)
        closed.chmod(0o755)


@pytest.mark.parametrize("operation", _ALL)
def test_a_directory_that_may_not_be_entered_is_an_error_never_absence(public: Path, operation: str) -> None:
    (public / "closed").chmod(0)

    with _unprivileged(), pytest.raises(StorageDeniedError, match="not permitted") as failure:
        _ALL[operation](_at(public), "closed/a")

    _check_failure(failure.value, f"{public}/closed/a")


@pytest.mark.parametrize("name", ["closed", "closed/sub"])
def test_a_directory_that_may_not_be_listed_is_an_error_never_empty(public: Path, name: str) -> None:
    (public / "closed").chmod(0)

    for operation in ("list", "exists"):
        with _unprivileged(), pytest.raises(StorageDeniedError):
            _ALL[operation](_at(public), name)


@pytest.mark.parametrize(
    "operation, name",
    [("write", "closed/a"), ("create", "closed/b"), ("write", "closed/sub/a"), ("delete", "closed/a")],
)
def test_a_directory_that_may_not_be_written_keeps_what_it_has(public: Path, operation: str, name: str) -> None:
    (public / "closed").chmod(0o555)

    with _unprivileged(), pytest.raises(StorageDeniedError) as failure:
        _WRITES[operation](_at(public), name)

    _check_failure(failure.value, f"{public}/{name}")
    assert {path.name: path.read_bytes() for path in (public / "closed").iterdir()} == {"a": b"old"}


@pytest.mark.parametrize("operation", _ALL)
@pytest.mark.parametrize("root", ["file", "file/graph"])
def test_a_file_where_a_directory_should_be_is_an_error_never_absence(
    tmp_path: Path, root: str, operation: str
) -> None:
    (tmp_path / "file").write_bytes(b"in the way")

    with pytest.raises(StorageError, match="Not a directory") as failure:
        _ALL[operation](_at(tmp_path / root), "d/a")

    assert type(failure.value) is StorageError
    _check_failure(failure.value, f"{tmp_path}/{root}/d/a")
    assert (tmp_path / "file").read_bytes() == b"in the way"


def test_a_directory_where_a_file_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    for operation in ("write", "delete"):
        with pytest.raises(StorageError, match="Is a directory") as failure:
            _WRITES[operation](_at(tmp_path), "a")
        _check_failure(failure.value, f"{tmp_path}/a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("operation", [*_WRITES, *_REPLACE])
def test_a_server_without_space_says_so(s3_uri: str, operation: str) -> None:
    with pytest.raises(StorageFullError, match="no space is left") as failure:
        {**_WRITES, **_REPLACE}[operation](_at(s3_uri), "full/a")

    _check_failure(failure.value, f"{s3_uri}/full/a")


_FILL = """
import sys
from pathlib import Path
from omnigraph.errors import StorageFullError
from omnigraph.core.location import Location
from omnigraph.storage.objects import ObjectStore
objects = ObjectStore(Location.parse(sys.argv[1]))
objects.write("a", b"old")
for change in (objects.write, objects.create):
    for name in "a", "d/b":
        try:
            print(change(name, bytes(2**20)))
        except StorageFullError as error:
            print(error.message)
print(objects.read("a"), [path.name for path in Path(sys.argv[1]).rglob("*") if path.is_file()])
"""
_MOUNT_A_SMALL_DISK = 'mount -t tmpfs -o size=64k none "$0"; exec "$@"'


def test_a_disk_without_space_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    disk = str(tmp_path)
    on_it = ["unshare", "--map-root-user", "--mount", "sh", "-ec", _MOUNT_A_SMALL_DISK, disk]
    if not shutil.which("unshare") or subprocess.run([*on_it, "true"], check=False).returncode:
        pytest.skip("a small disk can be mounted only where user namespaces are allowed")

    run = subprocess.run([*on_it, sys.executable, "-c", _FILL, disk], check=True, capture_output=True, text=True)

    assert run.stdout.splitlines() == [
        f"cannot write {disk}/a: no space is left",
        f"cannot write {disk}/d/b: no space is left",
        f"cannot create {disk}/a: no space is left",
        f"cannot create {disk}/d/b: no space is left",
        "b'old' ['a']",
    ]


@pytest.mark.parametrize(
    "number, kind",
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EACCES, StorageDeniedError),
        (errno.EROFS, StorageDeniedError),
        (errno.EIO, StorageError),
    ],
)
def test_an_error_of_the_operating_system_is_sorted_by_its_number(number: int, kind: type[StorageError]) -> None:
    failure = storage_error(OSError(number, os.strerror(number)), "write", "/graphs/one/a")

    assert type(failure) is kind
    _check_failure(failure, "/graphs/one/a")


@pytest.mark.parametrize("operation", ["create", "replace"])
def test_a_lost_answer_to_a_conditional_put_is_an_error_not_a_defeat(
    s3_server: S3Server, s3_uri: str, operation: str
) -> None:
    """Sent again, the put would meet its own result and be told that somebody else came first."""
    objects = _at(s3_uri)
    bucket = Location.parse(s3_uri).bucket
    before = s3_server.requests(bucket)

    with pytest.raises(StorageError, match="500 Internal Server Error") as failure:
        {**_WRITES, **_REPLACE}[operation](objects, "lost/a")

    _check_failure(failure.value, f"{s3_uri}/lost/a")
    assert s3_server.requests(bucket) - before == {"put": 1}


@pytest.mark.parametrize("operation", ["write", "create", "list", "exists"])
def test_a_missing_bucket_is_an_error_that_says_so(s3_uri: str, operation: str) -> None:
    uri = s3_uri.replace("s3://", "s3://no-")

    with pytest.raises(StorageError) as failure:
        _ALL[operation](_at(uri), "a")

    _check_failure(failure.value, f"{uri}/a")
    assert "bucket exists" in (failure.value.hint or "")


@pytest.mark.parametrize("operation", [*_ALL, *_REPLACE])
def test_a_server_that_is_not_there_is_an_error_never_absence(
    s3_uri: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")

    with pytest.raises(StorageError) as failure:
        {**_ALL, **_REPLACE}[operation](_at(s3_uri), "a")

    _check_failure(failure.value, f"{s3_uri}/a")
    assert "AWS_ENDPOINT_URL" in (failure.value.hint or "")


# The seam


@pytest.fixture
def changes() -> Iterator[list[tuple[str, str]]]:
    """What passed the seam before durable writes."""
    seen: list[tuple[str, str]] = []
    previous = observe.set_write_hook(lambda operation, path: seen.append((operation, path)))
    yield seen
    observe.set_write_hook(previous)


def test_every_change_and_no_read_passes_the_seam(
    objects: ObjectStore, root_uri: str, changes: list[tuple[str, str]]
) -> None:
    for operation in _WRITES.values():
        operation(objects, "a")
    objects.write("a", b"1")
    for operation in _READS.values():
        operation(objects, "a")

    assert changes == [(operation, f"{root_uri}/a") for operation in (*_WRITES, "write")]


def test_replacing_passes_the_seam(s3_uri: str, changes: list[tuple[str, str]]) -> None:
    _at(s3_uri).replace("a", b"1", Version('"0"'))

    assert changes == [("replace", f"{s3_uri}/a")]


@pytest.mark.parametrize("operation", _WRITES)
@pytest.mark.usefixtures("changes")
def test_who_stops_at_the_seam_has_changed_nothing(objects: ObjectStore, operation: str) -> None:
    def stop(_operation: str, _path: str) -> None:
        raise KeyboardInterrupt

    objects.write("a", b"old")
    observe.set_write_hook(stop)
    for name in ("a", "b"):
        with pytest.raises(KeyboardInterrupt):
            _WRITES[operation](objects, name)

    assert objects.list("") == ["a"]
    assert objects.read("a") == b"old"


_CHILD = """
import sys
from omnigraph.core.location import Location
from omnigraph.storage.objects import ObjectStore
objects = ObjectStore(Location.parse(sys.argv[1]))
print(objects.read("a").decode(), bool(objects.create("a", b"mine")), bool(objects.create("b", b"mine")))
"""


def test_a_child_process_uses_the_same_storage(objects: ObjectStore, root_uri: str) -> None:
    objects.write("a", b"ours")

    run = subprocess.run([sys.executable, "-c", _CHILD, root_uri], check=True, capture_output=True, text=True)

    assert run.stdout.split() == ["ours", "False", "True"]
    assert objects.read("b") == b"mine"
