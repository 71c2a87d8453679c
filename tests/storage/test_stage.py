import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from omnigraph.api.results import TableVersion
from omnigraph.core.location import Location
from omnigraph.errors import ConflictError, CorruptGraphError, OmnigraphError, StorageError
from omnigraph.storage import observe
from omnigraph.storage.layout import IndexSpec
from omnigraph.storage.stage import MAX_ROWS_PER_FILE, CommittedVersion, SchemaChange, Staged, TableStorage
from tests.support.graphs import stage_delete

PRIMARY_KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False, metadata=PRIMARY_KEY),
        pa.field("near", pa.list_(pa.field("item", pa.float32()), 2)),
        pa.field("text", pa.string()),
        pa.field("x", pa.int64()),
    ]
)
INDICES = (IndexSpec("id", "BTREE"), IndexSpec("text", "INVERTED"), IndexSpec("near", "IVF_FLAT"))
Write = Callable[[TableStorage, TableVersion], Staged]


def rows(*ids: str, x: int = 0, schema: pa.Schema = SCHEMA) -> pa.Table:
    made = [{"id": key, "x": x, "text": f"word of {key}", "near": [x, n]} for n, key in enumerate(ids)]
    return pa.Table.from_pylist(made, schema=schema)


@pytest.fixture
def storage(root_uri: str) -> TableStorage:
    return TableStorage(Location.parse(root_uri))


@pytest.fixture
def table(storage: TableStorage) -> TableVersion:
    """Rows a, b and c in one fragment, d and e in another, at version 3."""
    base = create(storage)
    base = commit(storage, storage.stage_append(base, rows("a", "b", "c")))
    return commit(storage, storage.stage_append(base, rows("d", "e", x=1)))


def create(storage: TableStorage, schema: pa.Schema = SCHEMA) -> TableVersion:
    return TableVersion("node:A", "nodes/a", storage.create("nodes/a", schema).version)


def commit(storage: TableStorage, staged: Staged) -> TableVersion:
    """Commit, and hold the commit to its promises."""
    before = head(storage)
    done = land(storage, staged)
    assert done.version == head(storage) == before + 1
    there = replace(staged.base, version=done.version)
    assert transaction_uuid(storage, there) == staged.uuid
    assert done.row_count == storage.open(there).count_rows()
    return there


def transaction_uuid(storage: TableStorage, table: TableVersion) -> str | None:
    made_by = storage.made_by(table)
    return made_by.uuid if made_by else None


def land(storage: TableStorage, staged: Staged) -> CommittedVersion:
    """Commit right behind the base."""
    return storage.commit_staged(staged, staged.base.version + 1)


def head(storage: TableStorage) -> int:
    return int(storage.head("nodes/a", None).version)


def content(handle: lance.LanceDataset) -> dict[str, int]:
    read = handle.to_table(columns=["id", "x"]).to_pylist()
    found = {row["id"]: row["x"] for row in read}
    assert len(found) == len(read), "an id is there twice"
    return dict(sorted(found.items()))


def fragments(handle: lance.LanceDataset) -> list[int]:
    return [fragment.count_rows() for fragment in handle.get_fragments()]


# Every staged write


def _append(storage: TableStorage, table: TableVersion) -> Staged:
    return storage.stage_append(table, rows("f", "g", x=7))


def _upsert(storage: TableStorage, table: TableVersion) -> Staged:
    return storage.stage_upsert(table, rows("a", "e", "f", x=7))


def _overwrite(storage: TableStorage, table: TableVersion) -> Staged:
    return storage.stage_overwrite(table, rows("z", x=7))


def _empty(storage: TableStorage, table: TableVersion) -> Staged:
    return storage.stage_overwrite(table, rows())


def _delete(storage: TableStorage, table: TableVersion) -> Staged:
    staged = stage_delete(storage, table, "id IN ('a', 'd')")
    assert staged
    return staged[0]


def _index(storage: TableStorage, table: TableVersion) -> Staged:
    return storage.stage_create_indices(table, INDICES)


