import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from omnigraph.api.results import TableVersion
from omnigraph.core.location import Location
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.storage.columns import table_key, table_path, table_schema
from omnigraph.storage.layout import IndexSpec
from omnigraph.storage.stage import Staged, TableStorage
from tests.support.graphs import stage_delete

_MARK = {b"lance-schema:unenforced-primary-key": b"true"}


def catalog(text: str) -> Catalog:
    return compile_schema(Source(text))


def columns(schema: pa.Schema) -> list[tuple[str, str, bool]]:
    return [(field.name, str(field.type), field.nullable) for field in schema]


# Where a table lives


@pytest.mark.parametrize(
    "name, digest",
    [
        # The first three are among the published test values of the hash.
        ("", "cbf29ce484222325"),
        ("a", "af63dc4c8601ec8c"),
        ("foobar", "85944171f73967e8"),
        ("A", "af63fc4c860222ec"),
        ("Person", "40d76f1f51639ec0"),
    ],
)
def test_the_directory_of_a_table_is_the_hash_of_its_types_name(name: str, digest: str) -> None:
    assert table_path(NodeType(name, {})) == f"nodes/{digest}"
    assert table_path(EdgeType(name, "A", "A", {})) == f"edges/{digest}"


def test_a_node_and_an_edge_of_one_name_are_two_tables() -> None:
    declared = catalog("node Same { a: String @key } edge Same: Same -> Same")

    assert table_key(declared.nodes["Same"]) == "node:Same"
    assert table_key(declared.edges["Same"]) == "edge:Same"
    assert table_path(declared.nodes["Same"]) != table_path(declared.edges["Same"])


def test_names_that_differ_in_case_are_different_tables() -> None:
    declared = catalog("node Ab { a: String @key } node AB { a: String @key }")

    assert len({table_path(node) for node in declared.nodes.values()}) == 2


# The columns


_TYPES = {
    "String": pa.string(),
    "Bool": pa.bool_(),
    "I32": pa.int32(),
    "I64": pa.int64(),
    "U32": pa.uint32(),
    "U64": pa.uint64(),
    "F32": pa.float32(),
    "F64": pa.float64(),
    "Date": pa.date32(),
    "DateTime": pa.date64(),
    "enum(red, green)": pa.string(),
    "Vector(3)": pa.list_(pa.field("item", pa.float32()), 3),
    "[String]": pa.list_(pa.field("item", pa.string())),
    "[U64]": pa.list_(pa.field("item", pa.uint64())),
    "[DateTime]": pa.list_(pa.field("item", pa.date64())),
}


@pytest.mark.parametrize("mark", ["", "?"])
@pytest.mark.parametrize("declared, expected", _TYPES.items())
def test_each_type_has_its_arrow_type(declared: str, expected: pa.DataType, mark: str) -> None:
    node = catalog(f"node A {{ key: String @key  value: {declared}{mark} }}").nodes["A"]

    field = table_schema(node).field("value")

    assert field.type == expected
    assert field.nullable is bool(mark)
    if pa.types.is_nested(field.type):
        assert (field.type.value_field.name, field.type.value_field.nullable) == ("item", True)


def test_a_node_table_has_its_id_first_and_then_its_properties_by_name() -> None:
    node = catalog(
        "interface Named { name: String } node A implements Named { zip: I32? key: String @key bZ: Bool? }"
    ).nodes["A"]

    assert columns(table_schema(node)) == [
        ("id", "string", False),
        ("bZ", "bool", True),
        ("key", "string", False),
        ("name", "string", False),
        ("zip", "int32", True),
    ]


def test_an_edge_table_has_its_ends_behind_its_id() -> None:
    edge = catalog("node A { key: String @key } edge Likes: A -> A { since: Date? }").edges["Likes"]

    assert columns(table_schema(edge)) == [
        ("id", "string", False),
        ("src", "string", False),
        ("dst", "string", False),
        ("since", "date32[day]", True),
    ]


def test_only_the_id_is_marked_as_the_primary_key() -> None:
    declared = catalog("node A { key: String @key x: I32 } edge Likes: A -> A { y: I32 }")

    for table in (declared.nodes["A"], declared.edges["Likes"]):
        marked = {field.name: field.metadata for field in table_schema(table) if field.metadata}
        assert marked == {"id": _MARK}


# On disk


@pytest.fixture
def storage(tmp_path: Path) -> TableStorage:
    return TableStorage(Location.parse(tmp_path))


def _create(storage: TableStorage, text: str) -> TableVersion:
    node = catalog(text).nodes["A"]
    done = storage.create(table_path(node), table_schema(node))
    return TableVersion(table_key(node), table_path(node), done.version)


def _commit(storage: TableStorage, staged: Staged) -> TableVersion:
    done = storage.commit_staged(staged, staged.base.version + 1)
    return replace(staged.base, version=done.version)


def _append(storage: TableStorage, base: TableVersion, rows: pa.Table) -> TableVersion:
    return _commit(storage, storage.stage_append(base, rows))


