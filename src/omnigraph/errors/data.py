"""Source texts and the values in them; loads, exports, Spark and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from omnigraph.errors.base import Diagnostic, OmnigraphError


class OptionError(OmnigraphError, code="option_invalid", status=400):
    """An option of a call has an invalid value; `option` is its name."""

    option: str


class LibraryMissingError(OmnigraphError, code="library_missing", status=500):
    """A required optional library is not installed."""

    library: str


class JavaMissingError(OmnigraphError, code="java_missing"):
    """Spark needs Java, and there is none or it is too old; `found` is the version found."""

    found: str | None


class SparkError(OmnigraphError, code="spark_failed"):
    """Spark did not start or did not finish; `detail` is its own message."""

    detail: str


class InputError(OmnigraphError, code="input_invalid", status=400):
    """The input cannot be loaded; `path` is the file, if there is one. Nothing was changed."""

    path: str | None


class InputNotFoundError(InputError, code="input_not_found"):
    """There is nothing to load at the path."""


class InputFormatError(InputError, code="input_format"):
    """The format of the file is unknown."""


class InputTypeError(InputError, code="input_type"):
    """The type of the rows in the file is unknown."""


class InputColumnsError(InputError, code="input_columns"):
    """The columns of the file do not match its type; `columns` lists those found."""

    columns: list[str]


class InputMappingError(InputError, code="input_mapping"):
    """The mapping of files to types is invalid."""


class InputUnreadableError(InputError, code="input_unreadable"):
    """The file cannot be read, or is damaged."""


# Unlike its siblings 409: the request was right, and the same one succeeds once the file is at rest.
class InputChangedError(InputError, code="input_changed", status=409):
    """The file changed while it was being loaded."""


class ExportError(OmnigraphError, code="export_invalid", status=400):
    """The export cannot be made as requested."""


class ExportTypeError(ExportError, code="export_type"):
    """The graph has no such type."""

    type_name: str


class ExportTargetError(ExportError, code="export_target"):
    """The target cannot take the export, or not in this format; `path` is None for a stream."""

    path: str | None


# 500: the value was accepted when it was written, so the caller of the export cannot have caused it.
class ExportValueError(ExportError, code="export_value", status=500):
    """A stored value cannot be exported, such as a number that is not finite."""

    type_name: str
    entity_id: str
    property: str


# 502 and 503 are for the service behind us, and may be retried. What the caller can mend is 400.
class EmbedderError(OmnigraphError, code="embedder_failed", status=502):
    """A text could not be embedded."""


class EmbedderMissingError(EmbedderError, code="embedder_missing", status=400):
    """A text must be embedded, but no embedder is configured; `variables` are the settings for one."""

    variables: list[str]


class EmbedderSettingError(EmbedderError, code="embedder_setting", status=400):
    """A setting of the embedder is invalid."""

    variable: str


class EmbedderUnavailableError(EmbedderError, code="embedder_unavailable", status=503):
    """The embedding service did not respond, after all attempts."""

    address: str
    attempts: int


class EmbedderRefusedError(EmbedderError, code="embedder_refused"):
    """The embedding service rejected the request."""

    address: str
    status: int


class EmbedderAnswerError(EmbedderError, code="embedder_answer"):
    """The embedder returned an unusable vector: wrong length, not numbers, or all zero."""

    model: str


# 400 and not a warning: vectors of two models have no meaningful distance, and no later check would notice.
class EmbeddingModelError(EmbedderError, code="embedding_model", status=400):
    """The stored vectors come from another model than the configured one."""

    property: str
    recorded: str
    configured: str


class EmbeddingTypeError(EmbedderError, code="embedding_type", status=400):
    """There is no such type, or it has no `@embed` property."""

    type_name: str


class EmbeddingTextError(EmbedderError, code="embedding_text", status=400):
    """The text to embed is empty."""


class CompileError(OmnigraphError, code="bad_source", status=400):
    """The source text does not compile; `diagnostics` lists the problems in order."""

    diagnostics: tuple[Diagnostic, ...]

    @classmethod
    def of(cls, diagnostics: Sequence[Diagnostic]) -> Self:
        """Make the error for one or more diagnostics; the first one gives message and hint."""
        # Its message alone is the message of the error: `str()` shows all of them, a log one line.
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


class PipelineFileError(CompileError, code="pipeline_invalid"):
    """The file of a pipeline is invalid, or does not fit the graph."""


# 400 and not 404: the route and the graph exist, and a client takes a 404 for one of these.
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


class PipelineError(OmnigraphError, code="pipeline_failed", status=400):
    """A run of a pipeline cannot go on."""


class PipelineSourceError(PipelineError, code="pipeline_source"):
    """A source of a pipeline cannot be read as its file says. Nothing was loaded."""

    source: str


class PipelineStateError(PipelineError, code="pipeline_state", status=409):
    """What a pipeline has loaded is not known, or another run of it came first."""

    pipeline: str


class PipelineCheckError(PipelineError, code="pipeline_check_failed", status=409):
    """A check found `rows` rows on the branch of the pipeline, so the branch was not merged."""

    check: str
    rows: int
