import json
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.api.results import Commit
from omnigraph.manifest.rows import (
    SCHEMA,
    TableRow,
    TombstoneRow,
    VersionRow,
    commit_record,
    decode_commit,
    encode,
    head_id,
    head_record,
)

_ABSENT = dict.fromkeys(SCHEMA.names)
_COMMIT = Commit(
    "01J00000000000000000000002", "side", 12, "01J00000000000000000000001", None, "ann", 1_700_000_000_000_001
)


def _stored(record: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = encode([record]).to_pylist()[0]
    return row


def test_the_columns_are_those_of_the_format() -> None:
    fields = {field.name: (str(field.type), field.nullable) for field in SCHEMA}

    assert fields == {
        "object_id": ("string", False),
        "object_type": ("string", False),
        "location": ("string", True),
        "metadata": ("string", True),
        "table_key": ("string", False),
        "table_version": ("uint64", True),
        "table_branch": ("string", True),
        "row_count": ("uint64", True),
    }


def test_no_column_is_marked_as_a_key() -> None:
    """The state is swapped whole: a mark would only make Lance keep a filter of the keys in every version."""
    assert not [field.name for field in SCHEMA if b"lance-schema:unenforced-primary-key" in (field.metadata or {})]


def test_a_table_row_says_where_the_table_is() -> None:
    assert _stored(TableRow("node:Person", "nodes/40d76f1f51639ec0").record()) == _ABSENT | {
        "object_id": "node:Person",
        "object_type": "table",
        "table_key": "node:Person",
        "location": "nodes/40d76f1f51639ec0",
    }


@pytest.mark.parametrize("branch", [None, "side"])
def test_a_version_row_has_the_version_in_twenty_digits_in_its_id(branch: str | None) -> None:
    row = _stored(VersionRow("edge:Knows", 7, branch, 3).record())

    assert row == _ABSENT | {
        "object_id": "edge:Knows$00000000000000000007",
        "object_type": "table_version",
        "table_key": "edge:Knows",
        "table_version": 7,
        "table_branch": branch,
        "row_count": 3,
    }


def test_a_tombstone_row_names_the_last_version_that_is_gone() -> None:
    assert _stored(TombstoneRow("node:Person", 7).record()) == _ABSENT | {
        "object_id": "node:Person$tombstone$00000000000000000007",
        "object_type": "table_tombstone",
        "table_key": "node:Person",
        "table_version": 7,
    }


def test_a_commit_row_has_its_version_and_branch_in_columns_and_the_rest_in_metadata() -> None:
    assert _stored(commit_record(_COMMIT)) == _ABSENT | {
        "object_id": "01J00000000000000000000002",
        "object_type": "graph_commit",
        "table_key": "",
        "table_version": 12,
        "table_branch": "side",
        "metadata": '{"parent_commit_id":"01J00000000000000000000001","actor_id":"ann","created_at":1700000000000001}',
    }


def test_a_head_row_names_the_commit_and_its_parent() -> None:
    assert _stored(head_record(_COMMIT)) == _ABSENT | {
        "object_id": "graph_head:side",
        "object_type": "graph_head",
        "table_key": "",
        "metadata": '{"head_commit_id":"01J00000000000000000000002","parent_commit_id":"01J00000000000000000000001"}',
    }


def test_the_head_row_of_main_has_the_name_of_main() -> None:
    assert head_id(None) == "graph_head:main"


@pytest.mark.parametrize(
    "commit, names",
    [
        (Commit("c", None, 1, None, None, None, 5), {"created_at"}),
        (
            Commit("c", "side", 9, "p", "m", "ann", 5),
            {"parent_commit_id", "merged_parent_commit_id", "actor_id", "created_at"},
        ),
    ],
)
def test_a_commit_is_read_as_it_was_written_and_stores_no_absent_member(commit: Commit, names: set[str]) -> None:
    row = _stored(commit_record(commit))

    assert decode_commit(row) == commit
    assert set(json.loads(row["metadata"])) == names


def test_the_largest_version_still_fits() -> None:
    row = _stored(VersionRow("node:A", 2**64 - 1, None, 2**64 - 1).record())

    assert (row["object_id"], row["table_version"]) == ("node:A$18446744073709551615", 2**64 - 1)


def test_no_rows_still_have_the_columns() -> None:
    assert encode([]).schema.equals(pa.schema(SCHEMA))
