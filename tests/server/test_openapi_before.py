"""The OpenAPI document says what that of version 0.1 said: paths, methods, parameters, bodies, statuses and answers."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.support.openapi_outline import outline

BEFORE = Path(__file__).with_name("openapi-0.1.json")

ADDED: dict[str, str] = {}
"""Operations and members that are new since then, each with its reason."""


def test_the_document_says_what_it_said_before(http: httpx.Client) -> None:
    before, now = json.loads(BEFORE.read_text()), outline(http.get("/openapi.json").json())

    assert set(now) - set(before) == set(ADDED)
    assert {key: now.get(key) for key in before} == before
