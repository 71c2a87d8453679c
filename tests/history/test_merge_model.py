"""Random branches, changes and merges against a plain model of three-way merge."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import omnigraph
from omnigraph.api.results import Commit, MergeOutcome, MergeResult
from omnigraph.errors import (
    BranchInUseError,
    ConstraintError,
    LoadRejectedError,
    MergeConflict,
    MergeConflictError,
)
from tests.history.merging import Conflict, Entity, Expected, History, Image, Node
from tests.support.graphs import contents
from tests.support.mutations import KNOWS, NOTE, PERSON, broken_rules, small_graph, store_of

MOST_BRANCHES = 5
NAMES = st.sampled_from(["ann", "bob", "cat", "dan", "eve", "fay"])
TEXTS = st.sampled_from(["one", "two", "three", "six", "seven"])
NICKNAMES = st.sampled_from([None, None, "x", "y", "z"])
AGES = st.sampled_from([None, 1, 2, 3])
SCORES = st.sampled_from([None, 0.0, -0.0])
RANKS = st.sampled_from([None, 1, 2, 3])
HOWS = st.sampled_from([None, "", "work"])
ABOUT = st.fixed_dictionaries({"n": NAMES}) | st.fixed_dictionaries({"t": TEXTS})
RESOLUTIONS = st.sampled_from([None, None, "ours", "theirs"])
QUERIES: Mapping[str, tuple[str, Mapping[str, st.SearchStrategy[Any]]]] = {
    "add a person": (
        "($n: String, $x: String?, $a: I64?) { insert Person { name: $n, nickName: $x, age: $a } }",
        {"n": NAMES, "x": NICKNAMES, "a": AGES},
    ),
    "add a note": ("($t: String, $r: I64?) { insert Note { text: $t, rank: $r } }", {"t": TEXTS, "r": RANKS}),
    "add a person and a friend": (
        """($n: String, $m: String) { insert Person { name: $n } insert Person { name: $m }
        insert Knows { from: $n, to: $m } insert Knows { from: $m, to: $n } }""",
        {"n": NAMES, "m": NAMES},
    ),
    "age": ("($n: String, $a: I64?) { update Person set { age: $a } where name = $n }", {"n": NAMES, "a": AGES}),
    "score": (
        "($n: String, $s: F64?) { update Person set { score: $s } where name = $n }",
        {"n": NAMES, "s": SCORES},
    ),
    "name": (
        "($n: String, $x: String?) { update Person set { nickName: $x } where name = $n }",
        {"n": NAMES, "x": NICKNAMES},
    ),
    "rank": ("($t: String, $r: I64?) { update Note set { rank: $r } where text = $t }", {"t": TEXTS, "r": RANKS}),
    "text": ("($t: String, $u: String) { update Note set { text: $u } where text = $t }", {"t": TEXTS, "u": TEXTS}),
    "know": (
        "($n: String, $m: String, $h: String?) { insert Knows { from: $n, to: $m, how: $h } }",
        {"n": NAMES, "m": NAMES, "h": HOWS},
    ),
    "remove a person": ("($n: String) { delete Person where name = $n }", {"n": NAMES}),
    "remove a note": ("($t: String) { delete Note where text = $t }", {"t": TEXTS}),
    "forget": ("($n: String) { delete Knows where from = $n }", {"n": NAMES}),
    "unwrite": ("($n: String) { delete Wrote where from = $n }", {"n": NAMES}),
}


class Merges(RuleBasedStateMachine):
    """A graph with branches and its model, changed alike. What a write does is read; what a merge does is foretold."""

    template: Path
    outcomes: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.uri = str(shutil.copytree(self.template, Path(self.directory.name) / "graph"))
        self.graph = omnigraph.open(self.uri)
        self.store = store_of(self.uri)
        self.history = History()
        self.names = (f"b{number}" for number in count())
        self.deleted: dict[Entity, set[str]] = {}
        self.contested: set[Entity] = set()

    def teardown(self) -> None:
        try:
            for branch in self.history.heads:
                self._check(branch)
        finally:
            self.directory.cleanup()

    @initialize()
    def begin_with_four_branches(self) -> None:
        for commit in reversed(self.graph.commits()):
            self._add(commit, "main", self._image("main") if commit.manifest_version > 1 else {})
        for _ in range(3):
            self._create("main")

    # Writing

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        self._write(self._branch(data), data, {})

    @rule(data=st.data())
    def attach_a_note(self, data: st.DataObject) -> None:
        branch = self._branch(data)
        notes = [name for key, name in self.history.head(branch).image if key == NOTE]
        if notes:
            values = {"n": data.draw(NAMES), "t": data.draw(st.sampled_from(sorted(notes)))}
            text = "query q($n: String, $t: String) { insert Wrote { from: $n, to: $t } }"
            self._run(branch, lambda: self.graph.mutate(text, values, branch=branch))

    @rule(data=st.data())
    def change_an_edge(self, data: st.DataObject) -> None:
        branch = self._branch(data)
        edges = [name for key, name in self.history.head(branch).image if key == KNOWS]
        if edges:
            name = data.draw(st.sampled_from(sorted(edges)))
            row = self.history.head(branch).image[KNOWS, name]
            ends = {"from": row["src"], "to": data.draw(st.just(row["dst"]) | NAMES)}
            record = {"edge": "Knows", **ends, "data": {"id": name, "how": data.draw(HOWS)}}
            self._run(branch, lambda: self.graph.load([record], mode="merge", branch=branch))

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        branch = self._branch(data)
        before = self.history.head(branch).image
        self._run(branch, lambda: self.graph.optimize(branch))
        assert self.history.head(branch).image == before

    # Branches

    @precondition(lambda self: len(self.history.heads) < MOST_BRANCHES)
    @rule(data=st.data())
    def create(self, data: st.DataObject) -> None:
        self._create(self._branch(data))

    @precondition(lambda self: len(self.history.heads) > 3)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(sorted(self.history.heads.keys() - {"main"})))
        if self.history.is_needed(branch):
            with pytest.raises(BranchInUseError):
                self.graph.delete_branch(branch)
            return
        self.graph.delete_branch(branch)
        self.history.delete(branch)
        assert set(self.graph.branches()) == self.history.heads.keys()

    # Merging

    @rule(data=st.data(), resolve=RESOLUTIONS)
    def merge(self, data: st.DataObject, resolve: str | None) -> None:
        source, target = data.draw(st.permutations(sorted(self.history.heads)))[:2]
        self._merge(source, target, resolve)

    @rule(data=st.data(), resolve=RESOLUTIONS)
    def contend(self, data: st.DataObject, resolve: str | None) -> None:
        """Do something with one entity on two branches, and merge one of them into the other."""
        source, target = data.draw(st.permutations(sorted(self.history.heads)))[:2]
        self._write_about_one(data, source, target)
        self._merge(source, target, resolve)

    @precondition(lambda self: len(self.history.heads) > 3)
    @rule(data=st.data())
    def merge_crosswise(self, data: st.DataObject) -> None:
        """Two branches that have got the same two others have several latest common commits."""
        one, other, third, fourth = data.draw(st.permutations(sorted(self.history.heads)))[:4]
        self._write_about_one(data, one, other)
        for target in (third, fourth):
            for source in data.draw(st.permutations([one, other])):
                self._merge(source, target, data.draw(RESOLUTIONS))
        self._write_about_one(data, third, fourth)
        self._merge(third, fourth, data.draw(RESOLUTIONS))

    @rule(data=st.data())
    def revert(self, data: st.DataObject) -> None:
        branch = self._branch(data)
        there = [node.name for node in self.history.nodes.values() if node.parents and node.branch == branch]
        if there:
            name = data.draw(st.sampled_from(there[-3:]))
            before = self.history.head(branch).image
            self._bring(self.history.revert(name, branch), branch, lambda: self.graph.revert(name, branch))
            self.contested |= self.history.head(branch).image.keys() - before.keys()

    @rule(data=st.data(), resolve=RESOLUTIONS)
    def pick(self, data: st.DataObject, resolve: str | None) -> None:
        source, target = data.draw(st.permutations(sorted(self.history.heads)))[:2]
        there = [node.name for node in self.history.nodes.values() if node.parents and node.branch == source]
        if there:
            name = data.draw(st.sampled_from(there[-3:]))
            expected = self.history.pick(name, target, resolve)
            before = self.history.head(target).image

            def act() -> MergeResult:
                return self.graph.cherry_pick(name, target, resolve=resolve)

            if self._bring(expected, target, act):
                again = self.history.pick(name, target, "theirs")
                if not again.change:
                    assert self.graph.cherry_pick(name, target, resolve="theirs").commit is None
            # What is picked may be what the branch has deleted.
            self.contested |= expected.contested | (self.history.head(target).image.keys() - before.keys())

    def _merge(self, source: str, target: str, resolve: str | None) -> None:
        expected = self.history.merge(source, target, resolve)
        one, other = self.history.heads[source], self.history.heads[target]
        foretold = self.graph.merge(source, target, dry_run=True, resolve=resolve)
        assert _told(foretold) == (expected.outcome, expected.counts(self.history.nodes[other].image))
        assert _conflicts(foretold.conflicts) == expected.conflicts
        self.outcomes.add(foretold.outcome)
        self.contested |= expected.contested
        done = self._bring(expected, target, lambda: self.graph.merge(source, target, resolve=resolve))
        if done:
            assert _told(done) == _told(foretold)
            assert self.history.head(target).parents == (other, one)
            again = self.graph.merge(source, target)
            assert (again.outcome, again.commit) == ("already_up_to_date", None)
            self._assert_that_nothing_came_back(target)

    def _bring(self, expected: Expected, target: str, act: Callable[[], MergeResult]) -> MergeResult | None:
        """Merge or revert; None if that is refused, or there is nothing to do."""
        before = self.history.head(target).image
        done = None
        if expected.conflicts:
            with pytest.raises(MergeConflictError) as refused:
                act()
            assert _conflicts(refused.value.conflicts) == expected.conflicts
        else:
            done = act()
            assert (done.commit is None) == (expected.outcome == "already_up_to_date")
        if done and done.commit:
            self._add(done.commit, target, expected.applied(before))
        self._check(target)
        return done if done and done.commit else None

    def _assert_that_nothing_came_back(self, branch: str) -> None:
        """What a branch's past has deleted is not there, unless somebody changed it and that was given preference."""
        past = self.history.distances([self.history.heads[branch]]).keys()
        there = self.history.head(branch).image.keys() - self.contested
        assert [one for one in there if self.deleted.get(one, set()) & past] == []

    # Looking

    def _branch(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.history.heads)))

    def _create(self, base: str) -> None:
        name = next(self.names)
        self.graph.create_branch(name, base)
        self.history.create(name, base)
        self._check(name)

    def _write_about_one(self, data: st.DataObject, *branches: str) -> None:
        """Do something with one entity on several branches."""
        same = data.draw(ABOUT)
        for branch in branches:
            self._write(branch, data, same)

    def _write(self, branch: str, data: st.DataObject, given: Mapping[str, str]) -> None:
        """Write something to a branch; if a value is given, something that takes it."""
        fitting = [name for name, (_, values) in QUERIES.items() if given.keys() <= values.keys()]
        text, values = QUERIES[data.draw(st.sampled_from(fitting))]
        parameters = {**data.draw(st.fixed_dictionaries(dict(values))), **given}
        self._run(branch, lambda: self.graph.mutate(f"query q{text}", parameters, branch=branch))

    def _run(self, branch: str, act: Callable[[], object]) -> None:
        """Write to a branch, and take over what it holds then."""
        before = self.history.head(branch)
        try:
            act()
        except (ConstraintError, LoadRejectedError):
            self._check(branch)
            return
        commit = self.graph.commits(branch)[0]
        if commit.commit_id == before.name:
            return
        self._add(commit, branch, self._image(branch))
        gone = before.image.keys() - self.history.head(branch).image.keys()
        for one in (one for one in gone if one[0] != PERSON):  # a person of the same name may be added again
            self.deleted.setdefault(one, set()).add(commit.commit_id)

    def _add(self, commit: Commit, branch: str, image: Image) -> None:
        parents = tuple(name for name in (commit.parent_id, commit.merged_parent_id) if name)
        assert not self.history.heads.get(branch) or parents[0] == self.history.heads[branch]
        self.history.add(Node(commit.commit_id, branch, commit.manifest_version, parents, image))

    def _check(self, branch: str) -> None:
        """A branch holds what the model says, all rules hold, and nothing is left over."""
        assert self._image(branch) == self.history.head(branch).image
        assert self.graph.commits(branch)[0].commit_id == self.history.heads[branch]
        assert self.store.sidecars.pending() == []

    def _image(self, branch: str) -> Image:
        found = contents(self.store, None if branch == "main" else branch)
        assert broken_rules(found) == []
        return {(key, row["id"]): _exact(row) for key, rows in found.items() for row in rows}


