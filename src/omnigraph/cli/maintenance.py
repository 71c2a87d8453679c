"""`omnigraph optimize`, `cleanup`, `repair` and `doctor`: keep a graph quick, small and sound."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.address import Scope
from omnigraph.cli.arguments import Json, Uri
from omnigraph.cli.engine import ENGINES, Engine, Master, one_of, progress

if TYPE_CHECKING:
    from omnigraph.api.maintenance import (
        CleanupResult,
        HealthReport,
        RepairResult,
        TableCleanup,
        TableRepair,
        TableUpkeep,
        UpkeepResult,
    )

_UNITS = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(\d{1,9})([smhdw]?)")


def optimize(
    scope: Scope,
    uri: Uri = None,
    *,
    branch: Annotated[str, typer.Option(help="The branch whose tables to look after.", metavar="NAME")] = "main",
    engine: Engine = "auto",
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Make many small files few large ones, and let every index cover them."""
    engine = one_of("--engine", engine, ENGINES)
    target = scope.at(uri)
    graph = target.write_aloud()
    done = graph.optimize(branch, engine=engine, master=master, progress=progress(quiet=scope.flags.quiet))
    if as_json:
        output.document({"uri": target.uri, **_tables(map(_upkeep_document, done.tables))})
        return
    _show_upkeep(target.uri, done)


def cleanup(
    scope: Scope,
    uri: Uri = None,
    *,
    keep: Annotated[int | None, typer.Option(help="How many commits of each branch to keep.", min=0)] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Keep the commits that are younger: 90s, 15m, 12h, 30d, 4w.", metavar="DURATION")
    ] = None,
    orphans_older_than: Annotated[
        str, typer.Option(help="Remove files that nothing refers to when they are older.", metavar="DURATION")
    ] = "7d",
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Remove it. Without this, only tell what would go.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove what only old commits need, and what failed writes have left behind."""
    target = scope.at(uri)
    if keep is None and older_than is None:
        raise typer.BadParameter("say what to keep: --keep, --older-than, or both", param_hint="--keep")
    age = None if older_than is None else _duration("--older-than", older_than)
    orphan_age = _duration("--orphans-older-than", orphans_older_than)
    if confirm:
        target.ask_before_removing(f"Remove old versions from {target.uri}?", as_json=as_json)
    graph = target.write_aloud() if confirm else target.write()
    shown = progress(quiet=scope.flags.quiet)
    done = graph.cleanup(keep, age, confirm=confirm, orphan_age=orphan_age, progress=shown)
    if not confirm:
        output.note(_policy(keep, older_than))
    if as_json:
        output.document(_cleanup_document(target.uri, keep, age, done))
        return
    _show_cleanup(target.uri, done)


def repair(
    scope: Scope,
    uri: Uri = None,
    *,
    confirm: Annotated[bool, typer.Option("--confirm", help="Keep what is proven to have changed no rows.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --confirm: keep whatever is there.")] = False,
    as_json: Json = False,
) -> None:
    """Look at tables that something else has written to, and take over what it did, if that may be done."""
    target = scope.at(uri)
    if force and not confirm:
        raise typer.BadParameter("give --confirm as well", param_hint="--force")
    graph = target.write_aloud() if confirm else target.write()
    done = graph.repair(confirm=confirm, force=force)
    if as_json:
        output.document(_repair_document(target.uri, done, confirm=confirm, force=force))
    else:
        _show_repair(target.uri, done)
    if done.is_refused:
        raise typer.Exit(1)


def doctor(scope: Scope, uri: Uri = None, *, as_json: Json = False) -> None:
    """Report the health of a graph: what stands in the way, what could be better, and what to run."""
    report = scope.at(uri).read().doctor()
    if as_json:
        output.document({**asdict(report), "healthy": report.is_healthy})
    else:
        _show_report(report)
    if not report.is_healthy:
        raise typer.Exit(1)


# What they share -----------------------------------------------------------------------------------


def _duration(name: str, text: str) -> dt.timedelta:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"'{text}' is no duration; write 90s, 15m, 12h, 30d or 4w", param_hint=name)
    return dt.timedelta(**{_UNITS[found[2]]: int(found[1])})


def _tables(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What is told of each table, in the words of tables and in those of types: programs know one or the other."""
    other = {"table_key": "type_key", "manifest_version": "published_dataset_version"}
    told = [{**row, **{other[name]: row[name] for name in other if name in row}} for row in rows]
    return {"tables": told, "datasets": told}


