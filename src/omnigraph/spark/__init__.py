"""Spark: the session, the executor and the data source. The only package that imports pyspark."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.api.protocol import GraphAPI
from omnigraph.api.results import LoadResult
from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from omnigraph.spark.streams import StreamSink

# pyspark is imported by the functions: it takes a second, and the workers of Spark import this package.


def write(graph: GraphAPI, frames: Mapping[str, DataFrame], *, mode: str, **options: Any) -> LoadResult:
    """Load DataFrames into a graph in one commit, by type: `write(graph, {"Person": people}, mode="merge")`.

    Their rows are converted, checked and written where they are. The options are those of `Graph.load`.
    """
    return graph.load(dict(frames), mode=mode, **options)


def read(
    graph: GraphAPI | str | os.PathLike[str],
    type_name: str,
    *,
    columns: Sequence[str] = (),
    where: Sequence[Sequence[Any]] | str = (),
    limit: int | None = None,
    branch: str = MAIN,
    snapshot: str | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """Return a type of a graph as a DataFrame: `read(graph, "Person", where=[["age", ">", 35]])`.

    Its state is that of now, whatever is committed later. Columns, conditions and the limit are applied where the data
    is read. `limit` has one task read, which stops when it has enough rows.
    """
    from omnigraph.spark.reader import read_frame  # noqa: PLC0415
    from omnigraph.spark.scans import ScanRequest  # noqa: PLC0415

    request = ScanRequest(_location(graph), type_name, columns, where, limit, branch, snapshot)
    return read_frame(request, spark)


def changes(
    graph: GraphAPI | str | os.PathLike[str],
    type_name: str,
    *,
    since: str,
    until: str = MAIN,
    columns: Sequence[str] = (),
    spark: SparkSession | None = None,
) -> DataFrame:
    """Return the changes of a type from one state to another as a DataFrame.

    Its columns are `operation` (insert, update, delete), `id`, and `before` and `after`, the row without its id as
    structs; the one that does not exist is null.
    """
    from omnigraph.spark.reader import read_frame  # noqa: PLC0415
    from omnigraph.spark.scans import ScanRequest  # noqa: PLC0415

    return read_frame(ScanRequest(_location(graph), type_name, columns, since=since, until=until), spark)


def rejects(address: str | os.PathLike[str], *, spark: SparkSession | None = None) -> DataFrame:
    """Return the problems of loads as a DataFrame: `rejects("rejects.jsonl")`.

    The address is a file that a load has written, `load(..., rejects=...)`, a directory or a pattern of such files.
    Columns: `file`, `line`, `rule`, `type`, `id`, `properties`, `message`.
    """
    from omnigraph.spark.reader import rejects_frame  # noqa: PLC0415

    return rejects_frame(os.fspath(address), spark)


def sink(
    graph: GraphAPI,
    stream: str,
    types: str | Mapping[str, Callable[[DataFrame], DataFrame]],
    *,
    mode: str = "merge",
    branch: str = MAIN,
    merge_every: int | None = None,
    into: str = MAIN,
    checks: Mapping[str, str] | None = None,
    latest_by: str | None = None,
    max_bad: int | None = None,
    rejects: str | os.PathLike[str] | None = None,
    actor: str | None = None,
    message: str | None = None,
    query: str | None = None,
    restart: bool = False,
) -> StreamSink:
    """Return the function for `foreachBatch` that commits each batch of a stream exactly once.

    `types` is the type of all rows, or a mapping from types to functions that make their rows of a batch; a batch is
    one commit. Batches on a `branch` are merged `into` another after every `merge_every` of them, unless one of the
    `checks`, queries by name, returns a row. `latest_by` names the column that decides between rows of one key.
    `rejects` is a directory: a file for each batch. `restart` accepts a checkpoint that does not fit the graph.
    """
    from omnigraph.spark.streams import stream_sink  # noqa: PLC0415

    return stream_sink(
        graph,
        stream,
        types,
        mode=mode,
        branch=branch,
        merge_every=merge_every,
        into=into,
        checks=checks or {},
        rejects=rejects,
        latest_by=latest_by,
        max_bad=max_bad,
        actor=actor,
        message=message,
        query=query,
        restart=restart,
    )


def create_views(
    graph: GraphAPI | str | os.PathLike[str],
    *,
    branch: str = MAIN,
    snapshot: str | None = None,
    prefix: str = "",
    spark: SparkSession | None = None,
) -> list[str]:
    """Make a temporary view of each type of a graph for SQL, all of them of one state; return their names."""
    from omnigraph.spark.reader import type_views  # noqa: PLC0415

    return type_views(_location(graph), spark, branch, snapshot, prefix)


def _location(graph: GraphAPI | str | os.PathLike[str]) -> Location:
    return Location.parse(graph if isinstance(graph, str | os.PathLike) else graph.uri)
