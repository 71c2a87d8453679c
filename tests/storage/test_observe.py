import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

from omnigraph.core.location import Location
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.observe import RequestCounts, counted
from tests.support.s3 import S3Server


def test_counts_by_kind_add_up_and_subtract() -> None:
    later, earlier = RequestCounts(get=5, put=4, head=3, list=2, delete=1), RequestCounts(get=1, put=1, list=2)

    assert later.total == 15
    assert later.writes == 5
    assert later - earlier == RequestCounts(get=4, put=3, head=3, list=0, delete=1)


def test_each_operation_on_a_control_file_is_counted_by_its_kind(objects: ObjectStore) -> None:
    with counted() as requests:
        objects.write("a", b"1")
        objects.create("a", b"1")
        objects.create("b", b"1")
        objects.read("a")
        objects.read_if_exists("c")
        objects.list("")
        objects.exists("a")
        objects.exists("c")
        objects.delete("c")

    assert requests.requests == RequestCounts(get=2, put=3, head=2, list=2, delete=1)


def test_the_counts_are_what_the_server_saw(s3_server: S3Server, s3_uri: str) -> None:
    location = Location.parse(s3_uri)
    uri, options = location.child("nodes", "a"), location.storage_options
    objects = ObjectStore(location)
    before = s3_server.requests(location.bucket)

    with counted() as requests:
        objects.write("a", b"1")
        objects.exists("c")
        objects.delete("a")
        lance.write_dataset(pa.table({"a": [1, 2]}), uri, storage_options=options)
        lance.write_dataset(pa.table({"a": [3]}), uri, mode="append", storage_options=options)
        dataset = lance.dataset(uri, storage_options=options)
        assert dataset.to_table().num_rows == 3
        dataset.create_branch("side")
        dataset.delete("a = 1")
        large = pa.table({"a": np.random.default_rng(0).random(2_000_000)})  # more than fits into one put
        lance.write_dataset(large, location.child("nodes", "b"), storage_options=options).take([5, 1_900_000])

    seen = s3_server.requests(location.bucket) - before
    assert asdict(requests.requests) == {kind: seen[kind] for kind in asdict(RequestCounts())}
    assert requests.total == seen.total()


def test_reading_with_lance_makes_no_write_request(root_uri: str) -> None:
    location = Location.parse(root_uri)
    table = pa.table({"a": range(300)})

    with counted() as writing:
        dataset = lance.write_dataset(table, location.child("x"), storage_options=location.storage_options)
        dataset.insert(table)
        dataset.merge_insert("a").when_not_matched_insert_all().execute(pa.table({"a": [500]}))
        dataset.create_branch("side")
        dataset.create_scalar_index("a", "BTREE")
        dataset.optimize.compact_files()
        dataset.cleanup_old_versions(timedelta(0))
    with counted() as reading:
        found = lance.dataset(location.child("x"), storage_options=location.storage_options).to_table(filter="a = 7")

    assert found.num_rows == 2
    assert writing.put > 0
    assert writing.delete > 0
    assert reading.get > 0
    assert reading.writes == 0


def test_the_count_goes_on_during_a_block_and_stands_still_after_it(objects: ObjectStore) -> None:
    with counted() as outer:
        objects.write("a", b"1")
        with counted() as inner:
            objects.read("a")
            assert inner.get == 1
        objects.read("a")
        assert (outer.get, inner.get) == (2, 1)
    objects.read("a")

    assert (outer.total, inner.total) == (3, 1)


def test_no_request_of_any_thread_is_missed(objects: ObjectStore) -> None:
    objects.write("a", b"1")

    with counted() as requests, ThreadPoolExecutor(8) as pool:
        list(pool.map(objects.read, ["a"] * 200))

    assert requests.requests == RequestCounts(get=200)


_LATE = """
import sys, lance, pyarrow as pa
from omnigraph.storage.observe import counted
dataset = lance.write_dataset(pa.table({"a": [1]}), sys.argv[1])
with counted() as requests:
    dataset.to_table()
with counted() as idle:
    pass
print(requests.get > 0, requests.writes, idle.total)
"""


def test_a_dataset_that_was_opened_before_the_first_count_is_counted_too(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", _LATE, tmp_path / "x"], check=True, capture_output=True, text=True)

    assert run.stdout.split() == ["True", "0", "0"]
