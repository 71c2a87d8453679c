"""Merge requests: what was asked for and decided, one small object for each decision, and the merge in the end.

A decision is never changed, only followed by others, so there is nothing to lock and nothing to compare: each is one
object with a name of its own, `__reviews/<request>.<ULID>.json`, and a request is what its objects say, in the order of
their names. Whether it was merged is what the target says: its commit names the request.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from omnigraph.api.results import Commit, MergeOutcome, MergeResult
from omnigraph.api.reviews import REQUEST, Approval, BranchRule, Heads, Review, ReviewCheck, ReviewState
from omnigraph.commit.plan import Permit
from omnigraph.commit.store import Store
from omnigraph.core.executor import ChooseExecutor, map_in_threads
from omnigraph.core.refs import MAIN, branch_of, is_commit_id
from omnigraph.errors import (
    ApprovalRefusedError,
    BranchNotFoundError,
    BranchProtectedError,
    CheckFailedError,
    CorruptGraphError,
    MergeConflictError,
    OptionError,
    RequestNotFoundError,
    RequestStateError,
)
from omnigraph.history.hooks import MergeHooks
from omnigraph.history.merge import Judge, MergeAttempt, MergeSpec, merge, preview
from omnigraph.lang.identity import new_id
from omnigraph.manifest.state import GraphState, ManifestState
from omnigraph.storage.durability import sync_file

DIRECTORY = "__reviews"
_AT_ONCE = 8
_LONGEST_TITLE = 200
RunChecks = Callable[[GraphState, Mapping[str, str]], Mapping[str, int]]
"""Runs checks, queries by name, on a state; returns how many rows each has found."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A new merge request."""

    source: str
    target: str
    author: str | None
    title: str
    message: str | None
    checks: Mapping[str, str]


