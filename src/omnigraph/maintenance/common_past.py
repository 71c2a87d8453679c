"""Which past branches have in common: a merge of two of them compares both with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from omnigraph.api.results import Commit


def common_past(commits: Iterable[Commit], heads: Iterable[str]) -> set[str]:
    """Of every two heads the latest commits that both descend from, and so on of those, as a merge looks at them.

    Where branches were merged crosswise, two of them have several such commits, and these have some in turn.
    """
    known = {commit.commit_id: commit for commit in commits}
    ordered = _children_first(known)
    found: set[str] = set()
    asked = known.keys() & set(heads)
    while asked:
        latest = _latest(known, ordered, asked)
        asked = latest - found
        found |= latest
    return found


def _children_first(known: Mapping[str, Commit]) -> list[str]:
    left: dict[str, int] = dict.fromkeys(known, 0)
    for commit in known.values():
        for parent in _parents(known, commit):
            left[parent] += 1
    ordered = [name for name, children in left.items() if not children]
    for name in ordered:  # it grows meanwhile
        for parent in _parents(known, known[name]):
            left[parent] -= 1
            if not left[parent]:
                ordered.append(parent)
    return ordered


def _parents(known: Mapping[str, Commit], commit: Commit) -> Iterator[str]:
    named = {commit.parent_id, commit.merged_parent_id}
    return (name for name in named if name is not None and name in known)


def _latest(known: Mapping[str, Commit], ordered: Sequence[str], asked: set[str]) -> set[str]:
    """Every commit gets a number with one bit for each head that descends from it: two bits, and both share it."""
    bits = {name: 1 << at for at, name in enumerate(sorted(asked))}
    below: dict[str, set[int]] = defaultdict(set)
    found = set()
    for name in ordered:
        children = below.pop(name, set())
        mine = bits.get(name, 0)
        for mask in children:
            mine |= mask
        if mine not in children and _is_latest_of_two(mine, children):
            found.add(name)
        if mine:
            for parent in _parents(known, known[name]):
                below[parent].add(mine)
    return found


def _is_latest_of_two(mine: int, children: set[int]) -> bool:
    """Tell whether two heads descend from a commit, and from none of its children do both."""
    left = mine
    while left:
        head = left & -left
        left ^= head
        together = head
        for mask in children:
            together |= mask if mask & head else 0
        if together != mine:
            return True
    return False
