"""The face's own tokens, checked by its own keys: what another issuer signed is none of them."""

from __future__ import annotations

import time
from typing import Any

from portico.auth.assertions import ALGORITHM
from portico.auth.principal import Principal
from portico.auth.verifiers import jws
from portico.auth.verifiers.base import Fetcher, RequestCredentials, TokenInvalid, Unavailable, Verified
from portico.auth.verifiers.jws import SignedToken
from portico.auth.verifiers.jwt import JwtVerifier
from portico.store.errors import StoreError
from portico_gateway.authserver.server import Face
from portico_gateway.authserver.signing_keys import FaceKeys

# A key that another process has just made is in the store; one that is made up is not, and is not looked for at once.
_LOOK_SECONDS = 5.0


class _OwnKeys:
    """The public keys of the face, out of the store that it shares with its other processes."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._read_from: FaceKeys | None = None
        self._keys: dict[str, Any] = {}
        self._looked = float("-inf")

    def candidates(self, token: SignedToken) -> list[Any]:
        keys = self._face.keys
        if keys is not None and keys is not self._read_from:
            self._keys = {one["kid"]: jws.public_key(one) for one in keys.public()}
            self._read_from = keys
        kid = token.header.get("kid")
        return [self._keys[kid]] if isinstance(kid, str) and kid in self._keys else []

    def must_fetch(self, token: SignedToken) -> bool:
        return not self.candidates(token) and time.monotonic() - self._looked >= _LOOK_SECONDS

    async def fetch(self, token: SignedToken, fetcher: Fetcher | None) -> None:
        self._looked = time.monotonic()
        try:
            await self._face.known_keys()
        except StoreError as failure:
            raise Unavailable(f"the keys cannot be read: {failure}") from None

    def freshen(self, fetcher: Fetcher) -> None:
        """The store says itself when they change."""


def is_revoked(face: Face, principal: Any) -> bool:
    """Whether it came by a grant of this face that was taken back."""
    own = isinstance(principal, Principal) and principal.issuer == face.settings.issuer
    return own and face.is_revoked(str(principal.claims.get("gid")))


class FaceVerifier:
    """Takes exactly what the face has given out, and not revoked."""

    # Nothing but what it is shown decides: not from where.
    by_address = False

    def __init__(self, face: Face) -> None:
        self.issuer = face.settings.issuer
        self._face = face
        self._tokens = JwtVerifier(self.issuer, algorithms=(ALGORITHM,), keys=_OwnKeys(face))

    def at_once(self, credentials: RequestCredentials) -> Verified | None:
        return self._standing(self._tokens.at_once(credentials))

    async def __call__(self, credentials: RequestCredentials) -> Verified | None:
        return self._standing(await self._tokens(credentials))

    def is_revoked(self, principal: Any) -> bool:
        return is_revoked(self._face, principal)

    def _standing(self, found: Verified | None) -> Verified | None:
        if found is not None and is_revoked(self._face, found.principal):
            raise TokenInvalid("it was revoked")
        return found
