"""Spark: the session, the executor and the data source. The only package that imports pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omnigraph.api.protocol import GraphAPI
from omnigraph.api.results import LoadResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write(graph: GraphAPI, frames: Mapping[str, DataFrame], *, mode: str, **options: Any) -> LoadResult:
    """Load DataFrames into a graph in one commit, by type: `write(graph, {"Person": people}, mode="merge")`.

    Their rows are converted, checked and written where they are. The options are those of `Graph.load`.
    """
    return graph.load(dict(frames), mode=mode, **options)
