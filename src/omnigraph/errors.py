"""Every error a user can meet: its code, what happened, what to do next, and its HTTP status.

OmnigraphError                       the root; catch this to catch everything of ours
├── CompileError                     text in one of the two languages that cannot be used; has diagnostics
│   ├── SourceError                  not usable as text at all: encoding, NUL byte, size
│   ├── SchemaError                  .pg: syntax (P1), static rules (P2-P36), catalog (C1-C5)
│   └── QueryError                   .gq: syntax (Q000), typing (T0-T24), mixed mutation (D2)
├── QueryNotFoundError               the file holds no query of that name, or no single one to default to
├── ParameterError                   a query parameter is missing or does not fit its declared type
├── LiteralError                     a text that is not a value of its type (dates, date-times)
├── IdentityError                    a value that cannot identify an entity
├── EmbedderMissingError             a text must become a vector, and nothing is there to do it
├── PatternError                     the pattern of a @check cannot be used
├── FileAccessError                  a file on the command line that cannot be read or written
├── InputError                       data that cannot be loaded as a whole; names the file
│   ├── InputNotFoundError           there is nothing to load
│   ├── InputFormatError             a file of a format that is not known
│   ├── InputTypeError               a file of rows of which the type is not known
│   ├── InputColumnsError            a file whose columns are not those of its type
│   ├── InputMappingError            a document that maps files to types, and cannot be used
│   ├── InputUnreadableError         a file that cannot be read, or is damaged
│   └── InputChangedError            a file that changed while it was read
├── ExportError                      an export that cannot be made as it is asked for
│   ├── ExportTypeError              there is no type of that name
│   ├── ExportTargetError            where it should go, or in which format, does not do
│   └── ExportValueError             a value that no format can hold; names the entity
├── StorageError                     the place where the graph lives cannot do what was asked
│   ├── StorageDeniedError           not permitted
│   └── StorageFullError             no space left
├── UnsupportedUriError              a graph address of an unknown kind
├── GraphNotFoundError               no graph at the address
├── NotAGraphError                   something else is at the address
├── AlreadyInitializedError          a graph is there already
├── ReadOnlyError                    a write through a handle opened read-only
├── BranchNotFoundError              no such branch
├── CommitNotFoundError              no such commit
├── FormatError                      a graph written in a format this version does not work on
│   ├── FormatTooNewError            by a later version: upgrade
│   └── FormatTooOldError            by one too early to migrate from
├── CorruptGraphError                stored state that contradicts itself; nothing was changed
├── QueryKindError                   a read where a mutation is needed, or the other way round
├── PlacedError                      a query that does not suit the graph as it is; names the place in it
│   ├── ValueRejectedError           a value that does not fit the property it is for
│   └── ConstraintError              a change that would break a rule of the schema; has violations
├── LoadRejectedError                records that cannot be loaded; has violations
│   └── KeyConflictError             all of them because their ids are there already
├── ResourceLimitError               more in one change than is allowed
├── PreconditionFailedError          the branch is not at the commit that the caller expects
├── OutcomeUnknownError              a change that may become visible yet, or not
├── ConflictError                    somebody else's change came first; nothing of ours is visible
│   ├── ExpectedVersionMismatchError a table moved since it was read
│   ├── ContentionError              too many writers at once, after all retries
│   ├── DriftError                   a table was moved by something other than Omnigraph
│   ├── SchemaDriftError             the schema files and the graph disagree
│   └── GateTimeoutError             another writer held a lock for too long
├── RecoveryRequiredError            a write stopped half-way; its operation will be finished or undone
├── SidecarError                     a recovery record that cannot be read or acted on
├── JavaMissingError                 no Java, or one that is too old for Spark
└── SparkError                       Spark cannot start, or cannot finish its work
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

_CLIP = 100
_SHOWN_VIOLATIONS = 20
_ZERO_WIDTH = frozenset({"Mn", "Me", "Cf"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a source text: 1-based line and column (in characters), and the line itself.

    Of a long line `text` is the part around the place; `skipped` is how many characters stand before it.
    """

    file: str
    line: int
    column: int
    length: int
    text: str
    skipped: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def underlined(self) -> str:
        """Return the source line with carets under the place; a long line is clipped around it."""
        offset = self.column - 1 - self.skipped
        start = max(0, offset - _CLIP // 2) if len(self.text) > _CLIP else 0
        shown = "".join(char if char.isprintable() else " " for char in self.text[start : start + _CLIP])
        carets = min(self.length, len(shown) - (offset - start))
        pad = _width(shown[: offset - start])
        under = _width(shown[offset - start : offset - start + carets])
        gutter = str(self.line)
        return f"{gutter} | {shown}\n{' ' * len(gutter)} | {' ' * pad}{'^' * max(1, under)}"


def _width(text: str) -> int:
    """Terminal columns that `text` takes."""
    return sum(
        0 if unicodedata.category(char) in _ZERO_WIDTH else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing wrong with a source text."""

    code: str
    message: str
    place: Place
    hint: str | None = None
    expected: tuple[str, ...] = ()

    def headline(self) -> str:
        return f"{self.place}: {self.code}: {self.message}"

    def __str__(self) -> str:
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{self.headline()}\n{self.place.underlined()}{hint}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "length": self.place.length,
            "hint": self.hint,
            "expected": list(self.expected),
        }


class OmnigraphError(Exception):
    """Root of the tree. `code` is stable and meant for programs, `str()` is meant for people.

    A subclass declares the fields a program needs as annotations; they are given by keyword, become attributes,
    and make up `details()`.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str | None = None, **fields: Any) -> None:
        assert fields.keys() == set(_fields_of(type(self))), f"{type(self).__name__} takes {_fields_of(type(self))}"
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.__dict__.update(fields)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in _fields_of(type(self))}
        return _rebuild, (type(self), self.message, self.hint, fields)

    def details(self) -> dict[str, Any]:
        """Fields a program needs to act on this error, beyond its code and message."""
        return {name: getattr(self, name) for name in _fields_of(type(self))}


