"""Texts that do not become vectors."""

from __future__ import annotations

from omnigraph.errors.base import OmnigraphError


class EmbedderError(OmnigraphError):
    """A text that should become a vector does not."""

    code = "embedder_failed"
    http_status = 502


class EmbedderMissingError(EmbedderError):
    """A text must become a vector, and nothing is configured that makes one of it; `variables` would do so."""

    code = "embedder_missing"
    http_status = 400
    variables: list[str]


class EmbedderSettingError(EmbedderError):
    """A setting of the embedder that cannot be used."""

    code = "embedder_setting"
    http_status = 400
    variable: str


class EmbedderUnavailableError(EmbedderError):
    """The service that makes vectors does not answer, or not now, after all attempts."""

    code = "embedder_unavailable"
    http_status = 503
    address: str
    attempts: int


class EmbedderRefusedError(EmbedderError):
    """The service that makes vectors does not accept the request."""

    code = "embedder_refused"
    address: str
    status: int


class EmbedderAnswerError(EmbedderError):
    """What the embedder gave is no vector that can be used: too short, too long, not numbers, all zero."""

    code = "embedder_answer"
    model: str


class EmbeddingModelError(EmbedderError):
    """The vectors of a property are of one model, and the configured one is another."""

    code = "embedding_model"
    http_status = 400
    property: str
    recorded: str
    configured: str


class EmbeddingTypeError(EmbedderError):
    """There is no such type, or it has no vector that is made of a text."""

    code = "embedding_type"
    http_status = 400
    type_name: str


class EmbeddingTextError(EmbedderError):
    """There is nothing in a text to make a vector of."""

    code = "embedding_text"
    http_status = 400
