"""The configured embedder, from environment variables, and the request formats of embedding services."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from omnigraph.errors import EmbedderMissingError, EmbedderSettingError

if TYPE_CHECKING:  # the embedder asks here which one is configured
    from omnigraph.embed.embedder import Embedder, Purpose

PROVIDER = "OMNIGRAPH_EMBED_PROVIDER"
BASE_URL = "OMNIGRAPH_EMBED_BASE_URL"
MODEL = "OMNIGRAPH_EMBED_MODEL"
DEADLINE = "OMNIGRAPH_EMBED_DEADLINE_MS"
TIMEOUT = "OMNIGRAPH_EMBED_TIMEOUT_MS"
ATTEMPTS = "OMNIGRAPH_EMBED_RETRY_ATTEMPTS"
BACKOFF = "OMNIGRAPH_EMBED_RETRY_BACKOFF_MS"
BATCH_SIZE = "OMNIGRAPH_EMBED_BATCH_SIZE"
MOCK = "OMNIGRAPH_EMBEDDINGS_MOCK"
_OLD_GEMINI_URL = "OMNIGRAPH_GEMINI_BASE_URL"
_TRUE = ("1", "true", "yes", "on")


class Provider(StrEnum):
    OPENAI_COMPATIBLE = "openai-compatible"
    OPENAI = "openai"
    GEMINI = "gemini"
    LOCAL = "local"
    MOCK = "mock"


@dataclass(frozen=True, slots=True)
class EmbeddingService:
    """A network service with its default settings."""

    base_url: str
    model: str
    keys: tuple[str, ...]
    older: str | None = None


SERVICES = {
    Provider.OPENAI_COMPATIBLE: EmbeddingService(
        "https://openrouter.ai/api/v1", "openai/text-embedding-3-large", ("OPENROUTER_API_KEY", "OPENAI_API_KEY")
    ),
    Provider.OPENAI: EmbeddingService("https://api.openai.com/v1", "text-embedding-3-large", ("OPENAI_API_KEY",)),
    Provider.GEMINI: EmbeddingService(
        "https://generativelanguage.googleapis.com/v1beta", "gemini-embedding-2", ("GEMINI_API_KEY",), _OLD_GEMINI_URL
    ),
}


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How to call a service. Times are in seconds; without a deadline, the attempts may take as long as they do."""

    provider: Provider
    base_url: str
    model: str
    # Never shown: a settings object may end up in a log.
    key: str = field(repr=False)
    deadline: float | None = 60.0
    timeout: float = 30.0
    attempts: int = 4
    backoff: float = 0.2
    batch_size: int = 64


def embedder_from_environment(environment: Mapping[str, str] = os.environ) -> Embedder:
    """Create the embedder that the environment configures."""
    provider = _provider(environment)
    if provider is Provider.MOCK:
        from omnigraph.embed.local import MockEmbedder  # noqa: PLC0415 - only one of them is needed

        return MockEmbedder(environment.get(MODEL) or "mock")
    if provider is Provider.LOCAL:
        from omnigraph.embed.local import LocalEmbedder  # noqa: PLC0415

        return LocalEmbedder()
    from omnigraph.embed.http import HttpEmbedder  # noqa: PLC0415

    return HttpEmbedder(settings_from(environment, provider))


def settings_from(environment: Mapping[str, str], provider: Provider) -> ServiceSettings:
    service = SERVICES[provider]
    deadline = _milliseconds(environment, DEADLINE, 60_000)
    return ServiceSettings(
        provider,
        _base_url(environment, service),
        environment.get(MODEL) or service.model,
        _key(environment, provider, service),
        deadline or None,
        _milliseconds(environment, TIMEOUT, 30_000, least=1),
        _number(environment, ATTEMPTS, 4, least=1),
        _milliseconds(environment, BACKOFF, 200),
        _number(environment, BATCH_SIZE, 64, least=1),
    )


def _provider(environment: Mapping[str, str]) -> Provider:
    # The mock wins over the provider, so that a test environment needs one variable.
    if environment.get(MOCK, "").strip().lower() in _TRUE:
        return Provider.MOCK
    name = environment.get(PROVIDER) or Provider.OPENAI_COMPATIBLE
    if name not in {*Provider}:
        message = f"{PROVIDER} has the unknown value '{name}'"
        raise EmbedderSettingError(message, variable=PROVIDER, hint=f"use one of {', '.join(Provider)}")
    return Provider(name)


