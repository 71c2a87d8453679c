"""The schema language `.pg` and the query language `.gq`: parse, check, plan, format, lint. No I/O on a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnigraph.lang.catalog import Catalog
from omnigraph.lang.compiler import CompiledQuery, compile_query, parse_queries
from omnigraph.lang.evolution import plan_schema
from omnigraph.lang.params import IntegerMode, decode_parameters
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.schema_steps import DropMode, SchemaPlan
from omnigraph.lang.source import Source

if TYPE_CHECKING:
    from omnigraph.lang.formatter import format_queries, format_schema
    from omnigraph.lang.lint import LintReport, lint_queries

__all__ = [
    "Catalog",
    "CompiledQuery",
    "DropMode",
    "IntegerMode",
    "LintReport",
    "SchemaPlan",
    "Source",
    "compile_query",
    "compile_schema",
    "decode_parameters",
    "format_queries",
    "format_schema",
    "lint_queries",
    "parse_queries",
    "plan_schema",
]


def __getattr__(name: str) -> Any:
    """Load the formatter and the linter when they are first used: a query runs without them."""
    if name in ("format_queries", "format_schema"):
        from omnigraph.lang import formatter  # noqa: PLC0415 - see above

        return getattr(formatter, name)
    if name in ("LintReport", "lint_queries"):
        from omnigraph.lang import lint  # noqa: PLC0415 - see above

        return getattr(lint, name)
    raise AttributeError(f"module 'omnigraph.lang' has no attribute {name!r}")
