"""Bearer tokens: read from the configuration and the environment, kept as digests, compared in constant time.

No message ever contains one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnigraph.api.access import Principal, Role
from omnigraph.errors import ConfigError, UnauthorizedError
from omnigraph.settings import FILE, TokenEntry

_SCHEME = "bearer"


def digest_of(token: str) -> bytes:
    # A plain digest: tokens are random and long, so the slow hashes that protect passwords would only slow each
    # request.
    return hashlib.sha256(token.strip().encode()).digest()


@dataclass(frozen=True, slots=True)
class Token:
    """The principal of a token. The digest is not shown, because a weak token can be guessed from it."""

    principal: Principal
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of a server."""

    known: tuple[Token, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.known)

    def authenticate(self, authorization: str | None) -> Principal:
        """Return the principal of an `Authorization` header; raise UnauthorizedError if it names none."""
        scheme, _, token = (authorization or "").strip().partition(" ")
        if scheme.lower() != _SCHEME or not token.strip():
            raise UnauthorizedError("missing bearer token", hint="send the header `Authorization: Bearer <token>`")
        given, found = digest_of(token), None
        for one in self.known:  # all of them, even after a match: the time must not reveal which one it was
            if hmac.compare_digest(one.digest, given):
                found = one.principal
        if found is None:
            raise UnauthorizedError("invalid bearer token", hint="ask the operator of the server for a token")
        return found


ONE = "OMNIGRAPH_SERVER_BEARER_TOKEN"
MANY = "OMNIGRAPH_SERVER_BEARER_TOKENS_JSON"
TOKENS_FILE = "OMNIGRAPH_SERVER_BEARER_TOKENS_FILE"
SECRET = "OMNIGRAPH_SERVER_BEARER_TOKENS_AWS_SECRET"
ROLE = "OMNIGRAPH_SERVER_ROLE"
MEMBERS = ("token", "role", "graphs")
_DEFAULT_ACTOR = "default"
_OURS = "omnigraph:"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


def tokens_of(entries: Sequence[TokenEntry], environment: Mapping[str, str], path: str = FILE) -> Tokens:
    """Collect all tokens. A token of two actors is refused, because it would not identify either."""
    declared = [_declared(entry, f"{path}: server.tokens.{at}", path, environment) for at, entry in enumerate(entries)]
    found = [*declared, *_of_environment(environment)]
    holders: dict[bytes, str] = {}
    for token in found:
        actor = token.principal.actor
        # Also in the environment and the file together: which actor a commit names would depend on their order.
        if token.digest in holders:
            message = f"'{holders[token.digest]}' and '{actor}' have the same token"
            raise ConfigError(message, path="", hint="give each actor a token of its own")
        holders[token.digest] = actor
    return Tokens(tuple(found))


# The configuration ---------------------------------------------------------------------------------


def _declared(entry: TokenEntry, where: str, path: str, environment: Mapping[str, str]) -> Token:
    graphs = None if entry.graphs is None else frozenset(entry.graphs)
    principal = Principal(_actor(entry.actor, path, where), entry.role, graphs)
    return Token(principal, _digest(entry, where, path, environment))


def _digest(entry: TokenEntry, where: str, path: str, environment: Mapping[str, str]) -> bytes:
    digest, variable = entry.token_sha256, entry.token_env
    if (digest is None) == (variable is None):
        hint = "give the digest of the token, or the variable that holds it"
        raise ConfigError(f"{where} must have either token_sha256 or token_env", path=path, hint=hint)
    if digest is not None:
        if not _DIGEST.fullmatch(digest):
            hint = 'compute it with `printf %s "$TOKEN" | sha256sum`'
            message = f"{where}.token_sha256 must be a SHA-256 digest: 64 hexadecimal digits"
            raise ConfigError(message, path=path, hint=hint)
        return bytes.fromhex(digest)
    token = environment.get(str(variable), "").strip()
    if not token:
        message = f"{where}.token_env names {variable}, which is empty or not set"
        raise ConfigError(message, path=path, hint="set it to the token")
    return digest_of(token)


# The environment -----------------------------------------------------------------------------------


def _of_environment(environment: Mapping[str, str]) -> list[Token]:
    if environment.get(SECRET):
        message = f"{SECRET} is set, but AWS secrets are not supported"
        raise ConfigError(message, path=SECRET, hint=f"write the tokens into a file and name it in {TOKENS_FILE}")
    role = _role(environment.get(ROLE) or Role.READ, ROLE)
    found = []
    # Set but blank is an error, and not the same as unset: a secret that failed to arrive must not open the server.
    if ONE in environment:
        found.append(_token(_DEFAULT_ACTOR, environment[ONE], role, ONE))
    if environment.get(MANY):
        found += _of_json(environment[MANY], role, MANY)
    if environment.get(TOKENS_FILE):
        found += _of_json(_text_of(environment[TOKENS_FILE]), role, environment[TOKENS_FILE])
    return found


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # editors on Windows put a mark before the text
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"cannot read {path}: {reason}", path=path, hint=f"check {TOKENS_FILE}") from None


def _of_json(text: str, role: Role, where: str) -> list[Token]:
    hint = 'write {"actor": "token"}, or {"actor": {"token": "...", "role": "write"}}'
    try:
        # Pairs instead of a dict: an actor that stands there twice keeps both tokens, so that one can be rotated.
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
        hint = f"give a string, or an object with {', '.join(MEMBERS)}"
        raise ConfigError(f"{where}: the value of '{actor}' is not a token", path=where, hint=hint)
    found = _token(actor, members["token"], _role(members.get("role", role), where), where)
    scope = None if graphs is None else frozenset(map(str, graphs))
    return Token(Principal(found.principal.actor, found.principal.role, scope), found.digest)


def _token(actor: str, token: str, role: Role, where: str) -> Token:
    if not token.strip():
        raise ConfigError(f"{where}: the token of '{actor}' is blank", path=where, hint="set it, or remove the entry")
    return Token(Principal(_actor(actor, where, where), role), digest_of(token))


def _role(text: Any, where: str) -> Role:
    if text not in list(Role):
        raise ConfigError(f"{where}: unknown role {text!r:.40}", path=where, hint=f"use one of {', '.join(Role)}")
    return Role(text)


def _actor(name: str | None, path: str, where: str) -> str:
    """Check the name that commits will carry. Names of internal actors are reserved, such as that of the recovery."""
    actor = (name or "").strip()
    if not actor or not actor.isprintable():
        raise ConfigError(f"{where}: an actor must have a name", path=path, hint="set the actor of the token")
    if actor.startswith(_OURS):
        raise ConfigError(f"{where}: names that start with {_OURS} are reserved", path=path, hint="use another name")
    return actor
