"""Prometheus metrics, of this process or of all processes of one server."""

from __future__ import annotations

import os
import time
from dataclasses import asdict

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from omnigraph.commit.gates import waits
from omnigraph.server.settings import METRICS_FOLDER
from omnigraph.storage import observe

CONTENT_TYPE = CONTENT_TYPE_LATEST

# Creation times would double the number of time series.
disable_created_metrics()  # type: ignore[no-untyped-call]
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_STORAGE_SECONDS = 1.0


class Metrics:
    """The metrics of one application. Requests that admission control refuses are those with status 429."""

    def __init__(self) -> None:
        own = CollectorRegistry()
        self._registry = own
        route = ("method", "route")
        self._requests = Counter(
            "omnigraph_http_requests", "Requests that were answered.", (*route, "status"), registry=own
        )
        self._seconds = Histogram(
            "omnigraph_http_request_seconds", "Duration of requests.", route, buckets=_BUCKETS, registry=own
        )
        # "live": the gauge of a process that was killed must not count for ever.
        self.in_flight = Gauge(
            "omnigraph_http_requests_in_flight", "Requests in progress.", multiprocess_mode="livesum", registry=own
        )
        self.loads = Gauge("omnigraph_loads_running", "Loads in progress.", multiprocess_mode="livesum", registry=own)
        self.graphs = Gauge(
            "omnigraph_graphs", "Graphs by state.", ("state",), multiprocess_mode="livemax", registry=own
        )
        self.upkeep = Counter(
            "omnigraph_upkeep_runs", "Runs of automatic upkeep, by outcome.", ("outcome",), registry=own
        )
        self._waits = Counter("omnigraph_gate_waits", "Writes that waited for other writers.", registry=own)
        self._wait_seconds = Counter("omnigraph_gate_wait_seconds", "How long they have waited.", registry=own)
        self._waited = waits.snapshot()
        self._storage = Counter("omnigraph_storage_requests", "Requests to the storage.", ("kind",), registry=own)
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._counted = observe.snapshot()
        self._counted_at = time.monotonic()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        count, times = self._children_of(method, route, status)
        count.inc()
        times.observe(seconds)
        # In several processes only one of them renders: each must write what it has counted into the shared files by
        # itself.
        if time.monotonic() - self._counted_at > _STORAGE_SECONDS:
            self._count_storage()

    def _children_of(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        # To find a time series by its labels takes longer than to count.
        key = method, route, status
        if key not in self._children:
            children = self._requests.labels(method, route, str(status)), self._seconds.labels(method, route)
            self._children[key] = children
        return self._children[key]

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        self._count_storage()
        if METRICS_FOLDER not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)

    def _count_storage(self) -> None:
        found = observe.snapshot()
        more, self._counted, self._counted_at = found - self._counted, found, time.monotonic()
        for kind, count in asdict(more).items():  # a Prometheus counter refuses to go down
            self._storage.labels(kind).inc(max(0, count))
        before, self._waited = self._waited, waits.snapshot()
        self._waits.inc(self._waited[0] - before[0])
        self._wait_seconds.inc(self._waited[1] - before[1])
