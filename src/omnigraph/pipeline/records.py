"""The runs of a pipeline: what each has read, and how far it is. They are kept beside the graph, an object each.

The record of a run is written before its load, with the inputs that the load reads. The load is a batch of the stream
of the pipeline that names the run, so the swap that makes it visible also says which record counts: the position of the
stream. Each record names the run before it, and the inputs of all of them are those that were loaded.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from omnigraph.api.pipelines import RUNS
from omnigraph.core.location import Location
from omnigraph.errors import PipelineStateError
from omnigraph.storage.objects import ObjectStore

STEPS = ("load", "embed", "check", "merge", "optimize", "export")


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A run of a pipeline. `status`: running, done, failed, abandoned before its load, or superseded by a later run.

    `sources` has what was new in each source, `read` and `loaded` rows by type, `steps` the commits and seconds of the
    steps that are done.
    """

    run: str
    pipeline: str
    branch: str
    number: int
    after: str | None
    started: str
    finished: str | None = None
    status: str = "running"
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    read: Mapping[str, int] = field(default_factory=dict)
    loaded: Mapping[str, int] = field(default_factory=dict)
    rejected: int = 0
    rejects: str | None = None
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    error: str | None = None

    def with_step(self, name: str, commit: str | None, seconds: float) -> PipelineRun:
        return replace(self, steps={**self.steps, name: {"commit": commit, "seconds": round(seconds, 3)}})

    def to_document(self) -> dict[str, Any]:
        return asdict(self)


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of one pipeline."""

    objects: ObjectStore
    pipeline: str

    @classmethod
    def of(cls, graph: Location, pipeline: str) -> RunRecords:
        return cls(ObjectStore(graph), pipeline)

    def write(self, run: PipelineRun) -> PipelineRun:
        self.objects.write(self._name(run.run), json.dumps(run.to_document()).encode())
        return run

    def read(self, run: str) -> PipelineRun:
        found = self.objects.read_if_exists(self._name(run))
        if found is None:
            message = f"the record of run {run} of pipeline '{self.pipeline}' is gone: what was loaded is not known"
            raise PipelineStateError(message, pipeline=self.pipeline, hint="load everything again: --full")
        try:
            return PipelineRun(**json.loads(found))
        except (ValueError, TypeError) as error:
            message = f"the record {self._name(run)} is damaged: {error}"
            raise PipelineStateError(message, pipeline=self.pipeline, hint="load everything again: --full") from error

    def all(self) -> list[PipelineRun]:
        """Return all runs, newest first."""
        names = sorted(self.objects.list(f"{RUNS}/{self.pipeline}"), reverse=True)
        return [self.read(name.rpartition("/")[2].removesuffix(".json")) for name in names]

    def chain(self, last: PipelineRun | None) -> Iterator[PipelineRun]:
        """Yield the runs whose loads the graph has, newest first."""
        while last is not None:
            yield last
            last = self.read(last.after) if last.after else None

    def abandon(self, after: PipelineRun | None) -> None:
        """Mark the runs that died before their loads, after the last one that has loaded."""
        for name in self.objects.list(f"{RUNS}/{self.pipeline}"):
            run = name.rpartition("/")[2].removesuffix(".json")
            if after is None or run > after.run:
                known = self.read(run)
                if known.status == "running":
                    self.write(replace(known, status="abandoned", finished=now()))

    def _name(self, run: str) -> str:
        return f"{RUNS}/{self.pipeline}/{run}.json"
