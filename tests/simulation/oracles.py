"""What must hold of a graph after every step, and at the end: each oracle has a name, and says what it saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import omnigraph
from omnigraph.api.changes import Change, ChangeOperation
from omnigraph.api.results import MergeResult
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import HistoryReclaimedError, OmnigraphError
from omnigraph.graph import Graph
from tests.history.merging import Entity, Expected, Image, Row, applied
from tests.simulation.model import as_row
from tests.support.faults import assert_settled
from tests.support.graphs import contents
from tests.support.mutations import KNOWS, PERSON

if TYPE_CHECKING:
    from tests.simulation.world import World

PEOPLE = "query q() { match { $p: Person } return { $p.name as name, $p.age as age, $p.nickName as nick } }"
FRIENDS = "query q() { match { $p: Person  $p knows $q } return { $p.name as name, $q.name as friend } }"
BY_NAME = "query q($n: String) { match { $p: Person { name: $n } } return { $p.age as age } }"
_PAGE = 3  # changes in a page of the feed: small, so that commits are split


class BrokenError(AssertionError):
    """An oracle was violated."""

    def __init__(self, oracle: str, what: str) -> None:
        super().__init__(f"{oracle}: {what}")
        self.oracle = oracle


def require(oracle: str, holds: object, what: str) -> None:
    if not holds:
        raise BrokenError(oracle, what)


@contextmanager
def judging(oracle: str, *, allowed: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """An error in here is a violation."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (BrokenError, *allowed)):
            raise
        raise BrokenError(oracle, f"{type(error).__name__}: {error}") from error


# What is stored ------------------------------------------------------------------------------------


def stored(uri: str, branch: str, oracle: str) -> Image:
    """Read a branch from the tables that it pins, past all caches. No id may be there twice."""
    with judging(oracle):
        rows = contents(Store.at(Location.parse(uri)), None if branch == "main" else branch)
    counts = Counter((key, row["id"]) for key, found in rows.items() for row in found)
    require("once", max(counts.values(), default=1) == 1, f"{branch} has {counts.most_common(1)}")
    return {(key, row["id"]): as_row(key, row) for key, found in rows.items() for row in found}


def same(oracle: str, where: str, expected: Image, found: Image) -> None:
    wrong = {one: (expected.get(one), found.get(one)) for one in expected.keys() | found.keys()}
    wrong = {one: pair for one, pair in wrong.items() if pair[0] != pair[1]}
    shown = "; ".join(f"{one} should be {pair[0]}, is {pair[1]}" for one, pair in sorted(wrong.items())[:3])
    require(oracle, not wrong, f"{where}: {len(wrong)} entities differ: {shown}")


def heads(world: World, branch: str) -> None:
    """The head of every table is what the graph pins, no record is left, and history is one chain."""
    with judging("heads"):
        assert_settled(Store.at(Location.parse(world.uri)), None if branch == "main" else branch)


def references(graph: Graph) -> None:
    """Every file that a branch, a tag, a merge base or an index refers to is there."""
    with judging("references"):
        report = graph.doctor()
    require("references", report.is_healthy, str(report.findings))


# What is answered ----------------------------------------------------------------------------------


def answers(graph: Graph, where: Mapping[str, Any], image: Image) -> None:
    """Queries see the state, whatever caches and indices there are: all people, a look-up, and a traversal."""
    people = [row for one, row in image.items() if one[0] == PERSON]
    expected = [(row["name"], row["age"], row["nickName"]) for row in people]
    friends = {(row["src"], row["dst"]) for one, row in image.items() if one[0] == KNOWS}  # parallel edges count once
    with judging("answers"):
        _same_rows(where, expected, graph.query(PEOPLE, **where).rows)
        _same_rows(where, friends, graph.query(FRIENDS, **where).rows)
        for row in people[:1]:
            found = graph.query(BY_NAME, {"n": row["name"]}, **where).rows
            _same_rows(where, [(row["age"],)], found)


def _same_rows(where: object, expected: Iterable[tuple[Any, ...]], rows: Iterable[Mapping[str, Any]]) -> None:
    wanted, found = Counter(expected), Counter(tuple(row.values()) for row in rows)
    require("answers", wanted == found, f"{where}: {wanted - found} is missing, {found - wanted} is too much")


