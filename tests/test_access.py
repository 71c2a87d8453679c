import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph import Graph
from omnigraph.api.access import READS, Access, Action, Principal, Role, authorize
from omnigraph.errors import ForbiddenError, ReadOnlyError

SCHEMA = "node Person { name: String @key  age: I32? }"
INSERT = "query add($n: String) { insert Person { name: $n } }"
ALL = "query all() { match { $p: Person } return { $p.name } }"
RECORD = {"type": "Person", "data": {"name": "Bo"}}

READING: dict[str, Callable[[Graph], Any]] = {
    "schema": lambda graph: graph.schema,
    "stream": lambda graph: graph.stream("orders"),
    "snapshot": lambda graph: graph.snapshot(),
    "commits": lambda graph: graph.commits(),
    "commit": lambda graph: graph.commit(graph.commits()[0].commit_id),
    "query": lambda graph: graph.query(ALL),
    "explain": lambda graph: graph.explain(ALL),
    "at": lambda graph: graph.at("main").query(ALL),
    "export": lambda graph: list(graph.export()),
    "diff": lambda graph: list(graph.diff("main", "side")),
    "changes": lambda graph: graph.changes(),
    "change_cursor": lambda graph: graph.change_cursor(graph.commits()[0].commit_id),
    "baseline": lambda graph: graph.baseline(),
    "log": lambda graph: graph.log(),
    "commit_changes": lambda graph: graph.commit_changes(graph.commits()[0].commit_id),
    "doctor": lambda graph: graph.doctor(),
    "backup": lambda graph: graph.backup(f"{graph.uri}-backups"),
    "verify": lambda graph: graph.verify(),
    "plan_schema": lambda graph: graph.plan_schema(SCHEMA),
    "outcome": lambda graph: graph.outcome(graph.commits()[0].commit_id),
    "branches": lambda graph: graph.branches(),
    "tags": lambda graph: graph.tags(),
    "rule": lambda graph: graph.rule(),
    "history_of": lambda graph: graph.history_of("Person", "Ann"),
    "requests": lambda graph: graph.requests.list(),
    "preview of merge": lambda graph: graph.merge("side", dry_run=True),
}
CHANGING: dict[str, Callable[[Graph], Any]] = {
    "mutate": lambda graph: graph.mutate(INSERT, {"n": "Al"}),
    "load": lambda graph: graph.load([RECORD], mode="merge"),
    "embed": lambda graph: graph.embed(),
    "create_branch": lambda graph: graph.create_branch("new"),
    "delete_branch": lambda graph: graph.delete_branch("side"),
    "merge": lambda graph: graph.merge("side"),
    "cherry_pick": lambda graph: graph.cherry_pick(graph.commits()[0].commit_id),
    "restore_entities": lambda graph: graph.restore_entities("Person", ref="main"),
    "requests": lambda graph: graph.requests.open("side", title="side"),
    "revert": lambda graph: graph.revert(graph.commits()[0].commit_id),
    "resolve": lambda graph: graph.resolve("Person", pairs=[]),
    "create_tag": lambda graph: graph.create_tag("one"),
    "delete_tag": lambda graph: graph.delete_tag("kept"),
    "branch": lambda graph: graph.branch("other").__enter__(),
}
GOVERNING: dict[str, Callable[[Graph], Any]] = {
    "apply_schema": lambda graph: graph.apply_schema(SCHEMA.replace("age", "years")),
    "optimize": lambda graph: graph.optimize(),
    "ensure_indices": lambda graph: graph.ensure_indices(),
    "cleanup": lambda graph: graph.cleanup(keep=1),
    "repair": lambda graph: graph.repair(),
    "relocate": lambda graph: graph.relocate(),
    "upkeep": lambda graph: graph.upkeep(),
    "protect": lambda graph: graph.protect("main"),
    "unprotect": lambda graph: graph.unprotect("main"),
}
NO_DOOR = {"acting_as", "as_operation", "uri", "catalog", "refresh", "close"}  # these reach no data
NO_DOOR |= {"as_batch"}  # a handle, as those above
NO_DOOR |= {"upkeep_due"}  # how many files the last write of this handle left
NO_DOOR |= {"call"}  # the door itself


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    made = omnigraph.init(tmp_path_factory.mktemp("access") / "graph", SCHEMA)
    made.mutate(INSERT, {"n": "Ann"})
    made.create_branch("side")
    made.create_tag("kept")
    return made