class Reviews:
    """The merge requests of one graph."""

    def __init__(self, store: Store, run_checks: RunChecks) -> None:
        self._store = store
        self._run_checks = run_checks

    def open(self, wanted: Opening) -> Review:
        title = " ".join(wanted.title.split())
        if not title or len(title) > _LONGEST_TITLE:
            hint = f"give it 1 to {_LONGEST_TITLE} characters; the rest belongs in the message"
            raise OptionError(f"{wanted.title!r:.60} cannot be the title of a merge request", option="title", hint=hint)
        if wanted.source == wanted.target:
            message = f"branch '{wanted.source}' cannot be merged into itself"
            raise OptionError(message, option="source", hint="name two branches")
        heads = self._heads(wanted.source, wanted.target)
        request_id = new_id()
        self._note(
            request_id,
            {
                "kind": "open",
                "source": wanted.source,
                "target": wanted.target,
                "actor": wanted.author,
                "title": title,
                "message": wanted.message,
                "checks": dict(wanted.checks),
                **_named(heads),
            },
        )
        return self.get(request_id)

    def all(self, state: ReviewState | None) -> list[Review]:
        ids = sorted({name.partition(".")[0] for name in self._store.objects.list(DIRECTORY)}, reverse=True)
        found = map_in_threads(self.get, ids, _AT_ONCE)
        return [one for one in found if state is None or one.state is state]

    def get(self, request_id: str) -> Review:
        """Return a request with the heads as they are now."""
        review = self._read(request_id)
        if review.state is not ReviewState.OPEN:
            return review
        try:
            target = self._store.manifest.load(branch_of(review.target))
            if merged := _merge_of(target, request_id):
                return self._merged(review, merged)
            source = self._store.manifest.load(branch_of(review.source))
        except BranchNotFoundError:
            return review
        return self._counted(review, _heads_of(source, target), self._store.manifest.rule_of(target))

    def approve(self, request_id: str, actor: str | None) -> Review:
        """Approve the merge of the two branches as they are now."""
        review = self._open_one(request_id)
        rule = self._store.manifest.rule_of(self._store.manifest.load(branch_of(review.target))) or BranchRule()
        if actor is None:
            message = "an approval needs the name of an actor"
            raise ApprovalRefusedError(message, request_id=request_id, hint="name one: actor=, --as")
        if actor == review.author and not rule.self_approval:
            message = f"'{actor}' has opened the request, and cannot approve it"
            raise ApprovalRefusedError(message, request_id=request_id, hint="ask someone else to approve it")
        heads = self._heads(review.source, review.target)
        self._note(request_id, {"kind": "approve", "actor": actor, **_named(heads)})
        return self.get(request_id)

    def close(self, request_id: str, actor: str | None) -> Review:
        """Close a request without merging it."""
        self._open_one(request_id)
        self._note(request_id, {"kind": "close", "actor": actor})
        return self.get(request_id)

    def check(self, request_id: str, choose: ChooseExecutor) -> Review:
        """Run the checks on what a merge would make now, and keep the results."""
        review = self._open_one(request_id)
        found: list[ReviewCheck] = []

        def judge(attempt: MergeAttempt, source: Commit, _: Commit) -> tuple[Mapping[str, Any], Permit | None]:
            found.extend(self._check(review, attempt, source))
            return {}, None

        done = preview(self._store, MergeSpec(review.source, branch_of(review.target)), choose, judge)
        _refuse_conflicts(done)
        self._note(request_id, {"kind": "check", "results": [_result(one) for one in found]})
        return self.get(request_id)

    def merge(self, request_id: str, spec: MergeSpec, choose: ChooseExecutor, hooks: MergeHooks) -> MergeResult:
        """Merge a request: its checks must pass on the result, and the rule of the target must be satisfied."""
        review = self._open_one(request_id)
        asked = replace(
            spec,
            source=review.source,
            target=branch_of(review.target),
            message=spec.message or _message(review),
            operation_id=spec.operation_id or request_id,  # so that the commit is found by the request
        )

        def judge(attempt: MergeAttempt, source: Commit, target: Commit) -> tuple[Mapping[str, Any], Permit | None]:
            results = self._check(review, attempt, source)
            if failed := [one for one in results if one.rows]:
                raise _failed(failed)
            permit = _RequestPermit(self, request_id, asked.actor, Heads(_content(attempt, source), ""), results)
            rule = self._store.manifest.rule_of(attempt.txn.base)
            approvals = permit.approvals(attempt.txn.base, rule or BranchRule(0))
            if rule is not None:
                permit(attempt.txn.base, rule)  # before the hook: what is refused anyway must not be announced
            hooks.run_before(about(asked, source, target, attempt, request_id))
            decided = {
                "id": request_id,
                "title": review.title,
                "author": review.author,
                "approvals": [{"actor": one.actor, "at": one.at} for one in approvals],
                "checks": [{"check": one.check, "rows": one.rows, "digest": one.digest} for one in results],
            }
            return {REQUEST: decided}, permit

        done = merge(self._store, asked, choose, judge)
        if done.commit is None:
            message = f"there is nothing to merge: '{review.target}' has all that '{review.source}' has"
            raise RequestStateError(message, request_id=request_id, hint="close the request")
        self._note(request_id, {"kind": "merge", "actor": asked.actor, "commit_id": done.commit.commit_id})
        hooks.run_after({**about_done(asked, done), "request": request_id})
        return done

    # Decisions

    def _check(self, review: Review, attempt: MergeAttempt, source: Commit) -> list[ReviewCheck]:
        rule = self._store.manifest.rule_of(attempt.txn.base)
        # The rule last: a request must not replace a check of the branch by another one of its name.
        wanted = {**review.wanted, **(rule.checks if rule else {})}
        if not wanted:
            return []
        rows = self._run_checks(attempt.merged_state(), wanted)
        heads = (_content(attempt, source), _content_head(attempt.txn.base))
        return [ReviewCheck(name, rows[name], digest(text), *heads, _now()) for name, text in wanted.items()]

    def _open_one(self, request_id: str) -> Review:
        review = self.get(request_id)
        if review.state is not ReviewState.OPEN:
            message = f"request {request_id} is {review.state} already"
            raise RequestStateError(message, request_id=request_id, hint="open another request")
        return review

    def _heads(self, source: str, target: str) -> Heads:
        return _heads_of(*(self._store.manifest.load(branch_of(name)) for name in (source, target)))

    def _counted(self, review: Review, heads: Heads, rule: BranchRule | None) -> Review:
        known = rule or BranchRule()
        counting = tuple(known.counting(review.approvals, review.author, heads))
        lapsed = tuple(one for one in review.approvals if one not in counting)
        checks = tuple(one for one in review.checks if Heads(one.source_commit, one.target_commit) == heads)
        return replace(review, **_named(heads), approvals=counting, lapsed=lapsed, checks=checks)

    def _merged(self, review: Review, commit: Commit) -> Review:
        return replace(review, state=ReviewState.MERGED, commit_id=commit.commit_id)

    # Objects

    def _note(self, request_id: str, decision: Mapping[str, Any]) -> None:
        name = f"{DIRECTORY}/{request_id}.{new_id()}.json"
        document = {"format": 1, "at": _now(), **decision}
        self._store.objects.write(name, json.dumps(document, ensure_ascii=False).encode())
        sync_file(self._store.location, name)

    def _read(self, request_id: str) -> Review:
        known = self._store.objects.list(DIRECTORY) if is_commit_id(request_id) else []
        names = [f"{DIRECTORY}/{name}" for name in known if name.startswith(f"{request_id}.")]
        decisions = list(map_in_threads(self._decision, names, _AT_ONCE))
        if not decisions:
            message = f"merge request {request_id!r:.60} not found"
            raise RequestNotFoundError(message, request_id=request_id[:60], hint="see `omnigraph request list`")
        return _folded(request_id, decisions)

    def _decision(self, name: str) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = json.loads(self._store.objects.read(name))
            return {**found, "kind": str(found["kind"])}
        except (ValueError, KeyError, TypeError) as error:
            message = f"{name} is no decision about a merge request"
            raise CorruptGraphError(message, path=name, hint="restore it from a backup") from error


