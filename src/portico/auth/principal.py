"""The verified identity of a caller, and the one static token that all clients of a server may share."""

from __future__ import annotations

import hmac
from collections.abc import Set

from msgspec import Struct

_SCHEME = b"bearer "


class Principal(Struct, frozen=True):
    """An identity that was verified. Sessions, subscriptions and states belong to one."""

    id: str
    # None: everything is allowed.
    scopes: frozenset[str] | None = None

    def lacks(self, needed: Set[str]) -> frozenset[str]:
        return frozenset() if self.scopes is None else frozenset(needed) - self.scopes


class BearerToken:
    """One static token, compared in constant time."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._principal = Principal("token")

    def verify(self, authorization: bytes | None) -> Principal | None:
        """The principal of an `Authorization` header; None when the token is wrong or missing."""
        if authorization is None or authorization[:7].lower() != _SCHEME:
            return None
        given = authorization[7:].strip()
        return self._principal if hmac.compare_digest(given, self._token) else None
