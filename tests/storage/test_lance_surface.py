"""What Omnigraph relies on in pylance, and what it must avoid: an upgrade that changes one of these turns red here."""

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lance.debug
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance import Index, LanceDataset, Transaction
from lance import LanceOperation as Op
from lance.dataset import AutoCleanupConfig
from lance.fragment import write_fragments
from lance.lance import register_lance_metrics_recorder, snapshot_lance_metrics
from lance.optimize import Compaction
from lance.schema import LanceSchema

from omnigraph.storage.lance_errors import Failure, classify

Handle = Any  # a LanceDataset; its annotations are Optional wherever it can say "not found"
PRIMARY_KEY = "lance-schema:unenforced-primary-key"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False, metadata={PRIMARY_KEY: "true"}),
        pa.field("x", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), 2)),
    ]
)
UNMARKED = SCHEMA.set(0, pa.field("id", pa.string(), nullable=False))
AT_ONCE = timedelta(0)


def rows(*ids: str, x: int = 0) -> pa.Table:
    made = [{"id": key, "x": x, "text": f"word of {key}", "vector": [x, n]} for n, key in enumerate(ids)]
    return pa.Table.from_pylist(made, schema=SCHEMA)


def create(at: Path, *ids: str, schema: pa.Schema = SCHEMA) -> Handle:
    data = rows(*ids).cast(schema)
    return lance.write_dataset(data, str(at), mode="create", enable_stable_row_ids=True, data_storage_version="2.2")


@pytest.fixture
def table(tmp_path: Path) -> Handle:
    """Rows a, b and c in one fragment, at version 1."""
    return create(tmp_path / "t", "a", "b", "c")


def fresh(handle: Handle) -> Handle:
    return lance.dataset(handle.uri)


def at(handle: Handle, version: int) -> Handle:
    return lance.dataset(handle.uri, version=version)


def on_branch(handle: Handle, branch: str) -> Handle:
    return lance.dataset(f"{handle.uri}/tree/{branch}")


def keys(handle: Handle) -> list[str]:
    return sorted(handle.to_table(columns=["id"])["id"].to_pylist())


def x_of(handle: Handle, key: str) -> list[int]:
    found: list[int] = handle.to_table(columns=["x"], filter=f"id = '{key}'")["x"].to_pylist()
    return found


def versions(handle: Handle) -> list[int]:
    return sorted(ref["version"] for ref in handle.version_refs())


def fragment_ids(handle: Handle) -> list[int]:
    return [fragment.fragment_id for fragment in handle.get_fragments()]


def stage_append(handle: Handle, *ids: str) -> Transaction:
    return write_fragments(rows(*ids), handle, return_transaction=True)


def stage_overwrite(handle: Handle, *ids: str) -> Transaction:
    return write_fragments(rows(*ids), handle, mode="overwrite", return_transaction=True)


def stage_upsert(handle: Handle, *ids: str, x: int = 9) -> Transaction:
    merge = handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    transaction: Transaction = merge.execute_uncommitted(rows(*ids, x=x))[0]
    return transaction


def stage_delete(handle: Handle, predicate: str) -> Transaction:
    updated, emptied = [], []
    for fragment in handle.get_fragments():
        left = fragment.delete(predicate)
        if left is None:
            emptied.append(fragment.fragment_id)
        elif left.num_deletions > fragment.num_deletions:
            updated.append(left)
    return Transaction(handle.version, Op.Delete(updated, emptied, predicate))


def stage_delete_of_keys(handle: Handle, *ids: str) -> Transaction:
    merge = handle.merge_insert("id").when_matched_delete()
    transaction: Transaction = merge.execute_uncommitted(pa.table({"id": ids}))[0]
    return transaction


def stage_indices(handle: Handle) -> Transaction:
    covered = fragment_ids(handle)
    words = handle.create_index_uncommitted("text", "INVERTED", name="words", fragment_ids=covered, replace=True)
    segments = [
        handle.create_index_uncommitted("id", "BTREE", name="by_id", fragment_ids=covered, replace=True),
        handle.merge_existing_index_segments([words]),
        handle.create_index_uncommitted("vector", "IVF_FLAT", name="near", fragment_ids=covered, replace=True),
    ]
    return Transaction(handle.version, Op.CreateIndex(segments, []))


def stage_btree(handle: Handle, column: str, *fragments: int, replace: bool = False) -> Transaction:
    covered = list(fragments) or fragment_ids(handle)
    made = handle.create_index_uncommitted(column, "BTREE", name=f"by_{column}", fragment_ids=covered, replace=replace)
    return Transaction(handle.version, Op.CreateIndex([made], []))


def commit(handle: Handle, transaction: Transaction) -> Handle:
    return LanceDataset.commit(handle, transaction, max_retries=0)


def detached(handle: Handle, transaction: Transaction) -> Handle:
    return LanceDataset.commit(handle, transaction, detached=True)


def swap(handle: Handle, key: str, x: int = 0) -> None:
    """Compare and swap in the one shape that is safe."""
    merge = handle.merge_insert("id").use_index(use_index=False)
    merge.when_matched_update_all().when_not_matched_insert_all().conflict_retries(0).execute(rows(key, x=x))


def many_fragments(handle: Handle) -> Handle:
    for key in ("d", "e"):
        handle = commit(handle, stage_append(handle, key))
    return handle


def coverage(handle: Handle, name: str) -> list[list[int]]:
    """Name the fragments that each segment of an index covers."""
    (index,) = (index for index in handle.describe_indices() if index.name == name)
    return sorted(sorted(segment.fragment_ids) for segment in index.segments)


def uses_index(handle: Handle, condition: str | pc.Expression) -> bool:
    return "ScalarIndexQuery" in handle.scanner(filter=condition).explain_plan()


# How a dataset is made ---------------------------------------------------------------------------


