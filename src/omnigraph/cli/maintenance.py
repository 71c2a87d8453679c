"""Commands that keep a graph fast, small and sound."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer

import omnigraph
from omnigraph.api.maintenance import (
    BackupResult,
    CleanupResult,
    HealthReport,
    Relocation,
    RepairResult,
    TableCleanup,
    TableHealth,
    TableRepair,
    TableUpkeep,
    UpkeepReport,
    UpkeepResult,
    VerifyResult,
)
from omnigraph.cli import output
from omnigraph.cli.address import Scope, Target
from omnigraph.cli.command import Engine, Master, argument, command, engine_name, option, progress, switch
from omnigraph.cli.output import Document, Line, Lines
from omnigraph.cli.tables import table
from omnigraph.settings import duration_of


def _tables(rows: Iterable[dict[str, Any]]) -> Document:
    """List the tables under the names that programs know: those of tables, and the older ones of types."""
    other = {"table_key": "type_key", "manifest_version": "published_dataset_version"}
    listed = [{**row, **{other[name]: row[name] for name in other if name in row}} for row in rows]
    return {"tables": listed, "datasets": listed}


@command("optimize")
def optimize(
    target: Target,
    *,
    branch: Annotated[str, option("The branch whose tables to optimize.", "NAME")] = "main",
    engine: Engine = "auto",
    master: Master = None,
) -> None:
    """Compact small files, and extend the indices over all rows."""
    options: dict[str, Any] = {"engine": engine_name(engine), "master": master, "progress": progress(target.scope)}
    done = target.write_aloud().optimize(branch, **options)
    document = {"uri": target.uri, **_tables(map(_optimized_table, done.tables))}
    target.emit(document, _optimized(done, target.uri))


def _optimized_table(row: TableUpkeep) -> Document:
    pending = [{**asdict(one), "property": one.column} for one in row.pending_indexes]
    return {**asdict(row), "indexes": list(row.indexes), "pending_indexes": pending}


def _optimized(done: UpkeepResult, uri: str) -> Lines:
    yield f"optimize {uri} — {len(done.tables)} tables"
    width = max((len(row.table_key) for row in done.tables), default=0)
    for row in done.tables:
        yield f"  {row.table_key.ljust(width)}  {_optimized_text(row)}"
        for one in row.pending_indexes:
            yield f"  {' ' * width}  ↳ index pending on {one.column}: {one.reason}"


def _optimized_text(row: TableUpkeep) -> str:
    if row.skipped:
        heads = f", pin {row.manifest_version}, head {row.lance_head_version}" if row.lance_head_version else ""
        return f"skipped ({row.skipped}{heads})"
    if not row.committed:
        return "no-op"
    built = f", {len(row.indexes)} indexes" if row.indexes else ""
    return f"frags {row.fragments_removed} → {row.fragments_added}{built} ✓"


@command("cleanup")
def cleanup(
    target: Target,
    *,
    keep: Annotated[int | None, option("How many commits of each branch to keep.", "N", min=0)] = None,
    older_than: Annotated[
        str | None, option("Keep commits younger than this: 90s, 15m, 12h, 30d, 4w.", "DURATION")
    ] = None,
    orphans_older_than: Annotated[str, option("Remove unreferenced files older than this.", "DURATION")] = "7d",
    confirm: Annotated[
        bool, switch("Remove the data. Without it, only show what would be removed.", "--confirm")
    ] = False,
) -> None:
    """Remove old versions, and files that failed writes left behind."""
    if keep is None and older_than is None:
        raise typer.BadParameter("give --keep, --older-than, or both", param_hint="--keep")
    age = None if older_than is None else _duration("--older-than", older_than)
    orphan_age = _duration("--orphans-older-than", orphans_older_than)
    # Only a removal is asked about; a preview removes nothing.
    if confirm:
        target.ask_before_removing(f"Remove old versions from {target.uri}?")
    graph = target.write_aloud() if confirm else target.write()
    done = graph.cleanup(keep, age, confirm=confirm, orphan_age=orphan_age, progress=progress(target.scope))
    if not confirm:
        output.note(_policy(keep, older_than))
    document = {
        "uri": target.uri,
        "keep_versions": keep,
        "older_than_secs": None if age is None else int(age.total_seconds()),
        "confirmed": done.confirmed,
        **_tables({**asdict(row), "forks_removed": list(row.forks_removed)} for row in done.tables),
        "temporary_files_removed": done.temporary.files,
        "temporary_bytes_removed": done.temporary.size,
    }
    target.emit(document, _cleaned(done, target.uri))


def _policy(keep: int | None, older_than: str | None) -> str:
    count = "commit" if keep in (0, 1) else f"{keep} commits"  # the head of a branch always stays
    parts = [f"the last {count} of each branch"] if keep is not None else []
    parts += [f"commits younger than {older_than}"] if older_than is not None else []
    return f"would keep {' and '.join(parts)}; nothing was removed, add --confirm to remove the rest"


def _duration(name: str, text: str) -> dt.timedelta:
    found = duration_of(text)
    if found is None:
        raise typer.BadParameter(f"'{text}' is not a duration; write 90s, 15m, 12h, 30d or 4w", param_hint=name)
    return found


def _cleaned(done: CleanupResult, uri: str) -> Lines:
    yield f"cleanup {uri} — {len(done.tables)} tables{'' if done.confirmed else ' (preview)'}"
    width = max((len(row.table_key) for row in done.tables), default=0)
    for row in done.tables:
        yield f"  {row.table_key.ljust(width)}  {_cleaned_text(row)}"
    if done.temporary.files:
        yield f"  files of dead loads: {done.temporary.files}, {_bytes(done.temporary.size)}"


def _cleaned_text(row: TableCleanup) -> str:
    forks = f", forks {', '.join(row.forks_removed)}" if row.forks_removed else ""
    error = f" — failed: {row.error}" if row.error else ""
    return f"{row.old_versions_removed} versions, {_bytes(row.bytes_removed)}{forks}{error}"


def _bytes(size: int) -> str:
    # By bits and not by logarithm, which rounds 1024**5 - 1 up.
    power = min(max((size.bit_length() - 1) // 10, 0), 4)
    return f"{size / 1024**power:.{min(power, 1)}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


@command("upkeep")
def upkeep(
    target: Target,
    *,
    keep: Annotated[int | None, option("Clean up: keep so many commits of each branch.", "N", min=1)] = None,
    older_than: Annotated[
        str | None, option("Clean up: keep commits younger than this: 90s, 15m, 12h, 30d, 4w.", "DURATION")
    ] = None,
) -> None:
    """Optimize the branches that need it, and clean up if you say what to keep."""
    age = None if older_than is None else _duration("--older-than", older_than)
    if keep is not None or age is not None:
        target.ask_before_removing(f"Remove old versions from {target.uri}?")
    done = target.write_aloud().upkeep(keep, age, progress=progress(target.scope))
    removed = [row for row in done.cleanup.tables if row.old_versions_removed] if done.cleanup else []
    document = {
        "uri": target.uri,
        "optimized": list(done.optimized),
        "old_versions_removed": sum(row.old_versions_removed for row in removed),
        "bytes_removed": sum(row.bytes_removed for row in removed),
    }
    target.emit(document, _kept_up(done, target.uri))


def _kept_up(done: UpkeepReport, uri: str) -> Lines:
    yield f"upkeep {uri} — optimized: {', '.join(done.optimized) or 'nothing was due'}"
    if done.cleanup:
        yield from _cleaned(done.cleanup, uri)


@command("repair")
def repair(
    target: Target,
    *,
    confirm: Annotated[bool, switch("Adopt changes proven to have changed no rows.", "--confirm")] = False,
    force: Annotated[bool, switch("With --confirm: adopt all changes.", "--force")] = False,
) -> None:
    """Inspect tables that another program changed, and adopt its changes where safe."""
    if force and not confirm:
        raise typer.BadParameter("--force needs --confirm", param_hint="--force")
    graph = target.write_aloud() if confirm else target.write()
    done = graph.repair(confirm=confirm, force=force)
    # A repair makes a commit for each branch; older programs read the version of main.
    version = next((one.manifest_version for one in done.commits if one.branch is None), None)
    document = {
        "uri": target.uri,
        "confirm": confirm,
        "force": force,
        "manifest_version": version,
        "graph_manifest_version": version,
        "commits": [one.commit_id for one in done.commits],
        **_tables({**asdict(row), "operations": list(row.operations)} for row in done.tables),
        "lost": list(done.lost),
    }
    target.emit(document, _repaired(done, target.uri))
    # The tables are printed all the same: the exit code is for scripts.
    if done.is_refused or done.lost:
        raise typer.Exit(1)


def _repaired(done: RepairResult, uri: str) -> Lines:
    yield f"repair {uri} — {len(done.tables)} tables"
    names = [row.table_key if row.branch == "main" else f"{row.table_key} on {row.branch}" for row in done.tables]
    for name, row in zip(names, done.tables, strict=True):
        yield f"  {name.ljust(max(map(len, names)))}  {_repaired_text(row)}"
    if any(row.action == "preview" for row in done.tables):
        yield Line("nothing was changed; add --confirm to adopt changes that are proven harmless", is_note=True)
    if any(row.lost_indexes for row in done.tables):
        text = "add --confirm to drop the lost indexes" if done.mode == "preview" else "lost indexes were dropped"
        yield Line(f"{text}; omnigraph optimize builds them again", is_note=True)
    if done.is_refused:
        text = "some tables were refused: find out what wrote to them, then adopt it with --confirm --force"
        yield Line(text, is_note=True)
    for path in done.lost:
        yield Line(f"lost: {path}: restore it from a backup", "bold red")


def _repaired_text(row: TableRepair) -> str:
    lost = f"; lost indexes: {', '.join(row.lost_indexes)}" if row.lost_indexes else ""
    return _moved_text(row) + lost


def _moved_text(row: TableRepair) -> str:
    if row.action == "no_op":
        return "no drift"
    operations = f" by {', '.join(row.operations)}" if row.operations else ""
    error = f" ({row.error})" if row.error else ""
    moved = f"v{row.manifest_version} → v{row.lance_head_version}{operations}"
    return f"{row.classification}: {moved}{error}: {row.action}"


@command("relocate")
def relocate(target: Target) -> None:
    """Make the branches of a copied or moved graph refer to its present address."""
    done = target.write_aloud().relocate()
    target.emit({**asdict(done), "former_roots": list(done.former_roots)}, _relocated(done))


def _relocated(done: Relocation) -> Lines:
    yield f"relocate {done.uri} — versions of branches rewritten: {done.versions}"
    for root in done.former_roots:
        yield f"  was at {root}"


@command("backup create")
def create_backup(
    target: Target, to: Annotated[str, argument("A directory, file:// or s3:// address for backups.", "TARGET")]
) -> None:
    """Copy all branches and tags with their history. A later backup to the same target copies only what is new."""
    done = target.read().backup(to, progress=progress(target.scope))
    target.emit(_backup_document(done), _backed_up(done))


def _backup_document(done: BackupResult) -> Document:
    return {**asdict(done), "heads": dict(done.heads)}


def _backed_up(done: BackupResult) -> Lines:
    yield f"backup {done.backup_id} at {done.uri} — {done.files} files, {_bytes(done.size)}"
    if done.files_copied is not None:
        yield f"  copied: {done.files_copied} files, {_bytes(done.bytes_copied or 0)}"
    for branch, commit in done.heads.items():
        yield f"  {branch} at {commit}"


BackupSource = Annotated[str, argument("Where the backups are.", "BACKUPS")]
BackupId = Annotated[str | None, option("The id of a backup. Default: the latest.", "ID")]


@command("backup list")
def list_backups(scope: Scope, source: BackupSource) -> None:
    """List the complete backups at an address, oldest first."""
    found = omnigraph.backups(source)
    scope.emit({"backups": list(map(_backup_document, found))}, (line for one in found for line in _backed_up(one)))


@command("backup verify")
def verify_backup(scope: Scope, source: BackupSource, *, backup: BackupId = None) -> None:
    """Read every file of a backup, and compare its size and digest."""
    _emit_verified(scope, omnigraph.verify_backup(source, backup=backup, progress=progress(scope)))


@command("restore")
def restore(
    scope: Scope,
    source: BackupSource,
    to: Annotated[str, argument("The address of the new graph. Nothing may be there yet.", "URI")],
    *,
    backup: BackupId = None,
) -> None:
    """Make a graph of a backup."""
    from omnigraph import restore as restored  # noqa: PLC0415 - loads the engine

    done = restored(source, to, backup=backup, progress=progress(scope))
    text = f"restored {done.uri} from backup {done.backup_id} — {done.files} files, {_bytes(done.size)}"
    scope.emit(asdict(done), text)


@command("verify")
def verify(
    target: Target,
    *,
    against: Annotated[str | None, option("Compare digests with the latest backup there.", "BACKUPS")] = None,
) -> None:
    """Check that every file that a graph refers to is there."""
    _emit_verified(target.scope, target.read().verify(against, progress=progress(target.scope)))


def _emit_verified(scope: Scope, done: VerifyResult) -> None:
    scope.emit({**asdict(done), "intact": done.is_intact}, _verified(done))
    if not done.is_intact:
        raise typer.Exit(1)


def _verified(done: VerifyResult) -> Lines:
    yield f"verify {done.uri} — {done.files} files, {_bytes(done.size)}"
    for one in done.problems:
        yield Line(f"problem: {one.path}: {one.problem}", "bold red")
    if done.is_intact:
        yield "every file is there"


@command("doctor")
def doctor(
    target: Target,
    *,
    deep: Annotated[bool, switch("Read every row, and compare what must agree.", "--deep")] = False,
    backup: Annotated[str | None, option("Compare digests with the latest backup there.", "BACKUPS")] = None,
    engine: Engine = "auto",
    master: Master = None,
) -> None:
    """Report the health of a graph, and the commands that improve it."""
    options: dict[str, Any] = {"engine": engine_name(engine), "master": master, "progress": progress(target.scope)}
    report = target.read().doctor(deep=deep, backup=backup, **options)
    target.emit({**asdict(report), "healthy": report.is_healthy}, _report(report))
    if not report.is_healthy:
        raise typer.Exit(1)


def _report(report: HealthReport) -> Lines:
    yield f"doctor {report.uri} — {len(report.tables)} tables on {', '.join(report.branches)}"
    columns = ["table", "branch", "pin", "head", "rows", "deleted", "fragments", "small", "versions", "indexes"]
    yield from table(columns, list(map(_health_cells, report.tables)))
    for finding in report.findings:
        style = "bold red" if finding.severity == "problem" else ""
        yield Line(f"{finding.severity}: {finding.subject}: {finding.message}", style)
        yield f"  → {finding.run}"
    if not report.findings:
        yield "healthy: there is nothing to do"


def _health_cells(row: TableHealth) -> list[str]:
    counts = (row.pin, row.head, row.rows, row.rows_deleted, row.fragments, row.fragments_small, row.versions)
    full = sum(one.rows_covered == row.rows for one in row.indexes)
    covered = f"{full} of {len(row.indexes)} full" if row.indexes else "none"
    return [row.table_key, row.branch, *map(str, counts), covered]
