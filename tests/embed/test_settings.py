"""Which embedder the environment asks for, and what is wrong with what it says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from omnigraph.embed.embedder import Purpose, embed_texts
from omnigraph.embed.http import HttpEmbedder
from omnigraph.embed.local import LocalEmbedder, MockEmbedder
from omnigraph.embed.providers import Provider, ServiceSettings, embedder_from_environment, settings_from
from omnigraph.errors import (
    EmbedderAnswerError,
    EmbedderError,
    EmbedderMissingError,
    EmbedderSettingError,
    EmbeddingTextError,
)

ROOT = Path(__file__).parents[2]
KEYS = {"OPENROUTER_API_KEY": "first", "OPENAI_API_KEY": "second", "GEMINI_API_KEY": "third"}


@pytest.mark.parametrize(
    "provider, base_url, model, key",
    [
        ("openai-compatible", "https://openrouter.ai/api/v1", "openai/text-embedding-3-large", "first"),
        ("openai", "https://api.openai.com/v1", "text-embedding-3-large", "second"),
        ("gemini", "https://generativelanguage.googleapis.com/v1beta", "gemini-embedding-2", "third"),
    ],
)
def test_a_service_needs_nothing_but_its_key(provider: str, base_url: str, model: str, key: str) -> None:
    found = settings_from(KEYS, Provider(provider))

    assert found == ServiceSettings(Provider(provider), base_url, model, key, 60.0, 30.0, 4, 0.2, 64)
    assert isinstance(embedder_from_environment({**KEYS, "OMNIGRAPH_EMBED_PROVIDER": provider}), HttpEmbedder)
    assert key not in repr(found)


def test_everything_can_be_set() -> None:
    environment = {
        "OPENAI_API_KEY": " second\n",
        "OMNIGRAPH_EMBED_BASE_URL": "http://localhost:8080/v1/",
        "OMNIGRAPH_EMBED_MODEL": "tiny",
        "OMNIGRAPH_EMBED_DEADLINE_MS": "0",
        "OMNIGRAPH_EMBED_TIMEOUT_MS": "1500",
        "OMNIGRAPH_EMBED_RETRY_ATTEMPTS": "1",
        "OMNIGRAPH_EMBED_RETRY_BACKOFF_MS": "0",
        "OMNIGRAPH_EMBED_BATCH_SIZE": "7",
    }

    found = settings_from(environment, Provider.OPENAI_COMPATIBLE)

    expected = (Provider.OPENAI_COMPATIBLE, "http://localhost:8080/v1", "tiny", "second", None, 1.5, 1, 0.0, 7)
    assert found == ServiceSettings(*expected)


def test_the_older_name_of_an_address_counts_for_gemini_alone() -> None:
    environment = {**KEYS, "OMNIGRAPH_GEMINI_BASE_URL": "http://localhost/old"}

    assert settings_from(environment, Provider.GEMINI).base_url == "http://localhost/old"
    assert settings_from(environment, Provider.OPENAI).base_url == "https://api.openai.com/v1"


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_the_mock_overrides_the_provider(text: str) -> None:
    environment = {"OMNIGRAPH_EMBED_PROVIDER": "openai", "OMNIGRAPH_EMBEDDINGS_MOCK": text}

    assert embedder_from_environment(environment) == MockEmbedder()


def test_the_mock_stands_in_for_a_model_by_its_name() -> None:
    environment = {"OMNIGRAPH_EMBED_PROVIDER": "mock", "OMNIGRAPH_EMBED_MODEL": "tiny"}

    assert embedder_from_environment(environment).model == "tiny"


@pytest.mark.parametrize("text", ["", "0", "false", "no"])
def test_a_mock_that_is_not_wanted_is_not_used(text: str) -> None:
    with pytest.raises(EmbedderMissingError) as caught:
        embedder_from_environment({"OMNIGRAPH_EMBEDDINGS_MOCK": text})

    assert caught.value.variables == ["OPENROUTER_API_KEY", "OPENAI_API_KEY"]


@pytest.mark.parametrize(
    "variable, text",
    [
        ("OMNIGRAPH_EMBED_PROVIDER", "cohere"),
        ("OMNIGRAPH_EMBED_BASE_URL", "localhost:8080"),
        ("OMNIGRAPH_EMBED_BASE_URL", "ftp://host/v1"),
        ("OMNIGRAPH_EMBED_BASE_URL", "http://host:port/v1"),
        ("OMNIGRAPH_EMBED_BASE_URL", "http://host/v1?key=1"),
        ("OMNIGRAPH_EMBED_BASE_URL", "http://ho st/v1"),
        ("OMNIGRAPH_EMBED_BASE_URL", "http://"),
        ("OMNIGRAPH_EMBED_TIMEOUT_MS", "0"),
        ("OMNIGRAPH_EMBED_TIMEOUT_MS", "soon"),
        ("OMNIGRAPH_EMBED_DEADLINE_MS", "-1"),
        ("OMNIGRAPH_EMBED_RETRY_ATTEMPTS", "0"),
        ("OMNIGRAPH_EMBED_RETRY_BACKOFF_MS", "1.5"),
        ("OMNIGRAPH_EMBED_BATCH_SIZE", "²"),
        ("OPENROUTER_API_KEY", "two\nlines"),
        ("OPENROUTER_API_KEY", "schlüssel"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(variable: str, text: str) -> None:
    with pytest.raises(EmbedderSettingError) as caught:
        embedder_from_environment({**KEYS, variable: text})

    assert caught.value.variable == variable
    assert variable in caught.value.message
    assert caught.value.hint
    assert not variable.endswith("KEY") or text not in str(caught.value)


def test_every_variable_is_documented_and_no_other() -> None:
    source = (ROOT / "src/omnigraph/embed/providers.py").read_text(encoding="utf-8")
    page = (ROOT / "docs/search.md").read_text(encoding="utf-8")
    used = set(re.findall(r'"(OMNIGRAPH_\w+|[A-Z]+_API_KEY)"', source))

    assert set(re.findall(r"`(OMNIGRAPH_\w+|[A-Z]+_API_KEY)`", page)) == used


# The mock


def _reference(text: str, dimension: int) -> list[float]:
    """The mock vector as it is defined, number by number."""
    state = 0xCBF29CE484222325
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) % 2**64
    numbers = []
    for _ in range(dimension):
        state ^= (state << 13) % 2**64
        state ^= state >> 7
        state ^= (state << 17) % 2**64
        numbers.append(float(np.float32(np.float32(state / (2**64 - 1)) * np.float32(2) - np.float32(1))))
    length = sum(number * number for number in numbers) ** 0.5
    return [number / length for number in numbers]


@pytest.mark.parametrize("text", ["a", "neural networks", "Käse 東京 😀", "x" * 5000])
def test_the_mock_vector_is_the_defined_one(text: str) -> None:
    found = embed_texts(MockEmbedder(), ["other", text], 64, Purpose.QUERY)

    assert np.allclose(found[1], _reference(text, 64), atol=1e-6)


# Embedders that somebody else wrote


class Given:
    model = "given"

    def __init__(self, found: object) -> None:
        self.found = found

    def embed(self, texts: object, dimension: int, purpose: Purpose) -> object:  # noqa: ARG002 - it knows what it gives
        return self.found


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        [1.0, 2.0],
        [[1.0, 2.0], [1.0]],
        [[1.0, 2.0, 3.0]],
        [["a", "b"]],
        [[0.0, 0.0]],
        [[float("nan"), 1.0]],
        [[float("inf"), 1.0]],
    ],
    ids=str,
)
def test_what_is_no_vector_is_refused_from_any_embedder(found: object) -> None:
    with pytest.raises(EmbedderAnswerError, match="given returned"):
        embed_texts(Given(found), ["a"], 2, Purpose.QUERY)


def test_large_numbers_are_normalised_without_overflow() -> None:
    assert embed_texts(Given([[3e30, 4e30]]), ["a"], 2, Purpose.QUERY)[0].tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_text_is_refused_before_anybody_is_asked(text: str) -> None:
    with pytest.raises(EmbeddingTextError):
        embed_texts(Given(None), ["a", text], 2, Purpose.QUERY)


# The local model


def test_the_local_model_says_what_to_install_if_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnigraph.embed.local.find_spec", lambda _: None)

    with pytest.raises(EmbedderMissingError, match=r"omnigraph\[embed\]"):
        embedder_from_environment({"OMNIGRAPH_EMBED_PROVIDER": "local"}).embed(["a"], 64, Purpose.QUERY)


def test_the_local_model_has_a_largest_vector() -> None:
    with pytest.raises(EmbedderError, match="at most 256 dimensions, not 257"):
        LocalEmbedder().embed(["a"], 257, Purpose.QUERY)


@pytest.mark.parametrize("dimension", [64, 128, 256])
def test_the_local_model_finds_what_is_alike_in_meaning(dimension: int) -> None:
    pytest.importorskip("wordllama", reason="the extra `embed` is not installed")
    documents = ["Introduction to machine learning", "Cooking pasta with tomatoes", "A guide to mountain hiking"]
    questions = ["neural networks", "recipes for spaghetti", "walking trails in the alps"]

    there = embed_texts(LocalEmbedder(), documents, dimension, Purpose.DOCUMENT)
    asked = embed_texts(LocalEmbedder(), questions, dimension, Purpose.QUERY)

    assert (asked @ there.T).argmax(axis=1).tolist() == [0, 1, 2]