def test_a_dataset_without_rows_shows_the_settings_it_was_created_with(tmp_path: Path) -> None:
    made = create(tmp_path / "t")
    assert (made.version, made.count_rows(), made.get_fragments()) == (1, 0, [])
    assert made.has_stable_row_ids
    assert made.data_storage_version == "2.2"
    assert made.config() == {}, "no automatic cleanup"
    assert made.schema.equals(SCHEMA, check_metadata=True)
    assert made.lance_schema.field("id").is_unenforced_primary_key()


def test_creating_by_a_commit_overwrites_what_is_there(table: Handle) -> None:
    over = LanceDataset.commit(table.uri, Op.Overwrite(SCHEMA, []), enable_stable_row_ids=True)
    assert (over.version, over.count_rows()) == (2, 0)


def test_stable_row_ids_cannot_be_turned_on_later(tmp_path: Path) -> None:
    lance.write_dataset(rows("a"), str(tmp_path / "t"))
    for mode in ("append", "overwrite"):
        later = lance.write_dataset(rows("b"), str(tmp_path / "t"), mode=mode, enable_stable_row_ids=True)
        assert not later.has_stable_row_ids


def test_later_writes_keep_the_storage_version_of_the_dataset(tmp_path: Path) -> None:
    old = lance.write_dataset(rows("a"), str(tmp_path / "t"), data_storage_version="2.0")
    for stage in (stage_append, stage_overwrite):
        transaction = stage(old, "b")
        assert isinstance(transaction.operation, (Op.Append, Op.Overwrite))
        assert {file.file_minor_version for new in transaction.operation.fragments for file in new.files} == {0}
        assert detached(old, transaction).data_storage_version == "2.0"


def test_a_stored_cleanup_setting_removes_versions_at_every_commit(tmp_path: Path) -> None:
    every_commit = AutoCleanupConfig(interval=1, older_than_seconds=0)
    handle = lance.write_dataset(rows("a"), str(tmp_path / "t"), auto_cleanup_options=every_commit)
    assert "lance.auto_cleanup.interval" in handle.config()
    assert 1 not in versions(many_fragments(handle))


def test_a_manifest_is_named_so_that_the_latest_lists_first(table: Handle) -> None:
    commit(table, stage_append(table, "d"))
    names = {path.name for path in Path(table.uri, "_versions").glob("*.manifest")}
    assert names == {f"{2**64 - 1 - version}.manifest" for version in (1, 2)}


# The primary-key mark ----------------------------------------------------------------------------


def test_a_primary_key_must_not_be_nullable(tmp_path: Path) -> None:
    nullable = pa.schema([pa.field("id", pa.string(), metadata={PRIMARY_KEY: "true"})])
    with pytest.raises(OSError, match="must not be nullable"):
        lance.write_dataset(nullable.empty_table(), str(tmp_path / "t"))


@pytest.mark.parametrize(
    "change", [{"id": {PRIMARY_KEY: "false"}}, {"id": {PRIMARY_KEY: None}}, {"x": {PRIMARY_KEY: "true"}}]
)
def test_a_primary_key_mark_cannot_be_changed_by_metadata(table: Handle, change: dict[str, dict[str, str]]) -> None:
    with pytest.raises(OSError, match="cannot be changed once set"):
        table.update_field_metadata(change)
    assert fresh(table).version == 1


def test_a_primary_key_mark_can_be_added_later(tmp_path: Path) -> None:
    handle = create(tmp_path / "t", "a", schema=UNMARKED)
    handle.update_field_metadata({"id": {PRIMARY_KEY: "true"}})
    assert fresh(handle).lance_schema.field("id").is_unenforced_primary_key()


def test_an_overwrite_whose_rows_lack_the_mark_removes_it_without_a_word(table: Handle) -> None:
    unmarked = write_fragments(rows("z").cast(UNMARKED), table, mode="overwrite", return_transaction=True)
    assert not commit(table, unmarked).lance_schema.field("id").is_unenforced_primary_key()


# Staging -----------------------------------------------------------------------------------------

STAGED: dict[str, tuple[Callable[[Handle], Transaction], list[str]]] = {
    "append": (lambda handle: stage_append(handle, "d"), ["a", "b", "c", "d"]),
    "overwrite": (lambda handle: stage_overwrite(handle, "z"), ["z"]),
    "overwrite_with_no_rows": (stage_overwrite, []),
    "overwrite_with_no_fragments": (lambda handle: Transaction(1, Op.Overwrite(handle.lance_schema, [])), []),
    "upsert": (lambda handle: stage_upsert(handle, "a", "z"), ["a", "b", "c", "z"]),
    "delete_of_some": (lambda handle: stage_delete(handle, "id = 'b'"), ["a", "c"]),
    "delete_of_all": (lambda handle: stage_delete(handle, "x = 0"), []),
    "delete_by_key": (lambda handle: stage_delete_of_keys(handle, "b", "none"), ["a", "c"]),
    "indices": (stage_indices, ["a", "b", "c"]),
    "restore": (lambda _: Transaction(1, Op.Restore(1)), ["a", "b", "c"]),
}


@pytest.mark.parametrize("stage,then", STAGED.values(), ids=STAGED)
def test_a_staged_transaction_moves_no_head_until_it_is_committed(
    table: Handle, stage: Callable[[Handle], Transaction], then: list[str]
) -> None:
    transaction = stage(table)
    assert (transaction.read_version, fresh(table).version) == (1, 1)

    if not isinstance(transaction.operation, Op.Restore):
        preview = detached(table, transaction)
        assert preview.version >= 2**63
        assert keys(preview) == then, "the staged state can be read"
    assert (fresh(table).version, table.latest_version) == (1, 1)
    assert keys(fresh(table)) == ["a", "b", "c"]

    landed = commit(table, transaction)
    assert (landed.version, fresh(table).version) == (2, 2)
    assert keys(fresh(table)) == then
    found = landed.read_transaction(2)
    assert found.uuid == transaction.uuid
    assert type(found.operation) is type(transaction.operation)