@dataclass(frozen=True, slots=True)
class _RequestPermit:
    """Permits the merge of a request on a protected branch, if all that its rule demands was decided."""

    reviews: Reviews
    request_id: str
    actor: str | None
    heads: Heads
    results: Sequence[ReviewCheck]

    def __call__(self, state: ManifestState, rule: BranchRule) -> None:
        """Under the gates: what was decided is read again there, for the head that the merge is published on."""
        branch = state.branch or MAIN
        counting = self.approvals(state, rule)
        if len(counting) < rule.approvals:
            message = (
                f"request {self.request_id} has {len(counting)} of {rule.approvals} approvals that '{branch}' demands"
            )
            hint = "approvals lapse when a branch moves: ask for them again, `omnigraph request approve`"
            raise BranchProtectedError(f"{message}; nothing was changed", branch=branch, hint=hint)
        passed = {one.digest for one in self.results if not one.rows}
        if missing := [name for name, text in rule.checks.items() if digest(text) not in passed]:
            message = f"the check '{missing[0]}' of branch '{branch}' was not run on this merge; nothing was changed"
            raise BranchProtectedError(message, branch=branch, hint="merge again: the rule has changed meanwhile")

    def approvals(self, state: ManifestState, rule: BranchRule) -> Sequence[Approval]:
        review = self.reviews._read(self.request_id)  # noqa: SLF001 - the same module
        if review.state is ReviewState.CLOSED:
            message = f"request {self.request_id} was closed meanwhile"
            raise RequestStateError(message, request_id=self.request_id, hint="open another request")
        heads = replace(self.heads, target_commit=_content_head(state))
        return rule.counting(review.approvals, review.author, heads)


def _folded(request_id: str, decisions: Sequence[Mapping[str, Any]]) -> Review:
    first, *rest = decisions
    if first["kind"] != "open":
        message = f"merge request {request_id} has lost its beginning"
        raise CorruptGraphError(message, path=f"{DIRECTORY}/{request_id}", hint="restore it from a backup")
    review = Review(
        request_id,
        first["source"],
        first["target"],
        first["actor"],
        first["title"],
        first["message"],
        ReviewState.OPEN,
        first["at"],
        first["source_commit"],
        first["target_commit"],
        wanted=first["checks"],
    )
    for one in rest:
        review = _followed(review, one)
    return review