def _change_columns(storage: TableStorage, table: TableVersion) -> Staged:
    return storage.stage_schema_change(table, SchemaChange(drop=("text",), add=(pa.field("y", pa.int32()),)))


def _restore(storage: TableStorage, table: TableVersion) -> Staged:
    return storage.stage_restore(table, 2, "0f5b1c7e-0000-4000-8000-000000000000")


BEFORE = {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1}
WRITES: dict[str, tuple[Write, dict[str, int]]] = {
    "append": (_append, BEFORE | {"f": 7, "g": 7}),
    "upsert": (_upsert, BEFORE | {"a": 7, "e": 7, "f": 7}),
    "overwrite": (_overwrite, {"z": 7}),
    "overwrite with nothing": (_empty, {}),
    "delete": (_delete, {"b": 0, "c": 0, "e": 1}),
    "index": (_index, BEFORE),
    "columns": (_change_columns, BEFORE),
    "restore": (_restore, {"a": 0, "b": 0, "c": 0}),
}
every_write = pytest.mark.parametrize("write, after", WRITES.values(), ids=WRITES)
LOGICAL = {name: write for name, write in WRITES.items() if name != "index"}  # an index may be rebased
every_logical_write = pytest.mark.parametrize("write, after", LOGICAL.values(), ids=LOGICAL)


@every_write
def test_a_staged_write_moves_no_head_and_can_be_read(
    storage: TableStorage, table: TableVersion, write: Write, after: dict[str, int]
) -> None:
    staged = write(storage, table)

    assert staged.base == table
    assert staged.transaction.read_version == table.version
    assert content(storage.read_staged(staged)) == after
    assert content(storage.read_staged(staged)) == after, "reading it changes nothing"
    assert head(storage) == table.version
    assert content(storage.head("nodes/a", None)) == BEFORE


@every_write
def test_a_commit_moves_the_head_by_one_to_what_was_staged(
    storage: TableStorage, table: TableVersion, write: Write, after: dict[str, int]
) -> None:
    staged = write(storage, table)
    storage.read_staged(staged)

    there = commit(storage, staged)

    assert content(storage.open(there)) == after
    assert content(storage.open(table)) == BEFORE, "the version before is still there"


@every_write
def test_a_committed_table_keeps_its_settings_and_its_key(
    storage: TableStorage, table: TableVersion, write: Write, after: dict[str, int]
) -> None:
    handle = storage.open(commit(storage, write(storage, table)))

    assert len(after) == handle.count_rows()
    assert handle.has_stable_row_ids
    assert handle.data_storage_version == "2.2"
    assert not handle.config()
    assert handle.schema.field("id").metadata == PRIMARY_KEY
    assert handle.schema.field("id").nullable is False


@every_logical_write
def test_a_commit_whose_base_is_no_longer_the_head_fails(
    storage: TableStorage, table: TableVersion, write: Write, after: dict[str, int]
) -> None:
    staged = write(storage, table)
    commit(storage, storage.stage_append(table, rows("y", x=3)))

    with pytest.raises(ConflictError) as failure:
        land(storage, staged)

    assert failure.value.hint
    assert after != BEFORE | {"y": 3}


@every_write
def test_a_write_that_is_committed_again_fails_or_is_found(
    storage: TableStorage, table: TableVersion, write: Write, after: dict[str, int]
) -> None:
    staged = write(storage, table)
    there = commit(storage, staged)

    with suppress(ConflictError):
        assert land(storage, staged).version == there.version

    assert content(storage.open(there)) == after


def test_a_table_that_would_clean_itself_up_is_not_committed_to(storage: TableStorage, table: TableVersion) -> None:
    handle = storage.open(table)
    handle.update_config({"lance.auto_cleanup.interval": "1000", "lance.auto_cleanup.older_than": "0s"})
    staged = _append(storage, replace(table, version=handle.version))

    with pytest.raises(CorruptGraphError, match="clean") as failure:
        land(storage, staged)

    assert failure.value.hint
    assert head(storage) == handle.version
    assert content(storage.open(table)) == BEFORE


