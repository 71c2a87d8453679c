"""Compare the file of a pipeline with the graph and its sources; each problem is at its place in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from omnigraph.api.pipelines import PipelineText, TypeEntry, in_order, parts_of
from omnigraph.errors import CompileError, Diagnostic, InputError, OptionError, PipelineFileError
from omnigraph.formats.batch import Declared
from omnigraph.formats.dialect import CsvDialect
from omnigraph.formats.files import find_files
from omnigraph.formats.fitting import chosen_columns, target_type
from omnigraph.formats.plain import plain_format
from omnigraph.formats.sources import declared_named
from omnigraph.lang import Source, lint_queries
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.lang.source import did_you_mean


def check_pipeline(text: PipelineText, catalog: Catalog, columns: Mapping[str, Sequence[str]]) -> None:
    """Raise PipelineFileError with all problems. `columns` are those of the sources that are known."""
    problems = [
        *_sources(text),
        *(one for at in range(len(text.document.load)) for one in _entry(text, at, catalog, columns)),
        *_checks(text, catalog),
        *_follow_ups(text, catalog),
    ]
    if problems:
        raise PipelineFileError.of(in_order(problems))


def _sources(text: PipelineText) -> Iterator[Diagnostic]:
    for name, source in text.document.sources.items():
        at = ("sources", name)
        try:
            CsvDialect.of(source.csv)
        except OptionError as error:
            yield text.problem(error.message, *at, "csv", error.option.removeprefix("csv."), hint=error.hint)
        if not source.is_local:
            continue
        for number, path in enumerate(source.path or ()):
            try:
                files, _ = find_files(text.address(path))
            except InputError as error:
                if source.incremental is None:  # of files that come and go, there may be none
                    yield text.problem(error.message, *at, "path", number, hint=error.hint)
                continue
            unknown = next((one.uri for one in files if not (source.format or plain_format(one.uri))), None)
            if unknown:
                hint = "give `format`: csv, jsonl, parquet, or one of Spark"
                yield text.problem(f"cannot tell the format of {unknown}", *at, "path", number, hint=hint)


def _entry(
    text: PipelineText, number: int, catalog: Catalog, columns: Mapping[str, Sequence[str]]
) -> Iterator[Diagnostic]:
    entry, at = text.document.load[number], ("load", number)
    declared = declared_named(entry.type, catalog)
    if declared is None:
        hint = did_you_mean(entry.type, [*catalog.nodes, *catalog.edges])
        yield text.problem(f"the graph has no type '{entry.type}'", *at, "type", hint=hint)
        return
    known = columns.get(entry.source) or None  # an empty file says nothing
    for name in entry.columns or ():
        if target_type(declared, name) is None:
            hint = did_you_mean(name, declared.properties)
            yield text.problem(f"{declared.name} has no property '{name}'", *at, "columns", name, "", hint=hint)
    yield from _absent(text, number, declared, known)
    if known is not None:
        yield from _unknown_columns(text, number, entry, known)
    has_id = "id" in (entry.columns or known or ())
    if entry.latest_by is not None and not (isinstance(declared, NodeType) and declared.key) and not has_id:
        message = f"rows of {declared.name} have no key by which the latest could be found"
        yield text.problem(message, *at, "latest_by", hint="give `id` a value")


def _absent(text: PipelineText, number: int, declared: Declared, known: Sequence[str] | None) -> Iterator[Diagnostic]:
    """Report what a type needs and does not get."""
    entry = text.document.load[number]
    if entry.columns is None and known is None:
        return
    given = set(chosen_columns(entry, known or (), declared))
    needed = [name for name, one in declared.properties.items() if not one.type.nullable]
    if isinstance(declared, EdgeType):
        given |= {"from"} & ({"from"} if "src" in given else set()) | ({"to"} if "dst" in given else set())
        needed = ["from", "to", *needed]
    missing = [name for name in needed if name not in given]
    if missing:
        what = ", ".join(f"'{name}'" for name in missing)
        place: tuple[str, ...] = ("columns", "") if entry.columns is not None else ("from",)
        yield text.problem(f"{declared.name} needs {what}", "load", number, *place, hint="map a column to it")


def _unknown_columns(text: PipelineText, number: int, entry: TypeEntry, known: Sequence[str]) -> Iterator[Diagnostic]:
    wanted: list[tuple[str, tuple[str | int, ...]]] = []
    for name, one in (entry.columns or {}).items():
        at: tuple[str | int, ...] = ("load", number, "columns", name)
        wanted += [(one.column, at)] if one.column is not None else []
        wanted += [(column, at) for _, column in parts_of(one.text or "") if column]
    wanted += [(entry.latest_by, ("load", number, "latest_by"))] if entry.latest_by else []
    increment = text.document.sources[entry.source].incremental
    if increment and increment.watermark:
        wanted.append((increment.watermark, ("sources", entry.source, "incremental")))
    for column, place in wanted:
        if column not in known and column.partition(".")[0] not in known:
            hint = did_you_mean(column, known) or f"its columns are {', '.join(known)[:200]}"
            yield text.problem(f"the source '{entry.source}' has no column '{column}'", *place, hint=hint)


def _checks(text: PipelineText, catalog: Catalog) -> Iterator[Diagnostic]:
    for name, query in text.document.quality.checks.items():
        at = ("quality", "checks", name)
        try:
            report = lint_queries(Source(query, f"the check {name}"), catalog, {})
        except CompileError as error:
            yield text.problem(f"the check '{name}': {error.message}", *at, hint=error.hint)
            continue
        for found in (one for one in report.results if one.error):
            yield text.problem(f"the check '{name}': {found.error}", *at)


def _follow_ups(text: PipelineText, catalog: Catalog) -> Iterator[Diagnostic]:
    then = text.document.then
    for number, name in enumerate(one for one in then.embed if one != "*"):
        node = catalog.nodes.get(name)
        if node is None or not any(one.embed for one in node.properties.values()):
            message = f"'{name}' is no node type with an `@embed` property"
            yield text.problem(message, "then", "embed", number, hint=did_you_mean(name, catalog.nodes))
    for number, name in enumerate((then.export.types if then.export else None) or ()):
        if declared_named(name, catalog) is None:
            hint = did_you_mean(name, [*catalog.nodes, *catalog.edges])
            yield text.problem(f"the graph has no type '{name}'", "then", "export", "types", number, hint=hint)
