"""Bearer tokens. Only their digests are kept, and comparing takes the same time for every guess."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from omnigraph.api.access import Principal
from omnigraph.errors import UnauthorizedError

_SCHEME = "bearer"


def digest_of(token: str) -> bytes:
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
