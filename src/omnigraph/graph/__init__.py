"""Graph: the handle people hold. It delegates; the rooms below do the work."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from omnigraph.api.protocol import BranchView
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.core.refs import MAIN, checked_name
from omnigraph.embed.embedder import Embedder
from omnigraph.errors import BranchInUseError
from omnigraph.graph.changing import Changing
from omnigraph.graph.upkeep import Upkeep
from omnigraph.lang.source import source_given
from omnigraph.schema.init import init_graph

_LOG = logging.getLogger(__name__)


def init(uri: str | os.PathLike[str], schema: str | os.PathLike[str], *, force: bool = False) -> Graph:
    """Create a graph. `schema` is the text of a `.pg` schema or the path of a file that holds one.

    `force` takes over from an attempt that died before its graph was made; a graph itself is never replaced.
    """
    return Graph(init_graph(Location.parse(uri), source_given(schema, ".pg", "<schema>"), force=force), read_only=False)


def open(  # noqa: A001 - the name the API fixes
    uri: str | os.PathLike[str], *, read_only: bool = False, embedder: Embedder | None = None
) -> Graph:
    """Open a graph. Read-write finishes or undoes what a crash left behind; read-only never writes anything.

    `embedder` makes vectors of texts. If none is given, the one that the environment asks for does, when it is needed.
    """
    return Graph(Store.at(Location.parse(uri)), read_only=read_only, embedder=embedder)


class Graph(Changing, Upkeep):
    """A graph. Safe to share between threads; a context manager."""

    @contextmanager
    def branch(
        self, name: str, *, base: str = MAIN, merge_into: str | None = None, actor: str | None = None
    ) -> Iterator[BranchView]:
        """Work on a branch, which is made if it is not there; on a clean exit it is merged and deleted.

        If the body raises, the branch stays as it is, to be looked at; so it does without `merge_into`.
        """
        name = checked_name(name)
        if name not in self.branches():
            self.create_branch(name, base)
        yield BranchView(self, name, actor)
        if merge_into is not None:
            self.merge(name, merge_into, actor=actor)
            self._delete_merged(name)

    def _delete_merged(self, name: str) -> None:
        """Delete a branch whose work is done. That others were made from it must not look as if it was not."""
        try:
            self.delete_branch(name)
        except BranchInUseError as error:
            _LOG.warning("the branch was merged, but not deleted: %s", error.message)