@every_write
def test_staging_and_committing_are_counted_as_durable_writes(
    storage: TableStorage, table: TableVersion, write: Write, after: dict[str, int]
) -> None:
    seen: list[str] = []
    previous = observe.set_write_hook(
        lambda operation, path: seen.append(operation) if path.endswith("nodes/a") else None
    )
    try:
        staged = write(storage, table)
        staging = list(seen)
        land(storage, staged)
    finally:
        observe.set_write_hook(previous)

    assert len(staging) == (write is not _restore)
    assert seen == [*staging, "commit table"]
    assert len(after) == storage.head("nodes/a", None).count_rows()


def test_two_writes_never_share_a_uuid(storage: TableStorage, table: TableVersion) -> None:
    staged = [write(storage, table) for write, _ in WRITES.values() for _ in range(2) if write is not _restore]

    assert len({one.uuid for one in staged}) == len(staged)


# Creating


def test_a_table_is_created_empty_at_version_one(storage: TableStorage) -> None:
    assert storage.create("nodes/a", SCHEMA) == CommittedVersion(1, 0)

    handle = storage.head("nodes/a", None)
    assert handle.schema.equals(SCHEMA)
    assert (handle.version, handle.count_rows(), fragments(handle)) == (1, 0, [])


def test_what_an_abandoned_attempt_left_is_replaced(storage: TableStorage, table: TableVersion) -> None:
    assert table.version == 3
    other = pa.schema([SCHEMA.field("id"), pa.field("y", pa.bool_())])

    done = storage.create("nodes/a", other)

    handle = storage.open(replace(table, version=done.version))
    assert done.version == head(storage)
    assert handle.schema.equals(other)
    assert (handle.count_rows(), handle.has_stable_row_ids) == (0, True)


def test_a_version_that_is_not_there_is_an_error_that_names_the_table(storage: TableStorage, root_uri: str) -> None:
    create(storage)

    for missing in (TableVersion("node:A", "nodes/a", 9), TableVersion("node:B", "nodes/b", 1)):
        with pytest.raises(StorageError) as failure:
            storage.open(missing)
        assert failure.value.path == f"{root_uri}/{missing.path}"
    with pytest.raises(StorageError):
        storage.head("nodes/b", None)


# Appending and overwriting


@pytest.mark.slow
@pytest.mark.xfail(reason="lance's merge_insert takes no limit of rows per file", strict=True)
def test_no_fragment_is_larger_than_a_one_row_update_can_afford(tmp_path: Path) -> None:
    storage = TableStorage(Location.parse(tmp_path))
    narrow = pa.schema([SCHEMA.field("id"), SCHEMA.field("x")])

    def many(start: int, count: int) -> pa.Table:
        return pa.table({"id": [f"{n:06}" for n in range(start, start + count)], "x": pa.array(range(count))}).cast(
            narrow
        )

    size = MAX_ROWS_PER_FILE
    assert size == 65_536
    base = create(storage, narrow)
    base = commit(storage, storage.stage_append(base, many(0, size + 1)))
    assert fragments(storage.open(base)) == [size, 1]
    base = commit(storage, storage.stage_overwrite(base, many(0, size + 1)))
    assert fragments(storage.open(base)) == [size, 1]
    base = commit(storage, storage.stage_upsert(base, many(size + 1, size + 1)))
    assert max(fragments(storage.open(base))) <= size
    assert storage.open(base).count_rows() == 2 * size + 2


def test_rows_are_stored_with_the_types_of_the_table(storage: TableStorage, table: TableVersion) -> None:
    narrow = rows("f").set_column(3, "x", pa.array([7], pa.int32()))

    there = commit(storage, storage.stage_append(table, narrow))

    assert content(storage.open(there))["f"] == 7
    assert storage.open(there).schema.equals(SCHEMA)


@pytest.mark.parametrize("stage", ["stage_append", "stage_overwrite", "stage_upsert"])
def test_a_row_without_an_id_is_refused_when_it_is_staged(
    storage: TableStorage, table: TableVersion, stage: str
) -> None:
    nameless = rows("f").set_column(0, "id", pa.array([None], pa.string()))

    with pytest.raises(OmnigraphError):
        getattr(storage, stage)(table, nameless)

    assert head(storage) == table.version


