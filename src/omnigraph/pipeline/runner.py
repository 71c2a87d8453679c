"""Run a pipeline: read what is new, load it in one commit, then embed, check, merge, optimize and export.

Each step can be done twice without harm, or is known to be done: the load by the position of the stream of the
pipeline, the others because they change nothing the second time. So a run that died is finished by the next one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omnigraph.api.options import Engine
from omnigraph.api.pipelines import PipelineText, SourceEntry
from omnigraph.api.progress import SILENT, Progress
from omnigraph.api.results import LoadResult, StreamBatch, StreamPosition
from omnigraph.commit import failpoints
from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN
from omnigraph.errors import (
    InputNotFoundError,
    LoadRejectedError,
    OmnigraphError,
    ParameterError,
    PipelineCheckError,
    PipelineSourceError,
    PipelineStateError,
    StreamTakenError,
    Violation,
)
from omnigraph.formats.files import File, find_files
from omnigraph.formats.fitting import TypeRows
from omnigraph.formats.sources import declared_named
from omnigraph.graph import Graph
from omnigraph.ingest.load import MOST_BYTES
from omnigraph.lang.identity import new_id
from omnigraph.pipeline.check import check_pipeline
from omnigraph.pipeline.local import Bound, LocalRows, RowEngine
from omnigraph.pipeline.records import STEPS, PipelineRun, RunRecords, now
from omnigraph.storage.objects import ObjectStore

_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How a pipeline is run; none of it is in its file."""

    engine: Engine = Engine.AUTO
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    full: bool = False  # as if nothing had been loaded before
    actor: str | None = None
    progress: Progress = SILENT


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """What a run would read and write. `resumes` is the run that it would finish; `problem` is why it would fail."""

    engine: str
    resumes: str | None
    sources: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, int]
    rejected: int
    steps: Sequence[str]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PipelineOutcome:
    """The runs that were made: an interrupted one that was finished, and a new one; none if nothing was new."""

    runs: tuple[PipelineRun, ...]

    @property
    def last(self) -> PipelineRun | None:
        return self.runs[-1] if self.runs else None