def _exact(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row in which 0.0 is not -0.0."""
    return {name: repr(value) if isinstance(value, float) else value for name, value in row.items()}


def _told(result: MergeResult) -> tuple[str, dict[str, tuple[int, int, int]]]:
    counts = {key: (one.inserted, one.updated, one.deleted) for key, one in result.changes.items()}
    return result.outcome, counts


def _conflicts(found: Sequence[MergeConflict]) -> set[Conflict]:
    return {(one.kind, one.table_key, str(one.id)) for one in found}


def test_random_merges_do_to_the_graph_what_they_do_to_a_model(tmp_path: Path) -> None:
    small_graph(str(tmp_path / "template"))
    Merges.template = tmp_path / "template"
    examples = max(1, settings().max_examples // 10)
    run_state_machine_as_test(Merges, settings=settings(max_examples=examples, stateful_step_count=12))
    assert Merges.outcomes == set(MergeOutcome)


def test_what_two_others_brought_in_different_ways_is_taken_from_neither_of_them(tmp_path: Path) -> None:
    """Both branches have both changes of ann, each settled its own way; what else the others did, both have."""
    small_graph(str(tmp_path))
    graph = omnigraph.open(tmp_path)
    for name in ("one", "other", "left", "right"):
        graph.create_branch(name)
    for name, age, text in (("one", 1, "six"), ("other", 2, "seven")):
        change = f'update Person set {{ age: {age} }} where name = "ann" insert Note {{ text: "{text}" }}'  # noqa: S608
        graph.mutate(f"query q() {{ {change} }}", branch=name)
    for branch, sources in (("left", ("one", "other")), ("right", ("other", "one"))):
        for source in sources:
            graph.merge(source, branch, resolve="ours")
    graph.mutate('query q() { delete Note where text = "six" }', branch="left")

    with pytest.raises(MergeConflictError) as refused:
        graph.merge("left", "right")
    assert _conflicts(refused.value.conflicts) == {("divergent_update", PERSON, "ann")}

    done = graph.merge("left", "right", resolve="ours")
    assert _told(done) == ("merged", {NOTE: (0, 0, 1)})
