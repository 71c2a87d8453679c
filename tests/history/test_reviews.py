"""Merge requests, approvals, checks, protected branches and hooks."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.reviews import BranchRule, Lapse, Review, ReviewState
from omnigraph.errors import (
    ApprovalRefusedError,
    BranchProtectedError,
    CheckFailedError,
    HookError,
    MergeConflictError,
    OmnigraphError,
    OptionError,
    QueryKindError,
    RequestNotFoundError,
    RequestStateError,
)
from omnigraph.graph import Graph
from omnigraph.history import hooks
from omnigraph.query import checks as query_checks
from omnigraph.query.query import QueryReader
from omnigraph.write import mutation
from tests.commit.places import copied
from tests.history.crashing import OPERATIONS, REVIEWS, Death, arranged, die, look, opened, remove, writes_of
from tests.history.people import ages, head, new_graph, refused, rows, run
from tests.support.cli import command

OLDER = 'update Person set { age: 31 } where name = "Alice"'
OLD = "query too_old() { match { $p: Person { age: 99 } } return { $p.name } }"
CHANGE = "query change() { insert Person { name: 'x' } }"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    found = new_graph(tmp_path)
    found.create_branch("b")
    run(found, OLDER, "b", actor="ann")
    return found


@pytest.fixture
def protected(graph: Graph) -> Graph:
    graph.protect("main", approvals=1, checks=[OLD], actor="boss")
    return graph


def _open(graph: Graph, **more: Any) -> Review:
    return graph.requests.open("b", **{"title": "Alice", "actor": "ann", **more})


# Requests


def test_a_request_goes_from_open_to_merged(graph: Graph) -> None:
    opened = graph.requests.open("b", title=" Alice's  birthday ", message="as agreed", checks=[OLD], actor="ann")

    assert (opened.state, opened.title, opened.author, opened.target) == ("open", "Alice's birthday", "ann", "main")
    assert (opened.source_commit, opened.target_commit) == (head(graph, "b"), head(graph))
    checked = graph.requests.check(opened.request_id)
    assert [(one.check, one.rows) for one in checked.checks] == [("too_old", 0)]
    approved = graph.requests.approve(opened.request_id, actor="eve")
    assert [one.actor for one in approved.approvals] == ["eve"]

    done = graph.requests.merge(opened.request_id, actor="meg")

    assert done.commit
    assert done.commit.message == "Alice's birthday\n\nas agreed"
    assert done.commit.details
    decided = done.commit.details["request"]
    assert (decided["id"], decided["author"]) == (opened.request_id, "ann")
    assert [one["actor"] for one in decided["approvals"]] == ["eve"]
    assert [(one["check"], one["rows"]) for one in decided["checks"]] == [("too_old", 0)]
    assert ages(graph)["Alice"] == 31
    [found] = graph.requests.list()
    assert (found.state, found.commit_id) == (ReviewState.MERGED, done.commit.commit_id)
    assert graph.requests.list("open") == []


def test_a_request_ends_once(graph: Graph) -> None:
    merged, closed = _open(graph), _open(graph)
    graph.requests.merge(merged.request_id)
    assert graph.requests.close(closed.request_id, actor="ann").closed_by == "ann"

    for one in (merged, closed):
        for act in (graph.requests.merge, graph.requests.approve, graph.requests.close, graph.requests.check):
            assert isinstance(refused(graph, lambda act=act, one=one: act(one.request_id)), RequestStateError)  # type: ignore[misc]


@pytest.mark.parametrize("request_id", ["", "x", "01M7GKP9X4T2H6JQ8R0W5ZCN3B", "../__manifest"])
def test_a_request_that_is_not_there_is_not_found(graph: Graph, request_id: str) -> None:
    with pytest.raises(RequestNotFoundError):
        graph.requests.get(request_id)


@pytest.mark.parametrize(
    "more, error",
    [
        ({"title": " "}, OptionError),
        ({"title": "x" * 201}, OptionError),
        ({"into": "b"}, OptionError),
        ({"checks": [CHANGE.replace("'", '"')]}, QueryKindError),
        ({"checks": ["query q($a: I32) { match { $p: Person { age: $a } } return { $p.name } }"]}, OptionError),
        ({"checks": ["no_orphans"]}, OptionError),
        ({"checks": ["query q() { match { $p: Persn } return { $p.name } }"]}, OmnigraphError),
        ({"checks": {"a": OLD, "b": f"{OLD} {OLD.replace('too_old', 'other')}"}}, OmnigraphError),
        ({"message": "x" * 9000}, OptionError),
    ],
)
def test_a_request_that_makes_no_sense_is_not_opened(graph: Graph, more: Any, error: type[OmnigraphError]) -> None:
    with pytest.raises(error) as caught:
        _open(graph, **more)
    assert caught.value.hint or caught.value.code.startswith("query")
    assert graph.requests.list() == []


def test_a_request_with_nothing_to_merge_is_refused(graph: Graph) -> None:
    one = _open(graph)
    graph.merge("b")

    assert isinstance(refused(graph, lambda: graph.requests.merge(one.request_id)), RequestStateError)
    assert graph.requests.get(one.request_id).state is ReviewState.OPEN


def test_a_request_of_a_deleted_branch_is_listed_and_can_be_closed(graph: Graph) -> None:
    one = _open(graph)
    graph.delete_branch("b")

    assert graph.requests.get(one.request_id) == one
    assert graph.requests.close(one.request_id).state is ReviewState.CLOSED


# Approvals


@pytest.mark.parametrize("moved", ["main", "b"])
def test_an_approval_lapses_when_a_branch_moves(graph: Graph, moved: str) -> None:
    graph.protect("main")
    graph.unprotect("main") if moved == "main" else None
    one = _open(graph)
    graph.requests.approve(one.request_id, actor="eve")

    run(graph, 'insert Person { name: "Zoe" }', moved)
    if moved == "main":
        graph.protect("main")

    found = graph.requests.get(one.request_id)
    assert (found.approvals, [lapsed.actor for lapsed in found.lapsed]) == ((), ["eve"])
    error = refused(graph, lambda: graph.requests.merge(one.request_id))
    assert isinstance(error, BranchProtectedError)
    graph.requests.approve(one.request_id, actor="eve")
    assert graph.requests.merge(one.request_id).commit


def test_an_approval_may_lapse_with_the_source_only(graph: Graph) -> None:
    graph.protect("main", lapse="source", bypass=["bot"])
    one = _open(graph)
    graph.requests.approve(one.request_id, actor="eve")
    run(graph, 'insert Person { name: "Zoe" }', actor="bot")

    assert len(graph.requests.get(one.request_id).approvals) == 1
    assert graph.requests.merge(one.request_id).commit


def test_upkeep_of_a_branch_is_no_reason_to_approve_again(protected: Graph) -> None:
    one = _open(protected)
    protected.requests.approve(one.request_id, actor="eve")

    protected.optimize()
    protected.optimize("b")

    assert len(protected.requests.get(one.request_id).approvals) == 1
    assert protected.requests.merge(one.request_id).commit


def test_approvals_count_once_for_each_actor_and_not_for_the_author(graph: Graph) -> None:
    graph.protect("main", approvals=2)
    one = _open(graph)

    for actor in (None, "ann"):
        with pytest.raises(ApprovalRefusedError) as caught:
            graph.requests.approve(one.request_id, actor=actor)
        assert caught.value.http_status == 403
    graph.requests.approve(one.request_id, actor="eve")
    graph.requests.approve(one.request_id, actor="eve")
    assert isinstance(refused(graph, lambda: graph.requests.merge(one.request_id)), BranchProtectedError)
    graph.requests.approve(one.request_id, actor="fay")
    assert graph.requests.merge(one.request_id).commit


def test_the_author_may_approve_where_the_rule_says_so(graph: Graph) -> None:
    graph.protect("main", self_approval=True)
    one = _open(graph)
    graph.requests.approve(one.request_id, actor="ann")

    assert graph.requests.merge(one.request_id).commit


# Checks


def test_a_check_sees_the_merged_state_before_it_is_published(graph: Graph) -> None:
    both = "query both() { match { $a: Person { age: 31 } $b: Person { age: 26 } } return { $a.name, $b.name } }"
    one = _open(graph, checks={"both": both})
    run(graph, 'update Person set { age: 26 } where name = "Bob"')
    assert not graph.query(both, branch="b").rows
    assert not graph.query(both).rows

    assert [found.rows for found in graph.requests.check(one.request_id).checks] == [1]
    error = refused(graph, lambda: graph.requests.merge(one.request_id))
    assert isinstance(error, CheckFailedError)
    assert (error.check, error.rows) == ("both", 1)


def test_a_check_counts_deleted_and_inserted_rows(graph: Graph) -> None:
    run(graph, 'delete Person where name = "Dan"', "b")
    run(graph, 'insert Person { name: "Zoe" }')
    count = "query four() { match { $p: Person } return { count($p) as n } }"
    names = 'query named() { match { $p: Person { name: "Dan" } } return { $p.name } }'
    one = _open(graph, checks={"named": names, "four": count})

    assert {found.check: found.rows for found in graph.requests.check(one.request_id).checks} == {"named": 0, "four": 1}


def test_a_check_that_takes_too_long_refuses_the_merge(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    one = _open(graph, checks=[OLD])
    go = threading.Event()
    monkeypatch.setattr(QueryReader, "run", lambda *_: go.wait(60) and [])
    monkeypatch.setenv(query_checks.SECONDS, "0.05")
    try:
        error = refused(graph, lambda: graph.requests.merge(one.request_id))
    finally:
        go.set()
    assert isinstance(error, CheckFailedError)
    assert "longer than 0.05 s" in error.message


def test_a_check_that_no_longer_fits_the_schema_refuses_the_merge(graph: Graph) -> None:
    one = _open(graph, checks=["query q() { match { $p: Person { age: 1 } } return { $p.age } }"])
    graph.merge("b", "main")
    graph.delete_branch("b")
    graph.apply_schema(graph.schema.replace("age: I32?", ""), allow_data_loss=False)
    graph.create_branch("b")
    run(graph, 'insert Person { name: "Zoe" }', "b")

    error = refused(graph, lambda: graph.requests.merge(one.request_id))
    assert isinstance(error, CheckFailedError)
    assert "failed" in error.message


def test_a_request_cannot_replace_a_check_of_the_branch(protected: Graph) -> None:
    never = OLD.replace("99", "1000")
    run(protected, 'update Person set { age: 99 } where name = "Bob"', "b")
    one = _open(protected, checks={"too_old": never})
    protected.requests.approve(one.request_id, actor="eve")

    assert isinstance(refused(protected, lambda: protected.requests.merge(one.request_id)), CheckFailedError)


def test_conflicts_are_reported_by_a_check_and_resolved_by_the_merge(graph: Graph) -> None:
    one = _open(graph)
    run(graph, 'update Person set { age: 40 } where name = "Alice"')

    assert isinstance(refused(graph, lambda: graph.requests.check(one.request_id)), MergeConflictError)
    assert isinstance(refused(graph, lambda: graph.requests.merge(one.request_id)), MergeConflictError)
    assert graph.requests.merge(one.request_id, resolve="theirs").commit
    assert ages(graph)["Alice"] == 31


# Protected branches


def _writes(graph: Graph) -> dict[str, Callable[[], object]]:
    record = [{"type": "Person", "data": {"name": "Fay"}}]
    return {
        "mutate": lambda: run(graph, OLDER),
        "load": lambda: graph.load(record, mode="append"),
        "load by plan": lambda: graph.load(record, mode="append", engine="local", max_bad=1),
        "overwrite": lambda: graph.load([{"edge": "Knows", "from": "Dan", "to": "Bob"}], mode="overwrite"),
        "merge": lambda: graph.merge("b"),
        "cherry-pick": lambda: graph.cherry_pick("b"),
        "revert": lambda: graph.revert("main~1"),
        "restore": lambda: graph.restore_entities("Person", ["Alice"], ref="b"),
        "delete": lambda: run(graph, 'delete Person where name = "Alice"'),
    }


WAYS = ["mutate", "load", "load by plan", "overwrite", "merge", "cherry-pick", "revert", "restore", "delete"]


@pytest.mark.parametrize("way", WAYS)
def test_a_protected_branch_is_written_in_no_way(protected: Graph, way: str) -> None:
    error = refused(protected, _writes(protected)[way])

    assert isinstance(error, BranchProtectedError)
    assert (error.branch, error.code, error.http_status) == ("main", "branch_protected", 403)


def test_a_protected_schema_is_not_changed(protected: Graph) -> None:
    protected.delete_branch("b")
    error = refused(protected, lambda: protected.apply_schema(protected.schema.replace("I32?", "I32?  city: String?")))

    assert isinstance(error, BranchProtectedError)


def test_a_handle_that_knew_the_branch_unprotected_does_not_write(graph: Graph) -> None:
    other = omnigraph.open(graph.uri)
    run(other, 'insert Person { name: "Zoe" }')
    graph.protect("main")

    assert isinstance(refused(graph, lambda: run(other, OLDER)), BranchProtectedError)


def test_a_write_that_was_prepared_before_the_rule_is_not_published(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mutation._Execution.plan

    def prepared(self: Any, lineage: Any) -> Any:
        plan = made(self, lineage)
        if not graph.rule().rule:
            omnigraph.open(graph.uri).protect("main")
        return plan

    monkeypatch.setattr(mutation._Execution, "plan", prepared)
    with pytest.raises(BranchProtectedError):
        run(graph, OLDER)
    assert ages(graph)["Alice"] == 30


def test_upkeep_that_changes_no_row_is_free(protected: Graph) -> None:
    before = rows(protected)
    protected.optimize()
    protected.ensure_indices()

    assert rows(protected) == before


def test_who_bypasses_the_rule_writes(protected: Graph) -> None:
    protected.protect("main", bypass=["bot"])

    run(protected, OLDER, actor="bot")
    assert isinstance(refused(protected, lambda: run(protected, OLDER, actor="ann")), BranchProtectedError)


def test_a_rule_is_a_commit_and_can_be_lifted(protected: Graph) -> None:
    rule = BranchRule(1, checks={"too_old": OLD})
    assert protected.rule("main").rule == rule
    made = protected.commits()[0]
    assert (made.actor_id, made.details) == ("boss", {"rule": rule.to_document()})
    protected.protect("main", checks=[OLD])
    assert protected.commits()[0] == made  # the same rule is no commit

    assert protected.unprotect("main").rule is None
    run(protected, OLDER)
    assert protected.rule("main").rule is None


def test_a_rule_is_of_one_branch_only(graph: Graph) -> None:
    graph.protect("b", lapse="source")
    graph.create_branch("c", "b")

    assert graph.rule("b").rule == BranchRule(lapse=Lapse.SOURCE)
    assert graph.rule("c").rule is None
    run(graph, 'insert Person { name: "Zoe" }', "c")
    run(graph, 'insert Person { name: "Zoe" }')
    assert isinstance(refused(graph, lambda: run(graph, OLDER, "b"), "b"), BranchProtectedError)
    graph.delete_branch("c")
    assert isinstance(refused(graph, lambda: graph.delete_branch("b"), "b"), BranchProtectedError)


def test_a_new_branch_of_an_old_name_inherits_no_rule(graph: Graph) -> None:
    graph.protect("b")
    graph.create_branch("c", "b")
    graph.unprotect("b")
    graph.merge("c", "main")
    graph.delete_branch("c")
    graph.protect("b")
    graph.create_tag("t", "main")
    assert graph.rule("b").rule == BranchRule()
    graph.unprotect("b")
    graph.delete_branch("b")
    graph.create_branch("b")

    assert graph.rule("b").rule is None


@pytest.mark.parametrize("more", [{"approvals": -1}, {"approvals": 101}, {"lapse": "never"}, {"checks": [CHANGE]}])
def test_a_rule_that_makes_no_sense_is_refused(graph: Graph, more: Any) -> None:
    assert isinstance(refused(graph, lambda: graph.protect("main", **more)), OmnigraphError)
    assert graph.rule("main").rule is None


# Deaths


def _decided(graph: Graph) -> tuple[bool, bool, int, int]:
    """Whether main is protected and the request merged, and how many approvals and merges there are."""
    found = graph.requests.list()
    approvals = sum(len(one.approvals) + len(one.lapsed) for one in found)
    merges = sum(commit.merged_parent_id is not None for commit in graph.commits())
    merged = any(one.state is ReviewState.MERGED for one in found)
    return graph.rule("main").rule is not None, merged, merges, approvals


def _approve_if_lapsed(graph: Graph) -> None:
    """What a recovery has undone is a commit on the target, so approvals of the head before it lapse."""
    [one] = graph.requests.list("open")
    assert len(one.approvals) + len(one.lapsed) == 1
    if one.lapsed:
        graph.requests.approve(one.request_id, actor="eve")


@pytest.mark.parametrize("name", REVIEWS)
def test_a_decision_that_dies_at_any_durable_write_is_made_whole_or_not_at_all(name: str, tmp_path: Path) -> None:
    uri = arranged(str(tmp_path / "graph"), name)
    changed = copied(uri)
    writes = writes_of(name, changed)
    before, after = ((look(one), _decided(omnigraph.open(one))) for one in (uri, changed))
    deaths = [Death(name, copied(uri), ordinal) for ordinal in range(1, len(writes) + 1)]
    die(deaths)

    assert before != after
    ends = []
    for death in deaths:
        graph = opened(death.uri)
        found = look(death.uri), _decided(graph)
        assert found in (before, after), writes[death.ordinal - 1]
        ends.append(found == after)
        if found == before:
            if name == "merge of a request":
                _approve_if_lapsed(graph)
            OPERATIONS[name].act(graph)
            assert (look(death.uri), _decided(graph)[:2]) == (after[0], after[1][:2])
        if name == "merge of a request":
            [merge] = [commit for commit in graph.commits() if commit.merged_parent_id]
            assert merge.details
            assert [given["actor"] for given in merge.details["request"]["approvals"]] == ["eve"]
        if name != "approval":
            with pytest.raises(BranchProtectedError):
                remove(graph, "main", 'Person where name = "ann"')
    assert ends == sorted(ends)  # once it is made, it stays made


# Hooks


def _script(folder: Path, text: str) -> str:
    file = folder / "hook.py"
    file.write_text(f"import json, sys\nabout = json.load(sys.stdin)\n{text}\n")
    return shlex.join([sys.executable, str(file)])


def test_hooks_learn_what_is_merged(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    script = _script(tmp_path, f"open({str(log)!r}, 'a').write(json.dumps(about) + chr(10))")
    monkeypatch.setenv(hooks.BEFORE, script)
    monkeypatch.setenv(hooks.AFTER, script)
    one = _open(graph)
    source, target = head(graph, "b"), head(graph)

    done = graph.requests.merge(one.request_id, actor="meg")

    before, after = (json.loads(line) for line in log.read_text().splitlines())
    assert before == {
        "event": "before_merge",
        "source": "b",
        "target": "main",
        "source_commit": source,
        "target_commit": target,
        "actor": "meg",
        "message": "Alice",
        "request": one.request_id,
        "changes": {"node:Person": {"inserted": 0, "updated": 1, "deleted": 0}},
    }
    assert done.commit
    assert (after["event"], after["commit_id"], after["request"]) == (
        "after_merge",
        done.commit.commit_id,
        one.request_id,
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("sys.exit('too risky')", "refused the merge with the exit code 1: too risky"),
        ("import threading; threading.Event().wait(600)", "took longer than 2 s"),
    ],
)
def test_a_hook_that_refuses_or_hangs_stops_the_merge(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv(hooks.BEFORE, _script(tmp_path, text))
    monkeypatch.setenv(hooks.SECONDS, "2" if "wait" in text else "600")

    error = refused(graph, lambda: graph.merge("b"))

    assert isinstance(error, HookError)
    assert message in error.message
    assert error.hint


def test_a_hook_after_the_merge_cannot_undo_it(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hooks.AFTER, "/no/such/program")

    assert graph.merge("b").commit
    assert ages(graph)["Alice"] == 31


class _Hook(BaseHTTPRequestHandler):
    answers: int
    bodies: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.answers)
        self.send_header("Location", "http://192.0.2.1/")
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"no\x1b!!")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served() -> Iterator[tuple[type[_Hook], str]]:
    handler = type("Hook", (_Hook,), {"answers": 200, "bodies": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}/merged"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("status", [200, 302, 403])
def test_a_url_is_asked_and_no_redirect_is_followed(
    graph: Graph, served: tuple[type[_Hook], str], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    handler, url = served
    handler.answers = status
    monkeypatch.setenv(hooks.BEFORE, url)

    if status == 200:
        assert graph.merge("b").commit
    else:
        error = refused(graph, lambda: graph.merge("b"))
        assert isinstance(error, HookError)
        assert f"the status {status}: no !!" in error.message
    assert [body["event"] for body in handler.bodies] == ["before_merge"]


@pytest.mark.parametrize("url", ["http://192.0.2.1/x", "https://example.com/x", "http://127.0.0.1.example.com/"])
def test_a_url_on_another_host_is_not_asked(graph: Graph, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(hooks.BEFORE, url)
    error = refused(graph, lambda: graph.merge("b"))

    assert isinstance(error, HookError)
    assert "not allowed" in error.message


# The command line


def test_the_commands_open_approve_check_and_merge(graph: Graph, tmp_path: Path) -> None:
    uri = graph.uri
    (tmp_path / "old.gq").write_text(OLD)
    check = str(tmp_path / "old.gq")
    assert command("branch", "protect", "main", uri, "--check", check).out.strip() == (
        "main: merge requests with 1 approvals; checks: too_old"
    )
    opened = command("request", "open", "b", uri, "--title", "Alice", "--as", "ann")
    request_id = opened.out.split()[0]

    assert command("mutate", "--store", uri, "-e", f"query q() {{ {OLDER} }}").code == 1
    assert command("request", "merge", request_id, uri).code == 1
    assert "check too_old: passed" in command("request", "check", request_id, uri).out
    assert "approved by eve" in command("request", "approve", request_id, uri, "--as", "eve").out
    assert command("request", "merge", request_id, uri, "--as", "meg").code == 0
    assert command("request", "list", uri).out.strip() == f"{request_id} merged b into main: Alice"
    assert command("branch", "rule", "main", uri).code == 0
    assert command("branch", "unprotect", "main", uri).out.strip() == "main: not protected"
