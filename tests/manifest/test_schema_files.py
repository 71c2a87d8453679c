import json
from dataclasses import replace
from pathlib import Path

import pytest

from omnigraph.core.location import Location
from omnigraph.errors import AlreadyInitializedError, ConflictError, OmnigraphError, SchemaDriftError
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.manifest import schema_files
from omnigraph.storage.objects import ObjectStore

_TEXT = """
node Person { name: String @key  age: I32? }
edge Knows: Person -> Person { since: Date? }
"""


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return ObjectStore(Location.parse(tmp_path))


@pytest.fixture
def accepted(objects: ObjectStore) -> ObjectStore:
    """The files of a graph that accepted a schema."""
    _accept(objects, _TEXT)
    return objects


def _accept(objects: ObjectStore, text: str) -> None:
    source = Source(text, "<schema>")
    schema_files.claim(objects, source, "somewhere")
    schema_files.write_compiled(objects, compile_schema(source))


def _files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir()}


def test_the_contract_is_three_files(accepted: ObjectStore, tmp_path: Path) -> None:
    files = _files(tmp_path)

    assert set(files) == {"_schema.pg", "_schema.ir.json", "__schema_state.json"} == set(schema_files.FILES)
    assert files["_schema.pg"].decode() == _TEXT
    state = json.loads(files["__schema_state.json"])
    assert state == {
        "format_version": 1,
        "schema_ir_hash": compile_schema(Source(_TEXT)).fingerprint,
        "schema_identity_version": 1,
    }
    assert "Person" in json.loads(files["_schema.ir.json"])["catalog"]["nodes"]
    assert schema_files.is_started(accepted)


def test_the_same_schema_gives_the_same_bytes(accepted: ObjectStore, tmp_path: Path) -> None:
    before = _files(tmp_path)

    schema_files.write_compiled(accepted, compile_schema(Source(_TEXT)))

    assert _files(tmp_path) == before


def test_what_was_accepted_is_read(accepted: ObjectStore) -> None:
    found = schema_files.SchemaFilesReader(accepted).read()

    assert found == schema_files.AcceptedSchema(_TEXT, compile_schema(Source(_TEXT)), foreign=False)


def test_there_is_no_contract_without_a_source(objects: ObjectStore) -> None:
    assert schema_files.SchemaFilesReader(objects).read() is None
    assert not schema_files.is_started(objects)


@pytest.mark.parametrize("name", schema_files.FILES)
def test_any_of_its_files_starts_a_contract(objects: ObjectStore, name: str) -> None:
    objects.write(name, b"")

    assert schema_files.is_started(objects)


def test_a_claim_is_made_once(accepted: ObjectStore, tmp_path: Path) -> None:
    before = _files(tmp_path)

    with pytest.raises(AlreadyInitializedError) as failure:
        schema_files.claim(accepted, Source("node Other { a: String @key }"), "somewhere")

    assert failure.value.uri == "somewhere"
    assert _files(tmp_path) == before


@pytest.mark.parametrize(
    "text",
    [
        _TEXT + "// a remark at the end\n",
        "/* a remark\n * before */\n" + _TEXT.replace("age", "\n  // in years\n  age"),
        "edge Knows: Person -> Person { since: Date? } node Person { age: I32?  name: String @key }",
    ],
    ids=["a remark", "remarks and line ends", "another order"],
)
def test_a_text_that_means_the_same_is_no_drift(accepted: ObjectStore, text: str) -> None:
    reader = schema_files.SchemaFilesReader(accepted)
    before = reader.read()
    accepted.write(schema_files.SOURCE, text.encode())

    found = reader.read()

    assert (found and found.text, found and found.catalog) == (text, before and before.catalog)


