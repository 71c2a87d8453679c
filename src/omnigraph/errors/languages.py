"""Schema and query text, and the values in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from omnigraph.errors.base import Diagnostic, OmnigraphError


class CompileError(OmnigraphError, code="bad_source", status=400):
    """The source text does not compile; `diagnostics` lists the problems in order."""

    diagnostics: tuple[Diagnostic, ...]

    @classmethod
    def of(cls, diagnostics: Sequence[Diagnostic]) -> Self:
        """Make the error for one or more diagnostics; the first one gives message and hint."""
        first = diagnostics[0]
        return cls(first.message, hint=first.hint, diagnostics=tuple(diagnostics))

    def __str__(self) -> str:
        return "\n\n".join(str(diagnostic) for diagnostic in self.diagnostics)

    def details(self) -> dict[str, Any]:
        return {"diagnostics": [diagnostic.to_dict() for diagnostic in self.diagnostics]}


class SourceError(CompileError, code="source_unreadable"):
    """The bytes are not source text: wrong encoding, a NUL character, or too large."""


class SchemaError(CompileError, code="schema_invalid"):
    """A `.pg` schema does not parse or breaks a static rule."""


class QueryError(CompileError, code="query_invalid"):
    """A `.gq` query does not parse or does not type-check."""


class QueryNotFoundError(OmnigraphError, code="query_not_found", status=400):
    """The source has no query of that name; `available` lists the names it has."""

    available: list[str]


class QueryKindError(OmnigraphError, code="query_kind", status=400):
    """A read was given where a mutation is expected, or a mutation where a read is."""

    query: str


class ParameterError(OmnigraphError, code="parameter_invalid", status=400):
    """A query parameter is missing, or its value does not fit the declared type."""

    parameter: str | None


class LiteralError(OmnigraphError, code="literal_invalid", status=400):
    """A text is not a valid value of its type."""


class IdentityError(OmnigraphError, code="identity_invalid", status=400):
    """A value cannot be used as the id of an entity."""


class PatternError(OmnigraphError, code="pattern_invalid", status=400):
    """The regular expression of a `@check` cannot be used."""

    type_name: str
    property: str
    pattern: str
