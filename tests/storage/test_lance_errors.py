"""Every kind of failure, brought about for real."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation, Transaction
from lance.fragment import write_fragments
from lance.optimize import Compaction

from omnigraph.errors import (
    ConflictError,
    ContentionError,
    OmnigraphError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
)
from omnigraph.storage.lance_errors import Failure, classify, lance_call, translate

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field("x", pa.int64()),
    ]
)
NOBODY = 65534


def rows(*ids: str, x: int = 0) -> pa.Table:
    return pa.table({"id": ids, "x": [x] * len(ids)}, schema=SCHEMA)


def create(at: Path) -> LanceDataset:
    return lance.write_dataset(rows("a", "b"), str(at), enable_stable_row_ids=True, data_storage_version="2.2")


def two_handles(at: Path) -> tuple[LanceDataset, LanceDataset]:
    uri = create(at).uri
    return lance.dataset(uri), lance.dataset(uri)


def staged_update(handle: LanceDataset, key: str) -> Transaction:
    transaction, _ = handle.merge_insert("id").when_matched_update_all().execute_uncommitted(rows(key, x=1))
    return transaction


def staged_overwrite(handle: LanceDataset) -> Transaction:
    return Transaction(handle.version, LanceOperation.Overwrite(SCHEMA, []))


def swap(handle: LanceDataset, key: str) -> None:
    merge = handle.merge_insert("id").use_index(use_index=False).when_matched_update_all().when_not_matched_insert_all()
    merge.conflict_retries(0).execute(rows(key, x=2))


# Each of these fails, in the way that its name says.


def a_stale_update_of_the_same_fragment(root: Path) -> None:
    first, second = two_handles(root)
    mine = staged_update(second, "b")
    LanceDataset.commit(first, staged_update(first, "a"))
    LanceDataset.commit(second, mine, max_retries=0)


def a_strict_overwrite_that_lost(root: Path) -> None:
    first, second = two_handles(root)
    mine = staged_overwrite(second)
    LanceDataset.commit(first, write_fragments(rows("c"), first, return_transaction=True))
    LanceDataset.commit(second, mine, max_retries=0)


def a_compaction_that_lost(root: Path) -> None:
    handle = create(root)
    handle = LanceDataset.commit(handle, write_fragments(rows("c"), handle, return_transaction=True))
    rewritten = [task.execute(handle) for task in Compaction.plan(handle, {"target_rows_per_fragment": 100}).tasks]
    swap(lance.dataset(handle.uri), "c")
    Compaction.commit(handle, rewritten)


def an_update_after_an_overwrite(root: Path) -> None:
    first, second = two_handles(root)
    mine = staged_update(second, "a")
    LanceDataset.commit(first, staged_overwrite(first))
    LanceDataset.commit(second, mine)


def the_same_metadata_key_set_twice(root: Path) -> None:
    first, second = two_handles(root)
    first.update_metadata({"stamp": "1"})
    second.update_metadata({"stamp": "2"})


def the_same_schema_metadata_key_set_twice(root: Path) -> None:
    first, second = two_handles(root)
    first.update_schema_metadata({"stamp": "1"})
    second.update_schema_metadata({"stamp": "2"})


def a_lost_swap_of_a_new_key(root: Path) -> None:
    for handle in two_handles(root):
        swap(handle, "new")


def a_lost_swap_of_a_present_key(root: Path) -> None:
    for handle in two_handles(root):
        swap(handle, "a")


def opening_a_missing_dataset(root: Path) -> None:
    lance.dataset(str(root))


def opening_a_missing_version(root: Path) -> None:
    lance.dataset(create(root).uri, version=99)


def checking_out_a_missing_version(root: Path) -> None:
    create(root).checkout_version(99)


def opening_a_missing_branch(root: Path) -> None:
    lance.dataset(f"{create(root).uri}/tree/none")


def checking_out_a_missing_branch(root: Path) -> None:
    create(root).checkout_version(("none", None))


def deleting_a_missing_branch(root: Path) -> None:
    create(root).branches.delete("none")


def opening_a_missing_tag(root: Path) -> None:
    lance.dataset(create(root).uri, version="none")


def restoring_a_missing_version(root: Path) -> None:
    LanceDataset.commit(create(root), LanceOperation.Restore(99))


def reading_a_missing_transaction(root: Path) -> None:
    create(root).read_transaction(99)


def reading_a_lost_data_file(root: Path) -> None:
    handle = create(root)
    shutil.rmtree(root / "data")
    handle.to_table()


def creating_what_exists(root: Path) -> None:
    create(root)
    create(root)


def creating_a_branch_that_exists(root: Path) -> None:
    handle = create(root)
    handle.create_branch("twice")
    handle.create_branch("twice")


def creating_a_tag_that_exists(root: Path) -> None:
    handle = create(root)
    handle.tags.create("twice", 1)
    handle.tags.create("twice", 1)


def deleting_a_branch_with_a_child(root: Path) -> None:
    handle = create(root)
    handle.create_branch("parent").create_branch("child")
    handle.branches.delete("parent")


def opening_a_file(root: Path) -> None:
    root.write_text("not a directory")
    lance.dataset(str(root), version=1)


def creating_below_a_file(root: Path) -> None:
    root.write_text("not a directory")
    create(root / "below")


def opening_a_corrupt_manifest(root: Path) -> None:
    (root / "_versions").mkdir(parents=True)
    (root / "_versions" / "1.manifest").write_bytes(b"not a manifest")
    lance.dataset(str(root))


def filtering_by_a_missing_column(root: Path) -> None:
    create(root).to_table(filter="missing = 1")


def appending_another_schema(root: Path) -> None:
    write_fragments(pa.table({"other": [1]}), create(root), return_transaction=True)


def naming_an_index_twice(root: Path) -> None:
    handle = create(root)
    handle.create_scalar_index("x", "BTREE", name="twice")
    handle.create_index_uncommitted("x", "BTREE", name="twice", fragment_ids=[0])


FAILURES: dict[Failure, list[Callable[[Path], None]]] = {
    Failure.RETRYABLE_CONFLICT: [
        a_stale_update_of_the_same_fragment,
        a_strict_overwrite_that_lost,
        a_compaction_that_lost,
    ],
    Failure.INCOMPATIBLE: [
        an_update_after_an_overwrite,
        the_same_metadata_key_set_twice,
        the_same_schema_metadata_key_set_twice,
    ],
    Failure.CONTENTION: [a_lost_swap_of_a_new_key, a_lost_swap_of_a_present_key],
    Failure.NOT_FOUND: [
        opening_a_missing_dataset,
        opening_a_missing_version,
        checking_out_a_missing_version,
        opening_a_missing_branch,
        checking_out_a_missing_branch,
        deleting_a_missing_branch,
        opening_a_missing_tag,
        restoring_a_missing_version,
        reading_a_missing_transaction,
        reading_a_lost_data_file,
    ],
    Failure.EXISTS: [creating_what_exists, creating_a_branch_that_exists, creating_a_tag_that_exists],
    Failure.IN_USE: [deleting_a_branch_with_a_child],
    Failure.IO: [
        opening_a_file,
        creating_below_a_file,
        opening_a_corrupt_manifest,
        filtering_by_a_missing_column,
        appending_another_schema,
        naming_an_index_twice,
    ],
}
CASES = [pytest.param(kind, fail, id=fail.__name__) for kind, all_ in FAILURES.items() for fail in all_]
CLASSES = {
    Failure.RETRYABLE_CONFLICT: ConflictError,
    Failure.INCOMPATIBLE: ConflictError,
    Failure.CONTENTION: ContentionError,
    Failure.NOT_FOUND: StorageError,
    Failure.EXISTS: StorageError,
    Failure.IN_USE: StorageError,
    Failure.DENIED: StorageDeniedError,
    Failure.FULL: StorageFullError,
    Failure.IO: StorageError,
}


@pytest.mark.parametrize("kind,fail", CASES)
def test_a_failure_of_pylance_is_of_its_kind_and_becomes_ours(
    kind: Failure, fail: Callable[[Path], None], tmp_path: Path
) -> None:
    with pytest.raises(OmnigraphError) as caught, lance_call("somewhere", "do"):
        fail(tmp_path / "t")
    error = caught.value
    assert type(error) is CLASSES[kind]
    assert isinstance(error.__cause__, Exception)
    assert classify(error.__cause__) is kind
    assert classify(error) is kind, "a translated error means what its cause means"
    assert "Cannot do somewhere" in error.message
    assert ".rs:" not in error.message, "where Lance noticed it helps nobody"
    if isinstance(error, StorageError):
        assert error.details() == {"path": "somewhere", "operation": "do"}


@contextmanager
def forbidden(directory: Path) -> Iterator[None]:
    """Take away all permissions; a superuser has to step down to feel it."""
    is_root = os.geteuid() == 0
    directory.chmod(0)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        directory.chmod(0o755)


@pytest.mark.parametrize(
    "attempt",
    [
        pytest.param(lambda handle: lance.dataset(handle.uri, version=1), id="open_a_version"),
        pytest.param(lambda handle: handle.to_table(), id="read"),
        pytest.param(lambda handle: create(Path(handle.uri)), id="create"),
        pytest.param(lambda handle: write_fragments(rows("c"), handle, return_transaction=True), id="stage"),
        pytest.param(lambda handle: swap(handle, "c"), id="publish"),
    ],
)
def test_what_is_not_permitted_is_denied_and_never_taken_for_missing(
    attempt: Callable[[LanceDataset], object], tmp_path: Path
) -> None:
    handle = create(tmp_path / "t")
    with pytest.raises(StorageDeniedError) as caught, forbidden(tmp_path / "t"), lance_call("t", "use"):
        attempt(handle)
    assert classify(caught.value) is Failure.DENIED


FILL_A_SMALL_DISK = """
import sys
from pathlib import Path
import lance, pyarrow as pa
from omnigraph.storage.lance_errors import classify