def test_three_kinds_of_index_can_be_staged_in_one_transaction(table: Handle) -> None:
    preview = detached(table, stage_indices(table))
    assert {(index.name, index.index_type) for index in preview.describe_indices()} == {
        ("by_id", "BTree"),
        ("words", "Inverted"),
        ("near", "IVF_FLAT"),
    }
    assert uses_index(preview, "id = 'b'")
    assert preview.to_table(full_text_query="word").num_rows == 3
    near = preview.scanner(nearest={"column": "vector", "q": [0.0, 2.0], "k": 1})
    assert "ANNSubIndex" in near.explain_plan()
    assert near.to_table()["id"].to_pylist() == ["c"]
    assert fresh(table).describe_indices() == []


def test_an_inverted_index_that_was_not_merged_commits_and_cannot_be_read(table: Handle) -> None:
    raw = table.create_index_uncommitted("text", "INVERTED", name="words", fragment_ids=[0])
    broken = commit(table, Transaction(1, Op.CreateIndex([raw], [])))
    with pytest.raises(pa.ArrowInvalid, match="Not found"):
        broken.to_table(full_text_query="word")


def test_a_vector_index_needs_a_vector(tmp_path: Path) -> None:
    empty_vectors = rows("a").set_column(3, SCHEMA.field("vector"), pa.nulls(1, SCHEMA.field("vector").type))
    handle = lance.write_dataset(empty_vectors, str(tmp_path / "t"))
    with pytest.raises(RuntimeError, match="KMeans cannot train"):
        handle.create_index_uncommitted("vector", "IVF_FLAT", name="near", fragment_ids=[0])


def test_an_index_covers_the_fragments_it_names_and_is_extended_by_another_segment(table: Handle) -> None:
    handle = commit(table, stage_btree(table, "id"))
    handle = commit(handle, stage_append(handle, "d"))
    assert coverage(handle, "by_id") == [[0]]
    assert x_of(handle, "d") == [0], "what is not covered is scanned"
    with pytest.raises(RuntimeError, match="already exists"):
        stage_btree(handle, "id", 1)
    handle = commit(handle, stage_btree(handle, "id", 1, replace=True))
    assert coverage(handle, "by_id") == [[0], [1]]
    assert x_of(handle, "a") == x_of(handle, "d") == [0]


def segments_of(handle: Handle) -> list[Index]:
    return [
        Index(part.uuid, index.name, index.fields, part.dataset_version_at_last_update, part.fragment_ids, 0)
        for index in handle.describe_indices()
        for part in index.segments
    ]


def test_indices_are_rebuilt_by_naming_the_segments_they_replace(table: Handle) -> None:
    handle = commit(table, stage_indices(table))
    handle = commit(handle, stage_append(handle, "d"))
    rebuilt = stage_indices(handle)
    assert isinstance(rebuilt.operation, Op.CreateIndex)
    rebuilt.operation.removed_indices = segments_of(handle)
    handle = commit(handle, rebuilt)
    assert [coverage(handle, name) for name in ("by_id", "words", "near")] == [[[0, 1]]] * 3
    assert x_of(handle, "a") == x_of(handle, "d") == [0]
    assert handle.to_table(full_text_query="word").num_rows == 4


@pytest.mark.parametrize("column,kind", [("text", "INVERTED"), ("vector", "IVF_FLAT")])
def test_a_text_or_vector_index_that_covers_a_fragment_twice_panics_at_the_commit(
    table: Handle, column: str, kind: str
) -> None:
    handle = commit(table, stage_indices(table))
    handle = commit(handle, stage_append(handle, "d"))
    name = {"text": "words", "vector": "near"}[column]
    again = handle.create_index_uncommitted(column, kind, name=name, fragment_ids=[0, 1], replace=True)
    merged = handle.merge_existing_index_segments([again]) if kind == "INVERTED" else again
    with pytest.raises(BaseException, match="not implemented") as caught:
        commit(handle, Transaction(handle.version, Op.CreateIndex([merged], [])))
    assert not isinstance(caught.value, Exception), "no handler of errors sees a panic"
    assert fresh(table).version == handle.version


def test_a_delete_without_a_match_shows_in_the_counts_and_must_not_be_committed(table: Handle) -> None:
    (fragment,) = table.get_fragments()
    assert fragment.delete("id = 'none'").to_json() == fragment.metadata.to_json()
    none = pa.table({"id": ["none"]})
    transaction, counts = table.merge_insert("id").when_matched_delete().execute_uncommitted(none)
    assert set(counts.values()) == {0}
    assert commit(table, transaction).version == 2, "it would make an empty commit"


def test_a_delete_tells_how_many_rows_it_takes(table: Handle) -> None:
    (fragment,) = table.get_fragments()
    left = fragment.delete("id <> 'a'")
    assert (left.num_deletions, left.num_rows, left.deletion_file.num_deleted_rows) == (2, 1, 2)
    _, counts = table.merge_insert("id").when_matched_delete().execute_uncommitted(pa.table({"id": ["a", "none"]}))
    assert counts["num_deleted_rows"] == 1


def test_rows_are_deleted_by_their_addresses(table: Handle) -> None:
    handle = commit(table, stage_append(table, "d"))
    scanner = handle.scanner(columns=[], filter=pc.field("id").isin(["b", "d", "none"]), with_row_address=True)
    addresses = scanner.to_table()["_rowaddr"].to_pylist()
    assert [(address >> 32, address & 0xFFFFFFFF) for address in addresses] == [(0, 1), (1, 0)]
    left = handle.get_fragment(0).delete_rows([1])
    assert handle.get_fragment(1).delete_rows([0]) is None
    assert keys(commit(handle, Transaction(2, Op.Delete([left], [1], "")))) == ["a", "c"]


def test_a_delete_that_is_not_staged_commits_even_when_nothing_matches(table: Handle) -> None:
    table.delete("id = 'none'")
    assert fresh(table).version == 2