def as_role(graph: Graph, role: Role) -> Graph:
    return graph.acting_as(Principal("rita", role))


@pytest.mark.parametrize("name", READING)
def test_whoever_may_read_may_do_what_leaves_the_graph_as_it_is(graph: Graph, name: str) -> None:
    before = graph.commits(), graph.branches(), graph.tags()
    READING[name](as_role(graph, Role.READ))
    assert (graph.commits(), graph.branches(), graph.tags()) == before


@pytest.mark.parametrize("name", [*CHANGING, *GOVERNING])
def test_whoever_may_only_read_changes_nothing(graph: Graph, name: str) -> None:
    before = graph.commits()
    with pytest.raises(ForbiddenError, match="default-deny"):
        ({**CHANGING, **GOVERNING})[name](as_role(graph, Role.READ))
    assert graph.commits() == before
    assert graph.branches() == ["main", "side"]


@pytest.mark.parametrize("name", GOVERNING)
def test_whoever_may_write_does_not_govern(graph: Graph, name: str) -> None:
    with pytest.raises(ForbiddenError, match="admin"):
        GOVERNING[name](as_role(graph, Role.WRITE))


def test_every_way_into_a_graph_has_the_door() -> None:
    ways = {name for name, _ in inspect.getmembers(Graph) if not name.startswith("_")}
    assert ways - NO_DOOR == {*READING, *CHANGING, *GOVERNING} - {"preview of merge"}


def test_commits_carry_the_name_that_was_proven(tmp_path: Path) -> None:
    graph = as_role(omnigraph.init(tmp_path / "graph", SCHEMA), Role.ADMIN)
    done = graph.mutate(INSERT, {"n": "Ann"}, actor="mallory")
    graph.load([RECORD], mode="merge", actor="mallory")
    graph.apply_schema(SCHEMA.replace("I32?", "I32? @index"), actor="mallory")
    assert done.actor_id == "rita"
    assert {commit.actor_id for commit in graph.commits()[:-1]} == {"rita"}


def test_a_new_branch_for_a_load_must_be_allowed_too(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Access] = []
    monkeypatch.setattr("omnigraph.graph.authorize", lambda _, access: asked.append(access))
    handle = as_role(graph, Role.WRITE)
    handle.load([RECORD], mode="merge", branch="fresh", base="main", dry_run=True)
    handle.load([RECORD], mode="merge", branch="side", base="main", dry_run=True)
    made = [access for access in asked if access.action is Action.BRANCH_CREATE]
    assert made == [Access(Action.BRANCH_CREATE, "main", "fresh")]


def test_a_read_only_handle_changes_nothing_whatever_the_role(graph: Graph) -> None:
    handle = as_role(omnigraph.open(graph.uri, read_only=True), Role.ADMIN)
    with pytest.raises(ReadOnlyError):
        handle.mutate(INSERT, {"n": "Al"})


def test_each_role_may_do_what_those_before_it_may() -> None:
    allowed = {role: {action for action in Action if _is_allowed(role, action)} for role in Role}
    assert allowed[Role.READ] == READS
    assert allowed[Role.READ] < allowed[Role.WRITE] < allowed[Role.ADMIN] == set(Action)


def _is_allowed(role: Role, action: Action) -> bool:
    try:
        authorize(Principal("rita", role), Access(action))
    except ForbiddenError:
        return False
    return True
