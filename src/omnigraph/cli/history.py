"""Commands for versions of a graph: branches, tags, commits, changes between them, and undoing them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import omnigraph.cli.history_text  # noqa: F401 - registers how the results are printed
from omnigraph.api.changes import ChangeOptions, ChangePage
from omnigraph.api.options import OURS, THEIRS, Resolution
from omnigraph.api.protocol import GraphAPI
from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.command import Branch, CommitId, Uri, command, group
from omnigraph.cli.engine import Conf, Engine, Master, engine_options
from omnigraph.errors import FileAccessError, OmnigraphError, OptionError, ResolutionError

app = typer.Typer()
branch_group = group("Create, list, merge and delete branches.")
tag_group = group("Create, list and delete tags: immutable names for commits.")
commit_group = group("List and show commits.")
changes_group = group("Follow the changes of a graph.")
app.add_typer(branch_group, name="branch")
app.add_typer(tag_group, name="tag")
app.add_typer(commit_group, name="commit")
app.add_typer(changes_group, name="changes")

BranchName = Annotated[str, typer.Argument(help="The name of the branch.", metavar="NAME")]
TagName = Annotated[str, typer.Argument(help="The name of the tag.", metavar="NAME")]
Kinds = Annotated[list[str] | None, typer.Option("--kind", help="Only node or edge.", metavar="KIND")]
Types = Annotated[list[str] | None, typer.Option("--type", help="Only entities of this type.", metavar="NAME")]
Operations = Annotated[list[str] | None, typer.Option("--op", help="Only insert, update or delete.", metavar="OP")]
Limit = Annotated[int, typer.Option(help="How many changes to read at a time.", metavar="N")]


# branch --------------------------------------------------------------------------------------------


@command(branch_group, "branch create")
def create_branch(
    scope: Scope,
    name: BranchName,
    uri: Uri = None,
    *,
    base: Annotated[str, typer.Option("--from", help="The branch, tag or commit to start at.", metavar="REF")] = "main",
) -> None:
    """Create a branch. No data is copied."""
    target = scope.at(uri)
    actor = target.actor
    target.write_aloud().create_branch(name, base)
    scope.emit(None, uri=target.uri, name=name, base=base, actor=actor)


@command(branch_group, "branch list")
def list_branches(scope: Scope, uri: Uri = None) -> None:
    """List the branches by name."""
    scope.emit(sorted(scope.at(uri).read().branches()))


@command(branch_group, "branch delete")
def delete_branch(scope: Scope, name: BranchName, uri: Uri = None) -> None:
    """Delete a branch, and the data that only it has."""
    target = scope.at(uri)
    actor = target.actor
    target.ask_before_removing(f"Delete branch {name} of {target.uri}?")
    target.write_aloud().delete_branch(name)
    scope.emit(None, uri=target.uri, name=name, actor=actor)


Ours = Annotated[bool, typer.Option("--ours", help="In a conflict, keep the side of the branch that is changed.")]
Theirs = Annotated[bool, typer.Option("--theirs", help="In a conflict, take the side that is applied to it.")]
Resolve = Annotated[
    list[str] | None,
    typer.Option(help="A side for one type, or a file of conflicts with sides.", metavar="TYPE=SIDE|FILE"),
]


@command(branch_group, "branch merge")
def merge_branch(
    scope: Scope,
    source: Annotated[str, typer.Argument(help="The branch to merge.", metavar="SOURCE")],
    uri: Uri = None,
    *,
    into: Annotated[str, typer.Option(help="The branch to merge it into.", metavar="NAME")] = "main",
    ours: Ours = False,
    theirs: Theirs = False,
    resolve: Resolve = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the result and change nothing.")] = False,
    delete_source: Annotated[bool, typer.Option("--delete-branch", help="Delete the source after the merge.")] = False,
    engine: Engine = "auto",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Apply the changes of one branch to another, in one commit or not at all."""
    target = scope.at(uri)
    actor = target.actor
    options = {"resolve": _resolution(resolve, ours=ours, theirs=theirs), **engine_options(scope, engine, master, conf)}
    if dry_run:
        preview = target.read().merge(source, into, dry_run=True, **options)
        scope.emit(preview, dry_run=True)
        if preview.conflicts:
            # So that a script can ask before it merges.
            raise typer.Exit(1)
        return
    graph = target.write_aloud()
    done = graph.merge(source, into, actor=actor, **options)
    deletion = {"problem": _deletion_problem(graph, done.source)} if delete_source else None
    scope.emit(done, actor=actor, deletion=deletion)


