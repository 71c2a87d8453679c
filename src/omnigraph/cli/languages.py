"""Commands for the two languages: show, plan and change a schema, check queries, format files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.api.documents import SCHEMA_APPLIED, SCHEMA_PLAN
from omnigraph.api.results import SchemaResult
from omnigraph.cli import output
from omnigraph.cli.address import Scope, Target
from omnigraph.cli.command import Branch, DryRun, Message, Uri, argument, command, option, switch
from omnigraph.cli.output import Line, Lines
from omnigraph.core.refs import MAIN
from omnigraph.errors import CompileError, FileAccessError, OmnigraphError
from omnigraph.lang import (
    Catalog,
    DropMode,
    LintReport,
    Source,
    compile_schema,
    format_queries,
    format_schema,
    lint_queries,
    plan_schema,
)
from omnigraph.lang.schema_steps import SchemaPlan
from omnigraph.lang.source import MAX_SOURCE_BYTES

if TYPE_CHECKING:
    from omnigraph.formats.inference import InferredSchema

SchemaFile = Annotated[str | None, option("The new schema.", "FILE", "--schema")]
DataLoss = Annotated[bool, switch("Drop for good: dropped data is removed from older commits as well.")]


@command("schema plan")
def plan(
    scope: Scope,
    uri: Uri = None,
    *,
    schema: SchemaFile = None,
    accepted: Annotated[str | None, option("A schema file to compare instead of a graph.", "FILE", "--from")] = None,
    desired: Annotated[str | None, option("With --from: the new schema.", "FILE", "--to")] = None,
    allow_data_loss: DataLoss = False,
    branch: Branch = None,
) -> None:
    """Show the steps from one schema to another, and whether each is supported.

    Exits with 0 even if the plan is not supported: the answer is in the output.
    """
    if accepted is None and desired is None:
        target = scope.at(uri)
        preview = _preview(target, _given(schema), branch or MAIN, allow_data_loss=allow_data_loss)
        scope.emit(SCHEMA_PLAN.write(preview, {"uri": target.uri}), _previewed(target.uri, preview))
        return
    if accepted is None or desired is None or (uri, scope.flags.store, schema) != (None, None, None):
        message = "compare two files with --from and --to, without other options"
        raise typer.BadParameter(message, param_hint="--to")
    drops = DropMode.HARD if allow_data_loss else DropMode.SOFT
    found = plan_schema(compile_schema(Source.read(accepted)), compile_schema(Source.read(desired)), drops)
    scope.emit({"from": accepted, "to": desired, **found.to_dict()}, _steps(f"{accepted} -> {desired}", found))


@command("schema apply")
def apply(
    target: Target,
    *,
    schema: SchemaFile = None,
    branch: Branch = None,
    allow_data_loss: DataLoss = False,
    message: Message = None,
    dry_run: DryRun = False,
) -> None:
    """Change the schema of a branch in one commit. A merge combines the schemas of two branches."""
    file, actor = _given(schema), target.actor
    if dry_run:
        done = _preview(target, file, branch or MAIN, allow_data_loss=allow_data_loss)
    else:
        if allow_data_loss:
            target.ask_before_removing(f"Drop for good from {target.uri}?")
        given: dict[str, Any] = {"allow_data_loss": allow_data_loss, "actor": actor, "message": message}
        done = target.write_aloud().apply_schema(Path(file), branch=branch or MAIN, **given)
    target.emit(SCHEMA_APPLIED.write(done, {"uri": target.uri}), _applied(target.uri, done))
    if not done.plan.supported:
        raise typer.Exit(1)


@command("schema show")
@command("schema get", hidden=True)
def show(target: Target) -> None:
    """Print the schema of a graph as it was written."""
    text = target.read().schema
    # Not through `emit`, which ends each line: the bytes are those of the file.
    if target.scope.as_json:
        output.document({"schema_source": text})
    else:
        output.raw(text)


@command("schema infer")
def infer(
    scope: Scope,
    files: Annotated[list[str], argument("CSV, JSONL or Parquet files, directories or patterns.", "FILE")],
    *,
    out: Annotated[
        str | None, option("Write the schema to this file; without it, print it.", "FILE", "--out", "-o")
    ] = None,
    mapping: Annotated[
        str | None, option("Write the mapping for `load --map` (.json), or a pipeline (.yaml).", "FILE", "--map")
    ] = None,
) -> None:
    """Infer a schema from data: types, keys, enums, dates, and references between files as edges."""
    from omnigraph.formats.inference import infer as inferred  # noqa: PLC0415

    found = inferred(files)
    for path, text in ((out, found.schema), (mapping, _mapping_text(found, out, mapping))):
        if path is not None:
            _write(path, text)
    written = [f"wrote {path}" for path in (out, mapping) if path]
    lines = [*found.report, *written] if out else [found.schema.rstrip("\n"), *written]
    scope.emit({"schema_source": found.schema, "mapping": found.mapping, "report": list(found.report)}, lines)


def _mapping_text(found: InferredSchema, out: str | None, path: str | None) -> str:
    """Return what `--map` writes: a pipeline for a graph that is named like the schema, or a mapping."""
    if path is None or not path.endswith((".yaml", ".yml")):
        return json.dumps(found.mapping, indent=2) + "\n"
    folder, graph = Path(path).absolute().parent, Path(out or path).stem
    return found.pipeline(Path(path).stem, graph, os.fspath(folder))


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileAccessError(f"cannot write {path}: {error.strerror}", path=path) from error


def _given(schema: str | None) -> str:
    if schema is None:
        raise typer.BadParameter("give the new schema", param_hint="--schema")
    return schema


def _preview(target: Target, file: str, branch: str, *, allow_data_loss: bool) -> SchemaResult:
    return target.read().plan_schema(Path(file), allow_data_loss=allow_data_loss, branch=branch)


def _applied(uri: str, done: SchemaResult) -> Lines:
    yield from _previewed(uri, done)
    yield f"applied: {'yes' if done.applied else 'no'}"
    yield f"manifest_version: {done.manifest_version}"


def _steps(subject: str, found: SchemaPlan) -> Lines:
    yield f"schema plan for {subject}"
    yield Line(f"supported: {'yes' if found.supported else 'no'}", "green" if found.supported else "red")
    yield from (f"- {step}" for step in found.steps)
    if not found.steps:
        yield "no schema changes"


def _previewed(uri: str, done: SchemaResult) -> Lines:
    """Show the steps, how many entities they touch, and until when dropped data stays readable."""
    yield from _steps(uri, done.plan)
    for key, count in done.rows.items():
        yield f"touches {key}: {count} {'entity' if count == 1 else 'entities'}"
    modes = {step.get("mode") for step in done.plan.to_dict()["steps"]}
    if "soft" in modes:
        yield Line("dropped data stays readable at earlier commits until a cleanup removes them", is_note=True)
    if "hard" in modes:
        text = "dropped data cannot be read again, and neither can earlier commits of the types it belongs to"
        yield Line(text, is_note=True)


@command("lint")
def lint(
    scope: Scope,
    uri: Uri = None,
    *,
    query: Annotated[str, option("The .gq file to check.", "FILE")],
    schema: Annotated[str | None, option("The .pg schema to check against.", "FILE")] = None,
) -> None:
    """Check every query of a file: syntax, types, and legal but suspicious code.

    Exits with 1 if a query has an error; warnings do not count.
    """
    catalog, origin = _catalog(scope, uri, schema)
    # By the roots of the project, as `query` finds files, so that both mean the same one.
    report = lint_queries(Source.read(scope.project.query_file(query)), catalog, origin)
    scope.emit(report.to_dict, _linted(report))
    if not report.ok:
        raise typer.Exit(1)


def _linted(report: LintReport) -> Lines:
    for result in report.results:
        if result.error:
            yield Line(f"ERROR query `{result.name}`: {result.error}", "red")
        else:
            yield Line(f"OK    query `{result.name}` ({result.kind})", "green")
        for warning in result.warnings:
            yield Line(f"WARN  query `{result.name}`: {warning}", "yellow")
    for finding in report.findings:
        label, style = {"error": ("ERROR", "red"), "warning": ("WARN ", "yellow")}[finding.severity]
        yield Line(f"{label} {finding.diagnostic or f'{finding.code}: {finding.message}'}", style)
    counts = f"{report.errors} error(s), {report.warnings} warning(s), {report.infos} info item(s)"
    yield f"INFO  Lint complete: {len(report.results)} queries processed ({counts})"


def _catalog(scope: Scope, uri: str | None, schema: str | None) -> tuple[Catalog, dict[str, str]]:
    """The catalog to check against, and its origin. A file wins over a graph."""
    if schema is not None:
        return compile_schema(Source.read(schema)), {"kind": "file", "path": schema}
    target = scope.find(uri)
    if target is None:
        hint = "pass --schema FILE, or the address of a graph"
        raise FileAccessError("no schema to check against", path="", hint=hint)
    graph = target.read()
    return graph.catalog, {"kind": "graph", "uri": graph.uri}


class Language(StrEnum):
    PG = "pg"
    GQ = "gq"


_FORMATTERS = {Language.PG: format_schema, Language.GQ: format_queries}


@dataclass(frozen=True, slots=True)
class FormattedFile:
    """The outcome for one file."""

    path: str
    changed: bool = False
    problem: OmnigraphError | None = None

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"path": self.path, "changed": self.changed}
        if self.problem:
            document["error"] = {"code": self.problem.code, "message": self.problem.message, **self.problem.details()}
        return document


@command("fmt")
def fmt(
    scope: Scope,
    paths: Annotated[list[str], argument("Files or directories; `-` reads stdin.", "PATH")],
    *,
    check: Annotated[bool, switch("Change nothing; exit with 1 if a file would change.")] = False,
    lang: Annotated[Language | None, switch("The language of stdin or of files without a suffix.")] = None,
) -> None:
    """Format .pg and .gq files in place. Comments and meaning are kept.

    A file that does not parse is reported and left unchanged; the exit code is then 1.
    """
    if "-" in paths:
        if len(paths) > 1 or scope.as_json:
            raise typer.BadParameter("stdin is formatted alone, to stdout", param_hint="-")
        _format_stdin(lang, check=check)
        return
    results = [_format_file(path, lang, check=check) for path in _files(paths)]
    # All problems at once, after the files that could be formatted.
    for result in results:
        if result.problem:
            output.error(result.problem)
    document = {"check": check, "changed": sum(one.changed for one in results)}
    scope.emit({**document, "files": [one.to_dict() for one in results]}, _formatted(results, check=check))
    if any(result.problem or (check and result.changed) for result in results):
        raise typer.Exit(1)


def _formatted(files: list[FormattedFile], *, check: bool) -> Lines:
    changed = [one.path for one in files if one.changed]
    yield from (f"{'would format' if check else 'formatted'} {path}" for path in changed)
    failed = sum(one.problem is not None for one in files)
    verb = "would change" if check else "changed"
    yield Line(f"{len(files)} file(s), {len(changed)} {verb}, {failed} failed", is_note=True)


def _format_stdin(lang: Language | None, *, check: bool) -> None:
    if lang is None:
        raise typer.BadParameter("stdin has no file name; give its language", param_hint="--lang")
    # One byte more than allowed, so that a text that is too long is refused and not cut.
    source = Source.decode(sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1), "<stdin>")
    text = _FORMATTERS[lang](source)
    if not check:
        output.raw(text)
    elif text != source.text:
        output.data("would format <stdin>")
        raise typer.Exit(1)


def _files(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if Path(path).is_dir():
            found = (file for suffix in Language for file in Path(path).rglob(f"*.{suffix}") if file.is_file())
            yield from sorted(map(str, found))
        else:
            yield path


def _format_file(path: str, lang: Language | None, *, check: bool) -> FormattedFile:
    try:
        text = _FORMATTERS[_language(path, lang)](Source.read(path))
        # Bytes, because a byte order mark or CRLF is a difference that the text does not show.
        changed = text.encode() != Path(path).read_bytes()
        if changed and not check:
            _replace(Path(path), text)
    except (CompileError, FileAccessError) as problem:
        return FormattedFile(path, problem=problem)
    return FormattedFile(path, changed)


def _language(path: str, lang: Language | None) -> Language:
    suffix = Path(path).suffix.removeprefix(".")
    if suffix in list(Language):
        return Language(suffix)
    if lang is None:
        hint = "name it *.pg or *.gq, or pass --lang"
        raise FileAccessError(f"cannot tell the language of {path}", path=path, hint=hint)
    return lang


def _replace(path: Path, text: str) -> None:
    """Replace the file whole or not at all, even if the process dies on the way."""
    # The file behind a link is replaced, and the link stays.
    target = path.resolve()
    # In the same directory: a rename across file systems is a copy, which can stop half-way.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.write_text(text, encoding="utf-8", newline="")
            temporary.chmod(target.stat().st_mode & 0o7777)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileAccessError(f"cannot write {path}: {reason}", path=str(path), hint="check its permissions") from error
