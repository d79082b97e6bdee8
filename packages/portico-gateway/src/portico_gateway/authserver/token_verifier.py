"""Verifier for access tokens issued by this authorization server."""

from __future__ import annotations

import time
from typing import Any

from portico.auth.assertions import DPOP_ALGORITHM
from portico.auth.principal import Principal
from portico.auth.verifiers import jws
from portico.auth.verifiers.base import Fetcher, InvalidToken, RequestCredentials, VerifiedToken, VerifierUnavailable
from portico.auth.verifiers.jws import ParsedJws
from portico.auth.verifiers.jwt import JwtVerifier
from portico.store.errors import StoreError
from portico_gateway.authserver.server import AuthorizationServer
from portico_gateway.authserver.signing_keys import SigningKeySet

# Another process may have just created a key, so an unknown key ID triggers a read of the store. The interval
# prevents a read for each request with a forged key ID.
_KEY_REFRESH_SECONDS = 5.0


class _LocalKeys:
    """Public keys of the authorization server, read from the store that its processes share."""

    def __init__(self, server: AuthorizationServer) -> None:
        self._server = server
        self._read_from: SigningKeySet | None = None
        self._keys: dict[str, Any] = {}
        self._looked = float("-inf")

    def find_keys(self, token: ParsedJws) -> list[Any]:
        keys = self._server.keys
        if keys is not None and keys is not self._read_from:
            self._keys = {jwks_key["kid"]: jws.parse_jwk(jwks_key) for jwks_key in keys.jwks_keys()}
            self._read_from = keys
        kid = token.header.get("kid")
        return [self._keys[kid]] if isinstance(kid, str) and kid in self._keys else []

    def needs_fetch(self, token: ParsedJws) -> bool:
        return not self.find_keys(token) and time.monotonic() - self._looked >= _KEY_REFRESH_SECONDS

    async def fetch(self, token: ParsedJws, fetcher: Fetcher | None) -> None:
        self._looked = time.monotonic()
        try:
            await self._server.get_public_keys()
        except StoreError as failure:
            raise VerifierUnavailable(f"cannot read the keys: {failure}") from None

    def refresh_in_background(self, fetcher: Fetcher) -> None:
        """Do nothing: the store publishes an event when keys change."""


def is_revoked(server: AuthorizationServer, principal: Any) -> bool:
    """Return whether a principal's grant at this authorization server was revoked."""
    own = isinstance(principal, Principal) and principal.issuer == server.settings.issuer
    return own and server.is_revoked(str(principal.claims.get("gid")))


class LocalTokenVerifier:
    """Accepts tokens that this authorization server issued and has not revoked."""

    # The result depends on the token only, not on the peer address.
    depends_on_address = False

    def __init__(self, server: AuthorizationServer) -> None:
        self.issuer = server.settings.issuer
        self._server = server
        self._tokens = JwtVerifier(self.issuer, algorithms=(DPOP_ALGORITHM,), key_source=_LocalKeys(server))

    async def __call__(self, credentials: RequestCredentials) -> VerifiedToken | None:
        return self._check_revocation(await self._tokens(credentials))

    def is_revoked(self, principal: Any) -> bool:
        return is_revoked(self._server, principal)

    def _check_revocation(self, token: VerifiedToken | None) -> VerifiedToken | None:
        if token is not None and is_revoked(self._server, token.principal):
            raise InvalidToken("the token was revoked")
        return token
