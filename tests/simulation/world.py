"""The simulated world: a graph, its model and the handles; how a call ends, and whether graph and model agree."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import omnigraph
from omnigraph.api.results import Commit, MergeResult
from omnigraph.commit.recovery import RECOVERY_ACTOR
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import (
    BranchesPresentError,
    BranchInUseError,
    BranchNotFoundError,
    ConflictError,
    ConstraintError,
    GateTimeoutError,
    HistoryReclaimedError,
    LoadRejectedError,
    MergeConflictError,
    OutcomeUnknownError,
    StorageError,
)
from omnigraph.graph import Graph
from omnigraph.maintenance import fold
from omnigraph.manifest import segments
from tests.commit.child import after_a_lifetime
from tests.history.merging import Expected, History, Image, Node
from tests.simulation import model, oracles
from tests.simulation.faults import DURABILITY, Call, Clock, End, carry_out, crash_while_opening
from tests.simulation.generator import HANDLES, Step
from tests.simulation.oracles import Follower, require

REFUSALS = (ConstraintError, LoadRejectedError, MergeConflictError, BranchInUseError, BranchesPresentError)
LOST_RACES = (ConflictError, BranchNotFoundError, HistoryReclaimedError)
CHECK_EVERY = 10
BOUNDS = {
    "window": (segments, "WINDOW"),
    "fan_out": (segments, "FAN_OUT"),
    "fold_within": (omnigraph.graph, "_FOLD_WITHIN"),
    "fold_few": (fold, "FEW"),
    "fold_every": (omnigraph.graph, "_FOLD_EVERY"),
    "fold_fewest": (fold, "FEWEST"),
    "fold_indexed": (fold, "INDEXED"),
}
CONCURRENCY = "OMNIGRAPH_MAINTENANCE_CONCURRENCY"  # with one thread, a history is always the same


@dataclass(frozen=True, slots=True)
class Foretold:
    """What a change comes to on the state that it meets."""

    image: Image
    is_refused: bool = False
    merge: Expected | None = None


@contextmanager
def _bounds_kept() -> Iterator[None]:
    """Set the bounds of the log and of folds back, whatever a history made of them."""
    with ExitStack() as stack:
        for module, name in BOUNDS.values():
            stack.enter_context(patch.object(module, name, getattr(module, name)))
        yield


class World:
    """A graph at an address, and everything that is known about it. `space` takes backups and copies."""

    def __init__(self, uri: str, space: Path, *, check_every: int = CHECK_EVERY) -> None:
        self.uri, self.space, self.check_every = uri, space, check_every
        self.clock = Clock()
        self.counts: Counter[str] = Counter()
        self.history, self.tags = History(), dict[str, str]()
        self.eras: dict[str, int] = {}  # commits by the number of schema changes before them
        self.era, self.mood = 0, False
        self.doubtful: set[str] = set()  # commits whose state may be cleaned up
        self.follower: Follower | None = None
        omnigraph.init(uri, model.SCHEMAS[0], durability=DURABILITY)
        self.graphs = [self.reopened() for _ in range(HANDLES)]
        (genesis,) = self.graphs[0].commits()
        self.learn(genesis, {})

    @property
    def is_local(self) -> bool:
        return Location.parse(self.uri).is_local

    def run(self, steps: Sequence[Step]) -> None:
        """Carry out a history, and judge the graph on the way and at its end."""
        with self.clock.installed(), patch.dict(os.environ, {CONCURRENCY: "1"}), _bounds_kept():
            for number, step in enumerate(steps, 1):
                self.step(step)
                if number % self.check_every == 0 or number == len(steps):
                    self.check()

    def step(self, step: Step) -> None:
        """Carry out one step, and judge what it did."""
        self.counts["steps"] += 1
        getattr(self, f"_{step.do}")(step)

    def check(self) -> None:
        """Ask all oracles."""
        graph = self.graphs[self.counts["steps"] % HANDLES]
        oracles.history(self, graph)
        for branch, name in self.history.heads.items():
            image = self.history.nodes[name].image
            oracles.same("acknowledged", branch, image, oracles.stored(self.uri, branch, "references"))
            oracles.heads(self, branch)
            for one in self.graphs:
                oracles.answers(one, {"branch": branch}, image)
        oracles.references(graph)
        for tag, name in self.tags.items():
            if self.eras[name] == self.era:
                oracles.answers(graph, {"snapshot": tag}, self.history.nodes[name].image)
        oracles.diffs(self, graph)
        oracles.feed(self, graph)

    def chain(self, branch: str) -> Iterator[str]:
        """The commits of a branch, along first parents, the newest first."""
        name: str | None = self.history.heads[branch]
        while name is not None:
            yield name
            name = next(iter(self.history.nodes[name].parents), None)

    def is_kept(self, name: str) -> bool:
        return name not in self.doubtful

    def change(self, step: Step, call: Call, branch: str, foretell: Callable[[], Foretold]) -> bool:
        """Make a change of one branch, and see that it happened as it says; return whether it did."""
        end = self.carry_out_step(step, call)
        if branch not in self.history.heads:  # the rival deleted it
            require("errors", isinstance(end.error, LOST_RACES), f"{call} on a deleted branch: {end}")
            return False
        foretold, before = foretell(), self.history.head(branch).image
        self.judge(end, step, call, refused=foretold.is_refused)
        own = self.outcome(call, branch, end)
        oracle = "acknowledged" if end.how == "returned" else "atomic"
        image = foretold.image if own else before
        image = model.adopted(image, oracles.stored(self.uri, branch, oracle)) if own else image
        self.take_in(branch, own, image)
        if foretold.merge and isinstance(end.value, MergeResult):
            oracles.merge(foretold.merge, end.value, before)
        if end.how == "returned" and not own:
            image = foretold.image
        oracles.same(oracle, branch, image, oracles.stored(self.uri, branch, oracle))
        return own is not None

    def _is_doubtful(self, call: Call) -> bool:
        return any(isinstance(one, str) and one in self.doubtful for one in call.arguments)

    def judge(self, end: End, step: Step, call: Call, *, refused: bool) -> None:
        """See that a call was refused for a reason, and accepted only without one."""
        error = end.error
        if end.how in ("returned", "died"):
            require("refusals", not refused or end.how == "died", f"{call} was accepted")
            return
        if error is None:  # in another process
            may_be_gone = self._is_doubtful(call)
            require("refusals", refused or may_be_gone, f"{call} was refused")
            return
        oracles.refusal(error)
        what = f"{call} raised {type(error).__name__}: {error}"
        if isinstance(error, REFUSALS):
            require("refusals", refused, what)
        elif isinstance(error, HistoryReclaimedError) and self._is_doubtful(call):
            return
        elif isinstance(error, StorageError | OutcomeUnknownError | GateTimeoutError):
            require("errors", end.met_fault, what)
        else:
            require("errors", step.rival and isinstance(error, LOST_RACES), what)

    def outcome(self, call: Call, branch: str, end: End) -> Commit | None:
        """Find out whether a change happened: by its answer, or by asking the graph."""
        assert call.operation
        if end.how == "returned" and end.value is not None:
            found: Commit | None = end.value.commit
            return found
        with oracles.judging("atomic"):
            found = self.asked().outcome(call.operation, branch)
        unknown = end.how in ("died", "returned") or isinstance(end.error, OutcomeUnknownError)
        require("atomic", found is None or unknown, f"{call} raised {end.error!r}, and happened")
        return found

    def take_in(self, branch: str, own: Commit | None, image: Image) -> None:
        """Learn the new commits of all branches: the one that is expected, and those of recoveries."""
        graph = self.asked()
        for name in self.history.heads:
            fresh = []
            for commit in graph.commits(name):
                if commit.commit_id == self.history.heads[name]:
                    break
                fresh.append(commit)
            for commit in reversed(fresh):
                is_own = name == branch and own is not None and commit.commit_id == own.commit_id
                self.counts["folds"] += commit.actor_id == fold.ACTOR
                harmless = commit.actor_id in (RECOVERY_ACTOR, fold.ACTOR)
                require("history", is_own or harmless, f"an unexpected commit on {name}: {commit}")
                self.learn(commit, image if is_own else self.history.head(name).image, name)
        known = own is None or own.commit_id in self.history.nodes
        require("acknowledged", known, f"{own} is not in the history of {branch}")

    def learn(self, commit: Commit, image: Image, branch: str = "main") -> None:
        parents = tuple(name for name in (commit.parent_id, commit.merged_parent_id) if name)
        expected = self.history.heads.get(branch)
        require("history", expected is None or parents[0] == expected, f"{commit} does not follow {expected}")
        self.history.add(Node(commit.commit_id, branch, commit.manifest_version, parents, image))
        self.eras[commit.commit_id] = self.era

    def refer(
        self,
        step: Step,
        call: Call,
        is_done: Callable[[Graph], bool],
        then: Callable[[], None],
        *,
        refused: bool = False,
    ) -> bool:
        """Make or delete a name, and return whether that happened. After a failure either may be so."""
        end = self.carry_out_step(step, call)
        self.judge(end, step, call, refused=refused)
        with oracles.judging("atomic"):
            done = is_done(self.asked())
        require("acknowledged", done or end.how != "returned", f"{call} was acknowledged, and did not happen")
        require(
            "atomic", not done or end.met_fault or end.how == "returned", f"{call} raised {end.error}, and happened"
        )
        if done:
            then()
        self.take_in("main", None, {})
        return done

    def keep_up(self, step: Step, call: Call) -> None:
        """Look after the graph, which changes no answer."""
        end = self.carry_out_step(step, call)
        self.judge(end, step, call, refused=False)
        problems = [one for one in getattr(end.value, "tables", ()) if getattr(one, "error", None)]
        require("errors", not problems or end.met_fault, f"{call}: {problems}")
        graph = self.asked()
        with oracles.judging("upkeep"):
            graph.refresh()
        for branch in [*self.history.heads]:
            head = self.history.head(branch)
            fresh = [one for one in graph.commits(branch) if one.commit_id not in self.history.nodes]
            for commit in reversed(fresh):
                self.learn(commit, head.image, branch)
            oracles.same("upkeep", branch, head.image, oracles.stored(self.uri, branch, "upkeep"))

    # Handles

    def carry_out_step(self, step: Step, call: Call) -> End:
        graph = self.graphs[step.handle % HANDLES]
        rival = replace(step.rival, values={**step.rival.values, "young": False}) if step.rival else None
        end = carry_out(call, graph, step, self.clock, lambda: self.step(rival) if rival else None)
        self.counts[f"fault {step.fault}"] += step.fault != "none" and (end.met_fault or step.fault == "race")
        self.counts[f"{step.do} {end.how}"] += 1
        if step.fault == "cut" or end.how == "died":
            if step.pick % 5 == 0 and self.is_local:
                crash_while_opening(self.uri, step.at // 2 + 1)
            with oracles.judging("errors"):
                for number, _ in enumerate(self.graphs):
                    # Handles that live on would wait for the leases of the dead.
                    if step.fault == "cut" or not self.is_local or number == step.handle % HANDLES:
                        self.graphs[number] = self.reopened()
        self._asked = (step.handle + step.pick) % HANDLES
        return end

    def asked(self) -> Graph:
        """A handle to ask after a step: the same, or another one, which has not seen what happened."""
        return self.graphs[self._asked]

    def reopened(self) -> Graph:
        if self.is_local:
            return omnigraph.open(self.uri, durability=DURABILITY)
        # A lease of a dead process would have to be waited for.
        return Graph(after_a_lifetime(Store.at(Location.parse(self.uri))), read_only=False)
