"""Loads, exports, Spark and embeddings."""

from __future__ import annotations

from omnigraph.errors.base import OmnigraphError


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


class ExportValueError(ExportError, code="export_value", status=500):
    """A stored value cannot be exported, such as a number that is not finite."""

    type_name: str
    entity_id: str
    property: str


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
