"""The anomalies of the LDBC ACID suite: each is arranged, and must not happen. docs/concepts.md has the table.

A transaction that writes is a mutation. One that reads is a query, or a view (`graph.at`). A read and a later write
become one transaction with `if_commit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import ConstraintError, ExpectedVersionMismatchError, PreconditionFailedError
from omnigraph.lang import ir
from omnigraph.query.frame import Frame
from omnigraph.query.match import Matcher
from tests.isolation import planted
from tests.isolation.scene import Client, Scene, clients, each_interleaving, make, outcome, seen_at_each_write
from tests.support.templates import Templates

BOTH = """query both($v: I32) {
    update Account set { value: $v } where slug = "x"
    update Ledger set { value: $v } where slug = "y"
}"""
BLIND = """query blind($v: I32) {
    insert Account { slug: "x", value: $v }
    insert Ledger { slug: "y", value: $v }
}"""
HALF_WRONG = """query wrong() {
    update Account set { value: 1 } where slug = "x"
    insert Posts { from: "x", to: "nowhere" }
}"""
TWICE = """query twice() {
    update Account set { value: 1 } where slug = "x"
    update Account set { value: 2 } where slug = "x"
}"""
LEFT_READS_RIGHT = """query left() {
    update Account set { value: 1 } where slug = "x"
    update Ledger set { seen: true } where value = 1
}"""
RIGHT_READS_LEFT = """query right() {
    update Ledger set { value: 1 } where slug = "y"
    update Account set { seen: true } where value = 1
}"""
ACCOUNT = """query account($v: I32) {
    update Account set { value: $v } where slug = "x"
}"""
LEDGER = """query ledger($v: I32) {
    update Ledger set { value: $v } where slug = "y"
}"""
POST = """query post() {
    insert Posts { from: "x", to: "z" }
}"""
DROP = """query drop() {
    delete Ledger where slug = "z"
}"""
ZERO = "query zero() { match { $a: Account  $a.value = 0  $a posts $l  $l.value = 0 } return { $a.slug, $l.slug } }"


@pytest.fixture(scope="module")
def served(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One server for all tests of this module, because starting one takes longer than a test."""
    uri = str(tmp_path_factory.mktemp("served") / "graph")
    templates.copy("isolation", make, uri)
    with clients("http", uri) as made:
        yield made


@pytest.fixture(params=["embedded", "http"])
def scene(request: pytest.FixtureRequest, templates: Templates, tmp_path: Path) -> Iterator[Scene]:
    if request.param == "http":
        made = request.getfixturevalue("served")
        made.right.mutate('query tidy() { delete Account where slug != "x"  delete Ledger where slug != "y" }')
        made.reset()
        yield made
        return
    uri = str(tmp_path / "graph")
    templates.copy("isolation", make, uri)
    with clients("embedded", uri) as made:
        yield made


def write(client: Client, text: str, value: int | None = None, if_commit: str | None = None) -> Callable[[], object]:
    params = {} if value is None else {"v": value}
    return lambda: client.mutate(text, params, if_commit=if_commit)


# Each function arranges an anomaly and fails if it happens ------------------------------------------


def atomic_commit(scene: Scene) -> None:
    before = len(scene.left.commits())
    write(scene.left, BOTH, 1)()
    assert (scene.values(), len(scene.left.commits())) == ((1, 1), before + 1)


def atomic_rollback(scene: Scene) -> None:
    before = len(scene.left.commits())
    with pytest.raises(ConstraintError):
        write(scene.left, HALF_WRONG)()
    assert (scene.values(), len(scene.left.commits())) == ((0, 0), before)


def dirty_write(scene: Scene) -> None:
    """G0: of two transactions that write both, one wins in both places."""
    for ended in each_interleaving(scene, write(scene.left, BLIND, 1), write(scene.right, BLIND, 2)):
        assert not [end for end in ended if isinstance(end, Exception)]
        assert scene.values() == (1, 1), "the one that was held is the later one"


def aborted_read(scene: Scene) -> None:
    """G1a: what a transaction wrote before it failed is never seen."""
    seen = seen_at_each_write(scene, write(scene.left, BOTH, 1), fails_at=2)
    assert {*seen, scene.values()} == {(0, 0)}


def intermediate_read(scene: Scene) -> None:
    """G1b: what a transaction wrote first, and then overwrote, is never seen."""
    seen = seen_at_each_write(scene, write(scene.left, TWICE))
    assert {account for account, _ in seen} <= {0, 2}
    assert scene.values() == (2, 0)


def circular_flow(scene: Scene) -> None:
    """G1c: of two transactions at most one sees what the other wrote."""
    for _ in each_interleaving(scene, write(scene.left, LEFT_READS_RIGHT), write(scene.right, RIGHT_READS_LEFT)):
        row = scene.row()
        assert not (row["a.seen"] and row["l.seen"]), "each saw the other"


def item_many_preceders(scene: Scene) -> None:
    """IMP: one item, read twice in a transaction, is the same."""
    view = scene.left.at("main")
    before = view.query(ZERO).rows, _values(view)
    write(scene.right, BOTH, 1)()
    assert (view.query(ZERO).rows, _values(view)) == before
    assert scene.values() == (1, 1), "a new transaction sees it"


def predicate_many_preceders(scene: Scene) -> None:
    """PMP: a predicate, evaluated twice in a transaction, finds the same rows."""
    view = scene.left.at("main")
    before = view.query(ZERO).rows
    write(scene.right, ACCOUNT, 1)()
    scene.right.mutate('query more() { insert Account { slug: "w", value: 0 } insert Posts { from: "w", to: "y" } }')
    assert view.query(ZERO).rows == before == [{"a.slug": "x", "l.slug": "y"}]
    assert scene.right.query(ZERO).rows == [{"a.slug": "w", "l.slug": "y"}]


