"""One static token for all clients of a server."""

from __future__ import annotations

import hmac

from portico.auth.principal import Principal

_SCHEME = b"bearer "


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