class Pipeline:
    """A pipeline file and its graph."""

    def __init__(self, text: PipelineText, graph: Graph, options: PipelineOptions) -> None:
        self.text = text
        self.document = text.document
        self.graph = graph
        self.options = options
        self.records = RunRecords.of(Location.parse(graph.uri), self.document.pipeline)
        self.stream = f"pipeline {self.document.pipeline}"

    # What there is ---------------------------------------------------------------------------------

    @property
    def base(self) -> str:
        return self.document.then.merge or MAIN

    @property
    def has_branch(self) -> bool:
        return self.document.target.branch in self.graph.branches()

    def position(self) -> StreamPosition | None:
        """Return the last run whose load is on the branch; a branch to be made will have that of its base."""
        return self.graph.stream(self.stream, branch=self.document.target.branch if self.has_branch else self.base)

    def last(self, position: StreamPosition | None) -> PipelineRun | None:
        if position is None or self.options.full:
            return None
        found = self.records.read(position.last.query)
        # The process may have died between the commit and the record of it.
        return found if "load" in found.steps else found.with_step("load", position.commit_id, 0.0)

    @property
    def steps(self) -> list[str]:
        then, quality = self.document.then, self.document.quality
        wanted = {
            "load": True,
            "embed": bool(then.embed),
            "check": bool(quality.checks),
            "merge": then.merge is not None,
            "optimize": then.optimize,
            "export": then.export is not None,
        }
        return [name for name in STEPS if wanted[name]]

    def unfinished(self, run: PipelineRun | None) -> bool:
        return run is not None and run.status != "done" and any(name not in run.steps for name in self.steps)

    # Validate, plan and run ------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise PipelineFileError with all problems of the file, those of local sources among them."""
        known: dict[str, Sequence[str]] = {}
        for name, source in self.document.sources.items():
            if source.is_local:
                with suppress(OmnigraphError):  # what is wrong with the path is reported with its place
                    files = self._files(source)
                    rows = LocalRows()
                    rows.open(name, source, files[:1], None)
                    known[name] = rows.columns(name)
        check_pipeline(self.text, self.graph.catalog, known)

    def plan(self) -> PipelinePlan:
        """Read the sources and check the rows, and change nothing."""
        self.validate()
        last = self.last(self.position())
        resumes = last.run if last and self.unfinished(last) else None
        with self._inputs(last) as inputs:
            if resumes and not inputs.is_due:
                assert last
                steps = [name for name in self.steps if name not in last.steps]
                return PipelinePlan(inputs.engine_name, resumes, {}, {}, 0, steps)
            if inputs.is_due is False:
                return PipelinePlan(inputs.engine_name, None, inputs.described(), {}, 0, ())
            types = inputs.types()
            rows = {name: part.count for name, part in types.items()}
            bad, problem = inputs.bad(types), None
            try:
                done = self._load(None, types, bad, dry_run=True)
                rejected = len(bad) + done.rejected
            except (LoadRejectedError, PipelineSourceError) as error:
                rejected, problem = len(bad), str(error)
            steps = self.steps
            return PipelinePlan(inputs.engine_name, None, inputs.described(), rows, rejected, steps, problem)

    def run(self) -> PipelineOutcome:
        """Finish the run that was interrupted, if there is one, and run if there is anything new."""
        self.validate()
        position = self.position()
        last = self.last(position)
        runs = []
        with self._inputs(last) as inputs:
            # A run that only a check stopped has to be tried again with what is new: its remaining steps are done then.
            if last is not None and self.unfinished(last) and not inputs.is_due:
                return PipelineOutcome((self._finish(last),))
            if not inputs.is_due:
                return PipelineOutcome(())
            self.records.abandon(last)
            number = position.last.batch + 1 if position else 0
            branch = self.document.target.branch
            after = None if self.options.full or last is None else last.run
            run = PipelineRun(new_id(), self.document.pipeline, branch, number, after, now())
            run = self.records.write(replace(run, sources=inputs.described()))
            failpoints.reach(failpoints.PIPELINE_PLANNED)
            run = self._make(run, inputs, position)
        if last is not None and self.unfinished(last):
            self.records.write(replace(last, status="superseded", finished=now()))
        runs.append(self._finish(run))
        return PipelineOutcome(tuple(runs))

    # The load --------------------------------------------------------------------------------------

    def _make(self, run: PipelineRun, inputs: Inputs, position: StreamPosition | None) -> PipelineRun:
        with self._recorded(run):
            types = inputs.types()
            run = self.records.write(replace(run, read={name: part.count for name, part in types.items()}))
            bad = inputs.bad(types)
            batch = StreamBatch(self.stream, run.run, run.number, position.last.query if position else "")
            begun = time.monotonic()
            rejects = self._rejects_of(run)
            try:
                done = self._load(batch, types, bad, rejects=rejects)
            except StreamTakenError as error:
                message = f"another run of pipeline '{run.pipeline}' was loaded while this one was under way"
                hint = "run it again: it reads what the other has not"
                raise PipelineStateError(message, pipeline=run.pipeline, hint=hint) from error
            finally:
                _append_rejects(rejects, bad)
            failpoints.reach(failpoints.PIPELINE_LOADED)
            commit = done.commit.commit_id if done.commit else None
            run = run.with_step("load", commit, time.monotonic() - begun)
            loaded = {**done.nodes, **done.edges}
            rejected = done.rejected + len(bad)
            return self.records.write(
                replace(run, loaded=loaded, rejected=rejected, rejects=rejects if rejected else None)
            )

    def _load(
        self,
        batch: StreamBatch | None,
        types: Mapping[str, TypeRows],
        bad: Sequence[Mapping[str, Any]],
        *,
        dry_run: bool = False,
        rejects: str | None = None,
    ) -> LoadResult:
        target, quality = self.document.target, self.document.quality
        _refuse_too_many(bad, quality.max_bad)
        if target.mode == "overwrite":
            self._refuse_empty(types)
        graph = self.graph if batch is None else self.graph.as_batch(batch)
        return graph.load(
            {name: part.rows for name, part in types.items()},
            mode=target.mode,
            branch=target.branch,
            base=None if self.has_branch else self.base,
            actor=self.actor,
            dry_run=dry_run,
            max_bad=None if quality.max_bad is None else quality.max_bad - len(bad),
            rejects=rejects,
            progress=self.options.progress,
        )

    @property
    def actor(self) -> str | None:
        return self.options.actor or self.document.target.actor

    def _refuse_empty(self, types: Mapping[str, TypeRows]) -> None:
        for entry in self.document.load:
            if entry.type not in types or not types[entry.type].count:
                message = (
                    f"the source '{entry.source}' has no rows, and mode overwrite would remove all of {entry.type}"
                )
                hint = "check the source; to remove them, use `omnigraph load --mode overwrite`"
                raise PipelineSourceError(message, source=entry.source, hint=hint)

    def _rejects_of(self, run: PipelineRun) -> str | None:
        if self.document.quality.rejects is None:
            return None
        folder = Path(self.text.address(self.document.quality.rejects))
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder / f"{run.run}.jsonl")

    # The steps after it ----------------------------------------------------------------------------

    def _finish(self, run: PipelineRun) -> PipelineRun:
        actions: dict[str, Callable[[PipelineRun], str | None]] = {
            "embed": self._embed,
            "check": self._check,
            "merge": self._merge,
            "optimize": self._optimize,
            "export": self._export,
        }
        with self._recorded(run):
            for name in self.steps:
                if name not in run.steps:
                    begun = time.monotonic()
                    commit = actions[name](run)
                    failpoints.reach(failpoints.PIPELINE_STEP)
                    run = self.records.write(run.with_step(name, commit, time.monotonic() - begun))
            return self.records.write(replace(run, status="done", finished=now(), error=None))

    @contextmanager
    def _recorded(self, run: PipelineRun) -> Iterator[None]:
        """Record that a run failed, and why."""
        try:
            yield
        except OmnigraphError as error:
            known = self.records.read(run.run)
            self.records.write(replace(known, status="failed", finished=now(), error=str(error)))
            raise

    def _embed(self, _: PipelineRun) -> str | None:
        types = None if "*" in self.document.then.embed else list(self.document.then.embed)
        done = self.graph.embed(types, branch=self.document.target.branch, actor=self.actor)
        return done.commits[-1].commit_id if done.commits else None

    def _check(self, _: PipelineRun) -> None:
        branch = self.document.target.branch
        for name, query in self.document.quality.checks.items():
            found = self.graph.query(query, branch=branch).rows
            if found:
                message = f"the check '{name}' found {len(found)} rows on branch '{branch}'; it was not merged"
                hint = f"correct them in the sources or on '{branch}', then run the pipeline again"
                raise PipelineCheckError(message, check=name, rows=len(found), hint=hint)

    def _merge(self, _: PipelineRun) -> str | None:
        into = self.document.then.merge
        assert into is not None, "a step of this file"
        done = self.graph.merge(self.document.target.branch, into, actor=self.actor)
        return done.commit.commit_id if done.commit else None

    def _optimize(self, _: PipelineRun) -> None:
        self.graph.optimize(self.document.then.merge or self.document.target.branch, actor=self.actor)

    def _export(self, run: PipelineRun) -> None:
        export = self.document.then.export
        assert export is not None, "a step of this file"
        branch = self.document.then.merge or self.document.target.branch
        path = self.text.address(export.path)
        if not path.endswith(f".{export.format}"):
            # A directory for each run. What an interrupted export left there is written again.
            ObjectStore(Location.parse(path)).delete_below(run.run)
            path = f"{path.rstrip('/')}/{run.run}"
        self.graph.export(path, branch=branch, types=export.types, format=export.format)

    # The sources -----------------------------------------------------------------------------------

    def _files(self, source: SourceEntry) -> list[File]:
        """Return the files of a source, each once, in the order of the file and of their names."""
        found: dict[str, File] = {}
        for path in source.path or ():
            try:
                found |= {one.uri: one for one in find_files(self.text.address(path))[0]}
            except InputNotFoundError:
                if source.incremental is None:
                    raise
        return list(found.values())

    @contextmanager
    def _inputs(self, last: PipelineRun | None) -> Iterator[Inputs]:
        by_files = any(one.incremental and one.incremental.by == "files" for one in self.document.sources.values())
        # Of files all runs count, of a watermark or a version the last one.
        before = list(self.records.chain(last)) if by_files else [last] if last else []
        files = {name: self._files(one) for name, one in self.document.sources.items() if one.is_local}
        why, size = self.document.needs_spark, sum(one.size for found in files.values() for one in found)
        chosen = self.options.engine
        if chosen is Engine.LOCAL and why:
            message = f"pipeline '{self.document.pipeline}' needs Spark: {why}"
            raise ParameterError(message, parameter="engine", hint='leave out the engine, or use "spark"')
        if chosen is Engine.SPARK or (chosen is Engine.AUTO and (why or size > MOST_BYTES)):
            from omnigraph.spark.pipelines import SparkRows  # noqa: PLC0415 - starts Spark

            engine: RowEngine = SparkRows(self.text.address, self.options.master, self.options.conf)
        else:
            engine = LocalRows()
        try:
            yield Inputs(self, engine, before, files)
        finally:
            engine.close()


