"""What a server serves, to whom, and within which limits: plain values, independent of their source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from pydantic import Field

from omnigraph.api.options import Upkeep
from omnigraph.server.tokens import Tokens

KIBI, MEBI, GIBI = 2**10, 2**20, 2**30
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the directory where several processes of one server keep their metrics."""


Count = Annotated[int, Field(ge=1, strict=True)]
Seconds = Annotated[float, Field(ge=0, strict=True)]


@dataclass(frozen=True, slots=True)
class QueryFile:
    """Stored queries in a file: all of them, or the named one."""

    path: str
    name: str | None = None
    tool_name: str | None = None
    exposed: bool = True


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    """Whether a graph is optimized by itself, and what a cleanup keeps; without either, it removes nothing."""

    optimize: str | None = None
    keep: int | None = None
    older_than: timedelta | None = None

    @property
    def optimizes(self) -> bool:
        return Upkeep.of(self.optimize) is Upkeep.AUTO

    @property
    def removes(self) -> bool:
        return self.keep is not None or self.older_than is not None


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """A graph to serve. With a schema it is created if it does not exist."""

    uri: str
    schema: str | None = None
    queries: tuple[QueryFile, ...] = ()
    durability: str | None = None
    upkeep: UpkeepPolicy = UpkeepPolicy()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one request and of one actor. Times are in seconds; counts apply to one process."""

    # Small, because a body is held in memory whole and parsed there; loads have a limit of their own.
    body_bytes: Count = MEBI
    load_bytes: Count = 32 * MEBI
    head_bytes: Count = 32 * KIBI
    head_seconds: Seconds = 10.0
    body_seconds: Seconds = 30.0
    json_depth: Count = 64
    actor_requests: Count = 16
    actor_bytes: Count = 4 * GIBI
    changes: Count = 32
    requests: Count = 512
    threads: Count = 40
    loads: Count = 2
    query_seconds: Seconds = 300.0  # 0: any time
    shutdown_seconds: Seconds = 60.0


@dataclass(frozen=True, slots=True)
class Serving:
    """The settings of a server. `single` means one graph, which `/graphs` does not list.

    `folder` is where its processes share state; it is removed when the server ends.
    `open_mode` allows everything without a token; nothing else does.
    """

    graphs: Mapping[str, ServedGraph]
    default: str | None = None
    single: bool = True
    tokens: Tokens = field(default_factory=Tokens)
    open_mode: bool = False
    limits: Limits = field(default_factory=Limits)
    load_roots: tuple[str, ...] = ()
    require_all_graphs: bool = False
    reported_version: str | None = None
    source_version: str | None = None
    folder: str | None = None
    mcp: bool = True
    mcp_allow_merge: bool = False