@pytest.mark.parametrize(
    "old, new",
    [
        ("I32?", "I64?"),
        ("I32?", "I32"),
        ("age", "years"),
        ("age: I32?", ""),
        ("age: I32?", "age: I32?  city: String?"),
        ("age: I32?", "age: I32? @index"),
        ("Date? }", "Date? } node Company { name: String @key }"),
        ("Knows:", "Likes:"),
        ("edge Knows: Person -> Person { since: Date? }", ""),
    ],
)
def test_a_text_that_means_something_else_is_drift(accepted: ObjectStore, tmp_path: Path, old: str, new: str) -> None:
    knowing = schema_files.SchemaFilesReader(accepted)
    assert knowing.read()
    accepted.write(schema_files.SOURCE, _TEXT.replace(old, new).encode())
    before = _files(tmp_path)

    for reader in (schema_files.SchemaFilesReader(accepted), knowing):
        with pytest.raises(SchemaDriftError, match=r"^schema evolution is locked") as failure:
            reader.read()

    assert isinstance(failure.value, ConflictError)
    assert failure.value.path == schema_files.SOURCE
    assert "schema apply" in (failure.value.hint or "")
    assert _files(tmp_path) == before


def test_a_compiled_schema_that_is_not_that_of_the_source_is_drift(
    accepted: ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = ObjectStore(Location.parse(tmp_path_factory.mktemp("other")))
    _accept(other, _TEXT.replace("I32?", "I64?"))

    for name in (schema_files.STATE, schema_files.IR):
        kept = accepted.read(name)
        accepted.write(name, other.read(name))
        with pytest.raises(SchemaDriftError):
            schema_files.SchemaFilesReader(accepted).read()
        accepted.write(name, kept)
    assert schema_files.SchemaFilesReader(accepted).read()


_BROKEN = {
    "empty": b"",
    "cut off": b'{"format',
    "a list": b"[]",
    "a text": b'"x"',
    "null": b"null",
    "no text": b"\xff\xfe{}",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("data", _BROKEN.values(), ids=_BROKEN)
@pytest.mark.parametrize("name", [schema_files.IR, schema_files.STATE])
def test_a_broken_file_is_named(accepted: ObjectStore, tmp_path: Path, name: str, data: bytes) -> None:
    accepted.write(name, data)
    before = _files(tmp_path)

    with pytest.raises(SchemaDriftError, match=name) as failure:
        schema_files.SchemaFilesReader(accepted).read()

    assert failure.value.path == name
    assert failure.value.hint
    assert _files(tmp_path) == before


@pytest.mark.parametrize("names", [[schema_files.IR], [schema_files.STATE], [schema_files.IR, schema_files.STATE]])
def test_a_missing_file_is_named(accepted: ObjectStore, tmp_path: Path, names: list[str]) -> None:
    for name in names:
        accepted.delete(name)
    before = _files(tmp_path)

    with pytest.raises(SchemaDriftError, match="is missing") as failure:
        schema_files.SchemaFilesReader(accepted).read()

    assert failure.value.path in names
    assert failure.value.hint
    assert _files(tmp_path) == before


@pytest.mark.parametrize("data", [b"\xff\xfe", b"node", b"node A { a: String\x00 @key }"])
def test_a_source_that_does_not_compile_is_an_error_of_ours(accepted: ObjectStore, data: bytes) -> None:
    accepted.write(schema_files.SOURCE, data)

    with pytest.raises(OmnigraphError, match=r"_schema\.pg"):
        schema_files.SchemaFilesReader(accepted).read()


def test_a_known_contract_is_not_compiled_again(accepted: ObjectStore) -> None:
    reader = schema_files.SchemaFilesReader(accepted)
    known = reader.read()

    assert known
    assert reader.read() is known
    assert schema_files.SchemaFilesReader(accepted).read() is not known


def test_what_another_implementation_compiled_stays_and_our_fingerprint_is_beside_it(accepted: ObjectStore) -> None:
    accepted.write(schema_files.IR, b'{"ir_version": 1, "nodes": []}')
    accepted.write(schema_files.STATE, b'{"format_version":1,"schema_ir_hash":"abc","schema_identity_version":1}')
    theirs = {name: accepted.read(name) for name in schema_files.FILES}

    found = schema_files.SchemaFilesReader(accepted).read()
    expected = schema_files.AcceptedSchema(_TEXT, compile_schema(Source(_TEXT)), foreign=True, is_known=False)
    assert found == expected

    schema_files.write_beside(accepted, expected.catalog)
    assert schema_files.SchemaFilesReader(accepted).read() == replace(expected, is_known=True)
    assert {name: accepted.read(name) for name in schema_files.FILES} == theirs