def _fields_of(cls: type[OmnigraphError]) -> tuple[str, ...]:
    """Name the declared fields, those of the base first."""
    declared = (name for owner in reversed(cls.__mro__) for name in vars(owner).get("__annotations__", ()))
    return tuple(name for name in dict.fromkeys(declared) if name not in ("code", "http_status"))


def _rebuild(cls: type[OmnigraphError], message: str, hint: str | None, fields: dict[str, Any]) -> OmnigraphError:
    return cls(message, hint=hint, **fields)


# The languages -------------------------------------------------------------------------------------


class CompileError(OmnigraphError):
    """Source text that cannot be used; `diagnostics` says why and where, first problem first."""

    code = "bad_source"
    http_status = 400
    diagnostics: tuple[Diagnostic, ...]

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        assert diagnostics, "a compile error without a diagnostic says nothing"
        first = diagnostics[0]
        super().__init__(first.message, hint=first.hint, diagnostics=tuple(diagnostics))

    def __str__(self) -> str:
        return "\n\n".join(str(diagnostic) for diagnostic in self.diagnostics)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.diagnostics,)

    def details(self) -> dict[str, Any]:
        return {"diagnostics": [diagnostic.to_dict() for diagnostic in self.diagnostics]}


class SourceError(CompileError):
    """The bytes are not usable source text: wrong encoding, a NUL character, too large."""

    code = "source_unreadable"


class SchemaError(CompileError):
    """A `.pg` schema that does not parse or breaks a static rule."""

    code = "schema_invalid"


class QueryError(CompileError):
    """A `.gq` query that does not parse or does not type-check."""

    code = "query_invalid"


class QueryNotFoundError(OmnigraphError):
    """The requested query is not in the file; `available` are those that are."""

    code = "query_not_found"
    http_status = 400
    available: list[str]


class ParameterError(OmnigraphError):
    """A query parameter is missing, or its value does not fit the declared type."""

    code = "parameter_invalid"
    http_status = 400
    parameter: str | None


class LiteralError(OmnigraphError):
    """A text that is not a value of its type."""

    code = "literal_invalid"
    http_status = 400


class IdentityError(OmnigraphError):
    """A value that cannot identify an entity."""

    code = "identity_invalid"
    http_status = 400


class QueryKindError(OmnigraphError):
    """The query reads where a mutation is needed, or changes the graph where a read is."""

    code = "query_kind"
    http_status = 400
    query: str


class EmbedderMissingError(OmnigraphError):
    """A text must become a vector, and nothing is configured that makes one of it."""

    code = "embedder_missing"
    http_status = 400
    property: str


class PatternError(OmnigraphError):
    """The pattern of a `@check` cannot be used."""

    code = "pattern_invalid"
    http_status = 400
    type_name: str
    property: str
    pattern: str


