"""Commands that keep a graph fast, small and sound."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from omnigraph.api.maintenance import (
    CleanupResult,
    HealthReport,
    RepairResult,
    TableCleanup,
    TableRepair,
    TableUpkeep,
    UpkeepResult,
)
from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.command import Uri, command, one_of
from omnigraph.cli.emit import Document, Lines, renders
from omnigraph.cli.engine import ENGINES, Engine, Master, progress
from omnigraph.cli.output import Line
from omnigraph.cli.tables import table

_UNITS = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(\d{1,9})([smhdw]?)")

app = typer.Typer()


@command(app, "optimize")
def optimize(
    scope: Scope,
    uri: Uri = None,
    *,
    branch: Annotated[str, typer.Option(help="The branch whose tables to optimize.", metavar="NAME")] = "main",
    engine: Engine = "auto",
    master: Master = None,
) -> None:
    """Compact small files, and extend the indices over all rows."""
    engine = one_of("--engine", engine, ENGINES)
    target = scope.at(uri)
    graph = target.write_aloud()
    scope.emit(graph.optimize(branch, engine=engine, master=master, progress=progress(scope)), uri=target.uri)


@command(app, "cleanup")
def cleanup(
    scope: Scope,
    uri: Uri = None,
    *,
    keep: Annotated[
        int | None, typer.Option(help="How many commits of each branch to keep.", min=0, metavar="N")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Keep commits younger than this: 90s, 15m, 12h, 30d, 4w.", metavar="DURATION")
    ] = None,
    orphans_older_than: Annotated[
        str, typer.Option(help="Remove unreferenced files older than this.", metavar="DURATION")
    ] = "7d",
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Remove the data. Without it, only show what would be removed.")
    ] = False,
) -> None:
    """Remove old versions, and files that failed writes left behind."""
    target = scope.at(uri)
    if keep is None and older_than is None:
        raise typer.BadParameter("give --keep, --older-than, or both", param_hint="--keep")
    age = None if older_than is None else _duration("--older-than", older_than)
    orphan_age = _duration("--orphans-older-than", orphans_older_than)
    if confirm:
        target.ask_before_removing(f"Remove old versions from {target.uri}?")
    graph = target.write_aloud() if confirm else target.write()
    done = graph.cleanup(keep, age, confirm=confirm, orphan_age=orphan_age, progress=progress(scope))
    if not confirm:
        output.note(_policy(keep, older_than))
    scope.emit(done, uri=target.uri, keep=keep, age=age)


def _policy(keep: int | None, older_than: str | None) -> str:
    count = "commit" if keep in (0, 1) else f"{keep} commits"
    parts = [f"the last {count} of each branch"] if keep is not None else []
    parts += [f"commits younger than {older_than}"] if older_than is not None else []
    return f"would keep {' and '.join(parts)}; nothing was removed, add --confirm to remove the rest"


def _duration(name: str, text: str) -> dt.timedelta:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"'{text}' is not a duration; write 90s, 15m, 12h, 30d or 4w", param_hint=name)
    return dt.timedelta(**{_UNITS[found[2]]: int(found[1])})


@command(app, "repair")
def repair(
    scope: Scope,
    uri: Uri = None,
    *,
    confirm: Annotated[bool, typer.Option("--confirm", help="Adopt changes proven to have changed no rows.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --confirm: adopt all changes.")] = False,
) -> None:
    """Inspect tables that another program changed, and adopt its changes where safe."""
    target = scope.at(uri)
    if force and not confirm:
        raise typer.BadParameter("--force needs --confirm", param_hint="--force")
    graph = target.write_aloud() if confirm else target.write()
    done = graph.repair(confirm=confirm, force=force)
    scope.emit(done, uri=target.uri, confirm=confirm, force=force)
    if done.is_refused:
        raise typer.Exit(1)


@command(app, "doctor")
def doctor(scope: Scope, uri: Uri = None) -> None:
    """Report the health of a graph, and the commands that improve it."""
    report = scope.at(uri).read().doctor()
    scope.emit(report)
    if not report.is_healthy:
        raise typer.Exit(1)


# How results are printed ---------------------------------------------------------------------------


def _tables(rows: Iterable[dict[str, Any]]) -> Document:
    """List the tables under the names that programs know: those of tables, and the older ones of types."""
    other = {"table_key": "type_key", "manifest_version": "published_dataset_version"}
    listed = [{**row, **{other[name]: row[name] for name in other if name in row}} for row in rows]
    return {"tables": listed, "datasets": listed}


def _bytes(size: int) -> str:
    power = max((size.bit_length() - 1) // 10, 0)
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[min(power, 4)]
    return f"{size / 1024 ** min(power, 4):.{min(power, 1)}f} {unit}"


def _optimize_document(done: UpkeepResult, *, uri: str) -> Document:
    return {"uri": uri, **_tables(map(_optimized_table, done.tables))}


def _optimized_table(row: TableUpkeep) -> Document:
    pending = [{**asdict(one), "property": one.column} for one in row.pending_indexes]
    return {**asdict(row), "indexes": list(row.indexes), "pending_indexes": pending}


@renders("optimize", document=_optimize_document)
def _optimized(done: UpkeepResult, *, uri: str) -> Lines:
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


def _cleanup_document(done: CleanupResult, *, uri: str, keep: int | None, age: dt.timedelta | None) -> Document:
    return {
        "uri": uri,
        "keep_versions": keep,
        "older_than_secs": None if age is None else int(age.total_seconds()),
        "confirmed": done.confirmed,
        **_tables({**asdict(row), "forks_removed": list(row.forks_removed)} for row in done.tables),
        "temporary_files_removed": done.temporary.files,
        "temporary_bytes_removed": done.temporary.size,
    }


@renders("cleanup", document=_cleanup_document)
def _cleaned(done: CleanupResult, *, uri: str, **_facts: Any) -> Lines:
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


def _repair_document(done: RepairResult, *, uri: str, confirm: bool, force: bool) -> Document:
    version = next((one.manifest_version for one in done.commits if one.branch is None), None)
    return {
        "uri": uri,
        "confirm": confirm,
        "force": force,
        "manifest_version": version,
        "graph_manifest_version": version,
        "commits": [one.commit_id for one in done.commits],
        **_tables({**asdict(row), "operations": list(row.operations)} for row in done.tables),
    }


@renders("repair", document=_repair_document)
def _repaired(done: RepairResult, *, uri: str, **_facts: Any) -> Lines:
    yield f"repair {uri} — {len(done.tables)} tables"
    names = [row.table_key if row.branch == "main" else f"{row.table_key} on {row.branch}" for row in done.tables]
    for name, row in zip(names, done.tables, strict=True):
        yield f"  {name.ljust(max(map(len, names)))}  {_repaired_text(row)}"
    if any(row.action == "preview" for row in done.tables):
        yield Line("nothing was changed; add --confirm to adopt changes that are proven harmless", is_note=True)
    if done.is_refused:
        text = "some tables were refused: find out what wrote to them, then adopt it with --confirm --force"
        yield Line(text, is_note=True)


def _repaired_text(row: TableRepair) -> str:
    if row.action == "no_op":
        return "no drift"
    operations = f" by {', '.join(row.operations)}" if row.operations else ""
    error = f" ({row.error})" if row.error else ""
    moved = f"v{row.manifest_version} → v{row.lance_head_version}{operations}"
    return f"{row.classification}: {moved}{error}: {row.action}"


@renders("doctor", document=lambda report: {**asdict(report), "healthy": report.is_healthy})
def _report(report: HealthReport) -> Lines:
    yield f"doctor {report.uri} — {len(report.tables)} tables on {', '.join(report.branches)}"
    columns = ["table", "branch", "pin", "head", "rows", "deleted", "fragments", "small", "versions", "indexes"]
    rows = [
        [
            row.table_key,
            row.branch,
            *map(str, (row.pin, row.head, row.rows, row.rows_deleted, row.fragments, row.fragments_small)),
            str(row.versions),
            _covered(row.rows, [one.rows_covered for one in row.indexes]),
        ]
        for row in report.tables
    ]
    yield from table(columns, rows)
    for finding in report.findings:
        style = "bold red" if finding.severity == "problem" else ""
        yield Line(f"{finding.severity}: {finding.subject}: {finding.message}", style)
        yield f"  → {finding.run}"
    if not report.findings:
        yield "healthy: there is nothing to do"


def _covered(rows: int, covered: list[int]) -> str:
    full = sum(one == rows for one in covered)
    return f"{full} of {len(covered)} full" if covered else "none"