def test_an_upsert_keeps_the_identity_of_the_rows_it_updates(table: Handle) -> None:
    landed = commit(table, stage_upsert(table, "b", "z"))
    columns = ["id", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    identity = {row["id"]: tuple(row.values())[1:] for row in landed.to_table(columns=columns).to_pylist()}
    assert identity == {"a": (0, 1, 1), "b": (1, 1, 2), "c": (2, 1, 1), "z": (3, 2, 2)}
    delta = landed.delta(compared_against=1)
    assert delta.get_inserted_rows().read_all()["id"].to_pylist() == ["z"]
    assert delta.get_updated_rows().read_all()["id"].to_pylist() == ["b"]


def test_an_upsert_inserts_a_new_key_as_often_as_it_is_given(table: Handle) -> None:
    assert Counter(keys(detached(table, stage_upsert(table, "z", "z"))))["z"] == 2
    with pytest.raises(OSError, match="Ambiguous merge inserts"):
        stage_upsert(table, "a", "a")


def test_a_null_in_a_column_without_nulls_is_refused_when_staged(table: Handle) -> None:
    with pytest.raises(OSError, match="contained null values"):
        write_fragments(pa.table({"id": pa.nulls(1, pa.string())}), table, return_transaction=True)


def test_a_column_that_is_left_out_of_an_append_becomes_null(table: Handle) -> None:
    partial = write_fragments(pa.table({"id": ["d"]}), table, return_transaction=True)
    assert x_of(detached(table, partial), "d") == [None]


def test_an_error_in_the_stream_of_rows_arrives_as_text_only(table: Handle) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows("d").to_batches()
        raise LookupError("the original")

    with pytest.raises(OSError, match="the original") as caught:
        write_fragments(pa.RecordBatchReader.from_batches(SCHEMA, failing()), table, return_transaction=True)
    assert caught.value.__cause__ is None


def test_what_is_said_about_a_transaction_is_stored_with_it(table: Handle) -> None:
    transaction = stage_append(table, "d")
    transaction.transaction_properties = {"operation": "42"}
    assert commit(table, transaction).read_transaction(2).transaction_properties == {"operation": "42"}


# Committing a transaction again, or late ---------------------------------------------------------


def test_committing_an_append_twice_doubles_its_rows_under_one_uuid(table: Handle) -> None:
    transaction = stage_append(table, "d")
    commit(table, transaction)
    again = commit(table, transaction)
    assert (again.version, keys(again)) == (3, ["a", "b", "c", "d", "d"])
    assert {again.read_transaction(version).uuid for version in (2, 3)} == {transaction.uuid}


def test_committing_an_upsert_twice_doubles_its_new_rows(table: Handle) -> None:
    transaction = stage_upsert(table, "z")
    commit(table, transaction)
    assert keys(commit(table, transaction)) == ["a", "b", "c", "z", "z"]


def test_committing_an_update_twice_conflicts_with_itself(table: Handle) -> None:
    transaction = stage_upsert(table, "a")
    commit(table, transaction)
    with pytest.raises(OSError, match="Retryable commit conflict"):
        commit(table, transaction)


def test_committing_a_strict_overwrite_twice_returns_the_first_version(table: Handle) -> None:
    transaction = stage_overwrite(table, "z")
    commit(table, transaction)
    later = commit(fresh(table), stage_append(fresh(table), "y"))
    assert commit(table, transaction).version == 2, "nothing was committed, and no error says so"
    assert (fresh(table).version, keys(fresh(table))) == (later.version, ["y", "z"])


def test_an_append_lands_behind_whoever_came_first(table: Handle) -> None:
    mine = stage_append(table, "mine")
    commit(table, stage_append(table, "theirs"))
    landed = commit(table, mine)
    assert (mine.read_version, landed.version) == (1, 3), "zero retries are no compare-and-swap of the version"
    assert keys(landed) == ["a", "b", "c", "mine", "theirs"]


@pytest.mark.parametrize(
    "mine",
    [
        pytest.param(lambda handle: stage_upsert(handle, "a"), id="update"),
        pytest.param(lambda handle: stage_delete(handle, "id = 'a'"), id="delete"),
    ],
)
@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(lambda handle: stage_upsert(handle, "b"), id="after_update"),
        pytest.param(lambda handle: stage_delete(handle, "id = 'b'"), id="after_delete"),
    ],
)
def test_a_late_change_conflicts_with_any_change_of_the_same_fragment(
    table: Handle,
    mine: Callable[[Handle], Transaction],
    theirs: Callable[[Handle], Transaction],
) -> None:
    transaction = mine(table)
    commit(table, theirs(table))
    with pytest.raises(OSError, match="Retryable commit conflict") as caught:
        commit(table, transaction)
    assert classify(caught.value) is Failure.RETRYABLE_CONFLICT
    assert fresh(table).version == 2


def test_a_late_change_of_another_fragment_lands(table: Handle) -> None:
    handle = commit(table, stage_append(table, "d"))
    mine = stage_upsert(handle, "a")
    commit(handle, stage_upsert(handle, "d"))
    assert commit(handle, mine).version == 4


def test_an_overwrite_is_strict_without_retries_and_wins_with_them(table: Handle) -> None:
    mine = stage_overwrite(table, "z")
    commit(table, stage_append(table, "theirs"))
    with pytest.raises(OSError, match="Commit conflict for version 2") as caught:
        commit(table, mine)
    assert classify(caught.value) is Failure.RETRYABLE_CONFLICT
    assert keys(LanceDataset.commit(table, mine)) == ["z"], "their rows are gone"


def test_a_restore_wins_over_concurrent_work_without_a_word(table: Handle) -> None:
    mine = Transaction(1, Op.Restore(1))
    commit(table, stage_append(table, "theirs"))
    landed = commit(table, mine)
    assert (landed.version, keys(landed)) == (3, ["a", "b", "c"])


