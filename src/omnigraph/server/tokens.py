"""Bearer tokens: only their digests are kept, and nothing tells by its time how near a guess was."""

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
    """Whom a token stands for. Its digest is not shown: it is all that is needed to guess a weak one."""

    principal: Principal
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens that a server knows."""

    known: tuple[Token, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.known)

    def authenticate(self, authorization: str | None) -> Principal:
        """Say who asks, by the header of that name; raise UnauthorizedError if nobody does."""
        scheme, _, token = (authorization or "").strip().partition(" ")
        if scheme.lower() != _SCHEME or not token.strip():
            raise UnauthorizedError("missing bearer token", hint="send the header `Authorization: Bearer <token>`")
        given, found = digest_of(token), None
        for one in self.known:  # all of them, whichever fits: the time must not tell which
            if hmac.compare_digest(one.digest, given):
                found = one.principal
        if found is None:
            raise UnauthorizedError("invalid bearer token", hint="ask whoever runs the server for a token")
        return found