def _deletion_problem(graph: GraphAPI, name: str) -> str | None:
    """Delete a merged branch. The merge stays whatever happens here, so a refusal is only a warning."""
    try:
        graph.delete_branch(name)
    except OmnigraphError as error:
        output.note(f"warning: branch {name} was merged, but not deleted: {error.message}", style="yellow")
        return error.message
    return None


@command(app, "revert")
def revert(
    scope: Scope,
    commit: Annotated[str, typer.Argument(help="The commit to undo.", metavar="COMMIT")],
    uri: Uri = None,
    *,
    branch: Annotated[str, typer.Option(help="The branch to undo it on.", metavar="NAME")] = "main",
    ours: Ours = False,
    theirs: Theirs = False,
    resolve: Resolve = None,
) -> None:
    """Undo one commit with a new commit, and keep later changes."""
    target = scope.at(uri)
    actor = target.actor
    chosen = _resolution(resolve, ours=ours, theirs=theirs)
    scope.emit(target.write_aloud().revert(commit, branch, actor=actor, resolve=chosen), actor=actor)


def _resolution(given: list[str] | None, *, ours: bool, theirs: bool) -> Resolution:
    """Combine the options. A conflict in a file wins over its type, and a type over the default."""
    if ours and theirs:
        raise typer.BadParameter("give either --ours or --theirs", param_hint="--ours")
    types: dict[str, str] = {}
    listed: list[dict[str, Any]] = []
    for text in given or ():
        name, sign, side = text.partition("=")
        if sign and not Path(text).exists():
            types[name] = side
        else:
            listed += _listed_conflicts(text)
    default = OURS if ours else THEIRS if theirs else None
    return Resolution(default, Resolution.of(types).types, Resolution.of(listed).entities)


def _listed_conflicts(file: str) -> list[dict[str, Any]]:
    """Read a list of conflicts, or a document that has one, as a merge prints it."""
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise FileAccessError(f"cannot read {file}: {error}", path=file) from None
    except (ValueError, RecursionError) as error:
        raise ResolutionError(f"{file} is not JSON: {error}", hint="write a list of conflicts") from None
    if isinstance(found, dict):
        found = next((found[name] for name in ("conflicts", "merge_conflicts") if name in found), None)
    if not isinstance(found, list):
        hint = "write a list, or a document with `conflicts`, as `omnigraph branch merge --dry-run --json` prints it"
        raise ResolutionError(f"{file} holds no list of conflicts", hint=hint)
    return found


# tag -----------------------------------------------------------------------------------------------


@command(tag_group, "tag create")
def create_tag(
    scope: Scope,
    name: TagName,
    uri: Uri = None,
    *,
    ref: Annotated[str, typer.Option("--at", help="The branch, tag or commit to name.", metavar="REF")] = "main",
) -> None:
    """Create an immutable name for a commit. Cleanup keeps the commit."""
    target = scope.at(uri)
    scope.emit(target.write_aloud().create_tag(name, ref), uri=target.uri)


@command(tag_group, "tag list")
def list_tags(scope: Scope, uri: Uri = None) -> None:
    """List the tags by name, each with its commit."""
    scope.emit(scope.at(uri).read().tags())


@command(tag_group, "tag delete")
def delete_tag(scope: Scope, name: TagName, uri: Uri = None) -> None:
    """Delete a tag. The commit is kept."""
    target = scope.at(uri)
    target.write_aloud().delete_tag(name)
    scope.emit(None, uri=target.uri, name=name)


# snapshot, commit, log -----------------------------------------------------------------------------


@command(app, "snapshot")
def snapshot(scope: Scope, uri: Uri = None, *, branch: Branch = None) -> None:
    """Show the version of each table on a branch."""
    scope.emit(scope.at(uri).read().snapshot(scope.branch(branch)))


@command(commit_group, "commit list")
def list_commits(
    scope: Scope,
    uri: Uri = None,
    *,
    branch: Branch = None,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", help="Only commits of one actor: actor=NAME.", metavar="KEY=VALUE")
    ] = None,
) -> None:
    """List the commits of a branch, newest first."""
    wanted = [_actor(text) for text in filters or ()]
    found = scope.at(uri).read().commits(scope.branch(branch))
    scope.emit([item for item in found if all(item.actor_id == actor for actor in wanted)])


def _actor(text: str) -> str:
    key, _, value = text.partition("=")
    if key != "actor" or not value:
        raise OptionError(f"unknown filter {text!r}", option="filter", hint="write actor=NAME")
    return value


@command(commit_group, "commit show")
def show_commit(scope: Scope, commit_id: CommitId, uri: Uri = None) -> None:
    """Show one commit of any branch."""
    scope.emit(scope.at(uri).read().commit(commit_id))


