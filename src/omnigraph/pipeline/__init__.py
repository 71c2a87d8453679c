"""Pipelines as files: from sources to a graph, again and again, each run recorded and none done twice."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omnigraph.api.progress import SILENT, Progress

if TYPE_CHECKING:
    from omnigraph.pipeline.records import PipelineRun
    from omnigraph.pipeline.runner import Pipeline, PipelineOutcome, PipelinePlan

PipelineFile = str | os.PathLike[str]


def run(
    file: PipelineFile,
    *,
    store: str | None = None,
    engine: str = "auto",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    full: bool = False,
    actor: str | None = None,
    progress: Progress = SILENT,
) -> PipelineOutcome:
    """Run a pipeline: finish the run that was interrupted, if there is one, and load what is new.

    `store` is the graph, instead of the one that the file names. `full` loads everything, as if for the first time.
    """
    made = _pipeline(file, store, engine, master, conf, full=full, actor=actor, progress=progress)
    return made.run()


def plan(
    file: PipelineFile,
    *,
    store: str | None = None,
    engine: str = "auto",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    full: bool = False,
) -> PipelinePlan:
    """Return what a run would read and write, with row counts. All rows are read and checked, and nothing changes."""
    return _pipeline(file, store, engine, master, conf, full=full).plan()


def validate(file: PipelineFile, *, store: str | None = None) -> None:
    """Raise PipelineFileError with all problems of a file, each at its line and column."""
    _pipeline(file, store, "auto", None, None, read_only=True).validate()


def status(file: PipelineFile, *, store: str | None = None) -> list[PipelineRun]:
    """Return the runs of a pipeline, newest first."""
    return _pipeline(file, store, "auto", None, None, read_only=True).records.all()


def _pipeline(
    file: PipelineFile,
    store: str | None,
    engine: str,
    master: str | None,
    conf: Mapping[str, str] | None,
    *,
    read_only: bool = False,
    **more: Any,
) -> Pipeline:
    from omnigraph.api.options import Engine, option  # noqa: PLC0415
    from omnigraph.api.pipelines import read_pipeline  # noqa: PLC0415 - loads pydantic and YAML
    from omnigraph.errors import GraphNotFoundError, PipelineFileError  # noqa: PLC0415
    from omnigraph.graph import open as open_graph  # noqa: PLC0415
    from omnigraph.pipeline.runner import Pipeline, PipelineOptions  # noqa: PLC0415 - loads Arrow and the engine

    text = read_pipeline(file)
    options = PipelineOptions(option(Engine, "engine", engine), master, conf or {}, **more)
    try:
        graph = open_graph(store or text.address(text.document.target.graph), read_only=read_only)
    except GraphNotFoundError as error:
        if store is not None:
            raise
        raise PipelineFileError.of([text.problem(error.message, "target", "graph", hint=error.hint)]) from None
    return Pipeline(text, graph, options)