def test_an_empty_table_takes_rows_again(storage: TableStorage, table: TableVersion) -> None:
    there = commit(storage, _empty(storage, table))
    assert fragments(storage.open(there)) == []
    assert storage.open(there).schema.equals(SCHEMA)

    there = commit(storage, storage.stage_append(there, rows("n")))

    assert content(storage.open(there)) == {"n": 0}


# Upserting


@pytest.mark.parametrize("indexed", [False, True], ids=["without an index", "with an index on the id"])
def test_an_upsert_keeps_whole_rows_their_identity_and_every_other_row(
    storage: TableStorage, table: TableVersion, *, indexed: bool
) -> None:
    if indexed:
        table = commit(storage, storage.stage_create_indices(table, INDICES[:1]))
    before = _identities(storage.open(table))

    staged = _upsert(storage, table)
    operation: Any = staged.transaction.operation
    assert operation.update_mode == "rewrite_rows"
    there = commit(storage, staged)

    after = {row["id"]: row for row in storage.open(there).to_table().to_pylist()}
    assert after["a"] == {"id": "a", "near": [7.0, 0.0], "text": "word of a", "x": 7}
    assert after["b"] == {"id": "b", "near": [0.0, 1.0], "text": "word of b", "x": 0}
    identities = _identities(storage.open(there))
    assert {key: identities[key] for key in before} == before
    assert identities["f"] not in before.values()
    for key in BEFORE:
        assert storage.open(there).to_table(filter=f"id = '{key}'").num_rows == 1


def _identities(handle: lance.LanceDataset) -> dict[str, int]:
    read = handle.to_table(columns=["id"], with_row_id=True)
    return dict(zip(read["id"].to_pylist(), read["_rowid"].to_pylist(), strict=True))


def test_only_rows_that_an_upsert_names_count_as_changed(storage: TableStorage, table: TableVersion) -> None:
    there = commit(storage, _upsert(storage, table))

    columns = ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    read = storage.open(there).to_table(columns=columns).to_pylist()
    versions = {row["id"]: (row[columns[1]], row[columns[2]]) for row in read}
    assert versions == {"a": (2, 4), "b": (2, 2), "c": (2, 2), "d": (3, 3), "e": (3, 4), "f": (4, 4)}


# Deleting


@pytest.mark.parametrize(
    "predicate, deleted, left",
    [
        ("id = 'b'", "b", [2, 2]),
        ("x = 1", "de", [3]),
        ("id <= 'd'", "abcd", [1]),
        ("true", "abcde", []),
        ("text LIKE 'word of %' AND near IS NOT NULL AND x < 1", "abc", [2]),
    ],
)
def test_a_delete_takes_exactly_the_rows_that_match(
    storage: TableStorage, table: TableVersion, predicate: str, deleted: str, left: list[int]
) -> None:
    staged = stage_delete(storage, table, predicate)

    assert staged
    assert staged[1] == len(deleted)
    there = commit(storage, staged[0])
    assert content(storage.open(there)) == {key: x for key, x in BEFORE.items() if key not in deleted}
    assert fragments(storage.open(there)) == left


def test_deletes_follow_one_another(storage: TableStorage, table: TableVersion) -> None:
    for count, predicate in ((1, "id = 'a'"), (1, "id IN ('a', 'b')"), (1, "x = 0"), (2, "true")):
        staged = stage_delete(storage, table, predicate)
        assert staged
        assert staged[1] == count
        table = commit(storage, staged[0])

    assert content(storage.open(table)) == {}
    assert stage_delete(storage, table, "true") is None


