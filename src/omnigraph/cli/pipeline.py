"""`omnigraph pipeline`: validate, plan and run pipelines, and show their runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.api.progress import finishing
from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.command import DryRun, EngineOptions, argument, command, option, switch
from omnigraph.cli.output import Line, Lines
from omnigraph.errors import CompileError

if TYPE_CHECKING:
    from omnigraph.pipeline.records import PipelineRun
    from omnigraph.pipeline.runner import PipelinePlan

File = Annotated[str, argument("The file of the pipeline.", "FILE")]
Full = Annotated[bool, switch("Load everything, as if nothing had been loaded before.", "--full")]
_STYLES = {"done": "green", "failed": "red", "running": "yellow"}


@command("pipeline run")
def run(scope: Scope, file: File, *, full: Full = False, dry_run: DryRun = False, engine: EngineOptions) -> None:
    """Run a pipeline: load what is new in its sources, then merge, optimize and export.

    A run that was interrupted is finished first. Each run is recorded with the graph, see `pipeline status`.
    """
    if dry_run:
        plan(scope, file, full=full, engine=engine)
        return
    from omnigraph import pipeline  # noqa: PLC0415 - loads the engine

    options = engine.checked(scope)
    with finishing(options["progress"]):
        done = pipeline.run(file, store=scope.flags.store, full=full, actor=scope.flags.actor, **options)
    document = {"runs": [one.to_document() for one in done.runs]}
    scope.emit(document, _ran(done.runs) if done.runs else "nothing is new")


@command("pipeline plan")
def plan(scope: Scope, file: File, *, full: Full = False, engine: EngineOptions) -> None:
    """Show what a run would read and write, with row counts. All rows are read and checked; nothing is changed."""
    from omnigraph import pipeline  # noqa: PLC0415 - loads the engine

    options = {name: one for name, one in engine.checked(scope).items() if name != "progress"}
    found = pipeline.plan(file, store=scope.flags.store, full=full, **options)
    scope.emit(asdict(found), _planned(found))
    if found.problem:
        raise typer.Exit(1)


@command("pipeline validate")
def validate(scope: Scope, file: File) -> None:
    """Check a file against the graph and the sources; each problem with its line and column."""
    from omnigraph import pipeline  # noqa: PLC0415 - loads the engine

    try:
        pipeline.validate(file, store=scope.flags.store)
    except CompileError as error:
        if not scope.as_json:
            raise
        problems = [one.to_dict() for one in error.diagnostics]
        output.document({"valid": False, "problems": problems})
        raise typer.Exit(1) from None
    scope.emit({"valid": True, "problems": []}, f"{file} is valid")


@command("pipeline status")
def status(
    scope: Scope, file: File, *, limit: Annotated[int, option("How many runs to show.", "N", min=1)] = 20
) -> None:
    """Show the runs of a pipeline, newest first: rows, rejects, commits and durations."""
    from omnigraph import pipeline  # noqa: PLC0415 - loads the engine

    found = pipeline.status(file, store=scope.flags.store)[:limit]
    scope.emit({"runs": [one.to_document() for one in found]}, _ran(found) if found else "no runs")


@command("pipeline schema")
def schema(
    scope: Scope, *, out: Annotated[str | None, option("Write it to this file.", "FILE", "--out", "-o")] = None
) -> None:
    """Print the JSON schema of pipeline files, for editors."""
    from omnigraph.api.pipelines import json_schema, schema_text  # noqa: PLC0415 - loads pydantic

    if out is None:
        scope.emit(json_schema(), schema_text().rstrip("\n"))
        return
    from omnigraph.cli.command import writable  # noqa: PLC0415

    with writable(out):
        Path(out).write_text(schema_text(), encoding="utf-8")
    scope.emit({"path": out}, f"wrote {out}")


def _ran(runs: Any) -> Lines:
    for run_ in runs:
        yield from _described(run_)


def _described(run_: PipelineRun) -> Lines:
    yield Line(
        f"run {run_.run} of {run_.pipeline} on branch {run_.branch}: {run_.status}", _STYLES.get(run_.status, "")
    )
    yield f"  began {run_.started}" + (f", ended {run_.finished}" if run_.finished else "")
    for name, source in run_.sources.items():
        yield f"  {name}: {_source(source)}"
    for name, count in run_.read.items():
        loaded = run_.loaded.get(name)
        yield f"  {name}: {count:,} rows" + ("" if loaded is None else f", {loaded:,} loaded")
    if run_.rejected:
        yield f"  left out {run_.rejected:,} bad records" + (f", see {run_.rejects}" if run_.rejects else "")
    for name, step in run_.steps.items():
        commit = f", commit {step['commit']}" if step["commit"] else ""
        yield f"  {name}: {step['seconds']:.3f} s{commit}"
    if run_.error:
        yield Line(f"  error: {run_.error}", "red")


def _source(source: Any) -> str:
    if source.get("empty"):
        return "nothing new"
    files = f" in {len(source['files'])} new files" if "files" in source else ""
    until = next((f" up to {source[name]}" for name in ("watermark", "version") if source.get(name) is not None), "")
    return f"{source['rows']:,} rows{files}{until}"


def _planned(found: PipelinePlan) -> Lines:
    if found.resumes:
        yield f"finishes run {found.resumes}: {', '.join(found.steps)}"
        return
    yield f"engine: {found.engine}"
    for name, source in found.sources.items():
        yield f"read {name}: {_source(source)}"
    for name, count in found.rows.items():
        yield f"write {name}: {count:,} rows"
    if found.rejected:
        yield f"leave out {found.rejected:,} bad records"
    yield f"steps: {', '.join(found.steps) or 'none, nothing is new'}"
    if found.problem:
        yield Line(f"would fail: {found.problem}", "red")
