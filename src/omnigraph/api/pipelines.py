"""The file of a pipeline: its keys as models, its JSON schema, and problems at the place where they are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from omnigraph.core.refs import MAIN
from omnigraph.errors import Diagnostic, PipelineFileError
from omnigraph.lang.source import Rejection, Source, Span, did_you_mean

CODE = "F1"
RUNS = "__pipelines"  # below the address of a graph: the records of runs
Path_: TypeAlias = tuple[str | int, ...]  # the keys and numbers that lead to a value
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


def _as_column(given: Any) -> Any:
    return {"column": given} if isinstance(given, str) else given


def _as_increment(given: Any) -> Any:
    return {"by": given} if isinstance(given, str) else given


def _as_types(given: Any) -> Any:
    return ["*"] if given is True else [] if given is False else given


class Increment(_Part):
    """What of a source was loaded before: its files, its rows up to a value, or its changes up to a commit."""

    by: Literal["files", "version"] | None = None
    watermark: str | None = None


class SourceEntry(_Part):
    """Rows: files, a table of any format of Spark, or a query over the sources before it."""

    path: Annotated[list[str] | None, BeforeValidator(_as_list, json_schema_input_type=str | list[str])] = None
    sql: str | None = None
    format: str | None = None
    options: dict[str, str | int | float | bool] = {}
    csv: dict[str, Any] | None = None
    incremental: Annotated[
        Increment | None,
        BeforeValidator(_as_increment, json_schema_input_type=Literal["files", "version"] | Increment | None),
    ] = None

    @property
    def is_local(self) -> bool:
        """Whether the rows can be read without Spark."""
        return self.path is not None and not self.options and self.format in (None, "csv", "jsonl", "parquet")


class ColumnEntry(_Part):
    """The value of a property: a column, a constant, a text with columns in braces, or an expression of Spark SQL."""

    column: str | None = None
    value: str | int | float | bool | None = None
    text: str | None = None
    sql: str | None = None


class TypeEntry(_Part):
    """The rows of one type, made of the rows of a source."""

    type: str
    source: str = Field(alias="from")
    columns: (
        dict[str, Annotated[ColumnEntry, BeforeValidator(_as_column, json_schema_input_type=str | ColumnEntry)]] | None
    ) = None
    where: str | None = None
    latest_by: str | None = None
    distinct: bool = False


class QualityEntry(_Part):
    max_bad: int | None = Field(default=None, ge=0)
    rejects: str | None = None
    checks: dict[str, str] = {}


class TargetEntry(_Part):
    graph: str
    branch: str = MAIN
    mode: Literal["append", "merge", "overwrite"] = "merge"
    actor: str | None = None


class ExportEntry(_Part):
    path: str
    format: Literal["jsonl", "csv", "parquet"] = "jsonl"
    types: list[str] | None = None


class FollowUps(_Part):
    """What is done after the load, in this order."""

    embed: Annotated[list[str], BeforeValidator(_as_types, json_schema_input_type=bool | list[str])] = []
    merge: str | None = None
    optimize: bool = False
    export: ExportEntry | None = None


class PipelineDocument(_Part):
    """A pipeline: sources, the types that are made of them, the graph, and what is done afterwards."""

    pipeline: str
    target: TargetEntry
    sources: dict[str, SourceEntry] = Field(min_length=1)
    load: list[TypeEntry] = Field(min_length=1)
    quality: QualityEntry = QualityEntry()
    then: FollowUps = FollowUps()

    @property
    def needs_spark(self) -> str | None:
        """Why only Spark can run it; None if this process can, too."""
        for name, source in self.sources.items():
            if not source.is_local:
                return f"the source '{name}' is {'a query' if source.sql else f'of the format {source.format}'}"
        for entry in self.load:
            if entry.where is not None:
                return f"the rows of {entry.type} have a condition in SQL"
            if any(one.sql is not None for one in (entry.columns or {}).values()):
                return f"a column of {entry.type} is an expression of SQL"
        return None

    @property
    def used(self) -> dict[str, SourceEntry]:
        """The sources that types are made of directly; others are there for the queries over them."""
        named = dict.fromkeys(entry.source for entry in self.load)
        return {name: self.sources[name] for name in named if name in self.sources}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the file, for editors and other programs."""
    found = PipelineDocument.model_json_schema(mode="validation", by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Omnigraph pipeline", **found}


@dataclass(frozen=True)
class PipelineText:
    """A file that was read: its document, and where each of its values stands."""

    source: Source
    document: PipelineDocument
    places: Mapping[Path_, Span]

    @property
    def folder(self) -> Path:
        return Path(self.source.file).absolute().parent

    def address(self, given: str) -> str:
        """Return a path of the file, which is relative to its directory, as an address."""
        return given if "://" in given else os.fspath(self.folder / given)

    def problem(self, message: str, *path: str | int, hint: str | None = None) -> Diagnostic:
        return _problem(self.source, self.places, message, path, hint)


def read_pipeline(file: str | os.PathLike[str]) -> PipelineText:
    """Read the file of a pipeline, or raise PipelineFileError with all of its problems, each at its place."""
    source = Source.read(os.fspath(file))
    places = dict[Path_, Span]()
    try:
        node = yaml.compose(source.text, Loader=yaml.SafeLoader)
        repeated = [] if node is None else list(_walk(node, (), places, frozenset()))
        found = yaml.safe_load(source.text)
    except yaml.MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark  # where a list begins, rather than where it should have ended
        at = mark.index if mark else 0
        message = f"not YAML: {' '.join(part for part in (error.problem, error.context) if part)}"
        raise _refused(source, [Rejection(CODE, message, Span(at, at + 1))]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-02-30
        raise _refused(source, [Rejection(CODE, f"not YAML: {error}", Span(0, 1))]) from None
    if repeated:
        raise PipelineFileError.of([_problem(source, places, "this key is given twice", one, None) for one in repeated])
    try:
        document = PipelineDocument.model_validate(found)
    except ValidationError as error:
        raise PipelineFileError.of(in_order(_invalid(source, places, one) for one in error.errors())) from None
    text = PipelineText(source, document, places)
    if wrong := list(_contradictions(text)):
        raise PipelineFileError.of(in_order(wrong))
    return text


def in_order(problems: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return problems in the order of the file, one for each place, where alternatives may report several."""
    found = {(one.place.line, one.place.column): one for one in problems}
    return [found[at] for at in sorted(found)]


def _refused(source: Source, problems: list[Rejection]) -> PipelineFileError:
    return PipelineFileError.of([source.diagnostic(one) for one in problems])


def _walk(node: yaml.Node, path: Path_, places: dict[Path_, Span], above: frozenset[int]) -> Iterator[Path_]:
    """Note where each value stands; yield the paths of keys that occur twice, which YAML would not mind."""
    places[path] = Span(node.start_mark.index, max(node.end_mark.index, node.start_mark.index + 1))
    if id(node) in above:
        message = "a value that contains itself"
        raise yaml.MarkedYAMLError(problem=message, problem_mark=node.start_mark)
    inside = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            if here in places:
                places[here] = Span(key.start_mark.index, key.end_mark.index)
                yield here
                continue
            yield from _walk(value, here, places, inside)
            places[(*here, "")] = Span(key.start_mark.index, key.end_mark.index)  # of the key itself
    elif isinstance(node, yaml.SequenceNode):
        for at, value in enumerate(node.value):
            yield from _walk(value, (*path, at), places, inside)


def _problem(source: Source, places: Mapping[Path_, Span], message: str, path: Path_, hint: str | None) -> Diagnostic:
    """Make a diagnostic at a path, or at the nearest value around it."""
    while path not in places and path:
        path = path[:-1]
    span = places.get(path, Span(0, 1))
    # Of a mapping or a list of many lines, the first is shown.
    line_end = source.text.find("\n", span.start)
    end = span.end if line_end < 0 else min(span.end, line_end)
    return source.diagnostic(Rejection(CODE, message, Span(span.start, max(end, span.start + 1)), hint=hint))


def _invalid(source: Source, places: Mapping[Path_, Span], found: Any) -> Diagnostic:
    path: Path_ = ()
    for part in found["loc"]:
        # The names of alternatives are no parts of the file.
        path = (*path, part) if (*path, part) in places else path
    name = found["loc"][-1] if found["loc"] else ""
    match found["type"]:
        case "missing":
            return _problem(source, places, f"`{name}` is missing", path, None)
        case "extra_forbidden":
            return _problem(source, places, f"`{name}` is unknown", (*path, ""), _known(found["loc"]))
        case "literal_error":
            message = f"{found['input']!r:.60} is not one of {found['ctx']['expected']}"
            return _problem(source, places, message, path, None)
    return _problem(source, places, f"{found['msg'][:1].lower()}{found['msg'][1:]}", path, None)


_MODELS: dict[str, type[_Part]] = {
    "target": TargetEntry,
    "quality": QualityEntry,
    "then": FollowUps,
    "export": ExportEntry,
    "incremental": Increment,
    "load": TypeEntry,
    "sources": SourceEntry,
    "columns": ColumnEntry,
}


def _known(place: Path_) -> str | None:
    """Return a hint for an unknown key."""
    model = next((_MODELS[str(one)] for one in reversed(place[:-1]) if one in _MODELS), PipelineDocument)
    names = [field.alias or name for name, field in model.model_fields.items()]
    return did_you_mean(str(place[-1]), names) or f"use {', '.join(names)}"


# What the keys of a file say together --------------------------------------------------------------


def _contradictions(text: PipelineText) -> Iterator[Diagnostic]:
    document = text.document
    if not _NAME.fullmatch(document.pipeline):
        message = f"{document.pipeline!r:.60} cannot be the name of a pipeline"
        yield text.problem(message, "pipeline", hint="use letters, digits, `_`, `-` and `.`, up to 100")
    for name, source in document.sources.items():
        yield from _wrong_source(text, name, source)
    for at, entry in enumerate(document.load):
        yield from _wrong_type(text, at, entry)
    target, then = document.target, document.then
    if then.merge is not None and then.merge == target.branch:
        yield text.problem(f"the data is loaded into '{target.branch}' already", "then", "merge")
    if document.quality.checks and then.merge is None:
        message = "checks decide whether a branch is merged, and none is"
        yield text.problem(message, "quality", "checks", "", hint="set `target.branch`, and `then.merge: main`")
    incremental = any(source.incremental for source in document.used.values())
    if target.mode == "overwrite" and incremental:
        message = "mode overwrite would leave only what is new in the sources"
        yield text.problem(message, "target", "mode", hint="use merge, or leave out `incremental`")


def _wrong_source(text: PipelineText, name: str, source: SourceEntry) -> Iterator[Diagnostic]:
    at = ("sources", name)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        yield text.problem(f"{name!r:.60} cannot be the name of a source", *at, "", hint="use letters, digits and `_`")
    if source.sql is not None and (source.path or source.format or source.options):
        yield text.problem("a source is a query or something that is read, not both", *at, "sql")
    if source.sql is None and source.path is None and source.format is None:
        hint = "give `path`, `sql`, or a `format` with `options`"
        yield text.problem("the source has nothing to read", *at, "", hint=hint)
    if source.csv is not None and source.format not in (None, "csv"):
        yield text.problem(f"`csv` does not apply to the format {source.format}", *at, "csv", "")
    if source.incremental is None:
        return
    found = source.incremental
    if (found.by is None) == (found.watermark is None):
        yield text.problem("give `files`, `version`, or `{watermark: COLUMN}`", *at, "incremental")
    if found.by == "files" and not source.is_local:
        yield text.problem("files are counted of csv, jsonl and parquet", *at, "incremental")
    if found.by == "version" and source.format != "omnigraph":
        yield text.problem("only the format omnigraph has versions", *at, "incremental", hint="use a watermark")


def _wrong_type(text: PipelineText, at: int, entry: TypeEntry) -> Iterator[Diagnostic]:
    sources = text.document.sources
    if entry.source not in sources:
        hint = did_you_mean(entry.source, sources)
        yield text.problem(f"there is no source '{entry.source}'", "load", at, "from", hint=hint)
    if entry.latest_by is not None and entry.distinct:
        yield text.problem("`latest_by` leaves one row of each key already", "load", at, "distinct")
    for name, column in (entry.columns or {}).items():
        given = column.model_fields_set
        if len(given) != 1:
            hint = "give one of column, value, text and sql"
            yield text.problem(f"`{name}` has no value, or several", "load", at, "columns", name, hint=hint)
        if column.text is not None and not _is_template(column.text):
            message = f"{column.text!r:.60} has a brace that is not closed"
            yield text.problem(message, "load", at, "columns", name, hint="write `{column}`; a brace itself is `{{`")


def _is_template(given: str) -> bool:
    try:
        list(parts_of(given))
    except ValueError:
        return False
    return True


def parts_of(given: str) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of a text with columns in braces: a text, and the column after it; raise ValueError."""
    for text, column, format_, conversion in Formatter().parse(given):
        if column is not None and (not column or format_ or conversion):
            raise ValueError(given)
        yield text, column


def schema_text() -> str:
    return json.dumps(json_schema(), indent=2) + "\n"