def _followed(review: Review, one: Mapping[str, Any]) -> Review:
    match one["kind"]:
        case "approve":
            made = Approval(one["actor"], one["source_commit"], one["target_commit"], one["at"])
            return replace(review, approvals=(*review.approvals, made))
        case "check":
            return replace(review, checks=tuple(ReviewCheck(**result) for result in one["results"]))
        case "merge":
            return replace(review, state=ReviewState.MERGED, commit_id=one["commit_id"])
        case "close" if review.state is ReviewState.OPEN:
            return replace(review, state=ReviewState.CLOSED, closed_by=one["actor"])
    return review  # of a later release


def _merge_of(target: ManifestState, request_id: str) -> Commit | None:
    """Find the merge of a request whose process died before it noted it."""
    found = target.commit_of_operation(request_id)
    if found:
        return found
    recent = (commit for commit in target.recent() if commit.details)
    return next((one for one in recent if (one.details or {}).get(REQUEST, {}).get("id") == request_id), None)


def _heads_of(source: ManifestState, target: ManifestState) -> Heads:
    return Heads(_content_head(source), _content_head(target))


def _content_head(state: ManifestState) -> str:
    """Return the head, or the commit that upkeep has made it of: files that are rewritten are no reason to lapse."""
    commit = state.head
    while commit and commit.is_maintenance and commit.parent_id and (parent := state.commit(commit.parent_id)):
        commit = parent
    assert commit, "a branch has commits"
    return commit.commit_id


def _content(attempt: MergeAttempt, source: Commit) -> str:
    """Return the same of the source of a merge."""
    return _content_head(attempt.store.manifest.load(source.branch)) if source.is_maintenance else source.commit_id


def _message(review: Review) -> str:
    return f"{review.title}\n\n{review.message}" if review.message else review.title


def _named(heads: Heads) -> dict[str, Any]:
    return {"source_commit": heads.source_commit, "target_commit": heads.target_commit}


def _result(one: ReviewCheck) -> dict[str, Any]:
    return asdict(one)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _now() -> int:
    return time.time_ns() // 1000


def _refuse_conflicts(done: MergeResult) -> None:
    if done.conflicts:
        message = f"the two branches contradict each other: {len(done.conflicts)} conflicts"
        raise MergeConflictError(message, conflicts=done.conflicts, hint="resolve them on the source, then check again")


def _failed(found: Iterable[ReviewCheck]) -> CheckFailedError:
    first = next(iter(found))
    message = f"the check '{first.check}' found {first.rows:,} rows on the merged state; nothing was changed"
    hint = "run it on the source after merging the target into it, and correct what it finds"
    return CheckFailedError(message, check=first.check, rows=first.rows, hint=hint)


def about(
    asked: MergeSpec, source: Commit, target: Commit, attempt: MergeAttempt, request_id: str | None
) -> dict[str, Any]:
    """Return what a hook learns about a merge."""
    changes = {
        key: {"inserted": one.inserted, "updated": one.updated, "deleted": one.deleted}
        for key, one in attempt.counts.items()
    }
    return {
        "source": asked.source,
        "target": asked.target or MAIN,
        "source_commit": source.commit_id,
        "target_commit": target.commit_id,
        "actor": asked.actor,
        "message": asked.message,
        "request": request_id,
        "changes": changes,
    }


def about_done(asked: MergeSpec, done: MergeResult) -> dict[str, Any]:
    assert done.commit
    assert done.outcome is not MergeOutcome.ALREADY_UP_TO_DATE
    return {
        "source": asked.source,
        "target": asked.target or MAIN,
        "commit_id": done.commit.commit_id,
        "actor": asked.actor,
        "message": asked.message,
    }


def hooked(hooks: MergeHooks, asked: MergeSpec) -> Judge | None:
    """Return the judge of a merge without a request: only the hook has a say."""
    if hooks.before is None:
        return None

    def judge(attempt: MergeAttempt, source: Commit, target: Commit) -> tuple[Mapping[str, Any], Permit | None]:
        hooks.run_before(about(asked, source, target, attempt, None))
        return {}, None

    return judge
