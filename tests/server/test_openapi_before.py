"""The OpenAPI document says what that of version 0.1 said: paths, methods, parameters, bodies, statuses and answers."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx

from tests.support.openapi_outline import outline

BEFORE = Path(__file__).with_name("openapi-0.1.json")

ADDED: dict[str, str] = {
    "GET /whoami": "a client learns who its token is, and which actions are worth offering",
    "POST /resolve": "nodes that are the same entity are merged",
    "POST /cherry-pick": "the changes of one commit, on another branch",
    "POST /restore-entities": "entities as they were in another state",
    "GET /history": "what happened to one entity",
    "GET /branches/{branch}/rule": "what a protected branch demands",
    "POST /branches/{branch}/rule": "the same",
    "DELETE /branches/{branch}/rule": "the same",
    "GET /merge-requests": "merges that are reviewed",
    "POST /merge-requests": "the same",
    "GET /merge-requests/{request_id}": "the same",
    "POST /merge-requests/{request_id}/approve": "the same",
    "POST /merge-requests/{request_id}/checks": "the same",
    "POST /merge-requests/{request_id}/merge": "the same",
    "POST /merge-requests/{request_id}/close": "the same",
}
"""Operations that are new since then, each with its reason."""
ADDED_NAMES = {
    name: reason
    for word, reason in {
        "dedupe": "a merge load may find edges without ids by their ends",
        "message": "every commit may say what it is about",
        "fork": "a difference may begin where two branches parted",
        "by": "a merge may refuse two changes of one entity instead of combining them",
        "source_commit": "a resolution of conflicts names the commits that it was made for",
        "target_commit": "the same",
        "timeout": "a query may have a time limit",
        "max_bad": "a load may go on without a few bad records",
    }.items()
    for name in (word, f"query {word}")
}
"""Parameters and members of operations of then that are new, each with its reason. All can be left out."""


ADDED_IN = {
    "GET /changes": {"blocks[].schema": "what a commit changed of the schema"},
    "GET /commits/{commit_id}/changes": {"schema": "the same"},
    "POST /schema/apply": {"branch": "a branch has a schema of its own"},
    "POST /schema/plan": {"branch": "the same"},
}
"""The same, of names that other operations had then."""


def test_the_document_says_what_it_said_before(http: httpx.Client) -> None:
    before, now = json.loads(BEFORE.read_text()), outline(http.get("/openapi.json").json())

    assert set(now) - set(before) == set(ADDED)
    assert {key: _without_added(now.get(key), ADDED_NAMES | ADDED_IN.get(key, {})) for key in before} == before


def _without_added(outlined: Any, added: Collection[str]) -> Any:
    if isinstance(outlined, dict):
        return {name: _without_added(value, added) for name, value in outlined.items()}
    return [one for one in outlined if one not in added] if isinstance(outlined, list) else outlined
