"""Embedder that calls an HTTP service, and retries while the service is busy or down."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

import numpy as np

from omnigraph.core.http import HttpFailure, HttpPool, HttpRequest, header_in
from omnigraph.embed.embedder import Purpose, Vectors
from omnigraph.embed.providers import BASE_URL, DIALECTS, EmbeddingRequest, ServiceSettings
from omnigraph.errors import EmbedderAnswerError, EmbedderRefusedError, EmbedderUnavailableError

_MAX_BYTES = 256 * 1024 * 1024  # of one response
_SHOWN = 200
_BUSY = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an attempt failed that may be repeated, and how long the service asks to wait."""

    why: str
    pause: float = 0.0


class HttpEmbedder:
    """Requests vectors from a service. The key is sent to the service and never appears in a message or a log."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._dialect = DIALECTS[settings.provider]

    @property
    def model(self) -> str:
        return self._settings.model

    def embed(self, texts: Sequence[str], dimension: int, purpose: Purpose) -> Vectors:
        # A service may limit a request to fewer texts than the configured batch size.
        size = min(self._settings.batch_size, self._dialect.most_texts or self._settings.batch_size)
        # One after the other: services limit requests per minute.
        batches = [texts[at : at + size] for at in range(0, len(texts), size)]
        return np.concatenate([self._batch(batch, dimension, purpose) for batch in batches])

    def _batch(self, texts: Sequence[str], dimension: int, purpose: Purpose) -> Vectors:
        body = self._answer(self._dialect.request(self._settings, texts, dimension, purpose))
        try:
            found = self._dialect.vectors(json.loads(body))
            lengths = {len(vector) for vector in found}
            matrix = np.array(found, np.float32) if lengths == {dimension} else None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
            raise self._bad_answer(f"{self._shown(body)} contains no vectors") from None
        if len(found) != len(texts):
            raise self._bad_answer(f"{len(found)} vectors for {len(texts)} texts")
        if matrix is None:
            got = ", ".join(map(str, sorted(lengths)))
            raise self._bad_answer(f"the vectors have dimension {got}, not {dimension}")
        return matrix

    # Requests

    def _answer(self, request: EmbeddingRequest) -> bytes:
        settings = self._settings
        ends = float("inf") if settings.deadline is None else time.monotonic() + settings.deadline
        for attempt in range(1, settings.attempts + 1):
            outcome = self._attempt(request, min(settings.timeout, max(ends - time.monotonic(), 0.001)))
            if isinstance(outcome, bytes):
                return outcome
            # Not less than the service asks for in Retry-After.
            pause = max(outcome.pause, settings.backoff * 2 ** (attempt - 1))
            if attempt == settings.attempts or time.monotonic() + pause >= ends:
                raise self._unavailable(outcome.why, attempt)
            time.sleep(pause)
        raise AssertionError("there is at least one attempt")

    def _attempt(self, request: EmbeddingRequest, timeout: float) -> bytes | _Failure:
        ends = time.monotonic() + timeout
        headers = [f"{name}: {value}" for name, value in request.headers.items()]
        asked = HttpRequest("POST", request.url, headers, request.body, timeout, timeout, repeatable=True)
        try:
            # No redirect is followed: the key is for this address alone.
            with self._pool.send(asked) as response:
                status, wait = response.status, header_in(response.head, "retry-after")
                body = _read(response, ends)
        except HttpFailure as error:
            late = error.timed_out
            return _Failure(f"no answer within {timeout:.3g} s" if late else f"no connection: {error}")
        return self._judged(status, wait, body)

    def _judged(self, status: int, wait: str, body: bytes) -> bytes | _Failure:
        if 200 <= status < 300:  # noqa: PLR2004 - the success codes
            return body
        said = f"it answered {status}: {self._shown(body)}"
        if status in _BUSY or status >= 500:  # noqa: PLR2004 - server errors
            return _Failure(said, float(wait) if wait.isascii() and wait.isdigit() else 0.0)
        message = f"{self._address} refused to embed with {self.model}: {said}"
        hint = "check the key, the model and the address"
        raise EmbedderRefusedError(message, address=self._address, status=status, hint=hint)

    @cached_property
    def _pool(self) -> HttpPool:
        return HttpPool(self._settings.base_url)

    # Messages

    @cached_property
    def _address(self) -> str:
        """The address without credentials."""
        parts = urlsplit(self._settings.base_url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def _shown(self, body: bytes) -> str:
        """Return the beginning of a response, on one line, without the key."""
        text = body[: 20 * _SHOWN].decode("utf-8", "replace").replace(self._settings.key, "***")
        line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
        return f"'{line[:_SHOWN]}'" if line else "nothing"

    def _unavailable(self, why: str, attempts: int) -> EmbedderUnavailableError:
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        message = f"{self._address} returned no vectors after {times}: {why}"
        hint = f"try again later; if it never answers, check {BASE_URL}"
        return EmbedderUnavailableError(message, address=self._address, attempts=attempts, hint=hint)

    def _bad_answer(self, what: str) -> EmbedderAnswerError:
        hint = "check that the address and the model are for embeddings of this dimension"
        return EmbedderAnswerError(f"{self._address} with {self.model}: {what}", model=self.model, hint=hint)


def _read(chunks: Iterable[bytes], ends: float) -> bytes:
    """Read a response. The timeout is for all of it: a byte now and then must not prolong it."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if time.monotonic() > ends:
            raise HttpFailure("timed out", sent=True, timed_out=True)
        if size > _MAX_BYTES:
            break  # too long to be vectors; whatever decodes it will say so
    return b"".join(parts)