rows = pa.table({"id": ["a"], "x": [1]})
handle = lance.write_dataset(rows, sys.argv[1] + "/t")
with open(sys.argv[1] + "/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(b"x" * 512)
    except OSError as error:
        print(classify(error).name)
for attempt in (
    lambda: lance.fragment.write_fragments(rows, handle, return_transaction=True),
    lambda: lance.LanceDataset.commit(handle, lance.LanceOperation.Overwrite(handle.schema, [])),
    lambda: handle.create_branch("b"),
):
    try:
        attempt()
    except Exception as error:
        print(classify(error).name)
"""


def test_a_disk_without_space_is_full(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=128k none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(tmp_path)]
    with suppress(FileNotFoundError):
        done = subprocess.run(
            [*command, sys.executable, FILL_A_SMALL_DISK], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            assert done.stdout.split() == ["FULL"] * 4
            return
        assert "unshare" in done.stderr or "mount" in done.stderr, done.stderr
    pytest.skip("no small disk can be mounted here")


SERVER_THAT_SOON_REFUSES = """
import os, sys
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "6"
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


def test_an_object_store_tells_missing_from_denied() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SERVER_THAT_SOON_REFUSES]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        options = {
            "endpoint": f"http://127.0.0.1:{int(server.stdout.readline())}",
            "access_key_id": "somebody",
            "secret_access_key": "whatever",
            "region": "us-east-1",
            "allow_http": "true",
            "client_max_retries": "0",
        }
        seen = []
        for _ in range(3):
            with pytest.raises(StorageError) as caught, lance_call("s3://bucket/t", "open"):
                lance.dataset("s3://bucket/t", version=1, storage_options=options)
            seen.append(classify(caught.value))
        assert seen[0] is Failure.NOT_FOUND
        assert seen[-1] is Failure.DENIED
        server.communicate("")


