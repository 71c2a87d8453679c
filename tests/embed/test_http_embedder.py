"""Asking a service on the network: what is sent, what is retried, what is refused, and that the key stays secret."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omnigraph.embed.embedder import Purpose, Vectors, embed_texts
from omnigraph.embed.http import HttpEmbedder
from omnigraph.embed.local import MockEmbedder
from omnigraph.embed.providers import Provider, ServiceSettings
from omnigraph.errors import EmbedderAnswerError, EmbedderRefusedError, EmbedderUnavailableError, OmnigraphError
from tests.embed.service import KEY, Service, answer, cut_short, drip, hang_up

QUICK = {"deadline": 120.0, "timeout": 60.0, "attempts": 3, "backoff": 0.01}


def settings(service: Service, **changed: Any) -> ServiceSettings:
    plain = ServiceSettings(Provider.OPENAI_COMPATIBLE, service.url, "tiny", KEY)
    return replace(plain, **{**QUICK, **changed})


def embedded(service: Service, *texts: str, dimension: int = 4, **changed: Any) -> Vectors:
    return embed_texts(HttpEmbedder(settings(service, **changed)), texts, dimension, Purpose.DOCUMENT)


def expected(*texts: str, dimension: int = 4) -> Vectors:
    return embed_texts(MockEmbedder(), texts, dimension, Purpose.DOCUMENT)


# What is asked


def test_a_service_is_asked_as_openai_is_and_its_vectors_are_normalised(service: Service) -> None:
    found = embedded(service, "a", "b")

    assert np.allclose(found, expected("a", "b"), atol=1e-6)
    assert np.allclose(np.linalg.norm(found, axis=1), 1)
    [asked] = service.asked
    assert asked.path == "/v1/embeddings"
    assert asked.headers["Authorization"] == f"Bearer {KEY}"
    assert asked.body == {"model": "tiny", "input": ["a", "b"], "dimensions": 4}


def test_many_texts_go_in_batches_and_come_back_in_order(service: Service) -> None:
    texts = [f"text {number}" for number in range(10)]

    found = embedded(service, *texts, batch_size=4)

    assert [len(batch) for batch in service.texts] == [4, 4, 2]
    assert np.allclose(found, expected(*texts), atol=1e-6)


@pytest.mark.parametrize(
    "purpose, task", [(Purpose.QUERY, "RETRIEVAL_QUERY"), (Purpose.DOCUMENT, "RETRIEVAL_DOCUMENT")]
)
def test_gemini_is_asked_for_one_text_at_a_time_and_told_its_purpose(
    service: Service, purpose: Purpose, task: str
) -> None:
    embedder = HttpEmbedder(settings(service, provider=Provider.GEMINI, model="gemini-embedding-2"))

    found = embed_texts(embedder, ["a", "b"], 3, purpose)

    assert np.allclose(found, expected("a", "b", dimension=3), atol=1e-6)
    first, _ = service.asked
    assert first.path == "/v1/models/gemini-embedding-2:embedContent"
    assert first.headers["x-goog-api-key"] == KEY
    assert first.body == {
        "model": "models/gemini-embedding-2",
        "content": {"parts": [{"text": "a"}]},
        "taskType": task,
        "outputDimensionality": 3,
    }


def test_no_texts_are_no_request(service: Service) -> None:
    assert embedded(service).shape == (0, 4)
    assert service.asked == []


def test_an_answer_without_numbers_is_taken_in_its_order(service: Service) -> None:
    service.script = [answer(200, {"data": [{"embedding": [2, 0]}, {"embedding": [0, 2]}]})]

    assert embedded(service, "a", "b", dimension=2).tolist() == [[1, 0], [0, 1]]


def test_a_service_behind_a_proxy_is_asked_through_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", service.url.removesuffix("/v1"))

    found = embedded(service, "a", base_url="http://embeddings.invalid/v1")

    assert np.allclose(found, expected("a"), atol=1e-6)
    assert service.asked[0].path == "http://embeddings.invalid/v1/embeddings"


def test_several_threads_can_ask_at_once(service: Service) -> None:
    embedder = HttpEmbedder(settings(service))
    texts = [f"text {number}" for number in range(40)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: embed_texts(embedder, [text], 4, Purpose.QUERY)[0], texts))

    assert np.allclose(np.stack(found), expected(*texts), atol=1e-6)


# What is asked again


@pytest.mark.parametrize(
    "failure",
    [answer(429, {}), answer(500, {}), answer(503, b"<html>"), hang_up, cut_short],
    ids=["busy", "broken", "down", "hung up", "cut short"],
)
def test_a_service_that_fails_for_a_moment_is_asked_again(service: Service, failure: Callable[..., None]) -> None:
    service.script = [failure, failure]

    assert np.allclose(embedded(service, "a"), expected("a"), atol=1e-6)
    assert len(service.asked) == 3


def test_each_pause_is_twice_as_long_as_the_one_before(service: Service) -> None:
    service.script = [answer(503, {})] * 3

    embedded(service, "a", attempts=4, backoff=0.1)

    times = [request.at for request in service.asked]
    pauses = np.diff(times)
    assert (pauses >= [0.1, 0.2, 0.4]).all()


def test_a_service_is_left_alone_for_as_long_as_it_asks(service: Service) -> None:
    service.script = [answer(429, {}, Retry_After="1")]

    embedded(service, "a")

    first, second = (request.at for request in service.asked)
    assert second - first >= 1


def test_the_last_failure_is_told_with_what_the_service_said(service: Service) -> None:
    service.script = [answer(500, {"error": {"message": "out of\n memory"}})] * 3

    with pytest.raises(
        EmbedderUnavailableError, match=r"after 3 attempts: it answered 500: .*out of.* memory"
    ) as caught:
        embedded(service, "a")

    assert (caught.value.address, caught.value.attempts) == (service.url, 3)
    assert "\n" not in caught.value.message


def test_nobody_listening_is_told_as_such(service: Service) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"

    with pytest.raises(EmbedderUnavailableError, match="no connection: Connection refused"):
        embedded(service, "a", base_url=url)


@pytest.mark.parametrize("slow", [lambda _: time.sleep(1), drip], ids=["silent", "dripping"])
def test_a_service_that_is_too_slow_is_given_up(service: Service, slow: Callable[..., None]) -> None:
    service.script = [slow] * 2

    started = time.monotonic()
    with pytest.raises(EmbedderUnavailableError, match=r"no answer within 0\.2 s"):
        embedded(service, "a", timeout=0.2, attempts=2)

    assert time.monotonic() - started < 60  # the answer would take longer than that


def test_the_deadline_ends_the_attempts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.script = [answer(503, {})] * 100
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)  # a real deadline would be over too soon on a busy machine

    with pytest.raises(EmbedderUnavailableError):
        embedded(service, "a", attempts=100, backoff=1.0, deadline=60.0)

    assert 1 <= len(service.asked) < 10
    assert max(pauses) < 60


# What is refused


@pytest.mark.parametrize("status", [301, 400, 401, 404, 422])
def test_a_refusal_is_not_repeated(service: Service, status: int) -> None:
    service.script = [answer(status, {"error": {"message": "no such model"}}, Location="http://127.0.0.1:1/")] * 2

    with pytest.raises(EmbedderRefusedError, match="no such model") as caught:
        embedded(service, "a")

    assert caught.value.status == status
    assert len(service.asked) == 1


NONSENSE: dict[str, Any] = {
    "no JSON": b"<html>hello</html>",
    "half": b'{"data": [{"embedding": [1, 2',
    "nothing": b"",
    "not UTF-8": b"\xff\xfe",
    "a list": [1, 2],
    "null": None,
    "no data": {"model": "tiny"},
    "data is null": {"data": None},
    "data of texts": {"data": ["abcd"]},
    "no embedding": {"data": [{"index": 0}]},
    "a text": {"data": [{"embedding": "abcd"}]},
    "texts": {"data": [{"embedding": ["a", "b", "c", "d"]}]},
    "lists": {"data": [{"embedding": [[1], [2], [3], [4]]}]},
    "null inside": {"data": [{"embedding": [1, None, 2, 3]}]},
    "none": {"data": []},
    "two": {"data": [{"embedding": [1, 2, 3, 4]}] * 2},
    "wrong number": {"data": [{"index": 7, "embedding": [1, 2, 3, 4]}]},
    "too short": {"data": [{"embedding": [1, 2, 3]}]},
    "too long": {"data": [{"embedding": [1, 2, 3, 4, 5]}]},
    "zero": {"data": [{"embedding": [0, 0, 0, 0]}]},
    "not a number": b'{"data": [{"embedding": [1, NaN, 2, 3]}]}',
    "infinite": b'{"data": [{"embedding": [1, 1e400, 2, 3]}]}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("document", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_nonsense_is_refused_and_not_asked_for_again(service: Service, document: Any) -> None:
    service.script = [answer(200, document)] * 2

    with pytest.raises(EmbedderAnswerError) as caught:
        embedded(service, "a")

    assert caught.value.model == "tiny"
    assert caught.value.hint
    assert len(service.asked) == 1


def test_a_vector_of_the_wrong_length_names_both_lengths(service: Service) -> None:
    service.script = [answer(200, {"data": [{"embedding": [1, 2, 3]}]})]

    with pytest.raises(EmbedderAnswerError, match=r"the vectors have dimension 3, not 4"):
        embedded(service, "a")


# The key


@pytest.mark.parametrize(
    "failure",
    [
        answer(401, {"error": {"message": f"wrong key {KEY}"}}),
        answer(500, f"{KEY} {KEY}".encode()),
        answer(200, f"what is {KEY}?".encode()),
        hang_up,
    ],
    ids=["refused", "broken", "nonsense", "hung up"],
)
def test_the_key_is_in_no_message_and_no_log(
    service: Service, failure: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    service.script = [failure] * 3
    secret = service.url.replace("http://", "http://user:pass-word@")

    with caplog.at_level(logging.DEBUG), pytest.raises(OmnigraphError) as caught:
        embedded(service, "a", base_url=secret)

    told = [str(caught.value), repr(caught.value), json.dumps(caught.value.details()), caplog.text]
    told.append(repr(settings(service)))
    assert not [text for text in told if KEY in text or "pass-word" in text]
    assert caught.value.__cause__ is None
    assert service.url in str(caught.value)