_VALUES: dict[str, list[Any]] = {
    "String": ["", "Käse \N{CHEESE WEDGE}"],
    "Bool": [True, False],
    "I32": [-(2**31), 2**31 - 1],
    "I64": [-(2**63), 2**63 - 1],
    "U32": [0, 2**32 - 1],
    "U64": [0, 2**64 - 1],
    "F32": [1.5, 3.4028234663852886e38],
    "F64": [5e-324, 1.7976931348623157e308],
    "Date": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "DateTime": [dt.datetime(1900, 1, 1), dt.datetime(2100, 2, 3, 4, 5, 6, 7000)],  # noqa: DTZ001 - Arrow has no zone here
    "enum(red, green)": ["red", "green"],
    "Vector(3)": [[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]],
    "[String]": [[], ["a", None, ""]],
    "[U64]": [[2**64 - 1], []],
    "[DateTime]": [[dt.datetime(2020, 1, 1)], []],  # noqa: DTZ001
}


@pytest.mark.parametrize("declared, values", _VALUES.items())
def test_values_of_each_type_are_read_as_they_were_written(
    storage: TableStorage, declared: str, values: list[Any]
) -> None:
    empty = _create(storage, f"node A {{ key: String @key  value: {declared}? }}")
    schema = storage.open(empty).schema
    array = pa.array([*values, None], _TYPES[declared])
    rows = pa.table({"id": ["a", "b", "c"], "key": ["a", "b", "c"], "value": array}).cast(schema)

    table = _append(storage, empty, rows)

    assert storage.open(table).to_table()["value"].combine_chunks() == pa.chunked_array([array]).combine_chunks()
    assert schema.field("value").type == _TYPES[declared]


def test_what_is_stored_has_the_columns_that_were_declared(storage: TableStorage) -> None:
    text = "node A { key: String @key tags: [String] near: Vector(2)? at: DateTime b: U64? }"

    stored = storage.open(_create(storage, text)).schema

    assert stored.equals(table_schema(catalog(text).nodes["A"]))
    assert stored.field("id").metadata == _MARK


def test_a_blob_is_a_blob_column_that_keeps_empty_and_null_apart(storage: TableStorage) -> None:
    empty = _create(storage, "node A { key: String @key  doc: Blob?  size: I32? }")
    schema = storage.open(empty).schema
    big = bytes(range(256)) * 1000
    rows = pa.table(
        {
            "id": ["a", "b", "c", "d"],
            "doc": lance.blob_array([b"small", b"", None, big]),
            "key": ["a", "b", "c", "d"],
            "size": pa.array([5, 0, None, len(big)], pa.int32()),
        }
    )
    table = _append(storage, empty, rows)

    read = storage.open(table).to_table(columns=["id", "doc"], blob_handling="all_binary")
    assert dict(zip(read["id"].to_pylist(), read["doc"].to_pylist(), strict=True)) == {
        "a": b"small",
        "b": b"",
        "c": None,
        "d": big,
    }
    assert columns(schema)[1][2] is True
    assert schema.equals(table_schema(catalog("node A { key: String @key  doc: Blob?  size: I32? }").nodes["A"]))


def test_a_blob_that_must_be_there_is_not_nullable() -> None:
    node = catalog("node A { key: String @key  doc: Blob }").nodes["A"]

    assert table_schema(node).field("doc").nullable is False


def test_a_blob_survives_upserts_and_deletes(storage: TableStorage) -> None:
    empty = _create(storage, "node A { key: String @key  doc: Blob? }")
    rows = pa.table({"id": ["a", "b"], "doc": lance.blob_array([b"one", b"two"]), "key": ["a", "b"]})
    table = _append(storage, empty, rows)

    change = pa.table({"id": ["b", "c"], "doc": lance.blob_array([b"deux", b"trois"]), "key": ["b", "c"]})
    staged = stage_delete(storage, _commit(storage, storage.stage_upsert(table, change)), "id = 'c'")
    assert staged
    table = _commit(storage, staged[0])

    read = storage.open(table).to_table(blob_handling="all_binary")
    assert dict(zip(read["id"].to_pylist(), read["doc"].to_pylist(), strict=True)) == {"a": b"one", "b": b"deux"}


def test_a_blob_may_be_a_reference_to_something_outside(storage: TableStorage, tmp_path: Path) -> None:
    outside = tmp_path / "outside.bin"
    outside.write_bytes(b"far away")
    empty = _create(storage, "node A { key: String @key  doc: Blob? }")

    rows = pa.table({"id": ["a"], "doc": lance.blob_array([outside.as_uri()]), "key": ["a"]})
    table = _append(storage, empty, rows)

    (blob,) = storage.open(table).take_blobs("doc", indices=[0])
    assert blob
    assert blob.readall() == b"far away"


def test_names_keep_their_case_in_filters_upserts_and_indices(storage: TableStorage) -> None:
    empty = _create(storage, "node A { key: String @key  firstName: String?  firstname: I32? }")
    schema = storage.open(empty).schema

    def rows(*names: str) -> pa.Table:
        made = [{"id": name, "key": name, "firstName": name, "firstname": len(name)} for name in names]
        return pa.Table.from_pylist(made, schema=schema)

    table = _append(storage, empty, rows("ada", "grace"))
    table = _commit(storage, storage.stage_create_indices(table, [IndexSpec("firstName", "BTREE")]))

    handle = storage.open(table)
    assert handle.to_table(filter="firstName = 'ada'")["id"].to_pylist() == ["ada"]
    assert handle.to_table(filter="firstname = 5")["id"].to_pylist() == ["grace"]
    table = _commit(storage, storage.stage_upsert(table, rows("grace", "bob")))
    staged = stage_delete(storage, table, "firstName = 'ada'")
    assert staged
    assert sorted(storage.read_staged(staged[0]).to_table()["firstName"].to_pylist()) == ["bob", "grace"]