class Inputs:
    """What the sources of a pipeline have that was not loaded before."""

    def __init__(
        self, pipeline: Pipeline, engine: RowEngine, before: Sequence[PipelineRun], files: Mapping[str, list[File]]
    ) -> None:
        self.pipeline = pipeline
        self.engine = engine
        self.before = before
        self.found: dict[str, dict[str, Any]] = {}
        for name, source in pipeline.document.sources.items():
            self.found[name] = self._open(name, source, files.get(name, []))

    @property
    def engine_name(self) -> str:
        return "local" if isinstance(self.engine, LocalRows) else "spark"

    @property
    def is_due(self) -> bool:
        """Whether there is anything to load. What is read as a whole is due, unless a run of it is to be finished."""
        used = self.pipeline.document.used
        if any(used[name].incremental and not self.found[name].get("empty") for name in used):
            return True
        if any(not one.incremental for one in used.values()):
            last = self.before[0] if self.before else None
            return not (last and last.status == "running" and self.pipeline.unfinished(last))
        return False

    def described(self) -> dict[str, dict[str, Any]]:
        return self.found

    def types(self) -> dict[str, TypeRows]:
        """Return the rows of each type."""
        parts: dict[str, list[TypeRows]] = {}
        for entry in self.pipeline.document.load:
            if self.found[entry.source].get("empty"):
                continue
            declared = declared_named(entry.type, self.pipeline.graph.catalog)
            assert declared, "checked"
            source = self.pipeline.document.sources[entry.source]
            parts.setdefault(entry.type, []).append(self.engine.rows(entry, source, declared))
        return {
            name: TypeRows(
                self.engine.joined([one.rows for one in found]),
                sum(one.count for one in found),
                [problem for one in found for problem in one.problems],
                sum(one.bad for one in found),
            )
            for name, found in parts.items()
        }

    def bad(self, types: Mapping[str, TypeRows]) -> list[dict[str, Any]]:
        """Return the problems of rows that cannot be converted, and of lines that are no records."""
        return [*self.engine.bad_lines(), *(dict(one) for part in types.values() for one in part.problems)]

    def _open(self, name: str, source: SourceEntry, files: list[File]) -> dict[str, Any]:
        increment = source.incremental
        known = [run.sources[name] for run in self.before if name in run.sources]
        if increment and increment.by == "files":
            seen = {uri: version for run in reversed(known) for uri, version in run.get("files", {}).items()}
            files = [one for one in files if seen.get(one.uri) != one.version]
            found: dict[str, Any] = {"files": {one.uri: one.version for one in files}}
            if not files:
                return {**found, "rows": 0, "empty": True}
        else:
            found = {}
        if source.is_local and not files:
            return {**found, "rows": 0, "empty": True}
        since = next((run["version"] for run in known if run.get("version")), None)
        version = self.engine.open(name, source, files, since if increment and increment.by == "version" else None)
        if increment and increment.by == "version":
            found["version"] = version
            if version == since:
                return {**found, "rows": 0, "empty": True}
        if not self.engine.columns(name):  # of a JSONL file without a line
            return {**found, "rows": 0, "empty": True}
        if increment and increment.watermark:
            found |= self._after_watermark(name, increment.watermark, known)
        return {**found, "rows": self.engine.count(name), "empty": False} if not found.get("empty") else found

    def _after_watermark(self, name: str, column: str, known: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        low = next((run["watermark"] for run in known if run.get("watermark") is not None), None)
        high = self.engine.highest(name, column)
        if low is not None and high is not None and _is_before(high, low):
            message = f"the greatest {column} of the source '{name}' is {high!r}, and it was loaded up to {low!r}"
            hint = "the source has lost rows: restore it, or load all of it again: --full"
            raise PipelineSourceError(message, source=name, hint=hint)
        if high is None or high == low:
            return {"watermark": low, "rows": 0, "empty": True}
        self.engine.between(name, column, low, high)
        return {"watermark": high}


def _is_before(value: Bound, other: Bound) -> bool:
    """Return whether a value is smaller; values of different kinds are refused when rows are compared with them."""
    if isinstance(value, str) or isinstance(other, str):
        return isinstance(value, str) and isinstance(other, str) and value < other
    return value < other


def _refuse_too_many(bad: Sequence[Mapping[str, Any]], most: int | None) -> None:
    if len(bad) <= (most or 0):
        return
    found = tuple(
        Violation(
            one["rule"],
            one.get("type"),
            None,
            tuple(one.get("properties", ())),
            one["message"],
            file=one.get("file") or f"<{one['source']}>",
            line=one.get("line"),
        )
        for one in bad[:_SHOWN]
    )
    message = f"{len(bad)} records of the sources cannot be loaded, and {most or 0} may be left out"
    raise LoadRejectedError(message, violations=found, hint="correct them, or raise `quality.max_bad`")


def _append_rejects(path: str | None, bad: Sequence[Mapping[str, Any]]) -> None:
    if path is not None and bad:
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in bad)