class FileAccessError(OmnigraphError):
    """A file named on the command line that cannot be read or written."""

    code = "file_unreadable"
    http_status = 400
    path: str


# Storage and the graph -----------------------------------------------------------------------------


class StorageError(OmnigraphError):
    """The storage refused or failed; `path` says where, `operation` what was tried."""

    code = "storage_failed"
    path: str
    operation: str


class StorageDeniedError(StorageError):
    """The storage does not permit the operation. Never taken for absence."""

    code = "storage_denied"


class StorageFullError(StorageError):
    """No space is left."""

    code = "storage_full"


class UnsupportedUriError(OmnigraphError):
    """The address of a graph is of a kind that cannot hold one."""

    code = "uri_unsupported"
    http_status = 400
    uri: str


class GraphNotFoundError(OmnigraphError):
    """There is no graph at the address."""

    code = "graph_not_found"
    http_status = 404
    uri: str


class NotAGraphError(OmnigraphError):
    """There is something at the address, but it is not a graph."""

    code = "not_a_graph"
    http_status = 400
    uri: str


class AlreadyInitializedError(OmnigraphError):
    """A graph, or part of one, is at the address already; nothing was written."""

    code = "already_initialized"
    http_status = 409
    uri: str


class ReadOnlyError(OmnigraphError):
    """The handle was opened read-only."""

    code = "read_only"
    http_status = 400


class BranchNotFoundError(OmnigraphError):
    """The graph has no branch of that name."""

    code = "branch_not_found"
    http_status = 404
    branch: str


class CommitNotFoundError(OmnigraphError):
    """No branch of the graph has a commit of that id."""

    code = "commit_not_found"
    http_status = 404
    commit_id: str


class FormatError(OmnigraphError):
    """The graph is in a storage format that this version does not work on."""

    code = "format_unsupported"
    http_status = 409
    found: int
    supported: int


class FormatTooNewError(FormatError):
    """A later version wrote the graph."""

    code = "format_too_new"


class FormatTooOldError(FormatError):
    """The graph is older than what can be migrated."""

    code = "format_too_old"


class CorruptGraphError(OmnigraphError):
    """Stored state contradicts itself. Nothing was changed."""

    code = "graph_corrupt"
    path: str


# Writing -------------------------------------------------------------------------------------------


class PlacedError(OmnigraphError):
    """A query that does not suit the graph as it is; `place` says where in it, if that is known."""

    code = "query_unsuitable"
    http_status = 400
    place: Place | None

    def __str__(self) -> str:
        if self.place is None:
            return super().__str__()
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{self.place}: {self.message}\n{self.place.underlined()}{hint}"

    def details(self) -> dict[str, Any]:
        place = self.place
        at = None if place is None else {"file": place.file, "line": place.line, "column": place.column}
        return {**super().details(), "place": at}


class ValueRejectedError(PlacedError):
    """A value does not fit the property it is for. Nothing was changed."""

    code = "value_rejected"
    type_name: str
    property: str


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that one entity would break.

    `rule` is what it breaks: required, enum, finite, range, check, unique, endpoint, cardinality; for input that is
    loaded also json, shape, type and key. `record` is the number of the statement or of the input record that brings
    the entity, from 0, if one does.
    """

    rule: str
    type_name: str | None
    entity_id: str | None
    properties: tuple[str, ...]
    message: str
    record: int | None = None
    hint: str | None = None
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}: " if self.line is not None else f"{self.file}: " if self.file else ""
        return f"{at}{self.message}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "rule": self.rule,
            "type": self.type_name,
            "id": self.entity_id,
            "properties": list(self.properties),
            "message": self.message,
        }


class ConstraintError(PlacedError):
    """The change would break a rule of the schema. Nothing was changed."""

    code = "constraint_violated"
    violations: tuple[Violation, ...]

    def details(self) -> dict[str, Any]:
        return {**super().details(), "violations": [violation.to_dict() for violation in self.violations]}


class LoadRejectedError(OmnigraphError):
    """Records that cannot be loaded; `violations` are all of them, in order. Nothing was changed."""

    code = "load_rejected"
    http_status = 400
    violations: tuple[Violation, ...]

    def __str__(self) -> str:
        shown = "\n".join(f"  {violation}" for violation in self.violations[:_SHOWN_VIOLATIONS])
        rest = len(self.violations) - _SHOWN_VIOLATIONS
        more = f"\n  and {rest:,} more" if rest > 0 else ""
        return f"{self.message}\n{shown}{more}" + (f"\nhint: {self.hint}" if self.hint else "")

    def details(self) -> dict[str, Any]:
        shown = self.violations[:_SHOWN_VIOLATIONS]
        return {"count": len(self.violations), "violations": [violation.to_dict() for violation in shown]}


class KeyConflictError(LoadRejectedError):
    """Records of an append whose ids are there already. Nothing was changed."""

    code = "key_conflict"
    http_status = 409


class ResourceLimitError(OmnigraphError):
    """There is more of something in one change than is allowed. Nothing was changed."""

    code = "resource_limit"
    http_status = 413
    resource: str
    limit: int
    actual: int


class PreconditionFailedError(OmnigraphError):
    """The branch is not at the commit that the caller named. Nothing was changed."""

    code = "precondition_failed"
    http_status = 412
    expected: str
    actual: str | None


class OutcomeUnknownError(OmnigraphError):
    """The change was prepared, but whether it took effect is not known yet: ask with `Graph.outcome`.

    Recovery finishes or undoes it. `operation_id` is the id of its commit, if it becomes one.
    """

    code = "outcome_unknown"
    http_status = 503
    operation_id: str


class ConflictError(OmnigraphError):
    """Somebody else's change came first. Nothing of this one is visible, unless the hint says that it may become so."""

    code = "conflict"
    http_status = 409


