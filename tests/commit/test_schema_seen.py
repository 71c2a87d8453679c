"""What a commit says about the schema files: who opens the graph then need not read them, and still notices an edit."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit import failpoints
from omnigraph.commit.store import _LONGEST_SOURCE, Store
from omnigraph.core.location import Location
from omnigraph.errors import SchemaDriftError
from omnigraph.graph import Graph
from omnigraph.manifest.schema_files import FILES, IR, SOURCE, STATE
from omnigraph.storage.observe import counted
from tests.support.faults import CrashError

SCHEMA = "node Person { name: String @key }  // of the village\n"
INSERT = "query q($name: String) { insert Person { name: $name } }"
NAMES = "query q() { match { $p: Person } return { $p.name } order { $p.name } }"


@pytest.fixture
def graph(root_uri: str) -> Graph:
    made = omnigraph.init(root_uri, SCHEMA)
    made.mutate(INSERT, {"name": "ann"})
    return made


def store_of(graph: Graph) -> Store:
    return Store.at(Location.parse(graph.uri))


def read_again(graph: Graph) -> int:
    """The gets of an open beside those of the manifest."""
    with counted() as requests:
        omnigraph.open(graph.uri, read_only=True)
    return requests.requests.get - 2


def edited(graph: Graph, name: str, old: str, new: str) -> None:
    objects = store_of(graph).objects
    text = objects.read(name).decode()
    assert old in text
    objects.write(name, text.replace(old, new).encode())


def test_an_open_behind_a_commit_reads_no_schema_file(graph: Graph) -> None:
    assert read_again(graph) == 0
    assert omnigraph.open(graph.uri, read_only=True).schema == SCHEMA
    assert omnigraph.open(graph.uri, read_only=True).query(NAMES).rows == [{"p.name": "ann"}]


def test_before_the_first_commit_and_behind_a_change_of_the_schema_it_reads_them(root_uri: str) -> None:
    graph = omnigraph.init(root_uri, SCHEMA)
    assert read_again(graph) == len(FILES)
    graph.mutate(INSERT, {"name": "ann"})
    assert read_again(graph) == 0
    changed = SCHEMA.replace("}", " age: I32? }")
    graph.apply_schema(changed)
    assert read_again(graph) == len(FILES)
    graph.mutate(INSERT, {"name": "bob"})
    assert read_again(graph) == 0
    opened = omnigraph.open(graph.uri)
    assert opened.schema == changed
    assert opened.plan_schema(changed.replace("age", "size")).plan.steps


@pytest.mark.parametrize(
    "name, old, new",
    [(SOURCE, "name:", "nome:"), (IR, "Person", "Persen"), (STATE, '"schema_ir_hash": "', '"schema_ir_hash": "0')],
)
def test_an_edited_file_is_refused_by_the_next_open_as_ever(graph: Graph, name: str, old: str, new: str) -> None:
    before = store_of(graph).objects.read(name)
    edited(graph, name, old, new)
    for read_only in (True, False):
        with pytest.raises(SchemaDriftError):
            omnigraph.open(graph.uri, read_only=read_only)
    store_of(graph).objects.write(name, before)
    assert omnigraph.open(graph.uri).query(NAMES).rows == [{"p.name": "ann"}]


@pytest.mark.parametrize("name", [IR, STATE])
def test_a_file_that_is_gone_is_missed(graph: Graph, name: str) -> None:
    store_of(graph).objects.delete(name)
    with pytest.raises(SchemaDriftError):
        omnigraph.open(graph.uri)


def test_a_comment_may_be_edited_and_is_read_until_the_next_writer_has_said_so(graph: Graph) -> None:
    for word in ("town", "city"):
        edited(graph, SOURCE, "village" if word == "town" else "town", word)
        assert word in omnigraph.open(graph.uri, read_only=True).schema
        assert read_again(graph) == len(FILES)
        opened = omnigraph.open(graph.uri)
        opened.mutate(INSERT, {"name": word})
        assert read_again(graph) == 0
        assert word in omnigraph.open(graph.uri, read_only=True).schema
        if word == "town":  # from here on a row of the manifest has the text as well
            opened.apply_schema(opened.schema.replace("}", " age: I32? }"))


def test_a_writer_that_has_seen_another_schema_says_nothing_of_the_files(graph: Graph) -> None:
    other = omnigraph.open(graph.uri)
    graph.apply_schema(SCHEMA.replace("}", " age: I32? }"))
    stale = store_of(other).manifest.load().schema_seen
    assert stale is None
    other.mutate(INSERT, {"name": "bob"})  # it reads the files for this, because the schema is another one
    seen = store_of(graph).manifest.load().schema_seen
    assert seen is not None
    assert seen.source is None, "the row of the schema has the text"
    assert omnigraph.open(graph.uri).query(NAMES).rows == [{"p.name": "ann"}, {"p.name": "bob"}]


def test_files_that_are_behind_a_published_change_are_not_believed(graph: Graph) -> None:
    """They are the versions that the commit before has named, and the state has another schema."""

    def crash() -> None:
        raise CrashError

    with failpoints.armed(failpoints.PUBLISH_AFTER_MANIFEST, crash), pytest.raises(CrashError):
        graph.apply_schema(SCHEMA.replace("}", " age: I32? }"))
    reader = omnigraph.open(graph.uri, read_only=True)
    assert reader.query("query q() { match { $p: Person } return { $p.age } }").rows == [{"p.age": None}]


def test_branches_say_it_too_and_a_copy_elsewhere_is_read(graph: Graph, tmp_path: Path) -> None:
    graph.create_branch("side")
    graph.mutate(INSERT, {"name": "bob"}, branch="side")
    assert store_of(graph).manifest.load("side").schema_seen == store_of(graph).manifest.load().schema_seen
    graph.backup(str(tmp_path / "backup"))
    omnigraph.restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    restored = omnigraph.open(tmp_path / "restored")
    assert restored.query(NAMES, branch="side").rows == [{"p.name": "ann"}, {"p.name": "bob"}]
    assert restored.schema == SCHEMA


def test_a_long_schema_is_not_repeated_by_each_commit(tmp_path: Path) -> None:
    long = SCHEMA + "".join(f"// {'x' * 60} {at}\n" for at in range(_LONGEST_SOURCE // 60))
    graph = omnigraph.init(tmp_path / "long", long)
    graph.mutate(INSERT, {"name": "ann"})
    assert store_of(graph).manifest.load().schema_seen is None
    assert omnigraph.open(graph.uri).schema == long