def test_what_was_staged_before_a_restore_is_incompatible(table: Handle) -> None:
    mine = stage_append(table, "mine")
    commit(table, Transaction(1, Op.Restore(1)))
    with pytest.raises(OSError, match="Incompatible transaction") as caught:
        commit(table, mine)
    assert classify(caught.value) is Failure.INCOMPATIBLE


def test_a_version_is_restored_by_opening_it(table: Handle) -> None:
    commit(table, stage_append(table, "d"))
    old = at(table, 1)
    old.restore()
    assert (old.version, keys(old)) == (3, ["a", "b", "c"])


def test_a_detached_commit_checks_no_conflict(table: Handle) -> None:
    theirs = detached(table, stage_upsert(table, "a", x=1))
    mine = stage_upsert(table, "a", x=2)
    assert sorted(x_of(detached(theirs, mine), "a")) == [1, 2], "one key, two rows"


def test_a_detached_version_can_be_opened_again_but_not_committed_to(table: Handle) -> None:
    transaction = stage_append(table, "d")
    number = detached(table, transaction).version
    again = at(table, number)
    assert again.read_transaction(number).uuid == transaction.uuid
    with pytest.raises(OSError, match="detached"):
        again.delete("id = 'a'")
    assert fresh(table).version == 1


# Compare and swap on a primary key ---------------------------------------------------------------


