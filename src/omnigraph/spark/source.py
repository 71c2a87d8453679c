"""`spark.readStream.format("omnigraph")`: the changes of a type as a stream whose offsets are commits.

A batch has the changes from one commit to a later one: an id occurs once, with its row before the first and after the
last of them. Spark calls a reader in a process of its own on the driver, except `read`, which runs in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import streaming
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from omnigraph.core.refs import branch_of
from omnigraph.errors import ChangeCursorError, CommitNotFoundError, ParameterError, SchemaBoundaryError
from omnigraph.history.resolve import no_commit, resolve
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.state import ManifestState
from omnigraph.spark.scans import ChangeScan, ScanRequest
from omnigraph.spark.worker import shown_plainly

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:  # Spark before 4.2 has no trigger that a Python source could take part in
    SupportsTriggerAvailableNow = getattr(
        getattr(streaming, "datasource", None), "SupportsTriggerAvailableNow", type("NoTrigger", (), {})
    )

Offset = dict[str, Any]
_GRAPH, _COMMIT = "graph", "commit"


@dataclass(frozen=True, slots=True)
class ChangePart(InputPartition):
    """A part of the changes of one batch; None if nothing changed."""

    scan: ChangeScan
    part: Any


class ChangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of a type from commit to commit. `most` bounds the commits of a batch."""

    def __init__(self, request: ScanRequest, schema: StructType, most: int | None) -> None:
        if request.until is not None:
            message = "a stream of changes has no end: `until` is for batches"
            raise ParameterError(
                message, parameter="until", hint="leave it out; to end, use trigger(availableNow=True)"
            )
        self.request = request
        self.schema = schema
        self.most = most
        self.last: str | None = None  # the commit at which a query ends that reads what is available

    def initialOffset(self) -> Offset:  # noqa: N802 - so Spark calls it
        """Return the commit named by `since`, or that nothing was read."""
        with shown_plainly():
            manifest = Manifest(self.request.graph)
            since = self.request.since
            assert since is not None, "without it there is no stream"
            head = resolve(manifest, since, no_commit).head if since else None
            return self._offset(manifest.load(), head.commit_id if head else "")

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the head of the branch: the query ends there, whatever is committed meanwhile."""
        with shown_plainly():
            self.last = _head(self._state())

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:  # noqa: ARG002, N802
        """Return the commit up to which the next batch goes; the start if there is nothing new."""
        with shown_plainly():
            state = self._state()
            # Nothing was read: the rows as they are now, for earlier states may be cleaned up.
            if start is None or not start[_COMMIT]:
                return self._offset(state, self.last or _head(state))
            self._check_graph(start, state)
            coming = self._after(start[_COMMIT], state)
            return self._offset(state, coming[: self.most][-1] if coming else start[_COMMIT])

    def partitions(self, start: Offset, end: Offset) -> Sequence[ChangePart]:
        with shown_plainly():
            self._check_graph(end, self._state())
            scan = replace(self.request, since=start[_COMMIT], until=end[_COMMIT]).pin()
            assert isinstance(scan, ChangeScan)
            self._check_schema(scan)
            # Without any, Spark would call `read` with a partition of its own making.
            return [ChangePart(scan, part) for part in scan.parts()] or [ChangePart(scan, None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ChangePart)
        with shown_plainly():
            if partition.part is not None:
                yield from partition.scan.batches(partition.part, self.schema)

    def commit(self, end: Offset) -> None:
        """Do nothing: the history is kept until a cleanup."""

    def stop(self) -> None:
        """Do nothing: no connection is open."""

    def _state(self) -> ManifestState:
        return Manifest(self.request.graph).load(branch_of(self.request.branch))

    def _offset(self, state: ManifestState, commit_id: str) -> Offset:
        return {_GRAPH: state.graph_id, _COMMIT: commit_id}

    def _check_graph(self, offset: Mapping[str, Any], state: ManifestState) -> None:
        if offset[_GRAPH] != state.graph_id:
            message = f"the checkpoint is one of another graph than that at {self.request.graph.uri}"
            raise ChangeCursorError(message, hint="use its own checkpoint, or a new one to start over")

    def _after(self, commit_id: str, state: ManifestState) -> list[str]:
        """Return the commits after one, oldest first, up to the noted end."""
        assert state.head, "a graph begins with a commit"
        names = [one.commit_id for one in takewhile(_is_not(commit_id), state.first_parents(state.head))]
        if state.commit(commit_id) is None:
            message = f"the checkpoint is at commit {commit_id}, which is not in the history of the branch"
            raise CommitNotFoundError(message, commit_id=commit_id, hint="use a new checkpoint to start over")
        names.reverse()
        return names[: names.index(self.last) + 1] if self.last in names else ([] if self.last else names)

    def _check_schema(self, scan: ChangeScan) -> None:
        """Raise if the type has other columns than when the query started: their values would be lost."""
        if scan.schema() != self.schema:
            message = f"the columns of {self.request.type_name} changed since the query started"
            raise SchemaBoundaryError(message, hint="start the query again: it goes on with the new columns")


def _head(state: ManifestState) -> str:
    assert state.head, "a graph begins with a commit"
    return state.head.commit_id


def _is_not(commit_id: str) -> Any:
    return lambda one: one.commit_id != commit_id