@pytest.mark.parametrize("error", [TypeError("ours"), MemoryError(), KeyError("ours"), AssertionError("ours")])
def test_a_mistake_of_our_own_passes_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, lance_call("t", "open"):
        raise error
    assert caught.value is error


def test_an_arrow_error_that_is_a_type_error_passes_unchanged() -> None:
    with pytest.raises(pa.ArrowTypeError), lance_call("t", "open"):
        pa.array([1, "two"], pa.string())


def test_an_interrupt_passes_unchanged() -> None:
    with pytest.raises(KeyboardInterrupt), lance_call("t", "open"):
        raise KeyboardInterrupt


def test_a_long_answer_of_a_server_is_cut() -> None:
    error = translate(OSError("x" * 10_000), path="t", operation="open")
    assert len(error.message) < 400


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowInvalid("External error: KeyboardInterrupt: "),  # while it reads a stream of ours
        # while it turns an argument into text
        ValueError("Invalid user input: Merge insert key column '<unprintable str object>' does not exist in schema"),
    ],
)
def test_an_interrupt_inside_a_call_stays_an_interrupt(error: Exception) -> None:
    """What Lance makes of Ctrl-C."""
    with pytest.raises(KeyboardInterrupt), lance_call("graph/__manifest", "read"):
        raise error
