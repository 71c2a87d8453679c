"""Commands for versions of a graph: branches, tags, the log, and merging and undoing changes."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from omnigraph.api import operations as op
from omnigraph.api.documents import MERGE, PICK, RESTORED, REVERT, answer_document, to_document
from omnigraph.api.options import OURS, THEIRS, Resolution
from omnigraph.api.protocol import GraphAPI
from omnigraph.api.results import UNCERTAIN, LogEntry, MergeResult, ResolveResult, Snapshot
from omnigraph.api.reviews import Lapse, RuleOfBranch
from omnigraph.cli import output
from omnigraph.cli.address import Target
from omnigraph.cli.command import (
    CHECK,
    Branch,
    DryRun,
    EngineOptions,
    Message,
    argument,
    command,
    option,
    readable,
    switch,
    writable,
)
from omnigraph.cli.output import Line, Lines, quoted
from omnigraph.errors import FileAccessError, OmnigraphError, ResolutionError

BranchName = Annotated[str, argument("The name of the branch.", "NAME")]
KindOption = Annotated[str | None, option("node or edge, if both have the name.", "KIND", "--kind")]
TagName = Annotated[str, argument("The name of the tag.", "NAME")]


@command("branch create")
def create_branch(
    target: Target,
    name: BranchName,
    *,
    base: Annotated[str, option("The branch, tag or commit to start at.", "REF", "--from")] = "main",
) -> None:
    """Create a branch. No data is copied."""
    actor = target.actor  # before the write: a server refuses `--as`
    target.write_aloud().create_branch(name, base)
    document = answer_document(op.CreateBranch(name, base), None, target.uri, actor)
    target.emit(document, f"created branch {name.strip()} from {base}")


@command("branch list")
def list_branches(target: Target) -> None:
    """List the branches by name."""
    names = sorted(target.read().branches())
    target.emit({"branches": names}, names)


@command("branch protect")
def protect_branch(
    target: Target,
    name: BranchName,
    *,
    approvals: Annotated[int, option("How many actors must approve a merge request.", "N", min=0)] = 1,
    self_approval: Annotated[bool, switch("The author of a request may approve it.", "--self-approval")] = False,
    lapse: Annotated[
        str, option("Whose new commits make an approval lapse.", "source_or_target|source")
    ] = "source_or_target",
    checks: Annotated[list[str] | None, option(CHECK, "FILE|NAME", "--check")] = None,
    bypass: Annotated[list[str] | None, option("An actor who needs no request; may be repeated.", "ACTOR")] = None,
) -> None:
    """Protect a branch: from now on it takes merge requests only."""
    given = {"approvals": approvals, "self_approval": self_approval, "lapse": lapse, "checks": checks, "bypass": bypass}
    actor = target.actor
    done = target.write_aloud().protect(name, actor=actor, **given)  # type: ignore[arg-type]
    target.emit(to_document(done), f"{done.branch}: {_rule_text(done)}")


@command("branch unprotect")
def unprotect_branch(target: Target, name: BranchName) -> None:
    """Lift the rule of a branch."""
    actor = target.actor
    done = target.write_aloud().unprotect(name, actor=actor)
    target.emit(to_document(done), f"{done.branch}: {_rule_text(done)}")


@command("branch rule")
def show_rule(target: Target, name: BranchName) -> None:
    """Show what a branch demands of writes."""
    found = target.read().rule(name)
    target.emit(to_document(found), f"{found.branch}: {_rule_text(found)}")


def _rule_text(found: RuleOfBranch) -> str:
    rule = found.rule
    if rule is None:
        return "not protected"
    parts = [
        f"merge requests with {rule.approvals} approvals",
        "also of the author" if rule.self_approval else "",
        "that lapse with the source only" if rule.lapse is Lapse.SOURCE else "",
        f"checks: {', '.join(sorted(rule.checks))}" if rule.checks else "",
        f"except for {', '.join(rule.bypass)}" if rule.bypass else "",
    ]
    return "; ".join(filter(None, parts))


@command("branch delete")
def delete_branch(target: Target, name: BranchName) -> None:
    """Delete a branch, and the data that only it has."""
    actor = target.actor
    target.ask_before_removing(f"Delete branch {name} of {target.uri}?")
    target.write_aloud().delete_branch(name)
    document = answer_document(op.DeleteBranch(name), None, target.uri, actor)
    target.emit(document, f"deleted branch {name.strip()}")


@dataclass(frozen=True, slots=True)
class ConflictOptions:
    """How conflicts are resolved."""

    ours: Annotated[bool, switch("In a conflict, keep the side of the branch that is changed.", "--ours")] = False
    theirs: Annotated[bool, switch("In a conflict, take the side that is applied to it.", "--theirs")] = False
    resolve: Annotated[
        list[str] | None,
        option("A side for one type or property, or a file of conflicts with sides.", "TYPE[.PROPERTY]=SIDE|FILE"),
    ] = None

    def resolution(self) -> Resolution:
        """Combine the options. A conflict in a file wins over its type, and a type over the default."""
        if self.ours and self.theirs:
            raise typer.BadParameter("give either --ours or --theirs", param_hint="--ours")
        types: dict[str, str] = {}
        listed: list[Resolution] = []
        for text in self.resolve or ():
            name, sign, side = text.partition("=")
            # The name of a file may contain `=` too.
            if sign and not Path(text).exists():
                types[name] = side
            else:
                listed.append(_conflict_file(text))
        default = OURS if self.ours else THEIRS if self.theirs else None
        entities = {key: taken for one in listed for key, taken in one.entities.items()}
        made_for = {one.heads for one in listed if one.heads}
        if len(made_for) > 1:
            raise ResolutionError("the files were written for different merges", hint="give those of one merge")
        heads = next(iter(made_for), None)
        return Resolution(default, Resolution.of(types).types, entities, heads)


def _conflict_file(file: str) -> Resolution:
    """Read a file that `--conflicts` wrote, a list of conflicts, or a document that has one, as a merge prints it."""
    try:
        with readable(file):
            found = json.loads(Path(file).read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ResolutionError(f"{file} is not JSON: {error}", hint="write a list of conflicts") from None
    if isinstance(found, dict) and "format" in found:
        return Resolution.of(found)
    if isinstance(found, dict):
        # The document of a preview has one name, that of an error the other; people edit either.
        found = next((found[name] for name in ("conflicts", "merge_conflicts") if name in found), None)
    if not isinstance(found, list):
        hint = "write a list, or a document with `conflicts`, as `omnigraph branch merge --dry-run --json` prints it"
        raise ResolutionError(f"{file} holds no list of conflicts", hint=hint)
    return Resolution.of(found)


@command("branch merge")
def merge_branch(
    target: Target,
    source: Annotated[str, argument("The branch to merge.", "SOURCE")],
    *,
    into: Annotated[str, option("The branch to merge it into.", "NAME")] = "main",
    conflicts: ConflictOptions,
    by: Annotated[
        str, option("Combine changes by property, or refuse two of one entity.", "property|entity")
    ] = "property",
    dry_run: DryRun = False,
    conflicts_file: Annotated[
        Path | None,
        option(
            "With --dry-run, write the conflicts to a file, to decide and pass to --resolve.", "FILE", "--conflicts"
        ),
    ] = None,
    delete_source: Annotated[bool, switch("Delete the source after the merge.", "--delete-branch")] = False,
    message: Message = None,
    engine: EngineOptions,
) -> None:
    """Apply the changes of one branch to another, in one commit or not at all."""
    actor = target.actor
    options = {"resolve": conflicts.resolution(), "by": by, **engine.checked(target.scope)}
    if conflicts_file and not dry_run:
        raise typer.BadParameter("--conflicts needs --dry-run", param_hint="--conflicts")
    if dry_run:
        preview = target.read().merge(source, into, dry_run=True, **options)
        target.emit({**MERGE.write(preview, {"actor": None}), "dry_run": True}, _preview(preview))
        if conflicts_file:
            _write_conflicts(conflicts_file, preview)
        if preview.conflicts:
            # So that a script can ask before it merges.
            raise typer.Exit(1)
        return
    graph = target.write_aloud()
    done = graph.merge(source, into, actor=actor, message=message, **options)
    _warn_uncertain(done)
    document, text = MERGE.write(done, {"actor": actor}), [f"merged {done.source} into {done.target}: {done.outcome}"]
    if delete_source:
        problem = _deletion_problem(graph, done.source)
        document |= {"branch_deleted": problem is None, "branch_delete_error": problem}
        text += [] if problem else [f"deleted branch {done.source}"]
    target.emit(document, text)


def _write_conflicts(file: Path, preview: MergeResult) -> None:
    with writable(str(file)):
        file.write_text(json.dumps(preview.to_resolution(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _warn_uncertain(done: MergeResult) -> None:
    details = done.commit.details if done.commit else None
    if merges := (details or {}).get(UNCERTAIN):
        message = f"warning: the common past is uncertain; older releases did not record {', '.join(merges)}"
        output.note(message, style="yellow")


def _preview(found: MergeResult) -> Lines:
    yield f"would merge {found.source} into {found.target}: {found.outcome}"
    for key, counts in found.changes.items():
        yield f"{key}: {counts.inserted} inserted, {counts.updated} updated, {counts.deleted} deleted"
    yield from (Line(f"conflict {conflict}", "red") for conflict in found.conflicts)


def _deletion_problem(graph: GraphAPI, name: str) -> str | None:
    """Delete a merged branch. The merge stays whatever happens here, so a refusal is only a warning."""
    try:
        graph.delete_branch(name)
    except OmnigraphError as error:
        output.note(f"warning: branch {name} was merged, but not deleted: {error.message}", style="yellow")
        return error.message
    return None


@command("revert")
def revert(
    target: Target,
    commit: Annotated[str, argument("The commit to undo.", "COMMIT")],
    *,
    branch: Annotated[str, option("The branch to undo it on.", "NAME")] = "main",
    conflicts: ConflictOptions,
    message: Message = None,
) -> None:
    """Undo one commit with a new commit, and keep later changes."""
    # All options are checked before the graph is announced and opened.
    actor, chosen = target.actor, conflicts.resolution()
    done = target.write_aloud().revert(commit, branch, actor=actor, message=message, resolve=chosen)
    outcome = f"by {done.commit.commit_id}" if done.commit else "there was nothing left to undo"
    target.emit(REVERT.write(done, {"actor": actor}), f"reverted {done.source} on {done.target}: {outcome}")


@command("cherry-pick")
def cherry_pick(
    target: Target,
    commit: Annotated[str, argument("The commit whose changes to make.", "COMMIT")],
    *,
    branch: Annotated[str, option("The branch to make them on.", "NAME")] = "main",
    conflicts: ConflictOptions,
    message: Message = None,
) -> None:
    """Make the changes of one commit on another branch, with a new commit."""
    actor, chosen = target.actor, conflicts.resolution()
    done = target.write_aloud().cherry_pick(commit, branch, actor=actor, message=message, resolve=chosen)
    outcome = f"as {done.commit.commit_id}" if done.commit else "the branch has its changes already"
    target.emit(PICK.write(done, {"actor": actor}), f"picked {done.source} onto {done.target}: {outcome}")


@command("restore-entities")
def restore_entities(
    target: Target,
    type_name: Annotated[str, argument("The type of the entities.", "TYPE")],
    *,
    ref: Annotated[str, option("The state to take them from: a branch, tag, commit or REF~N.", "REF", "--from")],
    ids: Annotated[list[str] | None, option("Only this entity; may be repeated.", "ID", "--id")] = None,
    kind: KindOption = None,
    branch: Annotated[str, option("The branch to restore them on.", "NAME")] = "main",
    message: Message = None,
) -> None:
    """Bring a type, or some of its entities, to what they were in another state."""
    actor = target.actor
    done = target.write_aloud().restore_entities(
        type_name, ids, ref=ref, kind=kind, branch=branch, actor=actor, message=message
    )
    counts = [
        f"{counts.inserted} inserted, {counts.updated} updated, {counts.deleted} deleted"
        for counts in done.changes.values()
    ]
    text = f"restored {type_name} on {done.target} from {done.source}: {', '.join(counts) or 'nothing to change'}"
    target.emit(RESTORED.write(done, {"actor": actor}), text)


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """How nodes are compared."""

    key: Annotated[list[str] | None, option("Equal values of this property; may be repeated.", "PROPERTY")] = None
    words: Annotated[str | None, option("Common words in this property.", "PROPERTY")] = None
    vector: Annotated[str | None, option("Near vectors in this property.", "PROPERTY")] = None
    pairs: Annotated[str | None, option("A JSON file of pairs of ids that are the same.", "FILE")] = None
    block: Annotated[str | None, option("Compare only nodes with an equal value here.", "PROPERTY")] = None
    threshold: Annotated[float, option("The least score of a pair, up to 1.", "SCORE")] = 0.8

    def given(self) -> dict[str, Any]:
        known = None if self.pairs is None else _pairs_in(self.pairs)
        return {**asdict(self), "key": tuple(self.key or ()), "pairs": known}


def _pairs_in(file: str) -> list[list[str]]:
    """Read pairs of ids: a list of them, or what a dry run printed."""
    with readable(file):
        text = Path(file).read_text(encoding="utf-8")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FileAccessError(f"{file} is not JSON: {error}", path=file) from None
    listed = found.get("candidates") if isinstance(found, dict) else found
    pairs: list[Any] = [[one.get("left"), one.get("right")] if isinstance(one, dict) else one for one in listed or ()]
    if not all(isinstance(pair, list) and all(isinstance(id_, str) for id_ in pair) for pair in pairs):
        hint = 'write [["a", "b"]], or the output of `resolve --dry-run --json`'
        raise FileAccessError(f"{file} has no pairs of ids", path=file, hint=hint)
    return pairs


@command("resolve")
def resolve(
    target: Target,
    type_name: Annotated[str, argument("The node type.", "TYPE")],
    *,
    how: ComparisonOptions,
    branch: Branch = None,
    message: Message = None,
    dry_run: DryRun = False,
) -> None:
    """Find nodes that are the same entity, and merge them with their edges.

    One node of each group is kept, with the edges of all, in one commit. A dry run prints the pairs with their scores.
    """
    options = {**how.given(), "branch": target.scope.branch(branch), "actor": target.actor, "message": message}
    graph = target.write() if dry_run else target.write_aloud()
    done = graph.resolve(type_name, dry_run=dry_run, **options)
    target.emit({"uri": target.uri, **to_document(done)}, _resolved(done, dry_run=dry_run))


def _resolved(done: ResolveResult, *, dry_run: bool) -> Lines:
    if dry_run:
        yield from (f"{one.score:.3f} {one.left} {one.right}" for one in done.candidates)
        if done.pairs > len(done.candidates):
            yield f"and {done.pairs - len(done.candidates):,} more pairs"
    verb = "would merge" if dry_run else "merged"
    edges = f"{done.edges_moved:,} edges moved, {done.edges_dropped:,} dropped"
    yield f"{verb} {done.merged:,} nodes of {done.type_name} into {len(done.groups):,}: {edges}"


@command("tag create")
def create_tag(
    target: Target,
    name: TagName,
    *,
    ref: Annotated[str, option("The branch, tag or commit to name.", "REF", "--at")] = "main",
) -> None:
    """Create an immutable name for a commit. Cleanup keeps the commit."""
    made = target.write_aloud().create_tag(name, ref)
    target.emit({"uri": target.uri, **to_document(made)}, f"created tag {made.name} at {made.commit.commit_id}")


@command("tag list")
def list_tags(target: Target) -> None:
    """List the tags by name, each with its commit."""
    found = target.read().tags()
    target.emit({"tags": to_document(found)}, (f"{tag.name} {tag.commit.commit_id}" for tag in found))


@command("tag delete")
def delete_tag(target: Target, name: TagName) -> None:
    """Delete a tag. The commit is kept."""
    target.write_aloud().delete_tag(name)
    target.emit(answer_document(op.DeleteTag(name), None, target.uri, None), f"deleted tag {name.strip()}")


@command("snapshot")
def snapshot(target: Target, *, branch: Branch = None) -> None:
    """Show the version of each table on a branch."""
    found = target.read().snapshot(target.scope.branch(branch))
    target.emit(to_document(found), _snapshot(found))


def _snapshot(found: Snapshot) -> Lines:
    yield f"branch: {found.branch or 'main'}"
    yield f"manifest_version: {found.manifest_version}"
    for entry in found.entries.values():
        where = f"branch={entry.table.branch or 'main'}"
        yield f"{entry.key} v{entry.table.version} {where} rows={entry.row_count}"


@command("log")
def log(
    target: Target,
    *,
    branches: Annotated[
        list[str] | None, option("Only this branch, or A..B; may be repeated.", "NAME", "--branch")
    ] = None,
    draw: Annotated[bool, switch("Draw where branches start and merge.", "--draw")] = False,
    limit: Annotated[int, option("How many commits to print.", "N", min=1)] = 50,
) -> None:
    """Show the history of branches, newest first."""
    found = target.read().log(branches)
    target.emit({"commits": to_document(found[:limit])}, _log(found, draw=draw, limit=limit))


def _log(found: list[LogEntry], *, draw: bool, limit: int) -> Lines:
    from omnigraph.history.log import drawn  # noqa: PLC0415 - loads the engine

    known = {one.commit.commit_id: one for one in found}
    shown = 0
    for lanes, commit in drawn(one.commit for one in found):
        if commit is not None and shown == limit:
            yield Line(f"… {len(found) - shown:,} more; --limit prints them", is_note=True)
            break
        shown += commit is not None
        # Lines without a commit only join the lanes of the drawing.
        text = _log_line(known[commit.commit_id]) if commit else ""
        if draw or commit:
            yield f"{lanes} {text}".rstrip() if draw else text


def _log_line(entry: LogEntry) -> str:
    commit = entry.commit
    moment = dt.datetime.fromtimestamp(commit.created_at / 1_000_000, dt.UTC)
    names = ", ".join((*entry.branches, *(f"tag: {name}" for name in entry.tags)))
    parts = [
        commit.commit_id,
        f"({names})" if names else "",
        f"{moment:%Y-%m-%d %H:%M:%S}",
        commit.actor_id or "",
        f"merges {commit.merged_parent_id}" if commit.merged_parent_id else "",
        quoted(commit.message),
    ]
    return " ".join(filter(None, parts))