def test_one_of_four_writers_of_a_key_wins_and_the_others_know(table: Handle) -> None:
    for turn in range(10):
        together = threading.Barrier(4)
        outcomes: list[Failure | None] = []

        def write(
            handle: Handle, writer: int, key: str, together: threading.Barrier, outcomes: list[Failure | None]
        ) -> None:
            together.wait()
            try:
                swap(handle, key, writer)
            except OSError as error:
                outcomes.append(classify(error))
            else:
                outcomes.append(None)

        threads = [
            threading.Thread(target=write, args=(fresh(table), writer, f"key {turn}", together, outcomes))
            for writer in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Counter(outcomes) == {None: 1, Failure.CONTENTION: 3}
    assert keys(fresh(table)) == sorted(["a", "b", "c", *(f"key {turn}" for turn in range(10))])


def test_a_swap_of_another_key_is_no_conflict(table: Handle) -> None:
    first, second = fresh(table), fresh(table)
    swap(first, "y")
    swap(second, "z")
    assert (second.version, keys(second)) == (3, ["a", "b", "c", "y", "z"])


def test_a_swap_loses_to_any_append(table: Handle) -> None:
    stale = fresh(table)
    commit(table, stage_append(table, "d"))
    with pytest.raises(OSError, match="Too many concurrent writers"):
        swap(stale, "z")


def test_a_swap_is_lost_without_the_primary_key_mark(tmp_path: Path) -> None:
    handle = create(tmp_path / "t", "a", schema=UNMARKED)
    first, second = fresh(handle), fresh(handle)
    for writer in (first, second):
        swap(writer, "z")
    assert keys(fresh(handle)) == ["a", "z", "z"]


def test_a_swap_is_lost_through_an_index_on_the_key(table: Handle) -> None:
    commit(table, stage_btree(table, "id"))
    first, second = fresh(table), fresh(table)
    for handle in (first, second):
        merge = handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.conflict_retries(0).execute(rows("z"))
    assert Counter(keys(fresh(table)))["z"] == 2

    first, second = fresh(table), fresh(table)
    swap(first, "y")
    with pytest.raises(OSError, match="Too many concurrent writers"):
        swap(second, "y")


def test_a_swap_is_lost_in_two_phases(table: Handle) -> None:
    first, second = fresh(table), fresh(table)
    staged = [(handle, stage_upsert(handle, "z")) for handle in (first, second)]
    for handle, transaction in staged:
        commit(handle, transaction)
    assert Counter(keys(fresh(table)))["z"] == 2


def test_a_swap_is_lost_to_an_append_of_the_same_key(table: Handle) -> None:
    first, second = fresh(table), fresh(table)
    swap(first, "z")
    commit(second, stage_append(second, "z"))
    assert Counter(keys(fresh(table)))["z"] == 2


@pytest.mark.parametrize("key", [pytest.param("z", id="of_a_new_key"), pytest.param("a", id="of_a_present_key")])
def test_a_swap_is_lost_from_a_handle_older_than_the_oldest_version(table: Handle, key: str) -> None:
    stale = fresh(table)
    for turn in range(3):
        swap(fresh(table), key, turn)
    fresh(table).cleanup_old_versions(retain_versions=1)
    swap(stale, key, 99)
    assert Counter(keys(fresh(table)))[key] == 2


def test_a_swap_from_an_old_handle_is_refused_while_the_versions_between_are_there(table: Handle) -> None:
    stale = fresh(table)
    for turn in range(3):
        swap(fresh(table), "a", turn)
    fresh(table).optimize.compact_files()
    with pytest.raises(OSError, match="Too many concurrent writers"):
        swap(stale, "a", 99)


def test_a_staged_change_whose_base_is_cleaned_is_refused_by_a_fresh_handle_only(table: Handle) -> None:
    stale = fresh(table)
    mine = stage_upsert(stale, "a", x=99)
    for turn in range(3):
        swap(fresh(table), "a", turn)
    fresh(table).cleanup_old_versions(retain_versions=1)
    with pytest.raises(OSError, match="was not found") as caught:
        commit(fresh(table), mine)
    assert classify(caught.value) is Failure.NOT_FOUND
    assert sorted(x_of(commit(stale, mine), "a")) == [2, 99], "the stale handle commits a second row for one key"


# Metadata ----------------------------------------------------------------------------------------


def test_table_metadata_is_swapped_key_by_key(table: Handle) -> None:
    first, second = fresh(table), fresh(table)
    first.update_metadata({"stamp": "1"})
    with pytest.raises(OSError, match="Incompatible transaction"):
        second.update_metadata({"stamp": "2"})
    second.update_metadata({"other": "2"})
    assert fresh(table).metadata == {"stamp": "1", "other": "2"}


@pytest.mark.parametrize("key", ["stamp", "other"])
def test_schema_metadata_is_swapped_as_a_whole(table: Handle, key: str) -> None:
    first, second = fresh(table), fresh(table)
    first.update_schema_metadata({"stamp": "1"})
    with pytest.raises(OSError, match="Incompatible transaction"):
        second.update_schema_metadata({key: "2"})
    assert fresh(table).schema.metadata == {b"stamp": b"1"}


def test_an_overwrite_keeps_table_metadata_and_loses_schema_metadata(table: Handle) -> None:
    table.update_metadata({"of table": "1"})
    table.update_schema_metadata({"of schema": "1"})
    over = commit(table, stage_overwrite(table))
    assert over.metadata == {"of table": "1"}
    assert over.schema.metadata is None


# Branches ----------------------------------------------------------------------------------------


def test_versions_continue_on_a_branch_and_main_stays(table: Handle) -> None:
    handle = commit(table, stage_append(table, "d"))
    handle.create_branch("feature", 2)
    branch = on_branch(table, "feature")
    assert (branch.version, branch.latest_version) == (2, 2)

    transaction = stage_upsert(branch, "a", "e")
    assert keys(detached(branch, transaction)) == ["a", "b", "c", "d", "e"]
    landed = commit(branch, transaction)
    assert (landed.version, landed.uri) == (3, branch.uri)
    assert landed.read_transaction(3).uuid == transaction.uuid
    assert (branch.latest_version, table.latest_version) == (3, 2)
    assert keys(fresh(table)) == ["a", "b", "c", "d"]
    swap(on_branch(table, "feature"), "f")
    assert versions(on_branch(table, "feature")) == [2, 3, 4]


def test_a_branch_is_opened_by_its_directory_and_not_by_a_pair(table: Handle) -> None:
    table.create_branch("feature")
    with pytest.raises(OSError, match="version must be an integer or a string"):
        lance.dataset(table.uri, version=("feature", 1))  # type: ignore[arg-type]
    assert table.checkout_version(("feature", None)).uri == table.uri, "so it cannot be told from main, or pickled"
    assert on_branch(table, "feature").uri == f"{table.uri}/tree/feature"


def test_a_restore_on_a_branch_reaches_back_to_where_it_began(table: Handle) -> None:
    commit(table, stage_append(table, "d"))
    fresh(table).create_branch("feature", 2)
    branch = commit(on_branch(table, "feature"), stage_append(on_branch(table, "feature"), "e"))
    restored = commit(branch, Transaction(3, Op.Restore(2)))
    assert (restored.version, keys(restored), fresh(table).version) == (4, ["a", "b", "c", "d"], 2)
    with pytest.raises(OSError, match="Not found"):
        commit(restored, Transaction(4, Op.Restore(1)))


def test_a_branch_is_listed_deleted_and_never_the_same_again(table: Handle) -> None:
    table.create_branch("feature")
    before = table.branches.list()["feature"]
    assert (before["parent_branch"], before["parent_version"]) == (None, 1)
    table.branches.delete("feature")
    assert table.branches.list() == {}
    assert not Path(table.uri, "tree", "feature").exists()
    table.create_branch("feature")
    assert table.branches.list()["feature"]["branch_identifier"] != before["branch_identifier"]


def test_a_branch_with_a_child_cannot_be_deleted(table: Handle) -> None:
    table.create_branch("parent").create_branch("child")
    with pytest.raises(OSError, match="Ref conflict error"):
        table.branches.delete("parent")
    assert set(table.branches.list()) == {"parent", "child"}


def test_deleting_a_branch_keeps_those_below_its_name(table: Handle) -> None:
    table.create_branch("team/one")
    table.create_branch("team")
    table.branches.delete("team")
    assert set(table.branches.list()) == {"team/one"}
    assert keys(on_branch(table, "team/one")) == ["a", "b", "c"]


def test_the_directory_of_a_half_made_branch_is_in_the_way_and_cannot_be_deleted(table: Handle) -> None:
    table.create_branch("half")
    Path(table.uri, "_refs", "branches", "half.json").unlink()
    with pytest.raises(ValueError, match="Ref not found"):
        table.branches.delete("half")
    with pytest.raises(OSError, match="Clone operation") as caught:
        table.create_branch("half")
    assert classify(caught.value) is Failure.EXISTS
    assert table.branches.list() == {}


def test_a_branch_whose_directory_is_gone_can_be_deleted(table: Handle) -> None:
    table.create_branch("half").branches.list()
    for path in sorted(Path(table.uri, "tree").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert set(table.branches.list()) == {"half"}
    table.branches.delete("half")
    assert table.branches.list() == {}


def test_an_index_serves_the_branches_of_a_branch(table: Handle) -> None:
    first = table.create_branch("first")
    first = commit(first, stage_btree(first, "id"))
    first.create_branch("second")
    second = on_branch(table, "second")
    assert uses_index(second, "id = 'b'")
    assert x_of(second, "b") == [0]


def test_compacting_a_branch_breaks_the_indices_it_inherited(table: Handle) -> None:
    handle = many_fragments(table)
    handle = commit(handle, stage_btree(handle, "id"))
    branch = handle.create_branch("feature")
    branch.optimize.compact_files()
    with pytest.raises(pa.ArrowInvalid, match="Not found"):
        x_of(on_branch(table, "feature"), "b")
    assert x_of(fresh(table), "b") == [0]


def test_a_branch_without_indices_can_be_compacted(table: Handle) -> None:
    branch = many_fragments(table.create_branch("feature"))
    branch.optimize.compact_files()
    compacted = on_branch(table, "feature")
    assert len(compacted.get_fragments()) == 1
    assert keys(compacted) == ["a", "b", "c", "d", "e"]
    assert fresh(table).version == 1


# Compaction and the history ----------------------------------------------------------------------


def operation_in(handle: Handle, version: int) -> str:
    """Read the class of operation from Lance's debug text, the only reader that knows them all."""
    (text,) = lance.debug.list_transactions(at(handle, version), 1)
    found = re.search(r"operation: (\w+)", text)
    assert found is not None, text
    return found[1]


def test_the_operation_of_every_version_can_be_read(table: Handle) -> None:
    handle = commit(table, stage_append(table, "d"))
    handle = commit(handle, stage_upsert(handle, "a"))
    handle = commit(handle, stage_delete(handle, "id = 'b'"))
    handle = commit(handle, stage_btree(handle, "id"))
    handle.update_metadata({"k": "v"})
    handle = commit(handle, Transaction(handle.version, Op.Restore(2)))
    expected = ["Overwrite", "Append", "Update", "Delete", "CreateIndex", "UpdateConfig", "Restore"]
    assert [type(handle.read_transaction(version).operation).__name__ for version in versions(handle)] == expected
    assert [operation_in(handle, version) for version in versions(handle)] == expected


def test_a_compaction_is_two_versions_and_the_first_has_no_class(table: Handle) -> None:
    handle = many_fragments(table)
    handle.optimize.compact_files()
    assert fresh(table).version == 5
    reserved, rewritten = (handle.read_transaction(version) for version in (4, 5))
    assert type(reserved.operation) is Op.BaseOperation
    assert isinstance(rewritten.operation, Op.Rewrite)
    assert [operation_in(handle, version) for version in (4, 5)] == ["ReserveFragments", "Rewrite"]


def test_a_compaction_that_moves_an_index_is_told_by_the_debug_text_only(table: Handle) -> None:
    handle = many_fragments(table)
    handle = commit(handle, stage_btree(handle, "x"))
    handle.optimize.compact_files()
    with pytest.raises(TypeError, match="RewrittenIndex"):
        handle.read_transaction(6)
    assert [operation_in(handle, version) for version in (5, 6)] == ["ReserveFragments", "Rewrite"]
    assert coverage(fresh(table), "by_x") == [fragment_ids(fresh(table))]


def test_a_compaction_with_nothing_to_do_makes_no_version(table: Handle) -> None:
    table.optimize.compact_files()
    assert fresh(table).version == 1


def test_a_compaction_lets_rows_in_and_loses_to_a_change(table: Handle) -> None:
    handle = many_fragments(table)
    plan = Compaction.plan(handle, {"target_rows_per_fragment": 1000})
    rewritten = [task.execute(handle) for task in plan.tasks]
    assert fresh(table).version == 3
    commit(fresh(table), stage_append(fresh(table), "f"))
    Compaction.commit(handle, rewritten)
    assert keys(fresh(table)) == ["a", "b", "c", "d", "e", "f"]

    handle = fresh(table)
    rewritten = [task.execute(handle) for task in Compaction.plan(handle, {"target_rows_per_fragment": 1000}).tasks]
    before = commit(fresh(table), stage_upsert(fresh(table), "a", x=7)).version
    with pytest.raises(OSError, match="Retryable commit conflict") as caught:
        Compaction.commit(handle, rewritten)
    assert classify(caught.value) is Failure.RETRYABLE_CONFLICT
    assert x_of(fresh(table), "a") == [7]
    assert fresh(table).version == before + 1, "the head moved although the compaction failed"
    assert operation_in(table, before + 1) == "ReserveFragments"


def test_a_compaction_keeps_the_identity_of_rows(table: Handle) -> None:
    handle = many_fragments(table)
    columns = ["id", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    before = handle.to_table(columns=columns)
    handle.optimize.compact_files()
    assert fresh(table).to_table(columns=columns).sort_by("id") == before.sort_by("id")


def test_a_compaction_keeps_blobs(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.string()), lance.blob_field("blob")])

    def with_blob(key: str) -> pa.Table:
        return pa.table({"id": [key], "blob": lance.blob_array([key.encode()])}, schema=schema)

    handle = lance.write_dataset(with_blob("a"), str(tmp_path / "t"), data_storage_version="2.2")
    handle = commit(handle, write_fragments(with_blob("b"), handle, return_transaction=True))
    handle.optimize.compact_files()
    assert len(fresh(handle).get_fragments()) == 1
    assert [blob.readall() for blob in fresh(handle).take_blobs("blob", indices=[0, 1])] == [b"a", b"b"]


# Reading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "condition", ["camelCase = 3", "`camelCase` = 3", "camelCase IN (3)", pc.field("camelCase") == 3], ids=str
)
def test_a_column_in_camel_case_is_found_and_its_index_used(tmp_path: Path, condition: str | pc.Expression) -> None:
    handle = lance.write_dataset(pa.table({"camelCase": [1, 2, 3]}), str(tmp_path / "t"))
    handle = commit(handle, stage_btree(handle, "camelCase"))
    assert handle.to_table(filter=condition).num_rows == 1
    assert uses_index(handle, condition)
    assert handle.get_fragments()[0].delete("camelCase = 3").num_deletions == 1


