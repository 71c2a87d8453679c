"""Tokens: who is known, where tokens come from, and that they are nowhere to be seen."""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from omnigraph.api.access import Principal, Role
from omnigraph.errors import ConfigError, UnauthorizedError
from omnigraph.server.tokens import Token, Tokens, digest_of, tokens_of
from omnigraph.settings import ServerSection, SettingsFile, TokenEntry

ANN, BOB = Principal("ann", Role.READ), Principal("bob", Role.ADMIN)
KNOWN = Tokens((Token(ANN, digest_of("ann-secret")), Token(BOB, digest_of("bob-secret"))))
SECRET = "s3cr3t-of-somebody"


def declared(*entries: dict[str, Any]) -> list[TokenEntry]:
    file = SettingsFile("omnigraph.yaml", {"server": {"tokens": list(entries)}})
    file.refuse_unknown(ServerSection, "server")
    return file.part(ServerSection, "server").tokens


@pytest.mark.parametrize("header", ["Bearer bob-secret", "bearer bob-secret", "BEARER  bob-secret "])
def test_a_token_says_who_asks(header: str) -> None:
    assert KNOWN.authenticate(header) == BOB


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic bob-secret", "bob-secret"])
def test_without_a_token_nobody_is_known(header: str | None) -> None:
    with pytest.raises(UnauthorizedError, match="missing bearer token"):
        KNOWN.authenticate(header)


@pytest.mark.parametrize("token", ["bob", "bob-secret2", "BOB-SECRET", "ann-secret bob-secret", "\u00fc"])
def test_a_token_that_nobody_has_is_refused_without_saying_it(token: str) -> None:
    with pytest.raises(UnauthorizedError, match="invalid bearer token") as caught:
        KNOWN.authenticate(f"Bearer {token}")
    assert token not in str(caught.value)


def test_every_entry_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    KNOWN.authenticate("Bearer ann-secret")
    assert len(compared) == len(KNOWN.known)


def test_neither_token_nor_digest_is_in_what_is_printed() -> None:
    shown = f"{KNOWN!r} {KNOWN.known[0]!r}"
    assert "ann-secret" not in shown
    assert digest_of("ann-secret").hex() not in shown
    assert repr(digest_of("ann-secret")) not in shown


def test_tokens_come_from_the_configuration_and_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"fay": {"token": "f", "role": "admin", "graphs": ["people"]}}))
    environment = {
        "HERS": " a ",
        "OMNIGRAPH_SERVER_BEARER_TOKEN": "b",
        "OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": '{"cay": "c", "eve": {"token": "e", "role": "write"}}',
        "OMNIGRAPH_SERVER_BEARER_TOKENS_FILE": str(file),
    }
    entries = declared(
        {"actor": "ann", "role": "write", "token_env": "HERS"},
        {"actor": "dan", "token_sha256": digest_of("d").hex(), "graphs": ["people"]},
    )
    found = tokens_of(entries, environment)
    people = {token: found.authenticate(f"Bearer {token}") for token in "abcdef"}
    assert people == {
        "a": Principal("ann", Role.WRITE),
        "b": Principal("default", Role.READ),
        "c": Principal("cay", Role.READ),
        "d": Principal("dan", Role.READ, frozenset({"people"})),
        "e": Principal("eve", Role.WRITE),
        "f": Principal("fay", Role.ADMIN, frozenset({"people"})),
    }


def test_the_role_of_plain_tokens_of_the_environment_can_be_set() -> None:
    environment = {"OMNIGRAPH_SERVER_BEARER_TOKEN": "b", "OMNIGRAPH_SERVER_ROLE": "admin"}
    assert tokens_of([], environment).authenticate("Bearer b").role is Role.ADMIN


def test_one_actor_may_have_two_tokens_so_that_one_can_replace_the_other() -> None:
    found = tokens_of([], {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": '{"ann": "old", "ann": "new"}'})
    assert [found.authenticate(f"Bearer {token}").actor for token in ("old", "new")] == ["ann", "ann"]


@pytest.mark.parametrize(
    "environment, said",
    [
        ({"OMNIGRAPH_SERVER_BEARER_TOKEN": "  "}, "blank"),
        ({"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": '{"ann": ""}'}, "the token of 'ann' is blank"),
        ({"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": f'{{" ": "{SECRET}"}}'}, "must have a name"),
        ({"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": f'{{"omnigraph:recovery": "{SECRET}"}}'}, "are reserved"),
        ({"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": f'{{"a": "{SECRET}", "b": "{SECRET} "}}'}, "have the same token"),
        ({"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": f'["{SECRET}"]'}, "does not hold an object"),
        ({"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": SECRET}, "does not hold JSON"),
        ({"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": f'{{"a": ["{SECRET}"]}}'}, "is not a token"),
        (
            {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": f'{{"a": {{"token": "{SECRET}", "rolle": "read"}}}}'},
            "is not a token",
        ),
        (
            {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": f'{{"a": {{"token": "{SECRET}", "role": "king"}}}}'},
            "unknown role 'king'",
        ),
        ({"OMNIGRAPH_SERVER_BEARER_TOKENS_FILE": "nowhere.json"}, "cannot read nowhere.json"),
        ({"OMNIGRAPH_SERVER_BEARER_TOKENS_AWS_SECRET": SECRET}, "not supported"),
        ({"OMNIGRAPH_SERVER_BEARER_TOKEN": SECRET, "OMNIGRAPH_SERVER_ROLE": "king"}, "unknown role 'king'"),
    ],
)
def test_tokens_that_cannot_be_used_are_refused_without_saying_them(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        tokens_of([], environment)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "entry, said",
    [
        ({"token_sha256": "0" * 64}, "server.tokens.0: an actor must have a name"),
        ({"actor": "ann"}, "must have either token_sha256 or token_env"),
        ({"actor": "ann", "token_sha256": "0" * 64, "token_env": "X"}, "either token_sha256 or token_env"),
        ({"actor": "ann", "token_sha256": SECRET}, "64 hexadecimal digits"),
        ({"actor": "ann", "token_env": "NOT_SET"}, "names NOT_SET"),
        ({"actor": "ann", "token": SECRET}, "server.tokens.0.token is not a setting"),
        ({"actor": "ann", "role": "king", "token_sha256": "0" * 64}, "not one of read, write, admin"),
    ],
)
def test_an_entry_of_the_configuration_is_refused_with_its_place(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        tokens_of(declared(entry), {})
    assert SECRET not in str(caught.value)
    assert caught.value.path == "omnigraph.yaml"
