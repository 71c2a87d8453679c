"""Every oracle is violated by a planted bug, and that bug by no other oracle."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.api.changes import ChangePage
from omnigraph.api.results import MutationResult
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import MergeConflictError
from omnigraph.graph import Graph
from omnigraph.storage.stage import TableStorage
from tests.simulation.generator import Step
from tests.simulation.oracles import BrokenError
from tests.simulation.runner import Runner
from tests.support.faults import foreign_commit
from tests.support.graphs import plan
from tests.support.mutations import PERSON

VALUES = {"branch": 0, "other": 1, "n": "ann", "m": "bob", "t": "n1", "x": None, "h": None, "a": 1, "r": None}
MERGE = Step("merge", {"branch": 1, "other": 0, "resolve": None})
Patch = pytest.MonkeyPatch


def write(name: str, **more: Any) -> Step:
    fault = {key: more.pop(key) for key in ("fault", "at") if key in more}
    return Step("mutate", {**VALUES, "write": name, **more}, **fault)


def upkeep(name: str, **more: Any) -> Step:
    return Step(name, {**VALUES, "continue": False, **more})


def is_forgotten(world: Runner, patch: Patch) -> None:
    patch.setattr(Graph, "mutate", lambda *_, **__: MutationResult("q", "main", 1, 0, None, None))
    world.step(write("age"))


def is_denied(world: Runner, patch: Patch) -> None:
    patch.setattr(Graph, "outcome", lambda *_: None)
    for at in range(1, 20):
        world.step(write("age", a=at, fault="crash", at=at))


def is_staged_twice(world: Runner, patch: Patch) -> None:
    stage = TableStorage.stage_append
    patch.setattr(
        TableStorage, "stage_append", lambda self, base, rows: stage(self, base, pa.concat_tables([rows, rows]))
    )
    world.step(write("know"))


def moves_a_head(world: Runner, _: Patch) -> None:
    foreign_commit(Store.at(Location.parse(world.uri)), PERSON)
    world.check()


def loses_a_version_of_a_tag(world: Runner, _: Patch) -> None:
    world.step(Step("create_tag", VALUES))
    pinned = world.graphs[0].snapshot().entries[PERSON].table
    world.step(write("age"))
    versions = Path(world.uri, pinned.path, "_versions")
    (versions / f"{2**64 - 1 - pinned.version}.manifest").unlink()
    world.check()


def drops_a_row_of_answers(world: Runner, patch: Patch) -> None:
    asked = Graph.query
    patch.setattr(Graph, "query", lambda *given, **more: SimpleNamespace(rows=asked(*given, **more).rows[1:]))
    world.check()


def commits_unasked(world: Runner, _: Patch) -> None:
    store = Store.at(Location.parse(world.uri))
    publish(store, plan(begin(store)))
    world.check()


def miscounts_a_merge(world: Runner, patch: Patch) -> None:
    merge = Graph.merge
    patch.setattr(Graph, "merge", lambda *given, **more: replace(merge(*given, **more), changes={}))
    world.step(write("age", branch=0))  # on b1
    world.step(MERGE)


def settles_conflicts_unasked(world: Runner, patch: Patch) -> None:
    merge = Graph.merge

    def lenient(*given: Any, **more: Any) -> Any:
        try:
            return merge(*given, **more)
        except MergeConflictError:
            return merge(*given, **{**more, "resolve": "ours"})

    patch.setattr(Graph, "merge", lenient)
    world.step(write("age", branch=0, a=1))
    world.step(write("age", branch=1, a=2))
    world.step(MERGE)


def omits_a_difference(world: Runner, patch: Patch) -> None:
    diff = Graph.diff
    patch.setattr(Graph, "diff", lambda *given: list(diff(*given))[1:])
    world.check()


def omits_a_block_of_the_feed(world: Runner, patch: Patch) -> None:
    changes = Graph.changes

    def forgetful(*given: Any, **more: Any) -> ChangePage:
        page = changes(*given, **more)
        return replace(page, blocks=page.blocks[1:])

    world.check()
    patch.setattr(Graph, "changes", forgetful)
    world.step(write("age", branch=1))
    world.check()


def removes_a_row_while_compacting(world: Runner, patch: Patch) -> None:
    gone = 'query q() { delete Person where name = "cat" }'
    patch.setattr(Graph, "optimize", lambda graph, branch: graph.mutate(gone, branch=branch))
    world.step(upkeep("optimize"))


def restores_something_else(world: Runner, patch: Patch) -> None:
    restore = omnigraph.restore

    def careless(source: str, target: str, **more: Any) -> None:
        restore(source, target, **more)
        omnigraph.open(target).mutate('query q() { delete Person where name = "cat" }')

    world.step(upkeep("backup"))
    patch.setattr(omnigraph, "restore", careless)
    world.step(upkeep("restore"))


def raises_an_error_of_its_own(_: Runner, patch: Patch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("ann")

    patch.setattr(Graph, "mutate", fail)
    _.step(write("age"))


BUGS: dict[str, Callable[[Runner, Patch], None]] = {
    "acknowledged": is_forgotten,
    "atomic": is_denied,
    "once": is_staged_twice,
    "heads": moves_a_head,
    "references": loses_a_version_of_a_tag,
    "answers": drops_a_row_of_answers,
    "history": commits_unasked,
    "merge": miscounts_a_merge,
    "refusals": settles_conflicts_unasked,
    "diff": omits_a_difference,
    "feed": omits_a_block_of_the_feed,
    "upkeep": removes_a_row_while_compacting,
    "backup": restores_something_else,
    "errors": raises_an_error_of_its_own,
}


@pytest.mark.parametrize("oracle", BUGS)
def test_an_oracle_reports_a_planted_bug(oracle: str, tmp_path: Path, monkeypatch: Patch) -> None:
    world = Runner(str(tmp_path / "graph"), tmp_path)
    world.step(Step("create_branch", {"branch": 0, "other": 0}))
    world.step(write("add", n="dan", branch=1))
    with monkeypatch.context() as patch, pytest.raises(BrokenError) as broken:
        BUGS[oracle](world, patch)
    assert broken.value.oracle == oracle


def test_every_oracle_has_a_bug() -> None:
    texts = (
        Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("oracles.py", "runner.py", "world.py")
    )
    named = {name for text in texts for name in re.findall(r'(?:require|judging|same)\(\s*"(\w+)"', text)}
    assert named == BUGS.keys()
