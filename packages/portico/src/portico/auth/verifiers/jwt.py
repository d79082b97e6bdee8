"""JWT access tokens (RFC 9068), verified with the issuer's published keys (RFC 7517)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from portico.auth.errors import AuthorizationError, quote_untrusted
from portico.auth.url_policy import check_url
from portico.auth.verifiers import jws
from portico.auth.verifiers.base import InvalidToken, RequestCredentials, VerificationPending, VerifiedToken
from portico.auth.verifiers.claims import ClaimNames, to_verified_token, validate_audience, validate_time
from portico.auth.verifiers.jwks import JwksCache, KeySource
from portico.auth.verifiers.jws import ParsedJws
from portico.protocol.errors import UsageError

log = logging.getLogger("portico.auth")

# Default algorithms; the `algorithms` option narrows them.
ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "EdDSA")
LEEWAY_SECONDS = 30.0
# RFC 8725, section 3.11: tokens of other types are rejected. Many providers send just "JWT".
_ACCEPTED_TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})


class JwtVerifier:
    """Verifier for the JWTs of one issuer.

    * **issuer** – exactly as in the tokens' `iss`. Its metadata names its keys (RFC 8414, OpenID Connect).
    * **audience** – required audience; None: the audience of the server.
    * **algorithms** – accepted signature algorithms.
    * **leeway** – tolerated clock difference in seconds, 0 to 600.
    * **jwks_uri** – URL of the keys, for an issuer without metadata.
    * **claim_names** – claims that hold the id, scopes and groups.
    * **key_source** – source of the keys, if they are not published.
    """

    # The result does not depend on the client's address.
    depends_on_address = False

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Sequence[str] | None = None,
        algorithms: Collection[str] = ALGORITHMS,
        leeway: float = LEEWAY_SECONDS,
        jwks_uri: str | None = None,
        claim_names: ClaimNames = ClaimNames(),
        key_source: KeySource | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        _check_issuer(issuer)
        jws.require_joserfc()
        if not 0 <= leeway <= 600:
            raise UsageError(f"leeway must be between 0 and 600 seconds, got {leeway}")
        self.issuer = issuer
        self.audiences = None if audience is None else frozenset([audience] if isinstance(audience, str) else audience)
        self._algorithms = jws.validate_algorithms(algorithms)
        self._leeway = leeway
        self._claims = claim_names
        self._clock = clock
        self._keys: KeySource = key_source or JwksCache(issuer, jwks_uri)

    def try_verify(self, credentials: RequestCredentials) -> VerifiedToken | None:
        """Verify with the cached keys. Raises VerificationPending if they have to be fetched."""
        token = self._read(credentials)
        if token is None:
            return None
        if self._keys.needs_fetch(token):
            raise VerificationPending
        return self._verify(token, credentials)

    async def __call__(self, credentials: RequestCredentials) -> VerifiedToken | None:
        token = self._read(credentials)
        if token is None:
            return None
        if self._keys.needs_fetch(token):
            await self._keys.fetch(token, credentials.fetch)
        return self._verify(token, credentials)

    def _read(self, credentials: RequestCredentials) -> ParsedJws | None:
        """Parse a token of this issuer and run the checks that need no key; None for other tokens."""
        if credentials.scheme not in ("bearer", "dpop") or not jws.looks_like_jws(credentials.token):
            return None
        token = jws.parse_jws(credentials.token)
        # Read before the signature is verified, but only to select the issuer whose keys must verify it.
        if token.claims.get("iss") != self.issuer:
            return None
        # Checked before any key is fetched, so that a forged token cannot cause requests to the issuer.
        jws.validate_header(token, self._algorithms)
        if str(token.header.get("typ", "")).lower() not in _ACCEPTED_TYPES:
            raise InvalidToken("the token is not an access token (typ)")
        validate_time(token.claims, self._clock(), self._leeway, require_expiry=True)
        validate_audience(token.claims, credentials.accepted_audiences(self.audiences))
        return token

    def _verify(self, token: ParsedJws, credentials: RequestCredentials) -> VerifiedToken:
        if not any(jws.verify_signature(token, key) for key in self._keys.find_keys(token)):
            raise InvalidToken("the signature does not match any key of the issuer")
        # Fetching keys may have taken seconds, so the expiry is checked again.
        expires_at = validate_time(token.claims, self._clock(), self._leeway, require_expiry=True)
        if credentials.fetch is not None:
            self._keys.refresh_in_background(credentials.fetch)
        return to_verified_token(token.claims, self.issuer, self._claims, expires_at)


def _check_issuer(issuer: str) -> None:
    try:
        check_url(issuer)
    except AuthorizationError as mistake:
        raise UsageError(f"invalid issuer {quote_untrusted(issuer)}: {mistake}") from None
    if "?" in issuer or "#" in issuer:
        raise UsageError(f"invalid issuer {quote_untrusted(issuer)}: a query or fragment is not allowed")
