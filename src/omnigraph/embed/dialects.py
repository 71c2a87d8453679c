"""How services are asked for vectors, and where their answers hold them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from omnigraph.embed.embedder import Purpose
from omnigraph.embed.settings import Provider, Settings


@dataclass(frozen=True, slots=True)
class Request:
    url: str
    headers: dict[str, str]
    body: bytes


class Dialect(Protocol):
    @property
    def most_texts(self) -> int | None:
        """How many texts one request can hold, if that is limited."""

    def request(self, settings: Settings, texts: Sequence[str], dimension: int, purpose: Purpose) -> Request: ...

    def vectors(self, answer: Any) -> list[Any]:
        """Find the vectors, in the order of the texts. Raises KeyError, TypeError or ValueError if there are none."""


class OpenAi:
    most_texts = None

    def request(self, settings: Settings, texts: Sequence[str], dimension: int, purpose: Purpose) -> Request:  # noqa: ARG002 - it has no purposes
        body = {"model": settings.model, "input": list(texts), "dimensions": dimension}
        return _posted(f"{settings.base_url}/embeddings", {"Authorization": f"Bearer {settings.key}"}, body)

    def vectors(self, answer: Any) -> list[Any]:
        items = answer["data"]
        places = [item.get("index", at) for at, item in enumerate(items)]
        if sorted(places) != list(range(len(items))):
            raise ValueError("the numbers of the vectors are not those of the texts")
        found = dict(zip(places, items, strict=True))
        return [found[at]["embedding"] for at in range(len(items))]


class Gemini:
    most_texts = 1

    def request(self, settings: Settings, texts: Sequence[str], dimension: int, purpose: Purpose) -> Request:
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


DIALECTS: dict[Provider, Dialect] = {
    Provider.OPENAI_COMPATIBLE: OpenAi(),
    Provider.OPENAI: OpenAi(),
    Provider.GEMINI: Gemini(),
}


def _posted(url: str, headers: dict[str, str], body: dict[str, Any]) -> Request:
    # Lone surrogates cannot be sent as UTF-8; escaped they can.
    return Request(url, {"Content-Type": "application/json", **headers}, json.dumps(body).encode("ascii"))
