"""An embedder that asks a service on the network, and asks again if it is busy or down for a moment."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np

from omnigraph.embed.embedder import Purpose, Vectors
from omnigraph.embed.providers import BASE_URL, DIALECTS, EmbeddingRequest, ServiceSettings
from omnigraph.errors import EmbedderAnswerError, EmbedderRefusedError, EmbedderUnavailableError

if TYPE_CHECKING:
    import urllib3

_MOST_BYTES = 256 * 1024 * 1024  # of one answer
_PIECE = 64 * 1024
_SHOWN = 200
_BUSY = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an attempt failed that may be repeated, and how long the service wants to be left alone."""

    why: str
    pause: float = 0.0


class HttpEmbedder:
    """Asks a service for vectors. The key is sent to it, and is in no message and no log."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._dialect = DIALECTS[settings.provider]

    @property
    def model(self) -> str:
        return self._settings.model

    def embed(self, texts: Sequence[str], dimension: int, purpose: Purpose) -> Vectors:
        size = min(self._settings.batch_size, self._dialect.most_texts or self._settings.batch_size)
        batches = [texts[at : at + size] for at in range(0, len(texts), size)]
        return np.concatenate([self._batch(batch, dimension, purpose) for batch in batches])

    def _batch(self, texts: Sequence[str], dimension: int, purpose: Purpose) -> Vectors:
        body = self._answer(self._dialect.request(self._settings, texts, dimension, purpose))
        try:
            found = self._dialect.vectors(json.loads(body))
            lengths = {len(vector) for vector in found}
            matrix = np.array(found, np.float32) if lengths == {dimension} else None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
            raise self._nonsense(f"{self._shown(body)} holds no vectors") from None
        if len(found) != len(texts):
            raise self._nonsense(f"{len(found)} vectors came for {len(texts)} texts")
        if matrix is None:
            got = ", ".join(map(str, sorted(lengths)))
            raise self._nonsense(f"vectors of {got} numbers came; {dimension} were asked for")
        return matrix

    # Asking

    def _answer(self, request: EmbeddingRequest) -> bytes:
        settings = self._settings
        ends = float("inf") if settings.deadline is None else time.monotonic() + settings.deadline
        for attempt in range(1, settings.attempts + 1):
            outcome = self._attempt(request, min(settings.timeout, max(ends - time.monotonic(), 0.001)))
            if isinstance(outcome, bytes):
                return outcome
            pause = max(outcome.pause, settings.backoff * 2 ** (attempt - 1))
            if attempt == settings.attempts or time.monotonic() + pause >= ends:
                raise self._unavailable(outcome.why, attempt)
            time.sleep(pause)
        raise AssertionError("there is at least one attempt")

    def _attempt(self, request: EmbeddingRequest, timeout: float) -> bytes | _Failure:
        import urllib3  # noqa: PLC0415 - only who asks a service needs it

        ends = time.monotonic() + timeout
        try:
            # Redirects are not followed: the key is meant for this address alone.
            response = self._pool.request(
                "POST",
                request.url,
                body=request.body,
                headers=request.headers,
                timeout=urllib3.Timeout(total=timeout),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                body = _read(response, ends)
            finally:
                response.release_conn() if response.closed else response.close()
        except urllib3.exceptions.NewConnectionError as error:  # for urllib3 this is a timeout, too
            return _Failure(f"no connection: {_cause(error)}")
        except (TimeoutError, urllib3.exceptions.TimeoutError):
            return _Failure(f"no answer within {timeout:.3g} s")
        except urllib3.exceptions.HTTPError as error:
            return _Failure(f"no connection: {_cause(error)}")
        return self._judged(response.status, response.headers.get("Retry-After", ""), body)

    def _judged(self, status: int, wait: str, body: bytes) -> bytes | _Failure:
        if 200 <= status < 300:  # noqa: PLR2004 - what success is
            return body
        said = f"it answered {status}: {self._shown(body)}"
        if status in _BUSY or status >= 500:  # noqa: PLR2004 - its own failure
            return _Failure(said, float(wait) if wait.isascii() and wait.isdigit() else 0.0)
        message = f"{self._address} does not make vectors with {self.model}: {said}"
        hint = "look at the key, the model and the address"
        raise EmbedderRefusedError(message, address=self._address, status=status, hint=hint)

    @cached_property
    def _pool(self) -> urllib3.PoolManager:
        """Connections, through a proxy if the environment names one. Safe to share between threads."""
        import urllib3  # noqa: PLC0415 - only who asks a service needs it

        parts = urlsplit(self._settings.base_url)
        proxy = getproxies().get(parts.scheme)
        if proxy and not proxy_bypass(parts.hostname or ""):
            return urllib3.ProxyManager(proxy)
        return urllib3.PoolManager()

    # Telling

    @cached_property
    def _address(self) -> str:
        """The address without what may be secret in it."""
        parts = urlsplit(self._settings.base_url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def _shown(self, body: bytes) -> str:
        """The beginning of an answer, on one line, without the key."""
        text = body[: 20 * _SHOWN].decode("utf-8", "replace").replace(self._settings.key, "***")
        line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
        return f"'{line[:_SHOWN]}'" if line else "nothing"

    def _unavailable(self, why: str, attempts: int) -> EmbedderUnavailableError:
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        message = f"{self._address} gave no vectors after {times}: {why}"
        hint = f"try again later; if it never answers, look at {BASE_URL}"
        return EmbedderUnavailableError(message, address=self._address, attempts=attempts, hint=hint)

    def _nonsense(self, what: str) -> EmbedderAnswerError:
        hint = "look whether the address and the model are those of embeddings, and of this length"
        return EmbedderAnswerError(f"{self._address} with {self.model}: {what}", model=self.model, hint=hint)


def _read(response: Any, ends: float) -> bytes:
    """Read an answer. Its timeout counts for the whole of it: a byte now and then does not prolong it."""
    parts: list[bytes] = []
    size = 0
    while size <= _MOST_BYTES and (part := response.read1(_PIECE)):
        parts.append(part)
        size += len(part)
        if time.monotonic() > ends:
            raise TimeoutError
    return b"".join(parts)


def _cause(error: Exception) -> str:
    """What the system says, without what the library wraps around it."""
    inner = error.__cause__ or error.__context__
    return getattr(inner, "strerror", None) or type(inner or error).__name__