@command(app, "log")
def log(
    scope: Scope,
    uri: Uri = None,
    *,
    branches: Annotated[
        list[str] | None, typer.Option("--branch", help="Only this branch; may be repeated.", metavar="NAME")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Draw where branches start and merge.")] = False,
    limit: Annotated[int, typer.Option(help="How many commits to print.", min=1, metavar="N")] = 50,
) -> None:
    """Show the history of branches, newest first."""
    scope.emit(scope.at(uri).read().log(branches), draw=draw, limit=limit)


# diff, changes -------------------------------------------------------------------------------------


@command(app, "diff")
def diff(
    scope: Scope,
    before: Annotated[str, typer.Argument(help="A branch, tag, commit, REF~N or REF@VERSION.", metavar="A")],
    after: Annotated[str, typer.Argument(help="The state to compare it with.", metavar="B")],
    uri: Uri = None,
    *,
    kinds: Kinds = None,
    types: Types = None,
    operations: Operations = None,
    limit: Annotated[int, typer.Option(help="How many changes of each type to print.", min=0, metavar="N")] = 10,
    everything: Annotated[bool, typer.Option("--all", help="Print all changes.")] = False,
    stat: Annotated[bool, typer.Option("--stat", help="Print only the counts.")] = False,
) -> None:
    """Show the changes from A to B: inserted (+), updated (~) and deleted (-), by type."""
    found = scope.at(uri).read().diff(before, after, kinds=kinds, types=types, operations=operations)
    scope.emit(found, limit=None if everything else 0 if stat else limit, with_changes=not stat)


@command(changes_group, "changes poll")
def poll_changes(
    scope: Scope,
    uri: Uri = None,
    *,
    branch: Branch = None,
    cursor: Annotated[str | None, typer.Option(help="The cursor that the last poll printed.", metavar="CURSOR")] = None,
    start: Annotated[
        str | None, typer.Option(help="Where to start: now, beginning or after:COMMIT.", metavar="PLACE")
    ] = None,
    limit: Limit = 1000,
    kinds: Kinds = None,
    types: Types = None,
    operations: Operations = None,
) -> None:
    """Print the changes since a cursor, commit by commit, and the cursor for the next poll."""
    graph, branch = scope.at(uri).read(), scope.branch(branch)
    wanted: ChangeOptions = {"kinds": kinds, "types": types, "operations": operations, "limit": limit}
    first: ChangeOptions = {**wanted, "cursor": cursor, "start": start}
    scope.emit(_pages(graph, branch, graph.changes(branch, **first), wanted))


def _pages(graph: GraphAPI, branch: str, page: ChangePage, wanted: ChangeOptions) -> Iterator[ChangePage]:
    yield page
    while page.next_page_token:
        following: ChangeOptions = {**wanted, "page_token": page.next_page_token}
        page = graph.changes(branch, **following)
        yield page


@command(changes_group, "changes baseline", json=False)
def baseline(
    scope: Scope,
    uri: Uri = None,
    *,
    out: Annotated[str, typer.Option(help="The file to write, as JSONL.", metavar="PATH")],
    branch: Branch = None,
    kinds: Kinds = None,
    types: Types = None,
    operations: Operations = None,
) -> None:
    """Export a branch, and print the cursor that continues right after the exported state."""
    graph, branch = scope.at(uri).read(), scope.branch(branch)
    begins = graph.baseline(branch, kinds=kinds, types=types, operations=operations)
    _write_lines(out, graph.export(branch=branch, snapshot=begins.commit_id, types=begins.tables))
    output.document({"snapshot_commit_id": begins.commit_id, "resume_cursor": begins.cursor})


def _write_lines(path: str, lines: Iterator[str]) -> None:
    """Write one file, whatever its suffix: the file exists as a whole, or not at all."""
    from omnigraph.core.location import Location  # noqa: PLC0415
    from omnigraph.formats.files import written  # noqa: PLC0415 - loads the engine

    with written(Location.parse(path)) as stream:
        while chunk := "".join(itertools.islice(lines, 1000)):
            stream.write(chunk.encode())


@command(commit_group, "commit changes")
def commit_changes(
    scope: Scope,
    commit_id: CommitId,
    uri: Uri = None,
    *,
    limit: Limit = 1000,
    page_token: Annotated[str | None, typer.Option(help="Continue after a page.", metavar="TOKEN")] = None,
    kinds: Kinds = None,
    types: Types = None,
    operations: Operations = None,
) -> None:
    """Show the changes of one commit since its first parent."""
    graph = scope.at(uri).read()
    wanted: dict[str, Any] = {"kinds": kinds, "types": types, "operations": operations}
    scope.emit(graph.commit_changes(commit_id, page_token=page_token, limit=limit, **wanted))
