"""Messages, what a branch did, and reviews: the same in storage and behind a server, on a disk and on S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import ApprovalRefusedError, BranchProtectedError, CheckFailedError, RequestNotFoundError
from tests.acceptance.conftest import ACTOR, Reached

OLDER = 'query older() { update Person set { age: 31 } where name = "ann" }'
MINORS = "query minors() { match { $p: Person $p.age < 18 } return { $p.name } }"
AGES = "query ages() { match { $p: Person } return { $p.name, $p.age } order { $p.name asc } }"
# A client refuses nobody: the server takes the actor from its token.
ME: dict[str, Any] = {"actor": ACTOR}


def test_what_a_branch_did_is_seen_and_brought_elsewhere(own: Reached) -> None:
    own.create_branch("b")
    made = own.mutate(OLDER, branch="b", message="a birthday", **ME).commit
    own.mutate('query bob() { update Person set { age: 41 } where name = "bob" }', **ME)
    assert made

    assert [(change.id, change.changed) for change in own.diff("main...b")] == [("ann", ("age",))]
    assert [entry.commit.message for entry in own.log(["main..b"])] == ["a birthday"]
    newest, first = own.history_of("Person", "ann", "b")
    assert (newest.commit, newest.change.changed, first.change.operation) == (made, ("age",), "insert")
    found = own.query(AGES, branches=["main", "b"])
    assert [(row["branch"], row["p.age"]) for row in found.rows] == [("main", 30), ("main", 41), ("b", 31), ("b", 40)]
    picked = own.cherry_pick(made.commit_id, message="take it", **ME).commit
    assert picked
    assert (picked.message, (picked.details or {})["picked"]) == ("take it", made.commit_id)
    restored = own.restore_entities("Person", ["ann"], ref="main~1", **ME)
    assert restored.changes["node:Person"].updated == 1
    assert [row["p.age"] for row in own.query(AGES).rows] == [30, 41]


def test_a_protected_branch_takes_reviewed_merges_only(own: Reached) -> None:
    own.create_branch("b")
    own.mutate(OLDER, branch="b", **ME)
    rule = own.protect("main", self_approval=True, checks={"minors": MINORS}, **ME).rule
    assert own.rule("main").rule == rule

    with pytest.raises(BranchProtectedError) as caught:
        own.mutate(OLDER, **ME)
    assert (caught.value.branch, caught.value.http_status) == ("main", 403)
    with pytest.raises(BranchProtectedError):
        own.load([{"type": "Company", "data": {"name": "x"}}], mode="append", **ME)
    one = own.requests.open("b", title="a birthday", message="as agreed", **ME)
    with pytest.raises(BranchProtectedError):
        own.requests.merge(one.request_id, **ME)
    own.requests.approve(one.request_id, **ME)
    assert [(check.check, check.rows) for check in own.requests.check(one.request_id).checks] == [("minors", 0)]
    done = own.requests.merge(one.request_id, **ME)

    assert done.commit
    assert done.commit.message == "a birthday\n\nas agreed"
    assert done.commit.details
    assert [given["actor"] for given in done.commit.details["request"]["approvals"]] == [ACTOR]
    assert [found.state for found in own.requests.list()] == ["merged"]
    assert own.requests.get(one.request_id).commit_id == done.commit.commit_id
    assert own.unprotect("main", **ME).rule is None
    own.mutate(OLDER, **ME)


def test_reviews_are_refused_with_the_same_errors(own: Reached, tmp_path: Path) -> None:
    own.create_branch("b")
    own.mutate('query kid() { insert Person { name: "kid", age: 3 } }', branch="b", **ME)
    (tmp_path / "minors.gq").write_text(MINORS)
    one = own.requests.open("b", title="a kid", checks=[str(tmp_path / "minors.gq")], **ME)

    with pytest.raises(CheckFailedError) as caught:
        own.requests.merge(one.request_id, **ME)
    assert (caught.value.check, caught.value.rows) == ("minors", 1)
    with pytest.raises(ApprovalRefusedError):
        own.requests.approve(one.request_id, **ME)
    with pytest.raises(RequestNotFoundError):
        own.requests.get("01M7GKP9X4T2H6JQ8R0W5ZCN3B")
    assert own.requests.close(one.request_id, **ME).state == "closed"