def test_a_delete_of_nothing_stages_nothing(storage: TableStorage, table: TableVersion, root_uri: str) -> None:
    seen: list[str] = []
    before = sorted(Path(root_uri).rglob("*"))
    previous = observe.set_write_hook(lambda operation, _: seen.append(operation))
    try:
        assert stage_delete(storage, table, "id = 'nobody'") is None
        assert stage_delete(storage, table, "x IS NULL") is None
    finally:
        observe.set_write_hook(previous)

    assert seen == []
    assert sorted(Path(root_uri).rglob("*")) == before
    assert head(storage) == table.version


def test_a_delete_finds_its_rows_through_an_index_too(storage: TableStorage, table: TableVersion) -> None:
    table = commit(storage, storage.stage_create_indices(table, INDICES))
    table = commit(storage, storage.stage_append(table, rows("f")))

    staged = stage_delete(storage, table, "id IN ('a', 'e', 'f')")

    assert staged
    assert staged[1] == 3
    there = commit(storage, staged[0])
    assert content(storage.open(there)) == {"b": 0, "c": 0, "d": 1}
    assert storage.open(there).to_table(filter="id = 'a'").num_rows == 0


@pytest.mark.parametrize("predicate", ["nobody = 1", "id =", ""])
def test_a_predicate_that_makes_no_sense_is_an_error_of_ours(
    storage: TableStorage, table: TableVersion, predicate: str
) -> None:
    with pytest.raises(OmnigraphError):
        stage_delete(storage, table, predicate)

    assert head(storage) == table.version


# Indices


def _index_names(handle: lance.LanceDataset) -> dict[str, int]:
    return {index.name: index.num_rows_indexed for index in handle.describe_indices()}


def _assert_found_by_every_index(handle: lance.LanceDataset, key: str, x: int) -> None:
    by_id = handle.scanner(filter=f"id = '{key}'")
    assert "ScalarIndexQuery" in by_id.explain_plan()
    assert [row["x"] for row in by_id.to_table().to_pylist()] == [x]
    assert handle.to_table(full_text_query=key)["id"].to_pylist() == [key]
    vector = handle.to_table(filter=f"id = '{key}'")["near"].to_pylist()[0]
    nearest: dict[str, Any] = {"column": "near", "q": vector, "k": 1}
    assert handle.to_table(nearest=nearest)["near"].to_pylist() == [vector]


def test_three_kinds_of_index_are_built_in_one_commit_and_used(storage: TableStorage, table: TableVersion) -> None:
    staged = _index(storage, table)
    _assert_found_by_every_index(storage.read_staged(staged), "b", 0)

    there = commit(storage, staged)

    handle = storage.open(there)
    assert _index_names(handle) == {"id_btree": 5, "text_inverted": 5, "near_ivf_flat": 5}
    _assert_found_by_every_index(handle, "b", 0)
    _assert_found_by_every_index(handle, "e", 1)
    assert "ANN" in handle.scanner(nearest={"column": "near", "q": [0.0, 0.0], "k": 1}).explain_plan()


def test_indices_are_built_again_over_what_came_later(storage: TableStorage, table: TableVersion) -> None:
    table = commit(storage, _index(storage, table))
    table = commit(storage, storage.stage_append(table, rows("later", x=8)))
    table = commit(storage, _upsert(storage, table))
    _assert_found_by_every_index(storage.open(table), "later", 8)

    there = commit(storage, _index(storage, table))

    assert _index_names(storage.open(there)) == {"id_btree": 7, "text_inverted": 7, "near_ivf_flat": 7}
    _assert_found_by_every_index(storage.open(there), "later", 8)
    _assert_found_by_every_index(storage.open(there), "e", 7)


def test_an_index_on_another_column_leaves_the_others(storage: TableStorage, table: TableVersion) -> None:
    for number, index in enumerate(INDICES, 1):
        table = commit(storage, storage.stage_create_indices(table, [index]))
        assert set(_index_names(storage.open(table))) == {index.name for index in INDICES[:number]}


def test_an_overwritten_table_answers_without_the_indices_it_lost(storage: TableStorage, table: TableVersion) -> None:
    table = commit(storage, _index(storage, table))

    there = commit(storage, storage.stage_overwrite(table, rows("n", x=4)))

    handle = storage.open(there)
    assert handle.to_table(filter="id = 'a'").num_rows == 0
    assert handle.to_table(filter="id = 'n'")["x"].to_pylist() == [4]