def history(world: World, graph: Graph) -> None:
    """The branches, their heads and the tags are those that were made."""
    with judging("history"):
        found = {branch: graph.commits(branch)[0].commit_id for branch in graph.branches()}
        tags = {tag.name: tag.commit.commit_id for tag in graph.tags()}
    require("history", found == world.history.heads, f"heads are {found}, should be {world.history.heads}")
    require("history", tags == world.tags, f"tags are {tags}, should be {world.tags}")


def merge(expected: Expected, done: MergeResult, before: Image) -> None:
    """A merge says what it did, which is what the model foretold."""
    counts = {key: (one.inserted, one.updated, one.deleted) for key, one in done.changes.items()}
    found, wanted = (str(done.outcome), counts), (expected.outcome, expected.counts(before))
    require("merge", found == wanted, f"it came to {found}, should be {wanted}")


# What changed --------------------------------------------------------------------------------------


def diffs(world: World, graph: Graph) -> None:
    """A difference, applied to its first state, gives the second: between branches, and along a branch."""
    chain = list(world.chain("main"))[:4]
    for a, b in [*pairwise(world.history.heads.values()), *pairwise(chain)]:
        if world.is_kept(a) and world.is_kept(b) and world.eras[a] == world.eras[b]:
            with judging("diff"):
                changes = list(graph.diff(a, b))
            same("diff", f"{a}..{b}", world.history.nodes[b].image, replayed(world.history.nodes[a].image, changes))


def replayed(image: Image, changes: Iterable[Change]) -> Image:
    change: dict[Entity, Row | None] = {}
    for one in changes:
        key = f"{one.kind}:{one.type_name}"
        ends = {} if one.endpoints is None else dict(zip(("src", "dst"), one.endpoints, strict=True))
        gone = one.operation is ChangeOperation.DELETE
        change[key, one.id] = None if gone else as_row(key, {"id": one.id, **ends, **(one.after or {})})
    return applied(image, change)


@dataclass
class Follower:
    """A consumer of the feed of main, which keeps a copy."""

    image: Image
    cursor: str

    @classmethod
    def begin(cls, graph: Graph, images: Callable[[str], Image]) -> Follower:
        with judging("feed"):
            begins = graph.baseline()
        return cls(images(begins.commit_id), begins.cursor)

    def catch_up(self, graph: Graph) -> None:
        """Poll page by page until there is nothing more."""
        caught_up, more = False, None
        while not caught_up or more:
            where = {"page_token": more} if more else {"cursor": self.cursor}
            with judging("feed", allowed=(HistoryReclaimedError,)):
                page = graph.changes(limit=_PAGE, **where)  # type: ignore[arg-type]
            for block in page:
                self.image = replayed(self.image, block.changes)
            caught_up, more = page.caught_up, page.next_page_token
            self.cursor = page.cursor or self.cursor


def feed(world: World, graph: Graph) -> None:
    """The feed, replayed, gives the state. A consumer starts over only if what it had not read was cleaned up."""
    follower = world.follower
    if follower is not None:
        try:
            follower.catch_up(graph)
        except HistoryReclaimedError as error:
            require("feed", world.doubtful, str(error))
            follower = None
    world.follower = follower or Follower.begin(graph, lambda name: world.history.nodes[name].image)
    same("feed", "main", world.history.head("main").image, world.follower.image)


# Copies --------------------------------------------------------------------------------------------


def backup(source: str, target: str, backup_id: str, images: Mapping[str, Image]) -> None:
    """A backup is intact, and what is restored from it is one commit of each branch exactly."""
    with judging("backup"):
        problems = omnigraph.verify_backup(source, backup=backup_id).problems
        require("backup", not problems, str(problems))
        omnigraph.restore(source, target, backup=backup_id)
        graph = omnigraph.open(target)
        report = graph.doctor()
    require("backup", set(graph.branches()) == images.keys(), f"it has {graph.branches()}")
    require("backup", report.is_healthy, str(report.findings))
    for branch, image in images.items():
        same("backup", branch, image, stored(target, branch, "backup"))


def refusal(error: Exception) -> None:
    """Everything that goes wrong is a typed error."""
    require("errors", isinstance(error, OmnigraphError), f"{type(error).__name__}: {error}")
