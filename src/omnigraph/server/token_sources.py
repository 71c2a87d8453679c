"""Where tokens come from: the configuration and the environment. None of them is ever in a message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omnigraph.api.access import Principal, Role
from omnigraph.errors import ConfigError
from omnigraph.server.tokens import Token, Tokens, digest_of
from omnigraph.settings_file import Section

ONE = "OMNIGRAPH_SERVER_BEARER_TOKEN"
MANY = "OMNIGRAPH_SERVER_BEARER_TOKENS_JSON"
FILE = "OMNIGRAPH_SERVER_BEARER_TOKENS_FILE"
SECRET = "OMNIGRAPH_SERVER_BEARER_TOKENS_AWS_SECRET"
ROLE = "OMNIGRAPH_SERVER_ROLE"
KEYS = ("actor", "role", "graphs", "token_sha256", "token_env")
MEMBERS = ("token", "role", "graphs")
_DEFAULT_ACTOR = "default"
_OURS = "omnigraph:"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


def tokens_of(declared: Iterable[Section], environment: Mapping[str, str]) -> Tokens:
    """Put all tokens together. One that stands for two is refused: nobody could say who asks."""
    found = [*(_declared(one, environment) for one in declared), *_of_environment(environment)]
    holders: dict[bytes, str] = {}
    for token in found:
        actor = token.principal.actor
        if token.digest in holders:
            message = f"'{holders[token.digest]}' and '{actor}' have the same token"
            raise ConfigError(message, path="", hint="give each a token of its own")
        holders[token.digest] = actor
    return Tokens(tuple(found))


# The configuration ---------------------------------------------------------------------------------


def _declared(entry: Section, environment: Mapping[str, str]) -> Token:
    entry.refuse_unknown(KEYS)
    role = entry.one_of("role", list(Role)) or Role.READ
    graphs = frozenset(entry.texts("graphs")) if "graphs" in entry.values else None
    principal = Principal(_actor(entry.text("actor"), entry.path, f"{entry.path}: {entry.place}"), Role(role), graphs)
    return Token(principal, _digest(entry, environment))


def _digest(entry: Section, environment: Mapping[str, str]) -> bytes:
    digest, variable = entry.text("token_sha256"), entry.text("token_env")
    if (digest is None) == (variable is None):
        hint = "give the digest of the token, or the variable that holds it"
        raise entry.problem("token_sha256", "or token_env must be given, one of them", hint=hint)
    if digest is not None:
        if not _DIGEST.fullmatch(digest):
            hint = 'make it with `printf %s "$TOKEN" | sha256sum`'
            raise entry.problem("token_sha256", "must be a SHA-256 digest: 64 hexadecimal digits", hint=hint)
        return bytes.fromhex(digest)
    token = environment.get(str(variable), "").strip()
    if not token:
        raise entry.problem("token_env", f"names {variable}, and there is nothing in it", hint="set it to the token")
    return digest_of(token)


# The environment -----------------------------------------------------------------------------------


def _of_environment(environment: Mapping[str, str]) -> list[Token]:
    if environment.get(SECRET):
        message = f"{SECRET} is set, and secrets of AWS are not read"
        raise ConfigError(message, path=SECRET, hint=f"write them into a file and name it in {FILE}")
    role = _role(environment.get(ROLE) or Role.READ, ROLE)
    found = []
    if ONE in environment:
        found.append(_token(_DEFAULT_ACTOR, environment[ONE], role, ONE))
    if environment.get(MANY):
        found += _of_json(environment[MANY], role, MANY)
    if environment.get(FILE):
        found += _of_json(_text_of(environment[FILE]), role, environment[FILE])
    return found


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"cannot read {path}: {reason}", path=path, hint=f"check {FILE}") from None


def _of_json(text: str, role: Role, where: str) -> list[Token]:
    hint = 'write {"actor": "token"}, or {"actor": {"token": "...", "role": "write"}}'
    try:
        # Pairs: if an actor is there twice, both of his tokens count.
        pairs = json.loads(text, object_pairs_hook=list)
    except (json.JSONDecodeError, RecursionError):
        raise ConfigError(f"{where} does not hold JSON", path=where, hint=hint) from None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise ConfigError(f"{where} does not hold an object", path=where, hint=hint)
    return [_member(actor, value, role, where) for actor, value in pairs]


def _member(actor: str, value: Any, role: Role, where: str) -> Token:
    if isinstance(value, str):
        return _token(actor, value, role, where)
    members = dict(value) if isinstance(value, list) and all(isinstance(one, tuple) for one in value) else {}
    graphs = members.get("graphs")
    usable = isinstance(members.get("token"), str) and members.keys() <= set(MEMBERS)
    if not usable or not (graphs is None or isinstance(graphs, list)):
        hint = f"give a text, or an object with {', '.join(MEMBERS)}"
        raise ConfigError(f"{where}: what '{actor}' has is no token", path=where, hint=hint)
    found = _token(actor, members["token"], _role(members.get("role", role), where), where)
    scope = None if graphs is None else frozenset(map(str, graphs))
    return Token(Principal(found.principal.actor, found.principal.role, scope), found.digest)


def _token(actor: str, token: str, role: Role, where: str) -> Token:
    if not token.strip():
        raise ConfigError(f"{where}: the token of '{actor}' is blank", path=where, hint="set it, or leave it out")
    return Token(Principal(_actor(actor, where, where), role), digest_of(token))


def _role(text: Any, where: str) -> Role:
    if text not in list(Role):
        raise ConfigError(f"{where}: there is no role {text!r:.40}", path=where, hint=f"use one of {', '.join(Role)}")
    return Role(text)


def _actor(name: str | None, path: str, where: str) -> str:
    """The name that commits will carry. Ours are not given away: nobody may pass for the recovery."""
    actor = (name or "").strip()
    if not actor or not actor.isprintable():
        raise ConfigError(f"{where}: an actor must have a name", path=path, hint="name who holds the token")
    if actor.startswith(_OURS):
        raise ConfigError(f"{where}: names that begin with {_OURS} are taken", path=path, hint="use another name")
    return actor
