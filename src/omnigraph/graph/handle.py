"""What every part of a graph builds on: its store, its schema, and the one door."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from omnigraph.api.access import READS, Access, Action, Principal, authorize
from omnigraph.commit.recovery import heal, sweep
from omnigraph.commit.staged_schema import reconcile
from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN, checked_name
from omnigraph.embed.embedder import Embedder, Embedding
from omnigraph.errors import (
    CorruptGraphError,
    GraphNotFoundError,
    NotAGraphError,
    OptionError,
    ReadOnlyError,
    StorageError,
)
from omnigraph.history.feed import Feed
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.identity import is_new_id
from omnigraph.manifest import schema_files
from omnigraph.manifest.rows import MANIFEST_PATH
from omnigraph.manifest.state import ManifestState
from omnigraph.query.cache import Cache
from omnigraph.query.current import Current
from omnigraph.schema.init import graph_exists

_CACHE_BYTES = 1024 * 1024 * 1024
_LOG = logging.getLogger(__name__)


class Handle:
    """A graph that is open: its store, its schema, who holds it, and the one door."""

    def __init__(self, store: Store, *, read_only: bool, embedder: Embedder | None = None) -> None:
        self._store = store
        self.read_only = read_only
        self._principal: Principal | None = None
        self._operation: str | None = None
        self._under_way: set[str] = set()  # operations that have ids of their own; shared with those who act for others
        self._cache = Cache(_CACHE_BYTES)
        self._feed = Feed(store)
        self._embedding = Embedding(embedder)
        if not read_only:
            self._recover()
        self._contract = self._read_contract()
        self._current = Current(store, self._read_contract)
        if self._contract.foreign and not read_only:
            schema_files.write_compiled(store.objects, self._contract.catalog)
            _LOG.warning("the compiled schema of %s was rebuilt from %s", self.uri, schema_files.SOURCE)
            self._contract = self._read_contract()

    def _recover(self) -> None:
        """Bring the graph to the current format, and finish or undo what stopped half-way; then it can be read."""
        try:
            self._store.manifest.load_to_write(None)
        except StorageError:
            self._read_contract()  # tells why, if it is that there is no graph
            raise
        sweep(self._store)
        reconcile(self._store)

    def acting_as(self, principal: Principal) -> Self:
        """The same graph in the hands of somebody who may do only some things, and in whose name commits are made."""
        handle = copy.copy(self)
        handle._principal = principal  # noqa: SLF001 - it is one of us
        return handle

    def as_operation(self, operation_id: str) -> Self:
        """The same graph for one change with an id of its own: `outcome` finds it by that, and it is made only once."""
        if not is_new_id(operation_id):
            message = f"{operation_id!r:.60} cannot be the id of an operation"
            raise OptionError(message, option="operation_id", hint="give it a ULID: 26 characters, in capitals")
        handle = copy.copy(self)
        handle._operation = operation_id  # noqa: SLF001 - it is one of us
        return handle

    @property
    def uri(self) -> str:
        return self._store.location.uri

    @property
    def catalog(self) -> Catalog:
        return self._contract.catalog

    @property
    def schema(self) -> str:
        """The accepted schema, as it was written."""
        self._look()
        return self._contract.text

    def refresh(self) -> None:
        """Pick up schema changes, and recover what other writers left behind."""
        self._contract = self._read_contract()
        if not self.read_only:
            heal(self._store, self._store.gates.patience)

    def close(self) -> None:
        """Let the handle go. Nothing is buffered, so nothing is written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Graph {self.uri}{' read-only' if self.read_only else ''}>"

    def _admit(self, action: Action, branch: str | None = None, target: str | None = None) -> None:
        """The one door: whoever asks must be allowed to, and a handle that is read-only changes nothing."""
        if self._principal is not None:
            authorize(self._principal, Access(action, branch, target))
        if self.read_only and action not in READS:
            raise ReadOnlyError(f"{self.uri} is open read-only", hint="open it without `read_only`")

    def _look(self, branch: str | None = None) -> None:
        """Admit a read, and go by the schema as it is now."""
        self._admit(Action.READ, branch)
        self._contract = self._read_contract()

    def _actor(self, named: str | None) -> str | None:
        """In whose name a change is made; whoever has proven who it is has no other."""
        return self._principal.actor if self._principal else named

    @contextmanager
    def _carrying_out(self) -> Iterator[str | None]:
        """A change is made in the block, by the id that it was given, if any: before its end it has no outcome."""
        if self._operation is None:
            yield None
            return
        self._under_way.add(self._operation)
        try:
            yield self._operation
        finally:
            self._under_way.discard(self._operation)

    def _read_contract(self, state: ManifestState | None = None) -> schema_files.AcceptedSchema:
        objects = self._store.objects
        if not objects.exists(MANIFEST_PATH):
            raise self._absent()
        try:
            found = self._store.schema_of(state or self._store.manifest.load())
        except StorageError:
            if graph_exists(self._store):
                raise
            raise self._absent() from None
        if found is None:
            message = f"{self.uri} has lost its {schema_files.SOURCE}"
            raise CorruptGraphError(message, path=schema_files.SOURCE, hint="restore it from a backup")
        return found

    def _absent(self) -> GraphNotFoundError | NotAGraphError:
        objects = self._store.objects
        if schema_files.is_started(objects):
            message = f"somebody began to make a graph at {self.uri} and did not finish"
            return NotAGraphError(message, uri=self.uri, hint="finish it with `omnigraph init --force`")
        if objects.exists(""):
            message = f"{self.uri} is not a graph"
            return NotAGraphError(message, uri=self.uri, hint="name the directory that `omnigraph init` made")
        return GraphNotFoundError(f"no graph at {self.uri}", uri=self.uri, hint="make one with `omnigraph init`")


def named_branch(name: str) -> str | None:
    name = checked_name(name)
    return None if name == MAIN else name