class ExpectedVersionMismatchError(ConflictError):
    """A table is not at the version that the operation was prepared on."""

    code = "version_conflict"
    table_key: str
    expected: int
    actual: int


class ContentionError(ConflictError):
    """Other writers came first each time; all retries are used up."""

    code = "contention"
    attempts: int


class DriftError(ConflictError):
    """A table's head is past its pin and no pending operation explains it."""

    code = "drift"
    table_key: str
    pin: int
    head: int


class SchemaDriftError(ConflictError):
    """The schema files of the graph do not belong together."""

    code = "schema_drift"
    path: str


class GateTimeoutError(ConflictError):
    """Another writer held a gate for too long; `holder` is who."""

    code = "gate_timeout"
    gate: str
    holder: str


class RecoveryRequiredError(OmnigraphError):
    """An operation stopped half-way. The next write or open finishes or undoes it."""

    code = "recovery_required"
    http_status = 503
    operation_id: str


class SidecarError(OmnigraphError):
    """A recovery record that cannot be read or acted on; it was left as it is."""

    code = "sidecar_unusable"
    path: str


# The pipeline --------------------------------------------------------------------------------------


class JavaMissingError(OmnigraphError):
    """Spark needs a Java that is not there; `found` is the version of the one that is, if there is one."""

    code = "java_missing"
    found: str | None


class SparkError(OmnigraphError):
    """Spark did not start, or gave up on its work; `detail` is what it says about it."""

    code = "spark_failed"
    detail: str


class InputError(OmnigraphError):
    """Data that cannot be loaded as a whole; `path` is the file, if it comes from one. Nothing was changed."""

    code = "input_invalid"
    http_status = 400
    path: str | None


class InputNotFoundError(InputError):
    """There is nothing to load at the path."""

    code = "input_not_found"


class InputFormatError(InputError):
    """The format of a file is not known."""

    code = "input_format"


class InputTypeError(InputError):
    """Which type the rows of a file are of is not known."""

    code = "input_type"


class InputColumnsError(InputError):
    """A file does not have the columns of its type; `columns` are those that it has."""

    code = "input_columns"
    columns: list[str]


class InputMappingError(InputError):
    """The document that maps files to types cannot be used."""

    code = "input_mapping"


class InputUnreadableError(InputError):
    """A file cannot be read, or is not what its name says."""

    code = "input_unreadable"


class InputChangedError(InputError):
    """A file is not the one that it was when the load began."""

    code = "input_changed"
    http_status = 409


class ExportError(OmnigraphError):
    """An export cannot be made as it is asked for."""

    code = "export_invalid"
    http_status = 400


class ExportTypeError(ExportError):
    """The graph has no type of that name."""

    code = "export_type"
    type_name: str


class ExportTargetError(ExportError):
    """The place cannot take the export, or not in this format; `path` is None for a stream."""

    code = "export_target"
    path: str | None


class ExportValueError(ExportError):
    """A stored value is one that cannot be exported, such as a number that is not finite."""

    code = "export_value"
    http_status = 500
    type_name: str
    entity_id: str
    property: str