# Columns


def test_columns_are_dropped_renamed_and_added_in_one_commit(storage: TableStorage, table: TableVersion) -> None:
    table = commit(storage, _index(storage, table))
    change = SchemaChange(
        drop=("text",), rename=(("x", "number"),), add=(pa.field("y", pa.int32()), pa.field("z", pa.list_(pa.string())))
    )

    there = commit(storage, storage.stage_schema_change(table, change))

    handle = storage.open(there)
    read = {row["id"]: row for row in handle.to_table().to_pylist()}
    assert read["e"] == {"id": "e", "near": [1.0, 1.0], "number": 1, "y": None, "z": None}
    assert handle.to_table(filter="id = 'b'")["number"].to_pylist() == [0]
    assert handle.to_table(filter="number = 1").num_rows == 2
    new = pa.Table.from_pylist([{"id": "n", "number": 5, "y": 6, "z": ["w"]}], schema=handle.schema)
    after = commit(storage, storage.stage_append(there, new))
    assert storage.open(after).to_table(filter="y = 6")["z"].to_pylist() == [["w"]]
    assert content(storage.open(table)) == BEFORE


@pytest.mark.xfail(reason="lance refuses to give a name to another field in one commit", strict=True)
@pytest.mark.parametrize(
    "change",
    [
        SchemaChange(drop=("x",), add=(pa.field("x", pa.int32()),)),
        SchemaChange(rename=(("x", "old"),), add=(pa.field("x", pa.int32()),)),
        SchemaChange(drop=("text",), rename=(("x", "text"),), add=(pa.field("x", pa.int32()),)),
    ],
    ids=["drop and add", "rename and add", "drop, rename and add"],
)
def test_a_name_that_became_free_can_be_given_again(
    storage: TableStorage, table: TableVersion, change: SchemaChange
) -> None:
    there = commit(storage, storage.stage_schema_change(table, change))

    assert storage.open(there).to_table()["x"].to_pylist() == [None] * 5
    assert storage.open(there).schema.field("x").type == pa.int32()
    for _, new in change.rename:
        assert storage.open(there).to_table()[new].to_pylist() == list(BEFORE.values())


def test_a_column_that_is_dropped_and_added_again_is_empty(storage: TableStorage, table: TableVersion) -> None:
    there = commit(storage, storage.stage_schema_change(table, SchemaChange(drop=("x",))))
    again = commit(storage, storage.stage_schema_change(there, SchemaChange(add=(pa.field("x", pa.int64()),))))

    assert storage.open(again).to_table()["x"].to_pylist() == [None] * 5
    assert storage.open(again).to_table()["text"].null_count == 0


def test_changing_columns_rewrites_no_data_and_leaves_nothing_behind(
    storage: TableStorage, table: TableVersion, root_uri: str
) -> None:
    files = storage.open(table).get_fragments()[0].data_files()
    there = commit(storage, _change_columns(storage, table))

    assert [file.path for file in storage.open(there).get_fragments()[0].data_files()] == [file.path for file in files]
    if storage.location.is_local:
        assert sorted(path.name for path in Path(root_uri).iterdir()) == ["nodes"]


@pytest.mark.once_on_s3
@pytest.mark.parametrize(
    "change",
    [
        SchemaChange(drop=("nothing",)),
        SchemaChange(rename=(("nothing", "y"),)),
        SchemaChange(rename=(("x", "text"),)),
        SchemaChange(add=(pa.field("x", pa.string()),)),
    ],
)
def test_a_change_of_columns_that_makes_no_sense_is_an_error_of_ours(
    storage: TableStorage, table: TableVersion, change: SchemaChange
) -> None:
    with pytest.raises(OmnigraphError):
        storage.stage_schema_change(table, change)

    assert head(storage) == table.version


# Restoring