def _base_url(environment: Mapping[str, str], service: EmbeddingService) -> str:
    # The variable of earlier releases still works, behind the general one.
    older = environment.get(service.older, "") if service.older else ""
    url = environment.get(BASE_URL) or older or service.base_url
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
        _ = parts.port  # raises if it is no number
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url:
        message = f"{BASE_URL} is not the URL of a service"
        raise EmbedderSettingError(message, variable=BASE_URL, hint=f"write it like {service.base_url}")
    return url.rstrip("/")


def _key(environment: Mapping[str, str], provider: Provider, service: EmbeddingService) -> str:
    for name in service.keys:
        key = environment.get(name, "").strip()
        if key and not (key.isascii() and key.isprintable()):
            # Without the key itself: messages end up in logs.
            raise EmbedderSettingError(
                f"{name} contains characters that no key has", variable=name, hint="set it again"
            )
        if key:
            return key
    names = " or ".join(service.keys)
    message = f"the embedding provider `{provider}` needs an API key, and none is set"
    hint = f"set {names}, choose another provider with {PROVIDER}, or give the vector itself"
    raise EmbedderMissingError(message, variables=list(service.keys), hint=hint)


def _milliseconds(environment: Mapping[str, str], variable: str, default: int, *, least: int = 0) -> float:
    return _number(environment, variable, default, least=least) / 1000


def _number(environment: Mapping[str, str], variable: str, default: int, *, least: int) -> int:
    text = environment.get(variable, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        message = f"{variable} has the invalid value '{text}'"
        raise EmbedderSettingError(message, variable=variable, hint=f"set it to a whole number, at least {least}")
    return int(text)


# Dialects ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    url: str
    headers: dict[str, str]
    body: bytes


class OpenAi:
    """The requests of OpenAI. `vectors` raises KeyError, TypeError or ValueError if an answer has none."""

    most_texts = None  # in one request: as many as the settings say

    def request(self, settings: ServiceSettings, texts: Sequence[str], dimension: int, _: Purpose) -> EmbeddingRequest:
        body = {"model": settings.model, "input": list(texts), "dimensions": dimension}
        return _posted(f"{settings.base_url}/embeddings", {"Authorization": f"Bearer {settings.key}"}, body)

    def vectors(self, answer: Any) -> list[Any]:
        items = answer["data"]
        # A service may answer in any order; a vector must not be stored with the text of another.
        found = {item.get("index", at): item["embedding"] for at, item in enumerate(items)}
        if sorted(found) != list(range(len(items))):
            raise ValueError("the numbers of the vectors are not those of the texts")
        return [found[at] for at in range(len(items))]


class Gemini:
    """The requests of Gemini: one text in each."""

    most_texts = 1

    def request(
        self, settings: ServiceSettings, texts: Sequence[str], dimension: int, purpose: Purpose
    ) -> EmbeddingRequest:
        body = {
            "model": f"models/{settings.model}",
            "content": {"parts": [{"text": text} for text in texts]},
            "taskType": f"RETRIEVAL_{purpose.upper()}",
            "outputDimensionality": dimension,
        }
        url = f"{settings.base_url}/models/{quote(settings.model, safe='')}:embedContent"
        return _posted(url, {"x-goog-api-key": settings.key}, body)

    def vectors(self, answer: Any) -> list[Any]:
        return [answer["embedding"]["values"]]


DIALECTS: dict[Provider, OpenAi | Gemini] = {
    Provider.OPENAI_COMPATIBLE: OpenAi(),
    Provider.OPENAI: OpenAi(),
    Provider.GEMINI: Gemini(),
}


def _posted(url: str, headers: dict[str, str], body: dict[str, Any]) -> EmbeddingRequest:
    # Lone surrogates cannot be sent as UTF-8; escaped they can.
    return EmbeddingRequest(url, {"Content-Type": "application/json", **headers}, json.dumps(body).encode("ascii"))
