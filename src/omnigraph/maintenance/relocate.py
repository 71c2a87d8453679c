"""`relocate`: make a graph that was copied or moved independent of the place where its branches were written."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from omnigraph.api.maintenance import Relocation
from omnigraph.commit.gates import Gate, Held
from omnigraph.commit.store import Store
from omnigraph.core.executor import map_in_threads
from omnigraph.errors import CorruptGraphError
from omnigraph.storage.bases import TablePlace, fork_of_version_file, former_roots, rewrite_version

# Names the root that all forks refer to. A copy of the graph has it too, so there it names another root.
MARK = "__root.json"
_AT_ONCE = 8  # files that are read at the same time
_LOG = logging.getLogger(__name__)


def settle_down(store: Store) -> Relocation:
    """Relocate a graph unless it is known to be where its forks were written; from then on that is known."""
    if is_in_place(store):
        return Relocation(store.location.uri)
    done = relocate(store)
    # `relocate` marks the root itself when it has rewritten something.
    if not done.versions:
        _mark(store)
    return done


def relocate_if_moved(store: Store) -> None:
    """Relocate a graph that is not known to be in place. Nothing is written to one that is."""
    if not is_in_place(store):
        relocate(store)


def is_in_place(store: Store) -> bool:
    """Return whether the forks are known to refer to the present root, in two requests at most."""
    return not store.manifest.table.branch_names() or _marked_root(store) == store.location.uri


def relocate(store: Store) -> Relocation:
    """Look at every version of every fork, and rewrite those that refer to another root.

    It can stop anywhere and be repeated: what is rewritten stays right, and the mark comes last.
    """
    uri = store.location.uri
    moved = moved_versions(store)
    done = 0
    if moved:
        with alone(store) as held:
            moved |= moved_versions(store)  # one that was forked before the gates were closed
            for name in sorted(moved):
                held.check()
                done += rewrite_version(store.objects, _place(store, name), name)
        _mark(store)
    roots = tuple(sorted(frozenset().union(*moved.values())))
    if done:
        _LOG.warning("%s was at %s before: %d versions of its branches were rewritten", uri, ", ".join(roots), done)
    return Relocation(uri, roots, done)


def moved_versions(store: Store) -> dict[str, frozenset[str]]:
    """Return the version files of forks that refer to other roots, and those roots."""
    names = [one.name for one in store.objects.list_below("") if fork_of_version_file(one.name)]
    found = zip(names, map_in_threads(lambda name: _former_roots(store, name), names, _AT_ONCE), strict=True)
    return {name: roots for name, roots in found if roots}


def _former_roots(store: Store, name: str) -> frozenset[str]:
    data = store.objects.read_if_exists(name)
    try:
        return frozenset() if data is None else frozenset(former_roots(data, _place(store, name)))
    except CorruptGraphError as error:
        # Torn by a power cut, or by the copy. It refers to nothing, so it must not keep the rest from being mended.
        _LOG.warning("%s is left as it is: %s", name, error.message)
        return frozenset()


def _place(store: Store, name: str) -> TablePlace:
    fork = fork_of_version_file(name)
    assert fork, "only versions of forks are looked at"
    return TablePlace(store.location, fork[0])


def _mark(store: Store) -> None:
    store.objects.write(MARK, json.dumps({"root": store.location.uri}).encode())


def _marked_root(store: Store) -> str | None:
    data = store.objects.read_if_exists(MARK)
    with suppress(ValueError, TypeError, KeyError):  # a damaged mark is as good as none
        root = None if data is None else json.loads(data)["root"]
        return root if isinstance(root, str) else None
    return None


@contextmanager
def alone(store: Store) -> Iterator[Held]:
    """Hold all gates: no write, no new branch, no recovery and no cleanup goes on meanwhile."""
    # The exclusive gate of the schema stops new writers; `refs` stops new branches.
    with store.gates.hold([Gate("schema"), Gate("refs")]) as first:
        # On an object store writers that checked `schema` before it was taken are waited for at their branches, which
        # can be listed only now: until here one could be created.
        branches = [Gate(f"branch:{name}") for name in store.manifest.branches()]
        with store.gates.hold(branches) as second:
            yield _Both(first, second)


class _Both:
    def __init__(self, *held: Held) -> None:
        self._held = held

    def check(self) -> None:
        for one in self._held:
            one.check()