def test_a_restore_brings_back_rows_and_indices_under_the_uuid_it_was_given(
    storage: TableStorage, table: TableVersion
) -> None:
    indexed = commit(storage, _index(storage, table))
    moved = commit(storage, _delete(storage, indexed))

    there = commit(storage, storage.stage_restore(moved, indexed.version, "11111111-0000-4000-8000-000000000000"))

    assert content(storage.open(there)) == BEFORE
    assert transaction_uuid(storage, there) == "11111111-0000-4000-8000-000000000000"
    _assert_found_by_every_index(storage.open(there), "d", 1)


# Who moved a table


def test_who_moved_a_table_is_told_or_not_known(storage: TableStorage, table: TableVersion) -> None:
    options = storage.location.storage_options
    table = commit(storage, _index(storage, table))
    handle = lance.dataset(storage.location.child("nodes/a"), storage_options=options)
    handle.optimize.compact_files()

    assert head(storage) == table.version + 2
    assert transaction_uuid(storage, table)
    for version in (table.version + 1, table.version + 2):
        assert transaction_uuid(storage, replace(table, version=version)) != transaction_uuid(storage, table)


def test_tables_are_read_and_written_on_their_native_branches(storage: TableStorage, table: TableVersion) -> None:
    storage.open(table).create_branch("team/side", storage_options=storage.location.storage_options)
    side = replace(table, branch="team/side")

    staged = storage.stage_append(side, rows("s", x=5))
    done = land(storage, staged)

    assert done.version == storage.head("nodes/a", "team/side").version == table.version + 1
    assert transaction_uuid(storage, replace(side, version=done.version)) == staged.uuid
    assert content(storage.head("nodes/a", "team/side")) == BEFORE | {"s": 5}
    assert content(storage.head("nodes/a", None)) == BEFORE
    assert head(storage) == table.version


# A full disk


_ON_A_SMALL_DISK = [
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-ec",
    'mount -t tmpfs -o size=640k none "$0"; exec "$@"',
]
_WRITE_ON_A_FULL_DISK = """
import os, sys
from pathlib import Path
from omnigraph.errors import StorageError
from omnigraph.core.location import Location
from omnigraph.storage.stage import TableStorage
from tests.storage import test_stage as tests

root = Path(sys.argv[1])
for kind in sys.argv[2:]:
    write, expected = tests.WRITES[kind]
    refused = 0
    for pages in range(40):
        name = root / kind / str(pages)
        storage = TableStorage(Location.parse(name))
        table = tests.commit(storage, storage.stage_append(tests.create(storage), tests.rows(*"abc")))
        table = tests.commit(storage, storage.stage_append(table, tests.rows(*"de", x=1)))
        filler = root / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        os.truncate(filler, max(0, filler.stat().st_size - pages * 4096))
        try:
            staged = write(storage, table)
        except StorageError as error:
            refused += 1
            staged = None
        finally:
            filler.unlink()
        if staged is not None:  # space is free again, so whatever was staged must be whole or be refused
            try:
                tests.land(storage, staged)
            except StorageError:
                refused += 1
        handle = storage.head("nodes/a", None)
        found = tests.content(handle)
        assert found in (tests.BEFORE, expected), (kind, pages, found)
        assert handle.to_table(filter="id = 'b'").num_rows == ("b" in found)
        __import__("shutil").rmtree(name)
        if staged is not None and handle.version > table.version and pages > 12:
            break
    assert refused > 0, kind
"""


def test_a_full_disk_never_damages_a_table(tmp_path: Path) -> None:
    """One page more is free each time, so that every file of a staged write is once the one that does not fit."""
    kinds = ["append", "upsert", "overwrite", "delete", "index"]  # in one process, which is most of what a kind costs
    if not shutil.which("unshare") or subprocess.run([*_ON_A_SMALL_DISK, tmp_path, "true"], check=False).returncode:
        pytest.skip("a small disk can be mounted only where user namespaces are allowed")

    command = [*_ON_A_SMALL_DISK, str(tmp_path), sys.executable, "-c", _WRITE_ON_A_FULL_DISK, str(tmp_path), *kinds]
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2])

    assert run.returncode == 0, run.stderr[-3000:]
