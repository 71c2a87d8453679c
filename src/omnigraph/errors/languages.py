"""Text in one of the two languages, and values in it, that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from omnigraph.errors.base import Diagnostic, OmnigraphError


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

    @classmethod
    def rebuilt(cls, message: str, hint: str | None, fields: dict[str, Any]) -> Self:  # noqa: ARG003 - the first says it
        return cls(fields["diagnostics"])

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


class LibraryMissingError(OmnigraphError):
    """A result is wanted as something of a library that is not installed."""

    code = "library_missing"
    http_status = 500
    library: str


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
