"""Schema files that another program was about to put in place: what becomes of them, by where that program stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import lance
import pytest

import omnigraph
from omnigraph.api.maintenance import Severity
from omnigraph.commit.audit import RecoveryKind
from omnigraph.commit.recovery import head_row
from omnigraph.commit.store import Store
from omnigraph.core.refs import FOREIGN_LOCK
from omnigraph.errors import BranchesPresentError, SchemaDriftError
from omnigraph.graph import Graph
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.manifest import schema_files
from omnigraph.manifest.publisher import Changes, Lineage
from omnigraph.manifest.rows import MANIFEST_PATH, TableRow, TombstoneRow
from omnigraph.storage.columns import declared_of, table_path, table_schema
from tests.schema.town import SCHEMA, edited, look, node
from tests.support.faults import CrashError, assert_settled, crash, dataset, pin_of, refuse, write_record
from tests.support.mutations import at_write, store_of

CLUB = "node:Club"
WITH_CLUB = SCHEMA + "node Club { name: String @key }\n"
WITH_CITY = edited(("age: I32?", "age: I32?\n    city: String?"))
FOREIGN_HASH = "0" * 64
_CLUB = declared_of(compile_schema(Source(WITH_CLUB)), CLUB)
AT_CLUB = TableRow(CLUB, table_path(_CLUB))


THEIRS = {
    schema_files.IR: json.dumps({"ir_version": 1, "types": []}).encode(),
    schema_files.STATE: json.dumps({"format_version": 1, "schema_ir_hash": FOREIGN_HASH}).encode(),
}


def stage(store: Store, text: str, names: tuple[str, ...] = schema_files.FILES) -> None:
    """Leave the files of a schema behind as others write them: with a hash of which we know nothing."""
    files = {schema_files.SOURCE: text.encode(), **THEIRS}
    for name in names:
        store.objects.write(f"{name}{schema_files.STAGING}", files[name])


def make_club(store: Store) -> None:
    """Make a table without a word to the manifest."""
    store.tables.create(AT_CLUB.path, table_schema(_CLUB))


def publish_club(store: Store) -> None:
    """Let the graph have a table more, as others do who keep no schema in the manifest."""
    make_club(store)
    rows = (head_row(store, CLUB, AT_CLUB.path, None),)
    store.manifest.publish(None, Changes(rows, (AT_CLUB,)), {}, Lineage.new())


def left(store: Store) -> list[str]:
    return schema_files.leftovers(store.objects)


def has_schema(uri: str, text: str) -> bool:
    """Once the graph is open, the files are in place and mean the same each, and it goes by them in every mode.

    What others staged, and was put in place, is as they wrote it: they would refuse another form.
    """
    graph = omnigraph.open(uri)
    store = store_of(uri)
    found = store.schema_files.read()
    assert found
    assert found.is_known
    if found.foreign:
        assert store.objects.read(schema_files.IR) == THEIRS[schema_files.IR]
        assert store.objects.read(schema_files.STATE) == THEIRS[schema_files.STATE]
    return found.text == graph.schema == omnigraph.open(uri, read_only=True).schema == text


def opened_at_last(uri: str) -> int:
    """Open a graph, and die at the first durable write, at the second, and so on; returns how many have died."""
    for ordinal in count(1):
        try:
            with at_write(ordinal, crash):
                omnigraph.open(uri)
        except CrashError:
            continue
        return ordinal - 1
    raise AssertionError


# Without a record ----------------------------------------------------------------------------------


def test_without_leftovers_nothing_is_written(graph: Graph) -> None:
    with at_write(1, refuse) as written:
        omnigraph.open(graph.uri)
    assert written == []


def test_what_means_the_same_as_the_schema_is_deleted(graph: Graph, store: Store) -> None:
    stage(store, f"// said again\n{SCHEMA}")
    assert has_schema(graph.uri, SCHEMA)
    assert left(store) == []


def test_a_change_that_stopped_before_its_tables_were_published_is_forgotten(graph: Graph, store: Store) -> None:
    before = look(graph)
    make_club(store)
    stage(store, WITH_CLUB)
    assert has_schema(graph.uri, SCHEMA)
    assert (left(store), look(omnigraph.open(graph.uri))) == ([], before)
    assert graph.apply_schema(WITH_CLUB).applied
    assert_settled(store)


def test_a_change_whose_tables_are_published_is_finished(graph: Graph, store: Store) -> None:
    stage(store, WITH_CLUB)
    publish_club(store)
    assert has_schema(graph.uri, WITH_CLUB)
    assert store.objects.read(schema_files.IR) == THEIRS[schema_files.IR]
    assert left(store) == []
    graph.load([node("Club", name="chess")], mode="append")
    assert [row["c.name"] for row in graph.query("query q() { match { $c: Club } return { $c.name } }").rows] == [
        "chess"
    ]
    assert_settled(store)


@pytest.mark.parametrize("published", [True, False], ids=["published", "not published"])
def test_whoever_dies_while_it_is_settled_leaves_it_to_the_next(
    graph: Graph,
    store: Store,
    published: bool,  # noqa: FBT001 - what a case is about
) -> None:
    """Each gets one durable write further than the one before."""
    stage(store, WITH_CLUB)
    if published:
        publish_club(store)
    assert opened_at_last(graph.uri) >= 3
    assert has_schema(graph.uri, WITH_CLUB if published else SCHEMA)
    assert left(store) == []


@pytest.mark.parametrize(
    "names", [(schema_files.IR, schema_files.STATE), (schema_files.STATE,)], ids=["two left", "one left"]
)
def test_a_change_whose_source_has_its_name_is_finished(graph: Graph, store: Store, names: tuple[str, ...]) -> None:
    publish_club(store)
    stage(store, WITH_CLUB)
    renamed = [name for name in schema_files.FILES if name not in names]
    for name in renamed:
        Path(graph.uri, f"{name}{schema_files.STAGING}").replace(Path(graph.uri, name))
    if renamed == [
        schema_files.SOURCE
    ]:  # the others still say what they said before anybody of us had opened the graph
        Path(graph.uri, schema_files.IR).write_text(json.dumps({"version": 1}))
    assert has_schema(graph.uri, WITH_CLUB)
    assert left(store) == []


OTHER = SCHEMA + "node Other { x: I32? }\n"


def published_and_staged(store: Store, text: str, names: tuple[str, ...] = schema_files.FILES) -> None:
    publish_club(store)
    stage(store, text, names)


UNDECIDED: dict[str, tuple[Callable[[Store], None], str]] = {
    "a change of properties alone": (lambda store: stage(store, WITH_CITY), "same types"),
    "tables of neither schema": (lambda store: published_and_staged(store, OTHER), "neither"),
    "what was compiled from another source": (
        lambda store: published_and_staged(store, WITH_CLUB, schema_files.FILES[1:]),
        "compiled from",
    ),
    "a hash of ours of another source": (
        lambda store: store.objects.write(
            f"{schema_files.STATE}{schema_files.STAGING}", b'{"schema_ir_hash": "of another"}'
        ),
        "compiled from",
    ),
}


@pytest.mark.parametrize("why", UNDECIDED)
def test_what_the_tables_do_not_tell_a_person_must(graph: Graph, store: Store, why: str) -> None:
    """Whoever would write is refused; whoever reads, and who looks after the graph, is not."""
    leave, reason = UNDECIDED[why]
    leave(store)
    files = left(store)
    with pytest.raises(SchemaDriftError, match=reason) as refused:
        omnigraph.open(graph.uri)
    assert refused.value.hint
    assert left(store) == files
    reader = omnigraph.open(graph.uri, read_only=True)
    assert len([one for one in look(reader) if one.get("type") == "Person"]) == 3
    [problem] = [one for one in reader.doctor().findings if one.severity is Severity.PROBLEM]
    assert (problem.subject, problem.run) == (files[0], refused.value.hint)
    assert reason in problem.message


def test_a_person_may_decide_either_way(graph: Graph, store: Store) -> None:
    stage(store, WITH_CITY)
    for name in left(store):
        Path(graph.uri, name).unlink()
    assert has_schema(graph.uri, SCHEMA)
    assert graph.apply_schema(WITH_CITY).applied


def test_doctor_tells_of_leftovers_that_the_next_who_writes_settles(graph: Graph, store: Store) -> None:
    stage(store, WITH_CLUB)
    with at_write(1, refuse) as written:
        report = omnigraph.open(graph.uri, read_only=True).doctor()
    assert (written, report.is_healthy) == ([], True)
    [finding] = [one for one in report.findings if one.subject.endswith(schema_files.STAGING)]
    assert finding.run == "open the graph read-write"
    assert omnigraph.open(graph.uri).doctor().findings == ()


# With a record -------------------------------------------------------------------------------------


def dead_change(store: Store) -> str:
    """A change by others that gave people a column, made a table and drops another; it died before its publish."""
    pinned = pin_of(store, "node:Person")
    person = store.manifest.load().snapshot.entries["node:Person"].table
    dataset(store, person.path).add_columns({"city": "cast(null as string)"})
    make_club(store)
    registered = {"table_key": CLUB, "table_path": AT_CLUB.path}
    version = store.manifest.load().actual_version("edge:LivesIn")
    tombstone = {"table_key": "edge:LivesIn", "tombstone_version": version + 1}
    lists: dict[str, Any] = {"additional_registrations": [registered], "tombstones": [tombstone]}
    return write_record(store, "SchemaApply", [pinned], **lists)


CHANGED = WITH_CITY.replace("edge LivesIn: Person -> Town\n", "node Club { name: String @key }\n")


def test_a_change_that_died_before_its_files_were_staged_is_undone(graph: Graph, store: Store) -> None:
    before = look(graph)
    dead_change(store)
    assert has_schema(graph.uri, SCHEMA)
    assert look(omnigraph.open(graph.uri)) == before
    assert [row.kind for row in store.audit.rows()] == [RecoveryKind.ROLLED_BACK]
    assert_settled(store)
    assert graph.apply_schema(CHANGED).applied


@pytest.mark.parametrize(
    "names", [schema_files.FILES, schema_files.FILES[1:], schema_files.FILES[2:]], ids=["3", "2", "1"]
)
def test_a_change_that_died_after_its_files_were_staged_is_finished(
    graph: Graph, store: Store, names: tuple[str, ...]
) -> None:
    """Also if its source, or more, has its name already."""
    operation = dead_change(store)
    stage(store, CHANGED)
    for name in schema_files.FILES[: -len(names)]:
        Path(graph.uri, f"{name}{schema_files.STAGING}").replace(Path(graph.uri, name))
    assert has_schema(graph.uri, CHANGED)
    assert left(store) == []
    people = [one["data"] for one in look(graph) if one.get("type") == "Person"]
    assert [one["city"] for one in people] == [None] * 3
    assert "edge:LivesIn" not in graph.snapshot().entries
    graph.load([node("Club", name="chess"), node("Person", name="eve", city="Rom")], mode="append")
    [row] = store.audit.rows()
    assert (row.kind, row.operation_id, row.writer_kind) == (RecoveryKind.ROLLED_FORWARD, operation, "SchemaApply")
    assert_settled(store)


def test_a_change_that_died_after_its_publish_is_finished(graph: Graph, store: Store) -> None:
    dead_change(store)
    person = store.manifest.load().snapshot.entries["node:Person"].table
    rows = tuple(head_row(store, key, path, None) for key, path in ((person.key, person.path), (CLUB, AT_CLUB.path)))
    gone = TombstoneRow("edge:LivesIn", store.manifest.load().actual_version("edge:LivesIn") + 1)
    changes = Changes(rows, (AT_CLUB,), (gone,))
    store.manifest.publish(None, changes, {}, Lineage.new("eve"))
    stage(store, CHANGED)
    assert has_schema(graph.uri, CHANGED)
    assert (left(store), [row.kind for row in store.audit.rows()]) == ([], [RecoveryKind.ROLLED_FORWARD])
    assert_settled(store)


def test_a_live_handle_finishes_it_too_and_goes_on_with_the_new_schema(graph: Graph, store: Store) -> None:
    dead_change(store)
    stage(store, CHANGED)
    graph.mutate('query q() { delete Town where name = "Nowhere" }')
    graph.load([node("Person", name="eve", city="Rom")], mode="append")
    assert graph.schema == CHANGED
    assert left(store) == []
    assert_settled(store)


def test_whoever_dies_while_it_is_finished_leaves_it_to_the_next(graph: Graph, store: Store) -> None:
    dead_change(store)
    stage(store, CHANGED)
    assert opened_at_last(graph.uri) > 5
    assert has_schema(graph.uri, CHANGED)
    assert left(store) == []
    assert [row.kind for row in store.audit.rows()] == [RecoveryKind.ROLLED_FORWARD]
    assert_settled(store)


def test_a_graph_whose_schema_we_have_changed_does_not_become_what_others_were_about_to_make_of_it(
    graph: Graph, store: Store
) -> None:
    graph.apply_schema(WITH_CITY)
    before = look(graph)
    write_record(store, "SchemaApply", [], additional_registrations=[{"table_key": CLUB, "table_path": "nodes/x"}])
    stage(store, WITH_CLUB)
    assert has_schema(graph.uri, WITH_CITY)
    assert (left(store), look(graph)) == ([], before)
    assert_settled(store)


def test_who_only_reads_is_told_that_a_type_of_the_schema_has_no_table_any_more(graph: Graph, store: Store) -> None:
    gone = TombstoneRow("edge:LivesIn", store.manifest.load().actual_version("edge:LivesIn") + 1)
    store.manifest.publish(None, Changes(tombstones=(gone,)), {}, Lineage.new("eve"))
    smaller = SCHEMA.replace("edge LivesIn: Person -> Town\n", "")
    stage(store, smaller)
    with pytest.raises(SchemaDriftError, match="edge:LivesIn") as refused:
        omnigraph.open(graph.uri, read_only=True)
    assert "read-write" in str(refused.value.hint)
    assert has_schema(graph.uri, smaller)


# The lock of others --------------------------------------------------------------------------------


def test_the_lock_of_a_change_that_others_did_not_finish_is_told_of_and_can_be_taken_away(
    graph: Graph, store: Store
) -> None:
    lance.dataset(store.location.child(MANIFEST_PATH)).create_branch(FOREIGN_LOCK)
    with pytest.raises(BranchesPresentError, match=FOREIGN_LOCK):
        graph.apply_schema(WITH_CLUB)
    [finding] = [one for one in graph.doctor().findings if FOREIGN_LOCK in one.subject]
    assert finding.run.endswith("omnigraph repair --confirm --force")
    graph.repair(confirm=True)
    assert FOREIGN_LOCK in store.manifest.branches()
    graph.repair(confirm=True, force=True)
    assert graph.apply_schema(WITH_CLUB).applied
