"""A stream into a graph, each batch in one commit, exactly once: the function for `foreachBatch`.

Spark repeats the batch that was running when a query died, also one that we had committed. A commit therefore carries
the stream and the number of the batch, and the same swap that makes it visible moves the position of the stream in the
manifest. A batch at or before the position is not made again, however long ago it was.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions
from pyspark.sql.window import Window

from omnigraph.api.options import Engine, LoadMode, option
from omnigraph.api.protocol import GraphAPI
from omnigraph.api.results import LoadResult, StreamBatch, StreamPosition
from omnigraph.commit.checks import check_batch
from omnigraph.core.refs import MAIN
from omnigraph.errors import (
    InputColumnsError,
    NotServedError,
    OptionError,
    ParameterError,
    StreamBatchDoneError,
    StreamCheckError,
)
from omnigraph.ingest.load import MOST_BYTES, MOST_RECORDS, type_named
from omnigraph.lang.catalog import Catalog, NodeType
from omnigraph.spark.frames import frame_inputs
from omnigraph.spark.jobs import SparkJobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_LOG = logging.getLogger(__name__)
_QUERY = "sql.streaming.queryId"  # a local property that Spark sets in the thread of a batch
_LONGEST_NAME = 200
Frames = Callable[["DataFrame"], "DataFrame"]
"""Makes the rows of one type from a batch."""


class StreamGraph(GraphAPI, Protocol):
    """What a sink needs of a graph, which one over HTTP lacks."""

    @property
    def catalog(self) -> Catalog: ...

    def as_batch(self, batch: StreamBatch) -> GraphAPI: ...

    def stream(self, name: str, *, branch: str = MAIN) -> StreamPosition | None: ...


@dataclass(frozen=True, slots=True)
class MergeRule:
    """When the branch of a stream is merged: after every so many batches, if no check finds a row."""

    every: int
    into: str = MAIN
    checks: Mapping[str, str] = field(default_factory=dict)


def stream_sink(
    graph: GraphAPI,
    stream: str,
    types: str | Mapping[str, Frames],
    *,
    mode: str,
    branch: str,
    merge_every: int | None,
    into: str,
    checks: Mapping[str, str],
    rejects: str | os.PathLike[str] | None,
    **options: Any,
) -> StreamSink:
    """Check the options of a sink, all before the first batch comes; create its branch if it does not exist."""
    if not hasattr(graph, "as_batch"):
        message = "a stream is written where the storage of the graph is, not through a server"
        raise NotServedError(message, operation="sink", hint="open the graph by its address")
    if not stream or len(stream) > _LONGEST_NAME or not stream.isprintable():
        message = f"{stream!r:.60} cannot be the name of a stream"
        raise OptionError(message, option="stream", hint=f"give it 1 to {_LONGEST_NAME} printable characters")
    if merge_every is not None and branch == into:
        message = f"batches are loaded into '{branch}', so there is nothing to merge into it"
        raise OptionError(message, option="merge_every", hint="give the batches a branch of their own: branch=...")
    if merge_every is not None and merge_every < 1:
        raise OptionError(f"merge_every is {merge_every}", option="merge_every", hint="give 1 or more")
    opened = cast("StreamGraph", graph)
    made: Mapping[str, Frames] = {types: _whole} if isinstance(types, str) else dict(types)
    for name in made:
        type_named(name, opened.catalog)
    if branch not in graph.branches():
        graph.create_branch(branch, base=into)
    rule = None if merge_every is None else MergeRule(merge_every, into, dict(checks))
    directory = None if rejects is None else os.fspath(rejects)
    how = option(LoadMode, "mode", mode)
    return StreamSink(opened, stream, made, how, branch, rule, rejects=directory, **options)


def _whole(batch: DataFrame) -> DataFrame:
    return batch


@dataclass(frozen=True, slots=True)
class StreamSink:
    """Loads each batch of one stream in one commit. Spark calls it with the batch and its number."""

    graph: StreamGraph
    stream: str
    types: Mapping[str, Frames]
    mode: LoadMode
    branch: str
    rule: MergeRule | None = None
    latest_by: str | None = None
    max_bad: int | None = None
    rejects: str | None = None
    actor: str | None = None
    message: str | None = None
    query: str | None = None
    restart: bool = False

    def __call__(self, batch: DataFrame, number: int) -> LoadResult | None:
        """Commit a batch; return None if it was committed before."""
        done = self._commit(batch, number)
        # Also for a batch that was committed before: its process may have died before the merge.
        if self.rule and (number + 1) % self.rule.every == 0:
            self.merge()
        return done

    def _commit(self, batch: DataFrame, number: int) -> LoadResult | None:
        known = self.graph.stream(self.stream, branch=self.branch)
        wanted = StreamBatch(self.stream, self.query or _query_of(batch), number)
        if self.restart:
            wanted = replace(wanted, replaces=known.last.query if known else "")
        try:
            # Before the rows are read. It is checked again behind the gates, where no other process can come between.
            check_batch(wanted, known, self.branch)
            with self._rows(batch) as frames:
                data = collected(frames, self.graph.catalog) or frames
                rejects = self.rejects and f"{self.rejects}/{self.stream}-{number:012d}.jsonl"
                load = partial(self.graph.as_batch(wanted).load, actor=self.actor, message=self.message)
                return load(data, mode=self.mode, branch=self.branch, max_bad=self.max_bad, rejects=rejects)
        except StreamBatchDoneError as error:
            _LOG.info("%s", error.message)
            return None

    @contextmanager
    def _rows(self, batch: DataFrame) -> Iterator[dict[str, DataFrame]]:
        """Yield the rows of each type. Several types are made of the same rows, so these are kept for all of them."""
        shared = len(self.types) > 1
        kept = batch.persist(StorageLevel.DISK_ONLY) if shared else batch
        try:
            yield {name: self._latest(name, make(kept)) for name, make in self.types.items()}
        finally:
            if shared:
                kept.unpersist()

    def _latest(self, type_name: str, rows: DataFrame) -> DataFrame:
        keys = key_columns(type_name, self.graph.catalog)
        return latest(rows, keys, self.latest_by) if self.latest_by and keys else rows

    def merge(self) -> None:
        """Merge the branch of the stream now, if all checks hold."""
        assert self.rule, "a sink without a rule writes to the branch that is read"
        for name, query in self.rule.checks.items():
            found = self.graph.query(query, branch=self.branch)
            if found.rows:
                message = (
                    f"the check '{name}' found {len(found.rows)} rows on branch '{self.branch}'; it was not merged"
                )
                hint = f"correct them on '{self.branch}', then start the stream again"
                raise StreamCheckError(message, stream=self.stream, check=name, rows=len(found.rows), hint=hint)
        self.graph.merge(self.branch, into=self.rule.into, actor=self.actor, message=self.message)


def collected(frames: Mapping[str, DataFrame], catalog: Catalog) -> dict[str, pa.Table] | None:
    """Return all rows if they are few: the jobs of a load on Spark take longer than to load them in this process."""
    _, session = frame_inputs(frames, catalog, Engine.AUTO)  # the columns are checked as those of any DataFrame
    jobs, found, left = SparkJobs(session), dict[str, pa.Table](), MOST_RECORDS
    for name, frame in frames.items():
        found[name] = jobs.call("collect", frame.limit(left + 1).toArrow)
        left -= found[name].num_rows
        if left < 0 or sum(table.nbytes for table in found.values()) > MOST_BYTES:
            return None
    return found


def _query_of(batch: DataFrame) -> str:
    """Return the id of the query that a batch is of; it is in the checkpoint, and so survives a restart."""
    context = getattr(batch.sparkSession, "sparkContext", None)  # a client of Connect has none
    found = context.getLocalProperty(_QUERY) if context else None
    if not found:
        message = "the DataFrame is no batch of a running query, so its query has no id"
        hint = 'call the sink from foreachBatch; on Spark Connect, pass the id: sink(..., query="...")'
        raise ParameterError(message, parameter="query", hint=hint)
    return str(found)


def key_columns(type_name: str, catalog: Catalog) -> list[str]:
    """Return the properties that identify an entity of a type: the key of a node, else nothing."""
    declared = type_named(type_name, catalog)
    return list(declared.key or ()) if isinstance(declared, NodeType) else []


def latest(rows: DataFrame, keys: Sequence[str], by: str) -> DataFrame:
    """Return of all rows with the same keys the one that is greatest in a column, and all rows that lack a key."""
    for name in (*keys, by):
        if name not in rows.columns:
            message = f"there is no column '{name}' to find the latest row of each key by"
            raise InputColumnsError(message, path=None, columns=rows.columns, hint="check `latest_by` and the mapping")
    order = Window.partitionBy(*keys).orderBy(functions.col(by).desc_nulls_last())
    ranked = rows.withColumn("__rank", functions.row_number().over(order))
    kept = functions.col("__rank") == 1
    for name in keys:  # each row without a key is a bad record of its own, which must be counted
        kept = kept | functions.col(name).isNull()
    return ranked.where(kept).drop("__rank")
