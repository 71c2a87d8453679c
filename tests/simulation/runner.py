"""The steps of a history: each is a call, and what the model says about it."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import omnigraph
from omnigraph.graph import Graph
from omnigraph.lang.identity import new_id
from tests.history.merging import History, applied
from tests.simulation import model, oracles
from tests.simulation.faults import Call
from tests.simulation.generator import Step
from tests.simulation.oracles import require
from tests.simulation.world import BOUNDS, Foretold, World

BRANCH_NAMES = ("b1", "b2", "b3", "b4", "agent/1", "agent/2")
MOST_BRANCHES = 5


@dataclass(frozen=True, slots=True)
class Saved:
    """A backup: what the model knew when it was made."""

    history: History
    tags: dict[str, str]
    mood: bool


class Runner(World):
    """A world with a method for each kind of step. One that makes no sense as things are does nothing."""

    def __init__(self, uri: str, space: Path) -> None:
        super().__init__(uri, space)
        self.backups: dict[str, Saved] = {}
        people = dict.fromkeys(("ann", "bob", "cat"))
        self._load(Step("load", {"branch": 0, "mode": "merge", "people": people, "notes": {"n1": 1}, "knows": {}}))

    # Changes

    def _mutate(self, step: Step) -> None:
        if step.values["write"] == "mood" and not self.mood:
            return
        branch, (_, effect) = self._branch(step), model.WRITES[step.values["write"]]
        text, parameters = model.query(step.values["write"], step.values)

        def foretell() -> Foretold:
            image = self.history.head(branch).image
            change = effect(image, step.values)
            return Foretold(applied(image, change), model.is_refused(image, change))

        self.change(step, Call("mutate", (text, parameters), {"branch": branch}, new_id()), branch, foretell)

    def _load(self, step: Step) -> None:
        branch, records, mode = self._branch(step), model.records(step.values), step.values["mode"]
        if not records:
            return

        def foretell() -> Foretold:
            image = self.history.head(branch).image
            change = model.load(image, step.values)
            return Foretold(applied(image, change), model.is_refused(image, change, mode=mode))

        options = {"mode": mode, "branch": branch, "engine": "local"}
        self.change(step, Call("load", (records,), options, new_id()), branch, foretell)

    def _merge(self, step: Step) -> None:
        into = self._branch(step)
        others = sorted(self.history.heads.keys() - {into})
        if not others:
            return
        source = others[step.values["other"] % len(others)]
        resolve, begins = step.values["resolve"], self.history.heads[source]
        self.counts["merges"] += 1

        def foretell() -> Foretold:
            expected = self.history.merge(begins, into, resolve)
            image = self.history.head(into).image
            return Foretold(expected.applied(image), bool(expected.conflicts), expected)

        call = Call("merge", (source, into), {"resolve": resolve}, new_id())
        self.change(step, call, into, foretell)

    def _revert(self, step: Step) -> None:
        branch = self._branch(step)
        chain = [name for name in list(self.chain(branch))[:4] if self.is_kept(name) and self.eras[name] == self.era]
        pairs = [name for name, parent in pairwise(chain) if self.history.nodes[name].parents[0] == parent]
        if not pairs:
            return
        name = pairs[step.values["other"] % len(pairs)]

        def foretell() -> Foretold:
            expected = self.history.revert(name, branch)
            return Foretold(expected.applied(self.history.head(branch).image), bool(expected.conflicts), expected)

        self.change(step, Call("revert", (name, branch), {}, new_id()), branch, foretell)

    def _cherry_pick(self, step: Step) -> None:
        into = self._branch(step)
        sources = sorted(self.history.heads.keys() - {into})
        if not sources:
            return
        source = sources[step.values["other"] % len(sources)]
        chain = [name for name in list(self.chain(source))[:4] if self.is_kept(name) and self.eras[name] == self.era]
        # Only what was made on a branch that is there: the state of another one cannot be read.
        heads = self.history.heads
        pairs = [
            name
            for name, parent in pairwise(chain)
            if self.history.nodes[name].parents[0] == parent and self.history.nodes[name].branch in heads
        ]
        if not pairs:
            return
        name, resolve = pairs[step.values["branch"] % len(pairs)], step.values["resolve"]

        def foretell() -> Foretold:
            expected = self.history.pick(name, into, resolve)
            return Foretold(expected.applied(self.history.head(into).image), bool(expected.conflicts), expected)

        self.change(step, Call("cherry_pick", (name, into), {"resolve": resolve}, new_id()), into, foretell)

    def _apply_schema(self, step: Step) -> None:
        mood = not self.mood
        if len(self.history.heads) > 1:  # tests/schema/test_schema_model.py has schemas on branches
            return

        def foretell() -> Foretold:
            image = self.history.head("main").image
            return Foretold(image if mood else model.without_mood(image), False)  # noqa: FBT003

        call = Call("apply_schema", (model.SCHEMAS[mood],), {}, new_id())
        if self.change(step, call, "main", foretell):
            self.mood, self.era, self.follower = mood, self.era + 1, None
            self.eras[self.history.heads["main"]] = self.era

    # Branches and tags

    def _create_branch(self, step: Step) -> None:
        base, free = self._branch(step), [one for one in BRANCH_NAMES if one not in self.history.heads]
        if len(self.history.heads) >= MOST_BRANCHES:
            return
        name = free[step.values["other"] % len(free)]
        if step.pick % 3 == 0:  # from an earlier commit, of which the state may be gone
            past = [one for one in self.chain(base) if self.eras[one] == self.era]
            base = past[step.pick % len(past)]
        call, make = Call("create_branch", (name, base)), partial(self.history.create, name, base)
        if self.refer(step, call, lambda graph: name in graph.branches(), make):
            image = self.history.head(name).image
            oracles.same("acknowledged", name, image, oracles.stored(self.uri, name, "acknowledged"))

    def _delete_branch(self, step: Step) -> None:
        others = sorted(self.history.heads.keys() - {"main"})
        if not others:
            return
        name = others[step.values["branch"] % len(others)]
        tagged = {self.history.nodes[one].branch for one in self.tags.values()}
        refused = self.history.is_needed(name) or name in tagged
        call, delete = Call("delete_branch", (name,)), partial(self.history.delete, name)
        self.refer(step, call, lambda graph: name not in graph.branches(), delete, refused=refused)

    def _create_tag(self, step: Step) -> None:
        name, branch = f"t{step.values['other'] % 4}", self._branch(step)
        if name not in self.tags:
            make = partial(self.tags.__setitem__, name, self.history.heads[branch])
            self.refer(step, Call("create_tag", (name, branch)), _has_tag(name), make)

    def _delete_tag(self, step: Step) -> None:
        if self.tags:
            name = sorted(self.tags)[step.values["other"] % len(self.tags)]
            delete = partial(self.tags.__delitem__, name)
            self.refer(step, Call("delete_tag", (name,)), lambda graph: not _has_tag(name)(graph), delete)

    # Upkeep

    def _optimize(self, step: Step) -> None:
        self.keep_up(step, Call("optimize", (self._branch(step),)))

    def _ensure_indices(self, step: Step) -> None:
        self.keep_up(step, Call("ensure_indices", (self._branch(step),)))

    def _repair(self, step: Step) -> None:
        self.keep_up(step, Call("repair", (), {"confirm": True}))

    def _relocate(self, step: Step) -> None:
        self.keep_up(step, Call("relocate"))

    def _cleanup(self, step: Step) -> None:
        keep = step.values["keep"]
        age = dt.timedelta(days=0 if step.values["young"] else 7)
        kept = set(self.tags.values())
        for branch in self.history.heads:
            kept.update(list(self.chain(branch))[:keep])
        self.doubtful |= self.history.nodes.keys() - kept
        self.keep_up(step, Call("cleanup", (keep,), {"confirm": True, "orphan_age": age}))

    # Copies

    def _backup(self, step: Step) -> None:
        before = self._save()
        end = self.carry_out_step(step, Call("backup", (str(self.space / "backups"),)))
        self.judge(end, step, Call("backup"), refused=False)
        if end.how == "returned" and end.value is not None:
            made = end.value
            saved = next((one for one in (before, self._save()) if one.history.heads == made.heads), None)
            require("backup", saved, f"it has {made.heads}, the graph {self.history.heads}")
            assert saved
            self.backups[made.backup_id] = saved

    def _restore(self, step: Step) -> None:
        """Restore a backup elsewhere; sometimes it takes the place of the graph, under the handles that are open."""
        if not self.backups:
            return
        chosen = [*self.backups][step.values["other"] % len(self.backups)]
        saved, target = self.backups[chosen], self.space / f"restored-{self.counts['steps']}"
        images = {branch: saved.history.head(branch).image for branch in saved.history.heads}
        oracles.backup(str(self.space / "backups"), str(target), chosen, images)
        shutil.rmtree(target)
        if step.values["continue"]:
            shutil.rmtree(self.uri)
            omnigraph.restore(self.space / "backups", self.uri, backup=chosen)
            self._go_back_to(saved)

    def _go_back_to(self, saved: Saved) -> None:
        nodes = self.history.nodes
        self.history, self.tags, self.mood = saved.history.copy(), dict(saved.tags), saved.mood
        self.history.nodes = nodes
        self.era = self.eras[self.history.heads["main"]]
        self.follower = None
        self.doubtful |= nodes.keys() - set(self.history.heads.values())

    def _save(self) -> Saved:
        return Saved(self.history.copy(), dict(self.tags), self.mood)

    def _move(self, step: Step) -> None:
        """Move the graph to another directory, or copy it there and remove the original."""
        target = self.space / f"moved-{self.counts['steps']}"
        if step.values["continue"]:
            shutil.copytree(self.uri, target)
            shutil.rmtree(self.uri)
        else:
            shutil.move(self.uri, target)
        self.uri = str(target)
        self.graphs = [self.reopened() for _ in self.graphs]

    def _clock(self, step: Step) -> None:
        self.clock.jump(step.values["seconds"])

    def _bounds(self, step: Step) -> None:
        """Let the log and the tables be folded sooner, or as late as usual."""
        for name, (module, attribute) in BOUNDS.items():
            setattr(module, attribute, step.values[name])

    def _branch(self, step: Step) -> str:
        names = sorted(self.history.heads)
        return names[int(step.values["branch"]) % len(names)]


def _has_tag(name: str) -> Callable[[Graph], bool]:
    return lambda graph: name in [tag.name for tag in graph.tags()]
