"""Commands for merge requests: ask for a merge, approve it, check it, make it."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from omnigraph.api.documents import REQUEST_MERGED, to_document
from omnigraph.api.reviews import Approval, Review
from omnigraph.cli.address import Target
from omnigraph.cli.command import CHECK, Message, argument, command, option
from omnigraph.cli.history import ConflictOptions
from omnigraph.cli.output import Lines

RequestId = Annotated[str, argument("The id of the request.", "REQUEST")]


@command("request open")
def open_request(
    target: Target,
    source: Annotated[str, argument("The branch to merge.", "SOURCE")],
    *,
    into: Annotated[str, option("The branch to merge it into.", "NAME")] = "main",
    title: Annotated[str, option("What it is about, in a line.", "TEXT")],
    checks: Annotated[list[str] | None, option(CHECK, "FILE|NAME", "--check")] = None,
    message: Message = None,
) -> None:
    """Ask for a merge of a branch into another."""
    actor = target.actor
    done = target.write_aloud().requests.open(source, into, title=title, message=message, checks=checks, actor=actor)
    target.emit(to_document(done), _shown(done))


@command("request list")
def list_requests(
    target: Target,
    *,
    state: Annotated[str | None, option("Only those that are open, merged or closed.", "STATE")] = None,
) -> None:
    """List the merge requests, newest first."""
    found = target.read().requests.list(state)
    target.emit({"requests": to_document(found)}, map(_line, found))


@command("request show")
def show_request(target: Target, request: RequestId) -> None:
    """Show a merge request, with the approvals and checks that count now."""
    found = target.read().requests.get(request)
    target.emit(to_document(found), _shown(found))


@command("request approve")
def approve_request(target: Target, request: RequestId) -> None:
    """Approve the merge of both branches as they are now."""
    actor = target.actor
    done = target.write_aloud().requests.approve(request, actor=actor)
    target.emit(to_document(done), _shown(done))


@command("request check")
def check_request(target: Target, request: RequestId) -> None:
    """Run the checks on what the merge would make now."""
    done = target.write_aloud().requests.check(request)
    target.emit(to_document(done), _shown(done))


@command("request merge")
def merge_request(target: Target, request: RequestId, *, conflicts: ConflictOptions, message: Message = None) -> None:
    """Merge a request in one commit, after its checks have passed on the result."""
    actor, chosen = target.actor, conflicts.resolution()
    done = target.write_aloud().requests.merge(request, actor=actor, message=message, resolve=chosen)
    target.emit(
        REQUEST_MERGED.write(done, {"actor": actor}), f"merged {done.source} into {done.target}: {done.outcome}"
    )


@command("request close")
def close_request(target: Target, request: RequestId) -> None:
    """Close a merge request without merging it."""
    actor = target.actor
    done = target.write_aloud().requests.close(request, actor=actor)
    target.emit(to_document(done), _shown(done))


def _line(one: Review) -> str:
    return f"{one.request_id} {one.state} {one.source} into {one.target}: {one.title}"


def _shown(one: Review) -> Lines:
    yield _line(one)
    yield f"  opened by {one.author or 'an unknown actor'} at {_time(one.created_at)}"
    yield from (f"  approved by {_approval(found)}" for found in one.approvals)
    yield from (f"  lapsed: approved by {_approval(found)}" for found in one.lapsed)
    for check in one.checks:
        yield f"  check {check.check}: {f'{check.rows:,} rows' if check.rows else 'passed'}"
    if one.commit_id:
        yield f"  merged by {one.commit_id}"


def _approval(found: Approval) -> str:
    return f"{found.actor} at {_time(found.at)}"


def _time(at: int) -> str:
    return f"{dt.datetime.fromtimestamp(at / 1_000_000, dt.UTC):%Y-%m-%d %H:%M:%S}"