def test_a_name_in_double_quotes_is_a_text(table: Handle) -> None:
    assert table.to_table(filter="\"id\" = 'id'").num_rows == 3
    assert table.to_table(filter="`id` = 'a'").num_rows == 1


@pytest.mark.parametrize("literal", ["3.0", "'3'"])
def test_a_literal_of_another_type_is_refused(table: Handle, literal: str) -> None:
    with pytest.raises(ValueError, match="could not convert to literal"):
        table.to_table(filter=f"x = {literal}")


@pytest.mark.parametrize("condition,count", [("x > 1", 1), ("x >= 1", 2), ("x BETWEEN 0 AND 1", 2), ("x < 1", 1)])
def test_an_index_keeps_the_ends_of_a_range(tmp_path: Path, condition: str, count: int) -> None:
    handle = lance.write_dataset(pa.table({"x": [0, 1, 2, None]}), str(tmp_path / "t"))
    handle = commit(handle, stage_btree(handle, "x"))
    assert uses_index(handle, condition)
    assert handle.to_table(filter=condition).num_rows == count


def requests() -> Counter[str]:
    points = (point for point in snapshot_lance_metrics() if point.name == "lance_object_store_requests_total")
    total: Counter[str] = Counter()
    for point in points:  # one for each kind of store that was used
        total[point.attributes["operation"]] += int(point.value or 0)
    return total


