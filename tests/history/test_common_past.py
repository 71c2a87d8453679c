"""What branches have in common, against looking at every pair of commits."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from omnigraph.api.results import Commit
from omnigraph.history.ancestry import common_past


def commit(name: int, parent: int | None, merged: int | None = None) -> Commit:
    named = [None if one is None else str(one) for one in (parent, merged)]
    return Commit(str(name), None, name, named[0], named[1], None, name)


def chain(*names: int) -> list[Commit]:
    return [commit(name, parent) for parent, name in zip((None, *names), names, strict=False)]


@st.composite
def histories(draw: st.DrawFn) -> list[Commit]:
    count = draw(st.integers(1, 14))
    earlier = [st.none() if not at else st.integers(0, at - 1) for at in range(count)]
    return [commit(at, draw(earlier[at]), draw(st.none() | earlier[at])) for at in range(count)]


@given(histories(), st.data())
def test_it_is_what_every_two_heads_and_every_two_of_those_share_last(
    history: list[Commit], data: st.DataObject
) -> None:
    names = [one.commit_id for one in history]
    heads = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=4))
    found = common_past(data.draw(st.permutations(history)), heads)
    ancestors = _ancestors(history)
    expected: set[str] = set()
    asked = set(heads)
    while asked:
        latest = {name for two in combinations(sorted(asked), 2) for name in _latest(ancestors, *two)}
        asked = latest - expected
        expected |= latest
    assert found == expected


def _ancestors(history: list[Commit]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in history:
        parents = [name for name in (one.parent_id, one.merged_parent_id) if name]
        found[one.commit_id] = {one.commit_id}.union(*(found[name] for name in parents))
    return found


def _latest(ancestors: dict[str, set[str]], one: str, other: str) -> set[str]:
    common = ancestors[one] & ancestors[other]
    return {name for name in common if not any(name in ancestors[later] for later in common - {name})}


def test_a_branch_and_what_it_was_made_from_share_where_it_began() -> None:
    history = [*chain(0, 1, 2), commit(3, 1), commit(4, 3)]
    assert common_past(history, ["2", "4"]) == {"1"}


def test_alone_nothing_is_shared() -> None:
    assert common_past(chain(0, 1, 2), ["2"]) == set()
    assert common_past(chain(0, 1, 2), ["2", "deleted"]) == set()


def test_what_was_merged_crosswise_shares_several_and_what_those_share() -> None:
    """Each of two branches has merged an earlier commit of the other."""
    crossed = [commit(0, None), commit(1, 0), commit(2, 0), commit(3, 1, 2), commit(4, 2, 1)]
    assert common_past(crossed, ["3", "4"]) == {"0", "1", "2"}


def test_a_long_history_of_many_branches_is_looked_at_once() -> None:
    """A pair at a time would take minutes."""
    main = chain(*range(5000))
    branches = [commit(10_000 + at, at * 40) for at in range(120)]
    heads = ["4999", *(one.commit_id for one in branches)]
    assert common_past([*main, *branches], heads) == {str(at * 40) for at in range(120)}
