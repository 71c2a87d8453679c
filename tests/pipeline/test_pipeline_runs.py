"""Runs of a pipeline: what is new is loaded once, whatever dies, and every run is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph import pipeline
from omnigraph.commit import failpoints
from omnigraph.errors import (
    LoadRejectedError,
    ParameterError,
    PipelineCheckError,
    PipelineSourceError,
    PipelineStateError,
)
from omnigraph.graph import Graph
from omnigraph.pipeline.records import PipelineRun
from tests.pipeline.nightly import FIRST, PIPELINE, SCHEMA, STEPS, make, people, run_and_kill
from tests.support.faults import CrashError, at_arrival, crash

HEAD = FIRST.splitlines()[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make(tmp_path)


def graph_of(file: Path) -> Graph:
    return omnigraph.open(file.parent / "people")


def ran(file: Path, **options: Any) -> PipelineRun:
    """Run; there must have been something to do."""
    found = pipeline.run(file, **options).last
    assert found
    return found


def loads(graph: Graph) -> int:
    return sum("stream" in (one.details or {}) for one in graph.commits("nightly"))


def test_a_run_loads_merges_exports_and_is_recorded(file: Path) -> None:
    done = ran(file)

    graph = graph_of(file)
    assert people(graph) == {"ann": 31, "bob": 40}
    assert (done.status, list(done.steps)) == ("done", STEPS)
    assert done.read == {"City": 2, "Person": 2, "LivesIn": 2}
    assert done.loaded == {"City": 2, "Person": 2, "LivesIn": 2}
    assert graph.commits("nightly")[0].commit_id == done.steps["load"]["commit"]
    assert sorted(one.name for one in (file.parent / "out").iterdir()) != []
    assert pipeline.status(file) == [done]


def test_only_new_and_corrected_files_are_read_again(file: Path) -> None:
    ran(file)
    assert pipeline.run(file).runs == (), "nothing is new"
    (file.parent / "staff-2.csv").write_text(f"{HEAD}\ncem,20,Rome,,1\n")
    second = ran(file)
    (file.parent / "staff-1.csv").write_text(FIRST.replace("bob,40", "bob,41"))
    third = ran(file)

    assert [one.sources["staff"]["rows"] for one in (second, third)] == [1, 3]
    assert people(graph_of(file)) == {"ann": 31, "bob": 41, "cem": 20}
    assert [one.after for one in (third, second)] == [second.run, pipeline.status(file)[-1].run]
    full = ran(file, full=True)
    assert (full.sources["staff"]["rows"], full.after) == (4, None)


def assert_done_once(file: Path) -> None:
    """The state that a run without an interruption leaves."""
    graph = graph_of(file)
    assert people(graph) == people(graph, "nightly") == {"ann": 31, "bob": 40}
    assert loads(graph) == 1, "one commit"
    done, *others = pipeline.status(file)
    assert (done.status, list(done.steps)) == ("done", STEPS)
    assert all(one.status == "abandoned" for one in others)
    exported = "".join(one.read_text() for one in (file.parent / "out").rglob("*.jsonl"))
    assert exported.count('"type"') + exported.count('"edge"') == 6
    assert pipeline.run(file).runs == ()


PLACES = [
    (failpoints.PIPELINE_PLANNED, 1),
    (failpoints.PUBLISH_AFTER_SIDECAR, 1),
    (failpoints.PUBLISH_BEFORE_MANIFEST, 1),
    (failpoints.PUBLISH_AFTER_MANIFEST, 1),
    (failpoints.PIPELINE_LOADED, 1),
    *((failpoints.PIPELINE_STEP, number) for number in range(1, len(STEPS))),
]


@pytest.mark.parametrize("place, number", PLACES)
def test_a_run_that_fails_at_any_step_is_finished_by_the_next(file: Path, place: str, number: int) -> None:
    with failpoints.armed(place, at_arrival(number, crash)), pytest.raises(CrashError):
        pipeline.run(file)

    ran(file)

    assert_done_once(file)


def test_a_process_that_is_killed_again_and_again_leaves_what_one_run_leaves(file: Path) -> None:
    for place, number in (
        (failpoints.PIPELINE_PLANNED, 1),
        (failpoints.PUBLISH_BEFORE_MANIFEST, 1),
        (failpoints.PIPELINE_STEP, 2),
        (failpoints.PIPELINE_STEP, 1),
    ):
        run_and_kill(file, place, number)

    ran(file)

    assert_done_once(file)


def test_new_input_after_an_interruption_supersedes_the_run(file: Path) -> None:
    with failpoints.armed(failpoints.PIPELINE_LOADED, crash), pytest.raises(CrashError):
        pipeline.run(file)
    (file.parent / "staff-2.csv").write_text(f"{HEAD}\ncem,20,Rome,,1\n")

    ran(file)

    assert people(graph_of(file)) == {"ann": 31, "bob": 40, "cem": 20}
    assert [one.status for one in pipeline.status(file)] == ["done", "superseded"]


def test_two_runs_at_once_load_once(file: Path) -> None:
    def other() -> None:
        ran(file)

    with failpoints.armed(failpoints.PIPELINE_PLANNED, at_arrival(1, other)), pytest.raises(PipelineStateError):
        pipeline.run(file)

    assert (people(graph_of(file)), loads(graph_of(file))) == ({"ann": 31, "bob": 40}, 1)
    assert pipeline.run(file).runs == ()


def test_a_check_keeps_the_branch_from_being_merged_until_the_data_is_corrected(file: Path) -> None:
    (file.parent / "staff-1.csv").write_text(FIRST.replace("bob,40", "bob,400"))
    with pytest.raises(PipelineCheckError, match="the check 'too old' found 1 rows on branch 'nightly'"):
        pipeline.run(file)
    assert people(graph_of(file)) == {}
    failed = pipeline.status(file)[0]
    assert failed.status == "failed"
    assert "too old" in (failed.error or "")
    (file.parent / "staff-1.csv").write_text(FIRST)

    ran(file)

    assert people(graph_of(file)) == {"ann": 31, "bob": 40}


def test_bad_records_are_left_out_up_to_a_number_and_listed(file: Path) -> None:
    (file.parent / "staff-1.csv").write_text(FIRST.replace("bob,40", "bob,x"))

    done = ran(file)

    assert people(graph_of(file)) == {"ann": 31}
    assert done.rejected == 2, "the person, and the edge that needs it"
    assert done.rejects
    rules = [json.loads(line)["rule"] for line in Path(done.rejects).read_text().splitlines()]
    assert sorted(rules) == ["endpoint", "type"]


def test_too_many_bad_records_change_nothing(file: Path) -> None:
    bad = "".join(f"p{n},x,Rome,,1\n" for n in range(3))
    (file.parent / "staff-1.csv").write_text(f"{FIRST}{bad}four,values,are,too,many,here\n")

    with pytest.raises(LoadRejectedError, match="4 records of the sources cannot be loaded") as caught:
        pipeline.run(file)

    assert [one.rule for one in caught.value.violations] == ["shape", "type", "type", "type"]
    assert (people(graph_of(file)), graph_of(file).branches()) == ({}, ["main"])
    assert pipeline.status(file)[0].status == "failed"


def test_a_plan_says_what_would_be_read_and_written_and_changes_nothing(file: Path) -> None:
    planned = pipeline.plan(file)

    assert (planned.engine, planned.resumes, planned.rejected) == ("local", None, 0)
    assert planned.sources["staff"]["rows"] == 3
    assert planned.rows == {"City": 2, "Person": 2, "LivesIn": 2}
    assert planned.steps == STEPS
    graph = graph_of(file)
    assert (people(graph), graph.branches(), pipeline.status(file)) == ({}, ["main"], [])
    with failpoints.armed(failpoints.PIPELINE_LOADED, crash), pytest.raises(CrashError):
        pipeline.run(file)
    found = pipeline.plan(file)
    assert (found.resumes, found.steps) == (pipeline.status(file)[0].run, STEPS[1:])


WATERMARK = """\
pipeline: events
target: {graph: people, mode: append}
sources:
  events: {path: events.jsonl, incremental: {watermark: seq}}