def _bytes(size: int) -> str:
    power = max((size.bit_length() - 1) // 10, 0)
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[min(power, 4)]
    return f"{size / 1024 ** min(power, 4):.{min(power, 1)}f} {unit}"


# optimize ------------------------------------------------------------------------------------------


def _upkeep_document(row: TableUpkeep) -> dict[str, Any]:
    return {
        **asdict(row),
        "indexes": list(row.indexes),
        "pending_indexes": [{**asdict(one), "property": one.column} for one in row.pending_indexes],
    }


def _show_upkeep(address: str, done: UpkeepResult) -> None:
    output.data(f"optimize {address} — {len(done.tables)} tables")
    width = max((len(row.table_key) for row in done.tables), default=0)
    for row in done.tables:
        output.data(f"  {row.table_key.ljust(width)}  {_upkeep_text(row)}")
        for one in row.pending_indexes:
            output.data(f"  {' ' * width}  ↳ index pending on {one.column}: {one.reason}")


def _upkeep_text(row: TableUpkeep) -> str:
    if row.skipped:
        heads = f", pin {row.manifest_version}, head {row.lance_head_version}" if row.lance_head_version else ""
        return f"skipped ({row.skipped}{heads})"
    if not row.committed:
        return "no-op"
    built = f", {len(row.indexes)} indexes" if row.indexes else ""
    return f"frags {row.fragments_removed} → {row.fragments_added}{built} ✓"


# cleanup -------------------------------------------------------------------------------------------


def _policy(keep: int | None, older_than: str | None) -> str:
    count = "commit" if keep in (0, 1) else f"{keep} commits"
    parts = [f"the last {count} of each branch"] if keep is not None else []
    parts += [f"commits younger than {older_than}"] if older_than is not None else []
    return f"would keep {' and '.join(parts)}; nothing was removed, give --confirm to remove the rest"


def _cleanup_document(address: str, keep: int | None, age: dt.timedelta | None, done: CleanupResult) -> dict[str, Any]:
    return {
        "uri": address,
        "keep_versions": keep,
        "older_than_secs": None if age is None else int(age.total_seconds()),
        "confirmed": done.confirmed,
        **_tables({**asdict(row), "forks_removed": list(row.forks_removed)} for row in done.tables),
        "temporary_files_removed": done.temporary.files,
        "temporary_bytes_removed": done.temporary.size,
    }


def _show_cleanup(address: str, done: CleanupResult) -> None:
    output.data(f"cleanup {address} — {len(done.tables)} tables{'' if done.confirmed else ' (preview)'}")
    width = max((len(row.table_key) for row in done.tables), default=0)
    for row in done.tables:
        output.data(f"  {row.table_key.ljust(width)}  {_cleanup_text(row)}")
    if done.temporary.files:
        output.data(f"  files of dead loads: {done.temporary.files}, {_bytes(done.temporary.size)}")


def _cleanup_text(row: TableCleanup) -> str:
    forks = f", forks {', '.join(row.forks_removed)}" if row.forks_removed else ""
    error = f" — failed: {row.error}" if row.error else ""
    return f"{row.old_versions_removed} versions, {_bytes(row.bytes_removed)}{forks}{error}"


# repair --------------------------------------------------------------------------------------------


def _repair_document(address: str, done: RepairResult, *, confirm: bool, force: bool) -> dict[str, Any]:
    version = next((one.manifest_version for one in done.commits if one.branch is None), None)
    return {
        "uri": address,
        "confirm": confirm,
        "force": force,
        "manifest_version": version,
        "graph_manifest_version": version,
        "commits": [one.commit_id for one in done.commits],
        **_tables({**asdict(row), "operations": list(row.operations)} for row in done.tables),
    }


def _show_repair(address: str, done: RepairResult) -> None:
    output.data(f"repair {address} — {len(done.tables)} tables")
    names = [row.table_key if row.branch == "main" else f"{row.table_key} on {row.branch}" for row in done.tables]
    for name, row in zip(names, done.tables, strict=True):
        output.data(f"  {name.ljust(max(map(len, names)))}  {_repair_text(row)}")
    if any(row.action == "preview" for row in done.tables):
        output.note("nothing was changed; give --confirm to keep what is proven harmless")
    if done.is_refused:
        output.note("some tables were refused: look at what wrote to them, then give --confirm --force to keep it")


def _repair_text(row: TableRepair) -> str:
    if row.action == "no_op":
        return "no drift"
    operations = f" by {', '.join(row.operations)}" if row.operations else ""
    error = f" ({row.error})" if row.error else ""
    moved = f"v{row.manifest_version} → v{row.lance_head_version}{operations}"
    return f"{row.classification}: {moved}{error}: {row.action}"


# doctor --------------------------------------------------------------------------------------------


def _show_report(report: HealthReport) -> None:
    branches = ", ".join(report.branches)
    output.data(f"doctor {report.uri} — {len(report.tables)} tables on {branches}")
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
    output.table(columns, rows)
    for finding in report.findings:
        style = "bold red" if finding.severity == "problem" else ""
        output.data(f"{finding.severity}: {finding.subject}: {finding.message}", style)
        output.data(f"  → {finding.run}")
    if not report.findings:
        output.data("healthy: there is nothing to do")


def _covered(rows: int, covered: list[int]) -> str:
    full = sum(one == rows for one in covered)
    return f"{full} of {len(covered)} full" if covered else "none"