def observed_vanishes(scene: Scene) -> None:
    """OTV: once a transaction was seen, all of it is seen, and it stays until a later one replaces it."""
    seen = [pair for value in (1, 2) for pair in seen_at_each_write(scene, write(scene.left, BOTH, value))]
    assert [pair for pair in seen if pair[0] != pair[1]] == []
    assert seen == sorted(seen)


def fractured_read(scene: Scene) -> None:
    """FR: a transaction is seen in both places or in none, while it is written and by a query that it overtakes."""
    assert {*seen_at_each_write(scene, write(scene.left, BOTH, 1))} <= {(0, 0), (1, 1)}
    scene.reset()
    with pytest.MonkeyPatch.context() as patch:
        _overtaken(patch, partial(omnigraph.open(scene.uri).mutate, BOTH, {"v": 1}))
        assert scene.reader.query(ZERO).rows == [{"a.slug": "x", "l.slug": "y"}]
    assert scene.values() == (1, 1), "the query was overtaken"


def lost_update(scene: Scene) -> None:
    """LU: of two updates of a row that were prepared on one state, one is refused."""
    for left, right in each_interleaving(scene, write(scene.left, ACCOUNT, 1), write(scene.right, ACCOUNT, 2)):
        assert isinstance(left, ExpectedVersionMismatchError)
        assert right.commit
        assert scene.values() == (2, 0)


def lost_update_between_calls(scene: Scene) -> None:
    """LU: of two clients that read a value and write the next one, with `if_commit`, one is refused."""
    seen, (value, _) = scene.head(), scene.values()
    first = outcome(write(scene.left, ACCOUNT, value + 1, seen))
    second = outcome(write(scene.right, ACCOUNT, value + 1, seen))
    assert first.commit
    assert isinstance(second, PreconditionFailedError)
    assert outcome(write(scene.right, ACCOUNT, scene.values()[0] + 1, scene.head())).commit
    assert scene.values() == (2, 0)


def write_skew(scene: Scene) -> None:
    """WS: two transactions that each keep the rules of the schema keep them together."""
    scene.right.mutate('query z() { insert Ledger { slug: "z", value: 0 } }')
    for left, right in each_interleaving(scene, write(scene.left, POST), write(scene.right, DROP)):
        assert right.affected_nodes == 1
        assert isinstance(left, ConstraintError)
        assert scene.right.snapshot().entries["edge:Posts"].row_count == 1, "an edge to nowhere"


def write_skew_between_calls(scene: Scene) -> None:
    """WS: two clients that read both values and change one each, with `if_commit`, keep a rule about both."""
    seen = scene.head()
    assert sum(scene.values()) == 0, "so each may take one"
    ends = [outcome(write(scene.left, ACCOUNT, -1, seen)), outcome(write(scene.right, LEDGER, -1, seen))]
    assert [isinstance(end, PreconditionFailedError) for end in ends] == [False, True]
    assert sum(scene.values()) == -1


def _values(view: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = view.query("query v() { match { $a: Account } return { $a.slug, $a.value } }").rows
    return found


def _overtaken(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen behind the first step of the next query."""
    step, left = Matcher.step, [act]

    def overtaken(self: Matcher, one: ir.MatchStep, frame: Frame) -> Frame:
        done = step(self, one, frame)
        while left:
            left.pop()()
        return done

    patch.setattr(Matcher, "step", overtaken)


ANOMALIES: dict[Callable[[Scene], None], planted.Plant] = {
    atomic_commit: planted.each_statement_commits,
    atomic_rollback: planted.each_statement_commits,
    dirty_write: planted.each_statement_commits,
    aborted_read: planted.reads_follow_heads,
    intermediate_read: planted.each_statement_commits,
    circular_flow: planted.each_statement_commits,
    item_many_preceders: planted.views_move,
    predicate_many_preceders: planted.views_move,
    observed_vanishes: planted.reads_follow_heads,
    fractured_read: planted.reads_follow_heads,
    lost_update: planted.conflicts_are_retried,
    lost_update_between_calls: planted.preconditions_are_ignored,
    write_skew: planted.nothing_counts_as_read,
    write_skew_between_calls: planted.preconditions_are_ignored,
}


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda one: one.__name__)
def test_an_anomaly_does_not_happen(scene: Scene, anomaly: Callable[[Scene], None]) -> None:
    anomaly(scene)


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("scene", ["embedded"], indirect=True)
def test_an_anomaly_would_be_found(
    scene: Scene, anomaly: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check can fail: a bug that lets the anomaly happen is found."""
    ANOMALIES[anomaly](monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        anomaly(scene)


# What is not promised ------------------------------------------------------------------------------


def test_without_a_precondition_a_write_knows_nothing_of_an_earlier_read(scene: Scene) -> None:
    """LU and WS between calls are allowed, and the documentation says how to prevent them."""
    value, _ = scene.values()
    write(scene.left, ACCOUNT, value + 1)()
    write(scene.right, ACCOUNT, value + 1)()
    assert scene.values() == (1, 0), "one increment is lost"


def test_two_queries_are_two_transactions(scene: Scene) -> None:
    """IMP and PMP between calls are allowed; a view prevents them."""
    before = scene.left.query(ZERO).rows
    write(scene.right, BOTH, 1)()
    assert scene.left.query(ZERO).rows != before