def test_opening_a_pinned_version_is_two_requests_and_one_with_a_warm_session(table: Handle) -> None:
    register_lance_metrics_recorder()
    many_fragments(table)
    session = lance.Session()  # type: ignore[attr-defined]
    counted = []
    for _ in range(2):
        before = requests()
        assert lance.dataset(table.uri, version=2, session=session).version == 2
        counted.append(requests() - before)
    assert counted == [{"head": 1, "get": 1}, {"head": 1}]


def test_the_latest_version_is_looked_up_each_time_and_leaves_the_handle_where_it_is(table: Handle) -> None:
    session = lance.Session()  # type: ignore[attr-defined]
    pinned = lance.dataset(table.uri, version=1, session=session)
    assert lance.dataset(table.uri, session=session).latest_version == 1
    commit(table, stage_append(table, "d"))
    assert (pinned.version, pinned.latest_version, pinned.count_rows()) == (1, 2, 3)
    assert lance.dataset(table.uri, session=session).version == 2


# Changing the schema -----------------------------------------------------------------------------


def three_columns(at: Path) -> Handle:
    return lance.write_dataset(pa.table({"a": ["1"], "b": ["2"], "c": ["3"]}), str(at))


def test_a_schema_made_from_arrow_numbers_its_fields_anew_and_reads_the_wrong_column(tmp_path: Path) -> None:
    handle = three_columns(tmp_path / "t")
    renumbered = LanceSchema.from_pyarrow(pa.schema([("a", pa.string()), ("c", pa.string())]))
    wrong = detached(handle, Transaction(1, Op.Project(renumbered)))
    assert wrong.to_table().to_pylist() == [{"a": "1", "c": "2"}]


def test_a_schema_cut_from_the_stored_one_drops_the_right_column(tmp_path: Path) -> None:
    handle = three_columns(tmp_path / "t")
    stored = handle.lance_schema
    _, (metadata, *fields) = stored.__reduce__()
    kept = [proto for field, proto in zip(stored.fields(), fields, strict=True) if field.name() != "b"]
    right = detached(handle, Transaction(1, Op.Project(LanceSchema._from_protos(metadata, *kept))))
    assert right.to_table().to_pylist() == [{"a": "1", "c": "3"}]


def test_a_schema_changed_on_a_shallow_clone_fits_the_original(tmp_path: Path) -> None:
    handle = three_columns(tmp_path / "t")
    clone = handle.shallow_clone(str(tmp_path / "clone"), 1)
    clone.drop_columns(["b"])
    clone.alter_columns({"path": "c", "name": "renamed"})
    clone.add_columns(pa.field("added", pa.int32()))
    fragments = [fragment.metadata for fragment in handle.get_fragments()]
    changed = detached(handle, Transaction(1, Op.Merge(fragments, lance.dataset(clone.uri).lance_schema)))
    assert changed.to_table().to_pylist() == [{"a": "1", "renamed": "3", "added": None}]
    assert fresh(handle).version == 1


# Cleanup -----------------------------------------------------------------------------------------


def test_a_cleanup_of_main_keeps_what_a_branch_began_with(table: Handle) -> None:
    handle = commit(table, stage_append(table, "d"))
    handle.create_branch("feature", 2)
    handle = commit(handle, stage_overwrite(handle))
    handle.cleanup_old_versions(older_than=AT_ONCE, delete_unverified=True)
    assert versions(fresh(table)) == [2, 3]
    assert keys(on_branch(table, "feature")) == ["a", "b", "c", "d"]

    handle.branches.delete("feature")
    handle.cleanup_old_versions(older_than=AT_ONCE, delete_unverified=True)
    assert versions(fresh(table)) == [3]
    assert list(Path(table.uri).glob("data/*")) == []


def test_a_cleanup_spares_young_files_that_no_version_names_unless_told_otherwise(table: Handle) -> None:
    staged = stage_append(table, "d")
    preview = detached(table, staged).version
    table.cleanup_old_versions(older_than=AT_ONCE)
    assert keys(at(table, preview)) == ["a", "b", "c", "d"]

    table.cleanup_old_versions(older_than=AT_ONCE, delete_unverified=True)
    with pytest.raises(ValueError, match="Not found"):
        keys(at(table, preview))
    with pytest.raises(ValueError, match="Not found"):
        keys(commit(table, staged))


# A full disk -------------------------------------------------------------------------------------

STAGE_ON_A_FULL_DISK = """
import sys
from pathlib import Path
import lance, pyarrow as pa

root = Path(sys.argv[1])
handle = lance.write_dataset(pa.table({"x": [1]}), str(root / "t"))
try:
    with open(root / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 512)
except OSError:
    pass
staged = lance.fragment.write_fragments(pa.table({"x": [2]}), handle, return_transaction=True)
(file,) = staged.operation.fragments[0].files
print(file.file_size_bytes > 0, (root / "t" / "data" / file.path).stat().st_size)
"""


def test_the_last_write_of_a_data_file_can_fail_for_lack_of_space_without_an_error(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=128k none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(tmp_path)]
    try:
        done = subprocess.run(
            [*command, sys.executable, STAGE_ON_A_FULL_DISK], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode and "Traceback" not in done.stderr:
        pytest.skip("no small disk can be mounted here")
    assert done.stdout.split() == ["True", "0"], "so the size of every staged file must be checked"