load:
  - {type: Person, from: events, columns: {name: who, age: seq}}
"""


def events(folder: Path, *numbers: int) -> None:
    lines = (json.dumps({"who": f"p{number}", "seq": number}) for number in numbers)
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_a_watermark_is_where_the_next_run_begins(tmp_path: Path) -> None:
    file = make(tmp_path, WATERMARK)
    events(tmp_path, 8, 9)
    ran(file)
    assert pipeline.run(file).runs == ()
    events(tmp_path, 8, 9, 10, 11)
    with failpoints.armed(failpoints.PIPELINE_PLANNED, crash), pytest.raises(CrashError):
        pipeline.run(file)

    assert ran(file).sources["events"] == {"watermark": 11, "rows": 2, "empty": False}

    assert sorted(people(graph_of(file))) == ["p10", "p11", "p8", "p9"]
    events(tmp_path, 8, 9)
    with pytest.raises(PipelineSourceError, match="the source has lost rows"):
        pipeline.run(file)


def test_texts_that_are_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    text = WATERMARK.replace("events.jsonl", "events.csv")
    file = make(tmp_path, text)
    (tmp_path / "events.csv").write_text("who,seq\na,9\n")
    ran(file)
    (tmp_path / "events.csv").write_text("who,seq\na,9\nb,10\n")

    assert ran(file).sources["events"]["watermark"] == 10

    (tmp_path / "events.csv").write_text("who,seq\na,9\nb,x\n")
    with pytest.raises(PipelineSourceError, match="was loaded up to seq 10"):
        pipeline.run(file)


def test_an_overwrite_by_an_empty_source_is_refused(tmp_path: Path) -> None:
    text = WATERMARK.replace("mode: append", "mode: overwrite").replace(", incremental: {watermark: seq}", "")
    file = make(tmp_path, text)
    events(tmp_path, 1)
    ran(file)
    (tmp_path / "events.jsonl").write_text('{"who": null, "seq": null}\n')

    with pytest.raises(LoadRejectedError):
        pipeline.run(file)
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(PipelineSourceError):
        pipeline.run(file)

    assert people(graph_of(file)) == {"p1": 1}


def test_a_pipeline_survives_a_backup_and_a_merge_but_not_the_loss_of_its_records(file: Path, tmp_path: Path) -> None:
    ran(file)
    graph_of(file).backup(tmp_path / "backup")
    omnigraph.restore(tmp_path / "backup", tmp_path / "restored")
    assert pipeline.run(file, store=str(tmp_path / "restored")).runs == ()
    graph_of(file).delete_branch("nightly")
    assert pipeline.run(file).runs == ()
    for record in (file.parent / "people" / "__pipelines").rglob("*.json"):
        record.unlink()

    with pytest.raises(PipelineStateError, match="what was loaded is not known"):
        pipeline.run(file)

    assert ran(file, full=True).status == "done"


def test_a_pipeline_that_needs_spark_says_why(tmp_path: Path) -> None:
    text = PIPELINE.replace("    latest_by: updated\n  - type: LivesIn", '    where: "age > 3"\n  - type: LivesIn')
    file = make(tmp_path, text)

    with pytest.raises(ParameterError, match="needs Spark: the rows of Person have a condition in SQL"):
        pipeline.run(file, engine="local")


def test_several_sources_of_one_type_nested_members_and_constants(tmp_path: Path) -> None:
    text = """\
pipeline: both
target: {graph: people}
sources:
  a: {path: a.jsonl}
  b: {path: b.csv, csv: {delimiter: ";", date_format: "%d.%m.%Y"}}
load:
  - {type: Person, from: a, columns: {name: person.name, age: {value: 7}}}
  - {type: Person, from: b, columns: {name: {text: "b-{name}"}, since: born}}
"""
    file = make(tmp_path, text)
    (tmp_path / "a.jsonl").write_text('{"person": {"name": "ann"}, "at": "2024-01-01"}\n')
    (tmp_path / "b.csv").write_text("name;born\nbob;31.12.2020\n")

    assert ran(file).loaded == {"Person": 2}

    found = sorted(json.loads(line)["data"]["name"] for line in graph_of(file).export())
    assert (found, people(graph_of(file))) == (["ann", "b-bob"], {"ann": 7, "b-bob": None})
    assert SCHEMA
