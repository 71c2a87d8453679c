"""Two clients of one graph, and writers that stop where a test wants them to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import omnigraph
from omnigraph import Graph, RemoteGraph
from omnigraph.errors import OmnigraphError
from omnigraph.storage import observe
from tests.support.serving import one_graph, running

SCHEMA = """
node Account { slug: String @key  value: I32  seen: Bool? }
node Ledger { slug: String @key  value: I32  seen: Bool? }
edge Posts: Account -> Ledger
"""
# Statements are on lines of their own: a planted bug takes them apart.
RESET = """query reset() {
    insert Account { slug: "x", value: 0 }
    insert Ledger { slug: "y", value: 0 }
}"""
READ = "query read() { match { $a: Account  $a posts $l } return { $a.value, $l.value, $a.seen, $l.seen } }"
TOKEN = "admin-token"
_PATIENCE = 120.0

Client = Graph | RemoteGraph
Act = Callable[[], object]


def make(uri: str) -> None:
    graph = omnigraph.init(uri, SCHEMA)
    graph.mutate(RESET)
    graph.mutate('query post() { insert Posts { from: "x", to: "y" } }')


@dataclass(frozen=True, slots=True)
class Scene:
    """One account and one ledger, which every transaction of ours sets to the same value, and two clients."""

    uri: str
    left: Client
    right: Client
    reader: Client

    def row(self) -> dict[str, Any]:
        """Read both in one query. Embedded, no table is cached: what is returned was read now."""
        if isinstance(self.reader, Graph):
            self.reader._cache.clear()
        [row] = self.reader.query(READ).rows
        return row

    def values(self) -> tuple[int, int]:
        row = self.row()
        return row["a.value"], row["l.value"]

    def head(self) -> str:
        return self.right.commits()[0].commit_id

    def reset(self) -> None:
        self.right.mutate(RESET)


@contextmanager
def clients(way: str, uri: str) -> Iterator[Scene]:
    """Two handles, or two connections to one server."""
    if way == "embedded":
        yield Scene(uri, omnigraph.open(uri), omnigraph.open(uri), omnigraph.open(uri, read_only=True))
        return
    with ExitStack() as stack:
        address = stack.enter_context(running(one_graph(uri)))
        left, right = (stack.enter_context(omnigraph.connect(address, token=TOKEN)) for _ in range(2))
        yield Scene(uri, left, right, right)


@contextmanager
def hooked(hook: observe.WriteHook) -> Iterator[None]:
    previous = observe.set_write_hook(hook)
    try:
        yield
    finally:
        observe.set_write_hook(previous)


def seen_at_each_write(scene: Scene, act: Act, *, fails_at: int = 0) -> list[tuple[int, int]]:
    """Run an action and read before each of its durable writes; let the n-th commit of a table fail."""
    seen, commits = list[tuple[int, int]](), count(1)

    def look(operation: str, _: str) -> None:
        seen.append(scene.values())
        if operation == "commit table" and next(commits) == fails_at:
            raise omnigraph.errors.StorageError("the storage fails", path="", operation=operation)

    with hooked(look):
        try:
            act()
        except OmnigraphError:
            assert fails_at
    assert len(seen) > 3, "the action wrote nothing"
    return seen


def outcome(act: Act) -> Any:
    """Return what an action returns, or the error that it raises."""
    try:
        return act()
    except OmnigraphError as error:
        return error


class _Stop:
    """Holds the first thread at its n-th staged write, before it takes the gates; passes all others."""

    def __init__(self, place: int) -> None:
        self._places, self._place = count(1), place
        self.reached, self.released = threading.Event(), threading.Event()

    def __call__(self, operation: str, _: str) -> None:
        if operation.startswith("stage ") and not self.reached.is_set() and next(self._places) == self._place:
            self.reached.set()
            assert self.released.wait(_PATIENCE), "the writer was not released"


def each_interleaving(scene: Scene, left: Act, right: Act) -> Iterator[tuple[Any, Any]]:
    """Run the right action at each place where the left one can be held; yield how both ended."""
    with ThreadPoolExecutor(1) as pool:
        for place in count(1):
            scene.reset()
            stop = _Stop(place)
            with hooked(stop):
                running_left = pool.submit(outcome, left)
                if not _held(stop, running_left):
                    assert place > 1, "the left action staged nothing"
                    return
                try:
                    ended_right = outcome(right)
                finally:
                    stop.released.set()
                ended_left = running_left.result(_PATIENCE)
            yield ended_left, ended_right


def _held(stop: _Stop, running_left: Future[Any]) -> bool:
    """Wait until the writer is held, or has ended."""
    running_left.add_done_callback(lambda _: stop.reached.set())
    assert stop.reached.wait(_PATIENCE), "the writer came to no end"
    return not running_left.done()
