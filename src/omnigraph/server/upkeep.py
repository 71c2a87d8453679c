"""Automatic upkeep of the graphs of a server, in the background and by one of its processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import ExitStack

from omnigraph.api.maintenance import UpkeepReport
from omnigraph.commit.file_locks import lock_file, try_lock
from omnigraph.errors import OmnigraphError
from omnigraph.graph import Graph
from omnigraph.server import logs
from omnigraph.server.metrics import Metrics
from omnigraph.server.open_graphs import OpenGraph
from omnigraph.server.settings import Serving, UpkeepPolicy

_SECONDS = 600.0  # between two rounds
_LOG = logging.getLogger(__name__)


class BackgroundUpkeep:
    """A thread that looks after the graphs now and then. A graph whose upkeep is off is left alone."""

    def __init__(self, serving: Serving, graphs: Mapping[str, OpenGraph], metrics: Metrics) -> None:
        policies = {name: serving.graphs[name].upkeep for name in graphs}
        self._policies = {name: one for name, one in policies.items() if one.optimizes or one.removes}
        self._graphs = graphs
        self._folder = serving.folder
        self._metrics = metrics
        self._stopping = threading.Event()
        # A daemon: the server does not wait for a long round. One that is cut off is recovered like any other writer.
        self._thread = threading.Thread(target=self._run, name="omnigraph-upkeep", daemon=True)
        self._turn = ExitStack()

    def start(self) -> None:
        if self._policies:
            self._thread.start()

    def stop(self, patience: float) -> None:
        """Begin no further work, and wait for what is under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(patience)

    def _run(self) -> None:
        with self._turn:
            while not self._stopping.wait(_SECONDS):
                self.round()

    def round(self) -> None:
        """Look after each graph, if this is the process that does it."""
        if not self._has_turn():
            return
        for name, policy in self._policies.items():
            if not self._stopping.is_set():
                self._look_after(name, policy)

    def _has_turn(self) -> bool:
        """Whether no other process of the server does it. The lock is kept, and free when this process dies."""
        if self._folder is None:
            return True
        with ExitStack() as attempt:
            file = attempt.enter_context(lock_file(f"{self._folder}/upkeep.lock"))
            if not try_lock(file):
                return False
            # Kept until this process ends: if the lock went around, every process would open tables it has not cached.
            self._turn.push(attempt.pop_all())
            self._folder = None
            return True

    def _look_after(self, name: str, policy: UpkeepPolicy) -> None:
        try:
            done = _kept_up(self._graphs[name].graph, policy)
        except OmnigraphError as error:
            self._metrics.upkeep.labels("failed").inc()
            _LOG.warning("upkeep of graph '%s' failed: %s", name, error.message)
            return
        except Exception as error:  # noqa: BLE001 - else the thread ends, and no graph is looked after until a restart
            self._metrics.upkeep.labels("failed").inc()
            logs.log(_LOG, logging.ERROR, f"upkeep of graph '{name}' failed", error)
            return
        removed = sum(row.old_versions_removed for row in done.cleanup.tables) if done.cleanup else 0
        self._metrics.upkeep.labels("done").inc()
        _LOG.info("upkeep of graph '%s': optimized %s, removed %d versions", name, list(done.optimized), removed)


def _kept_up(graph: Graph, policy: UpkeepPolicy) -> UpkeepReport:
    if policy.optimizes:
        return graph.upkeep(policy.keep, policy.older_than)
    return UpkeepReport((), graph.cleanup(policy.keep, policy.older_than, confirm=True))
