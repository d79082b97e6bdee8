"""Tokens that an issuer has signed: checked with the keys that it publishes (RFC 9068, RFC 7517)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from portico.auth.errors import AuthorizationFailed, quoted
from portico.auth.url_policy import check_url
from portico.auth.verifiers import jws
from portico.auth.verifiers.base import MustWait, RequestCredentials, TokenInvalid, Verified
from portico.auth.verifiers.claims import ClaimNames, check_audience, check_time, verified
from portico.auth.verifiers.jwks import IssuerKeys, KeySource
from portico.auth.verifiers.jws import SignedToken
from portico.protocol.errors import UsageError

log = logging.getLogger("portico.auth")

# What providers sign with; a list of one's own narrows it.
ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "EdDSA")
LEEWAY_SECONDS = 30.0
# RFC 8725, section 3.11: a token of another kind is not taken for one of this. Many providers say no more than JWT.
_KINDS = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})


class JwtVerifier:
    """Tokens of one issuer.

    * **issuer** – to the letter as its tokens have it. Its metadata says where its keys are (RFC 8414, OpenID Connect).
    * **audience** – what a token has to be for; None: what the server expects.
    * **algorithms** – what a token may be signed with.
    * **leeway** – how many seconds the clocks may differ.
    * **jwks_uri** – where the keys are, for an issuer that does not publish that.
    * **claims** – where in a token the id, the scopes and the groups are.
    * **keys** – where the keys come from, if they are not published.
    """

    # Nothing but what it is shown decides: not from where.
    by_address = False

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Sequence[str] | None = None,
        algorithms: Collection[str] = ALGORITHMS,
        leeway: float = LEEWAY_SECONDS,
        jwks_uri: str | None = None,
        claims: ClaimNames = ClaimNames(),
        keys: KeySource | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        _check_issuer(issuer)
        jws.need_joserfc()
        if not 0 <= leeway <= 600:
            raise UsageError(f"a leeway of {leeway} s is none: it is between 0 and 600")
        self.issuer = issuer
        self.audiences = None if audience is None else frozenset([audience] if isinstance(audience, str) else audience)
        self._algorithms = jws.check_algorithms(algorithms)
        self._leeway = leeway
        self._claims = claims
        self._clock = clock
        self._keys: KeySource = keys or IssuerKeys(issuer, jwks_uri)

    def at_once(self, credentials: RequestCredentials) -> Verified | None:
        """With the keys that are at hand; raises MustWait if they do not suffice."""
        token = self._read(credentials)
        if token is None:
            return None
        if self._keys.must_fetch(token):
            raise MustWait
        return self._verify(token, credentials)

    async def __call__(self, credentials: RequestCredentials) -> Verified | None:
        token = self._read(credentials)
        if token is None:
            return None
        if self._keys.must_fetch(token):
            await self._keys.fetch(token, credentials.fetch)
        return self._verify(token, credentials)

    def _read(self, credentials: RequestCredentials) -> SignedToken | None:
        """The token, if it is of this issuer. What is wrong without a look at any key is said here."""
        if credentials.scheme not in ("bearer", "dpop") or not jws.looks_signed(credentials.token):
            return None
        token = jws.read(credentials.token)
        if token.claims.get("iss") != self.issuer:
            return None
        jws.check_header(token, self._algorithms)
        if str(token.header.get("typ", "")).lower() not in _KINDS:
            raise TokenInvalid("it is no access token (typ)")
        check_time(token.claims, self._clock(), self._leeway, must_end=True)
        check_audience(token.claims, credentials.expected(self.audiences))
        return token

    def _verify(self, token: SignedToken, credentials: RequestCredentials) -> Verified:
        if not any(jws.is_signed_by(token, key) for key in self._keys.candidates(token)):
            raise TokenInvalid("its signature is not one of the issuer's keys")
        ends = check_time(token.claims, self._clock(), self._leeway, must_end=True)
        if credentials.fetch is not None:
            self._keys.freshen(credentials.fetch)
        return verified(token.claims, self.issuer, self._claims, ends)


def _check_issuer(issuer: str) -> None:
    try:
        check_url(issuer)
    except AuthorizationFailed as mistake:
        raise UsageError(f"{quoted(issuer)} is no issuer: {mistake}") from None
    if "?" in issuer or "#" in issuer:
        raise UsageError(f"{quoted(issuer)} is no issuer: it has a query or a fragment")
